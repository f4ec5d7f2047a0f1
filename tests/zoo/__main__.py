"""Goes through the zoo: one line per run, totals, `build/zoo.json`; fails when a log is wrong, or when a
diagnosis finds something wrong with a healthy model.

PYTHONPATH=tests python -m zoo [--quick] [--family transformers] [--only gpt2] [--fast] [--gradients]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

import torchvision_operators

from .cases import QUICK, Case, Mode, Unavailable, all_cases, named
from .checking import check, diagnose
from .gradients import NothingToCompare, compare_gradients

RESULTS = Path("build/zoo.json")
LIMIT_S = 120


@dataclass(frozen=True)
class Result:
    """What came of one run of one case."""

    name: str
    mode: str
    dtype: str
    outcome: str
    operations: int
    gradients: int
    unsteady: int  # gradients that plain torch does not give twice
    seconds: float
    gradient_seconds: float
    reason: str = ""
    without_gradients: str = ""  # why none were compared

    def __str__(self) -> str:
        facts = (
            f"{self.outcome:4} {self.name:45} {self.mode:5} {self.dtype:8} {self.operations:6} operations "
            f"{self.gradients:5} gradients {self.seconds + self.gradient_seconds:6.1f} s"
        )
        return f"{facts}  {self.reason.splitlines()[0][:200]}" if self.reason else facts


class TooSlow(Exception):
    """A run took longer than the limit."""


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises `TooSlow` inside when it takes longer."""

    def stop(*_: object) -> None:
        raise TooSlow(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(case: Case, mode: Mode, dtype: torch.dtype, *, forward: bool = True, limit: int = LIMIT_S) -> Result:
    """Build and check one case, forward and backward, and diagnose it in evaluation; whatever it raises is its result."""
    operations = gradients = unsteady = 0
    outcome, reason, without = "ok", "", ""
    started = between = time.perf_counter()
    try:
        with time_limit(limit):
            problem = None
            if forward:
                operations, problem = check(*case.make(mode, dtype))
                if problem is None and mode == "eval":
                    problem = diagnose(case.name, *case.make(mode, dtype))
            between = time.perf_counter()
            if problem is None:
                try:
                    gradients, unsteady, problem = compare_gradients(lambda: case.make(mode, dtype))
                except NothingToCompare as error:
                    without = str(error).splitlines()[0]
        if problem is not None:
            outcome, reason = "FAIL", problem
    except Unavailable as error:
        outcome, reason = "skip", str(error)
    except Exception as error:
        outcome, reason = "FAIL", f"{type(error).__name__}: {error}"
    seconds, more = round(between - started, 2), round(time.perf_counter() - between, 2)
    name = str(dtype).removeprefix("torch.")
    return Result(case.name, mode, name, outcome, operations, gradients, unsteady, seconds, more, reason, without)


def chosen(options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for."""
    cases = named(*QUICK) if options.quick else all_cases()
    return [
        case
        for case in cases
        if options.only in case.name and options.family in ("", case.family) and not (options.fast and case.slow)
    ]


def totals(results: list[Result]) -> Iterator[str]:
    """One line per family and one for everything."""
    families = list(dict.fromkeys(result.name.split("/")[0] for result in results))
    for family in [*families, "all"]:
        own = [result for result in results if family in ("all", result.name.split("/")[0])]
        count = Counter(result.outcome for result in own)
        models = len({result.name for result in own})
        yield (
            f"{family:14} {models:4} models {len(own):5} runs: {count['ok']:5} ok {count['FAIL']:4} failed {count['skip']:4} "
            f"skipped {sum(result.operations for result in own):8} operations {sum(r.seconds for r in own):7.1f} s "
            f"{sum(result.gradients for result in own):8} gradients of {sum(result.gradients > 0 for result in own):5} runs "
            f"({sum(result.unsteady for result in own)} unsteady) {sum(r.gradient_seconds for r in own):7.1f} s"
        )


def main() -> int:
    """Run the sweep; the exit status says whether every log was right."""
    parser = argparse.ArgumentParser(prog="zoo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the representative few of the default test run")
    parser.add_argument("--family", default="", help="only one family: torchvision, transformers, timm, handwritten")
    parser.add_argument("--only", default="", help="only names with this in them")
    parser.add_argument("--fast", action="store_true", help="leave out the slow cases")
    parser.add_argument("--gradients", action="store_true", help="compare gradients, and nothing else")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.set_num_threads(1)
    torchvision_operators.declare()
    results = []
    for case in chosen(options):
        for mode, dtype in case.runs:
            results.append(run(case, mode, dtype, forward=not options.gradients))
            print(results[-1], flush=True)
        gc.collect()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(*totals(results), sep="\n")
    return int(any(result.outcome == "FAIL" for result in results))


if __name__ == "__main__":
    sys.exit(main())
