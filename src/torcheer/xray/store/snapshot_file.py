"""The file of one snapshot: its tensors, and in its header what is known of them. What cannot be read is an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from ...errors import SnapshotNotFound, UnreadableFile
from ...tensor_files import TensorFile
from ..snapshots.records import Snapshot, misfit, snapshot_from_json

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
