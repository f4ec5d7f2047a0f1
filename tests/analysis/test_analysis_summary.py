"""The summary: any columns, any depth, and totals that add up."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp, log, made_of
from test_real_models import IDS, IMAGE, LANGUAGE, VISION
from torcheer.analysis import cost_of, largest, slowest, summary_of
from torcheer.analysis.summary import COLUMNS

ADDING = [name for name, column in COLUMNS.items() if column.adds_up]


def test_the_table_reads_as_the_module_tree():
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))
    text = str(summary_of(history, ["calls", "in", "out", "params", "trainable", "flops", "macs", "%"]))
    assert text == (
        "module   class   calls  in      out     params  trainable  flops  macs      %\n"
        "───────  ──────  ─────  ──────  ──────  ──────  ─────────  ─────  ────  ─────\n"
        "(model)  Mlp         1  (2, 4)  (2, 3)      67         67    246   112  100.0\n"
        "├─ fc1   Linear      1  (2, 4)  (2, 8)      40         40    128    64   52.0\n"
        "├─ act   ReLU        1  (2, 8)  (2, 8)       –          –     16     0    6.5\n"
        "└─ fc2   Linear      1  (2, 8)  (2, 3)      27         27     96    48   39.0\n"
        "───────  ──────  ─────  ──────  ──────  ──────  ─────────  ─────  ────  ─────\n"
        "total                                       67         67    246   112  100.0"
    )


@pytest.mark.parametrize("depth", [None, 0, 1, 2])
@pytest.mark.parametrize("name", ["resnet18", "vit", "gpt2"])
def test_columns_add_up_at_any_depth(name, depth):
    model = {**VISION, **LANGUAGE}[name]()
    args, kwargs = (IMAGE, {}) if name in VISION else ((), IDS)
    history = torcheer.log_forward_pass(model, args, kwargs, layers_to_save="none")
    summary, cost = summary_of(history, COLUMNS, depth=depth), cost_of(history)
    for column in ADDING:
        if column == "self backward time":
            assert {row[column] for row in summary.to_rows()} == {summary.totals[column]} == {None}  # none ran
        else:
            assert sum(row[column] for row in summary.to_rows()) == pytest.approx(summary.totals[column])
    assert summary.totals["params"] == history.num_params_total == sum(p.numel() for p in model.parameters())
    assert summary.totals["flops"] == summary.totals["total flops"] == cost.flops
    assert summary.totals["macs"] == cost.macs
    assert summary.totals["self time"] == pytest.approx(cost.seconds)
    assert summary.totals["%"] == pytest.approx(100)
    assert max(row["module"].count(".") for row in summary.to_rows()) + 1 <= (depth or 99)
    assert str(summary)


def test_shared_parameters_count_once_and_modules_that_did_not_run_say_so():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.spare = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(2, 2)
            self.b.weight = self.a.weight
            self.a.bias.requires_grad_(False)

        def forward(self, x):
            return self.b(self.a(x))

    summary = summary_of(torcheer.log_forward_pass(Tied(), torch.rand(1, 3)), ["calls", "params", "trainable"])
    rows = {row["module"]: row for row in summary.to_rows()}
    assert [rows[name]["params"] for name in ("a", "b", "spare")] == [12, 3, 6]
    assert rows["a"]["trainable"] == 9
    assert "not called" in str(summary)
    assert summary.totals == {"calls": None, "params": 21, "trainable": 18}


def test_a_module_that_calls_itself_is_counted_once_in_total():
    (row,) = summary_of(
        torcheer.log_forward_pass(
            made_of(lambda self, x, levels=2: self(x + 1, levels - 1) if levels else x * 2), torch.ones(5)
        ),
        ["calls", "flops", "total flops"],
    ).to_rows()
    assert (row["calls"], row["flops"], row["total flops"]) == (3, 15, 15)


def test_work_in_no_module_has_a_row():
    with torcheer.recording(model := nn.Linear(2, 3)) as history:
        model(torch.ones(1, 2)).exp()
    text = str(summary_of(history, "flops"))
    assert "(in no module)" in text
    assert summary_of(history, "flops").totals["flops"] == 12 + 3
    assert "(in no module)" in str(summary_of(log(torch.exp, torch.ones(3))))


def test_unknown_functions_are_named_below_the_table():
    assert "FLOPs unknown for 1 call, counted nowhere: linalg_matrix_exp" in str(
        summary_of(log(torch.linalg.matrix_exp, torch.eye(2)))
    )


def test_a_call_that_is_written_in_another_way_than_its_formula_expects_is_unknown():
    """Operators of the dispatcher call their first argument `self`."""

    def program(x, target):
        return torch.ops.aten.cross_entropy_loss(self=x, target=target)

    told = str(summary_of(log(program, torch.rand(3, 4), torch.tensor([0, 1, 2]))))
    assert "FLOPs unknown for 1 call, counted nowhere: cross_entropy_loss" in told


def test_wrong_arguments_are_explained():
    history = torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))
    with pytest.raises(torcheer.InvalidArgument, match=r"no column is called 'speed'.*'flops'"):
        summary_of(history, ["flops", "speed"])
    with pytest.raises(torcheer.InvalidArgument, match="no column was asked for"):
        summary_of(history, [])
    with pytest.raises(torcheer.InvalidArgument, match="depth must be"):
        summary_of(history, depth=-1)
    with pytest.raises(torcheer.InvalidArgument, match="n must be"):
        slowest(history, -1)


def test_slowest_and_largest():
    history = torcheer.log_forward_pass(VISION["resnet18"]().eval(), IMAGE)
    times = [one.func_time_elapsed for one in slowest(history, 5)]
    assert times == sorted(times, reverse=True)
    assert times[0] == max(one.func_time_elapsed for one in history.operations)
    sizes = [one.tensor_fsize for one in largest(history, 5)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(largest(history, 10**6)) < len(history.operations)  # in-place results and views are not in it
    assert len(slowest(history, 0)) == 0


def test_a_history_answers_for_its_cost(tmp_path):
    history = torcheer.log_forward_pass(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), torch.ones(2, 4))
    assert history.cost is history.cost
    assert history.cost.flops == history.cost.module("").total.flops == 144
    assert history.memory.peak > 0
    assert "144" in str(history.summary(["flops"]))
    assert history.largest(1)[0].tensor_fsize == 64
    assert len(history.slowest(2)) == 2
    assert "flops" in history.draw(tmp_path / "x.svg", color_by="flops").svg
