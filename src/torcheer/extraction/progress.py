"""How far an extraction is: samples, rate, size on disk, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from ..history.printing.text import human_size

_EVERY = 0.5  # seconds between two lines on a terminal
_EVERY_IN_A_FILE = 30.0


@dataclass(frozen=True)
class ExtractionProgress:
    """How far an extraction is, as `progress=` functions get it."""

    samples: int  # that this process has run
    total: int | None  # that it is to run, where that is known
    seconds: float
    written: int  # bytes in the folder, with those of the block in work

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.seconds if self.seconds else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long it will take, where that is known."""
        if self.total is None or not self.rate:
            return None
        return (self.total - self.samples) / self.rate

    def __str__(self) -> str:
        of = f" of {self.total:,}" if self.total is not None else ""
        left = f", {_duration(self.seconds_left)} left" if self.seconds_left is not None else ""
        return f"{self.samples:,}{of} samples, {self.rate:,.1f}/s, {human_size(self.written)} on disk{left}"


WantedProgress = bool | Callable[[ExtractionProgress], object]


class ProgressReport:
    """Tells how far an extraction is: on stderr, to a function, or not at all."""

    def __init__(self, progress: WantedProgress, total: int | None, written: int, who: str = "") -> None:
        self._report = progress if callable(progress) else None
        self._is_shown = progress is True and sys.stderr is not None
        self._is_terminal = self._is_shown and sys.stderr.isatty()
        self._who = f"extract{who}: "
        self.total = total
        self.written = written
        self._samples = 0
        self._begin = self._last = monotonic()
        self._width = 0

    def ran(self, samples: int) -> None:
        """Count samples that were run, and tell how far it is where that is due."""
        self._samples += samples
        if self._report is not None:
            self._report(self.now())
        elif self._is_shown and monotonic() - self._last >= (_EVERY if self._is_terminal else _EVERY_IN_A_FILE):
            self._say()

    def wrote(self, size: int) -> None:
        """Count bytes that were written."""
        self.written += size

    def end(self) -> None:
        """Print the last line."""
        if self._is_shown and self._samples and (self._is_terminal or self._width):
            self._say()
            if self._is_terminal:
                sys.stderr.write("\n")

    def now(self) -> ExtractionProgress:
        return ExtractionProgress(self._samples, self.total, monotonic() - self._begin, self.written)

    def _say(self) -> None:
        self._last = monotonic()
        text = self._who + str(self.now())
        sys.stderr.write(f"\r{text.ljust(self._width)}" if self._is_terminal else f"{text}\n")
        sys.stderr.flush()
        self._width = len(text)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
