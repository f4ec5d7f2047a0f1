"""Recordings that overlap, and models that several threads use at once."""

from __future__ import annotations

import asyncio
import copy
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import _get_current_function_mode_stack

import torcheer
from models import labels
from torcheer import ModelInUse, RecordingsOverlap
from torcheer._torch import randomness
from torcheer.replay import edges

x = torch.rand(3, 4)


def steps(history):
    return [one.layer_type for one in history.operations if one.layer_type not in ("input", "output")]


def test_recordings_that_end_in_the_order_they_began_hold_what_ran_while_they_did():
    first, second = torcheer.recording(), torcheer.recording()
    one = first.__enter__()
    y = x + 1
    two = second.__enter__()
    y = y * 2
    first.__exit__(None, None, None)
    y = y.tanh()
    second.__exit__(None, None, None)
    y = y.sigmoid()
    assert steps(one) == ["add", "mul"]
    assert steps(two) == ["mul", "tanh"]
    assert torch.equal(one["mul_1"].activation, (x + 1) * 2)
    assert torch.equal(two["tanh_1"].activation, ((x + 1) * 2).tanh())
    assert _get_current_function_mode_stack() == []


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, t):
        self.count += 1
        return t * self.count


def test_a_recording_knows_that_a_log_inside_it_puts_back_what_its_pass_wrote():
    model = Counting()
    with torcheer.recording(model) as history:
        first = model(x)
        torcheer.log_forward_pass(model, x)
        torcheer.activation(model, x, "")
        second = model(x)
    assert torch.equal(model.count, torch.tensor(2.0))
    assert [one.inputs[1].item() for one in history.operations if one.layer_type == "mul"] == [1, 2, 2, 2]
    assert torch.equal(second, x * 2)
    assert history.validate(), history.validate().first_disagreement
    for operation in history.operations:
        assert operation.activation is not None  # none counts as overwritten
    assert torch.equal(first, x)


def test_a_model_that_logs_a_part_of_itself_is_logged_and_proved():
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Counting()

        def forward(self, t):
            return self.part(t) + len(torcheer.log_forward_pass(self.part, t).operations) + self.part(t)

    model = Watched()
    history = torcheer.log_forward_pass(model, x, keep_orphans=True)
    counts = [one.activation.item() for one in history.operations if one.layer_type == "add" and one.shape == ()]
    assert counts == [1, 2, 2]
    assert torcheer.validate_forward_pass(model, x)
    assert torch.equal(model.part.count, torch.tensor(0.0))
    assert torch.equal(history["output"].activation, model(x))


def test_recordings_in_generators_that_take_turns_work():
    def recorded(before, after):
        with torcheer.recording() as history:
            before(x)
            yield
            after(x)
        yield history

    first, second = recorded(torch.exp, torch.sin), recorded(torch.tan, torch.cos)
    next(first), next(second)
    one, two = next(first), next(second)
    assert steps(one) == ["exp", "tan", "sin"]
    assert steps(two) == ["tan", "sin", "cos"]
    assert _get_current_function_mode_stack() == []


def test_recordings_in_generators_that_are_closed_leave_the_others_watching():
    def recorded(histories):
        with torcheer.recording() as history:
            histories.append(history)
            yield

    for order in (0, 1), (1, 0):
        histories = []
        generators = [recorded(histories), recorded(histories)]
        next(generators[0]), next(generators[1])
        generators[order[0]].close()
        torch.sin(x)
        generators[order[1]].close()
        assert _get_current_function_mode_stack() == []
        assert [steps(histories[number]) for number in order] == [[], ["sin"]]


def test_a_task_that_is_cancelled_leaves_the_recording_of_another_watching():
    linear = nn.Linear(4, 4)

    async def tapped():
        with torcheer.tap(linear, [""]):
            await asyncio.sleep(60)

    async def recorded():
        with torcheer.recording() as history:
            torch.sin(x)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            torch.cos(x)
        return history

    async def both():
        first = asyncio.create_task(tapped())
        await asyncio.sleep(0)
        second = asyncio.create_task(recorded())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert steps(asyncio.run(both())) == ["sin", "cos"]
    assert _get_current_function_mode_stack() == []


def test_an_interrupt_that_ends_one_of_two_recordings_leaves_the_other_watching():
    outer, inner = torcheer.recording(), torcheer.recording()
    outer.__enter__()
    history = inner.__enter__()
    outer.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    torch.sin(x)
    inner.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert steps(history) == ["sin"]
    assert _get_current_function_mode_stack() == []


def test_a_recording_that_overlaps_one_of_another_task_is_refused_and_the_other_goes_on():
    async def recorded(wait):
        with torcheer.recording() as history:
            y = x + 1
            await asyncio.sleep(wait)
            y * 2
        return history

    async def both():
        return await asyncio.gather(recorded(0.01), recorded(0), return_exceptions=True)

    first, second = asyncio.run(both())
    assert steps(first) == ["add", "mul"]
    assert isinstance(second, RecordingsOverlap)
    assert "asyncio.Lock" in str(second)
    assert _get_current_function_mode_stack() == []


def test_tasks_that_take_turns_record_also_inside_a_recording_around_them():
    async def recorded(lock):
        async with lock:
            with torcheer.recording() as history:
                y = x + 1
                await asyncio.sleep(0)
                y * 2
        return history

    async def both():
        lock = asyncio.Lock()
        with torcheer.recording() as around:
            inner = await asyncio.gather(recorded(lock), recorded(lock))
        return around, *inner

    around, first, second = asyncio.run(both())
    assert steps(first) == steps(second) == ["add", "mul"]
    assert steps(around) == ["add", "mul"] * 2


def test_taps_of_tasks_and_blocks_that_end_in_any_order_work():
    one, two = nn.Sequential(nn.Linear(4, 2), nn.ReLU()), nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    first, second = torcheer.tap(one, ["0"]), torcheer.intervene(two, {"0": torcheer.changes.zero()})
    first.__enter__(), second.__enter__()
    one(x), two(x)
    first.__exit__(None, None, None)
    assert torch.equal(two(x), torch.zeros(3, 3))
    second.__exit__(None, None, None)
    assert torch.equal(first["0"], one[0](x))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in (*one.modules(), *two.modules()))


class Waiting(nn.Module):
    """Stops in its forward until it is told to go on."""

    def __init__(self):
        super().__init__()
        self.inner = nn.BatchNorm1d(4)
        self.is_there, self.may_go = threading.Event(), threading.Event()

    def __deepcopy__(self, memo):
        return Waiting()

    def forward(self, t):
        self.is_there.set()
        assert self.may_go.wait(300)
        return self.inner(t)


USES = {
    "log_forward_pass": lambda model: torcheer.log_forward_pass(model, x),
    "validate_forward_pass": lambda model: torcheer.validate_forward_pass(model, x),
    "tap": lambda model: torcheer.tap(model, ["inner"]).__enter__(),
    "intervene": lambda model: torcheer.intervene(model, {"inner": torcheer.changes.zero()}).__enter__(),
    "activation": lambda model: torcheer.activation(model, x, "inner"),
    "log_forward_pass of a part": lambda model: torcheer.log_forward_pass(model.inner, x),
}


@pytest.mark.parametrize("use", USES)
def test_a_model_that_another_thread_logs_is_refused_by_name(use):
    model = Waiting()
    before = copy.deepcopy(model.inner.state_dict())
    with ThreadPoolExecutor(1, "worker") as pool:
        logged = pool.submit(torcheer.log_forward_pass, model, x)
        try:
            assert model.is_there.wait(300)
            with pytest.raises(ModelInUse, match=r"'worker_0' uses this model.*'MainThread'.*copy.deepcopy"):
                USES[use](model)
        finally:
            model.may_go.set()
        assert labels(logged.result(300)) == ["batchnorm_1"]
    assert all(torch.equal(value, before[name]) for name, value in model.inner.state_dict().items())
    assert not {**model._forward_hooks, **model._forward_pre_hooks}
    torcheer.log_forward_pass(model, x)


def test_different_models_are_logged_in_several_threads_at_once():
    models = [nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()) for _ in range(4)]
    before = [copy.deepcopy(model.state_dict()) for model in models]

    def logged(model):
        return [torcheer.log_forward_pass(model, x) for _ in range(10)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(logged, models))
    finally:
        sys.setswitchinterval(interval)
    for model, state, histories in zip(models, before, found, strict=True):
        expected = copy.deepcopy(model)(x)
        assert all(torch.equal(history["output"].tensor_contents, expected) for history in histories)
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("times", [1, 1000])
def test_threads_that_start_or_end_while_a_log_looks_for_them_do_not_stop_it(monkeypatch, times):
    class Changing(list):
        """A set of threads that changes `times` times while somebody reads it."""

        left = times

        def __iter__(self):
            if self.left:
                self.left -= 1
                raise RuntimeError("Set changed size during iteration")
            return super().__iter__()

    monkeypatch.setattr(threading, "_dangling", Changing())
    assert labels(torcheer.log_forward_pass(nn.Tanh(), x)) == ["tanh_1"]


class Training(threading.Thread):
    """Draws all the time, from every generator."""

    def __init__(self):
        super().__init__(daemon=True)
        self.is_over = False
        self.torch, self.python, self.numpy = [], [], []

    def run(self):
        while not self.is_over and len(self.torch) < 100_000:
            self.torch.append(torch.rand(()).item())
            self.python.append(random.random())
            self.numpy.append(float(np.random.rand()))

    def __enter__(self):
        self.start()
        while len(self.torch) < 3:
            pass
        return self

    def __exit__(self, *error):
        self.is_over = True
        self.join(300)


@pytest.mark.parametrize("call", ["log_forward_pass", "validate_forward_pass", "activation"])
def test_a_thread_that_trains_never_draws_the_same_numbers_again(call):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Dropout(0.5)).eval()
    with Training() as training:
        for _ in range(5):
            if call == "activation":
                torcheer.activation(model, x, "1")
            else:
                getattr(torcheer, call)(model, x)
    for drawn in (training.python, training.numpy):
        assert len(set(drawn)) == len(drawn)
    pairs = list(zip(training.torch, training.torch[1:], strict=False))  # single numbers of 24 bits come again by chance
    assert len(set(pairs)) == len(pairs)


def test_a_proof_of_a_pass_that_draws_nothing_takes_no_draws_of_others_back(monkeypatch):
    model = nn.Sequential(nn.Dropout(0.5), nn.RReLU()).eval()
    drawn = []

    def call_again(*call):
        drawn.append(torch.rand(4).tolist())  # as a training in another thread may at any moment
        return edges_call(*call)

    edges_call = edges.call_again
    monkeypatch.setattr(edges, "call_again", call_again)
    monkeypatch.setattr(randomness, "_are_others_busy", lambda: True)
    assert torcheer.validate_forward_pass(model, x)
    assert len(drawn) > 2
    assert len(set(map(tuple, drawn))) == len(drawn)


def test_what_a_pass_drew_is_put_back_where_other_threads_only_wait():
    def model(t):
        torch.manual_seed(random.randrange(1000))
        return torch.rand(3, 4) + t + float(np.random.rand())

    event = threading.Event()
    waiting = threading.Thread(target=event.wait, args=(60,))
    waiting.start()
    try:
        before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
        torcheer.log_forward_pass(model, x)
        after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    finally:
        event.set()
        waiting.join(300)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_what_a_pass_drew_is_put_back_while_the_compiler_waits_for_its_workers():
    code = """
import os, sys, threading, time, torch, torcheer
from torch._inductor.compile_worker import subproc_pool

reading, writing = os.pipe()
pipe = os.fdopen(reading, "rb")

def read_messages():
    try:
        subproc_pool._recv_msg(pipe)
    except Exception:
        pass  # the pipe was closed

waiting = threading.Thread(target=read_messages)
waiting.start()
deadline = time.monotonic() + 300
while sys._current_frames()[waiting.ident].f_code.co_name != "_recv_msg" and time.monotonic() < deadline:
    time.sleep(0.01)
before = torch.get_rng_state()
torcheer.log_forward_pass(lambda x: x + torch.rand(3), torch.ones(3))
assert torch.equal(before, torch.get_rng_state())
torcheer.log_forward_pass(lambda x: x + torch.manual_seed(3).initial_seed(), torch.ones(3))
print(torch.equal(before, torch.get_rng_state()))
os.close(writing)
waiting.join(300)
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
