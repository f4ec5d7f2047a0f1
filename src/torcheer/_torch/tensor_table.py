"""Knows the record of each tensor, by weak references, and the last writes to each storage.

An example:

    y = x * 2      # record 1: the table has y -> 1
    z = y[0]       # record 2: z -> 2; a view, so it has the same storage as y
    z.add_(1)      # record 3: z -> 3; and 3 is noted as the last write to the storage, with the bytes of z
    w = y + 1      # y is still record 1, but record 3 wrote to bytes of y since: record 4 depends on 1 and on 3

The table keeps no tensor alive and changes none. A tensor is found by `id`; because ids are reused, an entry counts only
while its weak reference leads to the same tensor.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .internals import (
    DisableTorchFunctionSubclass,
    functorch_unwrapped,
    is_functorch_wrapped,
    pointer_of,
    sparse_parts,
    storage_address,
)

PLAIN_CLASSES = frozenset({Tensor, torch.nn.Parameter})
# Stands for the last writer of a storage that code outside torch can write to: larger than the number of any record.
UNKNOWN_WRITER = 1 << 62


class Entry(weakref.ref[Tensor]):
    """A known tensor: the number of its record, and its storage."""

    __slots__ = ("number", "storage")
    number: int
    storage: int | None


@dataclass(slots=True, eq=False)
class Write:
    """One write to bytes `start <= b < stop` of a storage."""

    number: int
    start: int
    stop: int
    is_dense: bool

    def overlaps(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop

    def covers(self, start: int, stop: int) -> bool:
        return self.is_dense and self.start <= start and stop <= self.stop


class TensorTable:
    """The live tensors of one recording, and the writes to their memory."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}  # id of a tensor, which may be gone -> its entry
        self.last_write: dict[int | None, int] = {}  # storage -> the number of the last record that wrote to it
        # for each call that returned its argument: the argument's entry, its record before the call, the record of the call
        self.handed_back: list[tuple[Entry, int, int]] = []
        self._writes: dict[int, list[Write]] = {}
        self._hollow: dict[int, Entry] = {}  # id of a tensor without elements, which may get memory unseen -> its entry
        self.shared: set[int] = set()  # storages that code outside torch can write to
        # maps a storage that uses memory of another storage to that other storage, and the offset in it
        self.homes: dict[int, tuple[int, int]] = {}

    def find(self, tensor: Tensor) -> Entry | None:
        """The entry of `tensor`, if it has one."""
        entry = self.entries.get(id(tensor))
        return entry if entry is not None and entry() is tensor else None

    def point(self, tensor: Tensor, number: int, storage: int | None) -> Entry:
        """Record that `tensor` stands for record `number` from now on."""
        entry = self.entries.get(id(tensor))
        if entry is None or entry() is not tensor:
            entry = self.entries[id(tensor)] = Entry(tensor)
        entry.number = number
        entry.storage = storage
        return entry

    def note_handed_back(self, tensor: Tensor, number: int) -> None:
        """Note that call `number` returned `tensor` without writing to it: if `tensor` has an entry, it is an argument."""
        entry = self.find(tensor)
        if entry is not None:
            self.handed_back.append((entry, entry.number, number))

    def leave(self, first: int, outputs: tuple[int, ...]) -> None:
        """Called when a module ends, inside which record `first` and later records were written.

        `x.to(dtype)` may return `x` itself. Then `x` gets the record of that call. If the module does not return `x`, code
        outside holds `x` as the module's argument, so `x` gets its earlier record again.
        """
        kept: list[tuple[Entry, int, int]] = []
        while self.handed_back and self.handed_back[-1][2] >= first:
            entry, before, number = self.handed_back.pop()
            if entry.number == number and number not in outputs:
                entry.number = before
            elif entry() is not None:
                kept.append((entry, before, number))
        self.handed_back += reversed(kept)

    def point_inside(self, tensor: Tensor, number: int, storage: int | None) -> None:
        """Like `point`, also for the tensors inside `tensor`: a `torch.func` transform returns the innermost, plain tensor."""
        while is_functorch_wrapped(tensor):
            tensor = functorch_unwrapped(tensor)
            self.point(tensor, number, storage)

    def living_in(self, storage: int) -> list[tuple[int, Tensor]]:
        """List (record number, tensor) for the known tensors in this storage that still exist."""
        found = [(entry.number, entry()) for entry in list(self.entries.values()) if entry.storage == storage]
        return [(number, tensor) for number, tensor in found if tensor is not None]

    def storage_of(self, tensor: Tensor) -> int | None:
        """Return the storage of `tensor`. If several storages use the same memory, returns the first of these."""
        storage = storage_of(tensor)
        return self.homes[storage][0] if self.homes and storage in self.homes and storage is not None else storage

    def set_aside(self, tensor: Tensor) -> None:
        """Remember a tensor without elements: `Tensor.set_`, which no mode sees, may give it memory later."""
        entry = self.entries.pop(id(tensor), None)
        if entry is not None:
            self._hollow[id(tensor)] = entry

    def still_hollow(self, tensor: Tensor) -> Entry | None:
        """The entry of a remembered tensor without elements, if its memory is unchanged."""
        entry = self._hollow.pop(id(tensor), None)
        if entry is None or entry() is not tensor or self.storage_of(tensor) != entry.storage:
            return None
        self.entries[id(tensor)] = entry
        return entry

    def _extent(self, tensor: Tensor) -> tuple[int, int, bool]:
        """The range of bytes of `tensor` in its storage (as `storage_of` finds it), and whether it fills the range."""
        start, stop, is_dense = extent(tensor)
        if self.homes and (storage := storage_of(tensor)) in self.homes and storage is not None:
            shift = self.homes[storage][1]
            return start + shift, stop + shift, is_dense
        return start, stop, is_dense

    def share(self, storage: int) -> None:
        """Note that code outside torch can write to this storage from now on."""
        self.shared.add(storage)
        self.last_write[storage] = UNKNOWN_WRITER

    def wrote(self, tensor: Tensor, number: int) -> None:
        """Note that record `number` wrote to `tensor`."""
        for part in memory_of(tensor):
            storage = self.storage_of(part)
            if storage is not None:
                self._wrote(storage, Write(number, *self._extent(part)))

    def _wrote(self, storage: int, write: Write) -> None:
        if storage not in self.shared:
            self.last_write[storage] = write.number
        earlier = self._writes.get(storage)
        if earlier is None:
            self._writes[storage] = [write]
        else:
            if write.is_dense:
                earlier[:] = [w for w in earlier if not write.covers(w.start, w.stop)]
            earlier.append(write)

    def writes_since(self, tensor: Tensor, number: int) -> list[int]:
        """The records after `number` that wrote to the memory of `tensor`, oldest first."""
        if type(tensor) in PLAIN_CLASSES:
            return self._writes_to(tensor, number)
        return sorted({write for part in memory_of(tensor) for write in self._writes_to(part, number)})

    def _writes_to(self, tensor: Tensor, number: int) -> list[int]:
        storage = self.storage_of(tensor)
        if storage is None or self.last_write.get(storage, -1) <= number:
            return []
        start, stop, _ = self._extent(tensor)
        found: list[int] = []
        for write in reversed(self._writes.get(storage, [])):
            if write.number <= number:
                break
            if write.overlaps(start, stop):
                found.append(write.number)
                if write.covers(start, stop):
                    break
        return found[::-1]

    def live_storages(self) -> set[int]:
        """The storages of all live tensors."""
        entries = list(self.entries.values())
        living = {e.storage for e in entries if e.storage is not None and e() is not None}
        for tensor in [e() for e in entries if e.storage is None]:
            if tensor is not None:
                living |= storages_of(tensor)
        return living

    def cut(self, length: int) -> None:
        """Forget tensors whose record number is `length` or larger, or whose entry an interrupt left incomplete."""
        for key, entry in list(self.entries.items()):
            if not (hasattr(entry, "number") and hasattr(entry, "storage") and entry.number < length):
                del self.entries[key]
        self.handed_back = [known for known in self.handed_back if known[2] < length]

    def clear(self) -> None:
        self.entries.clear()
        self.last_write.clear()
        self.handed_back.clear()
        self._writes.clear()
        self.shared.clear()
        self.homes.clear()
        self._hollow.clear()


def storage_of(tensor: Tensor) -> int | None:
    """A number for the storage of `tensor`; None if the tensor has no storage of its own (sparse, opaque, a wrapper)."""
    if is_functorch_wrapped(tensor):  # inside `functionalize` its own storage is empty
        return storage_of(unwrap(tensor))
    if type(tensor) not in PLAIN_CLASSES and is_wrapper(tensor):
        return None
    try:
        return storage_address(tensor)
    except RuntimeError:
        return _hidden_storage(tensor)


def _hidden_storage(tensor: Tensor) -> int | None:
    try:
        if is_functorch_wrapped(tensor):
            return storage_of(unwrap(tensor))
        if tensor.layout is torch.sparse_coo:
            return storage_address(sparse_parts(tensor)[1])
        if tensor.layout is not torch.strided:
            return storage_address(tensor.values())
    except RuntimeError:
        pass
    return None


def is_wrapper(tensor: Tensor) -> bool:
    """True if `tensor` only wraps other tensors, as DTensor and quantised weights do.

    The storage of a wrapper is empty; the data is in the inner tensors.
    """
    if type(tensor) in PLAIN_CLASSES or is_lazy(tensor) or hasattr(tensor, "fake_mode"):
        return False  # a FakeTensor lives on the meta device
    try:
        with DisableTorchFunctionSubclass():
            torch.Tensor.untyped_storage(tensor).data_ptr()
    except NotImplementedError:  # a sparse tensor of a subclass
        return False
    except RuntimeError:
        return True
    return False


def inner_tensors(tensor: Tensor) -> dict[str, Tensor]:
    """The tensors inside a wrapper, by name: from `__tensor_flatten__`, or its tensor attributes."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is not None:
        try:
            return {name: getattr(tensor, name) for name in flatten()[0] if isinstance(getattr(tensor, name), Tensor)}
        except Exception as error:  # a user-defined class may raise anything
            pass_interrupts_on(error)
    found = dict(vars(tensor)) if hasattr(tensor, "__dict__") else {}
    for cls in type(tensor).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            found.setdefault(name, getattr(tensor, name, None))
    return {name: value for name, value in found.items() if isinstance(value, Tensor) and value is not tensor}


def memory_of(tensor: Tensor) -> list[Tensor]:
    """The tensors whose memory `tensor` uses: itself, or all inner tensors of a wrapper."""
    if type(tensor) in PLAIN_CLASSES or not is_wrapper(tensor):
        return [tensor]
    found: list[Tensor] = []
    waiting, seen = [tensor], {id(tensor)}
    while waiting:
        for inner in inner_tensors(waiting.pop()).values():
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            (waiting if is_wrapper(inner) else found).append(inner)
    return found


def storages_of(tensor: Tensor) -> set[int]:
    """All storages that `tensor` uses."""
    return {storage for part in memory_of(tensor) if (storage := storage_of(part)) is not None}


def unwrap(tensor: Tensor) -> Tensor:
    """The plain tensor inside the wrappers of `torch.func`; it has every batch dimension."""
    while is_functorch_wrapped(tensor):
        tensor = functorch_unwrapped(tensor)
    return tensor


def extent(tensor: Tensor) -> tuple[int, int, bool]:
    """Return the first byte of `tensor` in its storage, the byte after the last, and whether it uses every byte between."""
    if is_lazy(tensor) or tensor.is_nested:
        return 0, 1 << 62, False
    if tensor.layout is not torch.strided or is_functorch_wrapped(tensor):
        return 0, 1 << 62, False
    size = tensor.element_size()
    start = int(tensor.storage_offset()) * size
    if tensor.is_contiguous():
        return start, start + tensor.numel() * size, True
    if tensor.numel() == 0:
        return start, start, True
    reach = sum(int(n - 1) * abs(int(step)) for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    stop = start + (reach + 1) * size
    return start, stop, stop - start == tensor.numel() * size


def is_same_view(one: Tensor, other: Tensor) -> bool:
    """True if two tensors of one storage are the same view of it."""
    return (
        type(one) in PLAIN_CLASSES
        and type(other) in PLAIN_CLASSES
        and one.shape == other.shape
        and one.dtype == other.dtype
        and one.layout == other.layout
        and (
            one.layout is not torch.strided
            or is_functorch_wrapped(one)
            or is_functorch_wrapped(other)
            or _strides(one) == _strides(other)
        )
    )


def _strides(tensor: Tensor) -> Any:
    return tensor.stride(), pointer_of(tensor) or tensor.storage_offset()
