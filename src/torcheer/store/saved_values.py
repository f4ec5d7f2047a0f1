"""Stands for the tensors of a saved history, each of which is read from the file when it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, SupportsIndex

from torch import Tensor

from ..records import Held
from .saved_tensors import SavedTensors


class Stored:
    """A tensor of a file, by name."""

    __slots__ = ("_name", "_tensors")

    def __init__(self, name: str, tensors: SavedTensors) -> None:
        self._name = name
        self._tensors = tensors

    def read(self) -> Tensor:
        return self._tensors.read(self._name)


class SavedHeld(Held):
    """An argument that was kept on its own."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.version = -1

    @property
    def value(self) -> Any:
        return self._stored.read()


def _read(value: Any) -> Any:
    return value.read() if type(value) is Stored else value


class SavedValues(list[Any]):
    """The values of operations, as `Log.values` has them. An item that is a `Stored` is read when it is taken out."""

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = list.__getitem__(self, place)
        return list(map(_read, found)) if isinstance(place, slice) else _read(found)

    def __iter__(self) -> Iterator[Any]:
        return map(_read, list.__iter__(self))


class SavedGradients(dict[int, Any]):
    """The gradients of a backward pass, by operation."""

    def __getitem__(self, key: int) -> Any:
        return _read(dict.__getitem__(self, key))

    def get(self, key: int, default: Any = None) -> Any:
        return _read(dict.get(self, key, default))

    def values(self) -> Any:
        return list(map(_read, dict.values(self)))

    def items(self) -> Any:
        return [(key, _read(value)) for key, value in dict.items(self)]
