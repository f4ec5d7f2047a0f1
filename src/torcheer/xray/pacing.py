"""Decides when snapshots are taken: at every n-th step, within a limit of time."""

from __future__ import annotations

import threading
from time import perf_counter
from typing import Any

from .._torch.inputs import is_whole
from ..errors import InvalidArgument


class Pace:
    """Decides if a snapshot is due, by the cost of the previous snapshots and figures."""

    def __init__(self, every: int = 1, budget: Any = None) -> None:
        if not is_whole(every, 1):
            raise InvalidArgument(f"every must be a whole number from 1 on; got {every!r}.")
        self.every = every
        self.budget = parse_budget(budget)
        self.spent = 0.0  # number of seconds that snapshots took
        self.skipped = 0  # number of snapshots that were left out because of the budget
        self.drawing = 0.0  # number of seconds that figures took, on another thread than the training
        self._last = 0.0
        self._last_drawing = 0.0
        self._taken = 0
        self._drawn = 0
        self._waiting = 0  # number of figures that were requested and are not drawn yet
        self._lock = threading.Lock()  # figures are drawn on a thread of their own
        self._began = perf_counter()

    def is_due(self, step: int) -> bool:
        """True if a snapshot is to be taken now."""
        if step % self.every:
            return False
        if self.budget is None or self._taken == 0:
            return True
        if not self._has_room(self._last):
            self.skipped += 1
            return False
        return True

    def draws(self) -> bool:
        """True if a figure may be drawn now; call `drew` afterwards. The first figure always may; others wait for it."""
        with self._lock:
            is_first = not self._drawn and not self._waiting
            if self.budget is not None and not is_first and not (self._drawn and self._has_room(self._last_drawing)):
                return False
            self._waiting += 1
            return True

    def drew(self, seconds: float | None) -> None:
        """Add the cost of a figure, in seconds of the machine's time; None if the figure was not drawn."""
        with self._lock:
            self._waiting -= 1
            if seconds is not None:
                self._drawn += 1
                self._last_drawing = seconds
                self.drawing += seconds

    def _has_room(self, seconds: float) -> bool:
        """True if the time spent, the estimated time of waiting figures, and `seconds` together stay within the budget."""
        assert self.budget is not None
        spent = self.spent + self.drawing + self._waiting * self._last_drawing
        return spent + seconds <= self.budget * (perf_counter() - self._began)

    def took(self, seconds: float) -> None:
        """Add the cost of a snapshot, in seconds of the training's time."""
        self._taken += 1
        self._last = seconds
        self.spent += seconds

    @property
    def share(self) -> float:
        """The fraction of the time since this object was made that went into snapshots and figures."""
        return (self.spent + self.drawing) / max(perf_counter() - self._began, 1e-9)


def parse_budget(budget: Any) -> float | None:
    """The limit as a fraction of the time: 0.01 for `"1%"` or 0.01; None for no limit."""
    if budget is None:
        return None
    try:
        part = float(budget.rstrip("%")) / 100 if isinstance(budget, str) and budget.endswith("%") else float(budget)
    except (TypeError, ValueError):
        part = -1.0
    if not 0 < part <= 1 or isinstance(budget, bool):
        raise InvalidArgument(f"budget must be a part of the time, such as '1%' or 0.01; got {budget!r}.")
    return part
