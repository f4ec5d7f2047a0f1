"""Measures how far one step of an optimizer moves the weights, by two hooks of the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.nn import Module

from ...errors import InvalidArgument
from .layer_finder import tensor_of

Pairs = dict[str, tuple[Tensor, Tensor]]  # by layer: values before and after one step


class UpdateWatcher:
    """Copies the watched weights, and samples of all, before and after the step that a snapshot is likely to follow.

    The number of completed steps between the last two snapshots says which step the next one is likely to follow. A snapshot
    may be taken inside a step: Lightning runs the backward pass there. Weights that this optimizer does not move are left out.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Module,
        weights: dict[str, str],
        samples: Callable[[Collection[str]], dict[str, Tensor]],
        every: int,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
        names = {name for name, one in model.named_parameters(remove_duplicate=False) if id(one) in moved}
        self._model = model
        self._weights = {layer: name for layer, name in weights.items() if name in names}
        self._take_samples, self._moved = samples, names
        self._before: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self._measured: tuple[Pairs, Pairs] = {}, {}
        self._distance, self._since = every, 0  # steps between snapshots, and completed since the last one
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._pre()),
            optimizer.register_step_post_hook(lambda *_: self._post()),
        ]

    def take(self) -> tuple[Pairs, Pairs]:
        """Watched weights, and samples, before and after the last completed step; nothing if that was not measured."""
        found, self._measured = self._measured, ({}, {})
        if self._since:
            self._distance, self._since = self._since, 0
        return found

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._before, self._measured = None, ({}, {})

    def _pre(self) -> None:
        self._before = (self._weights_now(), self._take_samples(self._moved)) if self._since + 1 >= self._distance else None

    def _post(self) -> None:
        self._since += 1
        before, self._before = self._before, None
        self._measured = {}, {}
        if before is not None:
            self._measured = _pairs(before[0], self._weights_now()), _pairs(before[1], self._take_samples(self._moved))

    def _weights_now(self) -> dict[str, Tensor]:
        found = {layer: tensor_of(self._model, name) for layer, name in self._weights.items()}
        return {layer: weight.detach().clone() for layer, weight in found.items() if weight is not None}


def _pairs(before: dict[str, Tensor], after: dict[str, Tensor]) -> Pairs:
    return {name: (old, after[name]) for name, old in before.items() if name in after and after[name].shape == old.shape}
