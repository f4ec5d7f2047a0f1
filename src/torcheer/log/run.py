"""`LoggedRun` has the log and options of one run, `Index` the facts that follow from the log, and `LayerTable` the labels.

Every folder between `log` and `history` takes a `LoggedRun` or its `Index`; `run_of(history)` gives the run.
"""

from __future__ import annotations

import copy
import weakref
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch

from .._text import nearest
from .._torch.functions.facts import Origin
from .._torch.memory import is_freed
from .._torch.shapes import bytes_of
from ..errors import InvalidArgument, LayerNotFound, ParameterChanged, ParameterNotSaved
from .copying import copy_of_log, refuse_pickling, twin_of_log
from .keys import Addresses, Lookup
from .layers import (
    CallCounts,
    Recurrence,
    connected_operations,
    holders_of_parameters,
    input_descendants,
    nothing_repeats,
    output_ancestors,
)
from .options import DEFAULT_FORMAT, Options, check_format
from .records import FUNCTION, PARENTS, BackwardLog, Log, ModuleCall, OperationRecord, RegisteredModule, StateRecord

Group = TypeVar("Group")
Item = TypeVar("Item")


class LoggedRun:
    """A log with its options. The index is made on access, and made again after the log has grown."""

    # Makes the `ModelHistory` of a run. Set by `torcheer.history`, which this package cannot import.
    make_history: ClassVar[Callable[[LoggedRun], Any]]

    def __init__(self, log: Log, options: Options) -> None:
        self.options = options
        self._shown_by: weakref.ref[Any] | None = None
        self._take(log)

    @classmethod
    def begin(cls, title: str, options: Options) -> LoggedRun:
        """Make a run that is about to be recorded."""
        return cls(_empty_log(title, options), options)

    def begin_again(self) -> None:
        """Replace the log by an empty log, because the model is run once more."""
        self._take(_empty_log(self.log.title, self.options))

    def _take(self, log: Log) -> None:
        self.log = log
        self._growing = LayerTable(log, self.options.layer_label_format)
        self._index: Index | None = None
        self._lookup: Lookup | None = None

    @property
    def index(self) -> Index:
        """The index of the log in its present state."""
        index = self._index
        if index is None or not index.is_current:
            if self.log.is_complete:
                table = LayerTable(self.log, self.options.layer_label_format)
                table.complete(self.options.keep_orphans)
            else:
                table = self._growing
                table.catch_up()
            index = self._index = Index(self.log, table)
            self._lookup = None
        return index

    def index_so_far(self) -> Index:
        """An index without up-to-date labels, for facts that are final as soon as an operation ran."""
        return Index(self.log, self._growing)

    @property
    def lookup(self) -> Lookup:
        """Finds the operations that a key means."""
        index = self.index
        if self._lookup is None:
            self._lookup = Lookup(index)
        return self._lookup

    def copy(self, memo: dict[int, Any] | None = None) -> LoggedRun:
        """A second run that shares the kept tensors; with the `memo` of `deepcopy`, the kept tensors are copied."""
        log = twin_of_log(self.log) if memo is None else copy_of_log(self.log, memo)
        return LoggedRun(log, self.options)

    def shown_by(self, history: Any) -> None:
        """Remember, by a weak reference, the history of this run. `history` returns it while it exists."""
        self._shown_by = weakref.ref(history)

    @property
    def history(self) -> Any:
        """The `ModelHistory` of this run."""
        known = self._shown_by() if self._shown_by is not None else None
        return known if known is not None else LoggedRun.make_history(self)


def _empty_log(title: str, options: Options) -> Log:
    backward = None if options.save_gradients == "none" else BackwardLog()
    return Log(title, holds_tensors=options.activation_postfunc is None, backward=backward)


class HoldsRun(Protocol):
    """The protocol of `ModelHistory` for folders that cannot import it: an object with a run."""

    @property
    def _run(self) -> LoggedRun: ...


def run_of(history: HoldsRun, argument: str = "history") -> LoggedRun:
    """The run of a history. `argument` is the name of the user's argument, for errors."""
    run = getattr(history, "_run", None)
    if not isinstance(run, LoggedRun):
        raise InvalidArgument(
            f"{argument} is a history of the model, as log_forward_pass returns; got {type(history).__name__}."
        )
    return run


class Index:
    """Facts derived from one state of a log."""

    # Makes the `Operation` that a function key is called with. Set by `torcheer.history`, which this package cannot import.
    operation: ClassVar[Callable[[Any, int], Any]]

    def __init__(self, log: Log, table: LayerTable) -> None:
        self.log = log
        self.table = table
        self.length = len(log.rows)
        self.module_count = len(log.modules)
        self.is_complete = log.is_complete
        self.kept: dict[str, Any] = {}  # values that other files computed from this index, by name
        self._states_behind: dict[int, StateRecord | None] = {}  # operation -> the parameter or buffer that its tensor is

    def __deepcopy__(self, memo: dict[int, Any]) -> Index:
        """An index with the same labels and its own kept tensors, for a copy of a layer, an operation or a module."""
        table = copy.copy(self.table)
        table.log = copy_of_log(self.log, memo)
        return Index(table.log, table)

    def __reduce_ex__(self, protocol: Any) -> Any:
        refuse_pickling("part of a ModelHistory")

    @property
    def is_current(self) -> bool:
        log = self.log
        return (self.length, self.module_count, self.is_complete) == (len(log.rows), len(log.modules), log.is_complete)

    @cached_property
    def operations(self) -> list[int]:
        """The numbers of the visible operations, in execution order."""
        return [n for n in range(self.length) if self.table.shows(n)]

    @cached_property
    def positions(self) -> dict[int, int]:
        """Maps the number of each visible operation to its position among the visible operations."""
        return {number: position for position, number in enumerate(self.operations)}

    def record(self, number: int) -> OperationRecord:
        return self.log.operations[number]

    def layer(self, number: int) -> LayerEntry:
        return self.table.layer_of(number)

    def layer_label(self, number: int) -> str:
        return self.table.label(self.layer(number))

    def label(self, number: int) -> str:
        """An operation's label: the label of its layer, with the pass number if the layer has several passes."""
        return self.table.label_of(number)

    def tensor_bytes(self, number: int) -> int:
        """The size of an operation's tensor in bytes."""
        shape, dtype, _ = self.log.operations[number].facts
        return bytes_of(shape, dtype)

    def of_origin(self, origin: Origin) -> list[int]:
        """The visible operations of one origin: inputs, outputs, sources."""
        wanted = {place for place, function in enumerate(self.log.functions) if function.origin is origin}
        return [number for number in self.operations if self.log.rows[number][FUNCTION] in wanted]

    @cached_property
    def outputs(self) -> frozenset[int]:
        """The output operations: one for each tensor that the model returned."""
        return frozenset(self.of_origin(Origin.OUTPUT))

    def shown(self, numbers: Iterable[int]) -> list[int]:
        """The operations among these numbers that are visible, each once."""
        return [number for number in dict.fromkeys(numbers) if self.table.shows(number)]

    def parents(self, number: int) -> list[int]:
        """The visible operations that an operation depends on, each once."""
        found = self.log.rows[number][PARENTS:]
        if number in self.log.details:
            found += self.log.details[number].also
        return self.shown(found)

    @cached_property
    def children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for number in self.operations:
            for parent in self.parents(number):
                found[parent].append(number)
        return found

    @cached_property
    def from_input(self) -> bytearray:
        return input_descendants(self.log)

    @cached_property
    def to_output(self) -> bytearray:
        return output_ancestors(self.log)

    @cached_property
    def exits(self) -> dict[int, list[ModuleCall]]:
        """Maps each operation to the module calls that returned its tensor, innermost first."""
        ended = sorted(self.log.modules, key=lambda call: call.exit)
        return _grouped((number, call) for call in ended for number in dict.fromkeys(call.outputs))

    @cached_property
    def entries(self) -> dict[int, list[ModuleCall]]:
        """Maps each operation to the module calls that received its tensor, in order."""
        return _grouped((number, call) for call in self.log.modules for number in dict.fromkeys(call.inputs))

    @cached_property
    def calls(self) -> dict[str, list[ModuleCall]]:
        """Maps each module address to the module's calls, in order."""
        return _grouped((call.address, call) for call in self.log.modules)

    @cached_property
    def inner_calls(self) -> dict[int, list[ModuleCall]]:
        """Maps the number of each module call to the calls directly inside it."""
        return _grouped((call.outer.number, call) for call in self.log.modules if call.outer is not None)

    @cached_property
    def module_children(self) -> dict[str, list[str]]:
        """The addresses registered directly below each address."""
        found: dict[str, list[str]] = {address: [] for address in self.log.registered}
        for address, module in self.log.registered.items():
            if not module.is_root:
                found[self._registered_above(address)].append(address)
        return found

    def _registered_above(self, address: str) -> str:
        """The address of the module that `address` is registered in: the longest prefix that is a module."""
        above = address.rpartition(".")[0]
        while above and above not in self.log.registered:
            above = above.rpartition(".")[0]
        return above

    def module_parents(self, address: str) -> list[str]:
        """The addresses of the modules that contain a module, outermost first."""
        found: list[str] = []
        while not self.log.registered[address].is_root:
            address = self._registered_above(address)
            found.append(address)
        return found[::-1]

    def modules_inside(self, address: str) -> list[str]:
        """An address and the addresses of all its submodules, in registration order."""
        found = [address]
        for child in self.module_children[address]:
            found += self.modules_inside(child)
        return found

    @cached_property
    def shared_children(self) -> dict[str, dict[str, str]]:
        """Map module addresses to the children first registered elsewhere: a dictionary from names to first addresses."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for other, address in self.addresses.others.items():
            above, _, name = other.rpartition(".")
            if above in self.log.registered:
                found[above][name] = address
        return found

    @cached_property
    def addresses(self) -> Addresses:
        """The modules by address."""
        return Addresses.of(self.log.registered)

    def address_of_module(self, key: Any) -> str:
        """The first address of a module, given any of its addresses. Raises `LayerNotFound` for other keys."""
        address = self.addresses.others.get(key, key) if isinstance(key, str) else key
        if isinstance(address, str) and address in self.log.registered:
            return address
        hint = nearest(key, self.log.registered)
        raise LayerNotFound(f"no module is called {key!r}: this history has {len(self.log.registered)} modules.{hint}")

    @cached_property
    def holders(self) -> set[str]:
        """The addresses of modules that have parameters, their own or below."""
        return holders_of_parameters(self.log)

    @cached_property
    def call_counts(self) -> CallCounts:
        """How many visible calls ran inside each module call."""
        return CallCounts(self.log, self.table.connected)

    @cached_property
    def distances_from_input(self) -> dict[int, tuple[int, int]]:
        """Maps each operation that an input leads to, to the lengths of the shortest and the longest path from an input."""
        return self._distances(self.operations, Origin.INPUT, self.parents)

    @cached_property
    def distances_to_output(self) -> dict[int, tuple[int, int]]:
        """Maps each operation that leads to an output, to the lengths of the shortest and the longest path to an output."""
        return self._distances(reversed(self.operations), Origin.OUTPUT, lambda number: self.children.get(number, ()))

    def _distances(
        self, numbers: Iterable[int], end: Origin, neighbours: Callable[[int], Iterable[int]]
    ) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for number in numbers:
            near = [found[neighbour] for neighbour in neighbours(number) if neighbour in found]
            if self.record(number).origin is end:
                found[number] = (0, 0)
            elif near:
                found[number] = (1 + min(shortest for shortest, _ in near), 1 + max(longest for _, longest in near))
        return found

    # Parameters and buffers ---------------------------------------------------------------------------------------

    @cached_property
    def state_names(self) -> dict[int, list[str]]:
        """The names of each registered parameter and buffer, by id of the tensor."""
        return _grouped(
            (id(tensor), f"{address}.{name}" if address else name)
            for module in self.log.registered.values()
            for address in (module.address, *module.other_addresses)
            for name, tensor in (*module.parameters.items(), *module.buffers.items())
            if tensor is not None
        )

    def state(self, reference: int) -> StateRecord:
        """The parameter or buffer that a negative number refers to."""
        return self.log.states[-1 - reference]

    def state_value(self, reference: int, user: str) -> torch.Tensor:
        """The value of a parameter or buffer when it was used. Raises if it was changed since, for example by an optimizer."""
        state = self.state(reference)
        if state.is_absent:
            raise ParameterNotSaved(
                f"{user} used {self.state_name(state)!r}, whose values are not in the file of this history. Load it with "
                "model=, or save it with params=True."
            )
        if is_freed(state.value):
            return state.value
        if state.is_changed:
            what = "was changed after this pass (by an optimizer's step or a later pass), so the value it had then is gone."
        elif state.may_be_changed:
            what = "may have been changed after this pass: parameters used beside it were, by writes that torch does not count."
        else:
            return state.value
        raise ParameterChanged(
            f"{user} used {self.state_name(state)!r}, which {what} Read the arguments before that, or log again."
        )

    def state_behind(self, reference: int) -> StateRecord | None:
        """If an argument is a parameter or buffer, even one that the pass has overwritten in place, return it; else None."""
        known, chain = self._states_behind, []
        here: int | None = reference
        while here is not None and here >= 0 and here not in known:
            chain.append(here)
            record = self.record(here)
            slot = record.overwritten
            here = record.parents[slot] if slot is not None else None
        found = None if here is None else known[here] if here >= 0 else self.state(here)
        known.update(dict.fromkeys(chain, found))
        return found

    def all_parameters(self) -> dict[str, Any]:
        """Maps first names to parameters: all that modules register, and unregistered parameters that operations used."""
        found = named_once(self.log.registered.values(), "parameters")
        registered = set(map(id, found.values()))
        others = {id(state.tensor): state for state in self.log.states if state.is_parameter}
        return found | {self.state_name(other): other.tensor for key, other in others.items() if key not in registered}

    def all_buffers(self) -> dict[str, torch.Tensor]:
        """Maps the first name of each buffer of the models to the buffer."""
        return named_once(self.log.registered.values(), "buffers")

    def state_name(self, state: StateRecord) -> str:
        """The first name of a parameter or buffer; `unregistered_N`, by order of use, if no module registers it."""
        names = self.state_names.get(id(state.tensor))
        return names[0] if names else f"unregistered_{-state.number}"


def _grouped(pairs: Iterable[tuple[Group, Item]]) -> dict[Group, list[Item]]:
    found: dict[Group, list[Item]] = defaultdict(list)
    for key, item in pairs:
        found[key].append(item)
    return found


def named_once(modules: Iterable[RegisteredModule], kind: Literal["parameters", "buffers"]) -> dict[str, Any]:
    """Map first names to the parameters (or buffers) that these modules register themselves; each tensor comes once."""
    found: dict[int, tuple[str, Any]] = {}
    for module in modules:
        for name, tensor in getattr(module, kind).items():
            if tensor is not None:
                found.setdefault(id(tensor), (module.full_name(name), tensor))
    return dict(found.values())


# Numbers and labels layers: `conv2d_3_7` is the third conv2d, with number 7 overall (from 0).
#
# Layers are numbered by first execution, so the table can grow while the model runs. When the pass is complete, orphans
# (operations connected to neither an input nor an output) are left out.


@dataclass(frozen=True, slots=True)
class LayerEntry:
    """One layer: its type, its number among layers of that type and overall, and the operations that are its passes."""

    type: str
    type_number: int
    number: int
    passes: Sequence[int] = field(compare=False)

    @property
    def short_label(self) -> str:
        return f"{self.type}_{self.type_number}"


class LayerTable:
    """Maps operations to layers and passes. Stores columns; a `LayerEntry` is made on access."""

    def __init__(self, log: Log, label_format: str = DEFAULT_FORMAT) -> None:
        self.log = log
        self.label_format = check_format(label_format)
        self.connected: bytearray | None = None  # for each operation: 1 if it is shown; None: all are shown
        self._recurrence: Recurrence | None = None
        self._layer_of: list[int] = []  # for each operation: the number of its layer, or -1 for an orphan
        self._first: list[int] = []  # for each layer: the operation that is its first pass
        self._of_type: dict[str, list[int]] = {}  # layer type -> the layers of that type
        self._passes: dict[int, list[int]] = {}  # layer -> its passes, for layers with more than one pass
        self._later_passes: dict[int, int] = {}  # operation -> its pass number, for operations that are not the first pass
        self._in_other_form: tuple[int, dict[str, LayerEntry]] | None = None  # number of operations, and `_by_label` for these

    def __len__(self) -> int:
        """The number of layers."""
        return len(self._first)

    def catch_up(self) -> None:
        """Process operations recorded since the last call."""
        if self.log.first_passes is not None:
            self._number(self.log.first_passes)
            return
        if self._recurrence is None:
            self._recurrence = Recurrence(self.log)
        self._recurrence.extend()
        self._number(self._recurrence.first)

    def complete(self, keep_orphans: bool) -> None:
        """Process a complete log. Orphans get no layer, unless `keep_orphans`."""
        firsts = self.log.first_passes
        if firsts is not None:  # a saved history: its file refers to layers by label, so labels must stay the same
            self.connected = bytearray(first >= 0 for first in firsts) if -1 in firsts else None
            self._number(firsts)
            return
        self.connected = None if keep_orphans else connected_operations(self.log)
        if nothing_repeats(self.log):
            if self.connected is None:
                self._number_all()
            else:
                self._number(range(len(self.log.rows)))
        else:
            recurrence = Recurrence(self.log)
            recurrence.extend(self.connected)
            recurrence.settle()
            self._number(recurrence.first)

    @property
    def first_passes(self) -> list[int]:
        """For each operation: the first pass of its layer; -1 for an orphan."""
        return [self._first[layer] if layer >= 0 else -1 for layer in self._layer_of]

    def _number_all(self) -> None:
        """Number the layers of a log in which every operation is a layer of its own."""
        of_function: list[list[int]] = [[] for _ in self.log.functions]
        for number, row in enumerate(self.log.rows):
            of_function[row[FUNCTION]].append(number)
        for function, numbers in zip(self.log.functions, of_function, strict=True):
            same = self._of_type.get(function.type)
            if same is not None:
                self._of_type[function.type] = sorted(same + numbers)
            elif numbers:
                self._of_type[function.type] = numbers
        self._first = list(range(len(self.log.rows)))
        self._layer_of = self._first

    def _number(self, firsts: Sequence[int]) -> None:
        """Number the layers. `firsts` maps each operation to the first pass of its layer."""
        types = [function.type for function in self.log.functions]
        rows, connected = self.log.rows, self.connected
        layer_of, first, of_type = self._layer_of, self._first, self._of_type
        for number in range(len(layer_of), len(rows)):
            if connected is not None and not connected[number]:
                layer_of.append(-1)
                continue
            earliest = firsts[number]
            if earliest != number:
                self._add_pass(layer_of[earliest], number)
                continue
            kind = types[rows[number][FUNCTION]]
            same = of_type.get(kind)
            if same is None:
                same = of_type[kind] = []
            same.append(len(first))
            layer_of.append(len(first))
            first.append(number)

    def _add_pass(self, layer: int, number: int) -> None:
        passes = self._passes.get(layer)
        if passes is None:
            passes = self._passes[layer] = [self._first[layer]]
        passes.append(number)
        self._later_passes[number] = len(passes)
        self._layer_of.append(layer)

    def shows(self, number: int) -> bool:
        """True if an operation with this number has a layer: False for orphans and for parameters (negative numbers)."""
        return 0 <= number < len(self._layer_of) and self._layer_of[number] >= 0

    def layer(self, number: int) -> LayerEntry:
        """The layer with this number."""
        first = self._first[number]
        kind = self.log.function_of(first).type
        type_number = bisect_left(self._of_type[kind], number) + 1
        return LayerEntry(kind, type_number, number, self._passes.get(number) or (first,))

    def layer_of(self, operation: int) -> LayerEntry:
        """The layer an operation belongs to."""
        return self.layer(self._layer_of[operation])

    def by_layer(self, operations: Iterable[int]) -> dict[LayerEntry, list[int]]:
        """Group operations by the layer that they belong to."""
        found: dict[int, list[int]] = {}
        for operation in operations:
            found.setdefault(self._layer_of[operation], []).append(operation)
        return {self.layer(number): numbers for number, numbers in found.items()}

    @property
    def layers(self) -> list[LayerEntry]:
        """Every layer, in execution order."""
        return [self.layer(number) for number in range(len(self))]

    def pass_number(self, number: int) -> int:
        """Which pass of its layer an operation is, from 1."""
        return self._later_passes.get(number, 1)

    @property
    def most_passes(self) -> int:
        """The largest number of passes that a layer has."""
        return max(map(len, self._passes.values()), default=min(1, len(self)))

    def label(self, layer: LayerEntry) -> str:
        """A layer's label."""
        if self.label_format is DEFAULT_FORMAT:
            return f"{layer.type}_{layer.type_number}_{layer.number}"
        return self.label_format.format(type=layer.type, type_number=layer.type_number, number=layer.number)

    def label_of(self, operation: int) -> str:
        """An operation's label: the label of its layer, with the pass number if the layer has several passes."""
        layer = self.layer_of(operation)
        label = self.label(layer)
        return label if len(layer.passes) == 1 else f"{label}:{self.pass_number(operation)}"

    def labelled(self, label: str, *, short: bool = False) -> LayerEntry | None:
        """The layer with this label, or with this short label (`conv2d_3`)."""
        if not short and self.label_format is not DEFAULT_FORMAT:
            return self._by_label.get(label)
        kind, _, number = label.partition("_")
        type_number, _, overall = number.partition("_")
        if not type_number.isdecimal() or len(type_number) > 9 or bool(overall) == short:
            return None
        same = self._of_type.get(kind, ())
        layer = self.layer(same[int(type_number) - 1]) if 1 <= int(type_number) <= len(same) else None
        if layer is None or label != (layer.short_label if short else self.label(layer)):
            return None
        return layer

    @property
    def _by_label(self) -> dict[str, LayerEntry]:
        """The layers by label, for label formats other than the default."""
        if self._in_other_form is None or self._in_other_form[0] != len(self._layer_of):
            self._in_other_form = (len(self._layer_of), {self.label(layer): layer for layer in self.layers})
        return self._in_other_form[1]
