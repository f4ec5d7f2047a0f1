"""Which tests run a line, the quickest first."""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .faults import Fault

_TESTS = Path("tests")
_AROUND_S = 0.03  # what pytest takes for a test besides running it


@dataclass
class Covering:
    """The tests of each line of the sources, and how long each test takes."""

    texts: dict[str, str]  # of the source files, when the tests ran
    digests: dict[str, str]  # of the tests
    lines: dict[str, dict[int, list[str]]]
    seconds: dict[str, float]

    def tests(self, fault: Fault) -> list[str]:
        """The tests that run the line of a fault, the quickest first; those named after its file or folder count as quicker."""
        lines = self.lines.get(fault.file, {})
        names = set() if _is_run_at_import(self.texts[fault.file], fault) else set(lines.get(fault.line, ()))
        if not names:  # or it is not seen as a line of its own: the tests of the function, else of the file
            first, last = _extent(self.texts[fault.file], fault)
            names = {name for line in range(first, last + 1) for name in lines.get(line, ())}
            names = names or {name for tests in lines.values() for name in tests}
        stem, folder = Path(fault.file).stem, f"{_TESTS}/{fault.folder}/"
        known = [name for name in names if name in self.seconds]

        def rank(name: str) -> tuple[float, str]:
            file = _file_of(name)
            is_near = 0.2 if stem in Path(file).stem else 0.5 if file.startswith(folder) else 1.0
            return self.seconds[name] * is_near, name

        return sorted(known, key=rank)

    def within(self, tests: list[str], budget_s: float) -> tuple[list[str], float]:
        """As many of these tests, from the first on, as take `budget_s` together; and how long those take."""
        chosen: list[str] = []
        total = 0.0
        for name in tests:
            taken = self.seconds[name] + _AROUND_S
            if chosen and total + taken > budget_s:
                break
            chosen.append(name)
            total += taken
        return chosen, total


def find_covering(sources: Path, folder: Path, fresh: bool = False) -> Covering:
    """Which test runs which line. It is kept: only tests that changed since are run again, all of them when `fresh`.

    Lines of changed source files are matched with those they were; what was not there then counts as run by the tests of
    its function. So with kept coverage a fault may get fewer tests than it has, never others.
    """
    kept = folder / "covering.json"
    folder.mkdir(parents=True, exist_ok=True)
    before = Covering({}, {}, {}, {}) if fresh or not kept.exists() else _load(kept)
    digests = {name: digest for path in sorted(_TESTS.rglob("test_*.py")) for name, digest in _tests_in(path)}
    changed = {name for name, digest in digests.items() if before.digests.get(name) != digest}
    texts = {path.relative_to(sources).as_posix(): path.read_text() for path in sorted(sources.rglob("*.py"))}
    if changed:
        print(f"running {len(changed)} tests once, to see which runs which line ...", flush=True)
        _run_tests(sources, folder / "run", [str(_TESTS)] if changed == set(digests) else sorted(changed))
    lines, seconds = _read(sources, folder / "run") if changed else ({}, {})

    def stays(name: str) -> bool:
        return name.partition("[")[0] in digests and name.partition("[")[0] not in changed

    for file, found in _moved(before, texts).items():
        for line, names in found.items():
            lines.setdefault(file, {}).setdefault(line, []).extend(filter(stays, names))
    seconds |= {name: taken for name, taken in before.seconds.items() if stays(name)}
    covering = Covering(texts, digests, lines, seconds)
    _save(covering, kept)
    return covering


def _tests_in(path: Path) -> Iterator[tuple[str, str]]:
    """The tests in a file, and what tells whether one of them changed."""
    if path.name == "test_mutants.py":
        return
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
            yield f"{path.as_posix()}::{node.name}", hashlib.sha256(source.encode()).hexdigest()


def _run_tests(sources: Path, folder: Path, tests: list[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    here = Path(__file__).parent
    paths = [sources.resolve(), here.parent.resolve(), (here / "children").resolve()]
    surroundings = {
        **os.environ,
        "MUTANTS_COVERAGE": str(folder.resolve()),
        "MUTANTS_SOURCES": str(sources.resolve()),
        "PYTHONPATH": os.pathsep.join([*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "pytest", "-p", "mutants.plugin", "-q", "--no-header", "-o", "timeout=900", *tests]
    subprocess.run(command, env=surroundings, check=False, stdout=subprocess.DEVNULL)


def _read(sources: Path, folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
    import coverage  # only the environment of `make mutants` has it

    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("seconds-*.json")):
        for name, taken in json.loads(path.read_text()).items():
            seconds[name] = max(taken, seconds.get(name, 0.0))
    tests_of = defaultdict(list)  # a file's name stands for all its tests
    for name in seconds:
        tests_of[name].append(name)
        tests_of[_file_of(name)].append(name)
    lines: dict[str, dict[int, list[str]]] = {}
    for path in sorted(folder.glob("lines-*")):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            found = lines.setdefault(Path(file).relative_to(sources.resolve()).as_posix(), {})
            for line, contexts in data.contexts_by_lineno(file).items():
                names = (name for context in contexts if context for name in tests_of[context])
                found[line] = sorted({*found.get(line, ()), *names})
    return lines, seconds


def _save(covering: Covering, path: Path) -> None:
    """Tests are written by their numbers: most of them run the same few thousand lines."""
    number = {name: n for n, name in enumerate(covering.seconds)}
    numbers = {
        file: {line: [number[name] for name in names if name in number] for line, names in found.items()}
        for file, found in covering.lines.items()
    }
    saved = {"texts": covering.texts, "digests": covering.digests, "seconds": covering.seconds, "lines": numbers}
    path.write_text(json.dumps(saved))


def _load(path: Path) -> Covering:
    saved = json.loads(path.read_text())
    names = list(saved["seconds"])
    lines = {
        file: {int(line): [names[n] for n in numbers] for line, numbers in found.items()}
        for file, found in saved.pop("lines").items()
    }
    return Covering(lines=lines, **saved)


def _moved(before: Covering, texts: dict[str, str]) -> dict[str, dict[int, list[str]]]:
    """The lines of an earlier time, by their numbers now."""
    result = {}
    for file, found in before.lines.items():
        old, new = before.texts.get(file, ""), texts.get(file)
        if new is None:
            continue
        if old == new:
            result[file] = found
            continue
        blocks = difflib.SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_matching_blocks()
        now = {block.a + 1 + n: block.b + 1 + n for block in blocks for n in range(block.size)}
        result[file] = {now[line]: names for line, names in found.items() if line in now}
    return result


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definition(text: str, fault: Fault) -> _Definition | None:
    """The innermost function or class a fault is in."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, _Definition)]
    around = [node for node in found if node.lineno <= fault.line <= (node.end_lineno or 0)]
    return max(around, key=lambda node: node.lineno, default=None)


def _is_run_at_import(text: str, fault: Fault) -> bool:
    """Whether a line is outside of functions, or the head of one."""
    node = _definition(text, fault)
    return node is None or isinstance(node, ast.ClassDef) or fault.line < node.body[0].lineno


def _extent(text: str, fault: Fault) -> tuple[int, int]:
    """The first and last line of what a fault is in; of no line where that is the file."""
    node = _definition(text, fault)
    return (0, -1) if node is None else (node.body[0].lineno, node.end_lineno or 0)


def _file_of(name: str) -> str:
    return name.split("::")[0]
