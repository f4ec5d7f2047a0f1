"""Signals that come between any two lines leave nothing behind, and none is lost; `make interrupts` tries every line."""

from __future__ import annotations

import gc
import signal
import sys
import threading

import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import interrupts
import torcheer
from torcheer import _cleanup
from torcheer._cleanup import Managed, held_signals, undoing

SAMPLE = 20  # lines of each case, without those that are tried in full


@pytest.fixture(autouse=True)
def _signals_as_found():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reaching = torch._C.DisableTorchFunction()
    with reaching:
        pass
    yield
    reaching.__exit__(
        None, None, None
    )  # where a test failed, torch's functions reach modes again, so that later tests do not fail too
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", interrupts.CASES)
def test_an_interrupt_at_any_line_leaves_nothing_behind(name):
    case = interrupts.CASES[name]
    lines = interrupts.lines_of(case)
    step = max(lines // SAMPLE, 1)
    wrong = [found for at in range(1 + len(name) * 7 % step, lines, step) if (found := interrupts.interrupted(case, at))]
    assert not wrong


class TimeLimit(Exception):
    """As libraries raise it that limit the time of a call: no `KeyboardInterrupt`, and any `except Exception` catches it."""


class Limit:
    def __call__(self, *given):
        raise TimeLimit


EXITS = ["log", "tap", "record"]
LIMITED = ["log", "log_with_gradients", "validate", "activation", "extract", "replay", "compare", "log_backward"]


@pytest.mark.parametrize(
    ("name", "handler", "error", "first"),
    [
        *((name, lambda number, frame: sys.exit(3), SystemExit, 1) for name in EXITS),
        *((name, Limit(), TimeLimit, 2) for name in LIMITED),
    ],
)
def test_so_does_what_the_handler_of_another_signal_raises(name, handler, error, first):
    """Also a time limit whose error is an `Exception`."""
    signal.signal(signal.SIGTERM, handler)
    case = interrupts.CASES[name]
    lines = interrupts.lines_of(case)
    at_lines = range(first, lines, max(lines // SAMPLE, 1))
    assert not [found for at in at_lines if (found := interrupts.interrupted(case, at, signal.SIGTERM, error))]


@pytest.mark.parametrize(
    ("name", "file"),
    [("log", "/_torch/tensor_table.py"), ("log", "/log/records.py"), ("step", "/training_step.py"), ("watch", "/live/")],
)
def test_so_does_an_interrupt_at_any_line_of_a_file(name, file):
    case = interrupts.CASES[name]
    lines = interrupts.lines_of(case, file)
    assert lines > 10
    assert not [found for at in range(1, lines + 1) if (found := interrupts.interrupted(case, at, file=file))]


def test_the_error_of_a_model_is_told_from_that_of_a_signal():
    def fails(number, frame=None):
        raise ValueError(number)

    def limited(number, frame):
        raise TimeLimit

    def error_of(run):
        try:
            run()
        except Exception as error:
            return error

    assert not _cleanup.is_interrupt(error_of(lambda: fails(1)))
    assert not _cleanup.is_interrupt(error_of(lambda: fails(1, "frame")))
    assert _cleanup.is_interrupt(KeyboardInterrupt())
    for handler in (limited, Limit()):
        signal.signal(signal.SIGTERM, handler)
        assert _cleanup.is_interrupt(error_of(lambda: signal.raise_signal(signal.SIGTERM)))


class Steps(Managed[list[str]]):
    def __init__(self) -> None:
        self.done: list[str] = []

    def _begin(self) -> list[str]:
        self.done.append("begin")
        return self.done

    def _end(self, *error: object) -> None:
        self.done.append("end")


def lines_of_a_block():
    steps = Steps()
    with interrupts.AtLine(-1) as tracer, steps:
        pass
    return tracer.count


def test_an_interrupt_at_every_line_of_a_block_ends_it_once():
    lines = lines_of_a_block()
    assert lines > 30
    for at in range(1, lines + 1):
        steps = Steps()
        with pytest.raises(KeyboardInterrupt), interrupts.AtLine(at), steps:
            pass
        assert steps.done in ([], ["begin", "end"]), at
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_block_that_is_only_looked_at_goes_on():
    steps = Steps()
    with steps as done:
        assert hasattr(steps, "__exit__")
        gc.collect()
        assert done == ["begin"]
    assert done == ["begin", "end"]
    assert steps.__exit__(None, None, None) is None
    assert done == ["begin", "end"]


def test_what_is_to_be_undone_is_undone_where_one_part_raises():
    done: list[int] = []
    with pytest.raises(ZeroDivisionError), undoing() as undo:
        undo.callback(done.append, 1)
        undo.callback(lambda: 1 / 0)
        undo.callback(done.append, 2)
    assert done == [2, 1]


def test_a_signal_that_is_held_comes_when_the_block_is_over():
    reached = []
    with pytest.raises(KeyboardInterrupt), held_signals():
        signal.raise_signal(signal.SIGINT)
        reached.append("the end of the block")
    assert reached == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_every_handler_that_was_held_runs_whatever_the_others_raise():
    came = []

    def raises(number, frame):
        came.append(number)
        raise TimeoutError(number)

    signal.signal(signal.SIGINT, raises)
    signal.signal(signal.SIGTERM, raises)
    with pytest.raises(TimeoutError), held_signals(), held_signals():
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert came == []
    assert sorted(came) == [signal.SIGINT, signal.SIGTERM]


def test_a_handler_that_is_replaced_in_the_block_stays():
    def mine(number, frame):
        """Nothing."""

    with held_signals():
        signal.signal(signal.SIGINT, mine)
    assert signal.getsignal(signal.SIGINT) is mine


def test_a_signal_that_was_ignored_stays_so():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_signals():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_what_takes_too_long_can_be_interrupted(monkeypatch):
    monkeypatch.setattr(_cleanup, "LONGEST", 0.0)
    reached = []
    with pytest.raises(KeyboardInterrupt), held_signals():
        signal.raise_signal(signal.SIGINT)
        reached.append("the next line")
    assert reached == []


def test_other_threads_hold_nothing_back_and_log_as_well():
    found = []

    def work():
        with held_signals():
            found.append(signal.getsignal(signal.SIGINT))
        found.append(torcheer.log_forward_pass(nn.ReLU(), torch.ones(2)).num_operations)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    assert found == [signal.default_int_handler, 3]


def test_no_signal_is_held_back_while_the_model_runs():
    class Interrupting(nn.Module):
        def forward(self, x):
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    model = Interrupting()
    x = torch.ones(2)

    def recorded():
        with torcheer.recording():
            model(x)

    def tapped():
        with torcheer.tap(model, [""]):
            model(x)

    def watched():
        with torcheer.watch_modules(model):
            model(x)

    for call in (
        lambda: torcheer.log_forward_pass(model, x),
        lambda: torcheer.validate_forward_pass(model, x),
        lambda: torcheer.activation(model, x, ""),
        recorded,
        tapped,
        watched,
    ):
        with pytest.raises(KeyboardInterrupt):
            call()
        assert _get_current_function_mode_stack() == []


def test_a_recording_goes_on_where_the_program_caught_an_interrupt_inside_an_operation():
    """What was being written down is cut, so that later operations have their own values."""

    def interrupted_at(at):
        with torcheer.recording() as history:
            y = torch.ones(3) * 2
            try:
                with interrupts.AtLine(at) as tracer:
                    y.exp()
            except KeyboardInterrupt:
                pass
            z = y.sin()
            z.cos()
        return history, tracer.count

    _, lines = interrupted_at(-1)
    expected = torch.full((3,), 2.0).sin()
    for at in range(1, lines + 1):
        history, _ = interrupted_at(at)
        assert torch.equal(history["sin_1"].activation, expected), at
        assert torch.equal(history["cos_1"].activation, expected.cos()), at
        assert history["cos_1"].parent_layers == [history["sin_1"].label], at
