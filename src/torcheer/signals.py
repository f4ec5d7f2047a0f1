"""Holds signals back for a moment, so that no handler raises between two lines that belong together.

Python runs the handlers of signals between any two instructions of the main thread, and most handlers raise:
`KeyboardInterrupt`, the `SystemExit` of a handler of SIGTERM, the time limit of SIGALRM.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any, Final

LONGEST: Final = 10.0  # seconds; a signal that comes after that is handled at once: leaving may wait for something
# `signal` makes enumerations of the numbers that these return, which takes ten times as long
_plain: Any = sys.modules.get("_signal", signal)
_handler_of: Callable[[int], Any] = _plain.getsignal
_handle: Callable[[int, Any], Any] = _plain.signal
_NUMBERS: Final = tuple(sorted(map(int, signal.valid_signals())))

_holding: list[held_signals] = []  # the block of the main thread in which signals are held back now, if any


class held_signals:  # noqa: N801 - used as a function: `with held_signals():`
    """Inside, handlers written in Python do not run. Those whose signals came run when the block is over. Blocks may nest.

    Handlers run in the main thread only, so in other threads nothing is to be done. No code of the user's belongs inside.
    """

    __slots__ = ("_came", "_handlers", "_holds", "_left", "_note", "_since")

    def __enter__(self) -> None:
        self._holds = not _holding and threading.get_ident() == threading.main_thread().ident
        if not self._holds:
            return
        self._came: dict[int, FrameType | None] = {}
        self._since = monotonic()
        self._note = self._noted
        pairs = zip(_NUMBERS, map(_handler_of, _NUMBERS), strict=True)
        self._handlers = {number: handler for number, handler in pairs if callable(handler)}
        self._left = list(self._handlers)
        try:
            for number in self._handlers:
                _handle(number, self._note)
            _holding.append(self)
        except BaseException as error:  # of a handler that was not replaced yet
            self._end()
            del self._note
            self._holds = False
            if not isinstance(error, ValueError):  # as in an interpreter that is not the main one
                raise

    def __exit__(self, *error: object) -> None:
        if self._holds:
            try:
                self._end()
            finally:  # again, where a handler that was back raised
                self._end()
                del self._note  # which leads here
                self._run(list(self._came))

    def _noted(self, number: int, frame: FrameType | None) -> None:
        """Stands in for a handler."""
        if self in _holding and monotonic() - self._since < LONGEST:
            self._came[number] = frame
        else:  # a program that got this handler as the one before its own put it back
            self._handlers[number](number, frame)

    def _end(self) -> None:
        """Put the handlers back, but for those that somebody replaced meanwhile."""
        while self._left:
            number = self._left[-1]
            if _handler_of(number) is self._note:
                _handle(number, self._handlers[number])
            self._left.pop()
        if self in _holding:
            _holding.remove(self)

    def _run(self, numbers: list[int]) -> None:
        """Run the handlers whose signals came, each of them whatever the others raise."""
        if numbers:
            try:
                self._handlers[numbers[0]](numbers[0], self._came[numbers[0]])
            finally:
                self._run(numbers[1:])
