"""`replay`: runs a history again with other inputs or changed values, and raises rather than use an outdated value.

A replay makes the recorded calls again. But some values cannot be computed again and are taken from the log
(`given_because`), and a program can use a tensor without an operation: it reads a number or a shape, or hands memory to NumPy.
If any of this depends on a change, the logged result is outdated, and the replay raises `ReplayFailed`. `Behind` finds the
operations that depend on a change and checks what the log alone shows; `StaleGuard` checks values during the replay.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from .._torch.functions.facts import Origin, TorchFunction
from .._torch.internals import sparse_parts
from .._torch.memory import COMPRESSED, cloned, is_freed
from .._torch.restore_state import WRITTEN_UNSEEN
from .._torch.shapes import shape_of
from .._torch.source_code import CodeTable, source_of
from .._torch.tensor_table import PLAIN_CLASSES, storage_of, storages_of
from .._torch.thread_state import thread_left_as_found
from ..analysis.attention import head_axis
from ..capture import Keeper, Policy
from ..changes import Change, Given, as_change
from ..errors import InvalidArgument, ReplayFailed
from ..log.keys import AnyKey, KeyType, Match, parse_key
from ..log.operation import OperationFacts
from ..log.records import FACTS, PARENTS, SITE, UNSAVED, Details, Held, OperationRecord, PythonReadRecord, StateRecord, facts_of
from ..log.run import LoggedRun
from .comparison import is_close, same_bits
from .machine import given_because, is_uninitialised, refuse_changed_states, refuse_without_tensors, run_again
from .reference_run import may_race
from .walk import tensors_of

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
# Python code makes the unwatched writes to memory exported in these ways; it knows tensors only from recorded reads.
_FROM_PYTHON = frozenset({"numpy_write", "array_write", "dlpack_write", "outside_write", "memory_write"})
_ADVICE = "Run the model itself on it: torcheer.intervene makes a change live, log_forward_pass takes another input"

# maps an operation to the ranges (first, end) of the operations that read its changed value
Spans = Mapping[int, Iterable[tuple[int, int]]]


class Behind:
    """Finds the operations that depend on a changed operation, through arguments or through memory."""

    def __init__(self, run: LoggedRun, changed: set[int], spans: Spans) -> None:
        self._run = run
        self._log = run.log
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
        """Raise if a value that depends on the change cannot be computed again."""
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
        self._refuse_made_parameters()

    def _refuse_made_parameters(self) -> None:
        """Raise if the model may have made a parameter from a constant that changes: the log has no edge for this."""
        log, index = self._log, self._run.index
        made = [state for state in log.states if self._is_made(state) and not state.is_absent and not is_freed(state.value)]
        constant: set[int] = set()  # operations that depend on no input, parameter or tensor from outside
        readers: dict[int, int] = {}
        for number, row in enumerate(log.rows if made else ()):
            record = log.operations[number]
            for parent in filter(lambda parent: parent < 0, record.parents):
                readers.setdefault(parent, number)
            is_outside = record.origin is not Origin.OPERATION or min(row[PARENTS:], default=0) < 0
            if not is_outside and constant.issuperset(record.dependencies):
                constant.add(number)
        for state in made:
            for number in sorted(constant & self.numbers):
                is_before, kept = number < readers.get(state.number, 0), log.values[number]
                if is_uninitialised(log.operations[number]):
                    continue
                if is_before and isinstance(kept, Tensor) and same_bits(kept, state.value.detach()):
                    raise self._failed(number, f"may be what the model made the parameter {index.state_name(state)!r} of")

    def _is_made(self, state: StateRecord) -> bool:
        """True if a parameter or buffer was made in the pass, or no module registers it."""
        index = self._run.index
        if id(state.tensor) not in index.state_names:
            return True
        root = self._log.root_of(index.state_name(state).rpartition(".")[0])
        return root is not None and root.is_made_running

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
        """The operations that ran inside code for which `is_meant` is true."""
        log = self._log
        codes = {code for code in range(len(log.codes)) if is_meant(log.codes, code)}
        sites = {site.number for site in log.sites if not codes.isdisjoint(site.codes)} if codes else set()
        return {number for number, row in enumerate(log.rows) if row[SITE] in sites} if sites else set()

    def _failed(self, number: int, what: str) -> ReplayFailed:
        return failed(self._run, number, f"cannot be worked out again: it {what}. {_ADVICE}")


def _is_of_tracing(codes: CodeTable, number: int) -> bool:
    file = codes.facts(number).file
    return os.path.basename(file) == "proxy_tensor.py" and codes.sources.is_torch(file)


def is_differentiation(function: TorchFunction) -> bool:
    """True for `torch.autograd.grad`, which needs autograd's graph through the replayed calls."""
    return function.func is torch.autograd.grad


def _ran_unseen(details: Details | None) -> bool:
    """True for a gradient that code outside the log may have changed: a hook, or the backward of a user's function."""
    return details is not None and (details.is_hooked or details.is_through_unseen)


def _has_known_parents(record: OperationRecord) -> bool:
    """True if a value from unwatched code depends only on its recorded parents."""
    if record.details.mutated:
        return record.function.name in _FROM_PYTHON
    # a wrapper depends on the tensors inside it
    return isinstance(record.value, Tensor) and type(record.value) not in PLAIN_CLASSES


def failed(run: LoggedRun, number: int, what: str) -> ReplayFailed:
    """A `ReplayFailed` that names the operation and its source line."""
    record = run.log.operations[number]
    name = run.index.label(number) if run.index.table.shows(number) else f"{record.function.name} ({number})"
    place = source_of(record.site, record.module)
    error = ReplayFailed(f"{name}{f' ({place})' if place is not None else ''} {what}.")
    error.operation = number
    return error


class StaleGuard:
    """Watches one replay. Raises if the replay would use an outdated value."""

    def __init__(self, run: LoggedRun, behind: Behind, inputs: Mapping[int, Tensor]) -> None:
        self._run = run
        self._log = run.log
        self._behind = behind.numbers
        self._touched: set[int] = set()  # storages that hold changed values
        self._outside: set[int] = set()  # storages that Python may read without torch
        self._foreign = {n for n, tensor in inputs.items() if _is_foreign(tensor)}
        self._foreign |= {s.number for s in self._log.states if not s.is_absent and _is_foreign(s.value)}
        known = self._log.details.items()
        self._foreign |= {n for n, one in known if one.is_foreign and self._log.operations[n].origin is not Origin.INPUT}
        self._varied: set[int] = set()  # nondeterministic operations, and operations that depend on them

    def before(self, record: OperationRecord, arguments: list[Tensor], written: list[Tensor]) -> None:
        """Called before each call; `written` are the tensors that the call will write to."""
        if self._foreign and len(arguments) == len(record.parents):
            for parent, tensor in zip(record.parents, arguments, strict=True):
                if parent in self._foreign:
                    self._outside |= storages_of(tensor)
        if record.number in self._behind:
            for tensor in written:
                storages = storages_of(tensor)
                if not self._outside.isdisjoint(storages):
                    raise failed(
                        self._run,
                        record.number,
                        "cannot be run again: it writes what is changed to memory that was handed out, as to NumPy, where the "
                        f"program may have read it. {_ADVICE}",
                    )
                self._touched |= storages

    def after(self, number: int, value: Any) -> None:
        """Called with the value of each operation."""
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
            self._run,
            number,
            f"cannot be run again: it now has {now}, and {before} was logged. The program may have read the size, and what "
            f"followed from that is not in the log. {_ADVICE}",
        )

    def _compare(self, number: int, value: Tensor) -> None:
        """Raise if a value that does not depend on the change differs from the logged value."""
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
            self._run, number, f"cannot be run again: it has another value than when it was logged, so {why}. {_ADVICE}"
        )

    def read(self, record: PythonReadRecord, tensors: list[Tensor], *, is_changed: bool) -> None:
        """Called where Python code read a value. Raises unless it equals the logged value, which the program used."""
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
    """True if torch did not allocate the tensor's memory (a NumPy array did, for example)."""
    try:
        return not tensor.untyped_storage().resizable()
    except (RuntimeError, AttributeError):  # the tensor has no storage of its own
        return False


def _count(tensor: Tensor) -> int | None:
    """How many values a sparse tensor stores; None for tensors of other layouts."""
    if tensor.layout is torch.sparse_coo:
        return len(sparse_parts(tensor)[1])
    return tensor.values().numel() if tensor.layout in COMPRESSED else None


# The replay itself. It always runs the recorded graph: a branch that the model took stays taken. The model does not run.

ReplayInputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]  # a tensor for each input, in order or by label


@thread_left_as_found
def replay(run: LoggedRun, inputs: ReplayInputs | None = None, changes: Mapping[KeyType, Given] | None = None) -> LoggedRun:
    """Run a log again with other inputs or changed values; everything downstream is computed again."""
    if not run.log.is_complete:
        raise InvalidArgument("only the history of a pass that ran to its end can be run again.")
    refuse_without_tensors(run, "run again")
    refuse_changed_states(run)
    by_number, spans = _changes(run, changes or {})
    given = _inputs(run, inputs)
    started = perf_counter()
    reads = {span.number: [(other.first, other.end) for other in spans if other.number == span.number] for span in spans}
    behind = Behind(run, {*by_number, *given}, reads)
    behind.refuse_kept_values()
    if behind.first is not None and not run.log.comes_again:
        run_again(run.log, {}, lambda: _Unchanged(run))
        run.log.comes_again = True
    told = run_again(run.log, given, lambda: _Rerun(run, by_number, spans, StaleGuard(run, behind, given)))
    told.keeper.settle(set())
    told.log.seconds = {"replay": perf_counter() - started}
    said = ", ".join(key if isinstance(key, str) else str(parse_key(key)) for key in changes or ())
    what = f" with {said} changed" if said else ""
    told.log.notes = [*told.log.notes, f"this is a replay of the recorded graph{what}"]
    return LoggedRun(told.log, run.options)


def _changes(run: LoggedRun, changes: Mapping[KeyType, Given]) -> tuple[dict[int, Change], dict[_Span, Change]]:
    """Return the change of each operation, and separately the changes that only some readers of a value see.

    If two keys mean the same operation, the key that means fewer operations wins.
    """
    meant: list[tuple[list[int | _Span], Change]] = []
    for key, given in changes.items():
        change = as_change(given, key)
        matches = run.lookup.meaning(key).matches
        if not matches:
            raise InvalidArgument(f"{key!r} stands for no operation of this history, so there is nothing to change.")
        meant.append(([_span(run, match) or match.number for match in matches], change))
    meant.sort(key=lambda pair: -len(pair[0]))
    found = {where: change for places, change in meant for where in places}
    whole = {where: change for where, change in found.items() if isinstance(where, int)}
    return whole, {where: change for where, change in found.items() if isinstance(where, _Span)}


def _span(run: LoggedRun, match: Match) -> _Span | None:
    """Return the readers for which a module's input or output is changed; None if all readers of the value see the change.

    Only operations inside the module see a changed input; only operations after the module see a changed output.
    """
    call, number = match.call, match.number
    if call is None:
        return None
    span = _Span(number, call.first, call.end) if match.is_input else _Span(number, call.end, len(run.log.rows))
    readers = run.index.children.get(number, ())
    return None if all(span.first <= reader < span.end for reader in readers) else span


def _inputs(run: LoggedRun, inputs: Any) -> dict[int, Tensor]:
    numbers = run.index.of_origin(Origin.INPUT)
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        given = {_input_meant(run, key, numbers): value for key, value in inputs.items()}
    else:
        values = list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        if len(values) != len(numbers):
            raise InvalidArgument(
                f"inputs must be one tensor for each of the {len(numbers)} inputs, in their order, or a dictionary from labels "
                f"to tensors; got {len(values)}."
            )
        given = dict(zip(numbers, values, strict=True))
    for number, value in given.items():
        if not isinstance(value, Tensor):
            label = run.index.label(number)
            raise InvalidArgument(f"the input {label} must be a tensor; got {type(value).__name__}: {value!r:.60}.")
    return given


def _input_meant(run: LoggedRun, key: AnyKey, numbers: list[int]) -> int:
    for number in numbers:
        if ("kwargs", key) in run.log.input_paths.get(number, ()):
            return number
    meant = run.lookup.meaning(key).numbers
    if len(meant) != 1 or meant[0] not in numbers:
        labels = ", ".join(run.index.label(number) for number in numbers)
        raise InvalidArgument(
            f"{key!r} is no input of this history; its inputs are {labels or 'none'}. Use changes= for others."
        )
    return meant[0]


@dataclass(frozen=True, slots=True)
class _Span:
    """The value of operation `number` as read by the operations n with `first <= n < end`."""

    number: int
    first: int
    end: int


class _Unchanged:
    """Raises if a replay without changes does not reproduce the log: a replay with changes would then be wrong too."""

    def __init__(self, run: LoggedRun) -> None:
        self._guard = StaleGuard(run, Behind(run, set(), {}), {})

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        pass

    def after(self, number: int, value: Any) -> Any:
        self._guard.after(number, value)
        return value


class _Rerun:
    """Makes the changes during a replay, and keeps its values in a new log."""

    def __init__(self, run: LoggedRun, changes: dict[int, Change], spans: dict[_Span, Change], guard: StaleGuard) -> None:
        self._guard = guard
        old = run.log
        log = self.log = copy.copy(old)
        log.rows, log.details = list(old.rows), {n: copy.copy(details) for n, details in old.details.items()}
        log.values, log.versions = [UNSAVED] * len(old.rows), [-1] * len(old.rows)
        log._lost = None
        log.comes_again = False
        log.backward = None
        for details in log.details.values():
            details.held = None
        self._run = run
        self._arguments: list[Tensor] = []  # tensors among the arguments of the call that is being made
        self._storages: set[int | None] = set()  # storages of the values so far
        self._cut: dict[int | None, str] = {}  # storage of a view that a change replaced -> the label of the view
        self._old = old
        self._changes = changes
        self._spans: dict[int, list[tuple[_Span, Change]]] = {}  # operation -> changes of its value that only some readers see
        for span, change in spans.items():
            self._spans.setdefault(span.number, []).append((span, change))
        self._read: dict[_Span, Tensor] = {}  # maps a span to the changed value that the readers in it see
        self._follows = any(map(is_differentiation, old.functions))  # True if gradients must flow through changed values
        self.keeper = Keeper(log, Policy())
        self.keeper.storages.extend([None] * len(old.rows))

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        written = record.function.writes(args, kwargs)
        self._arguments = tensors_of((args, kwargs))
        self._guard.before(record, self._arguments, written)
        self._keep_before(record, written)

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        self._guard.before(record, [], written)
        self._keep_before(record, written)

    def _keep_before(self, record: OperationRecord, written: list[Tensor]) -> None:
        for storage in {storage for tensor in written for storage in storages_of(tensor)}:
            self.keeper.before_write(storage)
            if storage in self._cut:
                raise ReplayFailed(
                    f"{self._cut[storage]} cannot be changed: it is a view, and {record.function.name!r} (operation "
                    f"{record.number}) writes to its memory later. Change the result of that instead."
                )

    def after(self, number: int, value: Any) -> Any:
        if number in self._changes:
            value = self._changed(number, value)
        self._guard.after(number, value)
        row = self.log.rows[number]
        self.log.rows[number] = (*row[:FACTS], None, *row[PARENTS:])
        if self._old.values[number] is UNSAVED or not isinstance(value, Tensor):
            facts = facts_of(value) if isinstance(value, Tensor) else None
            self.log.rows[number] = (*row[:FACTS], facts, *row[PARENTS:])
        else:
            self.keeper.keep(number, value)
        self._storages.add(storage_of(value) if isinstance(value, Tensor) else None)
        return value

    def _refuse_two_names(self, number: int, value: Tensor) -> None:
        """Raise if a call returned its argument and a reader uses both: `x + dropout(x)` in evaluation.

        The log cannot tell the two apart. Readers that use only one are assumed to use the result.
        """
        record = self._old.operations[number]
        if record.overwritten is not None or not any(value is one for one in self._arguments):
            return
        readers = [self._old.operations[reader] for reader in self._run.index.children.get(number, ())]
        outputs = sum(reader.origin is Origin.OUTPUT for reader in readers)
        if outputs > 1 or any(reader.parents.count(number) > 1 for reader in readers):
            raise failed(
                self._run,
                number,
                "cannot be changed in a replay: it handed back the tensor it was given, and the log cannot tell which of "
                "the two is read later. Change the operation before it, or change it live with torcheer.intervene",
            )

    def read(self, record: PythonReadRecord, tensors: list[Tensor]) -> None:
        """Called where Python code reads a tensor. Raises if the value, or a changed input of a module, is not as logged."""
        self._guard.read(record, tensors, is_changed=False)
        inside = list(tensors)  # it is unknown which module a read between two operations was in, so both must be as logged
        for slot, parent in enumerate(record.parents):
            for span, change in self._spans.get(parent, ()):
                if span.first <= record.before <= span.end:
                    inside[slot] = self._instead(span, change, tensors[slot])
                    self._guard.read(record, inside, is_changed=True)

    def substitute(self, reader: int, number: int, value: Any) -> Any:
        """Return the value of operation `number` for `reader`: another one if a module's input or output is changed for it."""
        for span, change in self._spans.get(number, ()):
            if span.first <= reader < span.end:
                value = self._instead(span, change, value)
                slots = [slot for slot, parent in enumerate(self.log.operations[reader].parents) if parent == number]
                details = self.log.detail(reader)
                details.held = {**(details.held or {}), **dict.fromkeys(slots, Held(value, -1))}
        return value

    def _instead(self, span: _Span, change: Change, value: Tensor) -> Tensor:
        """Return the changed value, which the readers of a span see instead of `value`."""
        if span not in self._read:
            self._read[span] = self._made(change, span.number, value)
            label = self._run.index.label(span.number)
            self._cut[storage_of(value)] = self._cut[storage_of(self._read[span])] = label
        return self._read[span]

    def _made(self, change: Change, number: int, value: Tensor) -> Tensor:
        heads = head_axis(OperationFacts(self._run.index, number)) if change.heads is not None else None
        follows = self._follows and value.requires_grad
        with torch.set_grad_enabled(follows):
            given = cloned(value if follows else value.detach())
            new = cloned(change(given, self._run.index.label(number), heads or ()))
        return new if follows else new.detach()

    def _changed(self, number: int, value: Tensor) -> Tensor:
        change, label = self._changes[number], self._run.index.label(number)
        self._refuse_two_names(number, value)
        new = self._made(change, number, value)
        self.log.detail(number).changed = str(change)
        storage = storage_of(value)
        if self._old.operations[number].overwritten is not None:  # other tensors refer to the memory that the call wrote
            self.keeper.before_write(storage)
            try:
                with torch.set_grad_enabled(new.requires_grad and value.grad_fn is not None):
                    value.copy_(new)
            except RuntimeError as error:
                raise failed(self._run, number, f"is written in place, and cannot be changed there: {error}") from error
            return value
        if storage in self._storages and storage is not None:
            self._cut[storage] = self._cut[storage_of(new)] = label
        return new
