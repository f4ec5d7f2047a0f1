"""The totals of a history: how many, how large, and whether anything in it repeats, branches or depends on data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import PARENTS, UNSAVED, Log

if TYPE_CHECKING:
    from .index import Index
    from .param import Param


class Totals:
    """The totals of a history. `History` is built on it."""

    _log: Log

    if TYPE_CHECKING:

        @property
        def _index(self) -> Index: ...

        @property
        def params(self) -> dict[str, Param]: ...

    @property
    def num_modules(self) -> int:
        """How many modules the model has below its root."""
        return sum(1 for module in self._log.registered.values() if module.address)

    @property
    def num_operations(self) -> int:
        """How many operations ran, inputs and outputs included."""
        return len(self._index.operations)

    num_tensors_total = num_operations

    @property
    def num_tensors_saved(self) -> int:
        values = self._log.values
        return sum(1 for number in self._index.operations if values[number] is not UNSAVED)

    @property
    def tensor_fsize_total(self) -> int:
        """Bytes of all tensors. An output is the tensor some operation made, so it adds nothing."""
        index = self._index
        return sum(index.tensor_bytes(number) for number in index.operations if number not in index.outputs)

    @property
    def tensor_fsize_saved(self) -> int:
        """Bytes of the tensors that are saved. An output adds nothing where the operation that made it is saved, too."""
        index, rows = self._index, self._log.rows
        saved = {number for number in index.operations if self._log.values[number] is not UNSAVED}
        again = {number for number in saved & index.outputs if rows[number][PARENTS] < 0 or rows[number][PARENTS] in saved}
        return sum(map(index.tensor_bytes, saved - again))

    @property
    def num_param_operations(self) -> int:
        """How many operations used parameters."""
        index = self._index
        parameters = {state.number for state in self._log.states if state.is_parameter}
        return sum(1 for number in index.operations if not parameters.isdisjoint(self._log.rows[number][PARENTS:]))

    @property
    def num_params_total(self) -> int:
        """How many values the parameters have, each parameter counted once."""
        return sum(param.numel for param in self.params.values())

    @property
    def params_fsize_total(self) -> int:
        return sum(param.fsize for param in self.params.values())

    @property
    def is_recurrent(self) -> bool:
        """Whether any layer ran more than once."""
        return self.max_passes > 1

    @property
    def max_passes(self) -> int:
        """The largest number of passes that a layer has."""
        return self._index.table.most_passes

    @property
    def is_branching(self) -> bool:
        """Whether any tensor was used by more than one operation."""
        return any(len(children) > 1 for children in self._index.children.values())

    @property
    def has_data_dependent_branching(self) -> bool:
        """Whether a truth value computed from a tensor left for Python, where it can decide what runs next."""
        return any(isinstance(read.value, bool) for read in self._log.python_reads)
