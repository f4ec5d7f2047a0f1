"""A bar on stderr that tells how far something is; nothing where that is no terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from ...history.printing.text import plural

_WIDTH = 30


class Bar:
    """How many of so many are done."""

    def __init__(self, name: str, total: int, word: str, is_wanted: bool = True) -> None:
        self._name, self._total, self._word = name, total, word
        self._is_shown = is_wanted and sys.stderr is not None and sys.stderr.isatty()

    def reached(self, count: int) -> None:
        """So many are done."""
        if self._is_shown:
            done = count * _WIDTH // max(self._total, 1)
            bar = "#" * done + "." * (_WIDTH - done)
            sys.stderr.write(f"\r{self._name} [{bar}] {count}/{plural(self._total, self._word)}")
            sys.stderr.flush()

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_shown:
            sys.stderr.write("\n")
