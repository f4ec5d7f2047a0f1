"""Decides which activations are kept, and whether as the tensor, as a postprocessed value, or as a place in a file.

A `Policy` says what to keep, without knowing labels, devices or files: `Policy()` keeps every tensor by reference. `Keeper`
carries it out, and copies a kept tensor before its memory is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.containers import replace_tensors, tensors_in
from .._torch.functions.facts import TorchFunction
from .._torch.internals import is_transforming
from .._torch.memory import FREED, MemoryCopy, alias, copied, has_memory, is_plain_memory, version_of
from .._torch.tensor_table import PLAIN_CLASSES, extent, storage_of, storages_of
from ..errors import TorcheerError
from ..log.records import LOST, OVERWRITTEN, Held, Log, ModuleCall, OperationRecord


class Selection:
    """Decides which operations to keep. The base class keeps none; `running.py` has the selections that follow keys."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        """True if the operation about to run is kept; None if that can be decided only after it ran."""
        return False

    def after(self, record: OperationRecord) -> bool:
        """True if an operation that ran is kept."""
        return False

    def entering(self, call: ModuleCall) -> bool:
        """True if the inputs of this module call are kept."""
        return False

    def leaving(self, call: ModuleCall) -> bool:
        """True if the outputs of this module call are kept."""
        return False


# A function that returns the value to keep in place of a tensor: a tensor on another device, a number, a position in a file.
Take = Callable[[Tensor, OperationRecord], Any]


class Sink(Protocol):
    """Takes tensors as they are made, for example to write them to a file."""

    def write(self, tensor: Tensor, what: str) -> Any:
        """Store a tensor; `what` describes it in errors. Returns the object that stands for it in the log."""

    def overwritten(self, storage: int) -> None:
        """Called before the memory of stored tensors is overwritten."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Says which tensors one recording keeps, and in which form."""

    selection: Selection | None = None  # decides which operations are kept; None: all
    take: Take | None = None  # makes the value to keep; None: keep the tensor by reference, copied before it is overwritten
    sink: Sink | None = None  # stores the tensors outside the log

    @property
    def is_plain(self) -> bool:
        """True if every tensor is kept by reference."""
        return self.selection is None and self.take is None and self.sink is None


def taking(device: torch.device | str | None, postfunc: Callable[[Tensor], Any] | None) -> Take | None:
    """Make a function that moves tensors to a device and applies `postfunc`; None if there is nothing to do."""
    if device is None and postfunc is None:
        return None
    place = torch.device(device) if device is not None else None

    def take(tensor: Tensor, record: OperationRecord) -> Any:
        if place is not None and tensor.device != place:
            tensor = tensor.to(place)
        return _applied(postfunc, tensor, record) if postfunc is not None else tensor

    return take


def _applied(postfunc: Callable[[Tensor], Any], tensor: Tensor, record: OperationRecord) -> Any:
    try:
        with torch.no_grad():
            result = postfunc(tensor)
    except Exception as error:
        pass_interrupts_on(error)
        raise TorcheerError(
            f"activation_postfunc raised {type(error).__name__}: {error}\n"
            f"while keeping the output of {record.function.name!r}, shape {tuple(tensor.shape)}. "
            "It is called with one tensor and keeps what it returns."
        ) from error
    return result if isinstance(result, Tensor) else _without_sharing(result, tensor)


def _without_sharing(result: Any, value: Tensor) -> Any:
    """Replace tensors in the result of a postfunc that share memory with the activation by copies."""
    memory = storage_of(value)
    if not any(storage_of(tensor) == memory for tensor in tensors_in(result)):
        return result
    return replace_tensors(result, lambda tensor: tensor.clone() if storage_of(tensor) == memory else tensor)


# Keeps activations without copying them.
#
# A kept activation is a detached alias of the model's own tensor. The alias is replaced by a copy before its memory is
# written to, and at the end of the pass if the memory stays in use. So a kept value never changes, and keeping everything
# costs no copies if nothing is overwritten.
#
# An example:
#
#     y = x * 2      # record 1 holds an alias of y
#     z = y.t()      # record 2 holds an alias of z, in the same storage
#     y.relu_()      # about to write to that storage: records 1 and 2 get copies of what they hold; record 3 holds an
#                    # alias of y
#     return y       # y lives on in the user's hands: at the end record 3 gets a copy, too

# The holder of a kept tensor: an operation, given by its number, or an argument that is kept separately.
Holder = int | Held


class Keeper:
    """Keeps tensors for one recording, and finds them by storage."""

    def __init__(self, log: Log, policy: Policy) -> None:
        self.log = log
        self.selection = policy.selection
        self.is_plain = policy.is_plain
        self._take = policy.take
        self._sink = policy.sink
        self.storages: list[int | None] = []  # for each operation: the storage of its kept tensor
        self.shared: set[int] = set()  # storages that code outside torch can write to: tensors in them are copied at once
        self._by_storage: dict[int, list[Holder]] = {}
        self._filed = 0  # `_by_storage` has the operations before this number
        self._latest: int | None = None  # an operation that is not kept; its arguments are held until the next operation

    def keep_if_wanted(self, number: int, tensor: Tensor) -> None:
        """Keep `tensor` as the activation of an operation, if the selection wants it."""
        selection = self.selection
        if selection is not None:
            record = self.log.operations[number]
            wanted = selection.before(record.function, record.module)
            if not (selection.after(record) if wanted is None else wanted):
                return
        self.keep(number, tensor)

    def keep(self, number: int, tensor: Tensor) -> None:
        if not has_memory(tensor):
            self.log.mark_freed(number)
            self.log.without_memory.add(number)
            return
        value: Any = self._unchanging(tensor)
        if value is None:
            return  # the class allows neither a view nor a copy
        if self._take is not None:
            value = self._take(value, self.log.operations[number])
        if self._sink is not None and isinstance(value, Tensor):
            value = self._sink.write(value, f"what {self.log.operations[number].function.name!r} made (operation {number})")
        self.log.values[number] = value
        if isinstance(value, Tensor):
            self.log.versions[number] = version_of(value)
            if self._take is not None:
                # The value may have memory of its own, and the tensor's memory may be reused.
                self._note(number, storage_of(value))
            elif type(tensor) in PLAIN_CLASSES and not self.shared:
                self._note(number, storage_of(tensor))
            else:
                self._file_parts(number, tensor)

    def _unchanging(self, tensor: Tensor) -> Tensor | None:
        """Make an alias of `tensor`, to be copied before a write; or a copy if code outside torch can write to its memory."""
        value = alias(tensor)
        if value is not None and self._is_shared(tensor):
            return copied(value)
        return value

    def _is_shared(self, tensor: Tensor) -> bool:
        return bool(self.shared) and not self.shared.isdisjoint(storages_of(tensor))

    def _file_parts(self, holder: Holder, tensor: Tensor) -> None:
        """Note that `holder` holds an alias of `tensor`, unless it holds a copy."""
        for storage in storages_of(tensor) if not self._is_shared(tensor) else ():
            self._file(holder, storage)

    def share(self, number: int, source: int, storage: int | None) -> None:
        """Let an operation keep the same value as operation `source`."""
        self.log.values[number] = self.log.values[source]
        self.log.versions[number] = self.log.versions[source]
        self._note(number, storage)

    def _note(self, number: int, storage: int | None) -> None:
        """Note that an operation holds a tensor of this storage."""
        if number >= self._filed:
            self.storages[number] = storage
        else:
            self._file(number, storage)

    def _file(self, holder: Holder, storage: int | None) -> None:
        if storage is not None:
            self._by_storage.setdefault(storage, []).append(holder)

    def _index_new_operations(self) -> None:
        """Build `_by_storage` up to the latest operation. Done late, because most passes overwrite nothing."""
        if self._filed == len(self.storages):
            return
        for number in range(self._filed, len(self.storages)):
            storage = self.storages[number]
            if storage is not None:
                self._by_storage.setdefault(storage, []).append(number)
        self._filed = len(self.storages)

    def kept_in(self, storage: int) -> list[tuple[int, Tensor]]:
        """List (number, tensor) for the operations whose kept tensors are in this storage."""
        self._index_new_operations()
        numbers = [holder for holder in self._by_storage.get(storage, ()) if isinstance(holder, int)]
        return [(n, self.log.values[n]) for n in numbers if isinstance(self.log.values[n], Tensor)]

    def hold_arguments(self, slots: list[tuple[int, Tensor]]) -> dict[int, Held]:
        """Keep arguments separately from their records, by slot."""
        found: dict[int, Held] = {}
        for slot, tensor in slots:
            value = self._unchanging(tensor)
            if value is not None and self._sink is not None:
                found[slot] = Held(self._sink.write(value, "an argument"), -1)
            elif value is not None:
                held = found[slot] = Held(value, version_of(value))
                self._file_parts(held, tensor)
        return found

    def remember_arguments(self, number: int) -> None:
        """Hold the arguments of the latest call until the next call, in case a selected module returns the call's result."""
        self.forget_arguments()
        self._latest = number

    def keep_late(self, number: int, tensor: Tensor) -> None:
        """Keep an operation that was selected after it ran."""
        self.keep(number, tensor)
        if self._latest is not None and self._latest == self.log.operations[number].call:
            self._latest = None

    def forget_arguments(self) -> None:
        """Drop the arguments held by `remember_arguments`."""
        if self._latest is None:
            return
        gone = set(map(id, (self.log.details[self._latest].held or {}).values()))
        self.log.forget(self._latest)
        self._latest = None
        for storage, holders in list(self._by_storage.items()):
            left = [holder for holder in holders if id(holder) not in gone]
            if left:
                self._by_storage[storage] = left
            else:
                del self._by_storage[storage]

    def before_write(self, storage: int | None) -> None:
        """Called before a write to `storage`: copy the tensors that are kept in it."""
        if storage is None:
            return
        if self._sink is not None:
            self._sink.overwritten(storage)
        self._index_new_operations()
        holders = self._by_storage.pop(storage, None)
        if holders is None:
            return
        held = list(map(self._held_by, holders))
        kept = {id(value): value for value, _ in held if isinstance(value, Tensor)}  # several holders may share a tensor
        readable = {key: value for key, value in kept.items() if has_memory(value)}
        copied = _copied_together(list(readable.values()))
        copies = {key: copied(value) if key in readable else None for key, value in kept.items()}
        for holder, (value, known) in zip(holders, held, strict=True):
            if id(value) not in copies:
                continue
            if id(value) not in readable and isinstance(holder, int):
                self.log.mark_freed(holder)
            elif id(value) not in readable:
                self._hold(holder, FREED, -1)
            elif known >= 0 and version_of(value) != known:  # an unwatched write came before
                self._hold(holder, value, OVERWRITTEN)
            elif (fresh := copies[id(value)]) is not None:
                self._hold(holder, fresh, version_of(fresh))
            else:  # a class that cannot be copied
                self._hold(holder, value, LOST)

    def _held_by(self, holder: Holder) -> tuple[Any, int]:
        """The value that a holder holds, and its version when it was kept."""
        if isinstance(holder, int):
            return self.log.values[holder], self.log.versions[holder]
        return holder.value, holder.version

    def _hold(self, holder: Holder, value: Any, version: int) -> None:
        if isinstance(holder, int):
            self.log.values[holder], self.log.versions[holder] = value, version
        else:
            holder.value, holder.version = value, version

    def intact(self) -> list[Holder]:
        """List the operations and held arguments whose tensors were written to by watched code only, or not at all."""
        log = self.log
        holders: list[Holder] = [*range(len(log.rows))]
        holders += [one for details in log.details.values() for one in (details.held or {}).values()]
        kept = [(holder, *self._held_by(holder)) for holder in holders]
        return [holder for holder, value, known in kept if known >= 0 and version_of(value) == known]

    def count_again(self, intact: list[Holder]) -> None:
        """Update the version counts of tensors that no unwatched code wrote to, after torch has counted other writes."""
        for holder in intact:
            value, _ = self._held_by(holder)
            self._hold(holder, value, version_of(value))

    def lose(self, storage: int) -> None:
        """Mark tensors kept in this storage as lost: unwatched code may have written to it."""
        if self._sink is not None:
            self._sink.overwritten(storage)
        self._index_new_operations()
        for holder in self._by_storage.pop(storage, ()):
            self._hold(holder, self._held_by(holder)[0], LOST)

    def settle(self, living: set[int]) -> None:
        """Called when the pass is over: copy tensors in storages that stay in use."""
        self.forget_arguments()
        new = enumerate(self.storages[self._filed :], self._filed)
        # tensors in other storages need no index
        for number, storage in [(n, s) for n, s in new if s is not None and s in living]:
            self._by_storage.setdefault(storage, []).append(number)
        self._filed = len(self.storages)
        for storage in living & self._by_storage.keys():
            self.before_write(storage)
        self._by_storage.clear()
        self.storages.clear()
        self._filed = 0


def _copied_together(values: list[Tensor]) -> Callable[[Tensor], Tensor | None]:
    """Make a function that copies tensors of one storage: all their memory at once, if separate copies would be larger.

    Copies of overlapping tensors then overlap, too.
    """
    # a running transform would wrap the views
    if len(values) < 2 or is_transforming() or not all(map(is_plain_memory, values)):
        return copied
    starts, stops, _ = zip(*map(extent, values), strict=True)
    start, stop = min(starts), max(stops)
    if sum(value.nbytes for value in values) <= stop - start:
        return copied
    return MemoryCopy(values[0], start, stop).of
