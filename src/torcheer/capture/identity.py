"""Which tensor is which: a weak table from tensors to the records they stand for, and who wrote to which memory.

Nothing here keeps a tensor alive and nothing is put on one. A tensor is found by `id`; since ids are used again, an entry
counts only while its weak reference still leads to that very tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

storage_address: Callable[[Tensor], int] = torch._C._storage_address  # type: ignore[attr-defined]  # not in torch's stubs
_is_wrapped: Callable[[Tensor], bool] = torch._C._functorch.is_functorch_wrapped_tensor
_unwrapped: Callable[[Tensor], Tensor] = torch._C._functorch.get_unwrapped


class Entry(weakref.ref[Tensor]):
    """A tensor that is known: the record it stands for now, and the memory it lives in."""

    __slots__ = ("number", "storage")
    number: int
    storage: int | None


@dataclass(slots=True, eq=False)
class Write:
    """One write to a piece of memory, as bytes `start <= b < stop` of its storage."""

    number: int
    start: int
    stop: int
    is_dense: bool

    def overlaps(self, start: int, stop: int) -> bool:
        return self.start < stop and start < self.stop

    def covers(self, start: int, stop: int) -> bool:
        return self.is_dense and self.start <= start and stop <= self.stop


class TensorTable:
    """The tensors of one recording that are still alive, and the writes to their memory."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}  # by id; may be of a tensor that is gone
        self.last_write: dict[int | None, int] = {}  # by storage: the last record that wrote to it
        self._writes: dict[int, list[Write]] = {}
        # data pointer -> the record and storage whose memory was handed out, and the tensor, so that it stays in use
        self._exported: dict[int, tuple[int, int, Tensor]] = {}

    def find(self, tensor: Tensor) -> Entry | None:
        """The entry of `tensor`, if it is known."""
        entry = self.entries.get(id(tensor))
        return entry if entry is not None and entry() is tensor else None

    def point(self, tensor: Tensor, number: int, storage: int | None) -> Entry:
        """From now on `tensor` stands for record `number`."""
        entry = self.entries.get(id(tensor))
        if entry is None or entry() is not tensor:
            entry = self.entries[id(tensor)] = Entry(tensor)
        entry.number = number
        entry.storage = storage
        return entry

    def point_inside(self, tensor: Tensor, number: int, storage: int | None) -> None:
        """What `torch.func` wraps comes out of the transform as the plain tensor inside, so that is known as well."""
        while is_wrapped(tensor):
            tensor = _unwrapped(tensor)
            self.point(tensor, number, storage)

    def living_in(self, storage: int) -> list[tuple[int, Tensor]]:
        """The known tensors in this storage that are alive, with the records they stand for."""
        found = [(entry.number, entry()) for entry in list(self.entries.values()) if entry.storage == storage]
        return [(number, tensor) for number, tensor in found if tensor is not None]

    def export(self, tensor: Tensor) -> None:
        """The memory of `tensor` was handed out (to NumPy, by DLPack) and may come back as another storage."""
        entry = self.find(tensor)
        if entry is not None and entry.storage is not None and tensor.layout is torch.strided:
            self._exported[tensor.untyped_storage().data_ptr()] = (entry.number, entry.storage, tensor.detach())

    def exporter(self, tensor: Tensor) -> tuple[int, int, Tensor] | None:
        """The record, storage and tensor whose exported memory `tensor` shares."""
        if not self._exported or storage_of(tensor) is None or tensor.layout is not torch.strided:
            return None
        return self._exported.get(tensor.untyped_storage().data_ptr())

    def wrote(self, tensor: Tensor, number: int) -> None:
        """Record `number` wrote into `tensor`."""
        storage = storage_of(tensor)
        if storage is None:
            return
        start, stop, is_dense = extent(tensor)
        write = Write(number, start, stop, is_dense)
        self.last_write[storage] = number
        earlier = self._writes.get(storage)
        if earlier is None:
            self._writes[storage] = [write]
        else:
            if is_dense:
                earlier[:] = [w for w in earlier if not write.covers(w.start, w.stop)]
            earlier.append(write)

    def writes_since(self, tensor: Tensor, storage: int, number: int) -> list[int]:
        """The writes after record `number` that reached the memory of `tensor`, oldest first."""
        start, stop, _ = extent(tensor)
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
        """The storages that something outside the recording still holds."""
        return {e.storage for e in list(self.entries.values()) if e.storage is not None and e() is not None}

    def clear(self) -> None:
        self.entries.clear()
        self.last_write.clear()
        self._writes.clear()
        self._exported.clear()


def storage_of(tensor: Tensor) -> int | None:
    """A number for the memory `tensor` lives in, or None when it has none of its own (sparse, opaque)."""
    try:
        return storage_address(tensor)
    except RuntimeError:
        return _hidden_storage(tensor)


def _hidden_storage(tensor: Tensor) -> int | None:
    try:
        if _is_wrapped(tensor):
            return storage_of(unwrap(tensor))
        if tensor.layout is torch.sparse_coo:
            return storage_address(tensor._values())
        if tensor.layout is not torch.strided:
            return storage_address(tensor.values())
    except RuntimeError:
        pass
    return None


def is_wrapped(tensor: Tensor) -> bool:
    """Whether `tensor` is one that `torch.func` wrapped for the duration of a transform."""
    return _is_wrapped(tensor)


def unwrap(tensor: Tensor) -> Tensor:
    """The plain tensor inside those `torch.func` wraps around it; it has every batch dimension."""
    while _is_wrapped(tensor):
        tensor = _unwrapped(tensor)
    return tensor


def extent(tensor: Tensor) -> tuple[int, int, bool]:
    """The bytes of its storage that `tensor` reaches, as a half-open range, and whether it holds all of them."""
    if is_lazy(tensor) or tensor.is_nested:
        return 0, 1 << 62, False
    if tensor.layout is not torch.strided or _is_wrapped(tensor):
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
    """Whether two tensors of one storage show the same elements in the same way."""
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.layout == other.layout
        and (one.layout is not torch.strided or _is_wrapped(one) or _is_wrapped(other) or _strides(one) == _strides(other))
    )


def _strides(tensor: Tensor) -> Any:
    return tensor.stride(), tensor.storage_offset()
