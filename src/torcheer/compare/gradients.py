"""Gradients of two histories, compared backwards: the first that differs though those it was computed from agree."""

from __future__ import annotations

import math

from torch import Tensor

from .alignment import Alignment
from .comparison import ComparedOperation
from .measures import Difference, difference, tolerance_of
from .sides import Side

_ONE_SIDED = Difference(math.inf, math.inf, math.nan, None)  # only one of the two has a gradient there
_LOOSER = 16  # a gradient sums over uses, batch and time, in an order of its own


def _gradient(side: Side, number: int) -> Tensor | None:
    return side.operation(number).grad_contents if side.log.backward is not None else None


def gradient_errors(alignment: Alignment) -> dict[int, Difference]:
    """How far the gradients of matched operations are apart, by number in b; empty unless both histories have gradients."""
    a, b = alignment.a, alignment.b
    if not a.history.backward_passes or not b.history.backward_passes:
        return {}
    found: dict[int, Difference] = {}
    for number, partner in alignment.of_b.items():
        ours, theirs = _gradient(a, partner), _gradient(b, number)
        if (ours is None or theirs is None) and not _follow_gradients(a, partner, b, number):
            continue
        apart = difference(ours, theirs) if ours is not None and theirs is not None else _ONE_SIDED
        if apart is not None:
            found[number] = apart
    return found


def _follow_gradients(a: Side, one: int, b: Side, other: int) -> bool:
    """Whether only one of two operations got a gradient, though autograd follows both: it was cut off after one of them."""
    has_gradient = _gradient(a, one) is not None or _gradient(b, other) is not None
    follows = a.log.operations[one].gradfunc is not None and b.log.operations[other].gradfunc is not None
    return has_gradient and follows


def first_gradient_error(alignment: Alignment, rows: list[ComparedOperation]) -> ComparedOperation | None:
    """The operation nearest to the output whose gradient differs while those of all that use it agree."""
    side = alignment.b
    known = {row.b._number: row for row in rows if row.gradient_error is not None}
    for row in sorted(known.values(), key=lambda row: -row.b._number):
        if _is_close(row):
            continue
        users = [known[child] for child in side.children.get(row.b._number, ()) if child in known]
        if all(map(_is_close, users)):
            return row
    return None


def _is_close(row: ComparedOperation) -> bool:
    assert row.gradient_error is not None
    allowed = _LOOSER * max(row.tolerance, tolerance_of(row.a.tensor_dtype, row.b.tensor_dtype))
    return row.gradient_error.relative <= allowed
