"""A pytest plugin: which lines each test runs, and how long each takes. Written to the folder in `MUTANTS_COVERAGE`.

What a fixture of a whole file runs counts for all tests of that file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

import forked

_folder = Path(os.environ["MUTANTS_COVERAGE"])
_worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
_coverage = coverage.Coverage(
    data_file=str(_folder / f"lines-{_worker}"), source=[os.environ["MUTANTS_SOURCES"]], config_file=False
)
_coverage.set_option("run:disable_warnings", ["no-data-collected"])  # by the process that hands tests to the workers
_seconds: dict[str, float] = {}
_passed: dict[str, bool] = {}
_contexts = [""]

_coverage.start()


def _follow_into_a_copy() -> None:
    """The lines that a forked process runs count for the test that forked it."""
    _coverage.stop()
    own = coverage.Coverage(
        data_file=str(_folder / f"lines-child-{os.getpid()}"),
        source=[os.environ["MUTANTS_SOURCES"]],
        config_file=False,
        context=_contexts[-1],
    )
    own.start()
    forked.before_exit[:] = [own.stop, own.save]


os.register_at_fork(after_in_child=_follow_into_a_copy)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    return (yield from _counting_for(item.nodeid))


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _counting_for(request.node.nodeid))


def _counting_for(name: str) -> Iterator[None]:
    _contexts.append(name)
    _coverage.switch_context(name)
    try:
        return (yield)
    finally:
        _contexts.pop()
        _coverage.switch_context(_contexts[-1])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.when == "call":
        _passed[report.nodeid] = report.passed


def pytest_sessionfinish() -> None:
    _coverage.stop()
    _coverage.save()
    passed = {name: seconds for name, seconds in _seconds.items() if _passed.get(name)}
    (_folder / f"seconds-{_worker}.json").write_text(json.dumps(passed))
