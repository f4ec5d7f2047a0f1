"""Recordings nest, run in several threads, can be watched while they grow, and say what they could not see."""

from __future__ import annotations

import copy
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp, labels, log, made_of, made_with
from torcheer import InvalidArgument, UnseenWorkWarning

x = torch.rand(3, 4)


def test_a_recording_logs_a_training_step():
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = copy.deepcopy(model)
    with torcheer.recording(model) as history:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    assert labels(history)[:6] == ["linear_1", "relu_1", "linear_2", "tanh_1", "square_1", "mean_1"]
    assert history["fc1"].label == "linear_1_1"
    assert "mean_1_6" in history["output_1"].parent_layers
    assert sum(one.layer_type == "add" for one in history.operations) == 4  # the four updated parameters
    plain = torch.optim.SGD(expected.parameters(), lr=0.1)
    expected(x).square().mean().backward()
    plain.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_gradients_read_after_backward_depend_on_the_loss():
    model = nn.Linear(4, 1)
    with torcheer.recording(model) as history:
        loss = model(x).sum()
        loss.backward()
        norm = model.weight.grad.norm()
    assert "sum_1_2" in history["grad_1"].parent_layers
    assert norm is not None


def test_a_recording_logs_several_models_under_their_names():
    first, second = Mlp(), nn.Sequential(nn.Linear(3, 2))
    with torcheer.recording(first, second) as history:
        second(first(x))
    assert history["Mlp.fc1"].label == "linear_1_1"
    assert history["Sequential.0"].label == "linear_3_5"


def test_models_not_named_are_roots_of_their_own():
    with torcheer.recording() as history:
        one, two = nn.Linear(4, 4), nn.Linear(4, 4)
        two(one(x))
    assert {"Linear", "Linear_2"} <= set(history.keys())
    assert [p.name for p in history["linear_2"].parent_params] == ["Linear_2.weight", "Linear_2.bias"]


def test_tensors_that_reach_a_recording_from_outside_are_inputs():
    with torcheer.recording() as history:
        out = x * 2 + torch.ones(4)
    assert [layer.label for layer in history] == ["input_1_0", "mul_1_1", "ones_1_2", "add_1_3", "output_1_4"]
    assert torch.equal(history["output"].tensor_contents, out)


def test_generate_is_logged_whole():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(7, 4)
            self.head = nn.Linear(4, 7)

        def generate(self, ids, steps):
            for _ in range(steps):
                ids = torch.cat([ids, self(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
            return ids

        def forward(self, ids):
            return self.head(self.embed(ids))

    model = Decoder()
    start = torch.tensor([[1]])
    history = torcheer.log_forward_pass(model.generate, (start, 3))
    assert history["head:3"].tensor_shape == (1, 3, 7)
    assert torch.equal(history["output"].tensor_contents, model.generate(start, 3))


def test_a_recording_is_used_once():
    used = torcheer.recording()
    with used:
        pass
    with pytest.raises(InvalidArgument, match="used already"), used:
        pass


def test_a_recording_that_raises_has_its_history_on_the_error():
    with pytest.raises(ZeroDivisionError) as caught, torcheer.recording() as history:
        x.relu()
        1 / 0
    assert caught.value.history is history
    assert labels(history) == ["relu_1"]


def test_a_history_can_be_looked_at_while_it_grows():
    model = Mlp()
    seen = []
    with torcheer.recording(model) as history:

        def look(module, args, output):
            seen.append((str(history), len(history), history[-1].label, history["linear_1"].tensor_contents.sum().item()))

        handle = model.act.register_forward_hook(look)
        out = model(x)
        handle.remove()
    text, count, last, _ = seen[0]
    assert "still running" in text
    assert (count, last) == (3, "relu_1_2")
    # what the hook itself computed is part of the block, printing is not
    assert labels(history) == ["linear_1", "relu_1", "sum_1", "linear_2", "tanh_1"]
    assert torch.equal(history["tanh_1"].tensor_contents, out)


def test_recordings_nest():
    model = Mlp()
    with torcheer.recording(model) as outer:
        y = model(x)
        inner = log(model, y[:, :1].expand(3, 4))
        z = y + 1
    assert labels(inner) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    names = labels(outer)
    assert names[:4] == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    assert names[-1] == "add_1"
    assert outer["linear_2"].num_passes == 2
    assert "detach" not in " ".join(names)
    assert torch.equal(outer["add_1"].tensor_contents, z)
    assert torch.equal(inner["output"].tensor_contents, model(y[:, :1].expand(3, 4)))


def test_a_recording_inside_a_hook_of_the_model_that_is_recorded():
    model = Mlp()
    inside = []
    model.act.register_forward_hook(lambda module, args, output: inside.append(log(model.fc1, x)) and None)
    history = log(model, x)
    assert labels(inside[0]) == ["linear_1"]
    assert torch.equal(history["output"].tensor_contents, torch.tanh(model.fc2(torch.relu(model.fc1(x)))))


def test_two_histories_share_nothing():
    model = Mlp()
    one, two = log(model, x), log(model, x)
    one.clear_activations()
    assert two["linear_1"].tensor_contents is not None
    assert one["linear_1"] != two["linear_1"]
    assert one["linear_1"] == one["linear_1_1"]


def test_recordings_run_in_several_threads_at_once():
    models = [Mlp() for _ in range(8)]
    inputs = [torch.rand(2, 4) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        histories = list(pool.map(lambda model, t: log(model, t, random_seed=None), models, inputs))
    for model, given, history in zip(models, inputs, histories, strict=True):
        assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
        assert torch.equal(history["output"].tensor_contents, model(given))
        assert history.notes == []


def test_recordings_that_overlap_leave_the_compiler_as_it_was():
    """Its stance is one for all threads; the recording that ends last did not begin first."""
    import torch._dynamo.eval_frame as compiler

    before = compiler._stance.stance
    first, second = torcheer.recording(), torcheer.recording()
    begun, ended = threading.Event(), threading.Event()

    def other() -> None:
        with second:
            begun.set()
            ended.wait(300)

    thread = threading.Thread(target=other)
    with first:
        thread.start()
        begun.wait(300)
        assert compiler._stance.stance == "force_eager"
    assert compiler._stance.stance == "force_eager"  # the other one still runs
    ended.set()
    thread.join()
    assert compiler._stance.stance == before == "default"


def threaded(self, t):
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(lambda module: module(t), (self.left, self.right))
    return left + right


def test_modules_on_other_threads_are_noticed_once():
    model = made_of(threaded, left=nn.Linear(4, 4), right=nn.Linear(4, 4))
    with pytest.warns(UnseenWorkWarning, match="another thread") as caught:
        history = log(model, x)
    assert len(caught) == 1
    assert len(history.notes) == 1
    assert "Note:" in str(history)
    assert torch.equal(history["output"].tensor_contents, model(x))


def test_functions_on_other_threads_are_noticed_when_their_result_arrives():
    def model(t):
        box = []
        thread = threading.Thread(target=lambda: box.append(t.sin()))
        thread.start()
        thread.join()
        return box[0] + 1

    with pytest.warns(UnseenWorkWarning, match="other threads"), torch.no_grad():
        history = log(model, x)
    assert labels(history) == ["source_1", "add_1"]


def test_threads_that_have_nothing_to_do_with_the_model_are_no_news():
    stop = threading.Event()
    worker = threading.Thread(target=lambda: [nn.Linear(2, 2)(torch.rand(1, 2)) for _ in iter(stop.is_set, True)])
    worker.start()
    try:
        assert log(Mlp(), x).notes == []
    finally:
        stop.set()
        worker.join()


@made_with(body=lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(5, 2)))
def Broken(self, t):
    return self.body(t)  # where it happens


def test_an_error_says_in_which_operation_module_and_line():
    with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
        log(Broken(), x)
    (note,) = caught.value.__notes__
    assert "'linear'" in note
    assert "(3, 3)" in note
    assert "'body.1'" in note
    assert "where it happens" in note
    history = caught.value.history
    assert history.failure.function.name == "linear"
    assert labels(history) == ["linear_1"]
    assert torch.equal(history["linear_1"].tensor_contents, Broken().body[0](x)) is False  # another model's weights
    assert "Failed: operation 'linear'" in str(history)


def test_an_error_the_model_catches_is_not_a_failure():
    def model(t):
        try:
            t @ t
        except RuntimeError:
            pass
        return t + 1

    history = log(model, x)
    assert history.failure is None
    assert history.is_complete


def test_an_error_the_model_catches_leaves_the_module_stack_right():
    inner = Broken()

    def forward(self, t):
        try:
            self.inner(t)
        except RuntimeError:
            pass
        return self.last(t)

    history = log(made_of(forward, inner=inner, last=nn.ReLU()), x, keep_orphans=True)
    assert history["relu_1"].containing_modules == ["last:1"]


def test_an_error_outside_any_operation_is_the_users_own():
    def model(t):
        t.relu()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        log(model, x)
    assert caught.value.history.failure is None


def test_the_garbage_collector_is_as_before():
    before = gc.get_threshold()
    seen = []
    log(lambda t: seen.append(gc.get_threshold()) or t + 1, x)
    assert seen[0] > before
    assert gc.get_threshold() == before
    one, two = torcheer.recording(), torcheer.recording()
    one.__enter__()
    two.__enter__()
    two.__exit__(None, None, None)
    assert gc.get_threshold() > before
    one.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_collector_the_user_set_inside_is_the_users_own():
    before = gc.get_threshold()
    try:
        with torcheer.recording():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.set_threshold(*before)
