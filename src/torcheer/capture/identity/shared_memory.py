"""Memory that code outside torch can write to: NumPy arrays, DLPack, storages, pointers, files, shared memory.

An example: `y = x * 2; y.numpy()[:] = 0; return y + 1`. `y.numpy()` hands out the memory of `y`, so what is kept in it (the
result of `mul`) is copied, and so are its bytes. When `y` is used again its bytes are compared with that copy. They differ: a
record (`numpywrite` in labels) is written down that depends on `mul` and stands for `y` from now on, and `add` depends on it.
Where the bytes are the same nothing is written down. Torch tensors made over memory of others (`torch.from_numpy`) are handled
the same way from the moment they are seen.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from ...functions import label_type
from ...functions.groups import POINTERS
from ...records import TENSOR, Details, Kind, Origin, TorchFunction
from ...tensor_memory import has_memory, storage_part
from ...torch_internals import address_of, is_functorch_wrapped, outside_dispatch_modes, storage_use_count
from .tensor_table import extent, is_wrapper, memory_of, storage_of

if TYPE_CHECKING:
    from ..recorder import Recorder


@dataclass(slots=True, eq=False)
class Lent:
    """A tensor whose memory code outside torch can write to."""

    tensor: Tensor  # a detached alias, which keeps the memory in use
    owner: weakref.ref[Tensor]
    number: int  # the record it stands for, should `owner` be gone
    way: str
    site: int
    start: int  # the bytes of its storage it reaches
    stop: int
    bytes: Tensor  # those bytes, as a view
    seen: Tensor  # a copy of them from when they were last looked at

    @property
    def is_readable(self) -> bool:
        """Whether its storage still holds what it reaches: FSDP resizes storages to zero."""
        return self.tensor.untyped_storage().nbytes() >= self.stop

    @property
    def is_out_of_reach(self) -> bool:
        """Whether only this object still refers to the memory."""
        storage = self.tensor.untyped_storage()
        users = storage_use_count(address_of(storage))
        return self.owner() is None and users <= 3  # `tensor`, `bytes` and `storage`


class SharedMemory:
    """The memory of one recording that code outside torch can write to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder = weakref.proxy(recorder)  # which holds this
        self._table = recorder.table
        self._keeper = recorder.keeper
        self._lent: dict[int, list[Lent]] = {}  # by storage
        self._empty: dict[int, tuple[Tensor, str, int]] = {}  # by storage: tensors that are about to be given memory
        self._foreign: list[Tensor] = []  # keeps alive the storages in `table.homes`
        self._functions: dict[str, TorchFunction] = {}

    def __bool__(self) -> bool:
        return bool(self._lent or self._empty)

    def lend(self, tensor: Tensor, way: str, site: int = -1) -> None:
        """The memory of `tensor` was handed out. Must run where torch functions are not watched."""
        with outside_dispatch_modes():
            self._lend(tensor, way, site)

    def _lend(self, tensor: Tensor, way: str, site: int) -> None:
        if not has_memory(tensor):
            self._await_memory(tensor, way, site)
        if not has_bytes(tensor):
            return
        recorder, table = self._recorder, self._table
        number = recorder.ref(tensor)
        if number < 0 and way in POINTERS and isinstance(tensor, Parameter):
            return  # weights are large, their pointers are asked for often, and nobody writes to them
        if number >= 0 and not tensor.untyped_storage().resizable():
            recorder.log.detail(number).is_foreign = True
        storage, own = table.storage_of(tensor), storage_of(tensor)
        assert storage is not None
        assert own is not None
        self._drop_unreachable()
        recorder.protect(storage)
        start, stop, _ = extent(tensor)
        known = next((one for one in self._lent.get(storage, ()) if one.owner() is tensor and one.stop == stop), None)
        if known is not None and known.start == start:
            return
        table.share(storage)
        table.share(own)
        alias = tensor.detach()
        with torch.no_grad():
            contents = storage_part(tensor, start, stop)
        lent = Lent(alias, weakref.ref(tensor), number, way.strip("_"), site, start, stop, contents, contents.clone())
        self._lent.setdefault(storage, []).append(lent)

    def _await_memory(self, tensor: Tensor, way: str, site: int) -> None:
        """The storage of `tensor` is empty and is about to be allocated (FSDP): its values then come from no recorded write."""
        self._recorder.ref(tensor)  # known before it has memory, so that nothing is restored
        storage = self._table.storage_of(tensor)
        if storage is not None and storage not in self._lent:
            self._empty[storage] = (tensor, way, site)
            self._table.share(storage)

    def lent_in(self, storage: int) -> list[tuple[int, Tensor]]:
        """The tensors of this storage whose memory was handed out, with the records they stand for."""
        return [(lent.number, lent.tensor) for lent in self._lent.get(storage, ())]

    def meet(self, tensor: Tensor) -> bool:
        """Whether an unrecorded tensor lies in memory that torch did not allocate; if so, find recorded tensors there."""
        try:
            if tensor.untyped_storage().resizable() or not has_bytes(tensor):
                return False
        except RuntimeError:  # it has no storage of its own
            return False
        own = storage_of(tensor)
        assert own is not None
        if own not in self._table.homes:
            base = tensor.untyped_storage().data_ptr()
            for other in self._around(tensor):
                home = self._table.storage_of(other)
                if home is not None and home != own:
                    if home in self._lent and not other.untyped_storage().resizable() and self._was_written(home):
                        continue  # an array that was filled anew: what it holds now comes from elsewhere
                    self.lend(other, "memory")
                    self.look([other])
                    self._table.homes[own] = (home, base - other.untyped_storage().data_ptr() + self._shift(other))
                    self._foreign.append(tensor.detach())
                    break
        self._table.share(own)
        return True

    def _was_written(self, storage: int) -> bool:
        return any(lent.is_readable and not torch.equal(lent.bytes, lent.seen) for lent in self._lent[storage])

    def _shift(self, tensor: Tensor) -> int:
        own = storage_of(tensor)
        return self._table.homes[own][1] if own in self._table.homes and own is not None else 0

    def _around(self, tensor: Tensor) -> Iterable[Tensor]:
        """Known tensors of other storages in whose memory `tensor` begins."""
        first, own = tensor.data_ptr(), storage_of(tensor)
        lent = [one.tensor for several in self._lent.values() for one in several]
        living = [entry() for entry in list(self._table.entries.values())]
        for other in (*lent, *living):
            if other is not None and has_bytes(other) and storage_of(other) != own:
                storage = other.untyped_storage()
                if storage.data_ptr() <= first < storage.data_ptr() + storage.nbytes():
                    yield other

    def look(self, tensors: Iterable[Tensor]) -> None:
        """These tensors are about to be read: record writes to their memory since it was last compared."""
        for tensor in tensors:
            for part in memory_of(tensor):
                storage = self._table.storage_of(part)
                if storage in self._empty and storage is not None and has_bytes(part):
                    self._got_memory(storage)
                if storage in self._lent and storage is not None and has_bytes(part):
                    shift = self._shift(part)
                    start, stop, _ = extent(part)
                    for lent in list(self._lent[storage]):
                        moved = self._shift(lent.tensor)
                        if lent.start + moved < stop + shift and start + shift < lent.stop + moved:
                            self._compare(lent, storage)

    def _got_memory(self, storage: int) -> None:
        tensor, way, site = self._empty.pop(storage)
        self.lend(tensor, way, site)
        for lent in self._lent.get(storage, ()):
            self._note_write(lent, storage)

    def forget_moved(self, tensors: Iterable[Tensor]) -> None:
        """A tensor that was given another storage unseen (`set_` with a storage) is not what was recorded."""
        for tensor in tensors:
            entry = self._table.find(tensor) if type(tensor) is Tensor else None
            storage = self._table.storage_of(tensor)
            if entry is not None and storage in self._table.shared and entry.storage != storage:
                del self._table.entries[id(tensor)]

    def _compare(self, lent: Lent, storage: int) -> None:
        with outside_dispatch_modes():
            if lent.is_readable and not torch.equal(lent.bytes, lent.seen):
                self._note_write(lent, storage)

    def _note_write(self, lent: Lent, storage: int) -> None:
        recorder, owner = self._recorder, lent.owner()
        entry = self._table.find(owner) if owner is not None else None
        number = entry.number if entry is not None else lent.number
        also = tuple(self._table.writes_since(lent.tensor, number))
        written = recorder.write(self._function(lent.way), (number,), lent.tensor, storage, ((TENSOR,), (), lent.site))
        lent.number = written.number
        recorder.log.details[lent.number] = Details(also=also, mutated=(0,))
        if owner is not None:
            self._table.point(owner, lent.number, storage)
        self._table.wrote(lent.tensor, lent.number)
        self.wrote(storage)

    def _function(self, way: str) -> TorchFunction:
        function = self._functions.get(way)
        if function is None:
            name = f"{way}_write"
            function = TorchFunction(None, name, label_type(name), Kind.OPERATION, _first, origin=Origin.OPAQUE)
            self._functions[way] = function
        return function

    def wrote(self, storage: int | None) -> None:
        """A write to this storage was recorded, so its bytes are known again."""
        for lent in self._lent.get(storage, ()) if storage is not None else ():
            if lent.is_readable:
                lent.seen.copy_(lent.bytes)

    def _drop_unreachable(self) -> None:
        """Let go of memory that nobody else holds any more."""
        for storage, several in list(self._lent.items()):
            if len(several) == 1 and several[0].is_out_of_reach:
                del self._lent[storage]
                self._table.shared.discard(storage)
                self._table.last_write.pop(storage, None)

    def clear(self) -> None:
        self._lent.clear()
        self._empty.clear()
        self._foreign.clear()


def has_bytes(tensor: Tensor) -> bool:
    """Whether `tensor` has ordinary memory, readable byte by byte, and all of it is allocated."""
    if tensor.layout is not torch.strided or tensor.is_nested or is_functorch_wrapped(tensor) or tensor.device.type == "meta":
        return False
    if is_wrapper(tensor) or hasattr(tensor, "fake_mode"):
        return False
    try:
        storage = tensor.untyped_storage()
        return tensor.numel() > 0 and storage.data_ptr() != 0 and storage.nbytes() >= extent(tensor)[1]
    except RuntimeError:  # a functional tensor
        return False


def _first(args: tuple[object, ...], kwargs: dict[str, object]) -> list[object]:
    return [args[0]]
