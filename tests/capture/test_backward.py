"""Gradients are those of plain PyTorch, kept apart by backward pass, and every node is tied to its operation."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn
from torch.overrides import TorchFunctionMode

import torcheer
from models import Branching, Buffer, Convolutional, Mlp, log, made_with, unchanged
from programs import COLUMNS, ROWS, Program, programs
from torcheer import InvalidArgument
from torcheer.graph import add_gradient_edges
from torcheer.log import grad_fn_names

x = torch.rand(3, 4)


class Retaining(TorchFunctionMode):
    """The plainest oracle: asks torch to retain the gradient of everything a torch function makes."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.requires_grad and not result.is_leaf:
            result.retain_grad()
            self.made.append(result)
        return result


def test_gradients_at_every_output_are_those_torch_retains():
    model = Mlp()
    twin = copy.deepcopy(model)
    with Retaining() as oracle:
        expected = twin(x)
    expected.square().sum().backward()
    history = log(model, x, save_gradients=True)
    history["output"].tensor_contents.square().sum().backward()
    operations = [one for one in history.operations if one.gradfunc is not None and not one.is_output_layer]
    assert [one.layer_type for one in operations] == ["linear", "relu", "linear", "tanh"]
    for one, theirs in zip(operations, oracle.made, strict=True):
        assert torch.equal(one.grad_contents, theirs.grad), one.label
    for name, parameter in twin.named_parameters():
        assert torch.equal(history.param_grads[name], parameter.grad), name
        assert torch.equal(dict(model.named_parameters())[name].grad, parameter.grad)


def test_facts_of_a_gradient():
    history = log(Mlp(), x, save_gradients=True)
    assert history["linear_1"].grad_contents is None
    loss = history["output"].tensor_contents.sum() / 0
    loss.backward()
    one = history["linear_2"]
    assert (one.grad_shape, one.grad_dtype, one.grad_fsize) == ((3, 3), torch.float32, 36)
    assert one.grad_nonfinite > 0


def test_log_backward_returns_the_pass():
    history = log(Branching(), x, save_gradients=True)
    loss = sum(one.tensor_contents.sum() for one in history.outputs if one.tensor_contents.requires_grad)
    passed = history.log_backward(loss)
    assert passed.number == 1
    assert set(passed.param_grads) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert "linear_1_1" in passed.gradients
    assert "Backward pass 1" in repr(passed)


def test_every_node_says_what_it_is():
    history = log(Mlp(), x, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    roles = {}
    for one in passed.operations:
        roles.setdefault(one.role, []).append(one.layer_label or one.param)
    assert roles["result"] == ["tanh_1_4", "linear_2_3", "relu_1_2", "linear_1_1"]
    assert set(roles["accumulation"]) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert set(roles["inside"]) <= {"linear_2_3", "linear_1_1"}
    assert "other" not in roles  # the loss is not the model's: it was not hooked
    (relu,) = [one for one in passed.operations if one.layer_label == "relu_1_2"]
    assert relu.name == "ReluBackward0"
    assert relu.containing_module == "act"
    assert relu.grad_output_shapes == relu.grad_input_shapes == [(3, 8)]
    assert relu.time_elapsed > 0


def test_several_backward_passes_are_kept_apart():
    history = log(Mlp(), x, save_gradients=True)
    y = history["output"].tensor_contents
    history.log_backward(y.sum(), retain_graph=True)
    history.log_backward(2 * y.sum())
    first, second = history.backward_passes
    assert torch.equal(first.gradients["tanh_1_4"] * 2, second.gradients["tanh_1_4"])
    assert torch.equal(first.param_grads["fc1.bias"] * 2, second.param_grads["fc1.bias"])
    assert len(history["relu_1"].grads) == 2


def test_accumulation_is_kept_apart_from_what_was_there():
    model = Mlp()
    model(x).sum().backward()
    before = model.fc1.weight.grad.clone()
    history = log(model, x, save_gradients=True)
    history["output"].tensor_contents.sum().backward()
    assert torch.allclose(history.param_grads["fc1.weight"], before)
    assert torch.allclose(model.fc1.weight.grad, 2 * before)


def test_autograd_grad_gives_gradients_of_what_it_was_asked_for():
    model = Mlp()
    given = x.clone().requires_grad_()
    history = log(model, given, save_gradients=True)
    loss = history["output"].tensor_contents.sum()
    targets = [given, model.fc1.weight]
    expected = torch.autograd.grad(loss, targets)
    assert torch.equal(history["input"].grad_contents, expected[0])
    assert torch.equal(history.param_grads["fc1.weight"], expected[1])
    assert model.fc1.weight.grad is None


def test_in_place_operations():
    def model(t):
        y = t * 2
        y.add_(1)
        y[0].mul_(3)
        return y.relu()

    given = torch.rand(3, 4, requires_grad=True)
    history = log(model, given, save_gradients=True)
    history["output"].tensor_contents.sum().backward()
    expected = torch.full((3, 4), 1.0)
    assert torch.equal(history["relu_1"].grad_contents, expected)
    expected[0] = 3
    assert torch.equal(history["add_1"].grad_contents, expected)
    assert torch.equal(history["input"].grad_contents, 2 * expected)


def test_hooks_that_change_gradients():
    model = Mlp()
    model.fc2.register_forward_hook(lambda module, args, output: output.register_hook(lambda grad: grad * 0) and None)
    history = log(model, x, save_gradients=True)
    history["output"].tensor_contents.sum().backward()
    assert history["linear_2"].grad_contents.abs().sum() == 0
    assert history["tanh_1"].grad_contents.abs().sum() > 0


def test_a_call_that_hands_back_its_argument_takes_nothing_away():
    history = log(lambda t: (t * 2).to(torch.float32).tanh(), torch.rand(3, requires_grad=True), save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert [one.layer_label for one in passed.operations if one.role == "result"] == ["tanh_1_3", "mul_1_1"]


def test_detached_parts_have_none():
    history = log(lambda t: (t * 2).detach() * t, torch.rand(3, requires_grad=True), save_gradients=True)
    history["output"].tensor_contents.sum().backward()
    assert history["mul_1"].grad_contents is None
    assert history["mul_2"].grad_contents is not None


def test_only_some_gradients_are_kept():
    history = log(Mlp(), x, save_gradients=["fc2", "relu_1"])
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert set(passed.gradients) == {"linear_2_3", "relu_1_2"}
    assert len(passed.param_grads) == 4


def test_a_recording_keeps_only_what_was_asked_for():
    model = Mlp()
    with torcheer.recording(model, save_gradients=["fc2"]) as history:
        model(x).sum().backward()
    assert set(history.backward_passes[0].gradients) == {"linear_2_3"}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs)
def test_gradients_of_random_programs_are_those_of_the_plain_model(steps):
    torch.manual_seed(3)
    model, given_x = Program(steps).eval(), torch.randn(ROWS, COLUMNS, requires_grad=True)
    twin, plain_x = copy.deepcopy(model), given_x.detach().clone().requires_grad_()
    state = torch.get_rng_state()
    try:
        loss = sum(t.sum() for t in twin(plain_x))
        loss.backward()
    except RuntimeError:  # a program that overwrites what autograd needs
        return
    torch.set_rng_state(state)
    history = log(model, given_x, save_gradients=True)
    sum(one.tensor_contents.sum() for one in history.outputs).backward()
    for name, parameter in twin.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(history.param_grads[name], parameter.grad), name
    if plain_x.grad is not None:
        assert torch.equal(history["input"].grad_contents, plain_x.grad)


def test_nothing_is_changed_by_asking():
    model = Convolutional().train()
    given = torch.rand(2, 3, 8, 8)
    with unchanged(model):
        log(model, given, save_gradients=True)


def test_neither_history_nor_graph_keeps_the_other_alive():
    history = log(Mlp(), x, save_gradients=True)
    loss = history["output"].tensor_contents.sum()
    backward = weakref.ref(history._log.backward)
    gc.disable()
    try:
        del history
        assert backward() is None
    finally:
        gc.enable()
    loss.backward()  # the hooks find nobody to tell


def test_gradients_are_edges_against_the_data():
    history = log(lambda t: (t * 2).detach() * t.tanh(), torch.rand(3, requires_grad=True), save_gradients=True)
    assert not any(node.has_gradient for node in history.graph.nodes)
    history.log_backward(history["output"].tensor_contents.sum())
    gradients = [edge for edge in add_gradient_edges(history.graph).edges if edge.is_gradient]
    assert {(edge.source, edge.target) for edge in gradients} == {("mul_2_4:1", "tanh_1_3:1"), ("tanh_1_3:1", "input_1_0:1")}


def test_pictures_show_gradients():
    history = log(Mlp(), x, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum())
    svg = history.draw(io.BytesIO(), show_gradients=True, color_by="grad").svg
    assert "gradient norm" in svg
    assert svg.lower().count("#b0006d") >= 3
    assert "#b0006d" not in history.draw(io.BytesIO()).svg.lower()


def test_gradients_are_printed_copied_and_cleared():
    history = log(Mlp(), x, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum())
    assert "Backward pass 1:" in str(history)
    assert "Gradient: shape=(3, 8), size=96 B" in str(history["relu_1"])
    twin = copy.deepcopy(history)
    history.clear_activations()
    assert history["relu_1"].grad_contents is None
    assert twin["relu_1"].grad_shape == (3, 8)


def test_what_is_wrong_is_said():
    with pytest.raises(InvalidArgument, match="save_gradients=True"):
        log(Mlp(), x).log_backward(torch.ones((), requires_grad=True) * 2)
    history = log(Mlp(), x, save_gradients=True)
    with pytest.raises(InvalidArgument, match="takes a tensor"):
        history.log_backward(torch.ones(()))
    with pytest.raises(InvalidArgument, match="does not depend"):
        history.log_backward(torch.ones((), requires_grad=True) * 2)


def test_gradients_of_what_leaves_modules_and_of_outputs_can_be_asked_for():
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    for wanted, kept in (("modules", {"linear_1_1", "relu_1_2"}), (["output"], {"relu_1_2"}), (["0"], {"linear_1_1"})):
        history = log(model, x, save_gradients=wanted)
        passed = history.log_backward(history["output"].tensor_contents.sum())
        assert set(passed.gradients) == kept
        has_output = torch.equal(history["output"].grad_contents, torch.ones(3, 3)) if "relu_1_2" in kept else False
        assert has_output == ("relu_1_2" in kept)


def test_a_key_that_finds_nothing_does_not_lose_the_history():
    with pytest.raises(torcheer.LayerNotFound) as error:
        log(Mlp(), x, save_gradients=["nothing"])
    assert len(error.value.history) == 6


def test_values_of_nested_gradients_that_are_not_finite_are_counted():
    nested = torch.nested.nested_tensor([torch.rand(2, 4), torch.rand(1, 4)], requires_grad=True)
    history = log(nn.Linear(4, 2), nested, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.to_padded_tensor(0.0).sum() / 0)
    assert history["linear_1"].grad_nonfinite == 6


@made_with(fc=lambda: nn.Linear(4, 4), norm=lambda: nn.BatchNorm1d(4), steps=lambda: Buffer(torch.tensor(0.0)))
def Normalised(self, t):
    """Writes to its input, a parameter and a buffer, and uses them afterwards."""
    self.steps += 1
    with torch.no_grad():
        self.fc.weight.mul_(0.5)
    t = torch.relu_(t)
    return self.norm(torch.tanh(self.fc(t)) / self.steps * t[:1]) + Saving.apply(self.fc(t), t)


class Saving(torch.autograd.Function):
    """A function of the user's own that saves what it is given."""

    @staticmethod
    def forward(ctx, one, other):
        ctx.save_for_backward(one, other)
        return one * other

    @staticmethod
    def backward(ctx, gradient):
        one, other = ctx.saved_tensors
        return gradient * other, gradient * one


def test_a_backward_after_the_log_uses_what_the_pass_wrote_though_it_is_restored():
    torch.manual_seed(0)
    model, given = Normalised(), torch.randn(3, 4)
    plain = copy.deepcopy(model)
    plain(given.clone()).square().mean().backward()
    values = [tensor.clone() for tensor in (given, *model.state_dict().values())]
    history = torcheer.log_forward_pass(model, given, save_gradients=True)
    assert all(map(torch.equal, values, (given, *model.state_dict().values())))
    history.log_backward(history["output"].activation.square().mean())
    for name, parameter in plain.named_parameters():
        assert torch.equal(history.param_grads[name], parameter.grad), name


def program(weight: torch.Tensor, see=lambda tensor: tensor) -> torch.Tensor:
    """Functions with one node each, one with several, and results without any."""
    t = see(weight * 2)
    for _ in range(3):
        t = see(see(t[0:2]) + 1)  # a slice
        t = see(torch.stack([see(t[0]), see(t[1])]))  # two selections, by the same function
        t = see(see(t[:, [0, 1]]) * 1.5)  # an index, by the same function
        see(t.detach())
        t = see(torch.cat([t, see(torch.ones(2, 2))]))
    return see(t.sum())


@pytest.mark.parametrize("read", [13, 20, 4_000])
def test_nodes_are_named_as_torch_names_them_however_few_are_read(monkeypatch, read):
    """Functions whose earlier nodes differ are read on; the others take the name that they had."""
    names = []

    def see(tensor: torch.Tensor) -> torch.Tensor:
        names.append(type(tensor.grad_fn).__name__ if tensor.grad_fn is not None else None)
        return tensor

    weight = torch.rand(4, 2, requires_grad=True)
    program(weight, see)
    monkeypatch.setattr(grad_fn_names, "READ", read)
    history = torcheer.log_forward_pass(program, weight)
    assert [one.gradfunc for one in history.operations[1:-1]] == names


def test_nodes_of_a_long_recording_are_not_read_one_by_one(monkeypatch):
    """A chain of nodes that were read overflows the stack when it is freed."""
    reads = []
    read = grad_fn_names.NodeNames.read

    def counting(self, tensor: torch.Tensor) -> str | None:
        reads.append(tuple(tensor.shape))
        return read(self, tensor)

    def long(t: torch.Tensor) -> torch.Tensor:
        t = t[1] * t[2:3]  # operations 1 to 3; indexing has made two nodes by now
        for _ in range(20):
            t = t * 2  # 4 to 23
        for _ in range(5):
            t = t.relu()
        for _ in range(10):
            t = t[:]
        return t.unsqueeze(0).unsqueeze(0).unsqueeze(0)

    monkeypatch.setattr(grad_fn_names, "READ", 6)
    monkeypatch.setattr(grad_fn_names.NodeNames, "read", counting)
    history = torcheer.log_forward_pass(long, torch.rand(4, 2, requires_grad=True))
    # The input and five operations, the first relu, indices as long as six are not used up, the first unsqueeze, the output.
    assert len(reads) == 6 + 1 + 5 + 1 + 1
    assert [one.gradfunc for one in history.operations[4:29]] == ["MulBackward0"] * 20 + ["ReluBackward0"] * 5
