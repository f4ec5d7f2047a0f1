"""Lets Python's cycle collector run less often while records are written.

A recording makes thousands of small objects that live on. The collector, which by default looks at every 700 new ones,
spent a quarter of a small pass on them and found nothing. While any recording runs, it waits for more; afterwards it is
as it was. It still runs, so garbage of a long recording is collected.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

from .._cleanup import cleaning

_PATIENCE = 20_000
_lock = threading.RLock()  # what ends a block may run while another one begins, in the same thread
_running = 0
_before: tuple[int, int, int] | None = None


@cleaning
def fewer_collections() -> Iterator[None]:
    """Inside, the collector waits for more new objects. Recordings may nest and overlap in several threads."""
    global _running, _before
    with _lock:
        _running += 1
        if _running == 1 and 0 < gc.get_threshold()[0] < _PATIENCE:  # 0 means that it never runs
            _before = gc.get_threshold()
            gc.set_threshold(_PATIENCE, *_before[1:])
    yield
    with _lock:
        _running -= 1
        if _running == 0 and _before is not None:
            if gc.get_threshold() == (_PATIENCE, *_before[1:]):  # else somebody else has set it meanwhile
                gc.set_threshold(*_before)
            _before = None


@cleaning
def no_collections() -> Iterator[None]:
    """Inside, the collector does not run: for code that makes a few objects for each operation, none of which is garbage.

    Of writing or reading a document of 100,000 operations it took a third of the time, and found nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()
