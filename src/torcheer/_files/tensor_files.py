"""Reads and writes safetensors files: written piece by piece, read by memory mapping.

`TensorWriter` writes, `TensorFile` reads, and `PinnedCopies` copies from a device through two pinned buffers, so that the
device does not wait for the disk.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import json
import mmap
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from ctypes import string_at
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from .._torch.internals import DisableTorchFunction
from ..errors import NotWritten, UnreadableFile
from .files import WholeFile, open_regular

_LIMIT = 600.0  # raise if the disk has not taken a buffer after this many seconds


class PinnedCopies:
    """Two pinned buffers: while one is written to the file, the device fills the other."""

    def __init__(self, file: WholeFile, size: int) -> None:
        self._file = file
        self._free: Queue[Tensor] = Queue()
        for _ in range(2):
            self._free.put(torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=torch.cuda.is_available()))
        self._filled: Queue[tuple[Any, Tensor, int, int] | None] = Queue()
        self._error: BaseException | None = None
        self._thread = Thread(target=self._run, name="torcheer-writes", daemon=True)
        self._thread.start()

    def write(self, tensor: Tensor, place: int) -> None:
        """Write a contiguous tensor that fits into a buffer. Later work on its stream waits until the tensor is copied."""
        self._raise()
        try:
            buffer = self._free.get(timeout=_LIMIT)
        except Empty:
            self._give_up()
        self._raise()
        data = tensor.reshape(-1).view(torch.uint8)
        buffer[: data.numel()].copy_(data, non_blocking=True)
        event = None
        if tensor.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
            event.record(torch.cuda.current_stream(tensor.device))
        self._filled.put((event, buffer, data.numel(), place))

    def close(self) -> None:
        """Wait until everything is written."""
        self._filled.put(None)
        self._thread.join(2 * _LIMIT if self._error is None else 0.0)
        if self._thread.is_alive():
            self._give_up()
        self._raise()

    def _give_up(self) -> None:
        """Stop the thread, which waits for the disk, from writing more."""
        if self._error is None:
            self._error = NotWritten(f"{self._file.path} cannot be written: the disk has accepted no data for {_LIMIT:g} s.")

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (filled := self._filled.get()) is not None:
            event, buffer, count, place = filled
            try:
                if event is not None:
                    event.synchronize()
                if self._error is None:
                    data: Any = buffer.numpy()
                    self._file.write_at(place, memoryview(data)[:count])
            except BaseException as error:  # the error is raised again when the next tensor is written
                self._error = error
            self._free.put(buffer)


# safetensors files, as used by saved histories and by Xray snapshots.
#
# Opening a damaged file raises: a header that is too long, offsets outside the file, tensors that overlap or leave gaps, or
# shapes that do not fit their bytes. A tensor is read only when it is accessed.

NAMES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_TYPES = {name: dtype for dtype, name in NAMES.items()}
_SIZES = {name: dtype.itemsize for dtype, name in NAMES.items()}
ALIGNED = 64  # torch's memory begins at a multiple of this many bytes
_SMALL = 1 << 16  # tensors of at most this many bytes are written together
_TOGETHER = 1 << 20
_QUICK = 64 << 20  # close unused space only if at most this many bytes have to be moved
_CHUNK = 32 << 20  # copy this many bytes at once
_LONGEST_HEADER = 100_000_000  # refuse a header of more bytes than this: safetensors' own readers refuse it too
_LARGEST = 1 << 40  # refuse a shape with a larger dimension
_METADATA = "__metadata__"

Progress = Callable[[int], None]  # called with the number of bytes written


class Place(NamedTuple):
    """The position of a tensor in a file: its bytes, counted from the end of the header."""

    begin: int
    end: int
    dtype: str
    shape: tuple[int, ...]


def _stored(tensor: Tensor) -> Tensor:
    """Convert a tensor to a dtype that safetensors has: complex numbers to pairs, other dtypes to bytes."""
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype in NAMES:
        return tensor
    if tensor.is_complex():
        return torch.view_as_real(tensor)
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor.contiguous().view(torch.uint8)


def _described(tensor: Tensor, begin: int) -> Place:
    """The place of a tensor that begins at `begin`, computed without reading the tensor's values."""
    end, name = begin + tensor.nbytes, NAMES.get(tensor.dtype)
    if name is not None:
        return Place(begin, end, name, tuple(tensor.shape))
    if tensor.is_complex():
        return Place(begin, end, NAMES[tensor.dtype.to_real()], (*tensor.shape, 2))
    shape = tuple(tensor.shape)
    if tensor.element_size() > 1:
        shape = (*shape[:-1], shape[-1] * tensor.element_size()) if shape else (tensor.element_size(),)
    return Place(begin, end, "U8", shape)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    what: str = "file",
    progress: Progress | None = None,
    *,
    follows: bool = True,
) -> None:
    """Write a whole file of tensors. A dtype that safetensors lacks is written as bytes. `follows`: see WholeFile."""
    with DisableTorchFunction(), torch.no_grad():
        # Tensors whose size is a multiple of 64 bytes come first. Each of them begins at a multiple of 64, as torch's memory
        # does, and can be mapped without a copy.
        ordered = sorted(tensors.items(), key=lambda one: (one[1].nbytes % ALIGNED > 0, -one[1].element_size()))
        named: dict[str, Place] = {}
        at = 0
        for name, tensor in ordered:
            named[name] = _described(tensor, at)
            at = named[name].end
        header = _header(named, metadata)
        with WholeFile(path, what, follows=follows) as file:
            writer = TensorWriter(file, len(header), progress)
            for name, tensor in ordered:
                writer.write(tensor, named[name])
            writer.end(header)


def _header(named: Mapping[str, Place], metadata: Mapping[str, str], begin: int = 0) -> bytes:
    """Make the header of a file. The data begins `begin` bytes later than the offsets in `named` say."""
    entries = [f'"{_METADATA}":{json.dumps(dict(metadata), separators=(",", ":"))}']
    quoted = json.encoder.encode_basestring_ascii
    for name, (first, last, dtype, shape) in sorted(named.items(), key=lambda one: one[1][:2]):
        sizes = ",".join(map(str, shape))
        offsets = f"{first - begin},{last - begin}"
        entries.append(f'{quoted(name)}:{{"dtype":"{dtype}","shape":[{sizes}],"data_offsets":[{offsets}]}}')
    return f"{{{','.join(entries)}}}".encode()


class TensorWriter:
    """Writes the tensors of a file one after the other, and the header last, because names may be known only then.

    `room` bytes are reserved for the header; if that is too little, the first tensors are moved to the end.
    """

    def __init__(self, file: WholeFile, room: int, progress: Progress | None = None) -> None:
        self._file = file
        self._begin = -(-(8 + room) // ALIGNED) * ALIGNED  # the offset of the data
        self._end = 0  # the end of the data so far
        self._progress = progress
        self._pinned: PinnedCopies | None = None
        self._small = bytearray()  # the latest small tensors, not yet in the file

    def add(self, tensor: Tensor) -> Place:
        """Write the values of a strided tensor, in logical order."""
        place = _described(tensor, self._end)
        self.write(tensor, place)
        return place

    def write(self, tensor: Tensor, place: Place) -> None:
        """Write the values of a strided tensor at `place`, which begins where the last tensor ended."""
        size = place.end - place.begin
        if 0 < size <= _SMALL and tensor.is_cpu and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
            self._small += string_at(tensor.data_ptr(), size)
            self._end += size
            if len(self._small) > _TOGETHER:
                self._flush()
            return
        self._flush()
        for part in _parts(_stored(tensor)):
            if part.device.type != "cpu":
                if self._pinned is None:
                    self._pinned = PinnedCopies(self._file, _CHUNK)
                self._pinned.write(part, self._begin + self._end)
            else:
                self._file.write_at(self._begin + self._end, _bytes_of(part))
            self._end += part.nbytes
            if self._progress is not None:
                self._progress(self._end)

    def _flush(self) -> None:
        if self._small:
            self._file.write_at(self._begin + self._end - len(self._small), memoryview(self._small))
            self._small = bytearray()

    def finish(self, named: Mapping[str, Place], metadata: Mapping[str, str], *, closes_up: bool = True) -> None:
        """Write the header. With `closes_up`, tensors without a name are removed and unused space is closed."""
        self.stop()
        if not closes_up and len(header := _header(named, metadata)) <= self._begin - 8:
            self.end(header)
            return
        places = self._closed_up(dict(named))
        places, begin = self._with_room(places, metadata)
        self.end(_header(places, metadata, begin), begin)

    def end(self, header: bytes, begin: int = 0) -> None:
        """Write the header. The data begins `begin` bytes later than the offsets in it say."""
        self.stop()
        room = self._begin + begin - 8
        if len(header) > room or room > _LONGEST_HEADER:
            raise ValueError(f"a header of {len(header)} bytes is longer than safetensors allows")
        self._file.write_at(0, room.to_bytes(8, "little") + header.ljust(room))
        self._file.cut(self._begin + self._end)

    def stop(self) -> None:
        """Wait until everything is in the file."""
        self._flush()
        if self._pinned is not None:
            self._pinned.close()
            self._pinned = None

    def abandon(self) -> None:
        """Give the file up: wait for running copies, and ignore their errors."""
        self._small = bytearray()
        with contextlib.suppress(OSError):
            self.stop()

    def _closed_up(self, named: dict[str, Place]) -> dict[str, Place]:
        """Remove tensors without a name. Returns the new positions."""
        used = sorted({place[:2] for place in named.values()})
        moved: dict[tuple[int, int], int] = {}
        at = 0
        for begin, end in used:
            if begin != at:
                self._move(begin, end - begin, at)
            moved[begin, end] = at
            at += end - begin
        self._end = at
        return {name: _moved(place, moved[place[:2]]) for name, place in named.items()}

    def _with_room(self, named: dict[str, Place], metadata: Mapping[str, str]) -> tuple[dict[str, Place], int]:
        """Move data so that the header fits before it. Returns the new positions, and the shift of the data's start."""
        room = self._begin - 8
        needed = -(-(len(_header(named, metadata)) - room) // ALIGNED) * ALIGNED
        if needed <= 0:
            if -needed < ALIGNED or self._end > _QUICK:
                return named, 0
            return self._shifted(named, needed), needed
        needed += -(-32 * len(named) // ALIGNED) * ALIGNED  # later offsets may have more digits
        first = [one for one in sorted(named.items(), key=lambda one: one[1][:2]) if one[1].begin < needed]
        begin = max(place.end for _, place in first) if first else 0
        if not needed <= begin <= needed + _TOGETHER:  # there is too little data to move, or the next tensor is large
            return self._shifted(named, needed), needed
        found = dict(named)
        for name, place in first:
            self._move(place.begin, place.end - place.begin, self._end)
            found[name] = _moved(place, self._end)
            self._end += place.end - place.begin
        return found, begin

    def _shifted(self, named: Mapping[str, Place], by: int) -> dict[str, Place]:
        """Move everything by some bytes. Returns the new positions."""
        for place in sorted(set(named.values()), key=lambda one: one.begin, reverse=by > 0):
            self._move(place.begin, place.end - place.begin, place.begin + by)
        self._end += by
        return {name: _moved(place, place.begin + by) for name, place in named.items()}

    def _move(self, begin: int, size: int, to: int) -> None:
        """Copy bytes within the file, even if source and target overlap."""
        steps = range(0, size, _CHUNK)
        for step in steps if to < begin else reversed(steps):
            data = self._file.read_at(self._begin + begin + step, min(_CHUNK, size - step))
            self._file.write_at(self._begin + to + step, data)


def _moved(place: Place, begin: int) -> Place:
    return place._replace(begin=begin, end=begin + place.end - place.begin)


def _parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield a tensor in contiguous parts of limited size, in order; as one part if it is contiguous in main memory."""
    size = tensor.nbytes
    if not size:
        return
    if tensor.is_contiguous() and (tensor.device.type == "cpu" or size <= _CHUNK):
        yield tensor
    elif size <= _CHUNK or not tensor.dim():
        yield tensor.contiguous()
    elif tensor.is_contiguous():
        yield from torch.split(tensor.view(-1), _CHUNK // tensor.element_size())
    else:
        rows = max(1, _CHUNK // (size // tensor.shape[0]))
        for first in range(0, tensor.shape[0], rows):
            yield from _parts(tensor[first : first + rows] if rows > 1 else tensor[first])


def _bytes_of(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor; valid only while the tensor is alive."""
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


# Reading ------------------------------------------------------------------------------------------------------------------


class TensorFile:
    """A memory-mapped file of tensors. A tensor is read when it is accessed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            self._read_header(file.read(8), lambda begin, end: file.read(end - begin), size)
            try:
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
            except ValueError:  # the file became shorter
                _refuse("it was cut while it was being read")

    def _read_header(self, start: builtins.bytes, read: Callable[[int, int], builtins.bytes], size: int) -> None:
        """Read and check the header of a file of `size` bytes; `read(begin, end)` reads some of them."""
        length = int.from_bytes(start, "little")
        if size < 8 or not 2 <= length <= min(size - 8, _LONGEST_HEADER):
            _refuse("it does not begin like a safetensors file, or it was cut")
        self.size = size
        self.metadata, entries = _parsed(read(8, 8 + length))
        self._begin = 8 + length  # the offset of the data
        self.places = _checked_places(entries, size - self._begin)
        self._memory = Memories()

    def bytes(self, name: str) -> memoryview:
        """The bytes of a tensor in the file."""
        place = self._place(name)
        return memoryview(self._map)[self._begin + place.begin : self._begin + place.end]

    def memory(self, name: str) -> Tensor:
        """The bytes of a tensor as a uint8 tensor: a view of the mapped file, or a copy if they are not aligned.

        All calls return the same memory as long as it is in use.
        """
        found = self._memory.get(name)
        if found is None:
            place = self._place(name)
            count, begin = place.end - place.begin, self._begin + place.begin
            found = torch.empty(0, dtype=torch.uint8, device="cpu")
            if count:
                found = torch.frombuffer(self._map, dtype=torch.uint8, count=count, offset=begin)
                found = found if begin % ALIGNED == 0 else found.clone()
            self._memory.keep(name, found)
        return found

    def part(self, name: str, begin: int, end: int) -> Tensor:
        """Some bytes of a tensor, counted from the tensor's first byte. Do not write to them."""
        place = self._place(name)
        first = self._begin + place.begin
        if first % ALIGNED == 0 or place.end - place.begin <= _CHUNK or begin == end:
            return self.memory(name)[begin:end]
        return torch.frombuffer(self._map, dtype=torch.uint8, count=end - begin, offset=first + begin).clone()

    def tensor(self, name: str) -> Tensor:
        """A tensor by name."""
        dtype, shape = self.type_of(name)
        return self.memory(name).view(dtype).view(shape)

    def type_of(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and shape of a tensor."""
        place = self._place(name)
        return _TYPES[place.dtype], place.shape

    def _place(self, name: str) -> Place:
        place = self.places.get(name)
        if place is None:
            _refuse(f"it has no tensor {name[:80]!r}")
        return place


def read_metadata(path: Path) -> tuple[dict[str, str], int]:
    """The metadata of a file of tensors, and the size of the file. Also reads a file that was cut after its header."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > _LONGEST_HEADER:
            _refuse("it does not begin as a file of tensors does")
        return _parsed(file.read(length))[0], os.fstat(file.fileno()).st_size


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Raise `UnreadableFile` if the content of a file does not fit into memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        raise UnreadableFile(
            f"{what} does not fit into memory: {str(error).splitlines()[0]:.200}. Read a part of it."
        ) from None


class Memories:
    """Memory that was read from a file, by name. It is kept only as long as a tensor uses it."""

    def __init__(self) -> None:
        self._storages: weakref.WeakValueDictionary[str, torch.UntypedStorage] = weakref.WeakValueDictionary()

    def get(self, name: str) -> Tensor | None:
        """The bytes of the memory under a name; None if it is not in use."""
        storage = self._storages.get(name)
        return None if storage is None else torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)

    def keep(self, name: str, memory: Tensor) -> None:
        """Remember the storage of a tensor: views of another dtype keep the storage alive, but not the tensor."""
        self._storages[name] = memory.untyped_storage()


def _refuse(what: str) -> NoReturn:
    raise UnreadableFile(what)


def _parsed(header: bytes) -> tuple[dict[str, str], dict[str, Any]]:
    """The metadata of a header, and its entries for tensors."""
    try:
        entries = json.loads(header)
    except (ValueError, RecursionError):
        _refuse("its header is not JSON")
    if type(entries) is not dict:
        _refuse("its header is not a JSON object")
    metadata = entries.pop(_METADATA, {})
    if type(metadata) is not dict or not all(type(value) is str for value in metadata.values()):
        _refuse("the metadata in its header are not strings")
    return metadata, entries


def _checked_places(entries: dict[str, Any], size: int) -> dict[str, Place]:
    """The positions of all tensors. Raises if they do not fill the data completely."""
    places: dict[str, Place] = {}
    for name, entry in entries.items():
        try:
            kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
            count = _SIZES[kind]
            for one in shape:
                count *= one
                if type(one) is not int or not 0 <= one <= _LARGEST:  # a dimension of size 0 would allow any other size
                    raise ValueError
            if count != end - begin or len(shape) > 64 or not (type(begin) is type(end) is int and 0 <= begin <= end <= size):
                raise ValueError
        except (KeyError, TypeError, ValueError):
            _refuse(f"the entry of {name[:80]!r} in its header is invalid")
        places[name] = Place(begin, end, kind, tuple(shape))
    last = 0
    for begin, end in sorted(dict.fromkeys(place[:2] for place in places.values() if place.begin != place.end)):
        if begin != last:
            _refuse("the tensors in it overlap or leave gaps")
        last = end
    if last != size:
        _refuse("it is shorter or longer than its header says")
    return places
