"""Lets Python's cycle collector run less often while operations are recorded.

A recording makes thousands of small objects that stay alive. The collector runs after every 700 new objects by default,
which took a quarter of the time of a small pass and found nothing. During a recording the threshold is higher, and is
restored afterwards. The collector still runs, so garbage of a long recording is collected.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

from .._cleanup import cleaning

_PATIENCE = 20_000
_lock = threading.RLock()  # reentrant: the end of a block may run while another begins on the same thread
_running = 0
_before: tuple[int, int, int] | None = None


@cleaning
def fewer_collections() -> Iterator[None]:
    """Inside this block, the collector runs less often. Recordings may nest, and overlap in several threads."""
    global _running, _before
    with _lock:
        _running += 1
        if _running == 1 and 0 < gc.get_threshold()[0] < _PATIENCE:  # 0 means that the collector never runs
            _before = gc.get_threshold()
            gc.set_threshold(_PATIENCE, *_before[1:])
    yield
    with _lock:
        _running -= 1
        if _running == 0 and _before is not None:
            if gc.get_threshold() == (_PATIENCE, *_before[1:]):  # otherwise other code has changed it
                gc.set_threshold(*_before)
            _before = None


@cleaning
def no_collections() -> Iterator[None]:
    """Inside this block, the collector does not run: for code that makes a few objects for each operation, none of them
    garbage.

    Collecting took a third of the time of writing or reading a document of 100,000 operations, and found nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()
