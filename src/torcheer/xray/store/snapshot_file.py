"""The file of one snapshot: its tensors, and in its header what is known of them. What cannot be read is an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from ...errors import SnapshotNotFound, UnreadableFile
from ...tensor_files import TensorFile
from ..snapshots.records import Snapshot, snapshot_from_json

_Found = TypeVar("_Found")


def read_tensor(path: Path, snapshot: Snapshot, key: str) -> Tensor:
    """One tensor, by `Entry.key`."""

    return _read(path, snapshot, lambda: TensorFile(path).tensor(key))


def read_tensors(path: Path, snapshot: Snapshot) -> dict[str, Tensor]:
    """All tensors, by `Entry.key`."""

    def read() -> dict[str, Tensor]:
        file = TensorFile(path)
        return {name: file.tensor(name) for name in file.places}

    found = _read(path, snapshot, read)
    missing = [entry.key for entry in snapshot.entries if entry.key not in found]
    if missing:
        raise _unreadable(path, snapshot, f"it has no tensor {missing[0]!r}")
    return found


def check(path: Path, snapshot: Snapshot) -> None:
    """Raises where a file is gone or was cut."""
    _read(path, snapshot, lambda: TensorFile(path))


def read_header(path: Path) -> Snapshot | None:
    """The snapshot that is written in the header; None where that cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, RecursionError):
        metadata = TensorFile(path).metadata
        return replace(snapshot_from_json(json.loads(metadata["snapshot"])), bytes=path.stat().st_size)
    return None


def _read(path: Path, snapshot: Snapshot, read: Callable[[], _Found]) -> _Found:
    try:
        return read()
    except (UnreadableFile, OSError) as error:
        raise _unreadable(path, snapshot, str(error)) from error


def _unreadable(path: Path, snapshot: Snapshot, reason: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"snapshot {snapshot.number} (step {snapshot.step}) cannot be read from {path}: {reason}")
