"""`torch.func` transforms and forward-mode differentiation: recorded whole, with their effects, and proved."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

import torcheer
from torch_version import TORCH
from torcheer._torch.internals import is_functorch_wrapped

x, y = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.ones(5, 1)


def models(count=3):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)).eval() for _ in range(count)]


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def ensemble():
    """An ensemble's parameters and buffers, and the model they are called with."""
    members = models()
    params, buffers = stack_module_state(members)
    return params, buffers, copy.deepcopy(members[0]).to("meta")


def step_with_an_optimizer():
    params, buffers, base = ensemble()
    optimizer = torch.optim.Adam(list(params.values()), lr=0.1)
    out = vmap(lambda p, b, x: functional_call(base, (p, b), (x,)), in_dims=(0, 0, None))(params, buffers, x)
    optimizer.zero_grad()
    ((out - y) ** 2).mean().backward()
    optimizer.step()
    return params


def step_with_functional_gradients():
    params, buffers, base = ensemble()

    def loss(p, b, x, y):
        return ((functional_call(base, (p, b), (x,)) - y) ** 2).mean()

    gradients, _ = vmap(grad_and_value(loss), in_dims=(0, 0, None, None))(params, buffers, x, y)
    with torch.no_grad():
        for name, parameter in params.items():
            parameter.sub_(0.1 * gradients[name])
    return params


@pytest.mark.parametrize(
    "options", [{}, {"save_gradients": True}, {"layers_to_save": "none"}, {"layers_to_save": ["linear_1"]}]
)
@pytest.mark.parametrize("step", [step_with_an_optimizer, step_with_functional_gradients])
def test_a_training_step_of_an_ensemble_is_recorded_and_does_what_it_does_alone(step, options):
    alone = step()
    with torcheer.recording(**options) as history:
        recorded = step()
    assert all(torch.equal(alone[name], recorded[name]) for name in alone)
    assert {"linear", "batchnorm", "tanh"} <= {operation.layer_type for operation in history.operations}
    assert str(history)
    assert history.to_json()
    assert history.summary()
    kept = [*history._log.values, *history._log.states.tensors]
    assert not any(is_functorch_wrapped(value) for value in kept if isinstance(value, torch.Tensor))


def test_what_a_transform_puts_into_a_module_is_not_taken_for_its_parameters():
    with torcheer.recording() as history:
        step_with_functional_gradients()
    registered = [tensor for module in history._log.registered.values() for tensor in module.parameters.values()]
    assert not any(is_functorch_wrapped(tensor) for tensor in registered if tensor is not None)


def test_a_log_of_code_that_is_compiled_as_one_graph_warns_of_nothing():
    """Inside a log it runs as it is written, which torch 2.12 warns of, once in a process: that is left to the program."""
    compiled = torch.compile(lambda t: t.relu() + 1, backend="eager", fullgraph=True)
    history = torcheer.log_forward_pass(compiled, x)
    assert torch.equal(history["output"].tensor_contents, compiled(x))
    if TORCH == (2, 12):
        with torch.compiler.set_stance("force_eager"), pytest.warns(UserWarning, match="found no compiled frames"):
            compiled(x)


def test_memory_and_summary_know_what_a_transform_made():
    model = small()
    history = torcheer.log_forward_pass(lambda a: vmap(lambda row: model(row).t().expand(2, 1).clone())(a.view(5, 1, 3)), x)
    assert history.memory.peak > 0
    assert "total" in str(history.summary())


@pytest.mark.parametrize("saved", ["all", "none"])
def test_operations_inside_functionalize_are_logged_from_the_input_on(saved):
    """Its tensors look plain, but have a storage of their own in which nothing is."""

    def model(t):
        return torch.func.functionalize(lambda inner: (inner * 2).relu_().view(-1) + 1)(t)

    history = torcheer.log_forward_pass(model, x, layers_to_save=saved)
    assert [layer.layer_type for layer in history] == ["input", "mul", "relu", "view", "add", "output"]
    assert [[parent.label for parent in layer.parents] for layer in history][1:3] == [["input_1_0"], ["mul_1_1"]]
    if saved == "all":
        assert torch.equal(history["relu_1"].activation, (x * 2).relu())
        assert torch.equal(history["mul_1"].activation, x * 2)
        assert torch.equal(history["output_1"].activation, model(x))
    assert torcheer.validate_forward_pass(model, x)


def parents_of(model, t, label):
    history = torcheer.log_forward_pass(model, t)
    return [parent.label for parent in history[label].parents], history


def test_inside_a_transform_a_tensor_is_the_view_it_is():
    """Not whatever view of the same memory was recorded last."""
    t = torch.rand(2, 6)

    def by_grad(t):
        a, b = t[0], t[1]
        return torch.func.grad(lambda p: (p * 2).sum())(a).sum() + b.sum()

    parents, history = parents_of(by_grad, t, "mul_1")
    assert parents == ["getitem_1_1"]
    assert torch.equal(history["mul_1"].inputs[0], t[0])
    assert parents_of(lambda t: (t[0], torch.vmap(torch.sin)(t)), t, "sin_1")[0] == ["input_1_0"]
    attention, parts = torch.nn.functional.scaled_dot_product_attention, torch.rand(2, 4, 12)
    history = torcheer.log_forward_pass(lambda t: torch.vmap(attention)(*t.chunk(3, -1)), parts)
    (fused,) = history.filter(type=attention)
    assert [parent.label.rpartition("_")[0] for parent in fused.parents] == ["chunk_1", "chunk_2", "chunk_3"]
