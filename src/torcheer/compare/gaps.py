"""Moves a gap in an alignment to the edges of modules.

Where one side runs steps that the other does not, it is often open which. With a block of norm, attention and MLP deleted, the
first norm of the next block may be matched with that of the deleted one, and the gap then begins in the middle of a block:

    a   norm3 | attn3 mlp3 norm4 | attn4        a   | norm3 attn3 mlp3 | norm4 attn4
    b   norm3 |                  | attn4   →    b   |                  | norm3 attn4

Such a gap can be moved as long as the step that enters it and the one that leaves it are alike. It is put where it cuts the
fewest module calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .sides import Side, Step

if TYPE_CHECKING:
    from .alignment import Alignment


_MOST = 4  # rounds: a gap that was moved next to another is one with it


def move_gaps(found: Alignment) -> None:
    """Move every gap, on both sides, to where it covers whole module calls."""
    for side in (found.a, found.b):
        for _ in range(_MOST):
            moved = [_move(found, side, start, end) for start, end in _gaps(found, side)]
            if not any(moved):
                break


def _gaps(found: Alignment, side: Side) -> Iterator[tuple[int, int]]:
    """The stretches of steps without a match, as places: the first, and the one after the last."""
    matched = found.of_a if side is found.a else found.of_b
    end = 0
    for start in range(len(side.steps)):
        if start < end or side.steps[start].number in matched:
            continue
        end = start
        while end < len(side.steps) and side.steps[end].number not in matched:
            end += 1
        yield start, end


def _move(found: Alignment, side: Side, start: int, end: int) -> bool:
    """Move the gap of the steps from `start` to before `end`, if there is a better place; whether it was moved."""
    steps = side.steps
    best, least = 0, _cuts(side, start, end)
    if not least:
        return False
    for direction in (-1, 1):
        for distance in range(1, end - start + 1):
            offset = direction * distance
            entering, leaving = (start + offset, end + offset) if offset < 0 else (end + offset - 1, start + offset - 1)
            if not 0 <= entering < len(steps) or not _are_alike(found, side, steps[entering], steps[leaving]):
                break
            cuts = _cuts(side, start + offset, end + offset)
            if cuts < least and _covers_calls(side, start + offset, end + offset):
                best, least = offset, cuts
    step = 1 if best > 0 else -1
    for offset in range(0, best, step):
        entering, leaving = (end + offset, start + offset) if best > 0 else (start + offset - 1, end + offset - 1)
        _rematch(found, side, steps[entering].number, steps[leaving].number)
    return best != 0


def _are_alike(found: Alignment, side: Side, matched: Step, free: Step) -> bool:
    """Whether a step in the gap could have the match of one beside it."""
    partner = (found.of_a if side is found.a else found.of_b).get(matched.number)
    if partner is None or matched.token != free.token:
        return False
    return len(matched.states) == len(free.states) and side.content(matched) == side.content(free)


def _rematch(found: Alignment, side: Side, matched: int, free: int) -> None:
    if side is found.a:
        other = found.of_a[matched]
        found.drop(other)
        found.match(free, other, "sequence")
    else:
        other = found.of_b[matched]
        found.drop(matched)
        found.match(other, free, "sequence")


def _cuts(side: Side, start: int, end: int) -> int:
    """How many module calls lie partly inside a gap and partly outside."""
    before, first, last, after = (_calls(side, place) for place in (start - 1, start, end - 1, end))
    around = _shared(before, after)
    return _shared(before, first) + _shared(last, after) - 2 * min(around, _shared(before, first), _shared(last, after))


def _covers_calls(side: Side, start: int, end: int) -> bool:
    """Whether a gap begins with a module call and ends with one: only then something is gained by moving it there."""
    before, first, last, after = (_calls(side, place) for place in (start - 1, start, end - 1, end))
    return len(first) > _shared(before, first) and len(last) > _shared(last, after)


def _calls(side: Side, place: int) -> tuple[int, ...]:
    """The module calls around a step; before the first and after the last one, the model's own."""
    if 0 <= place < len(side.steps):
        return side.stack(side.steps[place].number)
    return tuple(sorted(set(side.stack(side.steps[0].number)) & set(side.stack(side.steps[-1].number))))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((depth for depth, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
