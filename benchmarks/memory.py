"""What a process holds, as the operating system counts it.

Resident memory counts everything: tensors, their C++ and Python objects, the allocators' own slack. Counters inside Python
(`tracemalloc`) or torch would each miss a part. It is made steady by collecting garbage and handing free pages back first.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psutil
from torch import Tensor

_PROCESS = psutil.Process()
_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident() -> int:
    """Bytes this process holds once everything free has been handed back."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it; elsewhere the figure is less steady
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(_PROCESS.memory_info().rss)


def extra_peak(function: Callable[[], Any]) -> tuple[int | None, Any]:
    """The most memory held at any moment while `function` ran, beyond that before, and what it returned.

    None where the system keeps no resettable high-water mark, which is everywhere but on Linux.
    """
    before = resident()
    try:
        _CLEAR.write_text("5")  # sets the mark to what is held now
    except OSError:
        return None, function()
    held = function()
    mark = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
    return (max(0, int(mark[1]) * 1024 - before) if mark else None), held


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    """The memory behind these tensors; what several of them share is counted once."""
    storages = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
