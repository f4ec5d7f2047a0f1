"""Runs the logs of two models without their roundings to dtypes of few bits (float8).

If the outputs still differ then, rounding does not explain the difference.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from ..replay.walk import tensors_of
from .alignment import Alignment
from .measures import Difference, difference, has_few_bits, is_measurable
from .own_error import Observer, run_side
from .steps import Side


class _Unrounded(Observer):
    """Skips each cast to a dtype of few bits: the replay continues with its argument. Keeps the values of some operations."""

    def __init__(self, side: Side, wanted: set[int]) -> None:
        self.values: dict[int, Tensor] = {}
        self.is_whole = True  # false if a rounding could not be left out
        self._wanted = wanted
        super().__init__(side)

    def begin(self) -> None:
        self.values, self.is_whole = {}, True

    def instead(self, number: int) -> Tensor | None:
        return self.side.value(number)

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_measurable(value):
            return value
        with DisableTorchFunction(), torch.no_grad():
            if has_few_bits(value.dtype) and self.side.log.operations[number].origin is Origin.OPERATION:
                value = self._argument(number, value)
            if number in self._wanted:
                self.values[number] = value.detach().clone()
        return value

    def _argument(self, number: int, value: Tensor) -> Tensor:
        given = tensors_of(self._arguments)
        is_cast = self.side.log.operations[number].overwritten is None and len(given) == 1 and given[0].shape == value.shape
        if is_cast and given[0].is_floating_point() and not has_few_bits(given[0].dtype):
            return given[0].detach().clone()
        self.is_whole = False
        return value


def differences_unrounded(alignment: Alignment, pairs: list[tuple[int, int]]) -> dict[int, Difference]:
    """Map operations of `b` to the difference of the pair if no value is rounded to few bits; leaves out unknown ones."""
    runs = []
    for side, wanted in zip((alignment.a, alignment.b), zip(*pairs, strict=True), strict=True):
        run = _Unrounded(side, set(wanted))
        failed = _is_given_rounded(side) or run_side(side, run, {})
        if failed or not run.is_whole:
            return {}
        runs.append(run)
    found = {}
    for ours, theirs in pairs:
        values = runs[0].values.get(ours), runs[1].values.get(theirs)
        apart = difference(*values, ignored=alignment.ignored.get(theirs))
        if apart is not None:
            found[theirs] = apart
    return found


def _is_given_rounded(side: Side) -> bool:
    """True if a parameter, buffer or constant was rounded to few bits before the pass."""
    if any(has_few_bits(state.value.dtype) for state in side.log.states if isinstance(state.value, Tensor)):
        return True
    return any(one.origin is Origin.SOURCE and has_few_bits(one.dtype) for one in side.log.operations)
