"""FileManager: where the snapshots of a run lie, and what is known of each.

    folder/
      run.json            what the run is: title, seed, what is watched, the architecture of the model
      index.jsonl         one line for each snapshot: its entries, with statistics
      snapshots/          one safetensors file for each snapshot, with the kept tensors of all layers and kinds
      figures/            pictures that were shown
      writer.lock         held by the process that writes

A snapshot is written to a temporary name, flushed to the disk and renamed; then its line is added to the index. The line is
also in the header of the file, so the index can be made again from the files. A process that is killed at any moment loses
at most the snapshot it was writing. Reading runs no code from the files, and works while another process writes.

A run may have many thousand snapshots: only a small row of each is in memory, a snapshot is added in the same time whatever
their number, and room is made one snapshot at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from ...errors import RunExists, RunInUse, SnapshotNotFound
from ...files import MOST_TEXT, delete_unfinished, is_link, make_folder, open_regular, write_whole
from ...tensor_files import write_tensors
from ..snapshots.records import VERSION, Snapshot, snapshot_from_json, snapshot_to_json, tensor_key
from ..snapshots.trouble import tell
from . import lock, snapshot_file
from .compaction import Compaction
from .folder import FORMAT, as_folder, free_folder, has_snapshots, locked, read_about, refuse_link, refuse_what_others_made
from .rows import NO_LINE, Rows, Snapshots

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
            lock.release(held)
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
                lock.release(self._lock)
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
            snapshot = snapshot_file.read_header(self._path_of(number), number)
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
        return snapshot_file.read_tensor(self.path(snapshot), snapshot, tensor_key(layer, kind))

    def tensors(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Everything that was kept in a snapshot, by `Entry.key`, read at once."""
        return snapshot_file.read_tensors(self.path(snapshot), snapshot)

    def check(self, snapshot: Snapshot) -> None:
        """Raises where the file of a snapshot is gone or was cut."""
        snapshot_file.check(self.path(snapshot), snapshot)

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
            snapshot = snapshot_file.read_header(path, number)
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
        self._rewrite(filter(None, (snapshot_file.read_header(self._path_of(number), number) for number in self._present)))

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
