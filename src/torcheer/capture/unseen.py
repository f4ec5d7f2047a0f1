"""Notes and warnings about unwatched work: on other threads, or in collectives that no torch function started."""

from __future__ import annotations

import threading
import warnings
import weakref

from ..errors import UnseenWorkWarning
from ..records import Log


class UnseenWatch:
    """What one recording could not see."""

    def __init__(self, log: Log, warns: bool) -> None:
        self.message = ""  # what could not be watched, in words
        self._log = log
        self._warns = warns
        self._threads = list(map(weakref.ref, _threads()))  # those there were at the start
        self._elsewhere: str | None = None  # a module that ran on another thread

    def ran_elsewhere(self, address: str) -> None:
        """A module of this model runs on another thread. Whether it does so for this pass is known when its result is used."""
        self._elsewhere = address

    def is_new(self, thread: threading.Thread) -> bool:
        """Whether a thread was not there when the recording began."""
        return all(known() is not thread for known in self._threads)

    def suspect_threads(self) -> None:
        """A tensor arrived unexplained: if threads were at work, say so, once."""
        if self.message or (self._elsewhere is None and not any(map(self.is_new, _threads()))):
            return
        who = f" (module {self._elsewhere!r} ran on another thread)" if self._elsewhere else ""
        self.message = (
            f"a tensor arrived that no operation on this thread made{who}. Work on other threads cannot be watched, so it is "
            "missing from this history. Run the model on one thread to log all of it."
        )
        self._log.notes.append(self.message)
        if self._warns:
            warnings.warn(self.message, UnseenWorkWarning, stacklevel=2)

    def note_collective(self) -> None:
        """A collective ran that no watched call made: say so, once."""
        message = (
            "a collective ran that could not be seen, such as a method of a process group. The tensors it may have written to "
            "are not served. Call the functions of torch.distributed instead."
        )
        if message not in self._log.notes:
            self._log.notes.append(message)
            warnings.warn(message, UnseenWorkWarning, stacklevel=2)


def _threads() -> list[threading.Thread]:
    """Every thread object Python still knows, running or finished."""
    return [*getattr(threading, "_dangling", ()), *threading.enumerate()]
