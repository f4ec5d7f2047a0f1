"""Plain passes in a second process, run in turns with this one.

Before and after cannot be interleaved: a process has used a tool or it has not. Their ratio alone would mostly show how the
machine's speed drifts between the two. So both are compared, in turns, to a process that never uses any tool.
"""

from __future__ import annotations

import subprocess
import sys
from statistics import median
from types import TracebackType
from typing import Any

from torch import Tensor
from torch.nn import Module

from .models import ROOT, build
from .timing import interleave

_PASSES = 15
_TURNS = 40


class Bystander:
    """A process that runs the same model plainly whenever it is asked to, and nothing else."""

    def __init__(self, case: str) -> None:
        command = [sys.executable, "-m", "benchmarks.worker", "serve_plain_passes", case]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Bystander:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.communicate()  # closes its input, which ends it

    def compare(self, model: Module, x: Tensor) -> float:
        """How long a plain pass takes here against one over there: the median of many turns."""
        for _ in range(3):  # both warm
            self._milliseconds()
            _milliseconds(model, x)
        return median(_milliseconds(model, x) / self._milliseconds() for _ in range(_TURNS))

    def _milliseconds(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def serve_plain_passes(case: str) -> dict[str, Any]:
    """The other side of `Bystander`: one figure for every line that is read."""
    model, x = build(case)
    for _ in sys.stdin:
        print(_milliseconds(model, x), flush=True)
    return {}


def _milliseconds(model: Module, x: Tensor) -> float:
    return interleave(_PASSES, lambda: model(x))[0].median
