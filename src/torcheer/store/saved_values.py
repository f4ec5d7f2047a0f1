"""Stands for the tensors of a saved history, each of which is read from the file when it is used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex

from torch import Tensor

from ..records import FACTS, FUNCTION, Held, Log
from ..shapes import shape_of
from .saved_tensors import SavedTensors

_SET_DATA = "set_data"  # gives a lazy parameter its values: recorded before the parameter has a shape


class Stored:
    """A tensor of a file, by name."""

    __slots__ = ("_name", "_tensors")

    def __init__(self, name: str, tensors: SavedTensors) -> None:
        self._name = name
        self._tensors = tensors

    def read(self, shape: tuple[int, ...] | None = None) -> Tensor:
        """The tensor. Raises `UnreadableFile` where its shape is not the one that is recorded, if that is given."""
        found = self._tensors.read(self._name)
        if shape is not None and shape_of(found) != shape:
            self._tensors.refuse(self._name, f"its shape is {shape_of(found)}, and {tuple(shape)} is recorded of the operation")
        return found


class SavedHeld(Held):
    """An argument that was kept on its own."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.version = -1

    @property
    def value(self) -> Any:
        return self._stored.read()


class SavedValues(list[Any]):
    """The values of operations, as `Log.values` has them. An item that is a `Stored` is read when it is taken out.

    A value has the shape that is recorded in the log, unless the function of the user (`activation_postfunc`) made the value.
    """

    def __init__(self, values: Iterable[Any], log: Log, *, are_tensors: bool) -> None:
        super().__init__(values)
        # not the log, which has these values: a cycle would keep a history alive until the collector runs
        self._rows, self._details, self._functions = log.rows, log.details, log.functions
        self._are_tensors = are_tensors

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = list.__getitem__(self, place)
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return self._fitting(place.__index__() % len(self), found) if type(found) is Stored else found

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def _fitting(self, place: int, stored: Stored) -> Tensor:
        row, details = self._rows[place], self._details.get(place)
        shape = row[FACTS][0]
        is_unmade = not shape and self._functions[row[FUNCTION]].name == _SET_DATA
        is_batched = details is not None and details.is_transformed  # what `vmap` adds is in the value alone
        return stored.read(shape if self._are_tensors and not is_unmade and not is_batched else None)


class SavedGradients(dict[int, Any]):
    """The gradients of a backward pass, by operation, or by the negative number of a parameter; of the shape of that."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._rows, self._states = log.rows, log.states  # not the log, which has these gradients

    def __getitem__(self, key: int) -> Any:
        shape = self._rows[key][FACTS][0] if key >= 0 else shape_of(self._states.tensors[-1 - key])
        return dict.__getitem__(self, key).read(shape)

    def get(self, key: int, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]
