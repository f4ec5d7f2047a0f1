"""Lets a model that nests its modules deeply be logged.

Python allows 1,000 calls inside each other. A module call is three of them, and four while any hook watches it, so a model that
nests 200 modules or more may fail only when it is watched. While any recording runs, half as many more are allowed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import suppress

from ...cleaning import cleaning

_lock = threading.RLock()  # what ends a block may run while another one begins, in the same thread
_running = 0
_before = _during = 0


@cleaning
def deeper_calls() -> Iterator[None]:
    """Inside, calls may nest more deeply. Recordings may nest and overlap in several threads."""
    global _running, _before, _during
    with _lock:
        _running += 1
        if _running == 1:
            _before = sys.getrecursionlimit()
            _during = _before + _before // 2 + 200
            sys.setrecursionlimit(_during)
    yield
    with _lock:
        _running -= 1
        if _running == 0 and sys.getrecursionlimit() == _during:  # else somebody else has set it meanwhile
            with suppress(RecursionError):  # another thread is deeper than that already
                sys.setrecursionlimit(_before)
