"""Records that are not torch calls: inputs, outputs, other views of recorded memory, and sources."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...records import TENSOR, Kind, Origin, TorchFunction
from .shared_memory import has_bytes
from .tensor_table import extent

MARKERS = {
    origin: TorchFunction(None, origin.value, origin.value, Kind.OPERATION, origin=origin)
    for origin in (Origin.INPUT, Origin.OUTPUT, Origin.ALIAS, Origin.SOURCE)
}

# For a record that is not a torch call: the template of its arguments, the names of the keyword ones, its site.
Arguments = tuple[tuple[Any, ...], tuple[str, ...], int]


def view_of(tensor: Tensor, other: Tensor) -> Arguments:
    """The arguments from which `tensor` can be made as a view of `other`: shape, strides and distance in elements.

    None if that is impossible: `tensor` reaches memory that `other` does not, or one of them has no memory of its own.
    """
    if tensor.dtype != other.dtype or not is_inside(tensor, other):
        return (), (), -1
    distance, rest = divmod(tensor.data_ptr() - other.data_ptr(), tensor.element_size())
    if rest:
        return (), (), -1
    return (TENSOR, tuple(tensor.shape), tensor.stride(), distance), (), -1


def is_inside(tensor: Tensor, other: Tensor) -> bool:
    """Whether `other` reaches all the memory that `tensor` does."""
    if not (has_bytes(tensor) and has_bytes(other)):
        return False
    start, stop, _ = extent(tensor)
    low, high, _ = extent(other)
    first, lowest = tensor.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
    return lowest + low <= first + start and first + stop <= lowest + high
