"""Finds elements that come from memory that was never written (`torch.empty`). Such elements are not compared.

Both logs are run twice, with different numbers in all uninitialised memory. Elements that then differ depend on it. If elements
still differ between the logs, both are run with NaN, infinity and the extreme numbers of the dtype there: `torch.empty(3) * 0`
is NaN where the memory has NaN. An element that depends on those alone is not compared if it is not finite in one of the logs,
or if both models have the same value for the same numbers in memory, as after `torch.nan_to_num`.
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
from .measures import difference, is_measurable, tolerance_of
from .own_error import Observer, run_side
from .steps import Side

_ORDINARY = (0, 1)  # two runs with small numbers
# runs that fill memory with NaN, infinity and extreme numbers; over these runs, each place in memory gets each number once
_SPECIAL = (0, 2, 3, 4, 5)


def _extremes(dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        most = torch.finfo(dtype).max
        numbers = torch.tensor([math.nan, math.inf, -most, -math.inf], dtype=torch.float64, device=device)
        return numbers.to(dtype)
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    return torch.tensor([most, least, 0, most - 1], dtype=torch.float64 if most >= 2**63 else torch.int64, device=device)


class _FillMemory(Observer):
    """Fills uninitialised memory with numbers, and keeps the values of some operations."""

    def __init__(self, side: Side, turn: int, wanted: set[int]) -> None:
        self.values: dict[int, Tensor] = {}
        self._turn, self._wanted = turn, wanted
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
        """Write numbers that differ between the runs, and from place to place."""
        places = torch.arange(value.numel(), device=value.device)
        if value.dtype is torch.bool:
            numbers = (places + self._turn) % 2
        elif self._turn not in _ORDINARY:
            numbers = _extremes(value.dtype, value.device)[(places + self._turn) % 4]
        elif self._turn:
            numbers = places % 7 + 1
        else:
            numbers = places * 3 % 5 + 9 if not value.dtype.is_signed else -2 - places * 3 % 5
        numbers = numbers.to(value.dtype).view(value.shape)
        if start == 0 and any(step == 0 for size, step in zip(value.shape, value.stride(), strict=True) if size > 1):
            span = 1 + sum((size - 1) * step for size, step in zip(value.shape, value.stride(), strict=True))
            value.as_strided((span,), (1,)).fill_(numbers.reshape(-1)[0])  # several elements share a place in memory
        elif start == 0:
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
    for turns in (_ORDINARY, _SPECIAL):
        runs = [
            _values(side, turns, {pair[place] for pair in pairs if pair[place] in after[place]})
            for place, side in enumerate(sides)
        ]
        for ours, theirs in pairs:
            for values in (runs[0].get(ours, []), runs[1].get(theirs, [])):
                ignored = _varying(values)
                if ignored is None:
                    continue
                if turns != _ORDINARY:
                    alike = _alike(runs[0].get(ours, []), runs[1].get(theirs, []))
                    ignored &= (_may_be_special(alignment, theirs).to(ignored.device)) | (alike if alike is not None else False)
                known = alignment.ignored.get(theirs)
                alignment.ignored[theirs] = ignored if known is None else known | ignored.to(known.device)
        pairs = [pair for pair in pairs if _still_differs(alignment, *pair)]


def _may_differ(alignment: Alignment, number: int) -> bool:
    apart, side = alignment.error(number), alignment.b
    always = number in side.ends or is_uninitialised(side.log.operations[number])
    return apart is not None and (always or not apart.is_none)


def _still_differs(alignment: Alignment, ours: int, theirs: int) -> bool:
    """True if elements differ that are not known to come from uninitialised memory."""
    values = alignment.a.value(ours), alignment.b.value(theirs)
    apart = difference(*values, ignored=alignment.ignored.get(theirs))
    return apart is not None and not apart.is_none


def _may_be_special(alignment: Alignment, number: int) -> Tensor:
    """Return a mask of the elements of an operation of `b` that NaN, infinity or extreme numbers in memory may explain.

    These are the elements that are not finite in one of the histories; finite numbers may differ for other reasons.
    """
    values = alignment.value_of_a(number), alignment.b.value(number)
    with DisableTorchFunction(), torch.no_grad():
        ours, theirs = (torch.isfinite(value) if value is not None else torch.tensor(False) for value in values)
        is_exact = values[1] is not None and not values[1].is_floating_point() and not values[1].is_complex()
        return torch.ones_like(theirs) if is_exact else ~(ours.to(theirs.device) & theirs)


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


def _values(side: Side, turns: tuple[int, ...], wanted: set[int]) -> dict[int, list[Tensor]]:
    """Run the log once for each turn. Returns the values of each operation that has a value in every turn."""
    if not wanted:
        return {}
    runs = [_FillMemory(side, turn, wanted) for turn in turns]
    for run in runs:
        run_side(side, run, {})
    return {number: [run.values[number] for run in runs] for number in wanted if all(number in run.values for run in runs)}


def _varying(values: list[Tensor]) -> Tensor | None:
    """Return a mask of the elements that differ between runs; None if no element differs."""
    found: Tensor | None = None
    for other in values[1:]:
        apart = difference(values[0], other)
        if apart is not None and not apart.is_none:
            differs = (values[0] != other) & ~(values[0].isnan() & other.isnan())
            found = differs if found is None else differs | found
    return found


def _alike(ours: list[Tensor], theirs: list[Tensor]) -> Tensor | None:
    """Return a mask of the elements that are equal in both models in every run with the same numbers in memory, or None."""
    if not ours or len(ours) != len(theirs) or ours[0].shape != theirs[0].shape:
        return None
    alike = torch.ones_like(ours[0], dtype=torch.bool)
    for one, other in zip(ours, theirs, strict=True):
        near = tolerance_of(one.dtype, other.dtype)
        wide = torch.promote_types(one.dtype, other.dtype)
        alike &= torch.isclose(one.to(wide), other.to(one.device, wide), rtol=near, atol=0.0, equal_nan=True)
    return alike
