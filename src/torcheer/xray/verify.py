"""Proves that watching changes nothing: a copy is trained with an Xray and another without, and every bit is compared."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._torch.internals import backward_hooks_of, forward_hooks_of
from .._torch.randomness import RandomState, random_as_found
from ..replay.comparison import same_bits


@dataclass(frozen=True)
class Verification:
    """The result of comparing two trainings. True if nothing differs."""

    steps: int
    compared: int  # number of tensors, flags and random states
    differences: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        if self:
            return f"{self.steps} steps with and without Xray: bit-identical ({self.compared} things compared)"
        shown = "\n".join(f"    {one}" for one in self.differences[:20])
        return f"{self.steps} steps with and without Xray: {len(self.differences)} of {self.compared} differ\n{shown}"


def compare_trainings(
    model: Module,
    optimizer: torch.optim.Optimizer | None,
    train_step: Callable[..., Any],
    steps: int,
    watch: Callable[[Module, torch.optim.Optimizer | None, str], Any],
) -> Verification:
    """Train two copies from the same state, one of them watched by the object that `watch` makes, and compare them."""
    finals = []
    with random_as_found() as random:
        for is_watched in (False, True):
            random.start_from(random.before)
            one, its_optimizer = _copies(model, optimizer)
            arguments = (one,) if its_optimizer is None else (one, its_optimizer)
            if is_watched:
                with tempfile.TemporaryDirectory() as folder, watch(one, its_optimizer, folder) as xray:
                    for _ in range(steps):
                        train_step(*arguments)
                        xray.take_graphs()
            else:
                for _ in range(steps):
                    train_step(*arguments)
            finals.append(_state(one, its_optimizer))
    plain, watched = finals
    names = {**plain, **watched}
    differences = tuple(name for name in names if not _same(plain.get(name), watched.get(name)))
    return Verification(steps, len(names), differences)


def _copies(model: Module, optimizer: torch.optim.Optimizer | None) -> tuple[Module, torch.optim.Optimizer | None]:
    """Copy a model and its optimizer together, including parts that a copied optimizer lacks (L-BFGS: its parameters)."""
    memo: dict[int, Any] = {}
    one, its_optimizer = copy.deepcopy((model, optimizer), memo)
    if optimizer is not None and its_optimizer is not None:
        for name, value in vars(optimizer).items():
            # a `step` that a scheduler wrapped belongs to the original
            if name not in vars(its_optimizer) and not callable(value):
                setattr(its_optimizer, name, copy.deepcopy(value, memo))
    return one, its_optimizer


def _state(model: Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """The state at the end of a training, by name: parameters, gradients, optimizer, random states."""
    found: dict[str, Any] = {}
    for name, param in model.named_parameters():
        found[f"parameter {name}"] = param.detach()
        found[f"gradient of {name}"] = param.grad
    found.update({f"buffer {name}": buffer for name, buffer in model.named_buffers()})
    found.update({f"mode of {name or 'the model'}": module.training for name, module in model.named_modules()})
    hooks = {name: len(forward_hooks_of(module)) + len(backward_hooks_of(module)) for name, module in model.named_modules()}
    found.update({f"hooks of {name or 'the model'}": count for name, count in hooks.items()})
    if optimizer is not None:
        for number, state in enumerate(optimizer.state.values()):
            found.update({f"optimizer state {number} {key}": value for key, value in state.items()})
    random = RandomState.now()
    found.update({"Python's random state": random.python, "torch's random state": random.torch})
    if random.numpy is not None:
        found["NumPy's random state"] = torch.tensor([int(word) for word in random.numpy[1]], device="cpu")
    return found


def _same(one: Any, other: Any) -> bool:
    """True if two values are equal in every bit. Also compares tensors inside lists: the state of L-BFGS has such lists."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return same_bits(one, other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)  # NaN equals NaN here
