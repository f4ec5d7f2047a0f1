"""Wall-clock times of several functions, taken in turns."""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Any


@dataclass(frozen=True, slots=True)
class Times:
    """How long one function took, in milliseconds. Half of the runs lie between `low` and `high`."""

    median: float
    low: float
    high: float
    drop: float  # to let go of what it returned
    faults: float  # pages of memory that the system had to hand out, zeroed, while it ran
    rounds: int


def interleave(rounds: int, *functions: Callable[[], Any]) -> list[Times]:
    """Run the functions in turns, so that a slow moment of the machine meets all of them alike.

    What a function returns is dropped before the next one runs. Dropping is timed apart: it is not part of the pass.
    """
    taken: list[list[float]] = [[] for _ in functions]
    dropped: list[list[float]] = [[] for _ in functions]
    faulted: list[list[int]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times, drops, faults in zip(functions, taken, dropped, faulted, strict=True):
            before = _faults()
            start = perf_counter()
            held = function()
            end = perf_counter()
            faults.append(_faults() - before)
            let_go = perf_counter()
            del held
            drops.append((perf_counter() - let_go) * 1e3)
            times.append((end - start) * 1e3)
    return [_times(*measured) for measured in zip(taken, dropped, faulted, strict=True)]


def rounds_in(seconds: float, *functions: Callable[[], Any], least: int = 7, most: int = 300) -> int:
    """How many rounds of the functions fit into so many seconds. Warms them up as well."""
    once = sum(times.median for times in interleave(3, *functions)) / 1e3
    return max(least, min(most, int(seconds / once)))


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _times(times: list[float], drops: list[float], faults: list[int]) -> Times:
    low, _, high = quantiles(times, n=4) if len(times) > 1 else times * 3
    return Times(median(times), low, high, median(drops), median(faults), len(times))
