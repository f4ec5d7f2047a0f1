"""Records that are made from columns when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeVar, overload

Record = TypeVar("Record")


class Views(Sequence[Record]):
    """A sequence of records, each of which is a view of its place in some columns."""

    __slots__ = ()

    @abstractmethod
    def _view(self, place: int) -> Record:
        """The record at a place."""

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return [self._view(n) for n in range(*place.indices(len(self)))]
        return self._view(place)

    def __iter__(self) -> Iterator[Record]:
        return (self._view(place) for place in range(len(self)))
