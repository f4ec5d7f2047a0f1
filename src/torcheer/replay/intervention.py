"""Runs a history again with other inputs, or with values changed on the way: the simplest intervention.

The graph is the recorded one, whatever the values: a branch that was taken stays taken. The model is not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..capture import Policy
from ..capture.identity.tensor_table import storage_of, storages_of
from ..capture.keep.keeper import Keeper
from ..changes import Change, Given, as_change
from ..errors import InvalidArgument, ReplayFailed
from ..history import History, Operation
from ..history.attention import head_axis
from ..keys import AnyKey, KeyType, Match, parse_key
from ..records import FACTS, PARENTS, UNSAVED, Held, OperationRecord, Origin, PythonReadRecord, facts_of
from ..tensor_memory import cloned
from .machine import refuse_changed_states, refuse_without_tensors, run_again
from .staleness import Behind, StaleGuard, failed, is_differentiation
from .walk import tensors_of

ReplayInputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]  # one for each input, or by label
Kind = TypeVar("Kind", bound=History)


def replay(history: Kind, inputs: ReplayInputs | None = None, changes: Mapping[KeyType, Given] | None = None) -> Kind:
    """A new history with other inputs or changed values, and everything downstream of them computed again."""
    if not history.is_complete:
        raise InvalidArgument("only the history of a pass that ran to its end can be run again.")
    refuse_without_tensors(history, "run again")
    refuse_changed_states(history)
    by_number, spans = _changes(history, changes or {})
    given = _inputs(history, inputs)
    started = perf_counter()
    reads = {span.number: [(other.first, other.end) for other in spans if other.number == span.number] for span in spans}
    behind = Behind(history, {*by_number, *given}, reads)
    behind.refuse_kept_values()
    if behind.first is not None and not history._log.comes_again:
        run_again(history._log, {}, lambda: _Unchanged(history))
        history._log.comes_again = True
    told = run_again(history._log, given, lambda: _Rerun(history, by_number, spans, StaleGuard(history, behind, given)))
    told.keeper.settle(set())
    told.log.seconds = {"replay": perf_counter() - started}
    said = ", ".join(key if isinstance(key, str) else str(parse_key(key)) for key in changes or ())
    what = f" with {said} changed" if said else ""
    told.log.notes = [*told.log.notes, f"this is a replay of the recorded graph{what}"]
    return history._of_log(told.log, history._options)


def _changes(history: History, changes: Mapping[KeyType, Given]) -> tuple[dict[int, Change], dict[_Span, Change]]:
    """The change of each operation, and of each value that only some of its readers see changed.

    Where two keys mean the same operation, the key that means fewer operations decides.
    """
    meant: list[tuple[list[int | _Span], Change]] = []
    for key, given in changes.items():
        change = as_change(given, key)
        matches = history._lookup.meaning(key).matches
        if not matches:
            raise InvalidArgument(f"{key!r} stands for no operation of this history, so there is nothing to change.")
        meant.append(([_span(history, match) or match.number for match in matches], change))
    meant.sort(key=lambda pair: -len(pair[0]))
    found = {where: change for places, change in meant for where in places}
    whole = {where: change for where, change in found.items() if isinstance(where, int)}
    return whole, {where: change for where, change in found.items() if isinstance(where, _Span)}


def _span(history: History, match: Match) -> _Span | None:
    """The readers for which a module's input or output is changed; None if these are all readers of the value.

    A changed input is seen by the operations inside the module only, a changed output by those after it.
    """
    call, number = match.call, match.number
    if call is None:
        return None
    span = _Span(number, call.first, call.end) if match.is_input else _Span(number, call.end, len(history._log.rows))
    readers = history._index.children.get(number, ())
    return None if all(span.first <= reader < span.end for reader in readers) else span


def _inputs(history: History, inputs: Any) -> dict[int, Tensor]:
    numbers = [one._number for one in history.inputs]
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        given = {_input_meant(history, key, numbers): value for key, value in inputs.items()}
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
            label = history._index.label(number)
            raise InvalidArgument(f"the input {label} must be a tensor; got {type(value).__name__}: {value!r:.60}.")
    return given


def _input_meant(history: History, key: AnyKey, numbers: list[int]) -> int:
    for number in numbers:
        if ("kwargs", key) in history._log.input_paths.get(number, ()):
            return number
    meant = history._lookup.meaning(key).numbers
    if len(meant) != 1 or meant[0] not in numbers:
        labels = ", ".join(history._index.label(number) for number in numbers)
        raise InvalidArgument(
            f"{key!r} is no input of this history; its inputs are {labels or 'none'}. Use changes= for others."
        )
    return meant[0]


@dataclass(frozen=True, slots=True)
class _Span:
    """The value of operation `number`, as operations from `first` to before `end` read it."""

    number: int
    first: int
    end: int


class _Unchanged:
    """Raises where a value of the log does not come again though nothing is changed: a replay with a change would be wrong."""

    def __init__(self, history: History) -> None:
        self._guard = StaleGuard(history, Behind(history, set(), {}), {})

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pass

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        pass

    def after(self, number: int, value: Any) -> Any:
        self._guard.after(number, value)
        return value


class _Rerun:
    """Keeps the values of a replay in a log of their own, and changes some on the way."""

    def __init__(self, history: History, changes: dict[int, Change], spans: dict[_Span, Change], guard: StaleGuard) -> None:
        self._guard = guard
        old = history._log
        log = self.log = copy.copy(old)
        log.rows, log.details = list(old.rows), {n: copy.copy(details) for n, details in old.details.items()}
        log.values, log.versions = [UNSAVED] * len(old.rows), [-1] * len(old.rows)
        log._lost = None
        log.comes_again = False
        log.backward = None
        for details in log.details.values():
            details.held = None
        self._history = history
        self._arguments: list[Tensor] = []  # of the call that is being made
        self._storages: set[int | None] = set()  # of the values so far
        self._cut: dict[int | None, str] = {}  # by storage of a view that a change replaced: the label of the view
        self._old = old
        self._changes = changes
        self._spans: dict[int, list[tuple[_Span, Change]]] = {}  # by the operation that is read
        for span, change in spans.items():
            self._spans.setdefault(span.number, []).append((span, change))
        self._read: dict[_Span, Tensor] = {}  # what is read instead
        self._follows = any(map(is_differentiation, old.functions))  # whether gradients have to flow through changes
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
        """Raise where a call handed back its argument and a reader has both: `x + dropout(x)` in evaluation.

        In a log both are one value. Other readers are taken to read what the call returned.
        """
        record = self._old.operations[number]
        if record.overwritten is not None or not any(value is one for one in self._arguments):
            return
        readers = [self._old.operations[reader] for reader in self._history._index.children.get(number, ())]
        outputs = sum(reader.origin is Origin.OUTPUT for reader in readers)
        if outputs > 1 or any(reader.parents.count(number) > 1 for reader in readers):
            raise failed(
                self._history,
                number,
                "cannot be changed in a replay: it handed back the tensor it was given, and the log cannot tell which of "
                "the two is read later. Change the operation before it, or change it live with torcheer.intervene",
            )

    def read(self, record: PythonReadRecord, tensors: list[Tensor]) -> None:
        """Values left for Python here: they have to be what was logged, also where a module was given a changed input."""
        self._guard.read(record, tensors, is_changed=False)
        inside = list(tensors)  # between two operations it cannot be told which module a read was in: both have to be so
        for slot, parent in enumerate(record.parents):
            for span, change in self._spans.get(parent, ()):
                if span.first <= record.before <= span.end:
                    inside[slot] = self._instead(span, change, tensors[slot])
                    self._guard.read(record, inside, is_changed=True)

    def substitute(self, reader: int, number: int, value: Any) -> Any:
        """The value that `reader` reads of another operation: changed, where a module's input or output is changed for it."""
        for span, change in self._spans.get(number, ()):
            if span.first <= reader < span.end:
                value = self._instead(span, change, value)
                slots = [slot for slot, parent in enumerate(self.log.operations[reader].parents) if parent == number]
                details = self.log.detail(reader)
                details.held = {**(details.held or {}), **dict.fromkeys(slots, Held(value, -1))}
        return value

    def _instead(self, span: _Span, change: Change, value: Tensor) -> Tensor:
        """What is read instead of `value` in a span."""
        if span not in self._read:
            self._read[span] = self._made(change, span.number, value)
            label = self._history._index.label(span.number)
            self._cut[storage_of(value)] = self._cut[storage_of(self._read[span])] = label
        return self._read[span]

    def _made(self, change: Change, number: int, value: Tensor) -> Tensor:
        heads = head_axis(Operation(self._history._index, number)) if change.heads is not None else None
        follows = self._follows and value.requires_grad
        with torch.set_grad_enabled(follows):
            given = cloned(value if follows else value.detach())
            new = cloned(change(given, self._history._index.label(number), heads or ()))
        return new if follows else new.detach()

    def _changed(self, number: int, value: Tensor) -> Tensor:
        change, label = self._changes[number], self._history._index.label(number)
        self._refuse_two_names(number, value)
        new = self._made(change, number, value)
        self.log.detail(number).changed = str(change)
        storage = storage_of(value)
        if self._old.operations[number].overwritten is not None:  # others look at the memory that was written
            self.keeper.before_write(storage)
            try:
                with torch.set_grad_enabled(new.requires_grad and value.grad_fn is not None):
                    value.copy_(new)
            except RuntimeError as error:
                raise failed(self._history, number, f"is written in place, and cannot be changed there: {error}") from error
            return value
        if storage in self._storages and storage is not None:
            self._cut[storage] = self._cut[storage_of(new)] = label
        return new
