"""A backward pass after a log reads the state as the forward pass left it; plain torch is the oracle, bit for bit."""

import copy
import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import torcheer
from torcheer.capture.restore import left_behind


class Times(torch.autograd.Function):
    """Keeps what it is given on `ctx`, past autograd."""

    @staticmethod
    def forward(ctx, t, factor):
        ctx.factor = factor
        return t * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor, None


class Layer(nn.Module):
    """A layer, a buffer, a number and a list, all of which the pass changes."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.by = 1
        self.seen = []

    def change(self):
        self.scale.mul_(2)
        self.by = 3
        self.seen.append(5.0)


class Checkpointed(Layer):
    def __init__(self, reentrant, **options):
        super().__init__()
        self.options = {"use_reentrant": reentrant, **options}

    def run(self, t):
        return checkpoint(self.block, t, **self.options)


class ReadsState(Checkpointed):
    def block(self, t):
        return torch.tanh(self.fc(t)) * self.scale * self.by * self.seen[0]

    def forward(self, t):
        self.change()
        return self.run(t).sum(1)


class ReplacesBuffer(Checkpointed):
    def block(self, t):
        return torch.tanh(self.fc(t)) * self.scale

    def forward(self, t):
        self.scale = self.scale + self.fc(t)
        return self.run(t)


class FillsCache(Checkpointed):
    def __init__(self, reentrant):
        super().__init__(reentrant)
        self.register_buffer("cache", torch.zeros(3, 4))

    def block(self, t):
        return torch.tanh(self.fc(t)) * self.cache

    def forward(self, t):
        self.cache[:2].copy_(self.fc(t)[:2])
        return self.run(t)


class Drops(Checkpointed):
    def block(self, t):
        return nn.functional.dropout(torch.tanh(self.fc(t)))

    def forward(self, t):
        return self.run(nn.functional.dropout(t))


class Normalises(Checkpointed):
    def __init__(self, reentrant):
        super().__init__(reentrant)
        self.norm = nn.BatchNorm1d(4)

    def block(self, t):
        return self.norm(self.fc(t)).tanh() * self.norm.running_var * self.norm.num_batches_tracked

    def forward(self, t):
        return self.run(t)


class GivesOtherMemory(Checkpointed):
    def block(self, t):
        return self.fc(t)

    def forward(self, t):
        self.fc.weight.data = self.fc.weight.data * 2
        self.fc.bias.data.mul_(3)
        return self.run(t) * self.fc.weight.sum()


class KeepsOnContext(Layer):
    def forward(self, t):
        self.change()
        return {"scaled": Times.apply(self.fc(t), self.scale), "plain": (self.fc(t), self.scale)}


class HooksResult(Layer):
    def __init__(self, is_last):
        super().__init__()
        self.is_last = is_last

    def forward(self, t):
        self.change()
        y = self.fc(t)
        y.register_hook(lambda gradient: gradient * self.scale * self.by * self.seen[0])
        return y if self.is_last else y.tanh()


class HooksParameters(Layer):
    def forward(self, t):
        self.fc.weight.register_hook(lambda gradient: gradient * 2)
        self.fc.bias.register_post_accumulate_grad_hook(lambda bias: bias.grad.mul_(3))
        return self.fc(t)


class HooksItself(Layer):
    """Reads attributes in a hook that was there before the pass."""

    def __init__(self):
        super().__init__()
        self.register_full_backward_hook(lambda module, made, given: (made[0] * module.by * module.scale,))

    def forward(self, t):
        self.change()
        return self.fc(t)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, t):
        self.scale.add_(1)
        return torch.tanh(t * self.scale) * self.scale


class ReversibleFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t, blocks):
        with torch.no_grad():
            for block in blocks:
                t = block(t)
        ctx.made, ctx.blocks = t.detach(), blocks
        return t

    @staticmethod
    def backward(ctx, gradient):
        made = ctx.made
        for block in reversed(ctx.blocks):
            made, gradient = block.undo(made, gradient)
        return gradient, None


class ReversibleBlock(nn.Module):
    """Keeps random states in the forward pass, and works out its input from its output in the backward pass."""

    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3)), nn.Linear(2, 2)
        self.states = {}

    def forward(self, t):
        one, two = t.chunk(2, 1)
        self.states["f"] = torch.get_rng_state()
        one = one + self.f(two)
        return torch.cat([one, two + self.g(one)], 1)

    def undo(self, made, gradient):
        (one, two), (d_one, d_two) = made.chunk(2, 1), gradient.chunk(2, 1)
        with torch.enable_grad():
            one = one.detach().requires_grad_()
            g = self.g(one)
            g.backward(d_two)
            two = (two - g).detach().requires_grad_()
            now = torch.get_rng_state()
            torch.set_rng_state(self.states["f"])
            f = self.f(two)
            torch.set_rng_state(now)
            f.backward(d_one + one.grad)
        with torch.no_grad():
            return torch.cat([one - f, two], 1).detach(), torch.cat([d_one + one.grad, d_two + two.grad], 1)


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.blocks = nn.Linear(4, 4), nn.ModuleList([ReversibleBlock(), ReversibleBlock()])

    def forward(self, t):
        return ReversibleFunction.apply(self.fc(t), list(self.blocks))


MODELS = {
    f"{made.__name__}-{reentrant}": lambda made=made, reentrant=reentrant: made(reentrant)
    for made in (ReadsState, ReplacesBuffer, FillsCache, Drops, Normalises, GivesOtherMemory)
    for reentrant in (True, False)
} | {
    "random states not kept": lambda: Drops(True, preserve_rng_state=False),
    "random states not kept, not reentrant": lambda: Drops(False, preserve_rng_state=False),
    "kept on ctx": KeepsOnContext,
    "hook": lambda: HooksResult(is_last=False),
    "hook of the output": lambda: HooksResult(is_last=True),
    "hooks of parameters": HooksParameters,
    "hook of a module": HooksItself,
    "scripted": lambda: nn.Sequential(nn.Linear(4, 4), torch.jit.script(Scripted()), nn.Linear(4, 4)),
    "reversible": Reversible,
}


def loss_of(outputs):
    return sum(one.square().mean() for one in tree_leaves(outputs) if isinstance(one, torch.Tensor) and one.requires_grad)


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
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            return t * 1

        @staticmethod
        def backward(ctx, gradient):
            raise ValueError("failed")

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
    assert not left_behind._there


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
        thread.join(60)
    assert not wrong
    assert not left_behind._there


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
    monkeypatch.setattr(left_behind, "after_this_backward", lambda call: None)
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

    def fail_once(container, saved, refill=left_behind.refill):
        if not refused:
            refused.append(container)
            raise TypeError("these cannot be changed")
        refill(container, saved)

    monkeypatch.setattr(left_behind, "refill", fail_once)
    with pytest.raises(torcheer.BackwardFailed, match="TypeError: these cannot be changed"):
        history.log_backward(history.outputs[0].tensor_contents.sum())
    assert same_state(state_of(model), before)
    assert model.fc.weight.grad is None
