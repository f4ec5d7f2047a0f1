"""Counts lines of the library that run, so that tests of growth do not depend on the machine."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any


class LinesRun:
    """Counts the lines of this library that run inside of it."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> LinesRun:
        self._before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self._line if "/torcheer/" in frame.f_code.co_filename else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        self.count += 1
        return self._line
