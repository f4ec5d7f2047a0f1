"""Moves gaps in an alignment, which are steps without a match, to the edges of modules.

Where equal blocks follow each other, several alignments are equally good. With a block of norm, attention and MLP deleted, the
norm of the next block may be matched with that of the deleted one, and the gap then begins in the middle of a block:

    a   norm3 | attn3 mlp3 norm4 | attn4        a   | norm3 attn3 mlp3 | norm4 attn4
    b   norm3 |                  | attn4   →    b   |                  | norm3 attn4

A gap can be moved as long as the step that enters it and the step that leaves it are alike. It is put where it cuts the fewest
module calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .sides import Side, Step

if TYPE_CHECKING:
    from .alignment import Alignment


_MOST = 4  # rounds: a gap that was moved next to another one is then moved together with it


def move_gaps(found: Alignment) -> None:
    """Move every gap, on both sides, to where it covers whole module calls."""
    for side in (found.a, found.b):
        for _ in range(_MOST):
            moved = [_move(found, side, start, end) for start, end in _gaps(found, side)]
            if not any(moved):
                break


def _gaps(found: Alignment, side: Side) -> Iterator[tuple[int, int]]:
    """The runs of steps without a match, as places: the first, and the one after the last."""
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
    """Move the gap from `start` to before `end` to a better place, if there is one. Returns whether it was moved."""
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
    """Whether a step without a match could take over the match of another step."""
    is_matched = matched.number in (found.of_a if side is found.a else found.of_b)
    if not is_matched or matched.token != free.token:
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
    at_start, at_end = _shared(before, first), _shared(last, after)
    return at_start + at_end - 2 * min(_shared(before, after), at_start, at_end)


def _covers_calls(side: Side, start: int, end: int) -> bool:
    """Whether a gap begins where a module call begins, and ends where one ends."""
    before, first, last, after = (_calls(side, place) for place in (start - 1, start, end - 1, end))
    return len(first) > _shared(before, first) and len(last) > _shared(last, after)


def _calls(side: Side, place: int) -> tuple[int, ...]:
    """The module calls around a step; before the first and after the last step, those around all steps."""
    if 0 <= place < len(side.steps):
        return side.stack(side.steps[place].number)
    return tuple(sorted(set(side.stack(side.steps[0].number)) & set(side.stack(side.steps[-1].number))))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many module calls two steps are both in."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((depth for depth, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
