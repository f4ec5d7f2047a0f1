"""Finds corresponding operations of two runs, or of two graphs of which only a saved page is left.

`match_steps` matches the operations of two sides by parameters, function, shape, wiring and values.

Operations that use parameters are matched first, as anchors: by module address and parameter values, even if modules have
other names or a block is missing. The short sequences between anchors are aligned by function, shape, address, arguments
and values. Remaining operations are matched by their parents, then by their values. An operation without a match is run as
part of the next matched operation.

`_move_gaps` moves gaps (runs of steps without a match) to module boundaries. If equal blocks follow each other, several
matchings are equally good. With a block of norm, attention and MLP deleted, the norm of the next block may be matched with
the norm of the deleted block, so that the gap begins in the middle of a block:

    a   norm3 | attn3 mlp3 norm4 | attn4        a   | norm3 attn3 mlp3 | norm4 attn4
    b   norm3 |                  | attn4   →    b   |                  | norm3 attn4

A gap can be moved as long as the step that enters it equals the step that leaves it. It is put where it cuts the fewest
module calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from .._cleanup import pass_interrupts_on

Signature = tuple[int, float, float]  # a tensor's size, and a sum and a maximum that rounding and transposition do not change

_LARGEST = 250_000  # sequences are aligned by a table of at most this many cells; longer sequences are divided first
_LEFT_OUT = 500  # the longest common sequence of two long sequences is used only if fewer steps than this are left out
_ALIKE = 16  # operations with equal values are not matched if they would form more pairs than this
_SEQUENCE = "sequence"  # the reason for a match by order alone
_SAME_CONTENT, _SAME_ADDRESS = 2.4, 1.25  # scores: two swapped layers keep their places, but layers after a missing block move
_MOST = 4  # gaps are moved in at most this many rounds, because a moved gap may join its neighbour and move again


@dataclass(slots=True, eq=False)
class Step:
    """One operation, input or output, with the features by which it is recognised."""

    number: int
    type: str
    shape: tuple[int, ...]  # steps of other shapes never match; empty if shapes do not count
    address: str  # address of its module, in the names of the other side
    call: int
    calls: tuple[int, ...]  # the numbers of the module calls around it, outermost first
    states: tuple[Any, ...]  # its parameters and buffers
    leaves: tuple[str, ...]  # classes and addresses of the modules whose output it is
    parents: tuple[int, ...]  # the operations it reads, argument by argument; negative numbers are parameters and buffers
    dependencies: tuple[int, ...]  # the operations it depends on, also through shared memory
    role: str = ""  # position of an input or output
    path: Any = None  # path to its tensor among several results of one call
    is_commutative: bool = False

    @property
    def token(self) -> tuple[str, tuple[int, ...]]:
        return self.type, self.shape


class Side(ABC):
    """One of the two sides that are matched: its operations in order of execution, and what is known of their values."""

    def __init__(self, every: Iterable[Step], inputs: list[int], outputs: list[int]) -> None:
        self.every = {step.number: step for step in every}
        self.inputs, self.outputs = inputs, outputs
        ends = {*inputs, *outputs}
        self.steps = [step for step in self.every.values() if step.number not in ends]

    @abstractmethod
    def content(self, step: Step) -> tuple[Signature, ...]:
        """The signatures of a step's parameters and buffers."""

    @abstractmethod
    def value_signature(self, number: int) -> Signature | None:
        """The signature of an activation; None if the activation is not known."""

    @abstractmethod
    def arguments(self, number: int) -> Any:
        """The arguments of a call without its tensors, to compare."""


AnySide = TypeVar("AnySide", bound=Side)


@dataclass(slots=True)
class Matching(Generic[AnySide]):
    """The pairs of corresponding operations, with the reason for each match."""

    a: AnySide
    b: AnySide
    of_b: dict[int, int] = field(default_factory=dict)  # number in `b` -> number in `a`
    of_a: dict[int, int] = field(default_factory=dict)
    because: dict[int, str] = field(default_factory=dict)  # number in `b` -> reason

    def match(self, a: int, b: int, why: str) -> None:
        if a not in self.of_a and b not in self.of_b:
            self.of_a[a], self.of_b[b], self.because[b] = b, a, why

    def drop(self, b: int) -> None:
        self.because.pop(b)
        self.of_a.pop(self.of_b.pop(b))

    def has_same_values(self, a: int, b: int) -> bool:
        """True if two operations with equal signatures have equal values, as far as is known."""
        return True

    def is_doubtful(self, b: int) -> bool:
        """True if the values of a match are known to differ."""
        one, other = self.a.value_signature(self.of_b[b]), self.b.value_signature(b)
        return one is not None and other is not None and not _same_value(one, other)


def match_steps(found: Matching[Any]) -> None:
    """Match the operations of two sides."""
    a, b = found.a, found.b
    for ours, theirs in ((a.inputs, b.inputs), (a.outputs, b.outputs)):
        _match_in_order(found, ours, theirs)
    _align_around(found, a.steps, b.steps, _anchors(a, b), _align_stretch)
    _move_gaps(found)
    _match_what_is_left(found)
    _match_crossed(found)


def _align_around(
    found: Matching[Any],
    ours: list[Step],
    theirs: list[Step],
    anchors: Iterable[tuple[int, int, str]],
    align_between: Callable[[Matching[Any], list[Step], list[Step]], None],
) -> None:
    """Match pairs of indices that increase in both sequences, and align the steps between them."""
    last_a = last_b = 0
    for at_a, at_b, why in anchors:
        align_between(found, ours[last_a:at_a], theirs[last_b:at_b])
        found.match(ours[at_a].number, theirs[at_b].number, why)
        last_a, last_b = at_a + 1, at_b + 1
    align_between(found, ours[last_a:], theirs[last_b:])


def _match_in_order(found: Matching[Any], ours: list[int], theirs: list[int]) -> None:
    """Match inputs or outputs of equal shape: by name if both histories have names, then in order."""
    named = {found.b.every[number].role: number for number in theirs}
    for number in ours:
        role = found.a.every[number].role
        twin = named.get(role, -1) if "'" in role or '"' in role or role.isidentifier() else -1
        if twin >= 0 and found.a.every[number].shape == found.b.every[twin].shape:
            found.match(number, twin, "name")
    ours, theirs = [n for n in ours if n not in found.of_a], [n for n in theirs if n not in found.of_b]
    shapes = defaultdict(list)
    for number in ours:
        shapes[found.a.every[number].shape].append(number)
    for number in theirs:
        same = shapes[found.b.every[number].shape]
        if same:
            found.match(same.pop(0), number, "position")


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
    """Group the indices of steps by key. Steps with an empty key are left out."""
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


def _align_stretch(found: Matching[Any], ours: list[Step], theirs: list[Step]) -> None:
    if not ours or not theirs:
        return
    if len(ours) == len(theirs) and all(a.token == b.token for a, b in zip(ours, theirs, strict=True)):
        for a, b in zip(ours, theirs, strict=True):
            found.match(a.number, b.number, _SEQUENCE)
    elif len(ours) * len(theirs) <= _LARGEST:
        _align_table(found, ours, theirs)
    else:
        _divide(found, ours, theirs)


def _divide(found: Matching[Any], ours: list[Step], theirs: list[Step]) -> None:
    """Align a long sequence: first the steps that occur equally often in both histories, then the steps between them."""
    pairs: list[tuple[int, int, float]] = []
    for key in (lambda step: (step.token, step.address, step.call), lambda step: step.token):
        pairs = pairs or [(one, other, 1.0) for one, other, _ in _pairs(_grouped(ours, key), _grouped(theirs, key))]
    if not pairs:  # every function runs more often in one history
        pairs = _in_common(ours, theirs) or _ends_that_agree(ours, theirs)
    anchors = ((*pair, _SEQUENCE) for pair in heaviest_increasing(pairs))
    _align_around(found, ours, theirs, anchors, _align_piece)


def _align_piece(found: Matching[Any], ours: list[Step], theirs: list[Step]) -> None:
    if len(ours) * len(theirs) <= _LARGEST:
        _align_stretch(found, ours, theirs)


def _in_common(ours: list[Step], theirs: list[Step]) -> list[tuple[int, int, float]]:
    """The longest common sequence of functions and shapes, if few steps are left out (the algorithm of Myers)."""
    a, b = [step.token for step in ours], [step.token for step in theirs]
    reached, before = {1: 0}, []  # number of steps by which `a` is ahead of `b` -> the furthest step of `a`
    for count in range(_LEFT_OUT):
        before.append(reached.copy())
        for ahead in range(-count, count + 1, 2):
            x = _entered(reached, ahead, count)[0]
            while x < len(a) and x - ahead < len(b) and a[x] == b[x - ahead]:
                x += 1
            reached[ahead] = x
            if x == len(a) and x - ahead == len(b):
                return _way_back(before, x, ahead)
    return []


def _entered(reached: dict[int, int], ahead: int, count: int) -> tuple[int, int]:
    """Return the step of `a` at which a path goes on after one more step was left out, and how far `a` was ahead before."""
    if ahead == -count or (ahead != count and reached[ahead - 1] < reached[ahead + 1]):
        return reached[ahead + 1], ahead + 1
    return reached[ahead - 1] + 1, ahead - 1


def _way_back(before: list[dict[int, int]], x: int, ahead: int) -> list[tuple[int, int, float]]:
    pairs = []
    for count in range(len(before) - 1, -1, -1):
        start, from_ahead = _entered(before[count], ahead, count)
        pairs += [(at, at - ahead, 1.0) for at in range(x - 1, start - 1, -1)]
        x, ahead = before[count][from_ahead], from_ahead
    return pairs


def _ends_that_agree(ours: list[Step], theirs: list[Step]) -> list[tuple[int, int, float]]:
    short = min(len(ours), len(theirs))
    head = next((n for n in range(short) if ours[n].token != theirs[n].token), short)
    tail = next((n for n in range(short - head) if ours[-1 - n].token != theirs[-1 - n].token), short - head)
    last = [(len(ours) - 1 - n, len(theirs) - 1 - n, 1.0) for n in range(tail)]
    return [*((n, n, 1.0) for n in range(head)), *last]


def _align_table(found: Matching[Any], ours: list[Step], theirs: list[Step]) -> None:
    """Match two short sequences, in order, so that the sum of scores is largest."""
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


def _likeness(found: Matching[Any], a: Step, b: Step) -> float:
    """A score for how likely two steps correspond; 0 if they cannot."""
    if a.shape != b.shape or bool(a.states) != bool(b.states):
        return 0.0
    same_value = _same_value(found.a.value_signature(a.number), found.b.value_signature(b.number))
    if a.type != b.type:
        leaves = 1.0 if a.leaves and set(a.leaves) & set(b.leaves) else 0.0
        return 2 * leaves + same_value
    score = 4.0 + same_value + (2.0 if a.address == b.address and a.call == b.call else 0.0)
    return score + _same_arguments(found, a.number, b.number)


def _same_value(one: Signature | None, other: Signature | None) -> float:
    """Score two values: 4 if their signatures are equal, 1 if they are close, else 0."""
    if one is None or other is None:
        return 0.0
    if one == other:
        return 4.0
    return 1.0 if math.isclose(one[1], other[1], rel_tol=0.02) and math.isclose(one[2], other[2], rel_tol=0.1) else 0.0


def _same_arguments(found: Matching[Any], a: int, b: int) -> float:
    try:
        return 1.0 if bool(found.a.arguments(a) == found.b.arguments(b)) else 0.0
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return 0.0


# Remaining operations ---------------------------------------------------------------------------------------------


def _match_what_is_left(found: Matching[Any]) -> None:
    _match_by_wiring(found)
    _match_by_values(found)
    _match_by_wiring(found)


def _match_crossed(found: Matching[Any]) -> None:
    """Match differing operations again if only their order matched them: they may run in another order.

        a  q, k, v = qkv(x).chunk(3); q, k, v = heads(q), heads(k), heads(v)
        b  v, k, q = heads(v(x)), heads(k(x)), heads(q(x))       the first `heads` of b are the last of a

    If neither wiring nor values decide, the order does.
    """
    doubted = [
        (found.of_b[step.number], step.number)
        for step in found.b.steps
        if not step.states and found.because.get(step.number) == _SEQUENCE
        if found.is_doubtful(step.number)
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


def _match_by_wiring(found: Matching[Any]) -> None:
    """Match calls of the same function on the same parents."""
    free: dict[Any, list[int]] = defaultdict(list)
    for step in found.a.steps:
        if step.number not in found.of_a:
            free[_wiring(found.a, step, lambda number: number)].append(step.number)
    if not free:
        return
    for step in found.b.steps:
        if step.number in found.of_b:
            continue
        key = _wiring(found.b, step, lambda number: found.of_b.get(number, -1))
        if key is not None and free.get(key):
            found.match(free[key].pop(0), step.number, "wiring")


def _wiring(side: Side, step: Step, in_a: Callable[[int], int]) -> Any:
    """Return a key made of a step's function and its parents, as numbers in `a`. None if a parent has no match."""
    parents = [in_a(parent) for parent in step.parents if parent >= 0]
    if -1 in parents:
        return None
    content = side.content(step) if step.states else ()
    given = tuple(sorted(parents)) if step.is_commutative else tuple(parents)
    return step.type, step.shape, step.path, given, content


def _match_by_values(found: Matching[Any]) -> None:
    """Match operations with equal values, if no other operations have these values (except operations that only pass them
    on).
    """
    ours, theirs = (_by_value(found, side) for side in (found.a, found.b))
    for key, numbers in theirs.items():
        others = ours.get(key, [])
        if len(others) * len(numbers) > _ALIKE:
            continue
        pairs = [(one, other) for one in others for other in numbers if found.has_same_values(one, other)]
        left = _first_of_chain(found.a, {one for one, _ in pairs})
        right = _first_of_chain(found.b, {other for _, other in pairs})
        if len(left) == len(right) == 1:
            found.match(left[0], right[0], "values")


def _first_of_chain(side: Side, numbers: set[int]) -> list[int]:
    """Return the operations that depend on no other operation of the set: of `x.transpose().contiguous()`, the `transpose`."""
    return [number for number in numbers if numbers.isdisjoint(side.every[number].dependencies)]


def _by_value(found: Matching[Any], side: Side) -> dict[Any, list[int]]:
    matched = found.of_a if side is found.a else found.of_b
    groups: dict[Any, list[int]] = defaultdict(list)
    for step in side.steps:
        if step.number not in matched:
            signature = side.value_signature(step.number)
            if signature is not None and signature[2] not in (0.0, 1.0):
                groups[step.shape, signature].append(step.number)
    return groups


# Gaps ---------------------------------------------------------------------------------------------------------------


def _move_gaps(found: Matching[Any]) -> None:
    """Move every gap, in both histories, so that it covers whole module calls."""
    for side in (found.a, found.b):
        for _ in range(_MOST):
            moved = [_move(found, side, start, end) for start, end in _gaps(found, side)]
            if not any(moved):
                break


def _gaps(found: Matching[Any], side: Side) -> Iterator[tuple[int, int]]:
    """The gaps, as (first index, index after the last)."""
    matched = found.of_a if side is found.a else found.of_b
    end = 0
    for start in range(len(side.steps)):
        if start < end or side.steps[start].number in matched:
            continue
        end = start
        while end < len(side.steps) and side.steps[end].number not in matched:
            end += 1
        yield start, end


def _move(found: Matching[Any], side: Side, start: int, end: int) -> bool:
    """Move the gap from `start` to before `end` to a better position, if there is one. Returns True if it was moved."""
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


def _are_alike(found: Matching[Any], side: Side, matched: Step, free: Step) -> bool:
    """True if the unmatched step `free` could take over the match of another step."""
    is_matched = matched.number in (found.of_a if side is found.a else found.of_b)
    if not is_matched or matched.token != free.token:
        return False
    return len(matched.states) == len(free.states) and side.content(matched) == side.content(free)


def _rematch(found: Matching[Any], side: Side, matched: int, free: int) -> None:
    if side is found.a:
        other = found.of_a[matched]
        found.drop(other)
        found.match(free, other, "sequence")
    else:
        other = found.of_b[matched]
        found.drop(matched)
        found.match(other, free, "sequence")


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
    """Return the module calls around a step. For a position before or after all steps: the calls that contain all steps."""
    if 0 <= place < len(side.steps):
        return side.steps[place].calls
    return tuple(sorted(set(side.steps[0].calls) & set(side.steps[-1].calls)))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The number of module calls that contain both steps."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((depth for depth, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))
