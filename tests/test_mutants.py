"""The mutator itself: every fault is valid Python, the choice repeats, and a fault that a test can see is noticed."""

from __future__ import annotations

import ast
import itertools
import textwrap
from pathlib import Path

import pytest

from mutants import covering
from mutants.faults import Fault, choose, faults_in
from mutants.running import Nursery

SOURCES = Path(__file__).parent.parent / "src"

EXAMPLE = textwrap.dedent(
    '''
    """A file — with a dash, so that bytes and characters differ."""

    def clamp(value: int, low: int = 0) -> int:
        if value < low:
            return low
        total = value + 1 if value else value
        return total
    '''
)


def test_every_fault_in_the_package_is_valid_python_and_changes_it() -> None:
    """A mutant that cannot be imported would count as noticed without any test's merit."""
    for path in sorted(SOURCES.rglob("*.py"))[::7]:
        text = path.read_text()
        for fault in itertools.islice(faults_in(text, path.name), 0, None, 6):
            changed = fault.applied(text)
            ast.parse(changed)
            assert changed != text


def test_faults_of_a_function_are_the_ones_a_reader_expects() -> None:
    found = {(fault.function, fault.before, fault.after) for fault in faults_in(EXAMPLE, "example.py")}
    assert found == {
        ("clamp", "0", "1"),
        ("clamp", "value < low", "(value <= low)"),
        ("clamp", "value < low", "False"),
        ("clamp", "value < low", "True"),
        ("clamp", "return low", "return None"),
        ("clamp", "value + 1", "(value - 1)"),
        ("clamp", "1", "2"),
        ("clamp", "value + 1 if value else value", "(value)"),
        ("clamp", "value + 1 if value else value", "(value + 1)"),
        ("clamp", "return total", "return None"),
    }


def test_assertions_are_left_alone() -> None:
    """A program that works does the same without them."""
    text = "def f(a, b):\n    assert len(a) == 1\n    return zip(a, b, strict=True)\n"
    assert [(fault.before, fault.after) for fault in faults_in(text, "f.py")] == [
        ("return zip(a, b, strict=True)", "return None")
    ]


def test_the_same_seed_chooses_the_same_faults_in_as_many_lines() -> None:
    first, again, other = (choose(SOURCES / "torcheer" / "graph", 40, seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other
    assert len({(fault.file, fault.line) for fault in first}) == 40


def test_a_change_elsewhere_leaves_the_choice_as_it_is(tmp_path: Path) -> None:
    """So a score stays comparable while the code is worked on."""
    (tmp_path / "one.py").write_text(EXAMPLE)
    other = tmp_path / "two.py"
    other.write_text(EXAMPLE)
    before = {fault.key for fault in choose(tmp_path, 5, 0)}
    other.write_text("added = 1\n" + EXAMPLE)
    after = {fault.key for fault in choose(tmp_path, 5, 0)}
    assert len(before & after) >= 4
    assert all(fault.file == "two.py" for fault in choose(tmp_path, 5, 0, "two"))


@pytest.mark.parametrize(("after", "outcome"), [("(value <= low)", "survived"), ("True", "noticed")])
def test_a_fault_is_noticed_exactly_when_a_test_fails(tmp_path: Path, after: str, outcome: str) -> None:
    """`<` and `<=` clamp alike; a condition that always holds does not."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "clamping_example.py").write_text(EXAMPLE)
    test = tmp_path / "test_clamping_example.py"
    test.write_text(
        "from clamping_example import clamp\n\n\ndef test_clamp():\n    assert [clamp(n) for n in (-1, 0, 2)] == [0, 0, 3]\n"
    )
    fault = next(f for f in faults_in(EXAMPLE, "clamping_example.py") if f.before == "value < low" and f.after == after)
    verdict = Nursery(sources, tmp_path / "copy").judge(fault, [str(test)], expected_s=1.0)
    assert verdict.outcome == outcome
    assert verdict.noticed_by.endswith("::test_clamp" if outcome == "noticed" else "")
    assert (tmp_path / "copy" / "clamping_example.py").read_text() == EXAMPLE


def test_kept_coverage_is_of_tests_in_all_folders_and_only_changed_ones_run_again(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    sources, deep = tmp_path / "src", tmp_path / "tests" / "deep"
    sources.mkdir()
    deep.mkdir(parents=True)
    (sources / "one.py").write_text(EXAMPLE)
    (tmp_path / "tests" / "test_top.py").write_text("def test_top():\n    pass\n")
    (deep / "test_deep.py").write_text("def test_deep():\n    pass\n")
    ran = []

    def run(sources: Path, folder: Path, tests: list[str]) -> None:
        ran.append(tests)

    def read(sources: Path, folder: Path) -> tuple[dict[str, dict[int, list[str]]], dict[str, float]]:
        names = ["tests/test_top.py::test_top", "tests/deep/test_deep.py::test_deep"]
        found = [name for name in names if name in ran[-1] or ran[-1] == ["tests"]]
        return {"one.py": {5: found}}, dict.fromkeys(found, 0.1)

    monkeypatch.setattr(covering, "_run_tests", run)
    monkeypatch.setattr(covering, "_read", read)
    first = covering.find_covering(sources, tmp_path / "kept")
    again = covering.find_covering(sources, tmp_path / "kept")
    (deep / "test_deep.py").write_text("def test_deep():\n    assert True\n")
    changed = covering.find_covering(sources, tmp_path / "kept")
    assert ran == [["tests"], ["tests/deep/test_deep.py::test_deep"]]
    names = {"tests/test_top.py::test_top", "tests/deep/test_deep.py::test_deep"}
    assert [set(each.lines["one.py"][5]) for each in (first, again, changed)] == [names] * 3


def test_the_tests_of_a_fault_come_quickest_first_and_near_ones_before() -> None:
    seconds = {
        "tests/test_a.py::test": 1.0,
        "tests/xray/test_b.py::test": 1.5,
        "tests/test_store.py::test": 3.0,
        "tests/c.py::t": 9.0,
    }
    fault = Fault("torcheer/xray/store.py", "f", 2, "", 0, 0, "", "")
    found = covering.Covering({fault.file: "def f():\n    pass\n"}, {}, {fault.file: {2: list(seconds)}}, seconds)
    assert found.tests(fault) == [
        "tests/test_store.py::test",
        "tests/xray/test_b.py::test",
        "tests/test_a.py::test",
        "tests/c.py::t",
    ]
    assert found.within(found.tests(fault), 5.0) == (found.tests(fault)[:2], pytest.approx(4.56))
    assert found.within(found.tests(fault), 0.1) == (found.tests(fault)[:1], pytest.approx(3.03))


def test_the_folder_of_a_fault_is_the_part_of_the_package_it_is_in() -> None:
    def folder(file: str) -> str:
        return Fault(file, "", 1, "", 0, 0, "", "").folder

    assert [folder(f) for f in ("torcheer/xray/page/a.py", "torcheer/api.py", "torch_vis/scene.py")] == [
        "xray",
        "torcheer",
        "torch_vis",
    ]
