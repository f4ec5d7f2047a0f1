"""Writes down what a call made; the hot path of the interceptor does so itself for one plain tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ...containers import find_tensors
from ...records import UNSAVED, Composite, Details, TorchFunction, facts_of
from ...torch_internals import (
    DisableTorchFunctionSubclass,
    is_any_autocast_enabled,
    is_functorch_wrapped,
    storage_address,
    write_count,
)
from ..identity.tensor_table import memory_of
from ..recorder import Recorder
from .autocast import autocast_state

_ONLY_TENSORS = frozenset({Tensor})

# The first part of a row: the number of the function, a template of the arguments, the names of the last of them, the numbers
# of the module call and the call site, when the call started, and how long it took.
CallPart = tuple[int, tuple[Any, ...], tuple[str, ...], int, int, int, int]


class CallWriter:
    """Writes the rows of the calls of one recording.

    `is_plain` says that every tensor is kept as it is and nothing else is asked of a row. `when_not_plain` is called when that
    is no longer so.
    """

    def __init__(self, recorder: Recorder, *, is_plain: bool, when_not_plain: Callable[[], None]) -> None:
        self.composite: Composite | None = None  # the Python function of torch that is running, if its inside is the log
        self.is_plain = is_plain
        self._when_not_plain = when_not_plain
        self._recorder = recorder
        self._log = recorder.log
        self._keeper = recorder.keeper
        self._table = recorder.table
        self._nodes = recorder.nodes

    def write(
        self,
        function: TorchFunction,
        call: CallPart,
        parents: Sequence[int],
        result: Any,
        written: Sequence[Tensor],
        details: Details | None,
    ) -> None:
        """Write down whatever came out; a call that made several tensors becomes several records."""
        recorder, log = self._recorder, self._log
        made: list[tuple[Any, Tensor]]
        if type(result) is Tensor:
            made = [((), result)]
        elif type(result) is tuple and _ONLY_TENSORS.issuperset(map(type, result)):
            made = [((index,), tensor) for index, tensor in enumerate(result)]
        else:
            made = list(find_tensors(result, into_objects=False))
        if not made and written and (result is None or function.is_collective):
            several = len(written) > 1
            made = [((index,) if several else (), tensor) for index, tensor in enumerate(written)]
        if not made or (function.is_attribute and recorder.table.find(made[0][1])):
            return  # nothing, or a tensor already known that an attribute handed out
        if function.is_attribute and function.name == "grad":
            details = Details(also=recorder.backward_roots())
        first = len(log.rows)
        if not written:
            for at, (_, tensor) in enumerate(made):
                self._table.note_handed_back(tensor, first + at)
        try:
            if not self.is_plain or not self._write_plain(call, parents, made, details):
                self._write_any(call, parents, made, details)
        except BaseException:
            recorder.cut_unfinished()
            raise
        if details is not None and details.held and all(value is UNSAVED for value in log.values[first:]):
            self._keeper.remember_arguments(first)
        for tensor in written:
            self.note_write(tensor, first)

    def _write_plain(
        self, call: CallPart, parents: Sequence[int], made: list[tuple[Any, Tensor]], details: Details | None
    ) -> bool:
        """Write down several plain tensors at once, as the hot path does one. Returns False if one is not plain."""
        facts = []
        if self._table.shared:
            return False
        for _, tensor in made:
            if type(tensor) is not Tensor:
                return False
            try:
                facts.append((storage_address(tensor), tensor.detach(), write_count(tensor)))
            except RuntimeError:
                return False
        first = number = len(self._log.rows)
        for (path, tensor), (storage, value, version) in zip(made, facts, strict=True):
            node = self._nodes.name(tensor, call[0]) if tensor.requires_grad else None
            self._log.rows.append((*call, node, None, *parents))
            self._log.values.append(value)
            self._log.versions.append(version)
            self._keeper.storages.append(storage)
            self._note_details(number, first, path, details)
            self._table.point(tensor, number, storage)
            number += 1
        if self.composite is not None or is_any_autocast_enabled():
            for each in range(first, number):
                self.note_context(each)
        return True

    def _write_any(
        self, call: CallPart, parents: Sequence[int], made: list[tuple[Any, Tensor]], details: Details | None
    ) -> None:
        recorder, log = self._recorder, self._log
        first = len(log.rows)
        with DisableTorchFunctionSubclass():
            for path, tensor in made:
                number = recorder.append((*call, self._nodes.name(tensor, call[0]), facts_of(tensor), *parents))
                self._note_details(number, first, path, details)
                self.note_context(number)
                if is_functorch_wrapped(tensor):
                    log.detail(number).is_transformed = True
                self._keeper.keep_if_wanted(number, tensor)
                storage = self._table.storage_of(tensor)
                recorder.table.point(tensor, number, storage)
                recorder.table.point_inside(tensor, number, storage)
                if recorder.gradients is not None:
                    recorder.gradients.note(number, tensor)

    def _note_details(self, number: int, call: int, path: tuple[Any, ...], details: Details | None) -> None:
        """Note what is out of the ordinary about one of the tensors that a call made, given what all of them have in common."""
        if not path:
            if details is not None:
                self._log.details[number] = details
        elif details is None:
            self._log.details[number] = Details(call, path)
        else:
            self._log.details[number] = dataclasses.replace(details, call=call, output_path=path)

    def leave_plain_path(self) -> None:
        """From now on no operation is ordinary."""
        if self.is_plain:
            self.is_plain = False
            self._when_not_plain()

    def note_context(self, number: int) -> None:
        """Note the composite an operation is inside of, and autocast, which shows first as reduced precision."""
        if is_any_autocast_enabled():
            self.leave_plain_path()  # it has to be noted for every operation from now on
            self._log.detail(number).autocast = autocast_state()
        if self.composite is not None:
            self._log.detail(number).composite = self.composite

    def note_write(self, tensor: Tensor, number: int) -> None:
        if type(tensor) is Tensor:
            self._table.wrote(tensor, number)
        else:
            with DisableTorchFunctionSubclass():
                self._table.wrote(tensor, number)
        if self._recorder.memory:
            for part in memory_of(tensor):
                self._recorder.memory.wrote(self._table.storage_of(part))
