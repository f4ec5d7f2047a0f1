"""Moves gaps in an alignment, which are steps without a match, to the edges of modules.

Where equal blocks follow each other, several alignments are equally good. With a block of norm, attention and MLP deleted, the
norm of the next block may be matched with that of the deleted one, and the gap then begins in the middle of a block:

    a   norm3 | attn3 mlp3 norm4 | attn4        a   | norm3 attn3 mlp3 | norm4 attn4
    b   norm3 |                  | attn4   →    b   |                  | norm3 attn4

A gap can be moved as long as the step that enters it and the step that leaves it are alike. It is put where it cuts the fewest
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


# Which operations of two histories correspond.
#
# Operations that use parameters are matched first, as anchors: by the address of their module and the content of the
# parameters, also where modules have other names or a block is missing. The short sequences between anchors are
# aligned by function, shape, address, arguments and values. Operations that are left are matched by their parents,
# then by their values. Both operations of a match have the same shape. An operation without a match is run as part of
# the next operation that has one.

_LARGEST = 250_000  # cells of one table; longer stretches are divided first
_ALIKE = 16  # pairs of operations whose values look alike; of more no two belong together
_SEQUENCE = "sequence"  # what a match rests on where only the order of the operations speaks for it
_SAME_CONTENT, _SAME_ADDRESS = 2.4, 1.25  # two swapped layers stay in place, and what follows a missing block moves


@dataclass(slots=True)
class Alignment:
    """The pairs of operations that correspond, and what each match rests on."""

    a: Side
    b: Side
    of_b: dict[int, int] = field(default_factory=dict)  # by number in b: the number in a
    of_a: dict[int, int] = field(default_factory=dict)
    because: dict[int, str] = field(default_factory=dict)  # by number in b
    ignored: dict[int, Tensor] = field(default_factory=dict)  # by number in b: which elements were never written

    def match(self, a: int, b: int, why: str) -> None:
        if a not in self.of_a and b not in self.of_b:
            self.of_a[a], self.of_b[b], self.because[b] = b, a, why

    def drop(self, b: int) -> None:
        self.because.pop(b)
        self.of_a.pop(self.of_b.pop(b))

    def pair(self, b: int) -> tuple[Operation, Operation]:
        """An operation of b, after the one of a that it corresponds to."""
        return self.a.operation(self.of_b[b]), self.b.operation(b)

    def value_of_a(self, b: int) -> Tensor | None:
        """The value in a that corresponds to an operation of b; None where there is no match, or it was not kept."""
        partner = self.of_b.get(b)
        return self.a.value(partner) if partner is not None else None

    def error(self, b: int) -> Difference | None:
        """How far the logged values of a match are apart, without elements that were never written."""
        return difference(self.value_of_a(b), self.b.value(b), ignored=self.ignored.get(b))

    def finite_error(self, b: int) -> Difference | None:
        """How far the logged values of a match are apart where both are finite; None where they are nowhere."""
        apart = self.error(b)
        one, other = self.value_of_a(b), self.b.value(b)
        if apart is None or math.isfinite(apart.relative) or one is None or other is None:
            return apart
        with DisableTorchFunction(), torch.no_grad():
            is_infinite = ~torch.isfinite(absolute_values(one)) | ~torch.isfinite(absolute_values(other)).to(one.device)
            is_infinite = is_infinite.reshape(*one.shape, -1).any(-1)  # complex numbers have two parts
        return difference(one, other, ignored=is_infinite)

    def tolerance(self, b: int) -> float:
        """The tolerance of a match, by its dtypes."""
        return tolerance_of(self.a.log.operations[self.of_b[b]].dtype, self.b.log.operations[b].dtype)

    def is_wired_alike(self, b: int) -> bool:
        """Whether both operations of a match are calls of one function on operations that correspond."""
        one, other = self.a.log.operations[self.of_b[b]], self.b.log.operations[b]
        parents = [parent if parent < 0 else self.of_b.get(parent) for parent in other.parents]
        alike = [ours == theirs or (ours < 0 and (theirs or 0) < 0) for ours, theirs in zip(one.parents, parents, strict=False)]
        return one.function.type == other.function.type and len(alike) == len(one.parents) == len(parents) and all(alike)

    def only_in(self, side: Side) -> list[int]:
        matched = self.of_a if side is self.a else self.of_b
        return [number for number in side.index.operations if number not in matched]


def align(a: Side, b: Side) -> Alignment:
    """Match the operations of two histories."""
    found = Alignment(a, b)
    for ours, theirs in ((a.inputs, b.inputs), (a.outputs, b.outputs)):
        _match_in_order(found, ours, theirs)
    _align_around(found, a.steps, b.steps, _anchors(a, b), _align_stretch)
    move_gaps(found)
    _match_what_is_left(found)
    _match_crossed(found)
    _drop_guesses(found)
    return found


def _drop_guesses(found: Alignment) -> None:
    """Forget matches of different functions of which a value cannot be compared, as of sparse ones: nothing speaks for them."""
    for number, partner in list(found.of_b.items()):
        one, other = found.pair(number)
        if one.layer_type == other.layer_type or not (one.has_saved_activations and other.has_saved_activations):
            continue
        if found.a.value(partner) is None or found.b.value(number) is None:
            found.drop(number)


def _align_around(
    found: Alignment,
    ours: list[Step],
    theirs: list[Step],
    anchors: Iterable[tuple[int, int, str]],
    align_between: Callable[[Alignment, list[Step], list[Step]], None],
) -> None:
    """Match pairs of places that increase on both sides, and align the steps between them."""
    last_a = last_b = 0
    for at_a, at_b, why in anchors:
        align_between(found, ours[last_a:at_a], theirs[last_b:at_b])
        found.match(ours[at_a].number, theirs[at_b].number, why)
        last_a, last_b = at_a + 1, at_b + 1
    align_between(found, ours[last_a:], theirs[last_b:])


def _match_in_order(found: Alignment, ours: list[int], theirs: list[int]) -> None:
    """Match inputs or outputs of one shape: by name, where both sides have names, then in order."""
    named = {found.b.operation(number).io_role: number for number in theirs}
    for number in ours:
        role = found.a.operation(number).io_role
        twin = named.get(role, -1) if "'" in role or '"' in role or role.isidentifier() else -1
        if twin >= 0 and found.a.log.operations[number].shape == found.b.log.operations[twin].shape:
            found.match(number, twin, "name")
    ours, theirs = [n for n in ours if n not in found.of_a], [n for n in theirs if n not in found.of_b]
    shapes = defaultdict(list)
    for number in ours:
        shapes[found.a.log.operations[number].shape].append(number)
    for number in theirs:
        same = shapes[found.b.log.operations[number].shape]
        if same:
            found.match(same.pop(0), number, "position")


# Anchors ----------------------------------------------------------------------------------------------------------


def _anchors(a: Side, b: Side) -> list[tuple[int, int, str]]:
    """Pairs of steps with parameters, as places that increase on both sides, chosen by what speaks for them."""
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
    """The places of steps by key, without those whose key is empty."""
    found: dict[Any, list[int]] = defaultdict(list)
    for place, step in enumerate(steps):
        if known := key(step):
            found[known].append(place)
    return found


def _pairs(ours: dict[Any, list[int]], theirs: dict[Any, list[int]]) -> Iterable[tuple[int, int, bool]]:
    """Places that share a key, the first with the first, and whether it is the only pair of the key.

    Keys that occur more often on one side than on the other are left out.
    """
    for key, places in ours.items():
        others = theirs.get(key, [])
        if len(others) == len(places):
            yield from ((one, other, len(places) == 1) for one, other in zip(places, others, strict=True))


def heaviest_increasing(pairs: Sequence[tuple[int, int, float]]) -> list[tuple[int, int]]:
    """The pairs that increase on both sides and have the largest sum of weights.

    >>> heaviest_increasing([(0, 1, 1.0), (1, 0, 2.0), (2, 2, 1.0)])
    [(1, 0), (2, 2)]
    """
    ends: list[int] = []  # the second numbers at which a chain may end, increasing
    best: list[float] = []  # the weight of the heaviest chain that ends at or before each, increasing
    last: list[int] = []  # by end: the pair that chain ends with
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


# Stretches between anchors -----------------------------------------------------------------------------------------


def _align_stretch(found: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    if not ours or not theirs:
        return
    if len(ours) == len(theirs) and all(a.token == b.token for a, b in zip(ours, theirs, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            found.match(a.number, b.number, _SEQUENCE)
    elif len(ours) * len(theirs) <= _LARGEST:
        _align_table(found, ours, theirs)
    else:
        _divide(found, ours, theirs)


def _divide(found: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    """Align a long stretch: first steps that occur equally often on both sides, then what is between them."""
    pairs: list[tuple[int, int, float]] = []
    for key in (lambda step: (step.token, step.address, step.call), lambda step: step.token):
        pairs = pairs or [(one, other, 1.0) for one, other, _ in _pairs(_grouped(ours, key), _grouped(theirs, key))]
    if not pairs:  # every function runs more often on one side: from the start as long as they agree, and from the end
        pairs = _ends_that_agree(ours, theirs)
    anchors = ((*pair, _SEQUENCE) for pair in heaviest_increasing(pairs))
    _align_around(found, ours, theirs, anchors, _align_piece)


def _align_piece(found: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    if len(ours) * len(theirs) <= _LARGEST:
        _align_stretch(found, ours, theirs)


def _ends_that_agree(ours: list[Step], theirs: list[Step]) -> list[tuple[int, int, float]]:
    short = min(len(ours), len(theirs))
    head = next((n for n in range(short) if ours[n].token != theirs[n].token), short)
    tail = next((n for n in range(short - head) if ours[-1 - n].token != theirs[-1 - n].token), short - head)
    last = [(len(ours) - 1 - n, len(theirs) - 1 - n, 1.0) for n in range(tail)]
    return [*((n, n, 1.0) for n in range(head)), *last]


def _align_table(found: Alignment, ours: list[Step], theirs: list[Step]) -> None:
    """Match two short sequences, in order, so that the sum of likenesses is largest."""
    width = len(theirs) + 1
    scores = [[_likeness(found, a, b) for b in theirs] for a in ours]
    best = [[0.0] * width for _ in range(len(ours) + 1)]
    for i in range(len(ours) - 1, -1, -1):
        row, below, score = best[i], best[i + 1], scores[i]
        for j in range(len(theirs) - 1, -1, -1):
            together = score[j] + below[j + 1] if score[j] else 0.0
            row[j] = max(together, below[j], row[j + 1])
    i = j = 0
    while i < len(ours) and j < len(theirs):
        if scores[i][j] and best[i][j] == scores[i][j] + best[i + 1][j + 1]:
            found.match(ours[i].number, theirs[j].number, _SEQUENCE)
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1


def _likeness(found: Alignment, a: Step, b: Step) -> float:
    """How much speaks for a match; 0 where it is impossible."""
    if a.shape != b.shape or bool(a.states) != bool(b.states):
        return 0.0
    same_value = _same_value(found.a.value_signature(a.number), found.b.value_signature(b.number))
    if a.type != b.type:
        leaves = 1.0 if a.leaves and set(a.leaves) & set(b.leaves) else 0.0
        return 2 * leaves + same_value
    score = 4.0 + same_value + (2.0 if a.address == b.address and a.call == b.call else 0.0)
    return score + _same_arguments(found, a.number, b.number)


def _same_value(one: Signature | None, other: Signature | None) -> float:
    """How much the values speak for a match: 4 where their signatures are equal, 1 where they are close."""
    if one is None or other is None:
        return 0.0
    if one == other:
        return 4.0
    return 1.0 if math.isclose(one[1], other[1], rel_tol=0.02) and math.isclose(one[2], other[2], rel_tol=0.1) else 0.0


def _same_arguments(found: Alignment, a: int, b: int) -> float:
    ours, theirs = found.a.log.rows[a][TEMPLATE], found.b.log.rows[b][TEMPLATE]
    try:
        return 1.0 if bool(ours == theirs) else 0.0
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return 0.0


# What is left ------------------------------------------------------------------------------------------------------


def _match_what_is_left(found: Alignment) -> None:
    _match_by_wiring(found)
    _match_by_values(found)
    _match_by_wiring(found)


def _match_crossed(found: Alignment) -> None:
    """Match operations again that were matched by their sequence only and differ: one of the two may run in another order.

        a  q, k, v = qkv(x).chunk(3); q, k, v = heads(q), heads(k), heads(v)
        b  v, k, q = heads(v(x)), heads(k(x)), heads(q(x))       the first `heads` of b are the last of a

    Where neither wiring nor values tell better, the sequence counts.
    """
    doubted = [
        (found.of_b[step.number], step.number)
        for step in found.b.steps
        if not step.states and found.because.get(step.number) == _SEQUENCE
        if (apart := found.finite_error(step.number)) is not None and apart.relative > found.tolerance(step.number)
    ]
    if not doubted:
        return
    for _, other in doubted:
        found.drop(other)
    _match_what_is_left(found)
    for one, other in doubted:
        found.match(one, other, _SEQUENCE)
        if found.of_b.get(other) == one:
            found.because[other] = _SEQUENCE


def _match_by_wiring(found: Alignment) -> None:
    """Match calls of the same function on the same parents, which ran in another order."""
    free: dict[Any, list[int]] = defaultdict(list)
    for step in found.a.steps:
        if step.number not in found.of_a:
            free[_wiring(step, found.a, lambda number: number)].append(step.number)
    if not free:
        return
    for step in found.b.steps:
        if step.number in found.of_b:
            continue
        key = _wiring(step, found.b, lambda number: found.of_b.get(number, -1))
        if key is not None and free.get(key):
            found.match(free[key].pop(0), step.number, "wiring")


def _wiring(step: Step, side: Side, in_a: Callable[[int], int]) -> Any:
    """What identifies a step and its parents, which are given as numbers in a; None where a parent has no match."""
    record = side.log.operations[step.number]
    parents = [in_a(parent) for parent in record.parents if parent >= 0]
    if -1 in parents:
        return None
    content = side.content(step) if step.states else ()
    given = tuple(sorted(parents)) if record.function.is_commutative else tuple(parents)
    return step.type, step.shape, record.details.output_path, given, content


def _match_by_values(found: Alignment) -> None:
    """Match two operations that have the same values, if no others have these, other than those the values are passed on to."""
    ours, theirs = (_by_value(found, side) for side in (found.a, found.b))
    for key, numbers in theirs.items():
        others = ours.get(key, [])
        if len(others) * len(numbers) > _ALIKE:
            continue
        pairs = [(one, other) for one in others for other in numbers if _has_same_values(found, one, other)]
        left = _first_of_chain(found.a, {one for one, _ in pairs})
        right = _first_of_chain(found.b, {other for _, other in pairs})
        if len(left) == len(right) == 1:
            found.match(left[0], right[0], "values")


def _has_same_values(found: Alignment, one: int, other: int) -> bool:
    a, b = found.a.value(one), found.b.value(other)
    return a is not None and b is not None and is_close(a, b, tolerance_of(a.dtype, b.dtype))


def _first_of_chain(side: Side, numbers: set[int]) -> list[int]:
    """The operations that are given the value of no other of them: of `transpose` and the `contiguous` after it, the first."""
    return [number for number in numbers if numbers.isdisjoint(side.log.operations[number].dependencies)]


def _by_value(found: Alignment, side: Side) -> dict[Any, list[int]]:
    matched = found.of_a if side is found.a else found.of_b
    groups: dict[Any, list[int]] = defaultdict(list)
    for step in side.steps:
        if step.number not in matched:
            signature = side.value_signature(step.number)
            if signature is not None and signature[2] not in (0.0, 1.0):
                groups[step.shape, signature].append(step.number)
    return groups
