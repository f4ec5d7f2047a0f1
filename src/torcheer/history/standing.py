"""An operation's place in the graph: parents, children, modules, and its distance from inputs and outputs."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from ..containers import format_path
from ..records import ModuleCall, OperationRecord, Origin
from ..templates import slot_paths
from .index import Index

if TYPE_CHECKING:
    from .call import Call
    from .module import Module

_NO_PATH = (None, None)


class Standing:
    """An operation of a history, by its number, and its place among the others. `Operation` is built on it."""

    __slots__ = ("_index", "_number")

    def __init__(self, index: Index, number: int) -> None:
        self._index = index
        self._number = number

    @property
    def _record(self) -> OperationRecord:
        return self._index.log.operations[self._number]

    @property
    def number(self) -> int:
        """Its number in the recording, by which the nodes of a graph name the `operations` they stand for."""
        return self._number

    # Neighbours -------------------------------------------------------------------------------------------------

    def _labels(self, numbers: list[int]) -> list[str]:
        return list(dict.fromkeys(self._index.label(n) for n in numbers))

    @property
    def parent_layers(self) -> list[str]:
        """The labels of the operations this one used."""
        return self._labels(self._index.parents(self._number))

    @property
    def child_layers(self) -> list[str]:
        """The labels of the operations that used this one."""
        return self._labels(self._index.children.get(self._number, []))

    @property
    def sibling_layers(self) -> list[str]:
        """The labels of the other operations that share a parent with this one."""
        found = [c for p in self._index.parents(self._number) for c in self._index.children[p] if c != self._number]
        return self._labels(sorted(set(found)))

    @property
    def same_call_layers(self) -> list[str]:
        """The labels of all tensors the same call returned, this one included."""
        call, operations = self._record.call, self._index.log.operations
        made = takewhile(lambda number: operations[number].call == call, range(call, len(operations)))
        return self._labels([number for number in made if self._index.table.shows(number)])

    @property
    def parent_arg_positions(self) -> dict[str, str]:
        """Which argument each parent came through: `{'args[0]': 'relu_1_2'}`; nested positions are spelled out."""
        record = self._record
        found: dict[str, str] = {}
        for path, reference in zip(slot_paths(record.args, record.kwargs), record.parents, strict=False):
            if self._index.table.shows(reference):
                found[format_path(path, "kwargs" if isinstance(path[0], str) else "args")] = self._index.label(reference)
        return found

    # Modules ----------------------------------------------------------------------------------------------------

    def _around(self) -> list[ModuleCall]:
        module = self._record.module
        return [call for call in module.stack() if call.address] if module is not None else []

    @property
    def module(self) -> Module | None:
        """The innermost module this ran in, with `.address`; the model itself in its own forward; None in no module."""
        call = self._record.module
        return self._index.makers.module(self._index, self._index.log.registered[call.address]) if call is not None else None

    @property
    def module_call(self) -> Call | None:
        """The innermost module call this ran in; that of the model itself in its own forward; None in no module."""
        call, module = self._record.module, self.module
        return module[call.call] if call is not None and module is not None else None

    @property
    def containing_module(self) -> str | None:
        """The address of the innermost module this ran in; None in the model's own forward."""
        around = self._around()
        return around[-1].address if around else None

    @property
    def containing_modules(self) -> list[str]:
        """The modules this ran in, outermost first, each with its call: `features:1`."""
        return [f"{call.address}:{call.call}" for call in self._around()]

    @property
    def modules_entered(self) -> list[str]:
        """The module calls this tensor was an input of."""
        return [f"{c.address}:{c.call}" for c in self._index.entries.get(self._number, ()) if c.address]

    @property
    def modules_exited(self) -> list[str]:
        """The module calls this tensor was an output of, innermost first."""
        return [f"{c.address}:{c.call}" for c in self._index.exits.get(self._number, ()) if c.address]

    @property
    def bottom_level_module(self) -> str | None:
        """The module call that ran this operation and no other, and returned it."""
        for call in self._index.exits.get(self._number, ()):
            if call.address and self._index.call_counts.is_alone(self._number, call):
                return call.address
        return None

    @property
    def is_bottom_level_module_output(self) -> bool:
        return self.bottom_level_module is not None

    # Where it stands --------------------------------------------------------------------------------------------

    @property
    def origin(self) -> str:
        """How the tensor came to be: `input`, `operation`, `opaque`, `alias`, `source` or `output`."""
        return self._record.origin.value

    @property
    def is_input_layer(self) -> bool:
        return self._record.origin is Origin.INPUT

    @property
    def is_output_layer(self) -> bool:
        return self._record.origin is Origin.OUTPUT

    @property
    def has_input_ancestor(self) -> bool:
        return bool(self._index.from_input[self._number])

    @property
    def is_output_ancestor(self) -> bool:
        return bool(self._index.to_output[self._number])

    @property
    def initialized_inside_model(self) -> bool:
        """Whether the model made the tensor from no other tensor."""
        return not self.is_input_layer and not self._record.dependencies

    @property
    def min_distance_from_input(self) -> int | None:
        return self._index.distances_from_input.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_input(self) -> int | None:
        return self._index.distances_from_input.get(self._number, _NO_PATH)[1]

    @property
    def min_distance_from_output(self) -> int | None:
        return self._index.distances_to_output.get(self._number, _NO_PATH)[0]

    @property
    def max_distance_from_output(self) -> int | None:
        return self._index.distances_to_output.get(self._number, _NO_PATH)[1]

    @property
    def io_role(self) -> str:
        """Where an input was given, what a source is called, or where an output was returned."""
        log = self._index.log
        if self.is_input_layer:
            paths = log.input_paths.get(self._number, [])
            return ", ".join(format_path(path[1:], path[0]) for path in paths if path)
        if self.is_output_layer:
            return format_path(self._record.details.output_path, "output")
        return log.source_names.get(self._number, "")
