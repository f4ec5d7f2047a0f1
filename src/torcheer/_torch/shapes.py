"""Shapes of all kinds of tensors, including nested ones, and their sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.nn.parameter import is_lazy

from .internals import untraced


class RaggedShape(tuple[int, ...]):
    """The shape of a nested tensor, with -1 for each ragged dimension; `elements` is its number of elements."""

    elements: int


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """The shape of a tensor; () for an uninitialised parameter."""
    if is_lazy(tensor):
        return ()
    if not tensor.is_nested:
        shape = tuple(tensor.shape)
        if all(type(size) is int for size in shape):
            return shape
        with untraced():  # while torch traces, sizes are tensors or symbolic
            shape = tuple(tensor.shape)
            return shape if all(type(size) is int for size in shape) else _ragged(tensor)
    return _ragged(tensor)


def _ragged(tensor: torch.Tensor) -> RaggedShape:
    shape = []
    for dimension in range(tensor.dim()):
        try:
            size = tensor.size(dimension)
            shape.append(size if type(size) is int else -1)
        except RuntimeError:
            shape.append(-1)
    ragged = RaggedShape(shape)
    try:
        ragged.elements = int(tensor.numel())
    except RuntimeError:  # sizes are symbolic
        ragged.elements = 0
    return ragged


def elements_of(shape: tuple[int, ...]) -> int:
    """The number of elements of a tensor of this shape."""
    return shape.elements if isinstance(shape, RaggedShape) else math.prod(shape)


def bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The number of bytes of a tensor of this shape."""
    return elements_of(shape) * dtype.itemsize


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor. Contiguous tensors may differ from them in dimensions of size 1."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
