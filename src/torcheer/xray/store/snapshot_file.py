"""The file of one snapshot: its tensors, and in its header what is known of them. What cannot be read is an error of ours."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ...errors import SnapshotNotFound
from ..snapshots.records import Snapshot, snapshot_from_json


def read_tensor(path: Path, snapshot: Snapshot, key: str) -> Tensor:
    """One tensor, by `Entry.key`."""

    def read() -> Tensor:
        with safe_open(path, "pt") as file:
            return file.get_tensor(key)  # type: ignore[no-any-return]  # safetensors has no types

    found: Tensor = _read(path, snapshot, read)
    return found


def read_tensors(path: Path, snapshot: Snapshot) -> dict[str, Tensor]:
    """All tensors, by `Entry.key`."""
    found: dict[str, Tensor] = _read(path, snapshot, lambda: load_file(path))
    missing = [entry.key for entry in snapshot.entries if entry.key not in found]
    if missing:
        raise _unreadable(path, snapshot, f"it has no tensor {missing[0]!r}")
    return found


def check(path: Path, snapshot: Snapshot) -> None:
    """Raises where a file is gone or was cut."""
    _read(path, snapshot, lambda: safe_open(path, "pt"))


def read_header(path: Path) -> Snapshot | None:
    """The snapshot that is written in the header; None where that cannot be read."""
    with contextlib.suppress(SafetensorError, OSError, ValueError, KeyError, RecursionError):
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        return replace(snapshot_from_json(json.loads(metadata["snapshot"])), bytes=path.stat().st_size)
    return None


def _read(path: Path, snapshot: Snapshot, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, snapshot, str(error)) from error


def _unreadable(path: Path, snapshot: Snapshot, reason: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"snapshot {snapshot.number} (step {snapshot.step}) cannot be read from {path}: {reason}")
