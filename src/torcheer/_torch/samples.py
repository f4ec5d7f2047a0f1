"""Detects whether a tensor was written to since it was marked.

torch counts most writes (`write_count`), but not writes through `.data`, by fused optimizers, or by `batch_norm` to its
running statistics. So a mark also holds a sample of the elements: all of a small tensor, and 512 bytes at each end of a
larger one. Reading everything would cost as much as a pass; a sample takes one microsecond, and about seven on a GPU, where
only a few tensors are sampled and the elements are spread out. A write that torch does not count, and that only touches
elements outside of the sample, is not detected.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Container, Sequence
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor
from torch.nn import Parameter

from .internals import DisableTorchFunction, storage_address, write_count
from .memory import OF_SIZE, needed_bytes

_WHOLE: Final = 4096  # read a tensor of at most this many bytes as a whole
_BLOCK: Final = 512  # read this many bytes at the start and at the end of a larger tensor
_ELEMENTS: Final = 1024  # read at most this many elements of a tensor on another device
_PLAIN: Final = frozenset({Tensor, Parameter})
_is_near: Final[Callable[[Tensor], bool]] = attrgetter("is_cpu")
_bytes_at: Final = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)  # what ctypes.string_at calls, without its overhead
)

Sample = bytes | Tensor | None


class Marks:
    """The write counts, addresses and samples of some tensors at one moment.

    Tensors on other devices, which take longer, are sampled only if their index is in `on_device`. Nothing waits for a
    device: the samples stay there.
    """

    __slots__ = ("_addresses", "_lengths", "_storages", "_versions", "samples")

    def __init__(self, tensors: Sequence[Tensor], on_device: Container[int] = ()) -> None:
        with DisableTorchFunction(), torch.no_grad():
            self._versions = _ask(write_count, tensors, -1)
            self._addresses = _ask(Tensor.data_ptr, tensors, 0)
            self._storages = _ask(storage_address, tensors, 0)
            self._lengths = _ask(_readable, tensors, 0)
            pairs = zip(self._addresses, self._lengths, strict=True)
            self.samples: list[Sample]
            if all(map(_is_near, tensors)):
                self.samples = [_sample(address, length) if length else None for address, length in pairs]
            else:
                self.samples = _samples(tensors, list(pairs), on_device)

    def is_whole(self, place: int) -> bool:
        """True if the sample of a tensor has every element."""
        sample = self.samples[place]
        size = sample.nbytes if isinstance(sample, Tensor) else len(sample or b"")
        return sample is not None and size == self._lengths[place]

    def is_counted(self, place: int, now: Marks, its_place: int, tensor: Tensor) -> bool:
        """True if torch shows that a tensor changed between two moments: it counted a write, or the tensor has other memory.

        A write that changed no byte does not count: DistributedDataParallel broadcasts buffers before each pass. Nor does
        `share_memory()`, which moves a tensor to other memory without a change.
        """
        has_other_memory = self._addresses[place] != now._addresses[its_place]
        if self._versions[place] != now._versions[its_place]:
            is_all_the_same = self.is_whole(place) and now.is_whole(its_place) and self.is_same_sample(place, now, its_place)
            return has_other_memory or not is_all_the_same
        is_same_storage = self._storages[place] == now._storages[its_place] != 0
        return has_other_memory and not (is_same_storage and tensor.is_cpu and tensor.untyped_storage().is_shared())

    def is_same_sample(self, place: int, now: Marks, its_place: int) -> bool:
        """True if the sampled elements are equal bit for bit."""
        one, other = self.samples[place], now.samples[its_place]
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            with DisableTorchFunction():
                return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        return one is None or other is None or one == other


def _ask(question: Callable[[Tensor], int], tensors: Sequence[Tensor], otherwise: int) -> list[int]:
    """Call `question` with each tensor. Returns the results, with `otherwise` where torch raises."""
    try:
        return list(map(question, tensors))
    except RuntimeError:  # inference tensors have no count; sparse tensors and wrappers have no storage
        answers = []
        for tensor in tensors:
            try:
                answers.append(question(tensor))
            except RuntimeError:
                answers.append(otherwise)
        return answers


def _readable(tensor: Tensor) -> int:
    """The number of bytes from the first to the last element; 0 if they cannot be read."""
    if type(tensor) not in _PLAIN or tensor.is_nested or not tensor.data_ptr():
        return 0
    start = int(tensor.storage_offset()) * tensor.element_size()
    length = tensor.nbytes if tensor.is_contiguous() else needed_bytes(tensor) - start
    return length if start + length <= tensor.untyped_storage().nbytes() else 0  # otherwise torch reads beyond its memory


def _sample(address: int, length: int) -> bytes:
    """Read a piece of memory: all bytes of a small piece, both ends of a larger piece."""
    if length <= _WHOLE:
        return _bytes_at(address, length)  # type: ignore[no-any-return]  # a C function
    return _bytes_at(address, _BLOCK) + _bytes_at(address + length - _BLOCK, _BLOCK)  # type: ignore[no-any-return]


def _samples(tensors: Sequence[Tensor], memory: list[tuple[int, int]], on_device: Container[int]) -> list[Sample]:
    """Take samples of the tensors. On other devices, samples of one device and element size are copied together."""
    samples: list[Sample] = [None] * len(tensors)
    elsewhere: dict[tuple[torch.device, torch.dtype], list[tuple[int, Tensor]]] = {}
    for place, (tensor, (address, length)) in enumerate(zip(tensors, memory, strict=True)):
        if length and tensor.is_cpu:
            samples[place] = _sample(address, length)
        elif length and place in on_device:
            view = _view_elsewhere(tensor, length // tensor.element_size())
            if view is not None:
                elsewhere.setdefault((view.device, view.dtype), []).append((place, view))
    for views in elsewhere.values():
        copied = torch.split(torch.cat([view for _, view in views]), [len(view) for _, view in views])
        for (place, _), sample in zip(views, copied, strict=True):
            samples[place] = sample
    return samples


def _view_elsewhere(tensor: Tensor, elements: int) -> Tensor | None:
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None  # what runs now becomes part of the user's CUDA graph
    view = tensor.as_strided((min(elements, _ELEMENTS),), (max(1, elements // _ELEMENTS),))
    return view.view(OF_SIZE[tensor.element_size()])
