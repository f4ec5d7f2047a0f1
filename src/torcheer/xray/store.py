"""The files of a run. Each file is written whole or not at all."""

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
from typing import IO, Any, NamedTuple, overload

import numpy as np
from torch import Tensor

from .._files.files import delete_unfinished, file_name, is_link, make_folder, open_regular, read_regular, write_whole
from .._files.json_records import reader
from .._files.tensor_files import TensorFile, read_metadata, write_tensors
from ..errors import InvalidArgument, NotWritten, RunExists, RunInUse, RunNotFound, SnapshotNotFound, UnreadableFile
from .records import VERSION, Snapshot, misfit, snapshot_from_json, snapshot_to_json, tell, tensor_key

# A lock on a file, held until it is released or the process ends in any way.

if sys.platform == "win32":
    import msvcrt

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

    def release(file: IO[bytes]) -> None:
        """Release the lock and close the file."""
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
        file.close()

else:
    import fcntl

    def take(file: IO[bytes]) -> None:
        """Take the lock. Raises OSError when another process has it."""
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(file: IO[bytes]) -> None:
        """Release the lock and close the file. Closing is not enough: a forked process may still have the file open."""
        fcntl.flock(file, fcntl.LOCK_UN)
        file.close()


# A table with a row of some fifty bytes for each snapshot: a long run needs little memory, and files need not be opened.
#
# A row says which layers and kinds a snapshot has. Each set of layers and kinds is stored once, because nearly all snapshots
# of a run have the same set. Ranges of values are kept for each layer and kind over the whole run.

Array = Any  # a NumPy array; NumPy's types are not followed
Key = tuple[str, str]  # a layer and a kind

_ROW: Any = np.dtype([("step", "i8"), ("number", "i8"), ("time", "f8"), ("bytes", "i8"), ("changed", "i8"), ("content", "i4")])


class Content(NamedTuple):
    """The layers, kinds and summaries that a snapshot has, by name."""

    keys: tuple[Key, ...]
    summaries: tuple[str, ...]  # names of layers with a summary
    metrics: tuple[str, ...]


@dataclass(slots=True)
class Range:
    """The range of the values of one kind of one layer over the run."""

    low: float | None = None  # most values lie between `low` and `high`
    high: float | None = None
    least: float | None = None
    most: float | None = None


class Rows:
    """A table with a row for each snapshot, by step and number. One thread adds, others may read."""

    def __init__(self) -> None:
        self._table: Array = np.zeros(64, _ROW)
        self._count = 0
        self._contents: dict[Content, int] = {}
        self._lock = threading.Lock()
        self.ranges: dict[Key, Range] = {}
        self.bytes = 0  # number of bytes of all files
        self.last_number = -1

    def __len__(self) -> int:
        return self._count

    @property
    def contents(self) -> list[Content]:
        """The contents, indexed by the numbers in the table."""
        return list(self._contents)

    def copy(self) -> Array:
        """The table as it is now."""
        with self._lock:
            return self._table[: self._count].copy()

    def add(self, snapshot: Snapshot, changed: int) -> None:
        """Add a snapshot whose file was changed at `changed`, in nanoseconds. A snapshot with the same number is replaced."""
        self.remove(snapshot.number)
        keys = tuple((entry.layer, entry.kind) for entry in snapshot.entries)
        content = Content(keys, tuple(one.layer for one in snapshot.summaries), tuple(snapshot.metrics))
        self._widen(snapshot)
        with self._lock:
            if self._count == len(self._table):
                self._table = np.concatenate([self._table, np.zeros(len(self._table), _ROW)])
            place = self._place(snapshot.step, snapshot.number)
            self._table[place + 1 : self._count + 1] = self._table[place : self._count]
            self._table[place] = (
                snapshot.step,
                snapshot.number,
                snapshot.time,
                snapshot.bytes,
                changed,
                self._contents.setdefault(content, len(self._contents)),
            )
            self._count += 1
            self.bytes += snapshot.bytes
            self.last_number = max(self.last_number, snapshot.number)

    def remove(self, number: int) -> None:
        """Remove the row of a snapshot, if there is one."""
        with self._lock:
            table = self._table[: self._count]
            for place in np.flatnonzero(table["number"] == number).tolist():  # there is one place, or none
                self.bytes -= int(table["bytes"][place])
                table[place:-1] = table[place + 1 :]
                self._count -= 1

    def closest(self) -> int:
        """Return the number of the snapshot whose neighbours are closest in steps. Never returns the first or the last."""
        steps = self._table["step"][: self._count]
        return int(self._table["number"][1 + int(np.argmin(steps[2:] - steps[:-2]))])

    def _place(self, step: int, number: int) -> int:
        """Find the index in the table at which to insert a row."""
        table = self._table[: self._count]
        first, last = (int(np.searchsorted(table["step"], step, side)) for side in ("left", "right"))
        return first + int(np.searchsorted(table["number"][first:last], number))

    def _widen(self, snapshot: Snapshot) -> None:
        for entry in snapshot.entries:
            known = self.ranges.setdefault((entry.layer, entry.kind), Range())
            known.low = min(_known(known.low, entry.low), default=None)
            known.high = max(_known(known.high, entry.high), default=None)
            known.least = min(_known(known.least, entry.statistics.min), default=None)
            known.most = max(_known(known.most, entry.statistics.max), default=None)


class Snapshots(Sequence[Snapshot]):
    """Snapshots that are read from the disk one by one, when they are asked for."""

    def __init__(self, table: Array, read: Callable[[Any], Snapshot]) -> None:
        self.table = table
        self._read = read

    @property
    def steps(self) -> list[int]:
        """The step of each snapshot, without reading the snapshots."""
        steps: list[int] = self.table["step"].tolist()
        return steps

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, at: int) -> Snapshot: ...
    @overload
    def __getitem__(self, at: slice) -> Snapshots: ...
    def __getitem__(self, at: int | slice) -> Snapshot | Snapshots:
        return self.some(at) if isinstance(at, slice) else self._read(self.table[at])

    def some(self, which: Any) -> Snapshots:
        """Several of the snapshots, by a slice, by numbers or by a mask."""
        return Snapshots(self.table[which], self._read)

    def __iter__(self) -> Iterator[Snapshot]:
        return map(self._read, self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # compared by what is in it

    def __repr__(self) -> str:
        return f"<{len(self)} snapshots>"


def _known(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


# The folder of a run: what may be one, whether it holds a run, who writes to it, and what the run says of itself.

FORMAT = "torcheer-xray"


@dataclass(frozen=True, slots=True)
class _Architecture:
    """The architecture of a model, as `architecture_of` makes it; runs of older versions have less."""

    modules: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    parameters: dict[str, list[int] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _About:
    """The facts that `run.json` has about a run."""

    title: str = ""
    layers: dict[str, list[str]] = field(default_factory=dict)
    choices: dict[str, list[int]] = field(default_factory=dict)
    architecture: _Architecture = field(default_factory=_Architecture)


def free_folder(folder: Path) -> Path:
    """Choose a folder beside `folder` that does not exist yet: `run-2`.

    >>> free_folder(Path("no such folder/run"))
    PosixPath('no such folder/run')
    """
    path, count = folder, 1
    while path.exists():
        count += 1
        path = folder.with_name(f"{folder.name}-{count}")
    return path


def new_folder(title: str) -> Path:
    """A folder that does not exist yet, named after the model and the time."""
    return free_folder(Path("xray") / f"{file_name(title)}-{time.strftime('%Y%m%d-%H%M%S')}")


def as_folder(folder: Any) -> Path:
    """The folder of a run as a `Path`. Raises if the path cannot be a run's folder."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder).strip():
        raise InvalidArgument(f"folder says where the run is kept, such as 'runs/first'; got {folder!r}.")
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise InvalidArgument(f"the folder of a run cannot be {str(path)!r}: that is a file. Give another folder.")
    return path


LOCK = "writer.lock"


def refuse_link(path: Path) -> None:
    """Raise if a file of a run is a link: writing would change the file that it leads to, which may be somebody else's."""
    if os.path.lexists(path) and is_link(path):
        raise RunExists(
            f"{path} is a link, and nothing is written through it. Put the file itself there, or give the run a folder of its "
            f"own, such as folder={str(free_folder(path.parent))!r}."
        )


def refuse_what_others_made(run: Path) -> None:
    """Raise if the folder has a `run.json` that no Xray wrote: a new run would replace it."""
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


def _refuse_another(path: Path, resume: bool) -> None:
    """Raise if a new run would replace an existing run, or a file that no Xray wrote."""
    there = path / "run.json"
    if resume and there.exists():
        read_about(path)
        return
    if any((path / "snapshots").glob("*.safetensors")):
        advice = "To go on with it, give resume=True; to" if there.exists() else "Its run.json is missing, so it ended here; to"
        raise RunExists(
            f"there is a run in {path} already. {advice} begin a new one, give a folder of its own, such as "
            f"folder={str(free_folder(path))!r}."
        )
    refuse_what_others_made(there)


def read_about(folder: Path) -> dict[str, Any]:
    """The content of `run.json`, checked. Raises RunNotFound if it is missing, damaged or of another version."""
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
        reader(_About)(about)
    except ValueError as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json is damaged: {error}.") from None
    return about


def locked(folder: Path) -> IO[bytes]:
    """Lock a folder. The lock is held until the file is closed or the process ends, however it ends."""
    path = folder / LOCK
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
#       snapshots/          one safetensors file for each snapshot: the kept tensors of all layers and kinds and, in
#                           its header, the entries with their statistics
#       figures/            pictures that were shown
#       writer.lock         held by the process that writes
#
# A snapshot is written to a temporary name, flushed to the disk and renamed. A process that is killed at any moment
# loses at most the snapshot it was writing. Reading runs no code from the files, and works while another process
# writes. Only these files say which snapshots exist, so nothing else must be kept in step with them: an index of older runs
# (`index.jsonl`), which repeats their headers, is left as it is. Opening a run takes as long as with an index, since
# the time goes into checking what is said.
#
# A run may have many thousand snapshots: only a small row of each is in memory, a snapshot is added in the same time
# whatever their number, and room is made one snapshot at a time.

_MOST_NOTES = 1000
_FILE = re.compile(r"(\d{8,15})\.safetensors", re.ASCII)
_REMEMBERED = 16  # at most this many snapshots stay in memory after they were read or written
_State = tuple[int, int]  # the size of a file, and when it was changed, in nanoseconds


class FileManager:
    """The files of one run. An object made by `create` may add to them; an object made by `open` only reads."""

    def __init__(
        self, folder: Path, about: dict[str, Any], held: IO[bytes] | None = None, max_bytes: int | None = None
    ) -> None:
        self.folder = folder
        self.about = about
        self.max_bytes = max_bytes
        self.notes: list[str] = []  # sentences about what is wrong with the files
        self.rows = Rows()
        self._lock = held
        self._process = os.getpid()
        self._remembered: OrderedDict[int, Snapshot] = OrderedDict()
        self._scan(adds=True)

    # Opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], about: Mapping[str, object], max_bytes: int | None = None, *, resume: bool = False
    ) -> FileManager:
        """Begin a run in a folder; with `resume`, go on with the run in the folder, if it has one.

        Raises if another process writes to the folder. Without `resume`, also raises if the folder has a run already.
        """
        path = as_folder(folder)
        refuse_link(path / "run.json")
        if not os.path.lexists(path / LOCK):
            _refuse_another(path, resume)  # checked before anything is made there
        make_folder(path / "snapshots", "a run")
        if max_bytes is not None and is_link(path / "snapshots"):
            tell(f"{path / 'snapshots'} is a link, and behind a link nothing is deleted: the run may grow beyond max_bytes.", 4)
            max_bytes = None
        held = locked(path)
        try:
            there = path / "run.json"
            _refuse_another(path, resume)
            if not (resume and there.exists()):
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
        """Release the folder, so that another process can write to it."""
        if self._lock is not None:
            if self.is_writer:
                release(self._lock)
            else:
                self._lock.close()
            self._lock = None

    @property
    def is_writer(self) -> bool:
        """True if this object may add to the run; False in a forked process."""
        return self._lock is not None and self._process == os.getpid()

    # Reading ------------------------------------------------------------------------------------------------------

    @property
    def snapshots(self) -> Snapshots:
        """The snapshots of the run, by step. A snapshot is read when it is asked for."""
        return Snapshots(self.rows.copy(), self.read)

    @property
    def bytes(self) -> int:
        """The size of the snapshots on disk."""
        return self.rows.bytes

    def path(self, snapshot: Snapshot) -> Path:
        """The file of a snapshot."""
        return self._path_of(snapshot.number)

    def _path_of(self, number: int) -> Path:
        return self.folder / "snapshots" / f"{number:08d}.safetensors"

    def read(self, row: np.void) -> Snapshot:
        """Read the snapshot that a row of the table describes."""
        number = int(row["number"])
        with contextlib.suppress(KeyError):
            return self._remembered[number]
        try:
            snapshot, _ = _said_by(self._path_of(number), number)
        except _UNREADABLE as error:
            raise SnapshotNotFound(
                f"snapshot {number} (step {int(row['step'])}) of {self.folder} is gone or cannot be read."
            ) from error
        self._remember(snapshot)
        return snapshot

    def _remember(self, snapshot: Snapshot) -> None:
        self._remembered[snapshot.number] = snapshot
        while len(self._remembered) > _REMEMBERED:
            with contextlib.suppress(KeyError):  # another thread removed it
                self._remembered.popitem(last=False)

    def tensor(self, snapshot: Snapshot, layer: str, kind: str) -> Tensor:
        """Read the kept tensor of a kind of a layer."""
        key = tensor_key(layer, kind)
        return self._kept(snapshot, [key])[key]

    def tensors(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Read all kept tensors of a snapshot at once, by `Entry.key`."""
        return self._kept(snapshot, [entry.key for entry in snapshot.entries])

    def check(self, snapshot: Snapshot) -> None:
        """Raise if the file of a snapshot is gone or was cut."""
        self._kept(snapshot, [])

    def _kept(self, snapshot: Snapshot, keys: Iterable[str]) -> dict[str, Tensor]:
        path = self.path(snapshot)
        try:
            file = TensorFile(path)
            found = {key: file.tensor(key) for key in keys}
            wrong = [misfit(tuple(found[entry.key].shape), entry) for entry in snapshot.entries if entry.key in found]
            if any(wrong):
                raise UnreadableFile(next(filter(None, wrong)))
        except (UnreadableFile, OSError, RuntimeError, MemoryError) as error:  # RuntimeError: torch cannot get that much memory
            reason = str(getattr(error, "strerror", None) or error)
            raise SnapshotNotFound(
                f"snapshot {snapshot.number} (step {snapshot.step}) cannot be read from {path}: {reason}"
            ) from error
        return found

    def refresh(self) -> Snapshots:
        """Read snapshots that another process added. The process that writes only looks for deleted or changed files."""
        self._scan(adds=not self.is_writer)
        return self.snapshots

    def _scan(self, adds: bool) -> None:
        """Remove rows of deleted files, read changed files again and, if `adds`, new files."""
        rows = self.rows.copy()
        known = {number: (size, changed) for number, size, changed in rows[["number", "bytes", "changed"]].tolist()}
        there = self._files()
        for number in known:
            if number not in there:
                self._forget(number)
        for number, state in sorted(there.items()):
            if known.get(number) != state and (adds or number in known):
                self._ask(number, state)

    def _ask(self, number: int, state: _State) -> None:
        """Read the header of a file into a row, and note damage."""
        path = self._path_of(number)
        try:
            snapshot, damage = _said_by(path, number, in_outline=True)
        except _UNREADABLE as error:
            self._forget(number)
            self.rows.last_number = max(self.rows.last_number, number)  # a damaged file is not written over
            self._note(f"snapshots/{path.name} is damaged and was skipped: {error}.")
            return
        self._forget(number)
        self.rows.add(replace(snapshot, bytes=state[0]), state[1])
        if damage:
            self._note(
                f"snapshots/{path.name} (step {snapshot.step}) is damaged: {damage}. "
                "Its pictures are lost, its statistics are not."
            )

    def _forget(self, number: int) -> None:
        self.rows.remove(number)
        self._remembered.pop(number, None)

    def _note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(note)

    def _files(self) -> dict[int, _State]:
        """The files of snapshots, by number. Folders and other things with such names do not count."""
        found = {}
        try:
            with os.scandir(self.folder / "snapshots") as entries:
                for entry in entries:
                    named = _FILE.fullmatch(entry.name)
                    with contextlib.suppress(OSError):  # the file was deleted meanwhile, or is a link that leads nowhere
                        if named is not None and entry.is_file() and entry.name == self._path_of(int(named[1])).name:
                            found[int(named[1])] = _state(entry.stat())
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
        if not (self.folder / "run.json").exists():  # without this file, which somebody removed, the run could not be read
            self.note()
        size, changed = _state(target.stat())
        written = replace(snapshot, bytes=size)
        self.rows.add(written, changed)
        self._remember(written)
        self._make_room()
        return written

    def note(self, **facts: object) -> None:
        """Add facts about the run to `run.json`."""
        self._must_write()
        self.about = {**self.about, **facts}
        write_whole(self.folder / "run.json", json.dumps(self.about, indent=2).encode(), follows=False)

    def _make_room(self) -> None:
        """Delete the snapshots closest to their neighbours in steps, until the rest fits `max_bytes`."""
        while self.max_bytes is not None and len(self.rows) > 2 and self.rows.bytes > self.max_bytes:
            number = self.rows.closest()
            self._path_of(number).unlink(missing_ok=True)
            self._forget(number)

    def _clean_up(self) -> None:
        """Delete the unfinished files of killed writers. Files behind links stay, because they may belong to others."""
        delete_unfinished(self.folder, r"index\.jsonl|run\.json")
        for name, names in (("snapshots", r"\d{8,}\.safetensors"), ("figures", r"step_\d{8,}\.png")):
            if not is_link(self.folder / name):
                delete_unfinished(self.folder / name, names)

    def _must_write(self) -> None:
        if not self.is_writer:
            raise RunInUse(
                f"the run in {self.folder} was opened to read; make an Xray with folder={str(self.folder)!r} and resume=True "
                "to go on."
            )


_UNREADABLE = (OSError, ValueError, RecursionError)


def _said_by(path: Path, number: int, *, in_outline: bool = False) -> tuple[Snapshot, str]:
    """Read the snapshot in a file's header. Also returns a text about damage in the rest of the file; empty if undamaged."""
    damage = ""
    try:
        file = TensorFile(path)
        metadata, size = file.metadata, file.size
    except UnreadableFile as error:
        damage = str(error)
        metadata, size = read_metadata(path)
    found = snapshot_from_json(json.loads(metadata.get("snapshot", "")), in_outline=in_outline)
    if found.number != number:
        raise UnreadableFile(f"it is of snapshot {found.number}")
    return replace(found, bytes=size), damage


def _state(status: os.stat_result) -> _State:
    return status.st_size, status.st_mtime_ns
