"""What stands out in a training: values that are not finite, dead units, vanishing gradients, odd updates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from torcheer import Xray
from torcheer._text import Progress
from torcheer.xray.findings import find
from torcheer.xray.series import FIELDS, Series, read_numbers


def series(layer, kind, *snapshots):
    """What was found of a layer, by field, in each snapshot; None where it was not recorded."""
    made = Series(layer, kind, len(snapshots))
    for at, known in enumerate(snapshots):
        for field, value in ({"form": 0, "nan": 0, "inf": 0} | known).items() if known is not None else ():
            made.numbers[FIELDS.index(field), at] = value
    return made


def found(*table, at=None):
    return find(table, range(0, 10 * table[0].numbers.shape[1], 10), at)


def texts(*table, at=None):
    return [one.text for one in found(*table, at=at)]


def test_nothing_stands_out_where_nothing_does():
    (only,) = found(series("a", "weight", {"update_ratio": 1e-3}, {"update_ratio": 2e-3}))
    assert (only.tone, only.series, only.at) == ("fine", None, None)
    assert "Nothing stands out" in only.text
    assert "not finite" in only.about


def test_the_first_step_with_values_that_are_not_finite_is_named_with_the_kind_the_layer_and_how_many_others():
    table = (
        series("a", "weight", {}, {}, {"nan": 1}),
        series("b", "activation", {}, {"inf": 2}, {}),
        series("c", "summary", {}, {"nan": 3}, {}),
    )
    one = found(*table)[0]
    assert one.text == "Values are not finite from step 10 on: activation of b and 1 other"
    assert (one.tone, one.series, one.at) == ("bad", table[1], 1)
    assert texts(*table, at=0) == ["Nothing stands out in what was recorded"]


def test_gradients_that_are_not_finite_are_those_of_a_summary():
    assert texts(series("a", "summary", {"grad_nonfinite": math.nan}, {"grad_nonfinite": 4})) == [
        "Values are not finite from step 10 on: parameters or gradients of a"
    ]


def test_the_layer_with_most_dead_units_is_named_when_half_are_dead_in_the_end():
    def layer(name, *dead):
        return series(name, "activation", *({"dead": one, "units": 10} for one in dead))

    table = layer("a", 9, 5), layer("b", 9, 8), layer("c", 9, 2)
    assert texts(*table) == ["80 % of the units of b are dead in the end, and half or more in 1 other layer"]
    assert texts(*table, at=0) == ["90 % of the units of a are dead at step 0, and half or more in 2 other layers"]
    assert "Nothing stands out" in texts(layer("a", 9, 4))[0]


@pytest.mark.parametrize(
    ("dead", "units", "said"),
    [(5, 8, "63 %"), (9, 10, "90 %"), (911, 1000, "91.1 %"), (95, 100, "95 %"), (9999, 10000, "> 99.9 %"), (8, 8, "100 %")],
)
def test_a_part_is_rounded_half_up_and_finer_near_all(dead, units, said):
    assert texts(series("a", "activation", {"dead": dead, "units": units})) == [f"{said} of the units of a are dead in the end"]


def test_a_layer_without_units_has_no_dead_ones():
    assert "Nothing stands out" in texts(series("a", "activation", {"dead": 0, "units": 0}))[0]


def test_gradients_are_compared_at_the_last_step_where_all_are_finite_by_the_summaries_where_there_are_any():
    def layer(name, *norms):
        known = ({"grad_norm": norm, "grad_nonfinite": 0 if math.isfinite(norm) else 1} for norm in norms)
        return series(name, "summary", *known)

    own = series("first", "grad", {"norm": 1.0}, {"norm": 1.0}, {"norm": 1.0})
    vanishes = "The gradient of first is 2e6 times smaller than that of last at step 10"
    table = layer("first", 1e-6, 2e-6, 1), layer("last", 1, 4, math.inf), own
    assert vanishes in texts(*table)
    assert texts(*table, at=0) == ["The gradient of first is 1e6 times smaller than that of last at step 0"]
    zero = "The gradient of first is zero, unlike that of last at step 0"
    assert texts(layer("first", 0), layer("last", 1)) == [zero]
    assert "Nothing stands out" in texts(layer("first", 1e-3), layer("last", 1))[0]
    assert texts(series("first", "grad", {"norm": 1e-4}), series("last", "grad", {"norm": 1.5625})) == [
        "The gradient of first is 15,625 times smaller than that of last at step 0"
    ]


def test_updates_are_judged_by_their_median_over_the_run():
    def layer(name, *ratios):
        return series(name, "weight", *({"update_ratio": ratio} for ratio in ratios))

    table = layer("still", 0, 0, 1), layer("fine", 1e-3, 0, 1e-3), layer("wild", 0.5, 0.5, 1e-3)
    still, wild = (
        "Updates of still are tiny: nothing of the weight at a step, where about 0.001 is healthy",
        "Updates of wild are huge: 0.5 of the weight at a step, where about 0.001 is healthy",
    )
    assert texts(*table) == [still, wild]
    assert "Nothing stands out" in texts(layer("late", 1e-3, 5.0), at=0)[0]
    assert texts(layer("a", 0.12549)) == ["Updates of a are huge: 0.13 of the weight at a step, where about 0.001 is healthy"]
    assert texts(layer("a", 123.4e4), layer("b", 1.0)) == [
        "Updates of a and 1 other layer are huge: 1.2e6 of the weight at a step, where about 0.001 is healthy"
    ]
    assert texts(layer("slow", 1.25e-7), layer("slower", 1e-8)) == [
        "Updates of slower and 1 other layer are tiny: 1e−8 of the weight at a step, where about 0.001 is healthy"
    ]


def test_a_long_name_is_cut_in_the_middle():
    name = "encoder.layers.0.attention.self.query.lora"
    assert texts(series(name, "summary", {"nan": 1}))[0].endswith("parameters or gradients of encoder.layers.0…self.query.lora")
    assert texts(series("x" * 32, "summary", {"nan": 1}))[0].endswith("of " + "x" * 32)


def test_what_a_run_found_is_the_same_when_it_is_looked_at_later(tmp_path):
    """At each step: as if the run had ended there, but for the word for it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with Xray(model, torch.ones(2, 4), folder=tmp_path / "run", optimizer=optimizer) as xray:
        for step in range(8):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            if step == 5:
                nn.init.constant_(model[2].weight, math.nan)
            xray.take_graphs()
        snapshots = xray.run.snapshots
        said = []
        for at in range(8):
            table, part = (
                read_numbers(xray.run, some, Progress("", 1, "")).series for some in (snapshots, snapshots[: at + 1])
            )
            then = [one.text.replace(f"dead at step {at}", "dead in the end") for one in find(table, snapshots.steps, at)]
            assert then == [one.text for one in find(part, snapshots.steps[: at + 1])]
            said += then
    assert any("not finite" in one for one in said)
    assert any("huge" in one for one in said)
