"""What a model may do with a tensor that a replay cannot follow, or not easily: used by tests of replays with changes.

Each takes and returns a tensor of the same shape. The oracle is the model itself, on other inputs or edited by hand.
"""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import Buffer, autograd_function, made_with


@torch.jit.script
def scripted(t: Tensor):
    return torch.tanh(t * 2) + 1


traced = torch.jit.trace(lambda t: t.sin() * 3, torch.rand(4, 3))


# A straight-through estimator: its backward is not the derivative of its forward.
Rounded = autograd_function("Rounded", lambda ctx, t: (t * 4).round() / 4, lambda ctx, gradient: gradient * 3)


class Wrapper(torch.Tensor):
    """A tensor that holds its values in another one."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def opened(value):
            return value.inner if isinstance(value, Wrapper) else value

        result = func(*map(opened, args), **{name: opened(value) for name, value in (kwargs or {}).items()})
        return Wrapper(result) if isinstance(result, Tensor) else result


class Sub(torch.Tensor):
    """A subclass that adds nothing."""


class OverNumpy(nn.Module):
    """A buffer in the memory of an array."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.ones((4, 3), dtype=np.float32)
        self.register_buffer("table", torch.from_numpy(self.array))


class MultipliedByNumpy(OverNumpy):
    def forward(self, t: Tensor) -> Tensor:
        with torch.no_grad():
            self.table.copy_(t)
        np.multiply(self.array, 3, out=self.array)
        return t + self.table


class ReadByNumpy(OverNumpy):
    def forward(self, t: Tensor) -> Tensor:
        with torch.no_grad():
            self.table[1] = t[1]
        return t * float(self.array.sum())


class AttributeReadByNumpy(nn.Module):
    """The tensor over the memory of the array is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.array = np.ones((4, 3), dtype=np.float32)
        self.held = [torch.from_numpy(self.array)]

    def forward(self, t: Tensor) -> Tensor:
        self.held[0].copy_(t.detach())
        return t * float(self.array.sum())


@made_with(array=lambda: np.ones((4, 3), dtype=np.float32))
def MadeOverNumpy(self, t: Tensor) -> Tensor:
    """The tensor over the memory of the array is made in the pass."""
    torch.from_numpy(self.array)[:2].copy_(t.detach()[:2])
    return t * float(self.array.sum())


class FilledByNumpy(OverNumpy):
    def forward(self, t: Tensor) -> Tensor:
        self.array[:] = t.detach().numpy()
        return self.table + t


class CountedByNumpy(OverNumpy):
    """The array does not depend on the input."""

    def forward(self, t: Tensor) -> Tensor:
        self.array += 1
        return self.table + t


@made_with(table=lambda: Buffer(torch.ones(4, 3)))
def WrittenByThread(self, t: Tensor) -> Tensor:
    in_thread(lambda: self.table.copy_(t.detach() * 3))
    return t + self.table


@made_with(
    constant=lambda: torch.full((4, 3), 3.0),
    several=lambda: [torch.full((4, 3), 2.0)],
    array=lambda: np.full((4, 3), 5.0, dtype=np.float32),
)
def Holding(self, t: Tensor) -> Tensor:
    """Constants in an attribute, in a list and behind a NumPy array."""
    return t * self.constant + self.several[0] + torch.from_numpy(self.array)


class Keeping(nn.Module):
    """What TorchScript made is put into an attribute and read from there."""

    def forward(self, t: Tensor) -> Tensor:
        with torch.no_grad():
            self.made = scripted(t)
        return t + self.made


@made_with(layer=lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh())))
def ScriptedLayer(self, t: Tensor) -> Tensor:
    return self.layer(t) * 2


@made_with(norm=lambda: torch.jit.script(nn.BatchNorm1d(3)))
def ScriptedStatistics(self, t: Tensor) -> Tensor:
    """TorchScript writes to a buffer that is read outside of it."""
    self.norm(t.detach())
    return t + self.norm.running_mean


def in_thread(work: Callable[[], Any]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def made_by_thread(t: Tensor) -> Tensor:
    made: list[Tensor] = []
    in_thread(lambda: made.append(t.detach() * 3))
    return t + made[0]


def filled_by_thread(t: Tensor) -> Tensor:
    filled = torch.zeros_like(t)
    in_thread(lambda: filled.add_(t.detach()))
    return t + filled


def leaf(t: Tensor) -> Tensor:
    return (t * 2).detach().requires_grad_()


def energy(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        half = u * 0.5
        return torch.autograd.grad((half.sin() * u).sum(), u)[0] + t


def energy_of_rounded(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        return torch.autograd.grad((Rounded.apply(u) * u + u).sum(), u)[0] + t


def masked_energy_of_rounded(t: Tensor) -> Tensor:
    """The part through the custom function has no gradient where the mask is zero."""
    with torch.enable_grad():
        u = leaf(t)
        return torch.autograd.grad((torch.relu(Rounded.apply(u) - 2.5) + u).sum(), u)[0] + t


def filled_gradient(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        (u**2).sum().backward()
    return u.grad * 2


def gradient_of_two(t: Tensor) -> Tensor:
    """Two backward passes; the second does not depend on the input."""
    with torch.enable_grad():
        u = leaf(t)
        (u**2).sum().backward()
        (u * torch.ones_like(u)).sum().backward()
    return u.grad + t


def hooked_gradient(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        tripled = u * 3
        tripled.register_hook(lambda gradient: gradient * 2)
        return torch.autograd.grad((tripled**2).sum(), u)[0] + t


def gradient_hooked_by_values(t: Tensor) -> Tensor:
    """The gradient is of something else, and the hook multiplies it by what it was given."""
    with torch.enable_grad():
        u = torch.ones(3, requires_grad=True)
        u.register_hook(lambda gradient: gradient * t.detach().sum())
        return torch.autograd.grad((u**2).sum(), u)[0] + torch.zeros(4, 3)


def times_held_forward(ctx: Any, t: Tensor, held: list[Tensor]) -> Tensor:
    ctx.held = held
    return t * 2


# Its backward reads a list.
TimesHeld = autograd_function("TimesHeld", times_held_forward, lambda ctx, gradient: (gradient * ctx.held[0].sum(), None))


def gradient_of_held_values(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u, held = torch.ones(3, requires_grad=True), [torch.ones(3)]
        made = TimesHeld.apply(u, held)
        held[0] = t.detach()
        return torch.autograd.grad(made.sum(), u)[0] + torch.zeros(4, 3)


def checkpointed(t: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda u: (u * 2).tanh(), t, use_reentrant=False) + t


def checkpointed_in_backward(t: Tensor) -> Tensor:
    return torch.utils.checkpoint.checkpoint(lambda u: (u * 2).tanh(), t, use_reentrant=True) + t


def energy_of_checkpoint(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        made = torch.utils.checkpoint.checkpoint(lambda v: (v * 2).tanh(), u, use_reentrant=False)
        return torch.autograd.grad(made.sum(), u)[0] + t


def energy_of_reentrant_checkpoint(t: Tensor) -> Tensor:
    with torch.enable_grad():
        u = leaf(t)
        torch.utils.checkpoint.checkpoint(lambda v: (v * 2).tanh(), u, use_reentrant=True).sum().backward()
        return u.grad + t


def pulled_back(t: Tensor) -> Tensor:
    value, pull = torch.func.vjp(lambda u: (u**2).sum(), t)
    return pull(torch.ones_like(value))[0] + t


def mean_of_chosen(t: Tensor) -> Tensor:
    chosen = t[t > 1.5]
    return t + chosen.sum() / max(chosen.shape[0], 1)


def first_few(t: Tensor) -> Tensor:
    return t + t.reshape(-1)[: int((t > 1).sum())].sum()


def written_by_numpy(t: Tensor) -> Tensor:
    made = (t * 2).detach()
    made.numpy()[:] *= 3
    return made + t


def written_after_numpy(t: Tensor) -> Tensor:
    made = torch.zeros(4, 3)
    array = made.numpy()
    made.add_(t.detach())
    return t * float(array.sum())


def through_a_file(t: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(t.detach(), file)
    file.seek(0)
    return torch.load(file) + t


def seeded_by_values(t: Tensor) -> Tensor:
    return t + torch.rand(4, 3, generator=torch.Generator().manual_seed(int((t.detach() * 100).sum())))


def branching(t: Tensor) -> Tensor:
    return t + 1 if t.sum() > 8 else t - 1


def counting(t: Tensor) -> Tensor:
    for _ in range(int(t.detach().sum().abs()) % 4):
        t = t * 1.5
    return t


CONSTANT = torch.full((4, 3), 2.0)

# The name says what it is; a replay behind a change of what it gets either gives what the model gives, or is refused.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "script function": lambda t: scripted(t) * 2,
    "script function without gradients": lambda t: scripted(t.detach()) + t,
    "script function, written to": lambda t: scripted(t.detach()).add_(1) + t,
    "traced function": lambda t: traced(t) * 2,
    "vmap": lambda t: torch.func.vmap(lambda row: row.tanh() * row.sum())(t),
    "grad": lambda t: torch.func.grad(lambda u: (u**3).sum())(t) * 2,
    "vmap of grad": lambda t: torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(t) + t,
    "jacrev": lambda t: t + torch.func.jacrev(lambda u: u.sin().sum(0))(t).sum(),
    "jacfwd": lambda t: t + torch.func.jacfwd(lambda u: u.sin().sum(0))(t).sum(),
    "jvp": lambda t: torch.func.jvp(torch.sin, (t,), (t,))[1] + 1,
    "vjp": pulled_back,
    "functionalize": lambda t: torch.func.functionalize(lambda u: u.clone().add_(1))(t) + 1,
    "energy": energy,
    "energy of a custom function": energy_of_rounded,
    "energy of a masked custom function": masked_energy_of_rounded,
    "filled gradient": filled_gradient,
    "gradient of two passes": gradient_of_two,
    "hooked gradient": hooked_gradient,
    "gradient hooked by values": gradient_hooked_by_values,
    "gradient of held values": gradient_of_held_values,
    "custom function": lambda t: Rounded.apply(t) + t,
    "wrapper": lambda t: (Wrapper(t) * 2).inner + 1,
    "wrapper that is opened": lambda t: torch.tanh(Wrapper(t)).inner.mul(2) + t,
    "subclass": lambda t: (t.as_subclass(Sub) * 2).as_subclass(Tensor) + 1,
    "item": lambda t: t * t.detach().sum().item(),
    "list": lambda t: torch.tensor(t.detach().tolist()) + t,
    "array": lambda t: torch.from_numpy(t.detach().numpy() * 3) + t,
    "sum of an array": lambda t: t * float(t.detach().numpy().sum()),
    "asarray": lambda t: torch.as_tensor(np.asarray(t.detach()) * 3) + t,
    "dlpack": lambda t: torch.from_dlpack(np.from_dlpack(t.detach()) * 2) + t,
    "ufunc": lambda t: t + torch.as_tensor(np.tanh(t.detach())),
    "written by NumPy": written_by_numpy,
    "written after NumPy": written_after_numpy,
    "made by a thread": made_by_thread,
    "filled by a thread": filled_by_thread,
    "checkpoint": checkpointed,
    "reentrant checkpoint": checkpointed_in_backward,
    "energy of a checkpoint": energy_of_checkpoint,
    "energy of a reentrant checkpoint": energy_of_reentrant_checkpoint,
    "branch": branching,
    "loop of a number": counting,
    "mean of chosen": mean_of_chosen,
    "first few": first_few,
    "unique": lambda t: t * torch.unique((t * 4).detach().round()).numel(),
    "stored values": lambda t: t * torch.relu(t.detach() - 0.5).to_sparse()._nnz(),
    "contains": lambda t: t + (1 if 2.0 in t else 0),
    "allclose": lambda t: t + (1 if torch.allclose(t, t + 0.1 * t.sum()) else 2),
    "index of a list": lambda t: t * [1, 2, 3, 4][t.detach().sum().long() % 4],
    "through a file": through_a_file,
    "pickle": lambda t: pickle.loads(pickle.dumps(t.detach())) + t,
    "copy": lambda t: copy.deepcopy(t.detach()) + t,
    "seeded by values": seeded_by_values,
    "constant": lambda t: t * CONSTANT,
    "data": lambda t: t.data * 2 + t,
}
MODULES: dict[str, type[nn.Module]] = {
    "script module": ScriptedLayer,
    "statistics of a script module": ScriptedStatistics,
    "buffer multiplied by NumPy": MultipliedByNumpy,
    "buffer read by NumPy": ReadByNumpy,
    "attribute read by NumPy": AttributeReadByNumpy,
    "tensor of the pass read by NumPy": MadeOverNumpy,
    "buffer filled by NumPy": FilledByNumpy,
    "buffer counted by NumPy": CountedByNumpy,
    "buffer written by a thread": WrittenByThread,
    "constants": Holding,
    "attribute made by a script": Keeping,
}
CONSTRUCTS = [*FUNCTIONS, *MODULES]
# What happens there is not seen, so the log is not proved: it is of a thread, of TorchScript, or of NumPy.
UNSEEN = {
    *("filled by a thread", "statistics of a script module"),
    *("buffer filled by NumPy", "buffer counted by NumPy", "buffer written by a thread"),
}
# Those a replay always follows: with what was seen, everything can be made again.
FOLLOWED = {
    *("energy", "custom function", "subclass", "checkpoint", "reentrant checkpoint", "energy of a checkpoint", "copy"),
    *("constant", "data", "constants"),
}


class Construct(nn.Module):
    """One construct, as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = MODULES[name]() if name in MODULES else FUNCTIONS[name]

    def forward(self, t: Tensor) -> Tensor:
        return self.inner(t)
