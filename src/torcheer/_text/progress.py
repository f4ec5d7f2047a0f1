"""Shows the progress of a long task in a line on stderr, if stderr is a terminal."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

_WIDTH = 30  # number of characters of the bar
_EVERY = 0.2  # number of seconds between two updates


class Progress:
    """Prints how many of `total` things are done, if `is_wanted`. Prints nothing in the first `after` seconds."""

    def __init__(self, name: str, total: int, things: str, is_wanted: bool = True, *, after: float = 0.0) -> None:
        self._name, self._total, self._things = name, total, things
        self._is_shown = is_wanted and sys.stderr is not None and sys.stderr.isatty()
        self._has_said = False
        self._next = monotonic() + after if after else 0.0

    def reached(self, count: int) -> None:
        """Print that `count` are done."""
        if self._next:
            if (now := monotonic()) < self._next:
                return
            self._next = now + _EVERY
        done = count * _WIDTH // max(self._total, 1)
        self._say(f"{self._name} [{'#' * done}{'.' * (_WIDTH - done)}] {count}/{self._total} {self._things}")

    def _say(self, text: str) -> None:
        if self._is_shown:
            self._has_said = True
            sys.stderr.write(f"\r{text}")
            sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._has_said:
            sys.stderr.write("\n")


class BytesProgress(Progress):
    """Prints how many bytes are written, and of how many, if the total is known. Prints nothing in the first second."""

    after = 1.0

    def __init__(self, name: str, total: int | None = None) -> None:
        super().__init__(name, total or 0, "bytes")
        self._next = monotonic() + self.after

    def reached(self, count: int) -> None:
        """Print that `count` bytes are written."""
        if self._is_shown and (now := monotonic()) >= self._next:
            self._next = now + _EVERY
            of = f" of {self._total / 1e9:.2f} GB, {100 * count // self._total} %" if self._total else " GB"
            self._say(f"{self._name}: {count / 1e9:.2f}{of}")
