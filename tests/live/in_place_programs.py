"""Random small programs that work in place, and the same programs edited by hand at one of their steps.

A step makes a tensor, a view, or writes to a tensor of the pool in place. The edit is written in plain torch: of a step that
writes in place, the tensor gets the changed value; of any other, what the step made is exchanged for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

SIZE = 3
Edit = Callable[[Tensor], Tensor]


def _copied(write: Callable[..., object]) -> Callable[..., Tensor]:
    """What a function that writes in place makes of its first argument, without writing to it."""

    def made(tensor: Tensor, *others: Tensor) -> Tensor:
        copy = tensor.clone()
        write(copy, *others)
        return copy

    return made


def _set_row(tensor: Tensor) -> None:
    tensor[0] = 2.0


def _set_where(tensor: Tensor) -> None:
    tensor[tensor > 0] = 0.5


def _iadd(tensor: Tensor) -> Tensor:
    tensor += 0.25
    return tensor


MADE: dict[str, Callable[..., Tensor]] = {
    "scale": lambda t: t * 0.5,
    "tanh": lambda t: torch.tanh(t),
    "exp": lambda t: torch.exp(t),
    "add": lambda t, u: torch.add(t, u),
    "mul": lambda t, u: torch.mul(t, u),
    "clone": lambda t: t.clone(),
}
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "row": lambda t: t[0],
    "rows": lambda t: t[1:],
    "column": lambda t: t[..., 1],
    "transpose": lambda t: t.mT,
    "flat": lambda t: t.view(-1),
    "detach": lambda t: t.detach(),
    "data": lambda t: t.data,
}
# What a program writes in place, and the same out of place.
WRITES: dict[str, tuple[Callable[..., object], Callable[..., Tensor]]] = {
    "relu_": (lambda t: t.relu_(), torch.relu),
    "F.relu": (lambda t: F.relu(t, inplace=True), torch.relu),
    "sigmoid_": (lambda t: t.sigmoid_(), torch.sigmoid),
    "tanh_": (lambda t: torch.tanh_(t), torch.tanh),
    "elu": (lambda t: F.elu(t, inplace=True), F.elu),
    "silu": (lambda t: F.silu(t, inplace=True), F.silu),
    "mul_": (lambda t: t.mul_(-2), lambda t: t * -2),
    "add_": (lambda t: t.add_(1), lambda t: t + 1),
    "iadd": (_iadd, lambda t: t + 0.25),
    "square_": (lambda t: t.square_(), torch.square),
    "clamp_": (lambda t: t.clamp_(-0.5, 0.5), lambda t: t.clamp(-0.5, 0.5)),
    "zero_": (lambda t: t.zero_(), _copied(lambda t: t.zero_())),
    "masked_fill_": (lambda t: t.masked_fill_(t > 0, 0.3), lambda t: t.masked_fill(t > 0, 0.3)),
    "add_other": (lambda t, u: t.add_(u), torch.add),
    "mul_other": (lambda t, u: t.mul_(u), torch.mul),
    "copy_": (lambda t, u: t.copy_(u), _copied(lambda t, u: t.copy_(u))),
    "setitem": (_set_row, _copied(_set_row)),
    "masked": (_set_where, _copied(_set_where)),
    "init": (lambda t: nn.init.constant_(t, 0.7), _copied(lambda t: nn.init.constant_(t, 0.7))),
    "uniform": (lambda t: nn.init.uniform_(t, 0.7, 0.7), _copied(lambda t: nn.init.uniform_(t, 0.7, 0.7))),
    "no_grad": (torch.no_grad()(lambda t: t.mul_(3)), _copied(torch.no_grad()(lambda t: t.mul_(3)))),
    "out": (lambda t, u: torch.add(u, 1, out=t), lambda t, u: torch.add(u, 1)),
    "act": (lambda t: t, torch.relu),  # a module
}


@dataclass(frozen=True)
class Step:
    """One step: what to do, with which tensors of the pool; whether the result of a write is used by a name of its own."""

    name: str
    first: int = 0
    second: int = 0
    is_used: bool = False


programs_in_place = st.lists(
    st.builds(Step, st.sampled_from([*MADE, *VIEWS, *WRITES, *WRITES]), st.integers(0, 7), st.integers(0, 7), st.booleans()),
    min_size=1,
    max_size=6,
).map(tuple)


class InPlaceProgram(nn.Module):
    """Runs a program. With `edit` it is edited by hand at step `at`."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        super().__init__()
        self.steps = steps
        self.fc = nn.Linear(SIZE, SIZE)
        self.act = nn.ReLU(inplace=True)
        self.at = -1
        self.edit: Edit | None = None
        self.calls: list[int] = []  # by step: how many functions it called that make or write a tensor

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        pool = [self.fc(x), x * 2]
        self.calls = []
        for at, step in enumerate(self.steps):
            self.run(step, pool, self.edit if at == self.at else None)
        return tuple(pool)

    def run(self, step: Step, pool: list[Tensor], edit: Edit | None) -> None:
        first, second = pool[step.first % len(pool)], pool[step.second % len(pool)]
        self.calls.append(2 if step.name in ("masked", "masked_fill_") else 1)
        if step.name in WRITES:
            write, without = WRITES[step.name]
            given = (second,) if step.name in ("add_other", "mul_other", "copy_", "out") else ()
            if given and first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr():
                self.calls[-1] += 1
                given = (second.clone(),)  # torch does not say what a call gives that writes to what it reads
            if step.name == "out" and first.shape != second.shape:
                raise ValueError("torch would make another size of what is written")
            if edit is not None:
                new = edit(without(first, *given))
                with torch.set_grad_enabled(torch.is_grad_enabled() and step.name != "no_grad"):
                    first.copy_(new)
                result: object = first
            else:
                result = self.act(first) if step.name == "act" else write(first, *given)
            if step.is_used and step.name not in ("setitem", "masked"):  # which return nothing
                pool.append(result)
            return
        function = MADE.get(step.name) or VIEWS[step.name]
        made = function(first, second) if step.name in ("add", "mul") else function(first)
        pool.append(made if edit is None else edit(made))
