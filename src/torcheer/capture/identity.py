"""Finds the record of a tensor that no watched call made.

`OutsideTensors` lists tensors that exist before and after the pass (parameters, buffers, inputs, module attributes).
`SharedMemory` detects writes by code outside torch (NumPy, DLPack, pointers). `Explainer` decides where any other unknown
tensor comes from.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._torch.functions import label_type
from .._torch.functions.facts import Kind, Origin, TorchFunction
from .._torch.functions.groups import POINTERS
from .._torch.internals import address_of, is_functorch_wrapped, outside_dispatch_modes, storage_use_count
from .._torch.memory import alias, copied, has_memory, storage_part
from .._torch.sentinels import TENSOR
from .._torch.tensor_table import (
    PLAIN_CLASSES,
    Entry,
    TensorTable,
    extent,
    is_same_view,
    is_wrapper,
    memory_of,
    storage_of,
    storages_of,
    unwrap,
)
from ..log.records import Details, Log, ModuleCall
from .keeper import Keeper

if TYPE_CHECKING:
    from .recorder import Recorder


class OutsideTensors:
    """Tensors that exist before and after one recording, by storage; `registered` has the ids of parameters and buffers."""

    def __init__(self, log: Log, table: TensorTable, keeper: Keeper, registered: set[int]) -> None:
        self._log = log
        self._table = table
        self._keeper = keeper
        self._registered = registered
        self._by_storage: dict[int, list[Tensor]] = {}
        self._filed_states = 0  # the first so many parameters and buffers are in `_by_storage`

    def living_in(self, storage: int) -> list[Tensor]:
        """The tensors in this storage that exist before and after the pass."""
        self._file_states()
        return self._by_storage.get(storage, [])

    def known(self) -> list[Tensor]:
        """All tensors that are known to exist before and after the pass."""
        self._file_states()
        return [tensor for tensors in self._by_storage.values() for tensor in tensors]

    def _file_states(self) -> None:
        for tensor in self._log.states.tensors[self._filed_states :]:
            self.add(tensor)
        self._filed_states = len(self._log.states)

    def keep_states(self, storage: int, *, also_registered: bool = True) -> None:
        """Copy parameters and buffers in this storage: they are about to be overwritten and will not be restored."""
        living = set(map(id, self.living_in(storage)))
        if not also_registered:
            living -= self._registered
        states = self._log.states
        for place, tensor in enumerate(states.tensors) if living else ():
            number = -1 - place
            if id(tensor) in living and number not in states.before and has_memory(tensor):
                with torch.no_grad():
                    before = alias(tensor)
                    before = copied(before) if before is not None else None
                if before is not None:
                    states.before[number] = before

    def keep_passing_states(self) -> None:
        """Copy parameters that exist only during the pass (FSDP), and all kept tensors in their memory."""
        for state in list(self._log.states.tensors):
            for storage in storages_of(state) if id(state) not in self._registered else ():
                self._keeper.before_write(storage)
                self.keep_states(storage, also_registered=False)

    def add(self, tensor: Tensor) -> None:
        """Add a tensor that existed before the pass."""
        if not has_memory(tensor):
            return  # FSDP allocates its memory during the pass
        for part in memory_of(tensor):
            storage = self._table.storage_of(part)
            if storage is not None:
                self._by_storage.setdefault(storage, []).append(tensor)

    def clear(self) -> None:
        self._by_storage.clear()


# Memory that code outside torch can write to: NumPy arrays, DLPack, storages, pointers, files, shared memory.
#
# An example: `y = x * 2; y.numpy()[:] = 0; return y + 1`. `y.numpy()` hands out the memory of `y`, so the kept result of
# `mul` is copied, and so are its bytes. When `y` is used again, its bytes are compared with that copy. They differ, so a
# record (`numpywrite` in labels) is written that depends on `mul` and stands for `y` from now on, and `add` depends on it.
# If the bytes are equal, nothing is written. Torch tensors made over foreign memory (`torch.from_numpy`) are handled the
# same way from the moment they are first seen.


@dataclass(slots=True, eq=False)
class Lent:
    """A tensor whose memory code outside torch can write to."""

    tensor: Tensor  # a detached alias, which keeps the memory allocated
    owner: weakref.ref[Tensor]
    number: int  # the record of the tensor, used if `owner` is gone
    way: str
    site: int
    start: int  # the range of bytes that the tensor uses in its storage
    stop: int
    bytes: Tensor  # the bytes of the tensor, as a view
    seen: Tensor  # a copy of the bytes from the latest comparison

    @property
    def is_readable(self) -> bool:
        """False if the storage was resized since and no longer holds the tensor's bytes (FSDP resizes to zero)."""
        return self.tensor.untyped_storage().nbytes() >= self.stop

    @property
    def is_out_of_reach(self) -> bool:
        """True if only this object still refers to the memory."""
        storage = self.tensor.untyped_storage()
        users = storage_use_count(address_of(storage))
        return self.owner() is None and users <= 3  # the references of `tensor`, `bytes` and `storage`


class SharedMemory:
    """The memory of one recording that code outside torch can write to."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder = weakref.proxy(recorder)  # weak: the recorder holds this object
        self._table = recorder.table
        self._keeper = recorder.keeper
        self._lent: dict[int, list[Lent]] = {}  # maps a storage to the tensors in it whose memory was handed out
        self._empty: dict[int, tuple[Tensor, str, int]] = {}  # maps a storage to a tensor in it that has no memory yet
        self._foreign: list[Tensor] = []  # keeps alive the storages in `table.homes`
        self._functions: dict[str, TorchFunction] = {}

    def __bool__(self) -> bool:
        return bool(self._lent or self._empty)

    def lend(self, tensor: Tensor, way: str, site: int = -1) -> None:
        """Called when the memory of `tensor` was handed out to other code. Must run where torch functions are not watched."""
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
            return  # copying weights is expensive, their pointers are read often, and nobody writes through them
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
        """Watch a tensor that has no memory yet (FSDP): code that allocates its memory also writes values, unrecorded."""
        self._recorder.ref(tensor)  # give it a record before it has memory, so that nothing is restored
        storage = self._table.storage_of(tensor)
        if storage is not None and storage not in self._lent:
            self._empty[storage] = (tensor, way, site)
            self._table.share(storage)

    def lent_in(self, storage: int) -> list[tuple[int, Tensor]]:
        """List (record number, tensor) for each tensor of this storage whose memory was handed out."""
        return [(lent.number, lent.tensor) for lent in self._lent.get(storage, ())]

    def meet(self, tensor: Tensor) -> bool:
        """True if an unrecorded tensor lies in memory that torch did not allocate. Lends the recorded tensors found there."""
        try:
            if tensor.untyped_storage().resizable() or not has_bytes(tensor):
                return False
        except RuntimeError:  # a tensor without a storage
            return False
        own = storage_of(tensor)
        assert own is not None
        if own not in self._table.homes:
            base = tensor.untyped_storage().data_ptr()
            for other in self._around(tensor):
                home = self._table.storage_of(other)
                if home is not None and home != own:
                    if home in self._lent and not other.untyped_storage().resizable() and self._was_written(home):
                        continue  # an array that was filled again: its new content comes from elsewhere
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
        """Called before a call reads these tensors: record writes to their memory since the last comparison."""
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
        """Forget tensors that got another storage unseen (`set_` with a storage): their records do not describe them now."""
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
        """Called when a write to this storage was recorded: compare with its present bytes from now on."""
        for lent in self._lent.get(storage, ()) if storage is not None else ():
            if lent.is_readable:
                lent.seen.copy_(lent.bytes)

    def _drop_unreachable(self) -> None:
        """Stop watching memory that only this object still refers to."""
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
    """True if `tensor` is strided and its memory is allocated and can be read byte by byte."""
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


# Describes records that are not torch calls: inputs, outputs, other views of recorded memory, and sources.

MARKERS = {
    origin: TorchFunction(None, origin.value, origin.value, Kind.OPERATION, origin=origin)
    for origin in (Origin.INPUT, Origin.OUTPUT, Origin.ALIAS, Origin.SOURCE)
}

# For a record that is not a torch call: the template of its arguments, the names of its keyword arguments, its call site.
Arguments = tuple[tuple[Any, ...], tuple[str, ...], int]


_NO_VIEW: Arguments = (), (), -1
_COMPARED = 1 << 22  # tensors with more elements than this are not compared element by element


def view_of(tensor: Tensor, other: Tensor) -> Arguments:
    """Describe `tensor` as a view of `other`: returns the view's arguments shape, strides and offset in elements.

    The arguments are empty if `tensor` reaches memory outside `other`, or if one of the two has no readable memory.
    """
    if tensor.dtype != other.dtype or not is_inside(tensor, other):
        return _NO_VIEW
    distance, rest = divmod(tensor.data_ptr() - other.data_ptr(), tensor.element_size())
    if rest:
        return _NO_VIEW
    return (TENSOR, tuple(tensor.shape), tensor.stride(), distance), (), -1


def is_inside(tensor: Tensor, other: Tensor) -> bool:
    """True if the memory of `tensor` lies within the memory of `other`."""
    if not (has_bytes(tensor) and has_bytes(other)):
        return False
    start, stop, _ = extent(tensor)
    low, high, _ = extent(other)
    first, lowest = tensor.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
    return lowest + low <= first + start and first + stop <= lowest + high


def has_all_elements(other: Tensor, tensor: Tensor) -> bool:
    """True if all elements of `tensor`, which lies within the memory of `other`, are elements of `other`."""
    size = other.element_size()
    start, stop, _ = extent(other)
    if stop - start == other.numel() * size or tensor.dtype != other.dtype or max(other.numel(), tensor.numel()) > _COMPARED:
        return True
    places = [torch.zeros(one.shape, dtype=torch.int64, device="cpu") for one in (other, tensor)]
    for one, place in zip((other, tensor), places, strict=True):
        place += one.data_ptr() // size
        for dim, step in enumerate(one.stride()):
            place += (torch.arange(one.shape[dim], device="cpu") * step).view(
                [-1 if at == dim else 1 for at in range(one.dim())]
            )
    return bool(torch.isin(places[1], places[0]).all())


# Finds the origin of tensors that no watched call made.
#
# In this order: a parameter; a tensor in memory of a recorded tensor; a wrapper around recorded tensors; the result of a
# module that cannot be traced (TorchScript); a result that autograd's graph connects to recorded tensors. Otherwise the
# tensor is a source, created inside the model.

_AUTOGRAD_LIMIT = 2000


class Explainer:
    """Finds the origin of the unknown tensors of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder = weakref.proxy(recorder)  # weak: the recorder holds this object
        self._log = recorder.log
        self._table = recorder.table
        # (number of modules that the dict was built from, storage -> parameters and buffers in it)
        self._registered: tuple[int, dict[int | None, list[Tensor]]] = (0, {})
        # (number of modules that the dict was built from, the result of `_wrapped_states`)
        self._wrapped: tuple[int, dict[int, Tensor]] = (0, {})

    def explain(self, tensor: Tensor, storage: int | None, leaving: ModuleCall | None) -> Entry:
        """Make a record for a tensor, and return its entry. `leaving` is the module call that returned the tensor, or None."""
        if isinstance(tensor, Parameter) and not self.is_computed(storage):
            return self._recorder.state(tensor)
        known = self._alias(tensor, storage) or (self._wrapper(tensor) if type(tensor) not in PLAIN_CLASSES else None)
        if known is not None:
            return known
        if leaving is not None and leaving.first == len(self._log.rows):
            return self._opaque(tensor, storage, leaving)  # nothing inside the call could be watched
        return (
            self._by_autograd(tensor, storage)
            or (self._opaque(tensor, storage, leaving) if leaving is not None else None)
            or self._inside_registered(tensor, storage)
            or self._source(tensor, storage)
        )

    def _wrapper(self, tensor: Tensor) -> Entry | None:
        """Record a wrapper (DTensor, a quantised weight). Its record depends on the recorded tensors inside it."""
        if not is_wrapper(tensor):
            return None
        inner = [self._table.find(part) or self._alias(part, self._table.storage_of(part)) for part in memory_of(tensor)]
        parents = tuple(dict.fromkeys(entry.number for entry in inner if entry is not None))
        if not parents:
            return None
        name = type(tensor).__name__
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        entry = self._recorder.write(function, parents, tensor, None)
        if self._table.last_write:
            self._log.detail(entry.number).also = self._writes_inside(tensor, inner)
        return entry

    def _writes_inside(self, tensor: Tensor, inner: list[Entry | None]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for part, entry in zip(memory_of(tensor), inner, strict=True):
            found.update(dict.fromkeys(self._table.writes_since(part, entry.number) if entry is not None else ()))
        return tuple(found)

    def _relatives(self, storage: int | None) -> list[tuple[int, Tensor]]:
        """List (record number, tensor) for each known tensor in this storage."""
        if storage is None:
            return []
        if storage in self._table.shared:
            return self._table.living_in(storage) + self._recorder.memory.lent_in(storage)
        kept = self._recorder.keeper.kept_in(storage)
        if not self._recorder.keeper.is_plain:  # the policy keeps only some operations
            return kept + self._table.living_in(storage)
        outside = [(self._table.find(tensor), tensor) for tensor in self._recorder.outside.living_in(storage)]
        return kept + [(entry.number, tensor) for entry, tensor in outside if entry is not None]

    def is_computed(self, storage: int | None) -> bool:
        """True if the values in this storage were computed from an input, a parameter, a buffer or a tensor of the program.

        A parameter there was made by the model itself. If a parameter was made from constants and random numbers alone, as in a
        module that the pass creates, it counts as an ordinary parameter.
        """
        waiting = [number for number, _ in self._relatives(storage)]
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number >= 0 and number not in seen:
                seen.add(number)
                record = self._log.operations[number]
                if record.origin in (Origin.INPUT, Origin.SOURCE):
                    return True
                if record.function.is_collective:
                    continue  # FSDP gathers the parameters it gives to modules
                if min(record.parents, default=0) < 0:
                    return True
                waiting += record.dependencies
        return False

    def _alias(self, tensor: Tensor, storage: int | None) -> Entry | None:
        relatives = [(n, other) for n, other in self._relatives(storage) if storage in self._storages_of(other)]
        if not relatives:
            return self._inside_state(tensor, storage)
        inner = unwrap(tensor)
        twins = [(n, other) for n, other in relatives if is_same_view(inner, unwrap(other))]
        if not twins and (inner is not tensor or any(is_functorch_wrapped(other) for _, other in relatives)):
            twins = relatives  # a transform made a view of the tensor
        if twins:
            return self._table.point(tensor, max(n for n, _ in twins), storage)
        number, relative = max(relatives, key=lambda pair: (is_inside(tensor, pair[1]), pair[0]))
        around = next(filter(None, (self._apart(tensor, *one) for one in relatives)), None)
        if is_inside(tensor, relative) and (around is None or has_all_elements(relative, tensor)):
            return self._view(tensor, storage, number, relative)
        if storage not in self._table.last_write and all(map(self._is_given, relatives)):
            return None  # a tensor from outside, a part of which was given to the model
        entry = self._view(tensor, storage, number, relative, is_whole=False)
        if around is not None:
            self._log.detail(entry.number).home = around
        return entry

    def _apart(self, tensor: Tensor, number: int, relative: Tensor) -> tuple[int, int] | None:
        """If `relative` is an input or source, return its number and the offset of `tensor` from it in elements; else None."""
        while number >= 0 and (slot := self._log.operations[number].overwritten) is not None:
            number = self._log.operations[number].parents[slot]
        given = Origin.INPUT, Origin.SOURCE
        if number < 0 or self._log.operations[number].origin not in given or type(tensor) is not Tensor:
            return None
        if tensor.dtype != relative.dtype or not (has_bytes(tensor) and has_bytes(relative)):
            return None
        distance, rest = divmod(tensor.data_ptr() - relative.data_ptr(), tensor.element_size())
        return (number, distance) if not rest else None

    def _is_given(self, relative: tuple[int, Tensor]) -> bool:
        """True for a plain tensor that comes from outside the pass: no call made it."""
        number, tensor = relative
        return type(tensor) in PLAIN_CLASSES and (
            number < 0 or self._log.operations[number].origin in (Origin.INPUT, Origin.SOURCE)
        )

    def _view(self, tensor: Tensor, storage: int | None, number: int, relative: Tensor, *, is_whole: bool = True) -> Entry:
        """Record a tensor that lies in the memory of a recorded tensor. The record depends on later writes to that memory.

        If the tensor is not completely inside that memory (`is_whole`), it cannot be made as a view of the recorded tensor.
        """
        since = self._table.writes_since(tensor, number) if self._table.last_write else ()
        entry = self._recorder.write(
            MARKERS[Origin.ALIAS], (number,), tensor, storage, view_of(tensor, relative) if is_whole else _NO_VIEW
        )
        if since:
            self._log.detail(entry.number).also = tuple(since)
        return entry

    def _inside_registered(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """Record a tensor in the memory of a parameter or buffer that was not read yet: an attribute with a row of a buffer."""
        state = self.registered_around(tensor, storage)
        return self._view(tensor, storage, self._recorder.state(state).number, state) if state is not None else None

    def registered_around(self, tensor: Tensor, storage: int | None) -> Tensor | None:
        """Find the unrecorded parameter or buffer whose memory contains `tensor`; None if there is none."""
        if storage is None or type(tensor) not in PLAIN_CLASSES:
            return None
        modules = self._log.registered
        if self._registered[0] != len(modules):
            found: dict[int | None, list[Tensor]] = {}
            for module in modules.values():
                for state in (*module.parameters.values(), *module.buffers.values()):
                    if state is not None and type(state) in PLAIN_CLASSES:
                        found.setdefault(storage_of(state), []).append(state)
            self._registered = (len(modules), found)
        states = self._registered[1].get(storage, ())
        return next((one for one in states if self._table.find(one) is None and view_of(tensor, one)[0]), None)

    def _storages_of(self, tensor: Tensor) -> set[int | None]:
        """The present storages of `tensor`: its memory may have been replaced since it was recorded."""
        return {self._table.storage_of(part) for part in memory_of(unwrap(tensor))}

    def _inside_state(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """Record a tensor inside a wrapped parameter (the integers of a quantised weight), with the parameter as its parent."""
        if storage is None or (around := self._wrapped_states().get(storage)) is None:
            return None
        state = self._table.find(around) or self._recorder.state(around)
        return self._recorder.write(MARKERS[Origin.ALIAS], (state.number,), tensor, storage)

    def _wrapped_states(self) -> dict[int, Tensor]:
        """Maps storages to the registered parameter or buffer, a wrapper, that contains them."""
        modules = self._log.registered
        if self._wrapped[0] != len(modules):
            found: dict[int, Tensor] = {}
            for module in modules.values():
                for state in (*module.parameters.values(), *module.buffers.values()):
                    if state is not None and type(state) not in PLAIN_CLASSES:
                        found.update(dict.fromkeys(storages_of(state) if is_wrapper(state) else (), state))
            self._wrapped = (len(modules), found)
        return self._wrapped[1]

    def _by_autograd(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """Find the origin of a result of an unwatched call, by following autograd's graph back to recorded tensors."""
        if tensor.grad_fn is None or is_functorch_wrapped(tensor):
            return None
        parents = self._autograd_parents(tensor)
        if not parents:
            return None
        self._recorder.unseen.suspect_threads()
        name = type(tensor.grad_fn).__name__.removesuffix("0").removesuffix("Backward")
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        return self._recorder.write(function, parents, tensor, storage)

    def _autograd_parents(self, tensor: Tensor) -> tuple[int, ...]:
        known: dict[Any, int] = {}
        for recorded in list(self._table.entries.values()):
            live = recorded()
            if live is not None and live.grad_fn is not None and not is_functorch_wrapped(live):
                known[live.grad_fn] = recorded.number
        parents: dict[int, None] = {}
        waiting: list[Any] = [tensor.grad_fn]
        seen: set[Any] = set()
        while waiting and len(seen) < _AUTOGRAD_LIMIT:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if node in known:
                parents[known[node]] = None
            elif leaf is not None and (entry := self._table.find(leaf)) is not None:
                parents[entry.number] = None
            elif isinstance(leaf, Parameter):
                parents[self._recorder.state(leaf).number] = None
            else:
                waiting.extend(next_node for next_node, _ in node.next_functions)
        return tuple(sorted(parents, key=lambda number: (number < 0, number)))

    def _opaque(self, tensor: Tensor, storage: int | None, call: ModuleCall) -> Entry:
        kind = label_type(call.class_name)
        function = TorchFunction(None, call.class_name, kind, Kind.OPERATION, origin=Origin.OPAQUE)
        site = call.site.number if call.site is not None else -1
        return self._recorder.write(function, call.inputs, tensor, storage, (call.args, call.names, site))

    def _source(self, tensor: Tensor, storage: int | None) -> Entry:
        if self._log.is_recording and not self._recorder.stack:
            return self._recorder.add_input(tensor, ())
        number = len(self._log.rows)
        name = self._attribute_name(tensor)
        if name is not None:
            self._log.source_names[number] = name
        else:
            self._recorder.unseen.suspect_threads()
        self._recorder.outside.add(tensor)
        self._log.source_tensors.append(weakref.ref(tensor))
        if not _is_foreign(tensor):
            self._recorder.suspects[number] = self._log.source_tensors[-1]
        return self._recorder.write(MARKERS[Origin.SOURCE], (), tensor, storage)

    def _attribute_name(self, tensor: Tensor) -> str | None:
        """The address of the module attribute that holds `tensor`, among the modules that are running."""
        for call, module in zip(reversed(self._recorder.stack), reversed(self._recorder.running), strict=True):
            for name, value in vars(module).items():
                if value is tensor:
                    return f"{call.address}.{name}" if call.address else name
        return None


def _is_foreign(tensor: Tensor) -> bool:
    """True if torch did not allocate the memory of `tensor`, as with `torch.from_numpy`."""
    try:
        return not tensor.untyped_storage().resizable()
    except RuntimeError:  # a tensor without a storage
        return False
