"""Rows: the features of a layer, one row of numbers for each sample, read a few at a time in double precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ...measure import dense
from ...torch_internals import DisableTorchFunction

_TOGETHER = 1 << 21  # numbers that are read together


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
        self._shape = tuple(shape)

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        width = 2 if self.is_complex else 1
        for size in self._shape[1:]:
            width *= size
        return width

    @property
    def is_complex(self) -> bool:
        dtype = getattr(self._values, "dtype", None)
        return dtype.is_complex if isinstance(dtype, torch.dtype) else np.dtype(dtype).kind == "c"

    def of(self, samples: np.ndarray[Any, Any]) -> Rows:
        """Some of the rows, by their places."""
        chosen = samples if self._samples is None else self._samples[samples]
        return Rows(self.name, self._values, chosen)

    def read(self, begin: int, end: int) -> Tensor:
        """Rows from one place up to another, rows × width, float64."""
        end = min(end, self.count)
        if self._samples is None:
            return self._as_rows(self._values[begin:end])
        chosen = self._samples[begin:end]
        if len(chosen) and (np.diff(chosen) == 1).all():  # neighbours are read without copying them first
            return self._as_rows(self._values[int(chosen[0]) : int(chosen[-1]) + 1])
        return self._as_rows(self._values[torch.from_numpy(chosen) if isinstance(self._values, Tensor) else chosen])

    def parts(self, together: int | None = None) -> Iterator[tuple[int, Tensor]]:
        """All rows, a few at a time, each time with the place of the first."""
        together = together or max(1, _TOGETHER // max(1, self.width))
        for begin in range(0, self.count, together):
            yield begin, self.read(begin, begin + together)

    def _as_rows(self, values: Any) -> Tensor:
        with DisableTorchFunction(), torch.no_grad():
            read = dense(values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values)))
            if read is None:
                raise InvalidArgument(f"the values of {self.name!r} cannot be read: they are on device {values.device}.")
            read = torch.view_as_real(read.resolve_conj()) if read.is_complex() else read
            return read.reshape(len(read), self.width).to("cpu", torch.float64)
