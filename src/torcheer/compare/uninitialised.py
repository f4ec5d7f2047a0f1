"""Finds elements that come from memory that was never written (`torch.empty`). Such elements are not compared.

Both logs are run twice, with different numbers in all uninitialised memory. Elements that then differ depend on it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._torch.functions import groups
from .._torch.internals import DisableTorchFunction
from ..log.records import OperationRecord
from ..replay.machine import is_uninitialised
from .alignment import Alignment
from .measures import difference, is_measurable
from .own_error import Observer, run_side
from .steps import Side


class _FillMemory(Observer):
    """Fills uninitialised memory with numbers, and keeps the values of some operations."""

    def __init__(self, side: Side, is_first: bool, wanted: set[int]) -> None:
        self.values: dict[int, Tensor] = {}
        self._is_first, self._wanted = is_first, wanted
        super().__init__(side)

    def begin(self) -> None:
        self.values = {}

    def instead(self, number: int) -> Tensor | None:
        return self.side.value(number)

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor) or not is_measurable(value):
            return value
        with DisableTorchFunction(), torch.no_grad():
            if (start := _first_unwritten(self.side.log.operations[number])) is not None:
                self._fill(value, start)
            if number in self._wanted:
                self.values[number] = value.detach().clone()
        return value

    def _fill(self, value: Tensor, start: int) -> None:
        """Write numbers that differ between the two runs, and from place to place."""
        places = torch.arange(value.numel(), device=value.device)
        if value.dtype is torch.bool:
            numbers = (places + self._is_first) % 2
        elif self._is_first:
            numbers = places % 7 + 1
        else:
            numbers = places * 3 % 5 + 9 if not value.dtype.is_signed else -2 - places * 3 % 5
        numbers = numbers.to(value.dtype).view(value.shape)
        if start == 0:
            value.copy_(numbers)
        elif value.is_contiguous():
            value.view(-1)[start:] = numbers.view(-1)[start:]


def ignore_uninitialised(alignment: Alignment) -> None:
    """Find the elements of outputs, and of differing operations, that come from memory that was never written."""
    sides = (alignment.a, alignment.b)
    after = [_after_uninitialised(side) for side in sides]
    if not any(after):
        return
    pairs = [(one, other) for other, one in alignment.of_b.items() if one in after[0] or other in after[1]]
    pairs = [pair for pair in pairs if _may_differ(alignment, pair[1])]
    for place, side in enumerate(sides):
        wanted = {pair[place]: pair[1] for pair in pairs if pair[place] in after[place]}
        for number, ignored in _unwritten(side, set(wanted)).items():
            other = wanted[number]
            known = alignment.ignored.get(other)
            alignment.ignored[other] = ignored if known is None else known | ignored.to(known.device)


def _may_differ(alignment: Alignment, number: int) -> bool:
    apart, side = alignment.error(number), alignment.b
    always = number in side.ends or is_uninitialised(side.log.operations[number])
    return apart is not None and (always or not apart.is_none)


def _first_unwritten(record: OperationRecord) -> int | None:
    """The index of the first uninitialised element of a result (`resize_` keeps existing elements); None if there is none."""
    if record.function.is_uninitialised:
        return 0
    if not record.function.is_in(groups.RESIZING) or not record.parents or record.parents[0] < 0:
        return None
    return math.prod(record.log.operations[record.parents[0]].shape)


def _after_uninitialised(side: Side) -> set[int]:
    """The operations that return uninitialised memory, and all operations that depend on them."""
    if not any(function.is_uninitialised or function.is_in(groups.RESIZING) for function in side.log.functions):
        return set()
    found: set[int] = set()
    for record in side.log.operations:
        if _first_unwritten(record) is not None or not found.isdisjoint(record.dependencies):
            found.add(record.number)
    return found


def _unwritten(side: Side, wanted: set[int]) -> dict[int, Tensor]:
    """For each operation: a mask of its elements that depend on uninitialised memory, if there are any."""
    if not wanted:
        return {}
    runs = [_FillMemory(side, is_first, wanted) for is_first in (True, False)]
    for run in runs:
        run_side(side, run, {})
    found: dict[int, Tensor] = {}
    for number, one in runs[0].values.items():
        other = runs[1].values.get(number)
        if other is not None and (apart := difference(one, other)) is not None and not apart.is_none:
            differs = (one != other) & ~(one.isnan() & other.isnan())
            found[number] = differs
    return found
