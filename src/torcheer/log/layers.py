"""Decides which operations belong to a layer, and which operations are passes of the same layer.

Each part begins with a comment that explains it by an example: operations connected to an input or an output (all others are
orphans, without a layer); places in the program (`Places`); loops and calls side by side (`separate`); first rounds of loops
(`join_rounds`); and `Recurrence`, which applies these rules to a log. All of it takes time linear in the number of operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any

from torch import nn

from .._torch.functions.facts import Origin
from .._torch.source_code import CodeFacts, same_positions
from .records import FUNCTION, MODULE, NAMES, PARENTS, SITE, TEMPLATE, Log, ModuleCall


def connected_operations(log: Log) -> bytearray | None:
    """Mark each operation that is connected to an input or an output. Returns None if all operations are connected.

    Connected operations are those that depend on an input, the outputs, and all ancestors of these. A pass without input and
    output tensors (a pipeline: text in, pictures out) has no orphans.
    """
    found = input_descendants(log)
    if not _functions_of(log, Origin.INPUT, Origin.OUTPUT):
        _add(log, range(len(log.rows)), found)
    elif log.is_recording:
        _add_what_a_recording_shows(log, found)
    outputs = _functions_of(log, Origin.OUTPUT)
    for number in range(len(found) - 1, -1, -1):
        if log.rows[number][FUNCTION] not in outputs:
            break  # outputs come last
        found[number] = True
    unknown = {number for number, is_found in enumerate(found) if not is_found}
    also = {number: details.also for number, details in log.details.items() if details.also}
    for number in range(len(found) - 1, -1, -1):
        if not unknown:
            return None
        if not found[number]:
            continue
        used = log.rows[number][PARENTS:]
        if number in also:
            used += also[number]
        if not unknown.isdisjoint(used):
            for parent in unknown.intersection(used):
                found[parent] = True
                unknown.discard(parent)
    return found if unknown else None


def _add_what_a_recording_shows(log: Log, found: bytearray) -> None:
    """Mark in `found` the operations outside all modules, made by the recorded code itself, and the outputs of the models
    that this code called.

    For a model without input and output tensors, add all its operations.
    """
    _add(log, (number for number, row in enumerate(log.rows) if row[MODULE] < 0), found)
    for call in log.modules:
        if call.outer is None:
            for number in call.outputs:
                if number >= 0:
                    found[number] = True
            if not call.inputs and not call.outputs:
                _add(log, range(call.first, call.end), found)


def _add(log: Log, numbers: Iterable[int], found: bytearray) -> None:
    """Mark operations in `found`, except `log.hollow`: results of `torch.empty` without elements that no operation used."""
    for number in numbers:
        if number not in log.hollow:
            found[number] = True


def input_descendants(log: Log) -> bytearray:
    """Mark each operation that is an input or depends on an input."""
    inputs = _functions_of(log, Origin.INPUT)
    found = bytearray(len(log.rows))
    for number, row in enumerate(log.rows):
        if row[FUNCTION] in inputs:
            found[number] = True
            continue
        # quick check of the first parent: usually it depends on an input
        if len(row) > PARENTS and row[PARENTS] >= 0 and found[row[PARENTS]]:
            found[number] = True
            continue
        for parent in row[PARENTS + 1 :]:
            if parent >= 0 and found[parent]:
                found[number] = True
                break
        else:
            if number in log.details:
                found[number] = any(found[parent] for parent in log.details[number].also)
    return found


def output_ancestors(log: Log) -> bytearray:
    """Mark each operation that is an output or that an output depends on."""
    outputs = _functions_of(log, Origin.OUTPUT)
    found = bytearray(row[FUNCTION] in outputs for row in log.rows)
    for number in range(len(found) - 1, -1, -1):
        if found[number]:
            for parent in log.rows[number][PARENTS:]:
                if parent >= 0:
                    found[parent] = True
            if number in log.details:
                for parent in log.details[number].also:
                    found[parent] = True
    return found


def _functions_of(log: Log, *origins: Origin) -> set[int]:
    """The numbers of the functions with one of these origins."""
    return {number for number, function in enumerate(log.functions) if function.origin in origins}


class CallCounts:
    """Counts the calls of torch functions inside a module call.

    A call that made several tensors counts once. Inputs, sources and orphans do not count.
    """

    def __init__(self, log: Log, connected: bytearray | None) -> None:
        made = _functions_of(log, Origin.OPERATION, Origin.OPAQUE)
        uncounted = {number for number, row in enumerate(log.rows) if row[FUNCTION] not in made}
        uncounted.update(number for number, details in log.details.items() if 0 <= details.call < number)
        if connected is not None:
            uncounted.update(number for number, is_connected in enumerate(connected) if not is_connected)
        self._log = log
        self._outputs: dict[int, frozenset[int]] = {}
        self._uncounted = sorted(uncounted)

    def inside(self, call: ModuleCall) -> int:
        """The number of torch calls that ran inside `call`."""
        end = call.end if call.end >= 0 else len(self._log.rows)
        left_out = bisect_left(self._uncounted, end) - bisect_left(self._uncounted, call.first)
        return max(0, end - call.first - left_out)

    def is_alone(self, number: int, call: ModuleCall) -> bool:
        """True if the operation is the only one inside a module call, and the call returned its tensor."""
        if not call.first <= number < call.end or self.inside(call) != 1:
            return False
        outputs = self._outputs.get(call.number)
        if outputs is None:
            outputs = self._outputs[call.number] = frozenset(call.outputs)
        return number in outputs


# Finds the place in the program at which an operation ran: the module that owns the operation, and a position in its code.
#
# The owner is the innermost module with parameters. A module without parameters is treated as a function called where the
# module was called, so `self.act(x)` and `F.relu(x)` run at the same kind of place. In
#
#     def forward(self, x):           # of a model with parameters
#         x = self.act(self.fc1(x))   # line A
#         x = self.act(self.fc2(x))   # line B
#
# the two `relu` calls are both line 1 of `nn.ReLU.forward`, but `act` has no parameters, so the model owns them, and
# their places are "`act`, called from line A" and "`act`, called from line B".

_SEQUENTIAL = CodeFacts.of(nn.Sequential.forward.__code__)
_OUTSIDE = 0  # the chain of an operation that runs directly in its owner


def holders_of_parameters(log: Log) -> set[str]:
    """The addresses of modules that have a parameter, or a submodule with a parameter. Buffers do not count."""
    found: set[str] = set()
    for module in log.registered.values():
        if all(parameter is None for parameter in module.parameters.values()):
            continue
        for address in (module.address, *module.other_addresses):
            while address not in found:
                known = log.registered.get(address)
                found.add(address)
                if (known is not None and known.is_root) or not address:
                    break
                address = address.rpartition(".")[0]
    return found


class Owners:
    """Maps each module call to the call that owns the operations in it. Grows with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # For each call, its owner: among this call and the calls around it, the innermost call of a module with parameters; if
        # there is none, the model's call.
        self.calls: list[ModuleCall | None] = []
        self.holders: set[str] = set()  # the addresses of modules that have parameters
        self._registered = -1

    def catch_up(self) -> None:
        """Process module calls that the log has gained."""
        log = self._log
        if len(log.registered) != self._registered:
            self._registered = len(log.registered)
            self.holders = holders_of_parameters(log)
        for call in log.modules[len(self.calls) :]:
            if self.is_owner(call):
                self.calls.append(call)
            else:
                self.calls.append(self.calls[call.outer.number] if call.outer is not None else None)

    def is_owner(self, call: ModuleCall) -> bool:
        """True if a call owns the operations in it: its module has parameters, or is the model."""
        return call.address in self.holders or not call.address

    def address(self, call: int) -> str | None:
        """The address of the module that owns the operations in a module call (-1: in no call)."""
        owner = self.calls[call] if call >= 0 else None
        return owner.address if owner is not None else None


class Places:
    """Maps each module call to the chain of calls that leads from its owner to it. Grows with the log."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.owners = Owners(log)
        # For each call: a number, equal for calls reached through the same modules without parameters, called at the same
        # sites.
        self.chains: list[int] = []
        self.sites: list[int] = [-1]  # for each site: the first site at the same source position; last item: -1, for "no site"
        self._known: dict[tuple[int, str, int, int], int] = {}
        self._turns: dict[tuple[int, str, int], int] = {}  # how often one call of a Sequential ran the same module so far

    def catch_up(self) -> None:
        """Process module calls and sites that the log has gained."""
        log = self._log
        if len(self.sites) != len(log.sites) + 1:
            self.sites = same_positions(log.sites)
        self.owners.catch_up()
        for call in log.modules[len(self.chains) :]:
            if self.owners.is_owner(call):
                self.chains.append(_OUTSIDE)
            else:
                outer = self.chains[call.outer.number] if call.outer is not None else _OUTSIDE
                site = self.sites[call.site.number] if call.site is not None else -1
                step = (outer, self._name(call), site, self._position(call))
                self.chains.append(self._known.setdefault(step, len(self._known) + 1))

    def within(self, address: str | None, site: int, call: ModuleCall | None) -> int:
        """The site in the module at `address` that led, directly or through inner calls, to `site` in `call`; else -1."""
        while call is not None and call.address != address:
            site, call = call.site.number if call.site is not None else -1, call.outer
        return self.sites[site] if address is None or call is not None else -1

    def _name(self, call: ModuleCall) -> str:
        """The module's address. A module created during the pass, as in `nn.ReLU()(x)`, is named by its class instead."""
        root = self._log.root_of(call.address)
        if root is None or not root.is_made_running:
            return call.address
        return f"{root.class_name} made here{call.address[len(root.address) :]}"

    def _position(self, call: ModuleCall) -> int:
        """If an `nn.Sequential` has the module at several positions, return which of them this call runs, from 0; else 0."""
        outer, site = call.outer, call.site
        if outer is None or site is None or not site.codes or site.functions[0] != _SEQUENTIAL:
            return 0
        registered = self._log.registered[call.address]
        positions = [a for a in (call.address, *registered.other_addresses) if a.rpartition(".")[0] == outer.address]
        if len(positions) < 2:
            return 0
        key = (outer.number, call.address, site.number)
        turn = self._turns[key] = self._turns.get(key, -1) + 1
        return turn % len(positions)


# Distinguishes rounds of a loop from calls side by side, for operations without parameters that ran several times at one
# place.
#
# An example:
#
#     q, k, v = map(heads, self.to_qkv(x).chunk(3))   # `heads` reshapes: three reshapes at one place
#     for t in range(3):
#         h = torch.sin(h + x[t])                     # three getitems, adds and sins
#     for mask in (causal(h), padding(h)):
#         h = h * mask                                # two muls, with what was computed at two places
#
# Each `sin` depends on the previous `sin`, so this is a loop: `add` and `sin` are one layer of three passes each, and so
# is `getitem`, because each of its passes feeds a different `add`. The reshapes ran side by side, in one round: they are
# three layers. The `mul`s use values of different layers, like a loop over different blocks: two layers.
#
# Operations at one place are passes of one layer if each belongs to a different round. They do if one of these holds:
#
# 1. they are downstream of different parameter-using operations, such as the passes of a shared layer;
# 2. they depend on one another without a parameter-using operation between (a loop carries a value from round to round),
#    and their other arguments were made at one place. An operation that overwrites elements (`mask[i] = 1`) does not depend
#    on the old elements;
# 3. each uses, or is used by, a different pass of a layer whose passes are already known to be rounds.

_COVERS = frozenset({"setitem", "fill", "zero", "copy"})  # functions that overwrite elements without reading them
_GIVEN = frozenset({Origin.INPUT, Origin.SOURCE})
_ROUNDS = 4  # look at this many rounds of a loop: by then, every argument that carries a value has shown up

Passes = dict[int, list[int]]  # first operation of a layer -> the operations that are its passes


def separate(log: Log, first: list[int], nearest: list[int], decided: Collection[int]) -> None:
    """Make operations that ran side by side separate layers.

    `first` maps each operation to the first operation of its layer; it is changed in place. `nearest` maps each operation to
    the parameter-using operation that it is downstream of. The layers in `decided` stay as they are.
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
    """The layers with more than one pass."""
    found: Passes = {}
    for number, layer in enumerate(first):
        if layer >= 0 and layer != number:
            found.setdefault(layer, [layer]).append(number)
    return found


def used_by(log: Log, number: int) -> tuple[int, ...]:
    """The operations and states that an operation reads. An argument that it only overwrites does not count."""
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
    """Move passes of layers whose value a loop carries from `doubtful` to `known`. Passes of one kind become one layer."""
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
    """Maps each layer whose pass feeds a later pass of itself to the argument slots used.

    Paths through parameter-using operations do not count.
    """
    bits = {layer: 1 << place for place, layer in enumerate(doubtful)}
    unknown = (1 << len(bits)) - 1
    behind = [0] * len(first)  # for each operation: the layers it belongs to or depends on, as bits
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
    """Add argument slots that carry the value of another layer: all rounds except the first use that layer's result.

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
    """Return the origin of an argument: the number of a parameter or buffer, `"given"` for an input or source, else a layer."""
    if used < 0:
        return used
    if log.function_of(used).origin in _GIVEN:
        return "given"
    call = log.details[used].call if used in log.details else -1
    return first[call if call >= 0 else used]  # all tensors that one call returned have the same origin


def _over_different_things(log: Log, first: list[int], doubtful: Passes, carried: dict[int, set[int]]) -> set[int]:
    """Find the layers in loops over values of different layers: `for one in (sin(x), cos(x)): h = relu(h * one)`.

    In this example they are `mul`, and `relu`, which uses the result of `mul` in the same round.
    """
    found: set[int] = set()
    users: defaultdict[int, set[int]] = defaultdict(set)  # layer: the layers that receive its carried value
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
    """Maps each operation to a number, equal for operations of one layer whose arguments come from the same layers.

    Arguments that a loop carries are ignored, except in a loop over values of different layers.
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
    """Add to `known` passes that each use, or are used by, a different pass of a layer in `known`."""
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
        # Pair a pass with the last operation that it uses, or with its first user, not with a value that all rounds use.
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
    """Find the most passes that pair one to one with passes of another layer in `known`. Returns them and that layer."""
    pairs: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for number in passes:
        for other in sorted(beside[number], reverse=not latest):  # later items overwrite earlier ones
            if other in known:
                pairs[first[other]][number] = other
    fitting = [(list(pair), layer) for layer, pair in pairs.items() if 1 < len(pair) == len(set(pair.values()))]
    return max(fitting, key=lambda fit: len(fit[0]), default=([], -1))


def _with_entry(passes: list[int], uses: defaultdict[int, list[int]], paired: list[int], begins: set[int]) -> list[int]:
    """Add the pass of the first round, which uses the initial value, to `paired`: the passes that use the previous round.

    `while x.sum() < 30: x = x + 1`: the first `sum` uses the initial `x`, and every later `sum` the result of an `add`.
    """
    others = [number for number in passes if number not in paired]
    is_entry = len(others) == 1 and bool(paired) and others[0] < min(paired)
    return [*others, *paired] if is_entry and not begins.isdisjoint(uses[others[0]]) else paired


def _beginnings(log: Log, first: list[int], known: set[int]) -> defaultdict[int, set[int]]:
    """Maps each layer whose value a loop carries to the initial values that the first round uses instead."""
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
    """Maps each pass of these layers to the operations that it uses, and to the operations that use it."""
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


# Joins rounds of a loop that were separated only because they depend on different layers that ran before the loop.
#
# An example:
#
#     y, z, h = self.f(x), self.g(x), torch.zeros_like(x)
#     for _ in range(3):
#         h = torch.sigmoid(h + y) * z
#
# The first `add` is downstream of `f`; the later ones are downstream of `g`, because their `h` is. But `g` ran before the
# loop, so the difference says nothing about rounds: the `add`s are one layer of three passes.
#
# In `map(heads, (self.q(x), self.k(x)))`, too, both layers ran before the first reshape. So operations at one place
# are joined only if each argument was made by the same layer in every round; or, in the first round, by any layer,
# and in all later rounds by one layer that runs in every round: here `h`, which `zeros_like` made in the first round and
# `mul` in the later ones.


def join_rounds(log: Log, first: list[int], nearest: list[int], places: Iterable[Mapping[int, int]]) -> set[int]:
    """Join layers that are rounds of one loop. Returns the layers that absorbed others.

    `first` maps each operation to the first operation of its layer; it is changed in place. `nearest` maps each operation to
    the parameter-using operation that it is downstream of. `places` has the layers that ran at each place.
    """
    candidates = _apart_before(first, nearest, places)
    if not candidates:
        return set()
    joined = _Joined(log, first, candidates)
    first[:] = joined.first
    return set(joined.passes)


def _apart_before(first: list[int], nearest: list[int], places: Iterable[Mapping[int, int]]) -> dict[int, list[int]]:
    """Map a layer to the later layers at the same place that depend on layers which ran before the first layer."""
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
    """The operations of each of these layers."""
    found: Passes = {layer: [] for layer in layers}
    for number, layer in enumerate(first):
        if layer in found:
            found[layer].append(number)
    return found


class _Joined:
    """Joins all candidates, then splits those whose rounds have different arguments, until nothing changes."""

    def __init__(self, log: Log, first: list[int], candidates: dict[int, list[int]]) -> None:
        self._log = log
        self._before = first
        heads = {layer: head for head, layers in candidates.items() for layer in layers}
        self.first = [heads.get(layer, layer) for layer in first]
        self.passes = _passes_of(self.first, candidates)
        self._count = Counter(self.first)
        self._used = {n: used_by(log, n) for numbers in self.passes.values() for n in numbers}
        users: defaultdict[int, set[int]] = defaultdict(set)  # candidate: the candidates that use it
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
        """True if one argument was made by the same layer in all rounds, except in first rounds of a loop."""
        made = [origin_of(self._log, self.first, value) for value in values]
        if len(set(made)) == 1:
            return True
        rest = [(value, layer) for value, layer, is_first in zip(values, made, enters, strict=True) if not is_first]
        if len({layer for _, layer in rest}) > 1:
            return False
        carried = rest[0][0]
        return carried > head and self._count[self.first[carried]] > 1


# Groups operations into layers. A layer is one step of the computation; its passes are the operations that repeat the step.
#
# An example. In a model with the modules `fc`, `head` and one `act = nn.ReLU()`,
#
#     for _ in range(2):
#         x = self.act(self.fc(x))    # linear, relu, linear, relu
#     return self.act(self.head(x))   # linear, relu
#
# six operations are four layers. The `linear`s of `fc` used the same parameters: one layer of two passes. The first
# two `relu`s ran at the same place in the program, downstream of that one layer: one layer of two passes. `head` has
# other parameters, so its `linear` is another layer, and so is the last `relu`, which ran at another place. That all
# three ran in one module does not matter: a module without parameters is treated as a function called where the
# module was called (see `Places`).
#
# Operations of the same function, owned by modules of the same address, are one layer by the first of these rules that applies:
#
# 1. they used the same parameters, even if the parameters were overwritten in between; or each is the only operation of the
#    module and used other tensors in place of its parameters (`torch.func.functional_call`). But different parts of a
#    parameter (`p[:1]`, `p[1:]`) taken at different places are different layers;
# 2. they ran at the same place in the program, downstream of the same parameter-using layer; or their parents are passes of
#    the same layers.
#
# A tensor is downstream of the parameter-using operation that ran last among its ancestors. The first round of a loop, whose
# values come from before the loop, is joined to the later rounds if those are one layer: see `_enters`. Operations at one
# place in the same round, as `map` over three tensors makes them, are separate layers: see `separate`.

_MADE = (Origin.OPERATION, Origin.OPAQUE, Origin.ALIAS)


def nothing_repeats(log: Log) -> bool:
    """Quick check: True if every operation is certainly a layer of its own.

    That is so if no module was called twice, no two calls ran at one place, and no parameter was overwritten or used twice by
    one function.
    """
    if log.python_reads or any(call.call > 1 for call in log.modules):
        return False  # Python compiles the condition of a while loop twice; only `Places` knows that both are one place
    if any(details.mutated and _overwrites_parameter(log, number) for number, details in log.details.items()):
        return False
    several = sum(1 for number, details in log.details.items() if 0 <= details.call < number)
    places = [row[MODULE] << 32 | row[SITE] for row in log.rows if row[SITE] >= 0]
    if len(set(places)) != len(places) - several:
        return False
    if any(module.is_made_running for module in log.registered.values()):
        return False  # `nn.ReLU()(x)` in a loop is a new module each time
    states = [parent for row in log.rows for parent in row[PARENTS:] if parent < 0]
    if len(set(states)) == len(states):
        return True
    types = [function.type for function in log.functions]
    uses = [(types[row[FUNCTION]], parent) for row in log.rows for parent in row[PARENTS:] if parent < 0]
    return len(set(uses)) == len(uses)


def _overwrites_parameter(log: Log, number: int) -> bool:
    record = log.operations[number]
    slot = record.overwritten
    parent = record.parents[slot] if slot is not None else 0
    return parent < 0 and log.states[-1 - parent].is_parameter


class Recurrence:
    """Groups the operations of a log into layers. Can be extended while the log grows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.first: list[int] = []  # operation -> the first operation of its layer; -1 for an orphan
        self._nearest: list[int] = []  # operation -> the parameter-using operation it is downstream of, or itself; -1: none
        self._layers: dict[tuple[Any, ...], int] = {}  # key of a layer that uses parameters -> its first operation
        self._places: dict[tuple[Any, ...], dict[int, int]] = {}  # place -> its layers, by the layer they are downstream of
        self._behind: dict[int, int] = {}  # operation that overwrote a parameter -> that parameter
        self._by_parents: dict[tuple[Any, ...], list[int]] = {}  # owner, function and layers of the parents -> layers
        self._uses: dict[tuple[Any, ...], int] = {}  # function and the tensors used -> number of operations so far
        self._stand_ins: dict[tuple[Any, ...], int] = {}  # layers that used tensors in place of parameters not used so far
        self._parts: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # part of a parameter, or place that took a part -> layer key
        self._where = Places(log)

    def extend(self, connected: bytearray | None = None) -> None:
        """Process operations that the log has gained. With `connected` (a complete log), orphans get no layer."""
        log, first, nearest = self._log, self.first, self._nearest
        rows, details, layers = log.rows, log.details, self._layers
        kinds = [function.type if function.origin in _MADE else None for function in log.functions]
        is_parameter = [state.is_parameter for state in log.states]
        where = self._where
        where.catch_up()
        owners, chains, sites = where.owners.calls, where.chains, where.sites
        counts = CallCounts(log, connected)
        behind = self._behind
        for number in range(len(first), len(rows)):
            row = rows[number]
            if connected is not None and not connected[number]:
                first.append(-1)
                nearest.append(-1)
                continue
            latest = -1
            parameters: list[int] = []
            for parent in row[PARENTS:]:
                if parent < 0:
                    if is_parameter[-1 - parent]:
                        parameters.append(parent)
                elif nearest[parent] > latest:
                    latest = nearest[parent]
            path: tuple[Any, ...] = ()
            if number in details:
                detail = details[number]
                path = detail.output_path if detail.call >= 0 else ()
                for parent in detail.also:
                    latest = max(latest, nearest[parent])
                if detail.mutated:
                    self._note_overwritten(number, is_parameter)
            if behind:
                parameters += [behind[parent] for parent in row[PARENTS:] if parent in behind]
            nearest.append(number if parameters else latest)
            kind = kinds[row[FUNCTION]]
            if kind is None:  # an input, an output or a source
                first.append(number)
                continue
            module = row[MODULE]
            owner = owners[module] if module >= 0 else None
            what = (owner.address if owner is not None else None, kind, path)
            if parameters:
                used = self._use_of_parameters(number, what, parameters)
                layer = layers[used] if used in layers else self._used_first(number, what, used)
            elif owner is not None and self._replaces_parameters(number, owner, counts):
                if what not in layers:
                    layers[what] = self._stand_ins[what] = number
                layer = layers[what]
            else:
                chain = chains[module] if module >= 0 else 0
                layer = self._without_parameters(number, (*what, chain, sites[row[SITE]]), latest)
            first.append(layer)

    def _use_of_parameters(self, number: int, what: tuple[Any, ...], parameters: list[int]) -> tuple[Any, ...]:
        """Make the layer key of an operation that used parameters. Operations of one layer have equal keys."""
        function = self._log.function_of(number)
        used = (*what, *parameters)
        if function.origin is Origin.OPAQUE:  # several with the same parents are results of one stretch of unwatched code
            use = (used, self._log.rows[number][PARENTS:])
            turn = self._uses[use] = self._uses.get(use, -1) + 1
            return (*used, turn)
        if function.may_be_view:
            return self._part_of_parameter(number, used)
        return used

    def _part_of_parameter(self, number: int, used: tuple[Any, ...]) -> tuple[Any, ...]:
        """Make the layer key of a view of a parameter. The keys of `p[:1]` and `p[1:]` differ, unless both ran at one place."""
        row = self._log.rows[number]
        part = (*used, "part", repr((row[TEMPLATE], row[NAMES])))
        chain = self._where.chains[row[MODULE]] if row[MODULE] >= 0 else 0
        place = (*used, "place", chain, self._where.sites[row[SITE]])
        return self._parts.setdefault(part, self._parts.setdefault(place, part))

    def _used_first(self, number: int, what: tuple[Any, ...], used: tuple[Any, ...]) -> int:
        """Return the layer of the operation that first used these parameters, or tensors in place of them."""
        layer = self._layers[used] = self._stand_ins.pop(what, number)
        self._layers.setdefault(what, layer)
        return layer

    def _replaces_parameters(self, number: int, owner: ModuleCall, counts: CallCounts) -> bool:
        """True if a module with parameters ran only this operation, which used other tensors in place of the parameters.

        With `torch.func.functional_call` and cached parametrizations, a module's forward uses tensors that are not its inputs.
        """
        if not counts.is_alone(number, owner):
            return False
        given = owner.inputs
        return any(parent >= 0 and parent not in given for parent in self._log.rows[number][PARENTS:])

    def _note_overwritten(self, number: int, is_parameter: list[bool]) -> None:
        record = self._log.operations[number]
        slot = record.overwritten
        if slot is None:
            return
        parent = record.parents[slot]
        if parent < 0 and is_parameter[-1 - parent]:
            self._behind[number] = parent
        elif parent in self._behind:
            self._behind[number] = self._behind[parent]

    def _without_parameters(self, number: int, place: tuple[Any, ...], nearest: int) -> int:
        """The first operation of the layer that an operation without parameters belongs to."""
        parents = self._log.rows[number][PARENTS:]
        layers = tuple([self.first[parent] if parent >= 0 else parent for parent in parents])
        what = place[:-2]
        # If several operations of one function use the same tensors, the n-th matches the n-th of an earlier round.
        use = (*what, parents)
        turn = self._uses.get(use, 0)
        self._uses[use] = turn + 1
        alike = self._by_parents.setdefault((*what, layers), [])
        upstream = self.first[nearest] if nearest >= 0 else -1
        here = self._places.setdefault(place, {}) if place[-1] >= 0 else None
        known = here.get(upstream) if here is not None else None
        if known is None:
            known = alike[turn] if turn < len(alike) and layers != parents else number
            if here is not None:
                here[upstream] = known
        if turn == len(alike):
            alike.append(known)
        return known

    def settle(self) -> None:
        """Called for a complete log: join first rounds of loops to later rounds, separate operations that ran side by side."""
        self._join_first_rounds()
        joined = join_rounds(self._log, self.first, self._nearest, self._places.values())
        separate(self._log, self.first, self._nearest, joined.union(self._layers.values()))

    def _join_first_rounds(self) -> None:
        joined: dict[int, int] = {}
        for place, here in self._places.items():
            if len(here) == 2:
                first, rest = here.values()
                if first < rest and self._enters(first, rest, place[0]):
                    joined[rest] = first
        if joined:
            for number, layer in enumerate(self.first):
                while layer in joined:
                    layer = joined[layer]
                self.first[number] = layer

    def _enters(self, first: int, rest: int, address: str | None) -> bool:
        """True if `first` is the first round of a loop and `rest` the later rounds, not a loop over different blocks.

        In the first round the value comes from another place than in later rounds; a loop over blocks calls all from one place.
        """
        before, again = self._nearest[first], self._nearest[rest]
        is_repeated = self._passes[self.first[again]] > 1
        if before < 0:
            return is_repeated or len(self._run_from[address, self._called_from(again, address)]) == 1
        if self._passes[first] > 1 or not is_repeated:
            return False  # `first` is repeated itself; or the parameters before `rest` are used once
        return self._called_from(before, address) != self._called_from(again, address)

    @cached_property
    def _run_from(self) -> defaultdict[tuple[str | None, int], set[str | int]]:
        """Maps each module address and site in the module to the modules with parameters, and such layers, that ran there."""
        found: defaultdict[tuple[str | None, int], set[str | int]] = defaultdict(set)
        where, owners = self._where, self._where.owners
        for call in self._log.modules:
            if call.address in owners.holders and call.site is not None:
                address = owners.address(call.outer.number) if call.outer is not None else None
                found[address, where.within(address, call.site.number, call.outer)].add(call.address)
        for number, nearest in enumerate(self._nearest):
            if nearest == number:
                address = owners.address(self._log.rows[number][MODULE])
                found[address, self._called_from(number, address)].add(self.first[number])
        return found

    @cached_property
    def _passes(self) -> Counter[int]:
        return Counter(self.first)

    def _called_from(self, number: int, address: str | None) -> int:
        """The site in the module at `address` that led, directly or through inner calls, to an operation; else -1."""
        row = self._log.rows[number]
        return self._where.within(address, row[SITE], self._log.modules[row[MODULE]] if row[MODULE] >= 0 else None)
