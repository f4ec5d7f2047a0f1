"""What is done with a log grows no faster than n log n with the program: lines of the library that run are counted.

Four shapes of programs: a loop, straight code of one long function, many parallel branches that one call gathers, many modules.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torcheer as tl
from lines_run import LinesRun

Program = Callable[[Tensor], Tensor]
Use = Callable[[tl.ModelHistory, Path], Any]


def loop(count: int) -> Program:
    def repeated(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x + 1
        return x

    return repeated


def straight(count: int) -> Program:
    lines = "".join(f"    x = x.add({number})\n" for number in range(count))
    made: dict[str, Program] = {}
    exec(compile(f"def straight(x):\n{lines}    return x\n", "straight.py", "exec"), made)
    return made["straight"]


def wide(count: int) -> Program:
    return lambda x: torch.stack([x * number for number in range(count)]).sum(0)


def modules(count: int) -> Program:
    return nn.Sequential(*[nn.Linear(4, 4) for _ in range(count)])


def arguments(count: int) -> Program:
    return lambda x: torch.cat([x] * count)


def written_rows(count: int) -> Program:
    def written(x: Tensor) -> Tensor:
        rows = torch.zeros(count, 4)
        for number in range(count):
            rows[number] = x[0] * number
        return rows

    return written


SHAPES = {"loop": loop, "straight": straight, "wide": wide, "modules": modules}
USES: dict[str, Use] = {
    "print": lambda history, path: str(history),
    "summary": lambda history, path: str(history.summary()),
    "lookup": lambda history, path: [
        history[0],
        history[-1],
        history["output"],
        history["add_*"] if "add_1" in history else None,
    ],
    "csv": lambda history, path: history.to_csv(path / "table.csv"),
    "json": lambda history, path: history.to_json(previews=False),
    "model explorer": lambda history, path: history.to_model_explorer(),
    "graph": lambda history, path: history.graph,
    "page": lambda history, path: history.to_html(path / "page.html", previews=False),
    "save": lambda history, path: history.save(path / "saved.safetensors"),
    "load": lambda history, path: str(tl.load(path / "saved.safetensors")),
    "validate": lambda history, path: history.validate(),
    "replay": lambda history, path: history.replay(),
    "compare": lambda history, path: str(tl.compare(history, history.replay())),
}


def lines_of(use: Callable[[], object]) -> int:
    with LinesRun() as run:
        use()
    return run.count


def logged(program: Program) -> tl.ModelHistory:
    return tl.log_forward_pass(program, torch.rand(4, 4))


def assert_growth(counts: list[int]) -> None:
    """Each count is of a program twice as large as the one before."""
    first, second = (after - before for before, after in pairwise(counts))
    assert second <= 2.3 * max(first, 1), counts


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use", USES)
def test_lines_run_grow_with_the_program(use: str, shape: str, tmp_path: Path) -> None:
    counts = []
    for size in (70, 140, 280) if use in ("print", "load") else (28, 56, 112):  # print looks for equal blocks from 61 on
        small, history = logged(SHAPES[shape](4)), logged(SHAPES[shape](size))
        small.save(tmp_path / "saved.safetensors")
        USES[use](small, tmp_path)  # what is done once is done now
        history.save(tmp_path / "saved.safetensors")
        counts.append(lines_of(lambda history=history: USES[use](history, tmp_path)))
    assert_growth(counts)


@pytest.mark.parametrize("shape", SHAPES)
def test_lines_of_a_log_grow_with_the_program(shape: str) -> None:
    programs = [SHAPES[shape](size) for size in (28, 56, 112)]
    tl.log_forward_pass(SHAPES[shape](4), torch.rand(4, 4))
    assert_growth([lines_of(lambda program=program: tl.log_forward_pass(program, torch.rand(4, 4))) for program in programs])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("use", ["draw", "card"])
def test_lines_of_pictures_grow_with_the_program(use: str, shape: str) -> None:
    counts = []
    for size in (66, 132):
        history = logged(SHAPES[shape](size))
        look = history._repr_html_ if use == "card" else lambda history=history: history.draw(io.BytesIO())
        counts.append(lines_of(look))
    assert counts[1] <= 2 * math.log(132) / math.log(66) * 1.1 * counts[0], counts


@pytest.mark.parametrize(
    ("use", "shape"), [("csv", written_rows), ("json", arguments), ("csv", arguments), ("validate", arguments)]
)
def test_lines_run_grow_with_the_arguments_and_the_writes(use: str, shape: Callable[[int], Program], tmp_path: Path) -> None:
    """A call with very many tensors, and a tensor that very many calls wrote into."""
    counts = []
    for size in (70, 140, 280):
        history = logged(shape(size))
        counts.append(lines_of(lambda history=history: USES[use](history, tmp_path)))
    assert_growth(counts)


def test_of_a_call_with_very_many_tensors_some_are_tried_and_the_report_counts_the_others() -> None:
    report = tl.log_forward_pass(arguments(200), torch.rand(2)).validate()
    edges = next(check for check in report.checks if "argument" in check.name)
    assert report
    assert edges.count == 64
    assert sum(edges.exempt.values()) == 200 - 64
