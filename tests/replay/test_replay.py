"""A history is proved by running it again, a wrong one is caught, and a replay with changes is an intervention."""

from __future__ import annotations

import copy
import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import torcheer
from models import Convolutional, Mlp, log, made_of, unchanged
from programs import COLUMNS, ROWS, Program, programs
from torcheer._torch.functions import facts
from torcheer.log.records import FUNCTION, PARENTS
from torcheer.replay import validate_against
from torcheer.replay.comparison import difference, same_bits
from torcheer.replay.edges import IGNORED, SATURATED

x = torch.rand(3, 4)


def validate(model, *args, **kwargs):
    return torcheer.validate_forward_pass(model, args, kwargs)


# What is valid ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs, st.booleans())
def test_random_programs_are_valid(steps, training):
    torch.manual_seed(3)
    model, given = Program(steps).train(training), torch.randn(ROWS, COLUMNS)
    with unchanged(model):
        report = validate(model, given)
    assert report, report


def in_place(t):
    y = t.clone()
    row = y[0]
    row.add_(1)
    y[1] = 0.5
    y.mul_(2)
    return y + row.sum()


def test_a_history_is_valid_under_other_defaults():
    history = log(lambda t: t.long() / 2 + torch.ones(3, 4), torch.rand(3, 4))
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    try:
        report = history.validate()
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert report, report


def test_a_function_that_is_not_deterministic_is_named():
    calls = iter(range(100))

    @torch.library.custom_op("torcheer_tests::jitter", mutates_args=())
    def jitter(t: torch.Tensor) -> torch.Tensor:
        return t + 1e-7 * next(calls)

    report = validate(lambda t: torch.ops.torcheer_tests.jitter(t), x + 1)
    assert report, report
    assert str(report).count("jitter is not deterministic") >= 1
    assert "not deterministic (jitter)" in str(report)


@pytest.fixture
def racing(monkeypatch):
    """An operator that leaves another value at one place in every call, as one on an accelerator may."""
    calls = iter(range(1000))

    @torch.library.custom_op("torcheer_tests::put", mutates_args=())
    def put(t: torch.Tensor) -> torch.Tensor:
        made = t.clone()
        made[0, 0] = next(calls)
        return made

    for place in ("reference_run", "validation"):
        monkeypatch.setattr(f"torcheer.replay.{place}.may_race", lambda record: record.function.name == "put")
    return lambda t: torch.relu(torch.ops.torcheer_tests.put(t) * 2)


def test_what_several_values_written_to_one_place_leave_is_exempt_and_counted(racing):
    report = validate(racing, x + 1)
    assert report, report
    values = next(check for check in report.checks if "values come again" in check.name)
    assert values.exempt["behind several values that were written to one place, in no order"] == 4
    assert str(report).count("not checked (the plain model gives other values each time; put wrote several values") == 3


def test_a_wrong_log_of_a_function_that_may_race_is_still_wrong(monkeypatch):
    monkeypatch.setattr("torcheer.replay.reference_run.is_on_accelerator", lambda record: True)

    def model(t):
        return t.scatter(1, torch.zeros(3, 1, dtype=torch.long), 1.0) * 2

    history = log(model, x)
    assert history.validate()
    history["mul_1"].tensor_contents.add_(1)
    assert not history.validate()


def test_the_report_says_what_was_checked():
    text = str(validate(Mlp(), x))
    assert text.startswith("Validation of Mlp, 6 operations: valid\n")
    for what in ("outputs equal", "values come again", "changing an argument", "modules hold", "another input"):
        assert re.search(rf"ok .*{what}.*: \d+ checked", text)


def test_a_history_validates_itself():
    report = log(Mlp(), x).validate()
    assert report
    assert len(report.checks) == 3


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda t: torch.zeros_like(t) + t, IGNORED),
        (lambda t: torch.relu(-t - 1) + t, None),
        (lambda t: t.masked_fill(torch.ones(3, 4, dtype=torch.bool), 0.0), SATURATED),
        (lambda t: t[:, torch.ones(4, dtype=torch.bool)], None),
        (lambda t: t[torch.tensor([1, 1, 1]) * 0], None),
        (lambda t: torch.where(torch.ones(4, dtype=torch.bool), t, t), None),
    ],
)
def test_edges_without_effect_are_exempt_and_named(program, reason):
    report = validate(program, torch.rand(3, 4) + 0.1)
    (edges,) = [check for check in report.checks if "changing" in check.name]
    assert report, report
    assert reason is None or edges.exempt[reason] >= 1, edges


def test_what_left_for_python_is_not_tried_on_another_input():
    report = validate(lambda t: t * t.sum().item(), x)
    assert report
    assert "left for Python" in report.checks[-1].skipped


# What is wrong is caught -----------------------------------------------------------------------------------------


def subtraction(t):
    a = t * 2
    b = t.tanh()
    c = a - b
    return c.relu()


def first_wrong(history):
    report = history.validate()
    assert not report
    assert not report.is_valid
    return report.first_disagreement


def number_of(history, key):
    return history[key].passes[0]._number


def set_row(history, key, change):
    number = number_of(history, key)
    history._log.rows[number] = change(history._log.rows[number])


def test_a_dropped_edge_is_caught():
    history = log(subtraction, x)
    set_row(history, "sub_1", lambda row: row[:-1])
    assert "edge is missing" in str(first_wrong(history))


def test_an_edge_too_many_is_caught():
    history = log(subtraction, x)
    set_row(history, "relu_1", lambda row: (*row, 1))
    assert "edge is missing" in str(first_wrong(history))


def test_swapped_arguments_are_caught():
    history = log(subtraction, x)
    set_row(history, "sub_1", lambda row: (*row[:PARENTS], *reversed(row[PARENTS:])))
    wrong = first_wrong(history)
    assert wrong.where == "sub_1_3"
    assert "c = a - b" in wrong.source
    assert "was logged" in wrong.what


def test_a_wrong_parent_is_caught():
    history = log(subtraction, x)
    set_row(history, "relu_1", lambda row: (*row[:PARENTS], 1))
    assert first_wrong(history).where == "relu_1_4"


def test_an_altered_activation_is_caught():
    history = log(subtraction, x)
    history["tanh_1"].tensor_contents[1, 2] += 1
    wrong = first_wrong(history)
    assert wrong.where == "tanh_1_2"
    assert "1 of 12 values differ; at [1, 2]" in wrong.what


def writes(t):
    y = t.clone()
    view = y[0]
    view.add_(1)
    return y * 2


def test_a_missing_write_is_caught():
    history = log(writes, x)
    history._log.detail(number_of(history, "add_1")).mutated = ()
    assert "writes to its argument 0" in str(first_wrong(history))


def test_a_write_that_was_not_made_is_caught():
    history = log(writes, x)
    add = facts(torch.add)
    history._log.functions.append(add)
    set_row(history, "add_1", lambda row: (len(history._log.functions) - 1, *row[FUNCTION + 1 :]))
    assert first_wrong(history).where == "mul_1_4"


def test_a_missing_dependency_through_memory_is_caught():
    history = log(writes, x)
    history._log.detail(number_of(history, "mul_1")).also = ()
    assert "overwritten by add_1_3" in str(first_wrong(history))


def test_a_wrong_parent_with_the_same_value_is_caught_by_another_input():
    def model(t):
        return t.floor() - t.ceil()  # equal at whole numbers

    whole = torch.arange(4.0)
    history = log(model, whole)
    set_row(history, "sub_1", lambda row: (*row[:PARENTS], 1, 1))
    assert history.validate()
    report = validate_against(history._run, model, ((whole,), {}))
    assert not report
    assert report.first_disagreement.where == "another input"


def test_a_model_that_is_not_the_logged_one_is_caught():
    model = Mlp()
    history = log(model, x)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.fc1.weight.add_(1)
    report = validate_against(history._run, other, ((x,), {}))
    assert not report
    assert report.first_disagreement.where == "output_1_5"
    assert any(one.where == "fc1:1" for one in report.disagreements)


@pytest.mark.parametrize(
    "corrupt",
    [
        lambda log: setattr(log.modules[1], "inputs", ()),
        lambda log: setattr(log.modules[1], "address", "fc2"),
        lambda log: setattr(log.modules[1], "end", log.modules[1].first),
        lambda log: log.rows.__setitem__(2, (*log.rows[2][:3], 1, *log.rows[2][4:])),
    ],
    ids=["inputs", "address", "range", "operation"],
)
def test_wrong_facts_about_modules_are_caught(corrupt):
    model = Mlp()
    history = log(model, x)
    corrupt(history._log)
    assert not validate_against(history._run, model, ((x,), {}))


def test_weights_that_changed_since_are_named():
    model = Mlp()
    history = log(model, x)
    with torch.no_grad():
        model.fc1.weight.add_(1)
    for use in (history.validate, history.replay):
        with pytest.raises(torcheer.InvalidArgument, match=r"'fc1.weight' changed since"):
            use()


def test_a_history_without_its_inputs_says_what_to_do():
    for keys in ("none", ["relu_1"], "modules"):
        with pytest.raises(torcheer.InvalidArgument, match="layers_to_save='all'"):
            log(nn.Sequential(Mlp()), x, layers_to_save=keys).validate()
    with pytest.raises(torcheer.InvalidArgument, match="or save, without it"):
        log(Mlp(), x, activation_postfunc=torch.mean).validate()


def test_a_history_with_some_values_is_checked_where_it_has_them():
    report = log(Mlp(), x, layers_to_save=["input", "fc2"]).validate()
    assert report
    assert report.checks[0].count == 2


# Replay as intervention ------------------------------------------------------------------------------------------


def test_another_input_gives_what_the_model_gives():
    model, y = Convolutional().eval(), torch.rand(2, 3, 8, 8)
    history = log(model, torch.rand(2, 3, 8, 8))
    before = {one.label: one.tensor_contents.clone() for one in history.operations}
    with unchanged(model):
        again = history.replay(inputs=y)
    assert isinstance(again, torcheer.ModelHistory)
    other = log(model, y)
    assert again.layer_labels == history.layer_labels
    for one, expected in zip(again.operations, other.operations, strict=True):
        assert torch.equal(one.tensor_contents, expected.tensor_contents), one.label
    for one in history.operations:
        assert torch.equal(one.tensor_contents, before[one.label])


@pytest.mark.parametrize("key", ["relu_1", "act", "relu_1_2", "act:1"])
def test_a_change_flows_downstream_and_nowhere_else(key):
    model = Mlp()
    history = log(model, x)
    changed = history.replay(changes={key: lambda t: t * 0})
    assert torch.equal(changed["fc1"].tensor_contents, history["fc1"].tensor_contents)
    assert torch.equal(changed["relu_1"].tensor_contents, torch.zeros(3, 8))
    assert torch.allclose(changed["output"].tensor_contents, torch.tanh(model.fc2.bias).expand(3, 3))


def test_a_change_may_be_a_tensor_and_concern_one_pass():
    def model(t):
        for _ in range(3):
            t = t + 1
        return t

    changed = log(model, torch.zeros(2)).replay(changes={"add_1:2": torch.tensor([10.0, 20.0])})
    assert changed["output"].tensor_contents.tolist() == [11.0, 21.0]
    everywhere = log(model, torch.zeros(2)).replay(changes={"add_1": lambda t: t * 2})
    assert everywhere["output"].tensor_contents.tolist() == [14.0, 14.0]


def test_a_change_to_what_is_written_in_place_reaches_its_views():
    def model(t):
        y = t.clone()
        row = y[0]
        y.add_(1)
        return row * 2

    changed = log(model, x).replay(changes={"add_1": lambda t: t * 0 + 5})
    assert changed["output"].tensor_contents.tolist() == [10.0] * 4


def test_the_change_of_an_output_reaches_nothing_else():
    def forward(self, t):
        y = t.relu()
        return y, y, self.w, self.w.view(12)

    model = made_of(forward, w=nn.Parameter(torch.ones(3, 4)))
    with unchanged(model):
        changed = log(model, x).replay(changes={f"output_{n}": lambda t: t * 0 for n in (1, 3, 4)})
    assert changed["output_1"].tensor_contents.sum() == 0
    assert torch.equal(changed["output_2"].tensor_contents, x.relu())
    assert torch.equal(changed["relu_1"].tensor_contents, x.relu())


def test_a_view_whose_memory_is_written_later_cannot_be_changed_alone():
    def writes_through(t):
        y = t.clone()
        row = y[0]
        row.add_(1)
        return y

    def writes_under(t):
        y = t.clone()
        row = y[0]
        y.mul_(2)
        return row + 0

    for model in (writes_through, writes_under):
        with pytest.raises(torcheer.ReplayFailed, match="getitem_1_2 cannot be changed: it is a view"):
            log(model, x).replay(changes={"getitem_1": lambda t: t + 100})
    only_read = log(lambda t: t.clone()[0] * 2, x).replay(changes={"getitem_1": lambda t: t * 0})
    assert only_read["output"].tensor_contents.sum() == 0


def test_a_key_of_one_pass_goes_before_a_key_of_all():
    def model(t):
        for _ in range(3):
            t = t + 1
        return t

    for keys in (("add_1", "add_1:2"), ("add_1:2", "add_1")):
        values = {"add_1": torch.zeros(2), "add_1:2": torch.ones(2)}
        changed = log(model, torch.zeros(2)).replay(changes={key: values[key] for key in keys})
        assert [one.tensor_contents[0].item() for one in changed["add_1"].passes] == [0, 1, 0]


def test_generators_give_the_same_numbers_again_and_stay_where_they_were():
    model, other = (
        made_of(
            lambda self, t, other: t + torch.rand(4, generator=self.generator) + torch.rand(4, generator=other),
            generator=torch.Generator().manual_seed(1),
        ),
        torch.Generator().manual_seed(2),
    )
    before = model.generator.get_state(), other.get_state()
    history = log(model, x, other)
    assert torch.equal(history.replay()["output"].tensor_contents, history.replay()["output"].tensor_contents)
    assert validate(model, x, other)
    assert torch.equal(before[0], model.generator.get_state())
    assert torch.equal(before[1], other.get_state())


def test_the_callers_autocast_is_not_the_recorded_one():
    def model(t):
        with torch.autocast("cpu", enabled=False):
            y = t @ t.t()
        return y @ y

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert validate(model, x)
        assert log(lambda t: t @ t.t(), x).validate()
    history = log(lambda t: t @ t.t(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert history.replay()["output"].tensor_dtype is torch.float32


@pytest.mark.parametrize("size", [(2, 2), (5, 4)])
def test_a_resized_tensor_follows_its_input(size):
    def model(t):
        y = t.clone()
        y.resize_(*size)
        return y.reshape(-1)[:4] * 2

    assert validate(model, x), validate(model, x)
    again = log(model, x).replay(inputs=torch.ones(3, 4))
    assert torch.equal(again["output"].tensor_contents, torch.full((4,), 2.0))


def test_an_input_is_known_by_the_name_it_was_given():
    history = torcheer.log_forward_pass(lambda a, b: a - b, (x,), {"b": x.clone()})
    assert torch.equal(history.replay(inputs={"b": x * 0})["output"].tensor_contents, x)


def test_a_replay_of_a_replay():
    history = log(Mlp(), x)
    y, z = torch.rand(3, 4), torch.rand(3, 4)
    twice = history.replay(inputs=y).replay(inputs=[z])
    assert torch.equal(twice["output"].tensor_contents, history.replay({"input": z})["output"].tensor_contents)
    assert twice.validate()


def test_in_place_writes_do_not_reach_what_a_replay_kept():
    history = log(in_place, x).replay(inputs=x + 1)
    assert torch.equal(history["clone_1"].tensor_contents, x + 1)
    assert history.validate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inputs": [x, x]}, "one tensor for each of the 1 inputs"),
        ({"changes": {"relu_1": 3}}, "a tensor or a function"),
        ({"changes": {"nothing": x}}, "no layer fits"),
        ({"changes": {"relu_1": torch.rand(2)}}, r"must be a tensor of shape \(3, 8\)"),
        ({"changes": {"relu_1": lambda t: 5}}, "must be a tensor of shape"),
        ({"inputs": torch.rand(3, 5)}, "cannot be run again"),
        ({"inputs": 3}, "must be a tensor; got int"),
        ({"inputs": {"input": 3}}, "must be a tensor; got int"),
        ({"inputs": {"linear_1": x}}, "is no input of this history"),
    ],
)
def test_bad_input_is_an_error_of_ours(options, message):
    history = log(Mlp(), x)
    with pytest.raises(torcheer.TorcheerError, match=message):
        history.replay(**options)


def test_a_recorded_training_step_is_valid():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    weight = net[0].weight.detach().clone()
    with torcheer.recording(net) as history:
        for _ in range(2):
            optimizer.zero_grad()
            net(x).exp().sum().backward()
            optimizer.step()
    report = history.validate()
    assert report, report
    assert report.checks[0].exempt["a gradient"] == 8
    assert torch.equal(history["linear_1:1"].creation_args[1], weight)
    assert not torch.equal(net[0].weight, weight)


# Comparing -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (torch.tensor([float("nan")]), torch.tensor([float("nan")]), True),
        (torch.tensor(0.0), torch.tensor(-0.0), False),
        (torch.tensor(1), torch.tensor(1.0), False),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        (torch.rand(3)[::2], torch.rand(3)[::2], False),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.zeros(2, device="meta"), torch.zeros(2, device="meta"), True),
        (torch.tensor(True), torch.tensor(True), True),
        (torch.rand(0, 3), torch.rand(0, 3), True),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16), True),
    ],
)
def test_bits_are_compared(one, other, equal):
    assert same_bits(one, other) is equal
    assert same_bits(one, copy.deepcopy(one))
    assert (difference(one, other) == "no difference") is equal


def test_a_model_that_disagrees_with_itself_is_not_held_against_its_log():
    def forward(self, t):
        torch.seed()
        return F.dropout(self.fc(t).repeat(8, 8), 0.5)

    report = validate(made_of(forward, fc=nn.Linear(4, 4)), x)
    assert report
    skipped = [check.skipped for check in report.checks if check.skipped is not None]
    assert len(skipped) >= 2
    assert all("the plain model gives other values each time it runs from the same random state" in one for one in skipped[:2])
    assert not validate_against(log(Mlp(), x)._run, Mlp(), ((x,), {}))


def overlapping():
    whole = torch.arange(16.0).reshape(4, 4) + 1
    more = torch.arange(100.0).reshape(25, 4)
    return {
        "a row": (whole[0], whole),
        "the whole first": (whole, whole[1]),
        "parts": (whole[:3], whole[1:]),
        "transposed": (whole.t(), whole[:2]),
        "bytes": (whole.view(torch.int32)[2], whole),
        "apart": (whole[:2], whole[2:]),
        "parts of more memory": (more[5:8], more[6:9]),
    }


@pytest.mark.parametrize("which", overlapping())
def test_inputs_that_overlap_in_memory_overlap_when_they_run_again(which, tmp_path):
    """A write to one of them reaches the other."""

    def model(a, b):
        return a.mul_(2).sum(), b + 1, b.mul_(3)[0], a + 1

    arguments = overlapping()[which]
    assert torcheer.validate_forward_pass(model, arguments)
    history = torcheer.log_forward_pass(model, arguments)
    loaded = torcheer.load(history.save(tmp_path / "run.safetensors"))
    for again in (history.replay(), loaded.replay()):
        assert all(torch.equal(one.activation, two.activation) for one, two in zip(again.outputs, history.outputs, strict=True))
    given = overlapping()[which]
    expected = model(*overlapping()[which])
    changed = history.replay(inputs=list(given))
    assert all(torch.equal(one.activation, value) for one, value in zip(changed.outputs, expected, strict=True))


def test_constants_that_overlap_in_memory_overlap_when_they_run_again():
    table = torch.arange(8.0)
    part = table[2:5]
    assert torcheer.validate_forward_pass(lambda t: (table * t, part.add_(t), table * t), torch.tensor(2.0))
