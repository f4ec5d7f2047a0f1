"""Labels and ids of samples, as columns of a block: tensors, or texts."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ...inputs import described
from ..digests import described_function, value_digest
from .batches import Part, Source

Column = Tensor | list[str]
GivenIds = str | int | Callable[[Any], object] | Sequence[object] | Tensor | np.ndarray[Any, Any]  # what `ids=` takes


class Ids:
    """What samples are known by: a function of a batch, the name of an item of it, or a sequence with one for each sample."""

    def __init__(self, ids: Any) -> None:
        self.item = ids if isinstance(ids, (str, int)) else None
        self._function: Callable[[Any], Any] | None = ids if callable(ids) and self.item is None else None
        self._sequence: Sequence[Any] | None = None
        if ids is not None and self.item is None and self._function is None:
            if not hasattr(ids, "__getitem__") or not hasattr(ids, "__len__"):
                raise InvalidArgument(
                    "ids is the name of an item of a batch, a function of a batch, or a sequence with an id for each sample; "
                    f"got {described(ids)}."
                )
            self._sequence = ids
        self.is_given = ids is not None
        self._are_texts: bool | None = None  # known with the first batch

    def describe(self) -> Any:
        """In values that JSON has."""
        if self._sequence is not None:
            listed = self._sequence.tolist() if hasattr(self._sequence, "tolist") else list(self._sequence)
            return value_digest(listed)
        return self.item if self._function is None else described_function(self._function)

    def of(self, part: Part, source: Source) -> Column | None:
        """The ids of the samples of a batch."""
        if not self.is_given:
            return None
        found = self._found(part, source)
        column = as_column(found, part.samples)
        are_texts = isinstance(column, list)
        if self._are_texts is None:
            self._are_texts = are_texts
        is_odd = isinstance(column, Tensor) and (column.dim() != 1 or column.is_floating_point())
        if column is None or is_odd or are_texts is not self._are_texts:
            raise InvalidArgument(
                f"the ids of batch {part.number} should be {part.samples} whole numbers or texts, the same in every batch; "
                f"got {described(found)}."
            )
        return column

    def _found(self, part: Part, source: Source) -> Any:
        if self._sequence is not None:
            indices = source.indices(part.number)
            places = range(part.first, part.first + part.samples) if indices is None else indices
            try:
                return [_plain(self._sequence[place]) for place in places]
            except (IndexError, KeyError, TypeError):
                raise InvalidArgument(
                    f"ids has {len(self._sequence)} entries, and none for samples {list(places)[:3]}, … of batch {part.number}."
                ) from None
        if self._function is not None:
            return self._function(part.batch)
        try:
            return part.batch[self.item]
        except (KeyError, IndexError, TypeError):
            raise InvalidArgument(
                f"batch {part.number}, {described(part.batch)}, has no item {self.item!r} with ids."
            ) from None


class Labels:
    """The labels that batches have. Those of the first batch are those of all."""

    def __init__(self, first: dict[str, Any], samples: int) -> None:
        columns = {name: as_column(value, samples) for name, value in first.items()}
        self._kinds = {name: type(column) for name, column in columns.items() if column is not None}
        for name in columns.keys() - self._kinds.keys():
            warnings.warn(
                f"{name!r} of the batches is not stored: it is {described(first[name])}, not {samples} numbers or texts.",
                stacklevel=4,
            )

    def of(self, labels: dict[str, Any], part: Part) -> dict[str, Column]:
        """The labels of a batch."""
        found: dict[str, Column] = {}
        for name, kind in self._kinds.items():
            column = as_column(labels.get(name), part.samples)
            if type(column) is not kind:
                raise InvalidArgument(
                    f"batch {part.number} should have {name!r} for its {part.samples} samples, "
                    f"{'texts' if kind is list else 'numbers'} as in the first batch; got {described(labels.get(name))}."
                )
            found[name] = column
        return found


def as_column(value: Any, samples: int) -> Column | None:
    """A value as a column with a row for each sample; None where it cannot be one."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(np.ascontiguousarray(value.astype(_native(value.dtype), copy=False)))
    if isinstance(value, Tensor):
        is_fine = value.dim() and value.shape[0] == samples and value.layout is torch.strided and not value.is_nested
        return value.detach().clone() if is_fine else None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, (list, tuple, range)) or len(value) != samples:
        return None
    plain = [_plain(one) for one in value]
    if all(isinstance(one, str) for one in plain):
        return plain
    if all(isinstance(one, (int, float)) for one in plain):
        try:
            return torch.tensor(plain, device="cpu")
        except (OverflowError, RuntimeError):
            return None
    return None


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of NumPy's in which torch can have such numbers."""
    largest = {"f": np.dtype(np.float64), "c": np.dtype(np.complex128)}.get(dtype.kind)
    return largest if largest is not None and dtype.itemsize > largest.itemsize else dtype.newbyteorder("=")


def _plain(value: Any) -> Any:
    """A number or text of Python's own."""
    return value.item() if isinstance(value, (np.generic, Tensor)) and getattr(value, "ndim", 1) == 0 else value


def texts_as_tensor(texts: list[str]) -> Tensor:
    """Texts as bytes."""
    return torch.frombuffer(bytearray(json.dumps(texts).encode()), dtype=torch.uint8)


def texts_of_bytes(data: bytes, count: int) -> list[str] | None:
    """The texts that were written; None where these are not so many texts."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    is_right = isinstance(found, list) and len(found) == count and all(isinstance(one, str) for one in found)
    return found if is_right else None
