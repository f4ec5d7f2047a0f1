"""Which tests run a line, the most telling first."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage

from .faults import Fault

_BUDGET_S = 60.0  # tests of one mutant: as many as take this long together


class Covering:
    """The tests of each line of the sources."""

    def __init__(self, lines: dict[str, dict[int, list[str]]], seconds: dict[str, float]) -> None:
        self._lines = lines
        self._seconds = seconds

    def tests(self, fault: Fault) -> tuple[list[str], float]:
        """The tests that run the line of a fault, and how long they take; those named after its file come first."""
        lines = self._lines.get(fault.file, {})
        names = set(lines.get(fault.line, ()))
        if not names and not fault.function:  # run when the file is imported
            names = {name for tests in lines.values() for name in tests}
        stem = Path(fault.file).stem
        ordered = sorted(
            (name for name in names if name in self._seconds),
            key=lambda name: (stem not in name.split("::")[0], self._seconds[name], name),
        )
        chosen: list[str] = []
        total = 0.0
        for name in ordered:
            if chosen and total + self._seconds[name] > _BUDGET_S:
                break
            chosen.append(name)
            total += self._seconds[name]
        return chosen, total


def find_covering(sources: Path, folder: Path) -> Covering:
    """Run the whole suite once with coverage, unless nothing changed since the last time."""
    digest = _digest([sources, Path("tests")])
    kept = folder / "covering.json"
    if kept.exists():
        saved = json.loads(kept.read_text())
        if saved["digest"] == digest:
            return Covering(
                {file: {int(line): names for line, names in lines.items()} for file, lines in saved["lines"].items()},
                saved["seconds"],
            )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print("running the suite once, to see which test runs which line ...", flush=True)
    surroundings = {
        **os.environ,
        "MUTANTS_COVERAGE": str(folder.resolve()),
        "MUTANTS_SOURCES": str(sources.resolve()),
        "PYTHONPATH": os.pathsep.join([str(sources.resolve()), str(Path("tests").resolve())]),
    }
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "mutants.plugin",
            "-q",
            "--no-header",
            "-o",
            "timeout=900",
            "--deselect",
            "tests/test_mutants.py",
        ],
        env=surroundings,
        check=False,
        stdout=subprocess.DEVNULL,
    )
    lines, seconds = _read(sources, folder)
    kept.write_text(json.dumps({"digest": digest, "lines": lines, "seconds": seconds}))
    return Covering(lines, seconds)


def _read(sources: Path, folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    lines: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("lines-*")):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(sources.resolve()).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                lines[name][line] += [context for context in contexts if context]
    for path in sorted(folder.glob("seconds-*.json")):
        for name, taken in json.loads(path.read_text()).items():
            seconds[name] = max(taken, seconds.get(name, 0.0))
    return {file: dict(found) for file, found in lines.items()}, seconds


def _digest(folders: list[Path]) -> str:
    sha = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            sha.update(path.as_posix().encode() + path.read_bytes())
    return sha.hexdigest()
