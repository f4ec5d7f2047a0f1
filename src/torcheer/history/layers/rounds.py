"""Tells rounds of a loop from calls side by side, for operations without parameters that ran several times at one place.

An example:

    q, k, v = map(heads, self.to_qkv(x).chunk(3))   # `heads` reshapes: three reshapes at one place
    for t in range(3):
        h = torch.sin(h + x[t])                     # three getitems, adds and sins
    for mask in (causal(h), padding(h)):
        h = h * mask                                # two muls, with what was computed at two places

Each `sin` depends on the one before, so this is a loop: `add` and `sin` are one layer of three passes each, and so is
`getitem`, of which every pass is used by another `add`. The reshapes ran side by side, in one round: they are three layers.
The `mul`s are rounds over different things, like rounds over different blocks: two layers.

Operations at one place are passes of one layer if each belongs to a different round. That is known where

1. they are downstream of different parameter-using operations, such as the passes of a shared layer;
2. they depend on one another without such an operation between (a loop carries a value from round to round), and their other
   arguments were made at one place. An operation that writes over elements (`mask[i] = 1`) does not depend on the old ones;
3. each is used by, or uses, a different pass of a layer of which this is known.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable

from ...records import PARENTS, Log, Origin

_COVERS = frozenset({"setitem", "fill", "zero", "copy"})  # write without reading what was there
_GIVEN = frozenset({Origin.INPUT, Origin.SOURCE})
_ROUNDS = 4  # rounds of a loop after which everything that it carries has been seen

Passes = dict[int, list[int]]  # by the first operation of a layer


def separate(log: Log, first: list[int], nearest: list[int], decided: Collection[int]) -> None:
    """Make operations that ran side by side separate layers.

    `first` has, by operation, the first one of its layer, and is changed; `nearest` the parameter-using operation that it is
    downstream of. The layers in `decided` stay as they are.
    """
    repeated = _repeated(first)
    doubtful = {
        layer: passes
        for layer, passes in repeated.items()
        if layer not in decided and len({nearest[number] for number in passes}) < len(passes)
    }
    if not doubtful:
        return
    known = {number for layer, passes in repeated.items() if layer not in doubtful for number in passes}
    _know_loops(log, first, nearest, doubtful, known)
    if not doubtful:
        return
    _follow(log, first, doubtful, known)
    for passes in doubtful.values():
        turns: Counter[int] = Counter()
        layers: dict[int, int] = {}
        for number in passes:
            turn = 0
            if number not in known:
                turns[nearest[number]] += 1
                turn = turns[nearest[number]]
            first[number] = layers.setdefault(turn, number)


def _repeated(first: list[int]) -> Passes:
    """The layers of more than one pass."""
    found: Passes = {}
    for number, layer in enumerate(first):
        if layer >= 0 and layer != number:
            found.setdefault(layer, [layer]).append(number)
    return found


def used_by(log: Log, number: int) -> tuple[int, ...]:
    """The operations and states that an operation depends on, without those that it only writes over."""
    used: tuple[int, ...] = log.rows[number][PARENTS:]
    if number not in log.details:
        return used
    detail = log.details[number]
    if detail.mutated and log.function_of(number).type in _COVERS:
        slot = log.operations[number].overwritten
        if slot is not None:
            return used[:slot] + used[slot + 1 :]
    return used + detail.also


def _know_loops(log: Log, first: list[int], nearest: list[int], doubtful: Passes, known: set[int]) -> None:
    """Move the passes of layers whose value a loop carries from `doubtful` to `known`, those of one kind as one layer."""
    carried = _carried(log, first, nearest, doubtful)
    _add_other_loops(log, first, doubtful, carried)
    kinds = _kinds(log, first, doubtful, carried, _over_different_things(log, first, doubtful, carried))
    for layer in carried:
        alike: defaultdict[int, list[int]] = defaultdict(list)
        for number in doubtful.pop(layer):
            alike[kinds[number]].append(number)
        for passes in alike.values():
            if len(passes) > 1:
                known.update(passes)
                for number in passes:
                    first[number] = passes[0]
        alone = [passes[0] for passes in alike.values() if len(passes) == 1]
        if alone:
            doubtful[layer] = alone


def _carried(log: Log, first: list[int], nearest: list[int], doubtful: Passes) -> dict[int, set[int]]:
    """The layers of which a pass depends on another, without a parameter-using operation between; and by which arguments."""
    bits = {layer: 1 << place for place, layer in enumerate(doubtful)}
    unknown = (1 << len(bits)) - 1
    behind = [0] * len(first)  # by operation: the bits of the layers it belongs to or depends on
    found: dict[int, set[int]] = {}
    rounds: Counter[int] = Counter()
    for number in range(min(doubtful), len(first)):
        layer, here = first[number], nearest[number]
        own, before = bits.get(layer, 0), 0
        for slot, parent in enumerate(used_by(log, number)):
            if parent >= 0 and nearest[parent] == here:
                before |= behind[parent]
                if own & behind[parent]:
                    found.setdefault(layer, set()).add(slot)
        if own & before:
            rounds[layer] += 1
            if rounds[layer] == _ROUNDS:
                unknown &= ~own
                if not unknown:
                    break
        behind[number] = (before | own) & unknown
    return found


def _add_other_loops(log: Log, first: list[int], doubtful: Passes, carried: dict[int, set[int]]) -> None:
    """Add arguments that carry the value of another layer: all rounds but the first use what that layer made.

    `a, b = torch.sin(a + b), torch.cos(b * 2)`: the second argument of `add` is `b`, which does not depend on `add`.
    """
    for layer, slots in carried.items():
        begin, *rest = (used_by(log, number) for number in doubtful[layer])
        for slot, values in enumerate(zip(begin, *rest, strict=False)):
            made = {origin_of(log, first, value) for value in values[1:]}
            is_carried = min(values[1:]) > layer and len(made) == 1 and made <= doubtful.keys()
            if is_carried and origin_of(log, first, values[0]) not in made:
                slots.add(slot)


def origin_of(log: Log, first: list[int], used: int) -> Hashable:
    """Where an argument comes from: a parameter or buffer, an input, or a layer."""
    if used < 0:
        return used
    if log.function_of(used).origin in _GIVEN:
        return "given"
    call = log.details[used].call if used in log.details else -1
    return first[call if call >= 0 else used]  # all that one call returned counts as one


def _over_different_things(log: Log, first: list[int], doubtful: Passes, carried: dict[int, set[int]]) -> set[int]:
    """The layers in loops over values of different layers: `for one in (sin(x), cos(x)): h = relu(h * one)`.

    Here these are `mul`, and `relu`, which uses the result of `mul` in the same round.
    """
    found: set[int] = set()
    users: defaultdict[int, set[int]] = defaultdict(set)  # by layer: those that it carries something to
    for layer, slots in carried.items():
        passes = doubtful[layer]
        made_before: defaultdict[int, set[Hashable]] = defaultdict(set)
        for number in passes:
            for slot, one in enumerate(used_by(log, number)):
                if slot in slots:
                    users[first[one]].add(layer)
                elif one < passes[0]:
                    made_before[slot].add(origin_of(log, first, one))
        if any(len(origins) > 1 for origins in made_before.values()):
            found.add(layer)
    waiting = deque(found)
    while waiting:
        more = users[waiting.popleft()] - found
        found |= more
        waiting.extend(more)
    return found


def _kinds(
    log: Log, first: list[int], doubtful: Passes, carried: dict[int, set[int]], different: Collection[int]
) -> dict[int, int]:
    """By operation: a number for its layer and the layers of its arguments, without those that a loop carries.

    A value that a loop over different things carries is of another kind in every round.
    """
    kinds: dict[int, int] = {}
    numbers: dict[Hashable, int] = {}

    def origin(used: int) -> Hashable:
        return ("kind", kinds[used]) if used in kinds else origin_of(log, first, used)

    for number in sorted(number for passes in doubtful.values() for number in passes):
        layer = first[number]
        over = carried.get(layer, ())
        used = [
            one
            for slot, one in enumerate(used_by(log, number))
            if (slot not in over or first[one] in different) and (one < 0 or first[one] != layer)
        ]
        kinds[number] = numbers.setdefault((layer, frozenset(map(origin, used))), len(numbers))
    return kinds


def _follow(log: Log, first: list[int], doubtful: Passes, known: set[int]) -> None:
    """Add to `known` the passes that each use, or are used by, another pass of a layer whose passes are known to be rounds."""
    uses, users = _neighbours(log, first, doubtful)
    begins = _beginnings(log, first, known)
    waiting = deque(doubtful)
    settled: set[int] = set()
    while waiting:
        layer = waiting.popleft()
        if layer in settled:
            continue
        passes = doubtful[layer]
        using, layer_used = _paired(passes, uses, first, known, latest=True)
        # a pass is paired with the last operation it uses, or with its first user: not with a value that all rounds use
        following = max(
            _with_entry(passes, uses, using, begins[layer_used]),
            _paired(passes, users, first, known, latest=False)[0],
            key=len,
        )
        if following:
            settled.add(layer)
            known.update(following)
            beside = (first[other] for number in following for other in (*uses[number], *users[number]))
            waiting.extend(dict.fromkeys(one for one in beside if one in doubtful))


def _paired(
    passes: list[int], beside: defaultdict[int, list[int]], first: list[int], known: set[int], *, latest: bool
) -> tuple[list[int], int]:
    """The largest set of passes that each pair with a different pass of one other layer, and that layer."""
    pairs: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for number in passes:
        for other in sorted(beside[number], reverse=not latest):  # the last one is kept
            if other in known:
                pairs[first[other]][number] = other
    fitting = [(list(pair), layer) for layer, pair in pairs.items() if 1 < len(pair) == len(set(pair.values()))]
    return max(fitting, key=lambda fit: len(fit[0]), default=([], -1))


def _with_entry(passes: list[int], uses: defaultdict[int, list[int]], paired: list[int], begins: set[int]) -> list[int]:
    """The passes that use the value of the round before, and the pass of the first round, which uses the initial value.

    `while x.sum() < 30: x = x + 1`: the first `sum` uses what the loop begins with, and every other one what an `add` made.
    """
    others = [number for number in passes if number not in paired]
    is_entry = len(others) == 1 and bool(paired) and others[0] < min(paired)
    return [*others, *paired] if is_entry and not begins.isdisjoint(uses[others[0]]) else paired


def _beginnings(log: Log, first: list[int], known: set[int]) -> defaultdict[int, set[int]]:
    """By layer whose value a loop carries: the initial values, which are used in its place in the first round."""
    rounds: defaultdict[int, list[int]] = defaultdict(list)
    for number in sorted(known):
        rounds[first[number]].append(number)
    found: defaultdict[int, set[int]] = defaultdict(set)
    for passes in rounds.values():
        if len(passes) > 1:
            for begins, carried in zip(used_by(log, passes[0]), used_by(log, passes[1]), strict=False):
                if begins != carried and carried in known:
                    found[first[carried]].add(begins)
    return found


def _neighbours(
    log: Log, first: list[int], doubtful: Passes
) -> tuple[defaultdict[int, list[int]], defaultdict[int, list[int]]]:
    """By pass of these layers: the operations that it uses, and those that use it."""
    uses: defaultdict[int, list[int]] = defaultdict(list)
    users: defaultdict[int, list[int]] = defaultdict(list)
    for number, layer in enumerate(first):
        if layer < 0:
            continue
        used = [parent for parent in used_by(log, number) if parent >= 0]
        if layer in doubtful:
            uses[number] = used
        for parent in used:
            if first[parent] in doubtful:
                users[parent].append(number)
    return uses, users
