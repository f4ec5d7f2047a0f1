"""Rows: the features of a layer, one row of numbers for each sample, read a few at a time in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ...measure import dense
from ...torch_internals import DisableTorchFunction

_TOGETHER = 1 << 20  # numbers that are read together
BYTES_READ = 24  # that a number takes while it is read: as it was stored, in double precision, and centred


class Rows:
    """The features of one layer. Everything of a sample is flattened to one row; complex numbers are pairs of real ones.

    Args:
        name: of the layer, for errors.
        values: a tensor or array whose first dimension counts samples, or features of a layer on disk.
        samples: which samples are the rows, in this order; None for all.
    """

    def __init__(self, name: str, values: Any, samples: np.ndarray[Any, Any] | None = None) -> None:
        self.name = name
        self._values = values
        self._samples = samples
        shape = getattr(values, "shape", None)
        if shape is None or not len(shape):
            raise InvalidArgument(
                f"{name!r} must be features with a dimension of samples, such as an array of shape (samples, features); "
                f"got {type(values).__name__}."
            )
        if not all(isinstance(size, int) for size in shape):
            raise InvalidArgument(
                f"the samples of {name!r} have features of different sizes, which cannot be rows. Extract it with a transform= "
                "that gives every sample the same size, such as a mean over positions."
            )
        self.count = int(shape[0]) if samples is None else len(samples)
        self._shape: tuple[int, ...] = tuple(shape)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return math.prod(self._shape[1:]) * (2 if self.is_complex else 1)

    @property
    def is_complex(self) -> bool:
        dtype = getattr(self._values, "dtype", None)
        return dtype.is_complex if isinstance(dtype, torch.dtype) else np.dtype(dtype).kind == "c"

    def of(self, samples: np.ndarray[Any, Any]) -> Rows:
        """Some of the rows, by their places."""
        chosen = samples if self._samples is None else self._samples[samples]
        return Rows(self.name, self._values, chosen)

    @property
    def unit_width(self) -> int:
        """How many numbers of a row belong to one place of dimension 1, such as the positions of a channel."""
        return self.width // max(1, self._shape[1]) if len(self._shape) > 1 else self.width

    def column_parts(self, width: int) -> Iterator[slice | None]:
        """Slices of dimension 1 that have about so many numbers of a row; None stands for all."""
        if len(self._shape) < 2 or self.width <= width:
            yield None
            return
        together = max(1, width // self.unit_width)
        for begin in range(0, self._shape[1], together):
            yield slice(begin, min(begin + together, self._shape[1]))

    def flat(self, columns: slice | None) -> slice:
        """Where in a row the numbers of a slice of dimension 1 are."""
        return slice(None) if columns is None else slice(columns.start * self.unit_width, columns.stop * self.unit_width)

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        """Rows from one place up to another, in float64; with `columns` only what is at these places of dimension 1."""
        end = min(end, self.count)
        rows: Any = slice(begin, end)
        if self._samples is not None:
            rows = self._samples[begin:end]
            if len(rows) and (np.diff(rows) == 1).all():  # neighbours are read without copying them first
                rows = slice(int(rows[0]), int(rows[-1]) + 1)
            elif isinstance(self._values, Tensor):
                rows = torch.from_numpy(rows)
        return self._as_rows(self._values[rows] if columns is None else self._values[rows, columns])

    def parts(self, together: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, a few at a time, each time with the place of the first."""
        together = together or max(1, _TOGETHER // max(1, self.width))
        for begin in range(0, self.count, together):
            yield begin, self.read(begin, begin + together)

    def _as_rows(self, values: Any) -> Tensor:
        with DisableTorchFunction(), torch.no_grad():
            read = dense(values if isinstance(values, Tensor) else _as_tensor(np.asarray(values)))
            if read is None:
                raise InvalidArgument(f"the values of {self.name!r} cannot be read: they are on device {values.device}.")
            read = torch.view_as_real(read.resolve_conj()) if read.is_complex() else read
            return read.flatten(1).to("cpu", torch.float64) if read.dim() > 1 else read[:, None].to("cpu", torch.float64)


def mean_row(rows: Rows) -> Tensor:
    """The mean of rows, to the last bit that of a single row where all are equal."""
    first = rows.read(0, 1).sum(0)
    away = torch.zeros(rows.width, dtype=torch.float64)
    for _, part in rows.parts():
        away += (part - first).mul_(1 / rows.count).sum(0)
    return first + away


def _as_tensor(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of memory that it must not write to
