"""The mutator itself: every fault is valid Python, the choice repeats, and a fault that a test can see is noticed."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

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
        for fault in faults_in(text, path.name):
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


def test_the_same_seed_chooses_the_same_faults_in_as_many_lines() -> None:
    first, again, other = choose(SOURCES, 40, 3), choose(SOURCES, 40, 3), choose(SOURCES, 40, 4)
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


def test_the_folder_of_a_fault_is_the_part_of_the_package_it_is_in() -> None:
    def folder(file: str) -> str:
        return Fault(file, "", 1, "", 0, 0, "", "").folder

    assert [folder(f) for f in ("torcheer/xray/page/a.py", "torcheer/api.py", "torch_vis/words.py")] == [
        "xray",
        "torcheer",
        "torch_vis",
    ]
