"""How much memory a process needs at most, without that which is a part of some file (VmHWM counts pages of mapped files)."""

from __future__ import annotations

import threading
from pathlib import Path
from time import sleep


def resident() -> float:
    """Gigabytes of memory that belong to this process alone, and to no file."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024 / 1e9
    raise RuntimeError("this system does not tell")


class MemoryWatch(threading.Thread):
    """Looks at the memory all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0

    def run(self) -> None:
        while True:
            self.peak = max(self.peak, resident())
            sleep(0.005)
