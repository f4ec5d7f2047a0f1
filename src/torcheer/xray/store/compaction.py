"""Rewrites an index without the lines of deleted snapshots, a piece at a time, so that the training does not wait."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any

from ...files import unfinished_name

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
