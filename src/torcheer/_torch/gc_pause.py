"""Lets Python's cycle collector run less often while operations are recorded.

A recording makes thousands of small objects that stay alive. The collector runs after every 700 new objects by default,
which took a quarter of the time of a small pass and found nothing. During a recording the threshold is higher, and is
restored afterwards. The collector still runs, so garbage of a long recording is collected.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

from .._cleanup import cleaning, shared

_PATIENCE = 20_000


@shared
def fewer_collections() -> Iterator[None]:
    """Inside this block, Python's cycle collector runs less often."""
    before = gc.get_threshold()
    if not 0 < before[0] < _PATIENCE:  # 0 means that the collector never runs
        yield
        return
    gc.set_threshold(_PATIENCE, *before[1:])
    yield
    if gc.get_threshold() == (_PATIENCE, *before[1:]):  # otherwise other code has changed it
        gc.set_threshold(*before)


@cleaning
def no_collections() -> Iterator[None]:
    """Inside this block, Python's cycle collector does not run: for code that makes a few objects for each operation, none of
    them garbage.

    Collecting took a third of the time of writing or reading a document of 100,000 operations, and found nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    yield
    if was_enabled:
        gc.enable()
