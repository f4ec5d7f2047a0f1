"""The files of a run: written whole or not at all, listed in an index, read by anybody."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, overload

import numpy as np
from torch import Tensor

from .._files.files import (
    MOST_TEXT,
    delete_unfinished,
    file_name,
    is_link,
    make_folder,
    open_regular,
    read_regular,
    unfinished_name,
    write_whole,
)
from .._files.json_records import reader
from .._files.tensor_files import TensorFile, write_tensors
from ..errors import InvalidArgument, NotWritten, RunExists, RunInUse, RunNotFound, SnapshotNotFound, UnreadableFile
from .records import VERSION, Snapshot, misfit, snapshot_from_json, snapshot_to_json, tell, tensor_key

# A lock on a file, held until it is released or the process ends, however it ends.

if sys.platform == "win32":
    import msvcrt

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def release(file: IO[bytes]) -> None:
        """Let go of the lock and close the file."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        file.close()

else:
    import fcntl

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(file: IO[bytes]) -> None:
        """Let go of the lock and close the file. Closing is not enough: a forked process may still have it open."""
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


# The file of one snapshot: its tensors, and in its header what is known of them. What cannot be read is an error of
# ours.

_Found = TypeVar("_Found")


def read_tensor(path: Path, snapshot: Snapshot, key: str) -> Tensor:
    """One tensor, by `Entry.key`."""
    found = _read(path, snapshot, lambda: TensorFile(path).tensor(key))
    _check_shapes(path, snapshot, {key: found})
    return found


def read_tensors(path: Path, snapshot: Snapshot) -> dict[str, Tensor]:
    """All tensors, by `Entry.key`."""

    def read() -> dict[str, Tensor]:
        file = TensorFile(path)
        return {name: file.tensor(name) for name in file.places}

    found = _read(path, snapshot, read)
    missing = [entry.key for entry in snapshot.entries if entry.key not in found]
    if missing:
        raise _unreadable(path, snapshot, f"it has no tensor {missing[0]!r}")
    _check_shapes(path, snapshot, found)
    return found


def _check_shapes(path: Path, snapshot: Snapshot, found: Mapping[str, Tensor]) -> None:
    for entry in snapshot.entries:
        if entry.key in found and (wrong := misfit(tuple(found[entry.key].shape), entry)):
            raise _unreadable(path, snapshot, wrong)


def check(path: Path, snapshot: Snapshot) -> None:
    """Raises where a file is gone or was cut."""
    _read(path, snapshot, lambda: TensorFile(path))


def read_header(path: Path, number: int) -> Snapshot | None:
    """The snapshot of this number that is written in the header; None where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, RecursionError):
        file = TensorFile(path)
        found = snapshot_from_json(json.loads(file.metadata["snapshot"]))
        return replace(found, bytes=file.size) if found.number == number else None
    return None


def _read(path: Path, snapshot: Snapshot, read: Callable[[], _Found]) -> _Found:
    try:
        return read()
    except UnreadableFile as error:
        raise _unreadable(path, snapshot, str(error)) from error
    except (OSError, RuntimeError, MemoryError) as error:  # RuntimeError: torch has not so much memory
        raise _unreadable(path, snapshot, str(getattr(error, "strerror", None) or error)) from error


def _unreadable(path: Path, snapshot: Snapshot, reason: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"snapshot {snapshot.number} (step {snapshot.step}) cannot be read from {path}: {reason}")


# Rewrites an index without the lines of deleted snapshots, a piece at a time, so that the training does not wait.

_PIECE = 1 << 20  # bytes that are copied at once


class Compaction:
    """The index is copied line by line, in the order of its lines. Lines may be added at its end meanwhile."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self.part = Path(unfinished_name(index))
        self._copy: IO[bytes] | None = None
        self._read_to = -1  # where the last copied line began
        self._places: dict[int, int] = {}  # by number of the snapshot: where its line is in the copy
        self._written = 0

    def advance(self, rows: Any) -> dict[int, int] | None:
        """Copy the next piece of the lines of these rows. When all are copied, the copy takes the place of the index.

        Returns where the lines are then, by the number of their snapshots; None as long as there is more to copy.
        """
        if self._copy is None:
            self._copy = self.part.open("xb")
        left = rows[rows["at"] > self._read_to]
        left = left[left["at"].argsort()]
        copied = 0
        with self._index.open("rb") as index:
            for row in left:
                if copied > _PIECE:
                    break
                index.seek(int(row["at"]))
                line = index.read(int(row["length"]))
                self._places[int(row["number"])] = self._written
                self._written += self._copy.write(line)
                self._read_to = int(row["at"])
                copied += len(line)
        self._copy.flush()
        os.fsync(self._copy.fileno())
        if copied > _PIECE:
            return None
        self._copy.close()
        os.replace(self.part, self._index)
        return self._places

    def stop(self) -> None:
        """Give up, and leave nothing behind."""
        if self._copy is not None:
            self._copy.close()
            with contextlib.suppress(OSError):
                self.part.unlink()


# What is known of every snapshot without opening it, in some sixty bytes each, so that a long run needs little
# memory.
#
# A row says where the line of a snapshot is in the index, and which layers and kinds it has; sets of those are stored
# once, as nearly all snapshots of a run have the same. Ranges of values are kept for each layer and kind over the
# whole run.

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


# The folder of a run: what may be one, whether it holds a run, who writes to it, and what the run says of itself.

FORMAT = "torcheer-xray"


@dataclass(frozen=True, slots=True)
class _Architecture:
    """What `architecture.py` writes down of a model; runs of older versions have less of it."""

    modules: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    parameters: dict[str, list[int] | None] = field(default_factory=dict)


_KINDS = {
    "title": str,
    "layers": dict[str, list[str]],
    "choices": dict[str, list[int]],
    "architecture": _Architecture,
}


def free_folder(folder: Path) -> Path:
    """A folder beside this one that is not there yet: `run-2`.

    >>> free_folder(Path("no such folder/run"))
    PosixPath('no such folder/run')
    """
    path, count = folder, 1
    while path.exists():
        count += 1
        path = folder.with_name(f"{folder.name}-{count}")
    return path


def new_folder(title: str) -> Path:
    """A folder that is not there yet, named after the model and the time."""
    return free_folder(Path("xray") / f"{file_name(title)}-{time.strftime('%Y%m%d-%H%M%S')}")


def as_folder(folder: Any) -> Path:
    """The folder of a run; raises if the path cannot be one."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder).strip():
        raise InvalidArgument(f"folder says where the run is kept, such as 'runs/first'; got {folder!r}.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"the folder of a run cannot be {str(path)!r}: that is a file. Give another folder.")
    return path


def has_snapshots(folder: Path) -> bool:
    """Whether there is anything of a run in a folder."""
    index = folder / "index.jsonl"
    return (index.exists() and index.stat().st_size > 0) or any((folder / "snapshots").glob("*.safetensors"))


def refuse_link(path: Path) -> None:
    """Raise where a file of a run, to which a training would write, is a link: behind the link may be a file of others."""
    if os.path.lexists(path) and is_link(path):
        raise RunExists(
            f"{path} is a link, and nothing is written through it. Put the file itself there, or give the run a folder of its "
            f"own, such as folder={str(free_folder(path.parent))!r}."
        )


def refuse_what_others_made(run: Path) -> None:
    """Raise where there is a `run.json` already that an Xray did not write: a new run would replace it."""
    if not os.path.lexists(run):
        return
    with contextlib.suppress(OSError, ValueError, RecursionError):
        about = json.loads(read_regular(run))
        if isinstance(about, dict) and about.get("format") == FORMAT and not is_link(run):
            return
    raise RunExists(
        f"{run} is not of an Xray, and a new run would replace it. Give the run a folder of its own, such as "
        f"folder={str(free_folder(run.parent))!r}."
    )


def read_about(folder: Path) -> dict[str, Any]:
    """What the run in a folder says of itself; an error of ours where that cannot be read."""
    try:
        about = json.loads(read_regular(folder / "run.json").decode())
    except FileNotFoundError as error:
        raise RunNotFound(
            f"there is no run in {folder}: it has no run.json. Give the folder that an Xray was made with."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json: {error}") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise RunNotFound(f"{folder / 'run.json'} is not of an Xray: expected format {FORMAT!r}.")
    if about.get("version") != VERSION:
        raise RunNotFound(
            f"the run in {folder} is of version {about.get('version')}, this torcheer reads version {VERSION}: "
            "open it with the version that wrote it."
        )
    try:
        for name, kind in _KINDS.items():
            if name in about:
                reader(kind)(about[name])
    except ValueError as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json is damaged: {name}: {error}.") from None
    return about


def locked(folder: Path) -> IO[bytes]:
    """The lock of a folder, held until the file is closed or the process ends, however it ends."""
    path = folder / "writer.lock"
    try:
        file = open_regular(path, adds=True)
    except OSError as error:
        raise NotWritten(f"the run in {folder} cannot be written: {path.name}: {error.strerror or error}.") from error
    try:
        take(file)
    except OSError as error:
        file.close()
        raise RunInUse(
            f"another Xray is writing to {folder}: one folder belongs to one run at a time. "
            f"Close the other one (xray.close()), or give another folder, such as {str(free_folder(folder))!r}."
        ) from error
    return file


# FileManager: where the snapshots of a run lie, and what is known of each.
#
#     folder/
#       run.json            what the run is: title, seed, what is watched, the architecture of the model
#       index.jsonl         one line for each snapshot: its entries, with statistics
#       snapshots/          one safetensors file for each snapshot, with the kept tensors of all layers and kinds
#       figures/            pictures that were shown
#       writer.lock         held by the process that writes
#
# A snapshot is written to a temporary name, flushed to the disk and renamed; then its line is added to the index. The
# line is also in the header of the file, so the index can be made again from the files. A process that is killed at
# any moment loses at most the snapshot it was writing. Reading runs no code from the files, and works while another
# process writes.
#
# A run may have many thousand snapshots: only a small row of each is in memory, a snapshot is added in the same time
# whatever their number, and room is made one snapshot at a time.

_MOST_DEAD = 0.2  # the part of the index that may be lines of deleted snapshots
_MOST_DAMAGED = 1000  # lines of an index, before the rest is given up
_MOST_NOTES = 1000
_FILE = re.compile(r"(\d{8,15})\.safetensors", re.ASCII)
_REMEMBERED = 16  # snapshots that were read or written last
_Bytes = bytes  # a property of FileManager has that name, too


class FileManager:
    """The files of one run. Made with `create` it may add to them, with `open` only read."""

    def __init__(
        self, folder: Path, about: dict[str, Any], held: IO[bytes] | None = None, max_bytes: int | None = None
    ) -> None:
        self.folder = folder
        self.about = about
        self.max_bytes = max_bytes
        self.notes: list[str] = []  # what is wrong with the files
        self.rows = Rows()
        self._lock = held
        self._process = os.getpid()
        self._read_to = 0  # bytes of the index
        self._lines = 0
        self._index_file = (0, 0)
        self._dead = 0  # bytes of the index
        self._compaction: Compaction | None = None
        self._remembered: OrderedDict[int, Snapshot] = OrderedDict()
        self._scan()

    # Opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], about: Mapping[str, object], max_bytes: int | None = None, *, resume: bool = False
    ) -> FileManager:
        """Begin a run in a folder; with `resume`, go on with the one that is there, if there is one.

        Refused while another process writes to it, and, without `resume`, where there is a run already.
        """
        path = as_folder(folder)
        make_folder(path / "snapshots", "a run")
        if max_bytes is not None and is_link(path / "snapshots"):
            tell(f"{path / 'snapshots'} is a link, and behind a link nothing is deleted: the run may grow beyond max_bytes.", 4)
            max_bytes = None
        for name in ("index.jsonl", "run.json"):
            refuse_link(path / name)
        held = locked(path)
        try:
            there = path / "run.json"
            if has_snapshots(path) and not (resume and there.exists()):
                advice = (
                    "To go on with it, give resume=True; to"
                    if there.exists()
                    else "Its run.json is missing, so it ended here; to"
                )
                raise RunExists(
                    f"there is a run in {path} already. {advice} begin a new one, give a folder of its own, such as "
                    f"folder={str(free_folder(path))!r}."
                )
            if not (resume and there.exists()):
                refuse_what_others_made(there)
                data = json.dumps({"format": FORMAT, "version": VERSION, **about}, indent=2).encode()
                write_whole(there, data, follows=False)
            found = cls(path, read_about(path), held, max_bytes)
            found._clean_up()
        except BaseException:
            release(held)
            raise
        return found

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> FileManager:
        """Read a run: finished, crashed, or still being written."""
        path = as_folder(folder)
        return cls(path, read_about(path))

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            if self.is_writer:
                release(self._lock)
            else:
                self._lock.close()
            self._lock = None

    @property
    def is_writer(self) -> bool:
        """Whether it may add to the run: in a process that was forked off the one that made it, it may not."""
        return self._lock is not None and self._process == os.getpid()

    # Reading ------------------------------------------------------------------------------------------------------

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots there are, by step; each is read when it is asked for."""
        return Snapshots(self.rows.copy(), self.read)

    @property
    def bytes(self) -> int:
        """The size on disk: snapshots and index."""
        return self.rows.bytes + _size(self._index)

    @property
    def _index(self) -> Path:
        return self.folder / "index.jsonl"

    def path(self, snapshot: Snapshot) -> Path:
        """The file of a snapshot."""
        return self._path_of(snapshot.number)

    def _path_of(self, number: int) -> Path:
        return self.folder / "snapshots" / f"{number:08d}.safetensors"

    def read(self, row: np.void) -> Snapshot:
        """The snapshot of a row: from its line of the index, or from its file where the line is not there (any more)."""
        number = int(row["number"])
        with contextlib.suppress(KeyError):
            return self._remembered[number]
        snapshot = None
        with contextlib.suppress(OSError, ValueError, RecursionError):
            if row["at"] != NO_LINE:
                with open_regular(self._index) as index:
                    index.seek(int(row["at"]))
                    snapshot = snapshot_from_json(json.loads(index.read(int(row["length"]))))
        if snapshot is None or snapshot.number != number:  # another process has written the index anew
            snapshot = read_header(self._path_of(number), number)
        if snapshot is None:
            raise SnapshotNotFound(f"snapshot {number} (step {int(row['step'])}) of {self.folder} is gone or cannot be read.")
        self._remember(snapshot)
        return snapshot

    def _remember(self, snapshot: Snapshot) -> None:
        self._remembered[snapshot.number] = snapshot
        while len(self._remembered) > _REMEMBERED:
            with contextlib.suppress(KeyError):  # another thread did it
                self._remembered.popitem(last=False)

    def tensor(self, snapshot: Snapshot, layer: str, kind: str) -> Tensor:
        """What was kept of a kind of a layer."""
        return read_tensor(self.path(snapshot), snapshot, tensor_key(layer, kind))

    def tensors(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Everything that was kept in a snapshot, by `Entry.key`, read at once."""
        return read_tensors(self.path(snapshot), snapshot)

    def check(self, snapshot: Snapshot) -> None:
        """Raises where the file of a snapshot is gone or was cut."""
        check(self.path(snapshot), snapshot)

    def refresh(self) -> Snapshots:
        """Read what another process added since. The one that writes knows what it wrote, not what became of it."""
        if self.is_writer:
            self._compare(self._present)
        else:
            self._scan()
        return self.snapshots

    def _scan(self) -> None:
        """Read new lines of the index. Files without a line are asked themselves; lines without a file are left out."""
        status = self._index_status()
        file = (status.st_dev, status.st_ino) if status is not None else (0, 0)
        if file != self._index_file or (status is not None and status.st_size < self._read_to):
            self._remembered.clear()
            self.rows, self.notes = Rows(), []
            self._read_to, self._lines, self._index_file, self._dead = 0, 0, file, 0
        present = self._present
        if status is not None and status.st_size > self._read_to:
            try:
                with open_regular(self._index) as lines:
                    self._read_lines(lines, present)
            except OSError as error:
                self._note(f"{self._index.name} cannot be read: {error.strerror or error}.")
        self._compare(present)
        for number in present:
            if number in self.rows:
                continue
            path = self._path_of(number)
            snapshot = read_header(path, number)
            if snapshot is not None:
                self.rows.add(snapshot)
            else:
                self.rows.last_number = max(self.rows.last_number, number)  # what is left of it is not written over
                self._note(f"snapshots/{path.name} is damaged and was skipped; the index says nothing of it.")

    def _index_status(self) -> os.stat_result | None:
        """What the system says of the index; None where there is none, or none that can be read."""
        try:
            return self._index.stat()
        except OSError:
            return None

    def _read_lines(self, lines: IO[_Bytes], present: Mapping[int, int]) -> None:
        """Read what was added to the index. Where it makes no sense any more, the rest is left."""
        lines.seek(self._read_to)
        damaged = 0
        while line := lines.readline(MOST_TEXT):
            if not line.endswith(b"\n"):
                if len(line) == MOST_TEXT:
                    self._note(f"line {self._lines + 1} of {self._index.name} is too long, so it is not read from there on.")
                return  # torn, or still being written
            self._lines += 1
            damaged += not self._add_line(line, present)
            self._read_to += len(line)
            if damaged > _MOST_DAMAGED:
                self._note(f"{self._index.name} is not read beyond line {self._lines}: more than {_MOST_DAMAGED} are damaged.")
                return

    def _compare(self, present: Mapping[int, int]) -> None:
        """Leave out snapshots whose files are gone; note those whose files were cut."""
        table = self.rows.copy()
        for number, size, step in table[["number", "bytes", "step"]].tolist():
            there = present.get(number)
            if there is None:
                self.rows.remove(number)
            elif there != size:
                self._note(
                    f"snapshots/{self._path_of(number).name} (step {step}) is damaged: it has {there:,} of {size:,} bytes. "
                    "Its pictures are lost, its statistics are in the index."
                )
                self.rows.resize(number, there)  # room is made by what is there, not by what a line says

    def _note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(note)

    def _add_line(self, line: _Bytes, present: Mapping[int, int]) -> bool:
        """Add the snapshot of a line. Returns whether it is one."""
        try:
            snapshot = snapshot_from_json(json.loads(line), in_outline=True)
        except (ValueError, RecursionError) as error:
            self._note(
                f"line {self._lines} of {self._index.name} is damaged ({error}) and was skipped; "
                "its snapshot is read from its own file if that is whole."
            )
            return False
        if snapshot.number in present:
            self.rows.add(snapshot, self._read_to, len(line))
        else:
            self._dead += len(line)
        return True

    @property
    def _present(self) -> dict[int, int]:
        """The sizes of the snapshots' files, by number. What has their names and is no file is none."""
        found = {}
        try:
            with os.scandir(self.folder / "snapshots") as entries:
                for entry in entries:
                    named = _FILE.fullmatch(entry.name)
                    with contextlib.suppress(OSError):  # deleted meanwhile, or a link that leads nowhere
                        if named is not None and entry.is_file() and entry.name == self._path_of(int(named[1])).name:
                            found[int(named[1])] = entry.stat().st_size
        except FileNotFoundError:
            pass
        except OSError as error:
            self._note(f"the folder snapshots cannot be read: {error.strerror or error}.")
        return found

    # Writing ------------------------------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        return self.rows.last_number + 1

    def write(self, snapshot: Snapshot, tensors: Mapping[str, Tensor]) -> Snapshot:
        """Add a snapshot and the kept tensors of its entries, by `Entry.key`. Returns it with its size."""
        self._must_write()
        target = self.path(snapshot)
        plain = {key: tensor.detach().cpu() for key, tensor in tensors.items()}
        text = json.dumps(snapshot_to_json(replace(snapshot, bytes=0)), separators=(",", ":"))
        write_tensors(target, plain, {"snapshot": text}, "snapshot", follows=False)
        if not (self.folder / "run.json").exists():  # removed: without it the run could not be read
            self.note()
        written = replace(snapshot, bytes=_size(target))
        at, length = self._append(f'{{"bytes":{written.bytes},{text[1:]}\n'.encode())
        self.rows.add(written, at, length)
        self._remember(written)
        self._make_room()
        return written

    def rebuild_index(self) -> None:
        """Make the index again from the headers of the files."""
        self._must_write()
        self._rewrite(filter(None, (read_header(self._path_of(number), number) for number in self._present)))

    def note(self, **facts: object) -> None:
        """Add facts about the run to `run.json`."""
        self._must_write()
        self.about = {**self.about, **facts}
        write_whole(self.folder / "run.json", json.dumps(self.about, indent=2).encode(), follows=False)

    def _append(self, line: _Bytes) -> tuple[int, int]:
        """Add a line to the index. Returns where it begins, and its length."""
        refuse_link(self._index)
        with self._index.open("ab") as index:
            at = index.tell()
            if at and not _ends_with_newline(self._index):
                at += index.write(b"\n")  # after a torn line
            index.write(line)
        self._index_is_read()
        return at, len(line)

    def _index_is_read(self) -> None:
        """Note that the whole index is known: this process wrote it."""
        status = self._index.stat()
        self._index_file, self._read_to = (status.st_dev, status.st_ino), status.st_size

    def _make_room(self) -> None:
        """Delete snapshots until `max_bytes` is kept, those closest together in steps first.

        As each snapshot makes room for itself, this is seldom more than one. The index is written anew in pieces.
        """
        while self.max_bytes is not None and len(self.rows) > 2 and self.rows.bytes + self._read_to > self.max_bytes:
            number, length = self.rows.closest()
            self._path_of(number).unlink(missing_ok=True)
            self.rows.remove(number)
            self._remembered.pop(number, None)
            self._dead += length
            self._compact()
        self._compact()

    def _compact(self) -> None:
        if self._compaction is None and self._dead > _MOST_DEAD * self._read_to and not is_link(self._index):
            self._compaction = Compaction(self._index)
        if self._compaction is None:
            return
        try:
            places = self._compaction.advance(self.rows.copy())
        except OSError:  # no room to do so: it is tried again later
            self._compaction.stop()
            self._compaction, self._dead = None, 0
            return
        if places is not None:
            self.rows.move(places)
            self._index_is_read()
            self._compaction, self._dead = None, 0

    def _rewrite(self, snapshots: Iterable[Snapshot]) -> None:
        """Write the index anew, with these snapshots."""
        rows, lines, at = Rows(), list[bytes](), 0
        for snapshot in sorted(snapshots, key=lambda one: one.number):
            line = json.dumps(snapshot_to_json(snapshot), separators=(",", ":")).encode() + b"\n"
            lines.append(line)
            rows.add(snapshot, at, len(line))
            at += len(line)
        write_whole(self._index, b"".join(lines), follows=False)
        self._index_is_read()
        self.rows, self._lines, self._dead = rows, len(lines), 0

    def _clean_up(self) -> None:
        """Clean up after a killed writer: remove half-written files, add missing lines to the index.

        Nothing else is removed, and nothing behind a link: what lies there may be of others.
        """
        delete_unfinished(self.folder, r"index\.jsonl|run\.json")
        for name, names in (("snapshots", r"\d{8,}\.safetensors"), ("figures", r"step_\d{8,}\.png")):
            if not is_link(self.folder / name):
                delete_unfinished(self.folder / name, names)
        rows = self.rows.copy()
        is_whole = _size(self._index) == self._read_to and self._lines == len(rows) and not (rows["at"] == NO_LINE).any()
        if not is_whole:
            self._rewrite([snapshot for row in rows if (snapshot := self._readable(row)) is not None])

    def _readable(self, row: np.void) -> Snapshot | None:
        with contextlib.suppress(SnapshotNotFound):
            return self.read(row)
        return None

    def _must_write(self) -> None:
        if not self.is_writer:
            raise RunInUse(
                f"the run in {self.folder} was opened to read; make an Xray with folder={str(self.folder)!r} and resume=True "
                "to go on."
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # there is none, or a link that leads nowhere
        return 0


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"
