"""A backward pass after a log reads the state as the forward pass left it; plain torch is the oracle, bit for bit."""

import copy
import gc
import random
import threading
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import torcheer
from backward_programs import (
    MODELS,
    FillsCache,
    GivesOtherMemory,
    HooksResult,
    KeepsOnContext,
    Normalises,
    ReadsState,
    ReplacesBuffer,
    loss_of,
)
from models import autograd_function
from torcheer._torch import restore_state


def state_of(model):
    found = [*model.parameters(), *model.buffers()]
    attributes = [
        {name: list(value) if isinstance(value, list) else value for name, value in vars(one).items() if name != "options"}
        for one in model.modules()
        if not isinstance(one, torch.jit.ScriptModule)
    ]
    return [tensor.detach().clone() for tensor in found], [tensor._version for tensor in found], attributes


def same_state(one, two):
    return all(map(torch.equal, one[0], two[0])) and one[1:] == two[1:]


def gradients_of(model, given):
    return [None if one.grad is None else one.grad.clone() for one in (*model.parameters(), given)]


def assert_same(one, two):
    assert [gradient is None for gradient in one] == [gradient is None for gradient in two]
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True) if a is not None)


def raised_by(action, times):
    """What an action raises when it is done several times: a graph may be one that cannot be used twice."""
    try:
        for _ in range(times):
            action()
    except RuntimeError as error:
        return str(error)


def model_and_twin(make):
    torch.manual_seed(0)
    model, given = make(), torch.rand(3, 4).requires_grad_()
    if any(isinstance(one, torch.jit.ScriptModule) for one in model.modules()):
        for _ in range(4):  # TorchScript computes otherwise once it knows what it is given
            model(given)
    return model, given, copy.deepcopy(model), given.detach().clone().requires_grad_()


@pytest.mark.parametrize("by_history", [True, False], ids=["log_backward", "backward"])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_gradients_are_those_of_the_plain_model(make, times, by_history):
    model, given, twin, twin_given = model_and_twin(make)
    torch.manual_seed(1)
    plain = loss_of(twin(twin_given))
    expected = raised_by(lambda: plain.backward(retain_graph=times > 1), times)
    torch.manual_seed(1)
    before, random = state_of(model), torch.get_rng_state()
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    assert same_state(state_of(model), before)
    loss = loss_of([output.tensor_contents for output in history.outputs])
    backward = partial(history.log_backward, loss) if by_history else loss.backward
    assert raised_by(lambda: backward(retain_graph=times > 1), times) == expected
    assert_same(gradients_of(model, given), gradients_of(twin, twin_given))
    assert same_state(state_of(model), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert not history.notes


def test_a_gradient_of_a_gradient_is_that_of_the_plain_model():
    model, given, twin, twin_given = model_and_twin(KeepsOnContext)

    def two(model, loss):
        (one,) = torch.autograd.grad(loss, model.fc.weight, create_graph=True)
        return one, torch.autograd.grad(one.square().sum(), model.fc.weight)[0]

    before, plain = state_of(model), two(twin, loss_of(twin(twin_given)))
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    assert_same(two(model, loss_of([one.tensor_contents for one in history.outputs])), plain)
    assert same_state(state_of(model), before)


@pytest.mark.parametrize("by_history", [True, False], ids=["log_backward", "backward"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_that_raises_leaves_everything_as_it_was(reentrant, by_history):
    def failing_backward(ctx, gradient):
        raise ValueError("failed")

    Failing = autograd_function("Failing", lambda ctx, t: t * 1, failing_backward)

    class Fails(ReadsState):
        def forward(self, t):
            return super().forward(Failing.apply(self.fc(t)))

    model, given, _, _ = model_and_twin(lambda: Fails(reentrant))
    before = state_of(model)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    loss = history.outputs[0].tensor_contents.sum()
    with pytest.raises(ValueError, match="failed"):
        history.log_backward(loss) if by_history else loss.backward()
    assert same_state(state_of(model), before)
    assert not history.backward_passes[0].is_complete
    assert not restore_state._there


def test_what_the_user_changes_after_the_log_stays_and_is_not_read():
    model, given, twin, twin_given = model_and_twin(lambda: ReadsState(False))
    twin(twin_given).sum().backward()
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    model.scale.fill_(7.0)
    model.by = "mine"
    version = model.scale._version
    history.log_backward(history.outputs[0].tensor_contents.sum())
    assert_same(gradients_of(model, given), gradients_of(twin, twin_given))
    assert (model.scale.tolist(), model.scale._version, model.by) == ([7.0] * 4, version, "mine")


def test_a_backward_pass_through_two_logs_of_one_model_reads_what_each_left():
    torch.manual_seed(0)
    model = ReadsState(True)
    inputs = [torch.rand(3, 4).requires_grad_(), torch.rand(2, 4).requires_grad_()]
    twins = [(copy.deepcopy(model), one.detach().clone().requires_grad_()) for one in inputs]
    plain = [twin(given) for twin, given in twins]
    (plain[0].sum() * plain[1].sum()).backward()
    before = state_of(model)
    logs = [torcheer.log_forward_pass(model, one, save_gradients=True) for one in inputs]
    (logs[0].outputs[0].tensor_contents.sum() * logs[1].outputs[0].tensor_contents.sum()).backward()
    for given, (_, twin_given) in zip(inputs, twins, strict=True):
        assert torch.equal(given.grad, twin_given.grad)
    torch.testing.assert_close(model.fc.weight.grad, sum(twin.fc.weight.grad for twin, _ in twins))
    assert same_state(state_of(model), before)


def test_a_graph_whose_history_is_gone_reads_what_the_pass_wrote_or_is_refused():
    model, given, twin, twin_given = model_and_twin(lambda: Normalises(False))
    loss_of(twin(twin_given)).backward()
    loss = loss_of([one.tensor_contents for one in torcheer.log_forward_pass(model, given, save_gradients=True).outputs])
    loss.backward()
    assert_same(gradients_of(model, given), gradients_of(twin, twin_given))
    model, given, _, _ = model_and_twin(lambda: ReadsState(False))
    loss = loss_of([one.tensor_contents for one in torcheer.log_forward_pass(model, given, save_gradients=True).outputs])
    with pytest.raises(torcheer.BackwardFailed, match="Keep the history until backward has run"):
        loss.backward()
    assert model.fc.weight.grad is None


@pytest.mark.parametrize("make", [lambda: HooksResult(is_last=True), lambda: FillsCache(True), lambda: ReplacesBuffer(False)])
def test_what_a_pass_left_behind_keeps_nothing_alive(make):
    model, given, _, _ = model_and_twin(make)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    history.log_backward(loss_of([one.tensor_contents for one in history.outputs]))
    held = [weakref.ref(one) for one in (model.fc.weight, history._log.backward)]
    del model, history
    gc.collect()
    assert [one() for one in held] == [None, None]


def test_backward_passes_of_other_models_run_side_by_side():
    wrong = []

    def work(seed):
        for _ in range(5):
            model, given, twin, twin_given = model_and_twin(lambda: ReadsState(True))
            loss_of(twin(twin_given)).backward()
            history = torcheer.log_forward_pass(model, given, save_gradients=True)
            history.log_backward(loss_of([one.tensor_contents for one in history.outputs]))
            same = torch.equal(given.grad, twin_given.grad)
            wrong.extend([] if same and (model.scale.tolist(), model.by, model.seen) == ([1.0] * 4, 1, []) else [seed])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not wrong
    assert not restore_state._there


def test_a_loss_of_the_weights_as_they_are_now_can_be_added():
    model, given, _, _ = model_and_twin(lambda: GivesOtherMemory(False))
    before = state_of(model)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    (history.outputs[0].tensor_contents.sum() + model.fc.bias.square().sum() * 100).backward()
    alone = torcheer.log_forward_pass(model, given, save_gradients=True)
    alone.log_backward(alone.outputs[0].tensor_contents.sum())
    torch.testing.assert_close(
        history.backward_passes[0].param_grads["fc.weight"], alone.backward_passes[0].param_grads["fc.weight"]
    )
    assert same_state(state_of(model), before)


def test_without_a_sign_that_backward_is_over_the_history_runs_it(monkeypatch):
    monkeypatch.setattr(restore_state, "after_this_backward", lambda call: None)
    model, given, twin, twin_given = model_and_twin(lambda: ReadsState(False))
    before = state_of(model)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    loss = history.outputs[0].tensor_contents.sum()
    with pytest.raises(torcheer.MissingInTorch, match=r"history\.log_backward"):
        loss.backward(retain_graph=True)
    assert same_state(state_of(model), before)
    history.log_backward(loss)
    twin(twin_given).sum().backward()
    assert_same(gradients_of(model, given), gradients_of(twin, twin_given))
    assert same_state(state_of(model), before)


def test_state_that_cannot_be_put_back_for_backward_is_named(monkeypatch):
    model, given, _, _ = model_and_twin(lambda: ReadsState(False))
    before = state_of(model)
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    refused = []

    def fail_once(container, saved, refill=restore_state.refill):
        if not refused:
            refused.append(container)
            raise TypeError("these cannot be changed")
        refill(container, saved)

    monkeypatch.setattr(restore_state, "refill", fail_once)
    with pytest.raises(torcheer.BackwardFailed, match="TypeError: these cannot be changed"):
        history.log_backward(history.outputs[0].tensor_contents.sum())
    assert same_state(state_of(model), before)
    assert model.fc.weight.grad is None


def test_state_that_the_pass_did_not_change_is_not_needed_for_backward():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.random, self.generator = nn.Linear(4, 4), random.Random(0), torch.Generator()
            self.array, self.numpy, self.bytes = np.ones(4), np.random.default_rng(0), bytearray(b"held")

        def forward(self, t):
            return self.fc(t)

    model, given, twin, twin_given = model_and_twin(Holds)
    twin(twin_given).sum().backward()
    torcheer.log_forward_pass(model, given, save_gradients=True).outputs[0].tensor_contents.sum().backward()
    assert_same(gradients_of(model, given), gradients_of(twin, twin_given))
