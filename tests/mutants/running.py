"""Runs tests on a mutant, in a child of a process that has torch and the rest imported already."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import shutil
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from .faults import Fault

_HEAVY = (
    "torch",
    "torch.nn.functional",
    "torch.func",
    "transformers",
    "pytest",
    "hypothesis",
    "matplotlib.pyplot",
    "pandas",
    "plotly.graph_objects",
)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    fault: Fault
    outcome: str  # "noticed", "too long", "survived", "not run by any test"
    tests: int
    seconds: float


def warm_up() -> None:
    """Import what every test needs, so that each child need not."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


class Nursery:
    """A copy of the sources that holds one mutant at a time."""

    def __init__(self, sources: Path, copy: Path) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("__pycache__"))
        self._copy = copy

    def judge(self, fault: Fault, tests: list[str], expected_s: float) -> Verdict:
        """Whether these tests notice the fault."""
        if not tests:
            return Verdict(fault, "not run by any test", 0, 0.0)
        path = self._copy / fault.file
        original = path.read_text()
        path.write_text(fault.applied(original))
        started = time.perf_counter()
        try:
            outcome = self._run(tests, limit_s=60 + 8 * expected_s)
        finally:
            path.write_text(original)
        return Verdict(fault, outcome, len(tests), time.perf_counter() - started)

    def _run(self, tests: list[str], limit_s: float) -> str:
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            _be_the_tests(self._copy, tests)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return "survived" if os.waitstatus_to_exitcode(status) == 0 else "noticed"
            time.sleep(0.02)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return "too long"


def _be_the_tests(sources: Path, tests: list[str]) -> None:
    """Become a process that runs these tests on these sources. Never returns."""
    status = 1
    try:
        os.environ["PYTHONPATH"] = str(sources.resolve())
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(sources.resolve()))
        import pytest

        quiet = io.StringIO()
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--no-header"]
            status = int(pytest.main([*options, *tests]))
    finally:
        os._exit(0 if status == 0 else 1)
