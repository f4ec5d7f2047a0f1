"""Figures that are not known are said to be unknown: they are no zeros."""

from __future__ import annotations

import csv
import io

import pytest
import torch
from torch import nn

import torcheer
from models import log, made_of
from torcheer.page import node_data_of

x = torch.rand(2, 4)


class Scripted(nn.Module):
    """A part that nobody can watch, between two that are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.script = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))

    def forward(self, t: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.script(self.fc(t)))


@pytest.fixture
def scripted() -> torcheer.ModelHistory:
    return log(Scripted(), x)


def unwatched(history):
    (found,) = [one for one in history.operations if one._record.origin.value == "opaque"]
    return found


def test_the_time_of_what_cannot_be_watched_is_unknown(scripted):
    one = unwatched(scripted)
    assert one.func_time_elapsed is one.layer.func_time_elapsed is None
    assert "Time elapsed: unknown" in str(one)
    assert "0.000E+00" not in str(one)
    assert scripted.cost.operation(one).untimed == scripted.cost.total.untimed == 1
    assert scripted.cost.untimed == {one.func_applied_name: 1}


def test_a_table_says_what_is_unknown(scripted):
    summary = scripted.summary(["flops", "total flops", "macs", "backward flops", "self time", "time", "%"])
    rows = {row["module"]: row for row in summary.to_rows()}
    assert [rows["script"][name] for name in ("flops", "macs", "backward flops", "self time", "time")] == [None] * 5
    assert rows["fc"]["flops"] == 64
    assert rows["fc"]["self time"] > 0
    assert summary.totals["flops"] == scripted.flops == scripted.cost.flops > 0
    (line,) = [line for line in str(summary).splitlines() if "script " in line]
    assert line.count("unknown") == 7
    assert "Time unknown for 1 call, counted nowhere" in str(summary)
    assert "FLOPs unknown for 1 call, counted nowhere" in str(summary)
    assert "and those of 1 call without a formula" in scripted._repr_html_()


def test_a_model_of_which_nothing_is_known_has_no_flops():
    history = log(torch.jit.script(nn.Linear(4, 4)), x)
    assert history.flops is None
    summary = history.summary(["flops", "total flops", "self time", "time", "%"])
    assert set(summary.totals.values()) == {None}, summary
    assert "0 µs" not in str(summary)
    assert history.cost.module("").total.intensity is None


def test_every_tensor_of_a_call_without_a_formula_has_unknown_flops():
    @torch.library.custom_op("torcheer_tests::twice", mutates_args=())
    def twice(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return t * 2, t * 3

    history = log(torch.ops.torcheer_tests.twice, x)
    assert [one.flops for one in history.operations] == [0, None, None, 0, 0]


def test_tables_of_rows_leave_an_unknown_time_empty(scripted, tmp_path):
    text = io.StringIO()
    scripted.to_csv(text)
    label = unwatched(scripted).label
    rows = {row["label"]: row for row in csv.DictReader(io.StringIO(text.getvalue()))}
    assert rows[label]["seconds"] == ""
    assert float(rows["linear_1_1"]["seconds"]) > 0
    assert node_data_of(scripted)["time"]["Scripted"]["results"].keys().isdisjoint({label, f"{label}:1"})


def test_a_picture_colours_by_known_times_alone(scripted, tmp_path):
    (node,) = [node for node in scripted.graph.nodes if node.kind == "opaque"]
    assert node.seconds is None
    scripted.draw(tmp_path / "words.svg", label="{time}")
    assert "unknown" in (tmp_path / "words.svg").read_text()
    scripted.draw(tmp_path / "colours.svg", color_by="time")


def test_a_recording_that_has_not_ended_took_an_unknown_time():
    with torcheer.recording() as history:
        x * 2
        assert history.time_elapsed is None
        assert "Time elapsed: unknown" in str(history)
    assert history.time_elapsed > 0


def test_figures_of_a_gradient_that_is_not_there_are_none():
    history = log(nn.Linear(4, 4), x)
    one = history["linear_1"]
    assert one.grad_fsize is one.grad_nonfinite is None


def test_what_is_in_no_module_returned_nothing_to_measure():
    with torcheer.recording() as history:
        x * 2
    (row,) = history.summary(["memory"]).to_rows()
    assert row["memory"] is None


def test_the_share_of_a_module_of_which_no_flops_are_known_is_unknown(scripted):
    rows = {row["module"]: row["%"] for row in scripted.summary(["%"]).to_rows()}
    assert (rows["fc"], rows["script"]) == (100.0 * 64 / scripted.flops, None)


def partly_lazy(self, t: torch.Tensor) -> torch.Tensor:
    """Two lazy layers, of which none runs."""
    return self.fc(t)


def test_how_many_parameters_a_lazy_module_has_that_did_not_run_is_unknown(tmp_path):
    history = log(made_of(partly_lazy, fc=nn.Linear(4, 3), never=nn.LazyLinear(7), norm=nn.LazyBatchNorm1d()), x)
    history.save(tmp_path / "run.safetensors")
    for one in (history, torcheer.load(tmp_path / "run.safetensors")):
        summary = one.summary(["params", "trainable"])
        rows = {row["module"]: (row["params"], row["trainable"]) for row in summary.to_rows()}
        assert rows == {"": (0, 0), "fc": (15, 15), "never": (None, None), "norm": (None, None)}
        assert summary.totals == {"params": 15, "trainable": 15}
        assert "Size unknown for 4 parameters of lazy modules that did not run, counted nowhere" in str(summary)
        assert str(one.modules).count("unknown") == 2
