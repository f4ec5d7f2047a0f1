"""Joins the rounds of a loop that were told apart only by the layers that ran before the loop.

An example:

    y, z, h = self.f(x), self.g(x), torch.zeros_like(x)
    for _ in range(3):
        h = torch.sigmoid(h + y) * z

The first `add` is downstream of `f`, all others are downstream of `g`, because their `h` is. But `g` ran before the loop, so
this does not tell the rounds apart: the `add`s are one layer of three passes.

In `map(heads, (self.q(x), self.k(x)))` both layers ran before the first reshape, too. So operations at one place are only
joined if each argument was made by the same layer in every round; or, in the first round, by any layer, and in all others by
one layer that runs in every round: here `h`, which `zeros_like` made in the first round and `mul` in the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping

from ...records import Log
from .rounds import Passes, origin_of, used_by


def join_rounds(log: Log, first: list[int], nearest: list[int], places: Iterable[Mapping[int, int]]) -> set[int]:
    """Join layers, and return those that others were joined to.

    `first` has, by operation, the first one of its layer, and is changed; `nearest` the parameter-using operation that it is
    downstream of; `places` the layers that ran at each place.
    """
    candidates = _apart_before(first, nearest, places)
    if not candidates:
        return set()
    joined = _Joined(log, first, candidates)
    first[:] = joined.first
    return set(joined.passes)


def _apart_before(first: list[int], nearest: list[int], places: Iterable[Mapping[int, int]]) -> dict[int, list[int]]:
    """By layer: the others at its place that are downstream of layers which ran before it did."""
    at_one_place = [sorted({first[layer] for layer in here.values()}) for here in places if len(here) > 1]
    passes = _passes_of(first, {layer for layers in at_one_place if len(layers) > 1 for layer in layers})
    found: dict[int, list[int]] = {}
    seen: set[int] = set()
    for layers in at_one_place:
        head = layers[0]
        for layer in layers[1:]:
            rounds = passes[head]
            if not all(0 <= nearest[n] < rounds[bisect_left(rounds, n) - 1] for n in passes[layer]):
                head = layer
            elif head not in seen and layer not in seen:  # operations of one layer may have run at two places
                found.setdefault(head, []).append(layer)
        seen.update(layers)
    return found


def _passes_of(first: list[int], layers: Iterable[int]) -> Passes:
    """The operations of these layers."""
    found: Passes = {layer: [] for layer in layers}
    for number, layer in enumerate(first):
        if layer in found:
            found[layer].append(number)
    return found


class _Joined:
    """Joins all candidates, then splits those whose rounds differ, until nothing changes."""

    def __init__(self, log: Log, first: list[int], candidates: dict[int, list[int]]) -> None:
        self._log = log
        self._before = first
        heads = {layer: head for head, layers in candidates.items() for layer in layers}
        self.first = [heads.get(layer, layer) for layer in first]
        self.passes = _passes_of(self.first, candidates)
        self._count = Counter(self.first)
        self._used = {n: used_by(log, n) for numbers in self.passes.values() for n in numbers}
        users: defaultdict[int, set[int]] = defaultdict(set)  # by candidate: those that use it
        for number, used in self._used.items():
            for one in used:
                if one >= 0 and self.first[one] in self.passes:
                    users[self.first[one]].add(self.first[number])
        waiting = deque(self.passes)
        while waiting:
            head = waiting.popleft()
            if head in self.passes and not self._has_equal_rounds(head):
                self._part(head)
                waiting.extend(users[head])

    def _part(self, head: int) -> None:
        for number in self.passes.pop(head):
            layer = self._before[number]
            self.first[number] = layer
            self._count[head] -= 1
            self._count[layer] += 1

    def _has_equal_rounds(self, head: int) -> bool:
        numbers = self.passes[head]
        used = [self._used[number] for number in numbers]
        if len(set(map(len, used))) > 1:
            return False
        enters = [self._before[number] == head for number in numbers]
        return all(self._is_equal(values, enters, head) for values in zip(*used, strict=True))

    def _is_equal(self, values: tuple[int, ...], enters: list[bool], head: int) -> bool:
        """Whether one argument was made by the same layer in all rounds, except in first rounds of a loop."""
        made = [origin_of(self._log, self.first, value) for value in values]
        if len(set(made)) == 1:
            return True
        rest = [(value, layer) for value, layer, is_first in zip(values, made, enters, strict=True) if not is_first]
        if len({layer for _, layer in rest}) > 1:
            return False
        carried = rest[0][0]
        return carried > head and self._count[self.first[carried]] > 1
