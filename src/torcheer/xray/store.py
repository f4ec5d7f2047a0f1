"""FileManager: where the snapshots of a run lie, and what is known of each.

    folder/
      run.json            what the run is: title, seed, what is watched
      index.jsonl         one line for each snapshot: its entries, with statistics
      snapshots/          one safetensors file for each snapshot, with the kept tensors of all layers and kinds
      writer.lock         held by the process that writes

A snapshot is written to a temporary name, flushed to the disk and renamed; then its line is added to the index. The line is
also in the header of the file, so the index can be made again from the files. A process that is killed at any moment loses
at most the snapshot it was writing. Reading runs no code from the files, and works while another process writes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import RunInUse, RunNotFound, SnapshotNotFound
from ..files import write_whole
from . import lock
from .records import VERSION, Kind, Snapshot, snapshot_from_json, snapshot_to_json, tensor_key

_FORMAT = "torcheer-xray"
_THINNED_TO = 0.8  # of the budget, so that not every snapshot thins again


class FileManager:
    """The files of one run. Made with `create` it may add to them, with `open` only read."""

    def __init__(
        self, folder: Path, about: dict[str, Any], held: IO[bytes] | None = None, max_bytes: int | None = None
    ) -> None:
        self.folder = folder
        self.about = about
        self.max_bytes = max_bytes
        self._lock = held
        self._process = os.getpid()
        self._snapshots: list[Snapshot] = []
        self._read_to = 0  # bytes of the index
        self._index_file = (0, 0)
        self.refresh()

    # Opening ------------------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: str | os.PathLike[str], about: Mapping[str, Any], max_bytes: int | None = None) -> FileManager:
        """Begin a run in a folder, or go on with the one that is there. Refused while another process writes to it."""
        path = Path(folder)
        (path / "snapshots").mkdir(parents=True, exist_ok=True)
        held = _locked(path)
        try:
            there = path / "run.json"
            if not there.exists():
                write_whole(there, json.dumps({"format": _FORMAT, "version": VERSION, **about}, indent=2).encode())
            found = cls(path, _read_about(path), held, max_bytes)
            found._clean_up()
        except BaseException:
            lock.release(held)
            raise
        return found

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> FileManager:
        """Read a run: finished, crashed, or still being written."""
        path = Path(folder)
        return cls(path, _read_about(path))

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
    def snapshots(self) -> list[Snapshot]:
        """The snapshots there are, by step."""
        return self._snapshots

    @property
    def bytes(self) -> int:
        """On disk: tensors, statistics, everything."""
        return sum(one.bytes for one in self._snapshots) + _size(self._index)

    @property
    def _index(self) -> Path:
        return self.folder / "index.jsonl"

    def path(self, snapshot: Snapshot) -> Path:
        """The file of a snapshot."""
        return self.folder / "snapshots" / f"{snapshot.number:08d}.safetensors"

    def tensor(self, snapshot: Snapshot, layer: str, kind: Kind) -> Tensor:
        """What was kept of a kind of a layer."""
        try:
            with safe_open(self.path(snapshot), "pt") as file:
                return file.get_tensor(tensor_key(layer, kind))  # type: ignore[no-any-return]  # safetensors has no types
        except (SafetensorError, OSError) as error:
            raise SnapshotNotFound(
                f"snapshot {snapshot.number} (step {snapshot.step}) has no readable tensor {tensor_key(layer, kind)!r} in "
                f"{self.path(snapshot)}: {error}"
            ) from error

    def tensors(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Everything that was kept in a snapshot, by `Entry.key`, read at once."""
        try:
            return dict(load_file(self.path(snapshot)))
        except (SafetensorError, OSError) as error:
            raise SnapshotNotFound(
                f"snapshot {snapshot.number} (step {snapshot.step}) cannot be read from {self.path(snapshot)}: {error}"
            ) from error

    def refresh(self) -> list[Snapshot]:
        """Read what was added since. Snapshots without a line, and lines without a snapshot, are put right."""
        index = self._index
        status = index.stat() if index.exists() else None
        file = (status.st_dev, status.st_ino) if status is not None else (0, 0)
        if file != self._index_file or (status is not None and status.st_size < self._read_to):
            self._snapshots, self._read_to, self._index_file = [], 0, file
        found = {snapshot.number: snapshot for snapshot in self._snapshots}
        if status is not None and status.st_size > self._read_to:
            with index.open("rb") as lines:
                lines.seek(self._read_to)
                for line in lines:
                    if not line.endswith(b"\n"):
                        break  # torn, or still being written
                    self._read_to += len(line)
                    with contextlib.suppress(ValueError, KeyError, TypeError):
                        snapshot = snapshot_from_json(json.loads(line))
                        found[snapshot.number] = snapshot
        present = self._present
        there = [snapshot for number, snapshot in found.items() if number in present]
        there += _from_headers(path for number, path in present.items() if number not in found)
        self._snapshots = sorted(there, key=_turn)
        return self._snapshots

    @property
    def _present(self) -> dict[int, Path]:
        """The files there are, by number."""
        return {int(p.stem): p for p in (self.folder / "snapshots").glob("*.safetensors") if p.stem.isdigit()}

    # Writing ------------------------------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        return max((snapshot.number for snapshot in self._snapshots), default=-1) + 1

    def write(self, snapshot: Snapshot, tensors: Mapping[str, Tensor]) -> Snapshot:
        """Add a snapshot and the kept tensors of its entries, by `Entry.key`. Returns it with its size."""
        self._must_write()
        target = self.path(snapshot)
        part = target.with_suffix(".part")
        plain: dict[str, Tensor] = {}
        for key, tensor in tensors.items():
            value = tensor.detach().cpu().contiguous()
            shares = any(value.data_ptr() == other.data_ptr() for other in plain.values() if value.numel())
            plain[key] = value.clone() if shares else value  # safetensors refuses two names for one memory
        try:
            save_file(plain, part, metadata={"snapshot": json.dumps(snapshot_to_json(snapshot))})
            _flush(part)
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        written = _sized(snapshot, target)
        with self._index.open("ab") as index:
            if index.tell() and not _ends_with_newline(self._index):
                index.write(b"\n")  # after a torn line
            index.write(_line(written))
            index.flush()
        self._know([*self._snapshots, written])
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            self._thin(int(self.max_bytes * _THINNED_TO))
        return written

    def rebuild_index(self) -> None:
        """Make the index again from the headers of the files."""
        self._must_write()
        self._rewrite(_from_headers(self._present.values()))

    def note(self, **facts: Any) -> None:
        """Add facts about the run to `run.json`."""
        self._must_write()
        self.about = {**self.about, **facts}
        write_whole(self.folder / "run.json", json.dumps(self.about, indent=2).encode())

    def _thin(self, budget: int) -> None:
        """Let go of whole snapshots, those that stand closest together first; the first and the last stay."""
        kept = list(self._snapshots)
        sizes = {one.number: one.bytes + len(_line(one)) for one in kept}
        size = sum(sizes.values())
        gone: list[Snapshot] = []
        while size > budget and len(kept) > 2:
            at = min(range(1, len(kept) - 1), key=lambda i: kept[i + 1].step - kept[i - 1].step)
            size -= sizes[kept[at].number]
            gone.append(kept.pop(at))
        self._rewrite(kept)
        for snapshot in gone:
            self.path(snapshot).unlink(missing_ok=True)

    def _rewrite(self, snapshots: list[Snapshot]) -> None:
        write_whole(self._index, b"".join(map(_line, snapshots)))
        self._know(snapshots)

    def _know(self, snapshots: list[Snapshot]) -> None:
        """These are all, and the index says so to its end."""
        self._snapshots = sorted(snapshots, key=_turn)
        status = self._index.stat()
        self._index_file, self._read_to = (status.st_dev, status.st_ino), status.st_size

    def _clean_up(self) -> None:
        """What a killed writer left: half a snapshot is removed, a snapshot without a line gets one."""
        for part in (self.folder / "snapshots").glob("*.part"):
            part.unlink(missing_ok=True)
        if _size(self._index) != self._read_to or _count_lines(self._index) != len(self._snapshots):
            self._rewrite(self._snapshots)

    def _must_write(self) -> None:
        if not self.is_writer:
            raise RunInUse(
                f"the run in {self.folder} was opened to read; make an Xray with folder={str(self.folder)!r} to go on."
            )


def _read_about(folder: Path) -> dict[str, Any]:
    try:
        about = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise RunNotFound(
            f"there is no run in {folder}: it has no run.json. Give the folder that an Xray was made with."
        ) from error
    except (OSError, ValueError) as error:
        raise RunNotFound(f"the run in {folder} cannot be read: run.json: {error}") from error
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise RunNotFound(f"{folder / 'run.json'} is not of an Xray: expected format {_FORMAT!r}.")
    if about.get("version") != VERSION:
        raise RunNotFound(
            f"the run in {folder} is of version {about.get('version')}, this torcheer reads version {VERSION}: "
            "open it with the version that wrote it."
        )
    return about


def _locked(folder: Path) -> IO[bytes]:
    """The lock of a folder, held until the file is closed or the process ends, however it ends."""
    file = (folder / "writer.lock").open("ab")
    try:
        lock.take(file)
    except OSError as error:
        file.close()
        raise RunInUse(
            f"another Xray is writing to {folder}: one folder belongs to one run at a time. "
            "Close the other one (xray.close()), or give another folder."
        ) from error
    return file


def _from_headers(paths: Iterable[Path]) -> list[Snapshot]:
    """What is written in the headers of files; one that cannot be read is left out."""
    found = []
    for path in paths:
        with contextlib.suppress(SafetensorError, OSError, ValueError, KeyError, TypeError):
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
            found.append(_sized(snapshot_from_json(json.loads(metadata["snapshot"])), path))
    return found


def _sized(snapshot: Snapshot, path: Path) -> Snapshot:
    return replace(snapshot, bytes=_size(path))


def _line(snapshot: Snapshot) -> bytes:
    """A snapshot as a line of the index."""
    return json.dumps(snapshot_to_json(snapshot), separators=(",", ":")).encode() + b"\n"


def _turn(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.step, snapshot.number


def _flush(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _count_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(line.endswith(b"\n") for line in file)
