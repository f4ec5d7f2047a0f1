"""Measures how far one step of an optimizer moves the weights, by two hooks of the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..errors import InvalidArgument
from .watched import tensor_of


class UpdateWatcher:
    """Copies the watched weights before and after one step, when it is armed."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: Module, weights: dict[str, str]) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        self._model, self._weights = model, weights  # by layer, the name of its weight
        self._before: dict[str, Tensor] = {}
        self._measured: dict[str, tuple[Tensor, Tensor]] = {}
        self._is_armed = True
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._pre()),
            optimizer.register_step_post_hook(lambda *_: self._post()),
        ]

    def arm(self) -> None:
        """Measure the next step."""
        self._is_armed = True

    def take(self) -> dict[str, tuple[Tensor, Tensor]]:
        """By layer, the weight before and after the step that was measured; once."""
        found, self._measured = self._measured, {}
        return found

    def remove(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._before.clear()
        self._measured.clear()

    def _pre(self) -> None:
        if self._is_armed:
            self._before = {layer: copy for layer, name in self._weights.items() if (copy := self._copy(name)) is not None}

    def _post(self) -> None:
        if self._is_armed and self._before:
            after = {layer: self._copy(self._weights[layer]) for layer in self._before}
            self._measured = {
                layer: (old, new)
                for layer, old in self._before.items()
                if (new := after[layer]) is not None and new.shape == old.shape
            }
            self._before, self._is_armed = {}, False

    def _copy(self, name: str) -> Any:
        weight = tensor_of(self._model, name)
        return weight.detach().clone() if weight is not None else None
