"""Tells on stderr how far a long write is; nothing where that is no terminal, or where it is quick."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

_AFTER = 1.0  # seconds before anything is said
_EVERY = 0.2


class Progress:
    """How many of so many bytes are written."""

    def __init__(self, name: str, total: int | None = None) -> None:
        self._name, self._total = name, total
        self._is_shown = sys.stderr is not None and sys.stderr.isatty()
        self._next = monotonic() + _AFTER
        self._has_said = False

    def reached(self, count: int) -> None:
        """So many bytes are written."""
        if not self._is_shown or (now := monotonic()) < self._next:
            return
        self._next, self._has_said = now + _EVERY, True
        of = f" of {self._total / 1e9:.2f} GB, {100 * count // max(self._total, 1)} %" if self._total is not None else " GB"
        sys.stderr.write(f"\r{self._name}: {count / 1e9:.2f}{of}")
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._has_said:
            sys.stderr.write("\n")
