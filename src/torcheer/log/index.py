"""`Index`: facts derived from a log, computed on first use: labels, children, ancestors, module calls, parameter names.

An `Index` is a snapshot of the log. While a recording grows, `LoggedRun` makes a new index on access; labels carry over.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeVar

import torch

from .._text import nearest
from .._torch.functions.facts import Origin
from .._torch.memory import is_freed
from .._torch.shapes import bytes_of
from ..errors import LayerNotFound, ParameterChanged, ParameterNotSaved
from ..log.labels import LayerEntry, LayerTable
from ..log.layers import CallCounts, holders_of_parameters, input_descendants, output_ancestors
from .copying import copy_of_log, refuse_pickling
from .records import FUNCTION, PARENTS, Log, ModuleCall, OperationRecord, RegisteredModule, StateRecord

Key = TypeVar("Key")
Item = TypeVar("Item")


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
        self._states_behind: dict[int, StateRecord | None] = {}  # by operation

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
        """The visible operations among these numbers, each once."""
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
        """The calls of each module address, in order."""
        return _grouped((call.address, call) for call in self.log.modules)

    @cached_property
    def inner_calls(self) -> dict[int, list[ModuleCall]]:
        """The module calls directly inside each module call, by its number."""
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
        """By module address: names of its children that were first registered elsewhere, mapped to their first address."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for other, address in self.first_addresses.items():
            above, _, name = other.rpartition(".")
            if above in self.log.registered:
                found[above][name] = address
        return found

    @cached_property
    def first_addresses(self) -> dict[str, str]:
        """For modules with several addresses: maps each further address to the first."""
        return {other: address for address, module in self.log.registered.items() for other in module.other_addresses}

    def address_of_module(self, key: Any) -> str:
        """The first address of a module, given any of its addresses. Raises `LayerNotFound` for other keys."""
        address = self.first_addresses.get(key, key) if isinstance(key, str) else key
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
        """By operation: the lengths of the shortest and the longest path from an input, for those that have one."""
        return self._distances(self.operations, Origin.INPUT, self.parents)

    @cached_property
    def distances_to_output(self) -> dict[int, tuple[int, int]]:
        """By operation: the lengths of the shortest and the longest path to an output, for those that have one."""
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
        """The parameter or buffer that an argument is, even after in-place writes earlier in the pass; else None."""
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
        """By first name: every parameter that a module registers, and unregistered parameters that operations used."""
        found = named_once(self.log.registered.values(), "parameters")
        registered = set(map(id, found.values()))
        others = {id(state.tensor): state for state in self.log.states if state.is_parameter}
        return found | {self.state_name(other): other.tensor for key, other in others.items() if key not in registered}

    def all_buffers(self) -> dict[str, torch.Tensor]:
        """Every buffer of the models by its first name."""
        return named_once(self.log.registered.values(), "buffers")

    def state_name(self, state: StateRecord) -> str:
        """The first name of a parameter or buffer; `unregistered_N`, by order of use, if no module registers it."""
        names = self.state_names.get(id(state.tensor))
        return names[0] if names else f"unregistered_{-state.number}"


def _grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    found: dict[Key, list[Item]] = defaultdict(list)
    for key, item in pairs:
        found[key].append(item)
    return found


def named_once(modules: Iterable[RegisteredModule], kind: Literal["parameters", "buffers"]) -> dict[str, Any]:
    """The parameters (or buffers) of these modules, without those of submodules: each once, by first name."""
    found: dict[int, tuple[str, Any]] = {}
    for module in modules:
        for name, tensor in getattr(module, kind).items():
            if tensor is not None:
                found.setdefault(id(tensor), (module.full_name(name), tensor))
    return dict(found.values())
