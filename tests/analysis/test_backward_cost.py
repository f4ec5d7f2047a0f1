"""The time of autograd's nodes, by operation, layer and module: every node counts once, and the parts add up to the whole."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch import nn

import torcheer
from models import Mlp, log, made_with
from programs import COLUMNS, ROWS, Program, programs
from torcheer.analysis import cost_of
from torcheer.log.records import NodeRecord

x = torch.rand(3, 4)


@made_with(body=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()), head=lambda: nn.Linear(4, 2))
def Nested(self, t):
    for _ in range(2):
        t = self.body(t) + 1
    return self.head(t)


def run(model, *args, **options):
    """A history with one backward pass, in which the nodes took 1, 2, 3, … thousand seconds in the order they ran."""
    history = log(model, *args, save_gradients=True, **options)
    history.log_backward(sum(one.tensor_contents.sum() for one in history.outputs))
    retime(history)
    return history


def retime(history, seconds=1000):
    for number, record in enumerate(record for one in history._log.backward.passes for record in one.nodes):
        record._span = (number + 1) * seconds * 10**9


def expected(history, wanted) -> float:
    """The seconds of the nodes of all passes for which `wanted` is true."""
    return sum(one.time_elapsed for passed in history.backward_passes for one in passed.operations if wanted(one))


def assert_adds_up(history) -> None:
    cost = cost_of(history)
    total = sum(passed.time_elapsed for passed in history.backward_passes)
    own = sum(cost.module(address).own.backward_seconds for address in history.modules)
    operations = sum(cost.operation(one).backward_seconds for one in history.operations)
    layers = sum(cost.layer(one).backward_seconds for one in history)
    assert cost.backward_seconds == cost.total.backward_seconds == pytest.approx(total)
    assert own + cost.elsewhere.backward_seconds == pytest.approx(total)
    assert operations + cost.hidden.backward_seconds == pytest.approx(total)
    assert layers == pytest.approx(operations)


def test_an_operation_has_the_time_of_its_nodes():
    history = run(Mlp(), x)
    for label in ("linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4"):
        seconds = history.cost.operation(label).backward_seconds
        assert seconds == expected(history, lambda one, label=label: one.layer_label == label) >= 1000
    assert history.cost.operation("input").backward_seconds == 0
    assert_adds_up(history)


def test_a_layer_has_that_of_all_its_passes():
    history = run(Nested(), x)
    both = [history.cost.operation(f"linear_1_1:{number}").backward_seconds for number in (1, 2)]
    assert min(both) > 0
    assert history.cost.layer("linear_1_1").backward_seconds == sum(both)


def test_modules_have_their_own_and_the_total_with_those_inside():
    history = run(Nested(), x)
    cost = history.cost
    for address in ("body.0", "body.1", "head"):
        mine = expected(history, lambda one, address=address: one.containing_module == address)
        assert cost.module(address).own.backward_seconds == cost.module(address).total.backward_seconds == mine > 0
    assert cost.module("body").own.backward_seconds == 0
    inside = cost.module("body.0").own.backward_seconds + cost.module("body.1").own.backward_seconds
    assert cost.module("body").total.backward_seconds == inside
    assert cost.module("").own.backward_seconds == expected(history, lambda one: one.name == "AddBackward0")
    assert cost.module("").total.backward_seconds == cost.backward_seconds
    assert_adds_up(history)


def test_gradients_of_parameters_are_added_up_in_the_module_that_has_them():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head, self.spare = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(4, 4)
            self.head.weight = self.table.weight

        def forward(self, i):
            return F.linear(self.head(self.table(i)) @ self.table.weight, self.spare.weight)

    history = run(Tied(), torch.tensor([1, 2]))
    (tied,) = [one for one in history.backward_passes[0].operations if one.param == "table.weight"]
    (spare,) = [one for one in history.backward_passes[0].operations if one.param == "spare.weight"]
    embedding = history.cost.operation("embedding_1").backward_seconds
    assert history.cost.module("table").own.backward_seconds == tied.time_elapsed + embedding
    assert history.cost.module("spare").own.backward_seconds == spare.time_elapsed  # which was not called
    assert history.cost.module("spare").total.backward_seconds == spare.time_elapsed
    assert history.cost.module("").total.backward_seconds == history.cost.backward_seconds
    assert_adds_up(history)


def test_what_is_in_no_module_is_elsewhere():
    history = run(Mlp(), x.clone().requires_grad_())
    (accumulation,) = [one for one in history.backward_passes[0].operations if one.layer_label == "input_1_0"]
    assert history.cost.operation("input").backward_seconds == accumulation.time_elapsed
    assert history.cost.elsewhere.backward_seconds == accumulation.time_elapsed
    assert_adds_up(history)
    weight = nn.Parameter(torch.rand(4))
    history = run(lambda t: t * weight, x)
    assert history.cost.elsewhere.backward_seconds == history.cost.backward_seconds == 3000  # of one product and one sum
    assert_adds_up(history)


def test_all_backward_passes_are_summed_and_later_ones_are_included():
    history = log(Mlp(), x, save_gradients=True)
    output = history["output"].tensor_contents
    cost = history.cost
    assert cost.backward_seconds is None
    history.log_backward(output.sum(), retain_graph=True)
    retime(history)
    one = cost.module("fc1").own.backward_seconds
    assert history.cost is cost
    assert cost.backward_seconds == history.backward_passes[0].time_elapsed > 0
    history.log_backward(output.sum())
    retime(history)
    first, second = history.backward_passes
    assert cost.backward_seconds == first.time_elapsed + second.time_elapsed
    assert cost.module("fc1").own.backward_seconds > one > 0
    assert_adds_up(history)
    assert_adds_up(copy.deepcopy(history))


def test_a_call_that_made_several_tensors_is_paid_for_by_the_one_that_pays_forward():
    layer = nn.LSTM(4, 6)
    history = run(lambda t: layer(t)[1][0], torch.rand(5, 3, 4))
    payers = [one for one in history.operations if history.cost.operation(one).backward_seconds and one.layer_type == "lstm"]
    assert [history.cost.operation(one).seconds > 0 for one in payers] == [True]
    assert_adds_up(history)


def test_a_recorded_step_adds_up():
    model = Nested()
    with torcheer.recording(model, save_gradients=True) as history:
        loss = model(x).square().mean()
        torch.autograd.grad(loss, model.head.bias, create_graph=True)
        loss.backward()
    retime(history)
    assert history.cost.elsewhere.backward_seconds == expected(
        history, lambda one: one.layer_label in ("square_1_5", "mean_1_6")
    )
    assert_adds_up(history)


def test_a_recording_that_is_still_growing_has_a_cost():
    model = Mlp()
    with torcheer.recording(model, save_gradients=True) as history:
        model(x).sum().backward()
        cost = history.cost
        before = cost.backward_seconds
        assert before > 0
        model(x).sum().backward()
        assert cost.backward_seconds > before  # of operations it knows nothing of
        assert_adds_up(history)


@pytest.mark.parametrize("follows", [False, True])
def test_backward_time_that_was_not_measured_is_unknown(follows):
    history = log(Mlp(), x, save_gradients=follows)
    cost = history.cost
    parts = (cost, cost.total, cost.hidden, cost.elsewhere, cost.operation("linear_1"), cost.layer("relu_1"))
    for one in (*parts, cost.module("fc1").total, cost.module("").own, cost.operation("input") + cost.layer("output")):
        assert one.backward_seconds is None
    summary = history.summary(["self backward time", "backward time"])
    assert summary.totals == {"self backward time": None, "backward time": None}
    assert all(row["backward time"] is row["self backward time"] is None for row in summary.to_rows())
    assert "0 µs" not in str(summary)
    assert str(summary).count("unknown") == 2 * (len(summary.to_rows()) + 1) + 1
    assert "Backward time unknown: no backward pass was followed" in str(summary)
    assert "backward" not in repr(cost)


def test_the_summary_has_columns_for_it():
    history = run(Nested(), x.clone().requires_grad_())
    for depth in (None, 0, 1):
        table = history.summary(["self time", "self backward time", "backward time"], depth=depth)
        rows = {row["module"]: row for row in table.to_rows()}
        assert sum(row["self backward time"] for row in table.to_rows()) == pytest.approx(history.cost.backward_seconds)
        assert table.totals["self backward time"] == pytest.approx(history.cost.backward_seconds)
        assert table.totals["backward time"] == history.cost.backward_seconds
    assert rows["body"]["backward time"] == history.cost.module("body").total.backward_seconds
    assert "(in no module)" in str(table)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_parts_add_up_for_random_programs(steps):
    torch.manual_seed(3)
    history = log(Program(steps).eval(), torch.randn(ROWS, COLUMNS, requires_grad=True), save_gradients=True)
    try:
        history.log_backward(sum(one.tensor_contents.sum() for one in history.outputs))
    except (RuntimeError, torcheer.InvalidArgument):  # a program that overwrites what autograd needs, or has no way back
        return
    retime(history)
    assert_adds_up(history)


class Event:
    """What a device would record, and when it was asked to wait."""

    waited = 0

    def __init__(self, milliseconds: float) -> None:
        self.milliseconds = milliseconds

    def synchronize(self) -> None:
        Event.waited += 1

    def elapsed_time(self, after: Event) -> float:
        return after.milliseconds - self.milliseconds


def test_events_of_a_device_are_read_once_and_only_when_somebody_asks():
    record = NodeRecord("MulBackward0", "result", 0, 0, (), (), 5)
    record.time_by(Event(2.0), Event(3.5))
    assert record.is_device_time
    assert Event.waited == 0
    assert record.elapsed == record.elapsed == 1_500_000
    assert Event.waited == 1
    outer = NodeRecord("CheckpointFunctionBackward", "result", 0, 0, (), (), 2_000_000, (record,))
    assert outer.elapsed == 500_000
