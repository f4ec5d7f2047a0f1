"""What is known of every snapshot without opening it, in some sixty bytes each, so that a long run needs little memory.

A row says where the line of a snapshot is in the index, and which layers and kinds it has; sets of those are stored once, as
nearly all snapshots of a run have the same. Ranges of values are kept for each layer and kind over the whole run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from ..snapshots.records import Snapshot

Array = Any  # of NumPy, whose types are not followed
Key = tuple[str, str]  # a layer and a kind

_ROW: Any = np.dtype(
    [("step", "i8"), ("number", "i8"), ("time", "f8"), ("at", "i8"), ("length", "i8"), ("bytes", "i8"), ("content", "i4")]
)
NO_LINE = -1  # a snapshot that is not in the index: its file says what it is


class Content(NamedTuple):
    """What a snapshot has."""

    keys: tuple[Key, ...]
    summaries: tuple[str, ...]  # names of layers
    metrics: tuple[str, ...]


@dataclass(slots=True)
class Range:
    """How far the values of one kind of one layer went, over the run."""

    low: float | None = None  # where most of them lie
    high: float | None = None
    least: float | None = None
    most: float | None = None


class Rows:
    """A table with a row for each snapshot, by step and number. One thread adds, others may read."""

    def __init__(self) -> None:
        self._table: Array = np.zeros(64, _ROW)
        self._count = 0
        self._numbers: set[int] = set()
        self._contents: dict[Content, int] = {}
        self._lock = threading.Lock()
        self.contents: list[Content] = []
        self.ranges: dict[Key, Range] = {}
        self.bytes = 0  # of all files
        self.last_number = -1

    def __len__(self) -> int:
        return self._count

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def copy(self) -> Array:
        """The table as it is now."""
        with self._lock:
            return self._table[: self._count].copy()

    def numbers(self) -> set[int]:
        return self._numbers

    def add(self, snapshot: Snapshot, at: int = NO_LINE, length: int = 0) -> None:
        """Add a snapshot whose line is at a place of the index; one with the same number is replaced."""
        if snapshot.number in self._numbers:
            self.remove(snapshot.number)
        content = self._number_of(content_of(snapshot))
        self._widen(snapshot)
        with self._lock:
            if self._count == len(self._table):
                self._table = np.concatenate([self._table, np.zeros(len(self._table), _ROW)])
            place = self._place(snapshot.step, snapshot.number)
            self._table[place + 1 : self._count + 1] = self._table[place : self._count]
            self._table[place] = (snapshot.step, snapshot.number, snapshot.time, at, length, snapshot.bytes, content)
            self._count += 1
            self._numbers.add(snapshot.number)
            self.bytes += snapshot.bytes
            self.last_number = max(self.last_number, snapshot.number)

    def remove(self, number: int) -> None:
        with self._lock:
            table = self._table[: self._count]
            place = int(np.flatnonzero(table["number"] == number)[0])
            self.bytes -= int(table["bytes"][place])
            table[place:-1] = table[place + 1 :]
            self._count -= 1
            self._numbers.discard(number)

    def resize(self, number: int, size: int) -> None:
        """Note how many bytes the file of a snapshot has, where that is not what its line says."""
        with self._lock:
            table = self._table[: self._count]
            place = int(np.flatnonzero(table["number"] == number)[0])
            self.bytes += size - int(table["bytes"][place])
            table["bytes"][place] = size

    def move(self, places: dict[int, int]) -> None:
        """Note where the lines of snapshots are now, by number."""
        with self._lock:
            table = self._table[: self._count]
            table["at"] = [places.get(number, NO_LINE) for number in table["number"].tolist()]

    def closest(self) -> tuple[int, int]:
        """The number and the length of the line of the snapshot closest to its neighbours; never the first or the last."""
        steps = self._table["step"][: self._count]
        row = self._table[1 + int(np.argmin(steps[2:] - steps[:-2]))]
        return int(row["number"]), int(row["length"])

    def _place(self, step: int, number: int) -> int:
        """Where a row belongs; almost always at the end."""
        table = self._table[: self._count]
        if not self._count or (step, number) > (table["step"][-1], table["number"][-1]):
            return self._count
        first, last = (int(np.searchsorted(table["step"], step, side)) for side in ("left", "right"))
        return first + int(np.searchsorted(table["number"][first:last], number))

    def _number_of(self, content: Content) -> int:
        if content not in self._contents:
            self.contents.append(content)
            self._contents[content] = len(self.contents) - 1
        return self._contents[content]

    def _widen(self, snapshot: Snapshot) -> None:
        for entry in snapshot.entries:
            known = self.ranges.setdefault((entry.layer, entry.kind), Range())
            known.low = min(_known(known.low, entry.low), default=None)
            known.high = max(_known(known.high, entry.high), default=None)
            known.least = min(_known(known.least, entry.statistics.min), default=None)
            known.most = max(_known(known.most, entry.statistics.max), default=None)


class Snapshots(Sequence[Snapshot]):
    """Snapshots that are read from the disk when they are asked for, one by one."""

    def __init__(self, table: Array, read: Callable[[Any], Snapshot]) -> None:
        self.table = table
        self._read = read

    @property
    def steps(self) -> list[int]:
        """The step of each, without reading them."""
        steps: list[int] = self.table["step"].tolist()
        return steps

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, at: int) -> Snapshot: ...
    @overload
    def __getitem__(self, at: slice) -> Snapshots: ...
    def __getitem__(self, at: int | slice) -> Snapshot | Snapshots:
        return Snapshots(self.table[at], self._read) if isinstance(at, slice) else self._read(self.table[at])

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self._read, self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by what is in it

    def __repr__(self) -> str:
        return f"<{len(self)} snapshots>"


def content_of(snapshot: Snapshot) -> Content:
    """Which layers and kinds, summaries and metrics a snapshot has."""
    keys = tuple((entry.layer, entry.kind) for entry in snapshot.entries)
    return Content(keys, tuple(one.layer for one in snapshot.summaries), tuple(snapshot.metrics))


def _known(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]
