"""What cannot be logged as it was meant, and says so: deep nesting, `vmap`, models that did not run, logs of nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

import torcheer
from models import made_of
from torch_vis import track_computational_graph_execution
from torcheer import EmptyLogWarning, InvalidArgument, UnseenWorkWarning

x = torch.ones(1, 2)


class Nest(nn.Module):
    """Modules inside each other."""

    def __init__(self, depth):
        super().__init__()
        self.inner = Nest(depth - 1) if depth else nn.Linear(2, 2)

    def forward(self, t):
        return self.inner(t)


def test_modules_may_nest_as_deeply_as_the_plain_model_may():
    """A watched module call takes a call more than a plain one; Python's limit is as it was afterwards."""
    model, limit = Nest(200), sys.getrecursionlimit()
    expected = model(x)
    history = torcheer.log_forward_pass(model, x)
    assert torch.equal(history.outputs[0].tensor_contents, expected)
    assert history.modules[".".join(["inner"] * 200)].class_name == "Nest"
    assert sys.getrecursionlimit() == limit
    assert torcheer.validate_forward_pass(model, x)
    with torcheer.recording(model):
        model(x)
    track_computational_graph_execution(model, x)
    track_computational_graph_execution(model, x, track_tensor_ops=False)
    assert sys.getrecursionlimit() == limit
    assert str(history)
    assert str(history.modules)
    assert len(history.graph.nodes) == 3
    assert history.summary()


def test_a_model_that_calls_itself_for_ever_still_raises():
    limit = sys.getrecursionlimit()
    with pytest.raises(RecursionError):
        torcheer.log_forward_pass(made_of(lambda self, t: self(t + 1)), x)
    assert sys.getrecursionlimit() == limit


def test_the_limit_of_recursion_is_put_back_by_the_last_of_several_threads_and_stays_where_it_was_set():
    limit = sys.getrecursionlimit()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with torcheer.recording():
            inside.set()
            leave.wait(300)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(300)
    torcheer.log_forward_pass(Nest(3), x)
    leave.set()
    thread.join()
    assert sys.getrecursionlimit() == limit
    try:
        with torcheer.recording():
            sys.setrecursionlimit(5_000)
        assert sys.getrecursionlimit() == 5_000
    finally:
        sys.setrecursionlimit(limit)


def test_a_recording_inside_vmap_is_refused_and_shows_the_right_call():
    """There a kept tensor would be the whole batch, with a dimension too many."""
    model = nn.Linear(2, 3)
    inside = lambda row: torcheer.log_forward_pass(model, row).outputs[0].tensor_contents
    with pytest.raises(InvalidArgument, match=r"log_forward_pass\(torch\.vmap\(model\), inputs\)"):
        torch.vmap(inside)(torch.ones(4, 2))
    with pytest.raises(InvalidArgument, match=r"inside torch\.vmap"):
        torch.func.jacfwd(inside)(torch.ones(2))

    def recorded(row):
        with torcheer.recording(model):
            return model(row)

    with pytest.raises(InvalidArgument, match=r"inside torch\.vmap"):
        torch.vmap(recorded)(torch.ones(4, 2))
    batch = torch.rand(4, 2)
    right = torcheer.log_forward_pass(torch.vmap(model), batch)
    assert torch.equal(right.outputs[0].tensor_contents, torch.vmap(model)(batch))
    torch.func.grad(lambda t: torcheer.log_forward_pass(model, t) and t.sum())(torch.ones(2))  # has the shapes it has outside


class Stepwise(nn.Module):
    def forward(self, t):
        for _ in range(3):
            t = t + 1
            yield t


class Waiting(nn.Module):
    async def forward(self, t):
        return t + 1


class WaitingStepwise(nn.Module):
    async def forward(self, t):
        yield t + 1


class Mapped(nn.Module):
    def forward(self, t):
        return {"rows": map(torch.sin, [t])}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (Stepwise, r"returned a generator.*all of its work.*outputs = list\(model\(x\)\)"),
        (Waiting, r"returned a coroutine.*asyncio\.run\(model\(x\)\)"),
        (WaitingStepwise, r"returned a async_generator.*asyncio\.run\(use"),
        (Mapped, r"returned a map"),
    ],
)
def test_a_model_that_did_not_run_is_refused(make, message):
    for entry in (torcheer.log_forward_pass, torcheer.validate_forward_pass):
        with pytest.raises(InvalidArgument, match=message):
            entry(make(), x)


def test_the_call_that_the_error_shows_works():
    with torcheer.recording(Stepwise()) as history:
        outputs = list(Stepwise()(x))
    assert [layer.layer_type for layer in history if layer.layer_type == "add"]
    assert len(outputs) == 3
    with torcheer.recording() as history:
        output = asyncio.run(Waiting()(x))
    assert "add" in {layer.layer_type for layer in history}
    assert torch.equal(output, x + 1)


def test_a_part_that_did_not_run_is_told():
    def forward(self, t):
        t = t * 2
        return t, (row + 1 for row in t)

    with pytest.warns(UnseenWorkWarning, match="some of its work is missing"):
        history = torcheer.log_forward_pass(made_of(forward), x)
    assert "some of its work is missing" in str(history)


def test_a_log_of_nothing_says_so_and_proves_nothing():
    with pytest.warns(EmptyLogWarning, match="this log is empty"):
        history = torcheer.log_forward_pass(lambda n: n + 1, 3)
    assert "this log is empty" in str(history)
    with pytest.warns(EmptyLogWarning, match="this log is empty"):
        report = torcheer.validate_forward_pass(lambda n: n + 1, 3)
    assert "nothing to prove, the log is empty" in str(report)
    assert report.num_checked == 0


def test_a_recording_inside_compiled_code_is_refused_and_the_advice_works():
    torch._dynamo.reset()  # what it knows of functions from other tests
    model, given = nn.Linear(2, 3), torch.rand(4, 2)

    def logs(t):
        return torcheer.log_forward_pass(model, t)["output"].tensor_contents

    def records(t):
        with torcheer.recording(model):
            return model(t)

    def watches(t):
        with torcheer.watch_modules(model):
            return model(t)

    for function in (logs, records, watches):
        with pytest.raises(InvalidArgument, match=r"torch\.compile"):
            torch.compile(function, backend="eager")(given)
    apart = torch.compiler.disable(logs)
    assert torch.equal(torch.compile(lambda t: apart(t) * 2, backend="eager")(given), model(given) * 2)
    compiled = torch.compile(lambda t: model(t) * 2, backend="eager")
    assert torch.equal(torcheer.log_forward_pass(compiled, given)["output"].tensor_contents, model(given) * 2)
    torcheer.log_forward_pass(model, given)


def test_a_model_that_loads_the_compiler_is_logged_at_once():
    code = """
import torch, torcheer
model = lambda t: torch.cond(t.sum() > 0, lambda u: u.sin(), lambda u: u.cos(), (t,))
for _ in range(2):
    print(torch.equal(torcheer.log_forward_pass(model, torch.ones(3))["output"].activation, torch.ones(3).sin()))
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
