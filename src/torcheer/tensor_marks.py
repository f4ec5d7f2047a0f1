"""Whether a tensor was written to since it was marked.

torch counts most writes (`tensor._version`), but not those through `.data`, those of fused optimizers and those of `batch_norm`
to its running statistics. So a mark also holds a sample of the elements: all of a small tensor, and 512 bytes at each end of
a larger one. Reading everything would cost as much as a pass; a sample costs one to two microseconds, and about seven on a GPU,
where only a few tensors are sampled and the elements are spread. A write that torch does not count, and that only touches
elements outside of the sample, is not noticed.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from ctypes import string_at
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from .tensor_memory import needed_bytes
from .torch_internals import DisableTorchFunction

_WHOLE: Final = 4096  # bytes: up to here a tensor is read as a whole
_BLOCK: Final = 512  # bytes that are read at the start of a larger one, and at its end
_ELEMENTS: Final = 1024  # how many elements are read of a tensor on another device
_OF_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # all can be copied


class Mark(NamedTuple):
    """A tensor at one moment: how often torch counted a write to it, where its memory is, and some or all of its elements."""

    version: int = -1
    address: int = 0
    sample: bytes | Tensor | None = None
    is_whole: bool = False  # the sample has every element


def marks_of(tensors: Sequence[Tensor], on_device: Container[int]) -> list[Mark]:
    """The marks of some tensors; of those on other devices, which take longer, only the ones at `on_device` get a sample.

    Nothing waits for a device: what is there is copied there.
    """
    with DisableTorchFunction(), torch.no_grad():
        marks = [_mark(tensor, place in on_device) for place, tensor in enumerate(tensors)]
        elsewhere: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, mark in enumerate(marks):
            if isinstance(mark.sample, Tensor):
                elsewhere.setdefault((mark.sample.device, mark.sample.dtype), []).append(place)
        for places in elsewhere.values():
            views = [view for place in places if isinstance(view := marks[place].sample, Tensor)]
            for place, copied in zip(places, torch.split(torch.cat(views), [len(view) for view in views]), strict=True):
                marks[place] = marks[place]._replace(sample=copied)
        return marks


def _sample(address: int, length: int) -> bytes:
    """All bytes of a small piece of memory, and some of a larger one."""
    if length <= _WHOLE:
        return string_at(address, length)
    return string_at(address, _BLOCK) + string_at(address + length - _BLOCK, _BLOCK)


def is_counted(before: Mark, now: Mark) -> bool:
    """Whether torch tells two moments of a tensor apart: it counted a write, or the tensor has other memory."""
    return (before.version, before.address) != (now.version, now.address)


def is_same_sample(before: Mark, now: Mark) -> bool:
    """Whether the elements that were read are bit for bit the same."""
    one, other = before.sample, now.sample
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        with DisableTorchFunction():
            return torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    return one is None or other is None or one == other


def _mark(tensor: Tensor, on_device: bool) -> Mark:
    """A mark whose sample, on another device, is still a view of the tensor."""
    try:
        version = tensor._version
    except RuntimeError:  # of inference tensors torch counts nothing
        version = -1
    try:
        address = tensor.data_ptr()
    except RuntimeError:  # a tensor without storage has no memory
        return Mark()
    is_near = tensor.is_cpu
    if not address or not (is_near or on_device):
        return Mark(version, address)
    if (type(tensor) is not Parameter and type(tensor) is not Tensor) or tensor.is_nested:
        return Mark(version, address)
    length = tensor.nbytes if tensor.is_contiguous() else _extent(tensor)
    if tensor.untyped_storage().nbytes() < tensor.storage_offset() * tensor.element_size() + length:
        return Mark(version, address)  # torch would read beyond its memory
    if not is_near:
        return Mark(version, address, *_view_elsewhere(tensor, length // tensor.element_size()))
    return Mark(version, address, _sample(address, length), length <= _WHOLE)


def _extent(tensor: Tensor) -> int:
    """How many bytes there are from the first to the last element of a strided tensor."""
    return needed_bytes(tensor) - int(tensor.storage_offset()) * tensor.element_size()


def _view_elsewhere(tensor: Tensor, elements: int) -> tuple[Tensor | None, bool]:
    if tensor.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return None, False  # what runs now becomes a part of the user's CUDA graph
    count = min(elements, _ELEMENTS)
    view = tensor.as_strided((count,), (max(1, elements // _ELEMENTS),))
    return view.view(_OF_SIZE[tensor.element_size()]), count == elements
