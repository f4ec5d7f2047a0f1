"""`Call`: one call of a module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._torch.memory import is_freed
from .._torch.source_code import SourceLine, source_of
from ..errors import ActivationLost, ActivationNotSaved
from ..log.operation import describe_freed
from ..log.records import UNSAVED, ModuleCall
from ..log.templates import fill_call
from .attributes import Helpful, OfRecord
from .operation import Operation
from .printing import describe_call

if TYPE_CHECKING:
    from .module import Module


class Call(OfRecord[ModuleCall], Helpful):
    """One call of a module: the tensors it received, the operations that ran inside, the tensors it returned."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The module's address: `features.6`; empty for the model itself."""
        return self._record.address

    @property
    def label(self) -> str:
        """The address with the number of the call: `features.6:1`."""
        return f"{self._record.address}:{self._record.call}"

    @property
    def class_name(self) -> str:
        """The name of the module's class."""
        return self._record.class_name

    @property
    def call_num(self) -> int:
        """Which call of its module this is, from 1."""
        return self._record.call

    @property
    def module(self) -> Module:
        """The module that was called."""
        from .module import Module

        return Module(self._index, self._index.log.registered[self._record.address])

    @property
    def training(self) -> bool:
        """True if the module was in training mode."""
        return self._record.training

    @property
    def time_elapsed(self) -> float:
        """Seconds from entry to exit of the call, including inner calls."""
        return self._record.elapsed / 1e9

    @property
    def source(self) -> SourceLine | None:
        """The line of the program that called the module."""
        return source_of(self._record.site, self._record.outer)

    # Arguments and results ----------------------------------------------------------------------------------------

    def _operations(self, numbers: tuple[int, ...]) -> list[Operation]:
        return [Operation(self._index, n) for n in self._index.shown(numbers)]

    @property
    def inputs(self) -> list[Operation]:
        """The tensors among the arguments of the call."""
        return self._operations(self._record.inputs)

    @property
    def outputs(self) -> list[Operation]:
        """The tensors that the call returned."""
        return self._operations(self._record.outputs)

    @property
    def input_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors among the arguments of the call."""
        return [one.tensor_shape for one in self.inputs]

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tensors that the call returned."""
        return [one.tensor_shape for one in self.outputs]

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, with the tensors as they were, and the class in place of other objects."""
        return self._arguments()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments, with the tensors as they were, and the class in place of other objects."""
        return self._arguments()[1]

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        record = self._record
        return fill_call(record.args, record.names, iter([self._tensor(number) for number in record.inputs]))

    def _tensor(self, number: int) -> Any:
        value = self._index.state_value(number, self.label) if number < 0 else self._index.record(number).value
        if is_freed(value):
            raise ActivationLost(describe_freed(f"an argument of {self.label}"))
        if value is UNSAVED:
            raise ActivationNotSaved(
                f"the arguments of {self.label} were not saved. Log again with layers_to_save='all', or with "
                f"{self._index.label(number)!r} in the list."
            )
        return value

    # Inside -------------------------------------------------------------------------------------------------------

    @property
    def operations(self) -> list[Operation]:
        """Every operation that ran inside the call, including submodules."""
        end = self._record.end if self._record.end >= 0 else self._index.length
        return [Operation(self._index, n) for n in range(self._record.first, end) if self._index.table.shows(n)]

    @property
    def own_operations(self) -> list[Operation]:
        """The operations that ran in the module's own forward, without submodules."""
        return [one for one in self.operations if one._record.module is self._record]

    @property
    def num_operations(self) -> int:
        """How many operations ran inside the call, including submodules."""
        return len(self.operations)

    @property
    def is_bottom_level(self) -> bool:
        """True if exactly one operation ran inside, even if the module has submodules."""
        return self._index.call_counts.inside(self._record) == 1

    @property
    def outer(self) -> Call | None:
        """The module call around this call; None for a call of the model itself."""
        outer = self._record.outer
        return Call(self._index, outer) if outer is not None else None

    @property
    def inner(self) -> list[Call]:
        """The module calls directly inside this call, in order."""
        return [Call(self._index, record) for record in self._index.inner_calls.get(self._record.number, ())]

    @property
    def containing_modules(self) -> list[str]:
        """The module calls around this call, outermost first: `['features:1']`."""
        return [f"{call.address}:{call.call}" for call in self._record.stack()[:-1] if call.address]

    @property
    def _key(self) -> str:
        return self.label

    def __str__(self) -> str:
        return describe_call(self)

    def __repr__(self) -> str:
        return f"<Call {self.label} of {self.class_name}>"
