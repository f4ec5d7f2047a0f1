"""Measures how far one step of an optimizer moves the weights, by two hooks of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..errors import InvalidArgument
from .watched import tensor_of


class UpdateWatcher:
    """Copies the watched weights before and after the step that a snapshot is likely to follow.

    Snapshots come at a distance; the distance of the last two says which step the next one follows.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, model: Module, weights: dict[str, str], every: int) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self._model, self._weights = model, weights  # by layer, the name of its weight
        self._before: dict[str, Tensor] = {}
        self._measured: dict[str, tuple[Tensor, Tensor]] = {}
        self._distance, self._since = every, 0  # steps between snapshots, and since the last one
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._pre()),
            optimizer.register_step_post_hook(lambda *_: self._post()),
        ]

    def take(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By layer, the weight before and after the last step; nothing if that was not measured."""
        found, self._measured = self._measured, {}
        if self._since:
            self._distance, self._since = self._since, 0
        return found

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._before.clear()
        self._measured.clear()

    def _pre(self) -> None:
        self._since += 1
        if self._since >= self._distance:
            self._before = {layer: copy for layer, name in self._weights.items() if (copy := self._copy(name)) is not None}

    def _post(self) -> None:
        before, self._before, self._measured = self._before, {}, {}
        for layer, old in before.items():
            new = self._copy(self._weights[layer])
            if new is not None and new.shape == old.shape:
                self._measured[layer] = (old, new)

    def _copy(self, name: str) -> Any:
        weight = tensor_of(self._model, name)
        return weight.detach().clone() if weight is not None else None
