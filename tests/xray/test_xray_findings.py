"""What stands out in a training: values that are not finite, dead units, vanishing gradients, odd updates."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from torcheer import Xray
from torcheer._text import Progress
from torcheer.errors import InvalidArgument, SnapshotNotFound
from torcheer.xray.findings import find_all, find_at
from torcheer.xray.series import FIELDS, Series, read_numbers


def series(layer, kind, *snapshots):
    """What was found of a layer, by field, in each snapshot; None where it was not recorded."""
    made = Series(layer, kind, len(snapshots))
    for at, known in enumerate(snapshots):
        for field, value in ({"form": 0, "nan": 0, "inf": 0} | known).items() if known is not None else ():
            made.numbers[FIELDS.index(field), at] = value
    return made


def found(*table, at=None):
    return find_at(table, range(0, 10 * table[0].numbers.shape[1], 10), at)


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


def dead_layer(name, *dead, units=10):
    return series(name, "activation", *({"dead": one, "units": units} for one in dead))


def test_layers_with_many_dead_units_are_named_with_the_step_from_which_they_are_dead():
    layer = dead_layer
    assert texts(layer("a", 0, 0, 0, 9, 9)) == ["9 of 10 units of a are dead from step 10 on (90 %)"]
    table = layer("a", 9, 5), layer("b", 9, 8), layer("c", 9, 2)
    assert texts(*table) == ["9 of 10 units of a are dead from step 0 on (90 %), and 25 % or more in 1 other layer"]
    assert texts(*table, at=0) == ["9 of 10 units of a are dead from step 0 on (90 %), and 25 % or more in 2 other layers"]
    assert texts(layer("a", 4, 9)) == ["4 of 10 units of a are dead from step 0 on (40 %, up to 90 %)"]
    assert "Nothing stands out" in texts(layer("a", 9, 2))[0]
    still, ended = find_all([layer("a", 9, 2), layer("b", 9, 8)], [0, 10])
    assert (ended.text, ended.at, ended.until) == ("9 of 10 units of a are dead from step 0 to step 0 (90 %)", 0, 0)
    assert (still.series.layer, still.at, still.until) == ("b", 0, 1)


def test_the_part_of_dead_units_that_is_a_finding_is_said_and_can_be_set():
    table = [dead_layer("a", 12, units=32)]
    assert texts(*table) == ["12 of 32 units of a are dead from step 0 on (38 %)"]
    (fine,) = find_at(table, [0], dead=0.5)
    assert (fine.tone, "layers with 50 % of their units dead" in fine.about) == ("fine", True)
    assert find_at(table, [0], dead=0.375)[0].tone == "odd"


def test_units_that_died_stay_named_where_values_are_not_finite_later():
    layer = series(
        "a", "activation", *({"dead": dead, "units": 8, "nan": nan} for dead, nan in ((0, 0), (6, 0), (0, 5), (0, 5)))
    )
    nonfinite, dead = found(layer)
    assert nonfinite.text.startswith("Values are not finite from step 20 on")
    assert (dead.text, dead.until) == ("6 of 8 units of a are dead from step 0 on (75 %)", 3)


def test_a_unit_that_is_dead_was_silent_in_the_snapshots_before_unless_some_are_left_out():
    table = [dead_layer("a", 0, 0, 0, 0, 9)]
    (one,) = find_all(table, range(5))
    (thinned,) = find_all(table, range(5), is_thinned=True)
    assert (one.at, thinned.at) == (2, 4)


@pytest.mark.parametrize(
    ("dead", "units", "said"),
    [(5, 8, "63 %"), (9, 10, "90 %"), (911, 1000, "91.1 %"), (95, 100, "95 %"), (9999, 10000, "> 99.9 %"), (8, 8, "100 %")],
)
def test_a_part_is_rounded_half_up_and_finer_near_all(dead, units, said):
    text = f"{dead:,} of {units:,} units of a are dead from step 0 on ({said})"
    assert texts(series("a", "activation", {"dead": dead, "units": units})) == [text]


def updates(name, *ratios):
    return series(name, "weight", *({"update_ratio": ratio} for ratio in ratios))


def test_a_jump_of_the_updates_is_named_at_its_step_and_at_every_later_one():
    ratios = [1e-3, 1.1e-3, 0.9e-3, 1e-3, 0.02, 0.02, 1e-3]
    text = "Updates of a jump at step 40: from 0.001 to 0.02 of the weight, 20 times as much"
    for at in (4, 5, 6):
        assert texts(updates("a", *ratios), at=at) == [text]
    assert "Nothing stands out" in texts(updates("a", *ratios), at=3)[0]
    one = found(updates("a", *ratios), updates("b", *ratios))[0]
    assert (one.text, one.at, one.until) == (f"{text}, and of 1 other layer", 4, 6)


@pytest.mark.parametrize(
    "ratios",
    [
        [1e-3] * 5 + [1e-4] * 5,  # a smaller learning rate
        [0, 0, 0, 0, 1e-2],  # it did not learn before
        [1e-4 * step for step in range(1, 30)],  # warmup
        [1e-6, 1e-6, 1e-6, 1e-4],  # less than is healthy
        [1e-4, 1e-4, 5e-3, 1e-4, 5e-3],  # as large as before
        [1e-4, 1e-4, 5e-3],  # too little before
    ],
)
def test_what_is_no_jump(ratios):
    assert not any("jump" in one for one in texts(updates("a", *ratios)))


def test_gradients_that_were_far_apart_for_a_while_are_listed_and_no_finding_later():
    def layer(name, *norms):
        return series(name, "summary", *({"grad_norm": norm, "grad_nonfinite": 0} for norm in norms))

    table = layer("first", 1, 1e-6, 1e-5, 1), layer("last", 1, 1, 1, 1)
    (ended,) = find_all(table, [0, 10, 20, 30])
    assert (ended.text, ended.at, ended.until) == (
        "The gradient of first is 100,000 times smaller than that of last at step 20",
        1,
        2,
    )
    assert "Nothing stands out" in texts(*table)[0]


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


def texts_at(table, steps, at=None):
    return [one.text for one in find_at(table, steps, at)]


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
            then = texts_at(table, snapshots.steps, at)
            assert then == texts_at(part, snapshots.steps[: at + 1])
            assert then == [str(one) for one in xray.findings(snapshots.steps[at])]
            said += then
    assert any("not finite" in one for one in said)
    assert any("huge" in one for one in said)


class Planted(nn.Module):
    """A classifier whose hidden layer can be made to die, and whose last layer can be made to give NaN."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = nn.Linear(8, 32), nn.Linear(32, 2)

    def forward(self, x):
        return self.last(self.hidden(x).relu())


def test_a_training_that_goes_wrong_three_times_is_described_at_every_step(tmp_path):
    torch.manual_seed(0)
    model, data = Planted(), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with Xray(model, data, folder=tmp_path / "run", optimizer=optimizer) as xray:
        for step in range(60):
            optimizer.zero_grad()
            model(data).logsumexp(1).mean().backward()
            if step == 20:
                with torch.no_grad():
                    model.hidden.bias[:12] = -1e3  # 12 of 32 units
            optimizer.param_groups[0]["lr"] = 1.0 if step == 40 else 1e-2
            optimizer.step()
            if step == 50:
                nn.init.constant_(model.hidden.weight, math.nan)
            if step % 2 == 0:
                xray.take_graphs(step)
        dead = "12 of 32 units of hidden are dead from step 20 on"
        assert not any("dead" in one.text for one in xray.findings(18))
        for step in (26, 40, 58):
            assert any(one.text.startswith(dead) for one in xray.findings(step)), [str(one) for one in xray.findings(step)]
        for step in (40, 44, 58):
            assert any("jump at step 40" in one.text for one in xray.findings(step)), [str(one) for one in xray.findings(step)]
        assert not any("jump" in one.text for one in xray.findings(38))
        assert xray.findings(58)[0].text.startswith("Values are not finite from step 50 on")
        assert not any("not finite" in one.text for one in xray.findings(48))
        assert not any("dead" in one.text for one in xray.findings(58, dead=0.5))
        assert {one.tone for one in xray.findings()} == {"bad", "odd"}
        with pytest.raises(InvalidArgument, match="above 0 and at most 1"):
            xray.findings(dead=12)
        with pytest.raises(SnapshotNotFound):
            xray.findings(999)
