"""Keeps a replay from going on with an old value: what depends on a change and cannot be worked out again is refused.

A replay makes the recorded calls again. Some values it can only take as they were kept (`kept_values`), and some things that a
program knows of a tensor are no operations: a number it read, a shape, memory it handed to NumPy. Behind a change these are
those of the logged pass. `Behind` says which operations depend on a change, and refuses what the log alone tells;
`StaleGuard` watches the replay and refuses the rest.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..capture.identity.tensor_table import PLAIN_CLASSES, storages_of
from ..capture.restore.restore_state import WRITTEN_UNSEEN
from ..errors import ReplayFailed
from ..history import History
from ..records import PARENTS, SITE, UNSAVED, Details, OperationRecord, Origin, PythonReadRecord, TorchFunction
from ..shapes import shape_of
from ..source_places import CodeTable, source_of
from ..tensor_memory import COMPRESSED, is_freed
from ..torch_internals import sparse_parts
from .comparison import is_close, same_bits
from .kept_values import given_because, is_uninitialised
from .races import may_race

# Reads whose result follows from the tensors alone, so that it can be read again.
_READ_AGAIN: dict[str, Callable[..., Any]] = {
    "__bool__": bool,
    "__int__": int,
    "__float__": float,
    "__complex__": complex,
    "__index__": operator.index,
    "item": Tensor.item,
    "_local_scalar_dense": Tensor.item,
    "is_nonzero": bool,
    "equal": torch.equal,
}
# Unseen writes to memory that was handed out in these ways come from Python, to which only recorded reads bring values.
_FROM_PYTHON = frozenset({"numpy_write", "array_write", "dlpack_write", "outside_write", "memory_write"})
_ADVICE = "Run the model itself on it: torcheer.intervene makes a change live, log_forward_pass takes another input"

Spans = Mapping[int, Iterable[tuple[int, int]]]  # by operation: from which reader to before which one it is read changed


class Behind:
    """The operations that depend on changed ones: through arguments, and through memory that was written to."""

    def __init__(self, history: History, changed: set[int], spans: Spans) -> None:
        self._history = history
        self._log = history._log
        self._changed = changed
        self.numbers = set(changed)
        details = self._log.details
        for number, row in enumerate(self._log.rows if changed or spans else ()):
            known = details.get(number)
            if (
                not self.numbers.isdisjoint(row[PARENTS:])
                or (known is not None and not self.numbers.isdisjoint(known.also))
                or (spans and any(first <= number < end for parent in row[PARENTS:] for first, end in spans.get(parent, ())))
            ):
                self.numbers.add(number)
        self.first = min((*self.numbers, *(first for parts in spans.values() for first, _ in parts)), default=None)

    def refuse_kept_values(self) -> None:
        """Raise if something behind the change can only be taken as it was kept."""
        if self.first is None:
            return
        log = self._log
        for note in log.notes:
            if WRITTEN_UNSEEN in note:
                raise ReplayFailed(
                    f"the history cannot be run again with a change: in the logged pass {note.partition('Not restored: ')[2]} "
                    f"What was written may depend on the change. {_ADVICE}."
                )
        for number in sorted(log.overwritten()):
            raise self._failed(number, "was written to by code that cannot be watched, which may depend on what is changed")
        traced = self._ran_where(_is_of_tracing)
        for number in sorted(self._changed & traced):
            raise self._failed(number, "ran while torch traced a function, of which the log holds only what came of it")
        for number in range(self.first, len(log.rows)):
            function = log.function_of(number)
            is_behind = number in self.numbers
            may_be = is_behind or function.func is None or function.is_gradient or _ran_unseen(log.details.get(number))
            if number not in self._changed and may_be:
                self._refuse(log.operations[number], is_behind)

    def _refuse(self, record: OperationRecord, is_behind: bool) -> None:
        reason = given_because(record)
        if reason is None:
            return
        if record.origin is Origin.SOURCE:
            if record.details.is_passing:
                raise self._failed(
                    record.number, "was made in the pass by code that cannot be watched, and may depend on what is changed"
                )
        elif is_behind or record.function.is_gradient:
            raise self._failed(record.number, f"is {reason}, and depends on what is changed")
        elif _ran_unseen(record.details) or (record.origin is Origin.OPAQUE and not _has_known_parents(record)):
            raise self._failed(record.number, f"is {reason}, and may depend on what is changed")

    def _ran_where(self, is_meant: Callable[[CodeTable, int], bool]) -> set[int]:
        """The operations that ran inside certain code."""
        log = self._log
        codes = {code for code in range(len(log.codes)) if is_meant(log.codes, code)}
        sites = {site.number for site in log.sites if not codes.isdisjoint(site.codes)} if codes else set()
        return {number for number, row in enumerate(log.rows) if row[SITE] in sites} if sites else set()

    def _failed(self, number: int, what: str) -> ReplayFailed:
        return failed(self._history, number, f"cannot be worked out again: it {what}. {_ADVICE}")


def _is_of_tracing(codes: CodeTable, number: int) -> bool:
    file = codes.facts(number).file
    return os.path.basename(file) == "proxy_tensor.py" and codes.sources.is_torch(file)


def is_differentiation(function: TorchFunction) -> bool:
    """Whether it is `torch.autograd.grad`, which reads the graph that a replay makes anew."""
    return function.func is torch.autograd.grad


def _ran_unseen(details: Details | None) -> bool:
    """Whether it is a gradient, and code that is not in the log may have changed it: hooks, or a backward of the user's."""
    return details is not None and (details.is_hooked or details.is_through_unseen)


def _has_known_parents(record: OperationRecord) -> bool:
    """Whether everything that a value from unwatched code depends on is among its parents."""
    if record.details.mutated:
        return record.function.name in _FROM_PYTHON
    return isinstance(record.value, Tensor) and type(record.value) not in PLAIN_CLASSES  # a wrapper, of the tensors inside it


def failed(history: History, number: int, what: str) -> ReplayFailed:
    """The error of an operation, which names it and the line of the program."""
    record = history._log.operations[number]
    name = history._index.label(number) if history._index.table.shows(number) else f"{record.function.name} ({number})"
    place = source_of(record.site, record.module)
    error = ReplayFailed(f"{name}{f' ({place})' if place is not None else ''} {what}.")
    error.operation = number
    return error


class StaleGuard:
    """Watches one replay. Raises where it would go on with what is no longer so."""

    def __init__(self, history: History, behind: Behind, inputs: Mapping[int, Tensor]) -> None:
        self._history = history
        self._log = history._log
        self._behind = behind.numbers
        self._touched: set[int] = set()  # storages that hold changed values
        self._outside: set[int] = set()  # storages that Python may read without torch
        self._foreign = {n for n, tensor in inputs.items() if _is_foreign(tensor)}
        self._foreign |= {s.number for s in self._log.states if not s.is_absent and _is_foreign(s.value)}
        known = self._log.details.items()
        self._foreign |= {n for n, one in known if one.is_foreign and self._log.operations[n].origin is not Origin.INPUT}
        self._varied: set[int] = set()  # operations that may have other values each time, or come after one that has

    def before(self, record: OperationRecord, arguments: list[Tensor], written: list[Tensor]) -> None:
        """A call is about to be made, which will write to some tensors."""
        if self._foreign and len(arguments) == len(record.parents):
            for parent, tensor in zip(record.parents, arguments, strict=True):
                if parent in self._foreign:
                    self._outside |= storages_of(tensor)
        if record.number in self._behind:
            for tensor in written:
                storages = storages_of(tensor)
                if not self._outside.isdisjoint(storages):
                    raise failed(
                        self._history,
                        record.number,
                        "cannot be run again: it writes what is changed to memory that was handed out, as to NumPy, where the "
                        f"program may have read it. {_ADVICE}",
                    )
                self._touched |= storages

    def after(self, number: int, value: Any) -> None:
        """An operation has its value."""
        if not isinstance(value, Tensor):
            return
        if number not in self._behind:
            self._compare(number, value)
            return
        self._touched |= storages_of(value)
        if number in self._foreign:
            self._outside |= storages_of(value)
        shape, dtype, _ = self._log.operations[number].facts
        now = f"{value.dtype} {shape_of(value)}"
        if (shape, dtype) == (shape_of(value), value.dtype):
            kept, count = self._log.values[number], _count(value)
            if count is None or not isinstance(kept, Tensor) or is_freed(kept) or (logged := _count(kept)) == count:
                return
            now, before = f"{count} stored values", f"{logged}"
        else:
            before = f"{dtype} {shape}"
        raise failed(
            self._history,
            number,
            f"cannot be run again: it now has {now}, and {before} was logged. The program may have read the size, and what "
            f"followed from that is not in the log. {_ADVICE}",
        )

    def _compare(self, number: int, value: Tensor) -> None:
        """What nothing changed has to be what was logged."""
        record, kept = self._log.operations[number], self._log.values[number]
        if not isinstance(kept, Tensor) or is_freed(kept) or self._log.is_lost(number) or same_bits(kept, value.detach()):
            return
        if (
            not self._varied.isdisjoint(record.dependencies)
            or may_race(record)
            or is_uninitialised(record)
            or (shape_of(kept) == shape_of(value) and is_close(kept, value))
        ):
            self._varied.add(number)
            return
        why = (
            f"an intervention changed it, by {record.details.changed}"
            if record.details.changed
            else ("it depends on something that is not in the log")
        )
        raise failed(
            self._history, number, f"cannot be run again: it has another value than when it was logged, so {why}. {_ADVICE}"
        )

    def read(self, record: PythonReadRecord, tensors: list[Tensor], *, is_changed: bool) -> None:
        """A value left for Python here. It has to be the recorded one, since Python went on with that."""
        if record.function.exports_memory:
            for tensor in tensors:
                self._outside |= storages_of(tensor)
        if record.before >= len(self._log.rows):
            return  # no operation came after the read, so nothing in the log followed from the value
        if not is_changed and all(
            parent not in self._behind and self._touched.isdisjoint(storages_of(tensor))
            for parent, tensor in zip(record.parents, tensors, strict=True)
        ):
            return
        again = _READ_AGAIN.get(record.function.name)
        if again is not None and record.value is not None:
            try:
                now = again(*tensors)
            except (RuntimeError, ValueError, TypeError) as raised:
                now = raised
            if now == record.value or (now != now and record.value != record.value):
                return
            what = f": {record.value!r} was logged, now it is {now!r}"
        elif all(map(self._is_as_kept, record.parents, tensors)):
            return
        else:
            what = " and has changed"
        place = source_of(record.site, record.module)
        where = f" ({place})" if place is not None else ""
        error = ReplayFailed(
            f"the history cannot be run again: {record.function.name!r}{where} hands a value to Python that depends on what is "
            f"changed{what}. What Python made of it is not in the log. {_ADVICE}."
        )
        error.operation = next((parent for parent in record.parents if parent >= 0), None)
        raise error

    def _is_as_kept(self, parent: int, tensor: Tensor) -> bool:
        kept = self._log.values[parent] if parent >= 0 else UNSAVED
        return isinstance(kept, Tensor) and not is_freed(kept) and same_bits(kept, tensor.detach())


def _is_foreign(tensor: Tensor) -> bool:
    """Whether torch did not allocate the memory of a tensor, as where it is that of a NumPy array."""
    try:
        return not tensor.untyped_storage().resizable()
    except (RuntimeError, AttributeError):  # it has no storage of its own
        return False


def _count(tensor: Tensor) -> int | None:
    """How many values a sparse tensor stores; None for tensors of other layouts."""
    if tensor.layout is torch.sparse_coo:
        return len(sparse_parts(tensor)[1])
    return tensor.values().numel() if tensor.layout in COMPRESSED else None
