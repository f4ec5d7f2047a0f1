"""Times operations on an accelerator by events, which are read once, after the pass.

The clock of the processor sees only how long it takes to hand an operation to the device.
"""

from __future__ import annotations

from typing import Any

import torch

from ...records import ELAPSED, Log


def device_event() -> Any:
    """An event on the stream that is current here, now."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    event.record()
    return event


class DeviceTimer:
    """Puts an event before and after every operation; waits for the device only at the end."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int, Any, Any]] = []

    def mark(self) -> Any:
        """An event on the current stream, now."""
        return device_event()

    def note(self, first: int, end: int, before: Any) -> None:
        """Operations `first <= n < end` ran since the event `before`."""
        self._marks.append((first, end, before, self.mark()))

    def settle(self, log: Log) -> None:
        """Write the times into the log."""
        if self._marks:
            torch.cuda.synchronize()
        for first, end, before, after in self._marks:
            nanoseconds = int(before.elapsed_time(after) * 1e6)
            for number in range(first, min(end, len(log.rows))):
                row = log.rows[number]
                log.rows[number] = (*row[:ELAPSED], nanoseconds, *row[ELAPSED + 1 :])
        self._marks.clear()
