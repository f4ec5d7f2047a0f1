"""How much each operation makes an error grow that it inherits: its inherited error after against before."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .alignment import Alignment
from .measures import Difference, difference_of_any
from .own_error import Run


def amplifications(
    alignment: Alignment, run: Run, errors: Mapping[int, Difference | None], states: Mapping[int, int]
) -> dict[int, float]:
    """By operation of b: its inherited error, divided by the largest error of the tensors and parameters that it is given.

    Without operations that are given no error, or whose error is not known. `states` has parameters and buffers by number in a.
    """
    of_states = {theirs: _relative(difference_of_any(*_values(alignment, ours, theirs))) for ours, theirs in states.items()}
    found: dict[int, float] = {}
    passed_on: dict[int, float] = {}  # the error of an operation; where it is not known, the largest that it is given
    for record in alignment.b.log.operations:
        number = record.number
        given = [passed_on[parent] for parent in record.dependencies if parent >= 0]
        before = max([*given, *(of_states.get(parent, 0.0) for parent in record.parents if parent < 0)], default=0.0)
        error = errors.get(number)
        passed_on[number] = before if error is None else error.relative
        after = _inherited(error, run.own.get(number), run.inherited.get(number), number in run.dirty)
        if number in errors and after is not None and 0 < before < math.inf:
            found[number] = after / before
    return found


def _inherited(error: Difference | None, own: Difference | None, inherited: Difference | None, is_dirty: bool) -> float | None:
    """The part of an error that an operation does not add itself, also by rounding of what it is given to fewer digits."""
    known = [inherited.relative] if inherited is not None else []
    if error is not None and own is not None and not is_dirty and math.isfinite(own.relative):
        known.append(max(0.0, error.relative - own.relative))
    return max(known, default=None)


def _relative(error: Difference | None) -> float:
    return error.relative if error is not None else 0.0


def _values(alignment: Alignment, ours: int, theirs: int) -> tuple[object, object]:
    return alignment.a.index.state(ours).value, alignment.b.index.state(theirs).value
