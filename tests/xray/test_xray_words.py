"""Small promises of an Xray: what it says, when it takes a snapshot, what it keeps of unusual tensors."""

from __future__ import annotations

import dataclasses
import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_xray_figures import notebook  # noqa: F401  # a fixture
from torch import Tensor, nn

import torcheer as tl
from torcheer._text import aligned
from torcheer.errors import SnapshotNotFound
from torcheer.xray import drawing
from torcheer.xray.captions import statistics_in_words
from torcheer.xray.drawing import Desk, Job
from torcheer.xray.figures import Displays, show_png
from torcheer.xray.pacing import Pace
from torcheer.xray.records import Snapshot
from torcheer.xray.run import Saved, limits_of
from torcheer.xray.sampling import Limits, Measured, keep, lives_and_unknown
from torcheer.xray.selectors import Choices, RandomFilterSelectorType
from torcheer.xray.tracer import ArchitectureTracer
from xray_runs import make_entry, write_run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    now = types.SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("torcheer.xray.pacing.perf_counter", lambda: now.seconds)
    return now


def test_a_budget_holds_snapshots_back_until_there_is_time_for_one(clock) -> None:
    """A tenth of the time: a snapshot of one second needs ten since the beginning, the second one twenty."""
    pace = Pace(every=2, budget="10%")
    assert pace.is_due(0)  # the first always
    assert not pace.is_due(1)
    pace.took(1.0)
    clock.seconds += 19.9
    assert not pace.is_due(2)
    assert pace.skipped == 1
    clock.seconds += 0.2
    assert pace.is_due(2)
    assert pace.share == pytest.approx(1 / 20.1)
    assert pace.draws()  # the first always
    assert not pace.draws()  # the next waits for it
    pace.drew(1.0)
    assert pace.share == pytest.approx(2 / 20.1)
    assert not pace.is_due(4)
    assert pace.skipped == 2
    assert not pace.draws()
    clock.seconds += 15
    assert pace.is_due(4)
    assert pace.draws()
    assert not pace.is_due(6)  # the figure that waits is counted
    pace.drew(None)
    assert pace.is_due(6)


def test_without_a_budget_every_nth_step_is_due(clock) -> None:
    pace = Pace(every=3)
    pace.took(1e9)
    assert pace.draws()
    pace.drew(1e9)
    assert [step for step in range(8) if pace.is_due(step)] == [0, 3, 6]
    assert pace.draws()
    assert pace.skipped == 0


@pytest.mark.parametrize("step", [True, -1, 1.5, "three"])
def test_a_step_that_is_no_whole_number_is_refused(tmp_path, step) -> None:
    with tl.Xray(nn.Linear(2, 2), (1, 2), folder=tmp_path / "run") as xray:
        with pytest.raises(tl.InvalidArgument, match="step must be a whole number from 0 on"):
            xray.take_graphs(step)
        assert xray.take_graphs(np.int64(3))
        assert xray.take_graphs()
    assert xray.run.steps() == [3, 4]


@pytest.mark.parametrize(
    ("zeros", "said"),
    [(0.0, "0 %"), (0.0004, "<0.1 %"), (0.01, "1.0 %"), (0.5, "50 %"), (0.95, "95.0 %"), (0.9996, ">99.9 %"), (1.0, "100 %")],
)
def test_how_much_is_zero_is_said_as_precisely_as_matters(zeros: float, said: str) -> None:
    entry = make_entry("fc", "weight", torch.ones(2, 2), "matrix")
    entry = replace(entry, statistics=replace(entry.statistics, count=10_000, zeros=round(zeros * 10_000)))
    assert f"zeros {said}" in statistics_in_words(entry)


def test_a_run_without_pictures_says_what_else_it_has(tmp_path) -> None:
    run = write_run(tmp_path / "run", {4: [], 9: []}, notes=["a note"])
    saved = Saved(run)
    assert str(saved).startswith("2 snapshots, steps 4 to 9, ")
    assert repr(saved) == str(saved)
    assert "layer" not in str(saved)
    assert repr(run.snapshots) == "<2 snapshots>"


def test_a_layer_without_a_summary_is_told_with_the_nearest(tmp_path) -> None:
    xray = tl.Xray(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (1, 2), folder=tmp_path / "run")
    xray.take_graphs(0)
    xray.close()
    assert xray.run.summary("1").parameters == 6
    with pytest.raises(SnapshotNotFound, match=r"there is no summary of 'head'\. There are some of '0', '1'\."):
        xray.run.summary("head")


def test_a_layer_that_is_not_there_is_told_with_at_most_five_others(tmp_path) -> None:
    kept = torch.ones(2, 2)
    run = write_run(tmp_path, {1: [(make_entry(f"layer{n}", "weight", kept, "matrix"), kept) for n in range(9)]})
    with pytest.raises(SnapshotNotFound, match="it is not in this run") as caught:
        run.entry("layer", "weight")
    assert str(caught.value).count("'layer") == 1 + 5
    with pytest.raises(SnapshotNotFound) as caught:
        run.entry("§", "weight")
    assert str(caught.value).count("'layer") == 5


def test_a_snapshot_with_the_number_of_another_takes_its_place(tmp_path) -> None:
    kept = torch.ones(2, 2)
    run = write_run(tmp_path, {1: [(make_entry("fc", "weight", kept, "matrix"), kept)]})
    rows = run.files.rows
    (number,) = rows.copy()["number"].tolist()
    rows.add(Snapshot(number=number, step=7, time=0.0, entries=(), notes=()), 0)
    assert rows.copy()["step"].tolist() == [7]


def test_of_long_signals_every_nth_position_is_kept() -> None:
    signal = torch.arange(2 * 100.0).reshape(1, 2, 100)
    measured = Measured("conv", "layer", "conv", signal, dimensions=1)
    entry, kept = keep(measured, Choices(None, RandomFilterSelectorType(0)), Limits(side=8))
    assert entry.note == "every 4th position"
    assert entry.columns == tuple(range(0, 100, 4))
    assert torch.equal(kept, signal[0, :, ::4])


@pytest.mark.parametrize(
    "tensor", [torch.ones(2, 3, dtype=torch.complex64), torch.eye(3).to_sparse(), torch.tensor(-1.0)], ids=str
)
def test_units_of_unusual_tensors_are_not_called_dead(tensor: Tensor) -> None:
    assert lives_and_unknown(Measured("fc", "activation", "fc", tensor))[0].all()


def test_units_are_dead_where_nothing_is_above_zero() -> None:
    tensor = torch.tensor([[-1.0, 2.0, float("nan"), 0.0], [0.0, -1.0, -1.0, -2.0]])
    lives, unknown = lives_and_unknown(Measured("fc", "activation", "fc", tensor))
    assert lives.tolist() == [False, True, False, False]
    assert unknown.tolist() == [False, False, True, False]


def test_a_newer_figure_for_a_place_takes_the_turn_of_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """And when too many wait, the oldest is left out."""
    told: list[tuple[str, bool]] = []
    begun, go_on = threading.Event(), threading.Event()

    def draw(self: Desk, request: dict) -> tuple[dict, bytes]:
        begun.set()
        assert go_on.wait(300)
        return {}, b""

    monkeypatch.setattr(Desk, "_draw", draw)
    monkeypatch.setattr(drawing, "_MOST_WAITING", 2)
    busy = Desk()

    def job(name: str, place: str) -> Job:
        return Job({}, place, lambda said, png: told.append((name, said.get("left_out", False))))

    jobs = [job("first", "a")]
    busy.ask(jobs[0])
    assert begun.wait(300)
    for name, place in (("second", "a"), ("third", "b"), ("newer second", "a"), ("fourth", "c")):
        jobs.append(job(name, place))
        busy.ask(jobs[-1])
    assert told == [("second", True), ("third", True)]
    go_on.set()
    assert all(one.done.wait(300) for one in jobs)
    assert told[2:] == [("first", False), ("newer second", False), ("fourth", False)]


def test_a_figure_that_fails_is_told_and_the_next_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict] = []
    answers = iter([RuntimeError("no ink"), ({"length": 0}, b"")])

    def draw(self: Desk, request: dict) -> tuple[dict, bytes]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(Desk, "_draw", draw)
    table = Desk()
    for _ in range(2):
        one = Job({}, "here", lambda said, png: told.append(said))
        table.ask(one)
        assert one.done.wait(300)
    assert told == [{"error": "RuntimeError: no ink"}, {"length": 0}]


def test_a_notebook_has_one_place_for_a_figure_in_each_cell(notebook) -> None:  # noqa: F811
    sys.modules["IPython"].display.HTML = lambda text: text
    displays = Displays()
    assert displays.place("a") == (True, "id0")
    assert displays.place("a") == (False, "id0")
    assert displays.place("b") == (True, "id1")
    notebook.shell.execution_count = 2
    assert displays.place("a") == (True, "id2")
    png = b"\x89PNG\r\n\x1a\n" + bytes(8) + (300).to_bytes(4, "big") + bytes(20)
    show_png(png, "id2")
    what, where, picture = notebook.calls[-1]
    assert (what, where, picture["data"], picture["format"]) == ("update", "id2", png, "png")
    assert 0 < picture["width"] <= 300


def test_without_a_notebook_there_is_no_place_for_a_figure() -> None:
    assert Displays().place("a") == (False, None)


def test_a_model_without_gradients_can_be_traced() -> None:
    class Best(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.argmax(-1)

    tracer = ArchitectureTracer(Best(), torch.rand(2, 3))
    assert tracer.layers == ["input_1_0", "argmax_1_1", "output_1_2"]
    assert str(tracer).splitlines()[0] == "Best: 3 layers"
    frozen = nn.Linear(3, 2).requires_grad_(False)
    assert ArchitectureTracer(frozen, torch.rand(2, 3)).layers == ["input_1_0", "linear_1_1", "output_1_2"]


def test_most_values_of_a_weight_lie_between_low_and_high(tmp_path):
    """In whatever order they come; a few that are far away do not count."""
    model = nn.Linear(40, 50)
    values = torch.linspace(-1, 1, 2000)[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
    values[7], values[1200] = 1000.0, -1000.0
    with torch.no_grad():
        model.weight.copy_(values.reshape(50, 40))
    with tl.Xray(model, torch.ones(1, 40), {"": ["weight"]}, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    entry = xray.run.entry("", "weight")
    assert -1 <= entry.low < -0.9
    assert 0.9 < entry.high <= 1


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("weight", -3.0, 2.0, (-3.0, 3.0)),
        ("weight", 0.5, 2.0, (-2.0, 2.0)),
        ("layer", -1.0, 4.0, (-4.0, 4.0)),
        ("layer", 0.5, 4.0, (0.0, 4.0)),
        ("layer", 0.0, 0.0, (0.0, 1.0)),
    ],
)
def test_colors_reach_as_far_as_the_values_do(kind, low, high, expected):
    """On both sides of zero where there are negative values, or may be; from zero on otherwise."""
    kept = torch.linspace(low, high, 101).reshape(1, -1)
    entry = dataclasses.replace(make_entry("fc", kind, kept, "matrix"), low=low, high=high)
    assert limits_of(entry) == expected


def test_tables_have_a_line_below_their_head():
    lines = aligned([("layer", "norm"), ("conv1", "1.5")], has_head=True).splitlines()
    assert lines == ["layer  norm", "─────  ────", "conv1  1.5"]


def test_an_unknown_name_of_the_package_is_told_with_its_package():
    with pytest.raises(AttributeError, match=r"^module 'torcheer.xray' has no attribute 'Xrays'$"):
        tl.xray.Xrays
