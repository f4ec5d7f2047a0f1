"""`PythonRead`: a read of a tensor's values by Python code, which can decide what runs next."""

from __future__ import annotations

from typing import Any

from .._torch.source_code import SourceLine, source_of, stack_of
from ..log.records import PythonReadRecord
from .attributes import OfRecord


class PythonRead(OfRecord[PythonReadRecord]):
    """One `bool(t)`, `.item()`, `.numpy()` and the like: the tensor, the value Python got, the source line."""

    __slots__ = ()

    @property
    def func_name(self) -> str:
        """The function that read the tensor: `__bool__`, `item`."""
        return self._record.function.name

    @property
    def value(self) -> Any:
        """The number or truth value that Python got; None for other results."""
        return self._record.value

    @property
    def is_truth_value(self) -> bool:
        """True if Python got a truth value, on which it may branch."""
        return self._record.is_truth_value

    @property
    def parent_layers(self) -> list[str]:
        """The labels of the operations whose tensors were read."""
        return [self._index.label(n) for n in self._record.parents if self._index.table.shows(n)]

    @property
    def _what(self) -> str:
        """The text for the tensor that was read, if it does not belong to an operation with a label."""
        # a tensor with a negative number is a parameter or a buffer
        is_operation = any(number >= 0 for number in self._record.parents)
        return "an operation that is not shown" if is_operation else "a parameter or buffer"

    @property
    def containing_module(self) -> str | None:
        """The address of the module whose forward read the tensor; None in the model's own forward."""
        call = self._record.module
        return call.address or None if call is not None else None

    @property
    def source(self) -> SourceLine | None:
        """The line of the program that read the tensor."""
        return source_of(self._record.site, self._record.module)

    @property
    def stack(self) -> list[SourceLine]:
        """The call stack, outermost first."""
        return stack_of(self._record.site, self._record.module)

    def __repr__(self) -> str:
        what = ", ".join(self.parent_layers) or self._what
        got = f" gave {self.value!r}" if self.value is not None else ""
        return f"{what} left for Python by {self.func_name}{got}" + (f" at {self.source}" if self.source is not None else "")
