"""Which operations are the same layer: the same computational step across repeated execution.

An example. In a model with the modules `fc`, `head` and one `act = nn.ReLU()`,

    for _ in range(2):
        x = self.act(self.fc(x))    # linear, relu, linear, relu
    return self.act(self.head(x))   # linear, relu

six operations are four layers. The `linear`s of `fc` used the same parameters: one layer of two passes. The first two `relu`s
ran at the same place in the program, downstream of that one layer: one layer of two passes. `head` has other parameters, so
its `linear` is another layer, and so is the last `relu`, which ran at another place. That all three ran in one module does
not matter: a module without parameters is treated as a function called where the module was called (places.py).

The rules, in this order, for operations of the same function whose owners are the module of the same address:

1. what used the same parameters, also where something was written over them in between; or what stood in for a module's
   parameters in its only operation (`torch.func.functional_call`); but different parts of a parameter (`p[:1]`, `p[1:]`) that
   were taken at different places are different layers;
2. what ran at the same place in the program, downstream of the same parameter-using layer; or whose parents are in the
   same layers, where those are repeated themselves.

A tensor is downstream of the parameter-using operation that ran last among its ancestors. A first iteration joins the rest,
when the rest is one layer, if it is how a loop is entered and not the first of several rounds over different blocks: see
`_enters`. What ran at one place in the same round, as `map` over three tensors does, is several layers: see rounds.py. All
this is linear in the number of operations.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cached_property
from typing import Any

from ...records import FUNCTION, MODULE, NAMES, PARENTS, SITE, TEMPLATE, Log, ModuleCall, Origin
from .before_loops import join_rounds
from .connection import CallCounts
from .places import Places
from .rounds import separate

_MADE = (Origin.OPERATION, Origin.OPAQUE, Origin.ALIAS)


def nothing_repeats(log: Log) -> bool:
    """A quick check: whether every operation is certainly a layer of its own.

    It is, if no module was called twice, nothing ran twice at one place, and no parameter was overwritten or used twice by one
    function.
    """
    if log.python_reads or any(call.call > 1 for call in log.modules):
        return False  # the condition of a while loop is compiled twice; a second look tells that it is one place
    if any(details.mutated and _overwrites_parameter(log, number) for number, details in log.details.items()):
        return False
    several = sum(1 for number, details in log.details.items() if 0 <= details.call < number)
    places = [row[MODULE] << 32 | row[SITE] for row in log.rows if row[SITE] >= 0]
    if len(set(places)) != len(places) - several:
        return False
    if any(module.is_made_running for module in log.registered.values()):
        return False  # `nn.ReLU()(x)` in a loop is a module of its own each time
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
    """Groups the operations of a log. Can be extended while the log grows."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.first: list[int] = []  # by operation: the first operation of its layer; -1 for one that is not shown
        self._nearest: list[int] = []  # by operation: the parameter-using operation it is downstream of, or itself; -1: none
        self._layers: dict[tuple[Any, ...], int] = {}  # what makes operations the same layer -> the first of them
        self._places: dict[tuple[Any, ...], dict[int, int]] = {}  # place -> its layers, by the layer they are downstream of
        self._behind: dict[int, int] = {}  # operations that overwrote a parameter -> that parameter
        self._by_parents: dict[tuple[Any, ...], list[int]] = {}  # the layers of their parents -> the layers of operations
        self._uses: dict[tuple[Any, ...], int] = {}  # how many operations of one function used the same tensors
        self._stand_ins: dict[tuple[Any, ...], int] = {}  # layers that used tensors in place of parameters not used so far
        self._parts: dict[tuple[Any, ...], tuple[Any, ...]] = {}  # parts of parameters, and places where some were taken
        self._where = Places(log)

    def extend(self, connected: bytearray | None = None) -> None:
        """Take in the operations that are new in the log; of a complete log only those that are connected."""
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
        """The key that is equal for operations of one layer, of those that used parameters."""
        function = self._log.function_of(number)
        used = (*what, *parameters)
        if function.origin is Origin.OPAQUE:  # several with the same parents are results of one stretch that was not seen
            use = (used, self._log.rows[number][PARENTS:])
            turn = self._uses[use] = self._uses.get(use, -1) + 1
            return (*used, turn)
        if function.may_be_view:
            return self._part_of_parameter(number, used)
        return used

    def _part_of_parameter(self, number: int, used: tuple[Any, ...]) -> tuple[Any, ...]:
        """`p[:1]` and `p[1:]` are different layers, unless they ran at one place, as in a loop over the rows of `p`."""
        row = self._log.rows[number]
        part = (*used, "part", repr((row[TEMPLATE], row[NAMES])))
        chain = self._where.chains[row[MODULE]] if row[MODULE] >= 0 else 0
        place = (*used, "place", chain, self._where.sites[row[SITE]])
        return self._parts.setdefault(part, self._parts.setdefault(place, part))

    def _used_first(self, number: int, what: tuple[Any, ...], used: tuple[Any, ...]) -> int:
        """The layer of the first operation that used these parameters, or tensors in their place."""
        layer = self._layers[used] = self._stand_ins.pop(what, number)
        self._layers.setdefault(what, layer)
        return layer

    def _replaces_parameters(self, number: int, owner: ModuleCall, counts: CallCounts) -> bool:
        """Whether an operation is the only one in a module with parameters, and used other tensors in their place.

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
        # Where several operations of one function use the same tensors, the n-th is paired with the n-th of an earlier pass.
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
        """The log is complete: join first iterations of loops to the rest, and separate operations that ran side by side."""
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
        """Whether `first` is the first round of a loop and `rest` the others, not rounds over different blocks.

        The first round of a loop comes from another place than the others; a loop over blocks calls all of them from one place.
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
        """By address of a module and place in it: the modules with parameters and the layers using some that ran there."""
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
        """The place in the module at `address` that an operation ran for, however deep inside; -1 when it ran outside."""
        row = self._log.rows[number]
        return self._where.within(address, row[SITE], self._log.modules[row[MODULE]] if row[MODULE] >= 0 else None)
