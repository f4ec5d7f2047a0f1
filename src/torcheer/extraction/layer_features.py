"""`LayerFeatures`: the stored values of one layer, like an array. Nothing is read but what is asked for."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..errors import InvalidArgument
from ..inputs import described, is_whole
from ..tensor_files import enough_memory
from .blocks.block_index import BlockIndex, Column, Piece
from .exporting import as_numpy, export_layer
from .statistics import LayerStatistics

_TOGETHER = 64 << 20  # bytes that are read at once where everything is wanted


class LayerFeatures(LayerStatistics, Dataset[Tensor]):
    """The values of a layer for all samples (or tokens) that are there, in order.

    `layer[3]` is a tensor; `layer[2:5]`, `layer[[4, 1]]`, `layer[mask]` have a first dimension more; `layer[:, 0]` also reads
    only part of each row. What is returned is a copy. It is a `Dataset` too: `DataLoader(features["layer3"], batch_size=64)`.

    Where samples have different shapes (`is_ragged`), several of them are a list; `pad()` makes tensors.
    """

    def __init__(self, index: BlockIndex, column: str, name: str, padding: float | None = None) -> None:
        self.name = name
        self.padding = padding  # what samples are filled up with; None: they are not
        self._index, self._key = index, column

    # What it is -----------------------------------------------------------------------------------------------------

    @property
    def _column(self) -> Column:
        return self._index.column(self._key)

    def __len__(self) -> int:
        return self._column.rows

    @property
    def is_ragged(self) -> bool:
        """Whether samples have different shapes."""
        return len(self._column.shapes) > 1

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of all of it; None stands for a dimension that differs between samples."""
        shapes = self._column.shapes
        if not shapes:
            return (0,)
        if len({len(shape) for shape in shapes}) > 1:
            raise InvalidArgument(f"{self.name!r} has no shape: its samples have different numbers of dimensions.")
        sizes = [set(at) for at in zip(*shapes, strict=True)]
        return (len(self), *(size.pop() if len(size) == 1 else None for size in sizes))

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the values."""
        types = list(self._column.dtypes) or [torch.float32]
        return reduce(torch.promote_types, types)

    @property
    def nbytes(self) -> int:
        """How many bytes the values have."""
        return sum(piece.rows * math.prod(piece.shape) * piece.dtype.itemsize for piece in self._column.pieces)

    def pad(self, value: float = 0) -> LayerFeatures:
        """The same with every sample filled up at the end of each dimension, to the largest of those that are asked for."""
        return LayerFeatures(self._index, self._key, self.name, value)

    @property
    def said_shape(self) -> str:
        """The shape in words; a size that differs between samples is `…`, and so are different numbers of dimensions."""
        if len({len(shape) for shape in self._column.shapes}) > 1:
            return f"({len(self)}, …)"
        sizes = ["…" if size is None else str(size) for size in self.shape]
        return f"({', '.join(sizes)})" if len(sizes) > 1 else f"({sizes[0]},)"

    def __repr__(self) -> str:
        return f"LayerFeatures({self.name!r}, {self.said_shape}, {self.dtype})"

    # Reading --------------------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        rows, *rest = (key or (Ellipsis,)) if isinstance(key, tuple) else (key,)
        if rows is Ellipsis:
            if any(one is Ellipsis for one in rest):
                raise IndexError(f"{self.name!r} can be indexed with one ellipsis only.")
            if any(one is not Ellipsis for one in rest) and self.is_ragged:
                raise InvalidArgument(f"{self.name!r} is ragged: index its samples first.")
            return self._all()[_joined(Ellipsis, rest)] if rest else self._all()
        if rows is None:
            return self._all()[_joined(None, rest)]
        number = _as_number(rows)
        if number is not None:
            return self._one(number)[tuple(rest)] if rest else self._one(number)
        if isinstance(rows, slice):
            return self._range(range(*rows.indices(len(self))), tuple(rest))
        numbers = self._numbers(rows)
        if _has_arrays(rest) and not self.is_ragged:  # as in NumPy, they are paired with the samples
            return self._chosen(numbers, ())[_joined(torch.arange(len(numbers)), rest)]
        return self._chosen(numbers, tuple(rest))

    def __getitems__(self, numbers: list[int]) -> list[Tensor]:
        """Several samples, as a DataLoader asks for them."""
        found = self._chosen(self._numbers(numbers), ())
        return list(found)

    def __iter__(self) -> Iterator[Tensor]:
        for batch in self.batches(max(1, _TOGETHER // max(self.nbytes // max(len(self), 1), 1))):
            yield from batch

    def batches(self, size: int = 1024) -> Iterator[Any]:
        """All of it in order, so many samples at once."""
        if not is_whole(size, 1):
            raise InvalidArgument(f"a batch has a whole number of samples, from 1; got {size!r}.")
        for first in range(0, len(self), size):
            yield self[first : first + size]

    def _all(self) -> Any:
        return self[0 : len(self)]

    def _one(self, number: int) -> Tensor:
        if not -len(self) <= number < len(self):
            raise IndexError(f"{self.name!r} has {len(self)} samples; {number} is not one of them.")
        number %= len(self)
        piece, first, _ = next(self._column.between(number, number + 1))
        with enough_memory(f"a sample of {self.name!r}"):
            return self._index.rows(piece, first).clone()

    def _numbers(self, rows: Any) -> np.ndarray[Any, Any]:
        """The numbers that an index means: a mask or numbers, in a tensor, an array or a list."""
        if isinstance(rows, Tensor):
            rows = rows.detach().cpu().numpy()
        try:
            found = np.asarray(rows)
        except ValueError:
            found = np.empty((0, 0))
        numbers: np.ndarray[Any, Any]
        if found.dtype == bool and found.shape == (len(self),):
            numbers = np.flatnonzero(found)
            return numbers
        if found.ndim != 1 or (found.dtype.kind not in "iu" and found.size):
            raise IndexError(
                f"samples of {self.name!r} are named by numbers, slices, lists of numbers or a mask of {len(self)}; "
                f"got {described(rows)}."
            )
        found = found.astype(np.int64)
        wrong = found[(found < -len(self)) | (found >= len(self))]
        if wrong.size:
            raise IndexError(f"{self.name!r} has {len(self)} samples; {wrong[0]} is not one of them.")
        numbers = np.where(found < 0, found + len(self), found)
        return numbers

    def _range(self, numbers: range, rest: tuple[Any, ...]) -> Any:
        if numbers.step != 1:
            return self._chosen(np.arange(numbers.start, numbers.stop, numbers.step), rest)
        parts, at = [], 0
        for piece, first, end in self._column.between(numbers.start, max(numbers.start, numbers.stop)):
            parts.append((piece, slice(first, end), slice(at, at + end - first)))
            at += end - first
        return self._put_together(parts, at, rest)

    def _chosen(self, numbers: np.ndarray[Any, Any], rest: tuple[Any, ...]) -> Any:
        column = self._column
        pieces = np.searchsorted(np.asarray(column.starts), numbers, side="right") - 1
        parts = []
        for at in np.unique(pieces):
            to = np.flatnonzero(pieces == at)
            inside = torch.from_numpy(numbers[to] - column.starts[at])
            parts.append((column.pieces[at], inside, torch.from_numpy(to)))
        return self._put_together(parts, len(numbers), rest)

    def _put_together(self, parts: list[tuple[Piece, Any, Any]], count: int, rest: tuple[Any, ...]) -> Any:
        """Rows of pieces as one tensor, or as a list where they have different shapes."""
        shapes = {piece.shape for piece, _, _ in parts}
        if len(shapes) > 1 or (self.padding is None and self.is_ragged):
            return self._ragged(parts, count, shapes, rest)
        is_basic = all(one is Ellipsis or isinstance(one, (int, slice)) for one in rest)
        found: Tensor | None = None
        for piece, inside, to in parts:
            rows = self._index.rows(piece, inside)
            if rest and is_basic:
                rows = rows[_joined(slice(None), rest)]
            if found is None:
                with enough_memory(f"{self.name!r}, {self.said_shape},"):
                    found = torch.empty((count, *rows.shape[1:]), dtype=self.dtype, device="cpu")
            _indexable(found)[to] = _indexable(rows.to(self.dtype))
        if found is None:
            found = torch.empty((0, *(size or 0 for size in self.shape[1:])), dtype=self.dtype, device="cpu")
            is_basic = False
        return found if is_basic or not rest else found[_joined(slice(None), rest)]

    def _ragged(
        self, parts: list[tuple[Piece, Any, Any]], count: int, shapes: set[tuple[int, ...]], rest: tuple[Any, ...]
    ) -> Any:
        samples: list[Any] = [None] * count
        for piece, inside, to in parts:
            places = range(to.start, to.stop) if isinstance(to, slice) else to.tolist()
            for place, row in zip(places, self._index.rows(piece, inside).clone(), strict=True):
                samples[place] = row
        if self.padding is None:
            return [sample[rest] for sample in samples] if rest else samples
        if len({len(shape) for shape in shapes}) > 1:
            raise InvalidArgument(f"{self.name!r} cannot be padded: its samples have different numbers of dimensions.")
        largest = [max(sizes) for sizes in zip(*shapes, strict=True)]
        with enough_memory(f"{self.name!r}, padded,"):
            found = torch.full((count, *largest), self.padding, dtype=self.dtype, device="cpu")
        for place, sample in enumerate(samples):
            found[_joined(place, [slice(0, size) for size in sample.shape])] = sample
        return found[_joined(slice(None), rest)] if rest else found

    # As other things ------------------------------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("features are read from files, so an array of them is a copy.")
        found = self.to_numpy()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """All of it as a new tensor, for `torch.as_tensor` and everything else that reads DLPack."""
        self.check_even()
        return self._all().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return torch.empty(0, device="cpu").__dlpack_device__()

    def to_numpy(self, memmap: str | os.PathLike[str] | None = None) -> np.ndarray[Any, Any]:
        """All of it as an array: in memory, or in a new `.npy` file that is mapped. Of `bfloat16` it is `float32`."""
        if memmap is not None:
            mapped: np.ndarray[Any, Any] = np.load(export_layer(self, Path(memmap)), mmap_mode="r")
            return mapped
        self.check_even()
        return as_numpy(self._all())

    def export(self, path: str | os.PathLike[str]) -> Path:
        """Write all of it into a `.npy` file or a `.zarr` folder, without holding it in memory. Returns the path."""
        return export_layer(self, Path(path))

    def check_even(self) -> None:
        """Raise where samples have different shapes and are not padded."""
        if self.is_ragged and self.padding is None:
            raise InvalidArgument(
                f"{self.name!r} is ragged: its samples have different shapes, so it is no single array. "
                "pad() fills them up: features[…].pad(0)."
            )

    def full_shape(self) -> tuple[int, ...]:
        """The shape of all of it, padded where it is ragged."""
        self.check_even()
        largest = [max(sizes) for sizes in zip(*self._column.shapes, strict=True)]
        return (len(self), *largest)


def _joined(first: Any, rest: Sequence[Any]) -> Any:
    """An index: the first dimension, and the others."""
    return (first, *rest)


def _has_arrays(index: Sequence[Any]) -> bool:
    return any(isinstance(one, (list, tuple, np.ndarray, Tensor, range)) and np.ndim(one) for one in index)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _indexable(tensor: Tensor) -> Tensor:
    """The same memory in a type whose elements torch can write by their numbers."""
    return tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype))


def _as_number(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, Tensor) and (value.dim() or value.dtype is torch.bool)):
        return None
    if isinstance(value, (np.ndarray, Sequence)) and np.ndim(value):
        return None
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        return None
