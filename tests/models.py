"""The tiny models that tests share."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer
from snapshot import Snapshot


class Mlp(nn.Module):
    """Two layers, the second activation functional."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.fc2(self.act(self.fc1(x))))


class Convolutional(nn.Module):
    """Convolution, batch normalisation, in-place activation, dropout: everything that changes in training."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.flatten(self.features(x), 1)))


class Branching(nn.Module):
    """A residual connection, a concatenation and a multi-output call."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        y = self.a(x) + x
        left, right = torch.chunk(self.b(y), 2, dim=-1)
        values, where = torch.max(torch.cat([left, right, y], -1), -1)
        return values, {"where": where, "sum": left + right}


class Stateful(nn.Module):
    """Changes itself in every way a forward pass can."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(3))
        self.seen: list[Tensor] = []
        self.hidden = torch.zeros(3)
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.seen.append(x)
        self.hidden = self.hidden + x.detach().sum(0)
        self.steps += 1
        with torch.no_grad():
            self.weight.mul_(0.5)
        self.train(not self.training)
        return x * self.weight + self.mean + torch.rand(3) * random.random() * float(np.random.rand())


def world(model: nn.Module) -> dict[str, Any]:
    """Everything about a model and the random generators that a pass could change, as plain values."""
    return {
        "tensors": {k: v.detach().clone() for k, v in (*model.named_parameters(), *model.named_buffers())},
        "identities": {k: id(v) for k, v in (*model.named_parameters(), *model.named_buffers())},
        "versions_of_requires_grad": {k: p.requires_grad for k, p in model.named_parameters()},
        "gradients": {k: None if p.grad is None else p.grad.clone() for k, p in model.named_parameters()},
        "training": {k: m.training for k, m in model.named_modules()},
        "hooks": {
            k: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for k, m in model.named_modules()
        },
        "attributes": {k: list(vars(m)) for k, m in model.named_modules()},
        "python": random.getstate(),
        "numpy": [str(part) for part in np.random.get_state()],
        "torch": torch.get_rng_state(),
    }


def same(one: Any, other: Any) -> bool:
    """Bit-equality of nested values."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(v, other[k]) for k, v in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def hooked(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, list[Tensor]]:
    """What plain forward hooks see leave every module of a copy, by address, one tensor per call."""
    model = copy.deepcopy(model)
    seen: dict[str, list[Tensor]] = {}

    def hook(address: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            first = (
                output if isinstance(output, Tensor) else next(iter(output.values() if isinstance(output, dict) else output))
            )
            seen.setdefault(address, []).append(first.detach().clone())

        return keep

    for address, module in model.named_modules():
        module.register_forward_hook(hook(address))
    model(*args, **kwargs)
    return seen


def labels(history: torcheer.ModelHistory) -> list[str]:
    """The labels without overall numbers and without inputs and outputs: what ran."""
    return [layer.layer_label_short for layer in history if not (layer.is_input_layer or layer.is_output_layer)]


def log(function: Callable[..., Any], *args: Any, **options: Any) -> torcheer.ModelHistory:
    """Log a function of tensors."""
    return torcheer.log_forward_pass(function, args, **options)


@contextmanager
def unchanged(*values: Any, counts: bool = True) -> Iterator[None]:
    """Asserts that nothing about models, arguments and what they hold, nor the random state, changes inside.

    Without `counts`, torch may have counted writes that were taken back.
    """
    before = Snapshot(*values, counts=counts)
    with warnings.catch_warnings():
        warnings.simplefilter("error", torcheer.StateNotRestored)
        yield
    changed = before.differences(Snapshot(*values, counts=counts))
    assert not changed, changed


class Buffer(NamedTuple):
    """A part of a module that is registered as a buffer."""

    tensor: Tensor
    persistent: bool = True


def made_of(forward: Callable[..., Any], /, **parts: Any) -> nn.Module:
    """A module with these submodules, parameters, buffers and attributes, and this forward."""
    made = type("Model", (nn.Module,), {"forward": forward, "__module__": forward.__module__ or __name__})()
    put(made, parts)
    return made


def put(module: nn.Module, parts: dict[str, Any]) -> None:
    for name, part in parts.items():
        if isinstance(part, Buffer):
            module.register_buffer(name, part.tensor, part.persistent)
        else:
            setattr(module, name, part)


def made_with(**parts: Callable[[], Any]) -> Callable[[Callable[..., Any]], type[nn.Module]]:
    """Makes a forward a class of modules: each has what these make as its submodules, parameters, buffers and attributes."""

    def of(forward: Callable[..., Any]) -> type[nn.Module]:
        def initialise(self: nn.Module) -> None:
            nn.Module.__init__(self)
            put(self, {name: make() for name, make in parts.items()})

        names = {"__module__": forward.__module__, "__qualname__": forward.__qualname__, "__doc__": forward.__doc__}
        return type(forward.__name__, (nn.Module,), {"__init__": initialise, "forward": forward, **names})

    return of


def autograd_function(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """A function with a backward of its own."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": forward.__module__}
    return type(name, (torch.autograd.Function,), methods)


def relu_twice(x: Tensor) -> Tensor:
    return F.relu(F.relu(x) + 1)


def is_upstream(history: torcheer.ModelHistory, one: str, other: str) -> bool:
    """Whether a way along the edges leads from `one` to `other`."""
    waiting = [history[other].label]
    while waiting:
        label = waiting.pop()
        if label == history[one].label:
            return True
        waiting += history[label].parent_layers
    return False


class Attending(nn.Module):
    """Encodes a sequence, then decodes one, looking back at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRUCell(4, 4)
        self.decoder = nn.GRUCell(8, 4)
        self.out = nn.Linear(4, 4)

    def forward(self, t: Tensor) -> Tensor:
        h, seen = torch.zeros(2, 4), []
        for step in range(t.shape[0]):
            h = self.encoder(t[step], h)
            seen.append(h)
        memory = torch.stack(seen, 1)
        y = h = torch.zeros(2, 4)
        made = []
        for _ in range(5):
            weights = torch.softmax(torch.einsum("btd,bd->bt", memory, h), -1)
            context = torch.einsum("bt,btd->bd", weights, memory)
            h = self.decoder(torch.cat([y, context], -1), h)
            y = self.out(h)
            made.append(y)
        return torch.stack(made)
