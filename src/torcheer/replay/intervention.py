"""Runs a history again with other inputs, or with values changed on the way: the simplest intervention.

The graph is the recorded one, whatever the values: a branch that was taken stays taken. The model is not touched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..capture.identity import storage_of
from ..capture.retention import Keeper
from ..errors import InvalidArgument, ReplayFailed
from ..history import History
from ..history.filling import operations_meant
from ..records import FACTS, PARENTS, UNSAVED, OperationRecord, Origin
from .machine import run_again

Change = Tensor | Callable[[Tensor], Tensor]
Kind = TypeVar("Kind", bound=History)


def replay(history: Kind, inputs: Any = None, changes: Mapping[Any, Change] | None = None) -> Kind:
    """A new history in which everything downstream of other inputs or changed values follows."""
    if not history.is_complete:
        raise InvalidArgument("only the history of a pass that ran to its end can be run again.")
    if not history._log.holds_tensors:
        raise InvalidArgument("a history made with activation_postfunc has no tensors to run again; log without it.")
    by_number = _changes(history, changes or {})
    given = _inputs(history, inputs)
    started = perf_counter()
    told = run_again(history._log, given, lambda: _Rerun(history, by_number))
    told.keeper.settle(set())
    told.log.seconds = {"replay": perf_counter() - started}
    new = type(history)(history.model_name, history._options)
    new._log = told.log
    return new


def _changes(history: History, changes: Mapping[Any, Change]) -> dict[int, Change]:
    found: dict[int, Change] = {}
    for key, change in changes.items():
        if not isinstance(change, Tensor) and not callable(change):
            raise InvalidArgument(f"a change is a tensor or a function of a tensor; {key!r} has {type(change).__name__}.")
        for number in operations_meant(history, key):
            found[number] = change
    return found


def _inputs(history: History, inputs: Any) -> dict[int, Tensor]:
    numbers = [one._number for one in history.inputs]
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return {n: tensor for key, tensor in inputs.items() for n in operations_meant(history, key)}
    values: Sequence[Tensor] = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    if len(values) != len(numbers) or not all(isinstance(value, Tensor) for value in values):
        raise InvalidArgument(
            f"inputs must be one tensor for each of the {len(numbers)} inputs, in their order, or a dictionary from labels to "
            f"tensors; got {len(values)}."
        )
    return dict(zip(numbers, values, strict=True))


class _Rerun:
    """Keeps the values of a replay in a log of their own, and changes some on the way."""

    def __init__(self, history: History, changes: dict[int, Change]) -> None:
        old = history._log
        log = self.log = copy.copy(old)
        log.rows, log.details = list(old.rows), {n: copy.copy(details) for n, details in old.details.items()}
        log.values, log.versions = [UNSAVED] * len(old.rows), [-1] * len(old.rows)
        log._lost = None
        for details in log.details.values():
            details.held = None
        self._history = history
        self._old = old
        self._changes = changes
        self.keeper = Keeper(log, None, None, None)
        self.keeper.storages.extend([None] * len(old.rows))

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        function = record.function
        if function.written is not None or record.details.mutated:
            written = function.written(args, kwargs) if function.written is not None else []
            for tensor in written:
                self.keeper.before_write(storage_of(tensor))
            if not written and args and isinstance(args[0], Tensor):
                self.keeper.before_write(storage_of(args[0]))

    def after(self, number: int, value: Any) -> Any:
        if number in self._changes:
            value = self._changed(number, value)
        row = self.log.rows[number]
        self.log.rows[number] = (*row[:FACTS], None, *row[PARENTS:])
        if self._old.values[number] is UNSAVED or not isinstance(value, Tensor):
            self.log.rows[number] = (*row[:FACTS], _facts(value), *row[PARENTS:])
        else:
            self.keeper.keep(number, value)
        return value

    def _changed(self, number: int, value: Tensor) -> Tensor:
        change = self._changes[number]
        with torch.no_grad():
            new = change if isinstance(change, Tensor) else change(value.detach().clone())
        label = self._history._index.label(number)
        if not isinstance(new, Tensor) or new.shape != value.shape:
            came = f"{tuple(new.shape)}" if isinstance(new, Tensor) else type(new).__name__
            raise ReplayFailed(f"the change of {label} must be a tensor of shape {tuple(value.shape)}; got {came}.")
        new = new.detach().to(value.device, value.dtype).clone()
        if self._log_says_shared(number):
            with torch.no_grad():
                value.copy_(new)  # others look at the same memory
            return value
        return new

    def _log_says_shared(self, number: int) -> bool:
        record = self._old.operations[number]
        return bool(record.details.mutated) or record.origin is Origin.OUTPUT


def _facts(value: Any) -> Any:
    return (tuple(value.shape), value.dtype, value.device) if isinstance(value, Tensor) else None
