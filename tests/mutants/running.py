"""Runs tests on a mutant, in a child of a process that has torch and the rest imported already."""

from __future__ import annotations

import compileall
import contextlib
import importlib.util
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
    "torch._dynamo",
    "torch._inductor",
    "networkx",
    "transformers",
    "pytest",
    "matplotlib.pyplot",
    "pandas",
    "plotly.graph_objects",
)


@dataclass(frozen=True)
class Verdict:
    """What became of one mutant."""

    fault: Fault
    outcome: str  # "noticed", "too long", "survived", "not run by any test"
    tests: int  # how many were to be run
    covering: int  # how many run the line
    seconds: float
    noticed_by: str = ""  # the test that failed

    @property
    def is_noticed(self) -> bool:
        return self.outcome in ("noticed", "too long")


def warm_up() -> None:
    """Import what every test needs, so that each child need not."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


class Nursery:
    """A copy of the sources that holds one mutant at a time, and the process that runs tests on it."""

    def __init__(self, sources: Path, copy: Path) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(sources, copy, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(copy, quiet=2)
        self._copy = copy
        self._note = copy.with_name(f"{copy.name}-failed")

    def start(self, fault: Fault | None, tests: list[str], expected_s: float, covering: int = 0) -> None:
        """Begin to run these tests on the sources with this fault in them, or as they are."""
        self._fault, self._tests, self._covering = fault, tests, max(covering, len(tests))
        self._original = ""
        if fault is not None:
            path = self._copy / fault.file
            self._original = path.read_text()
            path.write_text(fault.applied(self._original))
            Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)
        self._started = time.monotonic()
        self._limit_s = 60 + 5 * expected_s  # of the processor: the machine may be busy with other things
        self._child = os.fork()
        if self._child == 0:
            os.setpgid(0, 0)
            _be_the_tests(self._copy, tests, self._note, limit_s=4 * self._limit_s)

    def outcome(self) -> str | None:
        """What the tests said: "survived", "noticed", or "too long"; None while they run."""
        done, status = os.waitpid(self._child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            found = "noticed" if code else "survived"  # also where the process died, or the tests could not be collected
        elif _seconds_of(self._child) > self._limit_s or time.monotonic() - self._started > 4 * self._limit_s:
            found = "too long"
        else:
            return None
        with contextlib.suppress(ProcessLookupError):  # also what the tests left running
            os.killpg(self._child, signal.SIGKILL)
        if not done:
            os.waitpid(self._child, 0)
        if self._fault is not None:
            (self._copy / self._fault.file).write_text(self._original)
        return found

    def verdict(self, outcome: str) -> Verdict:
        assert self._fault is not None
        failed = self._note.read_text() if self._note.exists() else ""
        return Verdict(self._fault, outcome, len(self._tests), self._covering, time.monotonic() - self._started, failed)

    def judge(self, fault: Fault, tests: list[str], expected_s: float) -> Verdict:
        """Whether these tests notice the fault."""
        self.start(fault, tests, expected_s)
        return self.verdict(self.wait())

    def wait(self) -> str:
        while (outcome := self.outcome()) is None:
            time.sleep(0.02)
        return outcome


class _FirstFailure:
    """A pytest plugin that writes down which test failed."""

    def __init__(self, note: Path) -> None:
        self._note = note

    def pytest_runtest_logreport(self, report: object) -> None:
        if getattr(report, "failed", False) and not self._note.exists():
            self._note.write_text(str(getattr(report, "nodeid", "")))

    pytest_collectreport = pytest_runtest_logreport  # a file of tests that cannot be imported


def _seconds_of(child: int) -> float:
    """How long a child has kept a processor busy."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _be_the_tests(sources: Path, tests: list[str], note: Path, limit_s: float) -> None:
    """Become a process that runs these tests on these sources, up to the first that fails. Never returns."""
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
            options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins that were imported already
            options.append(f"--timeout={limit_s:.0f}")
            first = _of_few_files(tests)
            status = int(pytest.main([*options, *first], plugins=[_FirstFailure(note)]))
            rest = [name for name in tests if name not in set(first)]
            if status == 0 and rest:
                status = int(pytest.main([*options, *rest], plugins=[_FirstFailure(note)]))
    finally:
        os._exit(0 if status == 0 else 1)


def _of_few_files(tests: list[str], count: int = 60) -> list[str]:
    """The first tests, out of three files: importing all files of tests takes longer than most mutants live."""
    files = list(dict.fromkeys(name.split("::")[0] for name in tests))[:3]
    return [name for name in tests if name.split("::")[0] in files][:count]
