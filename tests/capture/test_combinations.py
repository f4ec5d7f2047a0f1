"""Features together: whatever options a pass is logged with, the graph is the same graph and a value the same value."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn
from torch.nn.modules import module as hooks

import torcheer as tl
from catalogue import CATALOGUE
from programs import COLUMNS, ROWS, Program, programs
from saved_equality import graph_of
from torcheer.replay.validation import validate_against


def logged(program: str) -> tl.ModelHistory:
    return tl.log_forward_pass(CATALOGUE[program].make(), CATALOGUE[program].given())


@pytest.mark.parametrize(
    "program",
    ["mlp", "convolutional", "branching", "stateful", "looping", "checkpoint", "draws", "in inference mode", "autocast"],
)
def test_a_seeded_log_validates_and_repeats(program: str) -> None:
    entry = CATALOGUE[program if program in CATALOGUE else f"construct {program}"]
    model, x = entry.make(), entry.given()
    report = tl.validate_forward_pass(model, x, random_seed=11)
    assert report, report
    assert all(check.count >= 0 for check in report.checks)
    one, two = (tl.log_forward_pass(model, x, random_seed=11) for _ in range(2))
    for first, second in zip(one.outputs, two.outputs, strict=True):
        assert torch.equal(first.tensor_contents, second.tensor_contents)


def test_the_seed_of_a_validation_is_the_one_that_was_given() -> None:
    """The plain model runs from the seed as well, so what it drops is what the log dropped."""
    x = torch.ones(64)
    torch.manual_seed(5)
    report = tl.validate_forward_pass(lambda t: F.dropout(t, 0.5), x, random_seed=5)
    outputs = next(check for check in report.checks if "plain model" in check.name)
    assert report
    assert outputs.count == 1
    drawn = tl.log_forward_pass(lambda t: F.dropout(t, 0.5), x, random_seed=5).outputs[0].tensor_contents
    torch.manual_seed(5)
    assert torch.equal(drawn, F.dropout(x, 0.5))


def test_every_pass_of_a_validation_draws_what_its_seed_gives() -> None:
    """The logged pass and the plain one; the pass with another input starts from a state of its own."""
    drawn: list[float] = []

    def program(x: Tensor) -> Tensor:
        noise = torch.rand(())
        drawn.append(noise.item())
        return x * noise

    assert tl.validate_forward_pass(program, torch.ones(2), random_seed=7)
    torch.manual_seed(7)
    assert drawn[:2] == [torch.rand(()).item()] * 2


def test_an_invalid_seed_is_refused_by_the_validation_too() -> None:
    with pytest.raises(tl.InvalidArgument, match="random_seed"):
        tl.validate_forward_pass(torch.sin, torch.ones(2), random_seed=-1)


def same(one: Any, two: Any) -> bool:
    """Whether what was kept is bit by bit the same; NaN is like NaN."""
    return torch.equal(torch.nan_to_num(one.float(), 7.0), torch.nan_to_num(two.float(), 7.0))


@settings(max_examples=30, deadline=None)
@given(programs)
def test_random_programs_have_one_graph_and_one_value_each_whatever_is_kept(steps: Any) -> None:
    x = torch.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)

    def log(**options: Any) -> tl.ModelHistory:
        torch.manual_seed(0)
        return tl.log_forward_pass(Program(steps), x.clone(), **options)

    whole = log()
    values = [operation.tensor_contents for operation in whole.operations]
    for options in (
        {"layers_to_save": "none"},
        {"layers_to_save": [-1, 0, "input"]},
        {"layers_to_save": lambda operation: operation.operation_num % 3 == 0},
        {"save_gradients": True},
        {"activation_postfunc": torch.clone},
        {"activation_postfunc": lambda tensor: tensor},
        {"activation_postfunc": lambda tensor: (tensor, tensor.sum())},
    ):
        other = log(**options)
        assert graph_of(other) == graph_of(whole)
        for value, operation in zip(values, other.operations, strict=True):
            if operation.has_saved_activations:
                kept = operation.tensor_contents
                assert same(value, kept[0] if isinstance(kept, tuple) else kept), (options, operation.label)


@settings(max_examples=20, deadline=None)
@given(programs)
def test_a_recording_around_a_model_sees_what_a_log_of_it_sees(steps: Any) -> None:
    x = torch.linspace(-1, 1, ROWS * COLUMNS).reshape(ROWS, COLUMNS)
    torch.manual_seed(0)
    model = Program(steps)
    log = tl.log_forward_pass(model, x.clone())
    torch.manual_seed(0)
    again = Program(steps)
    with tl.recording(again) as recorded:
        result = again(x)
    seen = [
        (operation.func_applied_name, operation.tensor_shape)
        for operation in recorded.operations
        if not operation.is_output_layer
    ]
    logged_too = [
        (operation.func_applied_name, operation.tensor_shape) for operation in log.operations if not operation.is_output_layer
    ]
    assert seen[1:] == logged_too[1:]
    del result


def test_a_call_with_ordinal_zero_is_no_call() -> None:
    history = logged("looping")
    with pytest.raises(tl.LayerNotFound):
        history["cell:0"]
    with pytest.raises(tl.LayerNotFound):
        history[f"{history['cell:1'].layer_label}:0"]


def test_times_are_those_of_the_pass() -> None:
    """Every operation took some time, all of them less than the pass, the pass no more than the whole call."""
    started = time.perf_counter()
    history = logged("convolutional")
    whole = time.perf_counter() - started
    times = [operation.func_time_elapsed for operation in history.operations]
    assert all(each >= 0 for each in times)
    assert 0 < sum(times) <= history.time_elapsed <= whole


def test_the_time_of_a_log_is_that_of_its_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a model waits for is part of its forward pass, and of no other phase and no operation."""
    clock = itertools.count()

    def waiting(t: Tensor) -> Tensor:
        for _ in range(1000):
            next(clock)
        return t.sin()

    monkeypatch.setattr("torcheer.capture.session.perf_counter", lambda: next(clock))
    history = tl.log_forward_pass(waiting, torch.ones(3))
    phases = history.time_by_phase
    assert set(phases) == {"setup", "forward", "cleanup", "functions"}
    assert all(seconds > 0 for seconds in phases.values())
    assert phases["forward"] >= 1000 > phases["setup"] + phases["cleanup"]
    assert history.time_elapsed == phases["setup"] + phases["forward"] + phases["cleanup"]
    assert phases["functions"] == history["sin_1"].func_time_elapsed


def test_times_of_recordings_and_replays_are_theirs() -> None:
    started = time.perf_counter()
    with tl.recording() as recorded:
        torch.ones(3).sin()
    replayed = logged("mlp").replay()
    whole = time.perf_counter() - started
    assert 0 < recorded.time_elapsed < whole
    assert 0 < replayed.time_elapsed < whole


def test_the_stack_of_an_operation_is_the_users_own_code() -> None:
    """Frames of torch and torcheer between the user's lines are left out; the last line is the one that called torch."""

    def inner(t: Tensor) -> Tensor:
        return torch.tanh(t)

    class Outer(nn.Module):
        def forward(self, t: Tensor) -> Tensor:
            return inner(t)

    history = tl.log_forward_pass(nn.Sequential(Outer()), torch.ones(2))
    stack = history["tanh_1"].stack
    assert "return torch.tanh(t)" in str(history["tanh_1"].source)
    own = [line.function.rsplit(".", 1)[-1] for line in stack if line.file == __file__]
    assert own == ["forward", "inner"]
    others = {line.file.rsplit("/", 1)[-1] for line in stack if line.file != __file__}
    assert others <= {"container.py"}, stack  # nn.Sequential is where the module was called; module.py and torcheer are not


def test_a_write_that_was_overwritten_whole_is_no_parent_any_more() -> None:
    """What reads memory depends on the writes that are still in it."""

    def program(x: Tensor) -> Tensor:
        y = torch.zeros(4)
        view = y[:2]
        y[:2] = x  # gone: the next line writes to the same elements
        y[:2] = x * 5
        return view + 1

    history = tl.log_forward_pass(program, torch.ones(2))
    add = history["add_1"]
    parents = [history[label] for label in add.parent_layers]
    writes = [one.label for one in parents if one.func_applied_name == "__setitem__"]
    assert writes == [history["setitem_2"].label]
    assert tl.validate_forward_pass(program, torch.ones(2))


def test_a_write_to_all_that_is_read_hides_the_larger_ones_before_it() -> None:
    def program(x: Tensor) -> Tensor:
        y = torch.zeros(4)
        view = y[:2]
        y.copy_(x)  # of which the next line overwrites the part that is read
        y[:2] = x[:2] * 5
        return view + 1

    history = tl.log_forward_pass(program, torch.ones(4))
    assert [label for label in history["add_1"].parent_layers if "copy" in label] == []
    assert tl.validate_forward_pass(program, torch.ones(4))


@pytest.mark.parametrize("key", ["add_1", "mul_2", "relu_1"])
def test_a_replayed_change_of_what_is_written_in_place_flows_on(key: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        y.add_(1)
        y.mul_(3)
        return torch.relu_(y) - 1

    history = tl.log_forward_pass(program, torch.tensor([-1.0, 2.0]))
    changed = history.replay(changes={key: lambda tensor: tensor * 0 + 4})
    expected = {"add_1": 11.0, "mul_2": 3.0, "relu_1": 3.0}[key]
    assert changed.outputs[0].tensor_contents.tolist() == [expected, expected]
    assert history.outputs[0].tensor_contents.tolist() == [-1.0, 14.0]


def test_no_hook_stays_behind_a_log_a_backward_pass_or_a_snapshot(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def registered() -> list[int]:
        tables = [getattr(hooks, name) for name in dir(hooks) if name.startswith("_global_") and "hooks" in name]
        own = [table for part in net.modules() for name, table in vars(part).items() if "_hooks" in name]
        weights = [weight._backward_hooks or {} for weight in net.parameters()]
        return [len(table) for table in (*tables, *own, *weights) if table is not None]

    before = registered()
    xray = tl.Xray(net, (2, 4), ["0"], folder=tmp_path / "run", loss_fn=torch.sum)
    for step in range(3):
        history = tl.log_forward_pass(net, torch.rand(2, 4), save_gradients=True)
        history.log_backward(history.outputs[0].tensor_contents.sum())
        xray.take_graphs(step)
    xray.close()
    assert registered() == before


def test_a_report_counts_what_it_checked() -> None:
    """One output, five operations with values, two calls of modules with one tensor in and one out each."""
    report = tl.validate_forward_pass(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.rand(3, 2))
    counts = {check.name: (check.count, sum(check.exempt.values())) for check in report.checks}
    assert counts["outputs equal those of the plain model"] == (1, 0)
    values, given = counts["values come again from inputs, parameters and constants alone"]
    assert values + given == 4  # input, linear, relu, output
    assert counts["modules hold what plain hooks see"] == (6, 0)  # the model and its two modules, in and out
    assert counts["the graph gives what the model gives for another input"] == (1, 0)
    assert str(report).count("checked") == len(report.checks)


@pytest.mark.parametrize("which", [[-1], [-2], ["output", -1]], ids=str)
def test_what_was_let_go_of_may_be_written_to(which: list[Any]) -> None:
    """Counted from the end, what may be wanted is held until something newer comes; its memory is the program's own."""

    def program(x: Tensor) -> Tensor:
        c = x.clone()
        a = x * 2
        c.add_(1)
        a.mul_(3)
        return a + c

    history = tl.log_forward_pass(program, torch.ones(2), layers_to_save=which)
    assert history[which[-1]].tensor_contents.tolist() == [8.0, 8.0]


def check_of(report: tl.ValidationReport, word: str) -> Any:
    (found,) = [check for check in report.checks if word in check.name]
    return found


def test_an_output_that_nobody_wrote_to_is_exempt_and_counted() -> None:
    report = tl.validate_forward_pass(lambda x: (x + 1, torch.empty(3)), torch.ones(2))
    outputs = check_of(report, "plain model")
    assert report
    assert (outputs.count, dict(outputs.exempt)) == (1, {"uninitialised memory": 1})


class Restless(nn.Module):
    """Does something else every second time."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.inner = nn.ReLU()
        self._what = what
        self._times: Callable[[], int] = iter(range(100)).__next__

    def forward(self, x: Tensor) -> Any:
        turn = self._times()
        y = self.inner(x)
        if turn and self._what == "modules":
            self.inner(x)
        return (y, y + 1) if turn and self._what == "outputs" else y


@pytest.mark.parametrize(
    ("what", "where", "said"),
    [
        ("outputs", "the outputs", "1 tensors were logged, the plain model returned 2"),
        ("modules", "the module calls", "2 were logged, plain hooks saw 3"),
    ],
)
def test_a_model_that_does_something_else_the_next_time_is_not_valid(what: str, where: str, said: str) -> None:
    report = tl.validate_forward_pass(Restless(what), torch.ones(2))
    assert not report
    assert (where, said) in [(one.where, one.what) for one in report.disagreements]
    assert "NOT VALID" in str(report)
    assert f"First disagreement: {report.disagreements[0]}" in str(report)


def test_a_module_call_outside_the_one_around_it_is_not_valid() -> None:
    history = tl.log_forward_pass(nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh()), torch.ones(2))
    call = history._log.modules[2]
    assert call.address == "0.0"
    call.end += 5
    model = nn.Sequential(nn.Sequential(nn.ReLU()), nn.Tanh())
    said = [str(one) for one in validate_against(history._run, model, ((torch.ones(2),), {})).disagreements]
    assert "0.0:1: it did not run inside 0:1" in said


def test_arguments_that_are_too_large_are_not_copied_to_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torcheer.replay.edges._LARGEST", 7)
    report = tl.validate_forward_pass(lambda x: (x + x).sum() * 2, torch.ones(4))
    edges = check_of(report, "changing an argument")
    assert report
    assert edges.exempt["too large to try"] == 2
    assert edges.count == 2  # of the sum and of the product


def test_a_value_of_nothing_that_is_shown_is_named_by_its_function() -> None:
    def program(x: Tensor) -> Tensor:
        torch.sin(torch.ones(2))
        return x + 1

    history = tl.log_forward_pass(program, torch.ones(2))
    (number,) = [record.number for record in history._log.operations if record.function.name == "sin"]
    history._log.values[number] = torch.zeros(2)
    (wrong,) = history.validate().disagreements
    assert wrong.where == f"sin (operation {number}, not connected to any output)"
    assert "2 of 2 values differ; at [0] 0.0 was logged" in wrong.what


def test_operations_on_a_device_are_timed_by_its_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is a millisecond after the one before it; the device is waited for once, at the end."""
    clock, waits = iter(range(1000)), []

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(clock)

        def elapsed_time(self, after: Event) -> float:
            return float(after.at - self.at)

    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: waits.append(1))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    history = tl.log_forward_pass(lambda x: x.sin() * 2, torch.ones(2), time_on_device=True)
    assert len(waits) == 1
    assert [history[key].func_time_elapsed for key in ("sin_1", "mul_1")] == [1e-3, 1e-3]


class Looking(nn.Module):
    """Reads a value of a part of itself before it runs."""

    def __init__(self, is_deep: bool) -> None:
        super().__init__()
        self.is_deep = is_deep
        self.part = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Tanh())

    def forward(self, t: Tensor) -> Tensor:
        seen: Tensor = tl.activation(self.part, t, "1.0" if self.is_deep else "0")
        return self.part(t) + seen


@pytest.mark.parametrize("is_deep", [True, False])
def test_a_forward_that_reads_an_activation_is_logged_and_proved(is_deep: bool) -> None:
    model, t = Looking(is_deep), torch.ones(1, 2)
    report = tl.validate_forward_pass(model, t)
    assert report, report
    history = tl.log_forward_pass(model, t)
    assert history["add"].containing_module is None
    calls = [(call.address, call.call, call.outer.address if call.outer is not None else None) for call in history._log.modules]
    assert [one for one in calls if one[0] == "part"] == [("part", 1, ""), ("part", 2, "")]
    assert all(call.end >= call.first and call.exit for call in history._log.modules)


class Interrupted(BaseException):
    """Passes torch's `except Exception`, so that no hook of a module sees the end of its call."""


class Interrupting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, t: Tensor) -> Tensor:
        raise Interrupted(self.linear(t))


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Interrupting()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, t: Tensor) -> Tensor:
        result: Tensor = self.inner(t) * self.weight
        return result


class Catching(nn.Module):
    """Catches what a part of it raised, two calls further in, and goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Between()
        self.last = nn.Linear(2, 2)

    def forward(self, t: Tensor) -> Tensor:
        with suppress(Interrupted):
            self.part(t)
        seen: Tensor = self.last(t + 1)
        return seen * 2


class InsideItself(nn.Module):
    """Calls itself, and catches what the innermost call raises: all have the same code and the same instructions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, t: Tensor, depth: int = 0) -> Tensor:
        if depth == 2:
            raise Interrupted
        below: Tensor = self.linear(t)
        with suppress(Interrupted):
            below = self(below, depth + 1)
        return below.sin()


def test_what_runs_after_a_caught_interrupt_is_inside_the_module_that_caught_it() -> None:
    model, t = Catching(), torch.ones(1, 2)
    history = tl.log_forward_pass(model, t)
    assert [one.containing_module for one in history.operations[1:-1]] == ["part.inner.linear", None, "last", None]
    calls = {call.address: call for call in history._log.modules}
    last = calls["last"]
    assert last.outer is calls[""]
    assert (calls["part"].first, calls["part"].end) == (1, 2)
    assert tl.validate_forward_pass(model, t)

    history = tl.log_forward_pass(lambda t: (suppressed(model.part, t), t + 1)[1], t)
    assert history["add"].containing_module is None


def suppressed(function: Callable[[Tensor], Tensor], t: Tensor) -> None:
    with suppress(Interrupted):
        function(t)


def test_a_module_that_catches_an_interrupt_of_itself_has_calls_that_end() -> None:
    model, t = InsideItself(), torch.ones(1, 2)
    history = tl.log_forward_pass(model, t)
    own = [call for call in history._log.modules if call.address == ""]
    ran_in = [history._log.operations[number].module for number in range(1, 5)]
    assert [call.outer for call in own] == [None, own[0], own[1]]
    assert [one is not None and one.number for one in ran_in[2:]] == [own[1].number, own[0].number]  # the two sines
    assert all(call.exit and call.end >= call.first for call in history._log.modules)
    assert tl.validate_forward_pass(model, t)


def test_a_proof_sees_the_modules_around_a_part_that_raised() -> None:
    """After a part raised, the outputs of those around it are compared still."""
    model, t = Catching(), torch.ones(1, 2)
    history = tl.log_forward_pass(model, t)
    next(call for call in history._log.modules if call.address == "").outputs = (0,)
    said = [str(one) for one in validate_against(history._run, model, ((t,), {})).disagreements]
    assert len(said) == 1, said
    assert "output 0" in said[0], said
