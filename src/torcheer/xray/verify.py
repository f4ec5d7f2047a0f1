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

from ..capture.randomness import RandomState


@dataclass(frozen=True)
class Verification:
    """What a comparison of two trainings found. True when nothing differs."""

    steps: int
    compared: int  # tensors, flags and random states
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
    """Train two copies from the same state, one watched by what `watch` makes, and compare them."""
    start = RandomState.now()
    finals = []
    try:
        for is_watched in (False, True):
            start.restore()
            one, its_optimizer = copy.deepcopy((model, optimizer))
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
    finally:
        start.restore()
    plain, watched = finals
    names = {**plain, **watched}
    differences = tuple(name for name in names if not _same(plain.get(name), watched.get(name)))
    return Verification(steps, len(names), differences)


def _state(model: Module, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Everything a training leaves behind, by name."""
    found: dict[str, Any] = {}
    for name, param in model.named_parameters():
        found[f"parameter {name}"] = param.detach()
        found[f"gradient of {name}"] = param.grad
    found.update({f"buffer {name}": buffer for name, buffer in model.named_buffers()})
    found.update({f"mode of {name or 'the model'}": module.training for name, module in model.named_modules()})
    hooks = {name: len(module._forward_hooks) + len(module._backward_hooks) for name, module in model.named_modules()}
    found.update({f"hooks of {name or 'the model'}": count for name, count in hooks.items()})
    if optimizer is not None:
        for number, state in enumerate(optimizer.state.values()):
            found.update({f"optimizer state {number} {key}": value for key, value in state.items()})
    random = RandomState.now()
    found.update({"Python's random state": random.python, "torch's random state": random.torch})
    if random.numpy is not None:
        found["NumPy's random state"] = torch.tensor([int(word) for word in random.numpy[1]])
    return found


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if one.shape != other.shape or one.dtype != other.dtype:
            return False
        if one.layout is not torch.strided:
            one, other = one.to_dense(), other.to_dense()
        return (
            one.contiguous().view(torch.uint8).equal(other.contiguous().view(torch.uint8))
            if one.dim()
            else _same_number(one, other)
        )
    return bool(one == other)


def _same_number(one: Tensor, other: Tensor) -> bool:
    return one.reshape(1).contiguous().view(torch.uint8).equal(other.reshape(1).contiguous().view(torch.uint8))
