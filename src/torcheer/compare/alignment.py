"""Finds corresponding operations of two histories.

`align` matches operations by parameters, function, shape, wiring and values. `move_gaps` then moves gaps (runs of steps
without a match) to module boundaries:

If equal blocks follow each other, several alignments are equally good. With a block of norm, attention and MLP deleted, the
norm of the next block may be matched with the norm of the deleted block, so that the gap begins in the middle of a block:

    a   norm3 | attn3 mlp3 norm4 | attn4        a   | norm3 attn3 mlp3 | norm4 attn4
    b   norm3 |                  | attn4   →    b   |                  | norm3 attn4

A gap can be moved as long as the step that enters it equals the step that leaves it. It is put where it cuts the fewest
module calls.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.internals import DisableTorchFunction
from ..history import Operation
from ..log.records import TEMPLATE
from .measures import Difference, absolute_values, difference, is_close, tolerance_of
from .steps import Side, Signature, Step

_MOST = 4  # rounds, because a moved gap may join its neighbour and move again


def move_gaps(alignment: Alignment) -> None:
    """Move every gap, in both histories, so that it covers whole module calls."""
    for side in (alignment.a, alignment.b):
        for _ in range(_MOST):
            moved = [_move(alignment, side, start, end) for start, end in _gaps(alignment, side)]
            if not any(moved):
                break


def _gaps(alignment: Alignment, side: Side) -> Iterator[tuple[int, int]]:
    """The gaps, as (first index, index after the last)."""
    matched = alignment.of_a if side is alignment.a else alignment.of_b
    end = 0
    for start in range(len(side.steps)):
        if start < end or side.steps[start].number in matched:
            continue
        end = start
        while end < len(side.steps) and side.steps[end].number not in matched:
            end += 1
        yield start, end


def _move(alignment: Alignment, side: Side, start: int, end: int) -> bool:
    """Move the gap from `start` to before `end` to a better position, if there is one. Returns True if it was moved."""
    steps = side.steps
    best, least = 0, _cuts(side, start, end)
    if not least:
        return False
    for direction in (-1, 1):
        for distance in range(1, end - start + 1):
            offset = direction * distance
            entering, leaving = (start + offset, end + offset) if offset < 0 else (end + offset - 1, start + offset - 1)
            if not 0 <= entering < len(steps) or not _are_alike(alignment, side, steps[entering], steps[leaving]):
                break
            cuts = _cuts(side, start + offset, end + offset)
            if cuts < least and _covers_calls(side, start + offset, end + offset):
                best, least = offset, cuts
    step = 1 if best > 0 else -1
    for offset in range(0, best, step):
        entering, leaving = (end + offset, start + offset) if best > 0 else (start + offset - 1, end + offset - 1)
        _rematch(alignment, side, steps[entering].number, steps[leaving].number)
    return best != 0


def _are_alike(alignment: Alignment, side: Side, matched: Step, free: Step) -> bool:
    """True if the unmatched step `free` could take over the match of another step."""
    is_matched = matched.number in (alignment.of_a if side is alignment.a else alignment.of_b)
    if not is_matched or matched.token != free.token:
        return False
    return len(matched.states) == len(free.states) and side.content(matched) == side.content(free)


def _rematch(alignment: Alignment, side: Side, matched: int, free: int) -> None:
    if side is alignment.a:
        other = alignment.of_a[matched]
        alignment.drop(other)
        alignment.match(free, other, "sequence")
    else:
        other = alignment.of_b[matched]
        alignment.drop(matched)
        alignment.match(other, free, "sequence")


def _cuts(side: Side, start: int, end: int) -> int:
    """The number of module calls that are partly inside a gap and partly outside."""
    before, first, last, after = (_calls(side, place) for place in (start - 1, start, end - 1, end))
    at_start, at_end = _shared(before, first), _shared(last, after)
    return at_start + at_end - 2 * min(_shared(before, after), at_start, at_end)


def _covers_calls(side: Side, start: int, end: int) -> bool:
    """True if a gap begins at the start of a module call and ends at the end of one."""
    before, first, last, after = (_calls(side, place) for place in (start - 1, start, end - 1, end))
    return len(first) > _shared(before, first) and len(last) > _shared(last, after)


def _calls(side: Side, place: int) -> tuple[int, ...]:
    """The module calls around a step; outside the range of steps, the calls around all steps."""
    if 0 <= place < len(side.steps):
        return side.stack(side.steps[place].number)
    return tuple(sorted(set(side.stack(side.steps[0].number)) & set(side.stack(side.steps[-1].number))))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of module calls that contain both steps."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((depth for depth, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


# Finds corresponding operations.
#
# Operations that use parameters are matched first, as anchors: by module address and parameter values, even if modules have
# other names or a block is missing. The short sequences between anchors are aligned by function, shape, address, arguments
# and values. Remaining operations are matched by their parents, then by their values. Both operations of a match have the
# same shape. An operation without a match is run as part of the next matched operation.

_LARGEST = 250_000  # cells of a table; longer sequences are divided first
_ALIKE = 16  # most pairs with equal values; if there are more, none is matched
_SEQUENCE = "sequence"  # the reason for a match by order alone
_SAME_CONTENT, _SAME_ADDRESS = 2.4, 1.25  # so two swapped layers keep their places, but layers after a missing block move


@dataclass(slots=True)
class Alignment:
    """The pairs of corresponding operations, with the reason for each match."""

    a: Side
    b: Side
    of_b: dict[int, int] = field(default_factory=dict)  # number in `b` -> number in `a`
    of_a: dict[int, int] = field(default_factory=dict)
    because: dict[int, str] = field(default_factory=dict)  # number in `b` -> reason
    ignored: dict[int, Tensor] = field(default_factory=dict)  # number in `b` -> mask of the elements that were never written

    def match(self, a: int, b: int, why: str) -> None:
        if a not in self.of_a and b not in self.of_b:
            self.of_a[a], self.of_b[b], self.because[b] = b, a, why

    def drop(self, b: int) -> None:
        self.because.pop(b)
        self.of_a.pop(self.of_b.pop(b))

    def pair(self, b: int) -> tuple[Operation, Operation]:
        """The operation of `a` that matches an operation of `b`, and the latter."""
        return self.a.operation(self.of_b[b]), self.b.operation(b)

    def value_of_a(self, b: int) -> Tensor | None:
        """The value in `a` of the match of an operation of `b`; None if there is no match, or it was not kept."""
        partner = self.of_b.get(b)
        return self.a.value(partner) if partner is not None else None

    def error(self, b: int) -> Difference | None:
        """The difference between the logged values of a match, without elements that were never written."""
        return difference(self.value_of_a(b), self.b.value(b), ignored=self.ignored.get(b))

    def finite_error(self, b: int) -> Difference | None:
        """The difference between the logged values of a match where both are finite; None if they nowhere are."""
        apart = self.error(b)
        one, other = self.value_of_a(b), self.b.value(b)
        if apart is None or math.isfinite(apart.relative) or one is None or other is None:
            return apart
        with DisableTorchFunction(), torch.no_grad():
            is_infinite = ~torch.isfinite(absolute_values(one)) | ~torch.isfinite(absolute_values(other)).to(one.device)
            is_infinite = is_infinite.reshape(*one.shape, -1).any(-1)  # complex numbers have two parts
        return difference(one, other, ignored=is_infinite)

    def tolerance(self, b: int) -> float:
        """The tolerance for a match, by its dtypes."""
        return tolerance_of(self.a.log.operations[self.of_b[b]].dtype, self.b.log.operations[b].dtype)

    def is_wired_alike(self, b: int) -> bool:
        """True if both operations of a match call the same function on matched operations."""
        one, other = self.a.log.operations[self.of_b[b]], self.b.log.operations[b]
        parents = [parent if parent < 0 else self.of_b.get(parent) for parent in other.parents]
        alike = [ours == theirs or (ours < 0 and (theirs or 0) < 0) for ours, theirs in zip(one.parents, parents, strict=False)]
        return one.function.type == other.function.type and len(alike) == len(one.parents) == len(parents) and all(alike)

    def only_in(self, side: Side) -> list[int]:
        matched = self.of_a if side is self.a else self.of_b
        return [number for number in side.index.operations if number not in matched]


def align(a: Side, b: Side) -> Alignment:
    """Match the operations of two histories."""
    alignment = Alignment(a, b)
    for ours, theirs in ((a.inputs, b.inputs), (a.outputs, b.outputs)):
        _match_in_order(alignment, ours, theirs)
    _align_around(alignment, a.steps, b.steps, _anchors(a, b), _align_stretch)
    move_gaps(alignment)
    _match_what_is_left(alignment)
    _match_crossed(alignment)
    _drop_guesses(alignment)
    return alignment


def _drop_guesses(found: Alignment) -> None:
    """Forget matches of different functions of which a value cannot be compared, as of sparse ones: nothing speaks for them."""
    for number, partner in list(found.of_b.items()):
        one, other = found.pair(number)
        if one.layer_type == other.layer_type or not (one.has_saved_activations and other.has_saved_activations):
            continue
        if found.a.value(partner) is None or found.b.value(number) is None:
            found.drop(number)


def _align_around(
    alignment: Alignment,
    ours: list[Step],
    theirs: list[Step],
    anchors: Iterable[tuple[int, int, str]],
    align_between: Callable[[Alignment, list[Step], list[Step]], None],
) -> None:
    """Match pairs of indices that increase in both sequences, and align the steps between them."""
    last_a = last_b = 0
    for at_a, at_b, why in anchors:
        align_between(alignment, ours[last_a:at_a], theirs[last_b:at_b])
        alignment.match(ours[at_a].number, theirs[at_b].number, why)
        last_a, last_b = at_a + 1, at_b + 1
    align_between(alignment, ours[last_a:], theirs[last_b:])


def _match_in_order(alignment: Alignment, ours: list[int], theirs: list[int]) -> None:
    """Match inputs or outputs of equal shape: by name if both histories have names, then in order."""
    named = {alignment.b.operation(number).io_role: number for number in theirs}
    for number in ours:
        role = alignment.a.operation(number).io_role
        twin = named.get(role, -1) if "'" in role or '"' in role or role.isidentifier() else -1
        if twin >= 0 and alignment.a.log.operations[number].shape == alignment.b.log.operations[twin].shape:
            alignment.match(number, twin, "name")
    ours, theirs = [n for n in ours if n not in alignment.of_a], [n for n in theirs if n not in alignment.of_b]
    shapes = defaultdict(list)
    for number in ours:
        shapes[alignment.a.log.operations[number].shape].append(number)
    for number in theirs:
        same = shapes[alignment.b.log.operations[number].shape]
        if same:
            alignment.match(same.pop(0), number, "position")


# Anchors ----------------------------------------------------------------------------------------------------------


def _anchors(a: Side, b: Side) -> list[tuple[int, int, str]]:
    """Pairs of steps with parameters, as indices that increase in both histories, chosen by weight."""
    weights: dict[tuple[int, int], float] = defaultdict(float)
    reasons: dict[tuple[int, int], str] = {}
    for key, weight, why in (
        (lambda side, step: step.states and (step.address, step.call, step.type), _SAME_ADDRESS, "address"),
        (lambda side, step: side.content(step), _SAME_CONTENT, "parameters"),
    ):
        for at_a, at_b, is_unique in _pairs(*(_grouped(side.steps, partial(key, side)) for side in (a, b))):
            if a.steps[at_a].shape != b.steps[at_b].shape:
                continue
            pair = (at_a, at_b)
            weights[pair] += weight if is_unique else weight / 4
            reasons[pair] = f"{reasons[pair]} and {why}" if pair in reasons else why
    return [(*pair, reasons[pair]) for pair in heaviest_increasing([(*pair, weight) for pair, weight in weights.items()])]


def _grouped(steps: Iterable[Step], key: Callable[[Step], Any]) -> dict[Any, list[int]]:
    """The indices of steps by key, without steps whose key is empty."""
    found: dict[Any, list[int]] = defaultdict(list)
    for place, step in enumerate(steps):
        if known := key(step):
            found[known].append(place)
    return found


def _pairs(ours: dict[Any, list[int]], theirs: dict[Any, list[int]]) -> Iterable[tuple[int, int, bool]]:
    """Pairs of indices with the same key, the first with the first, and True if the key has only this pair.

    Keys that occur more often in one history than in the other are left out.
    """
    for key, places in ours.items():
        others = theirs.get(key, [])
        if len(others) == len(places):
            yield from ((one, other, len(places) == 1) for one, other in zip(places, others, strict=True))


def heaviest_increasing(pairs: Sequence[tuple[int, int, float]]) -> list[tuple[int, int]]:
    """The pairs that increase in both numbers and have the largest sum of weights.

    >>> heaviest_increasing([(0, 1, 1.0), (1, 0, 2.0), (2, 2, 1.0)])
    [(1, 0), (2, 2)]
    """
    ends: list[int] = []  # the second numbers of the last pairs of chains, increasing
    best: list[float] = []  # for each end: the weight of the heaviest chain up to it, increasing
    last: list[int] = []  # for each end: the last pair of the chain
    before: dict[int, int] = {}
    ordered = sorted(pairs, key=lambda pair: (pair[0], -pair[1]))
    for position, (_, second, weight) in enumerate(ordered):
        place = bisect_left(ends, second)
        total = weight + (best[place - 1] if place else 0.0)
        before[position] = last[place - 1] if place else -1
        if place < len(ends) and ends[place] == second:
            if best[place] >= total:
                continue
            best[place], last[place] = total, position
        else:
            if place and best[place - 1] >= total:
                continue
            ends.insert(place, second)
            best.insert(place, total)
            last.insert(place, position)
        while place + 1 < len(ends) and best[place + 1] <= total:
            del ends[place + 1], best[place + 1], last[place + 1]
    chain: list[tuple[int, int]] = []
    position = last[-1] if last else -1
    while position >= 0:
        chain.append(ordered[position][:2])
        position = before[position]
    return chain[::-1]


# Sequences between anchors ------------------------------------------------------------------------------------------


def _align_stretch(alignment: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    if not ours or not theirs:
        return
    if len(ours) == len(theirs) and all(a.token == b.token for a, b in zip(ours, theirs, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            alignment.match(a.number, b.number, _SEQUENCE)
    elif len(ours) * len(theirs) <= _LARGEST:
        _align_table(alignment, ours, theirs)
    else:
        _divide(alignment, ours, theirs)


def _divide(alignment: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    """Align a long sequence: first the steps that occur equally often in both histories, then the steps between them."""
    pairs: list[tuple[int, int, float]] = []
    for key in (lambda step: (step.token, step.address, step.call), lambda step: step.token):
        pairs = pairs or [(one, other, 1.0) for one, other, _ in _pairs(_grouped(ours, key), _grouped(theirs, key))]
    if not pairs:  # every function runs more often in one history: match equal beginnings and ends
        pairs = _ends_that_agree(ours, theirs)
    anchors = ((*pair, _SEQUENCE) for pair in heaviest_increasing(pairs))
    _align_around(alignment, ours, theirs, anchors, _align_piece)


def _align_piece(alignment: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    if len(ours) * len(theirs) <= _LARGEST:
        _align_stretch(alignment, ours, theirs)


def _ends_that_agree(ours: list[Step], theirs: list[Step]) -> list[tuple[int, int, float]]:
    short = min(len(ours), len(theirs))
    head = next((n for n in range(short) if ours[n].token != theirs[n].token), short)
    tail = next((n for n in range(short - head) if ours[-1 - n].token != theirs[-1 - n].token), short - head)
    last = [(len(ours) - 1 - n, len(theirs) - 1 - n, 1.0) for n in range(tail)]
    return [*((n, n, 1.0) for n in range(head)), *last]


def _align_table(alignment: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    """Match two short sequences, in order, so that the sum of scores is largest."""
    width = len(theirs) + 1
    scores = [[_likeness(alignment, a, b) for b in theirs] for a in ours]
    best = [[0.0] * width for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below, score = best[i], best[i + 1], scores[i]
        for j in range(len(theirs) - 1, -1, -1):
            together = score[j] + below[j + 1] if score[j] else 0.0
            row[j] = max(together, below[j], row[j + 1])
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if scores[i][j] and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            alignment.match(ours[i].number, theirs[j].number, _SEQUENCE)
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1


def _likeness(alignment: Alignment, a: Step, b: Step) -> float:
    """A score for how likely two steps correspond; 0 if they cannot."""
    if a.shape != b.shape or bool(a.states) != bool(b.states):
        return 0.0
    same_value = _same_value(alignment.a.value_signature(a.number), alignment.b.value_signature(b.number))
    if a.type != b.type:
        leaves = 1.0 if a.leaves and set(a.leaves) & set(b.leaves) else 0.0
        return 2 * leaves + same_value
    score = 4.0 + same_value + (2.0 if a.address == b.address and a.call == b.call else 0.0)
    return score + _same_arguments(alignment, a.number, b.number)


def _same_value(one: Signature | None, other: Signature | None) -> float:
    """The score of equal values: 4 if their signatures are equal, 1 if they are close."""
    if one is None or other is None:
        return 0.0
    if one == other:
        return 4.0
    return 1.0 if math.isclose(one[1], other[1], rel_tol=0.02) and math.isclose(one[2], other[2], rel_tol=0.1) else 0.0


def _same_arguments(alignment: Alignment, a: int, b: int) -> float:
    ours, theirs = alignment.a.log.rows[a][TEMPLATE], alignment.b.log.rows[b][TEMPLATE]
    try:
        return 1.0 if bool(ours == theirs) else 0.0
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return 0.0


# Remaining operations ---------------------------------------------------------------------------------------------


def _match_what_is_left(alignment: Alignment) -> None:
    _match_by_wiring(alignment)
    _match_by_values(alignment)
    _match_by_wiring(alignment)


def _match_crossed(alignment: Alignment) -> None:
    """Match differing operations again that were matched by order alone: they may run in another order.

        a  q, k, v = qkv(x).chunk(3); q, k, v = heads(q), heads(k), heads(v)
        b  v, k, q = heads(v(x)), heads(k(x)), heads(q(x))       the first `heads` of b are the last of a

    If neither wiring nor values decide, the order does.
    """
    doubted = [
        (alignment.of_b[step.number], step.number)
        for step in alignment.b.steps
        if not step.states and alignment.because.get(step.number) == _SEQUENCE
        if (apart := alignment.finite_error(step.number)) is not None and apart.relative > alignment.tolerance(step.number)
    ]
    if not doubted:
        return
    for _, other in doubted:
        alignment.drop(other)
    _match_what_is_left(alignment)
    for one, other in doubted:
        alignment.match(one, other, _SEQUENCE)
        if alignment.of_b.get(other) == one:
            alignment.because[other] = _SEQUENCE


def _match_by_wiring(alignment: Alignment) -> None:
    """Match calls of the same function on the same parents."""
    free: dict[Any, list[int]] = defaultdict(list)
    for step in alignment.a.steps:
        if step.number not in alignment.of_a:
            free[_wiring(step, alignment.a, lambda number: number)].append(step.number)
    if not free:
        return
    for step in alignment.b.steps:
        if step.number in alignment.of_b:
            continue
        key = _wiring(step, alignment.b, lambda number: alignment.of_b.get(number, -1))
        if key is not None and free.get(key):
            alignment.match(free[key].pop(0), step.number, "wiring")


def _wiring(step: Step, side: Side, in_a: Callable[[int], int]) -> Any:
    """A key for a step and its parents, as numbers in `a`; None if a parent has no match."""
    record = side.log.operations[step.number]
    parents = [in_a(parent) for parent in record.parents if parent >= 0]
    if -1 in parents:
        return None
    content = side.content(step) if step.states else ()
    given = tuple(sorted(parents)) if record.function.is_commutative else tuple(parents)
    return step.type, step.shape, record.details.output_path, given, content


def _match_by_values(alignment: Alignment) -> None:
    """Match operations with equal values, if no other operations have these values (except operations that only pass them
    on).
    """
    ours, theirs = (_by_value(alignment, side) for side in (alignment.a, alignment.b))
    for key, numbers in theirs.items():
        others = ours.get(key, [])
        if len(others) * len(numbers) > _ALIKE:
            continue
        pairs = [(one, other) for one in others for other in numbers if _has_same_values(alignment, one, other)]
        left = _first_of_chain(alignment.a, {one for one, _ in pairs})
        right = _first_of_chain(alignment.b, {other for _, other in pairs})
        if len(left) == len(right) == 1:
            alignment.match(left[0], right[0], "values")


def _has_same_values(alignment: Alignment, one: int, other: int) -> bool:
    a, b = alignment.a.value(one), alignment.b.value(other)
    return a is not None and b is not None and is_close(a, b, tolerance_of(a.dtype, b.dtype))


def _first_of_chain(side: Side, numbers: set[int]) -> list[int]:
    """The operations that do not depend on another of them: of `transpose` and a `contiguous` after it, the first."""
    return [number for number in numbers if numbers.isdisjoint(side.log.operations[number].dependencies)]


def _by_value(alignment: Alignment, side: Side) -> dict[Any, list[int]]:
    matched = alignment.of_a if side is alignment.a else alignment.of_b
    groups: dict[Any, list[int]] = defaultdict(list)
    for step in side.steps:
        if step.number not in matched:
            signature = side.value_signature(step.number)
            if signature is not None and signature[2] not in (0.0, 1.0):
                groups[step.shape, signature].append(step.number)
    return groups
