"""Lazy modules are logged as they are, and afterwards they are uninitialised again: class, hooks, parameters and buffers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

import torch_vis
import torcheer
from models import log


class LazyLinear(nn.Module):
    """Lazy as the linear layer of PyTorch Geometric is: no LazyModuleMixin, but a hook that makes the weight."""

    def __init__(self, out_channels):
        super().__init__()
        self.in_channels, self.out_channels = -1, out_channels
        self.weight = UninitializedParameter()
        self.bias = nn.Parameter(torch.zeros(out_channels))
        self._hook = self.register_forward_pre_hook(self.initialize_parameters)

    @torch.no_grad()
    def initialize_parameters(self, module, given):
        if is_lazy(self.weight):
            self.in_channels = given[0].size(-1)
            self.weight.materialize((self.out_channels, self.in_channels))
            nn.init.uniform_(self.weight)
        self._hook.remove()
        delattr(self, "_hook")

    def forward(self, t):
        return nn.functional.linear(t, self.weight, self.bias)


class Heterogeneous(nn.Module):
    """Several lazy layers in a dictionary, one of them used twice, as in HeteroConv."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleDict({"a": LazyLinear(4), "b": LazyLinear(4), "unused": LazyLinear(4)})
        self.partly = nn.Sequential(nn.Linear(4, 4), nn.LazyLinear(3), nn.LazyBatchNorm1d())

    def forward(self, t):
        return self.partly(self.parts["a"](t) + self.parts["b"](t) + self.parts["b"](t))


VECTOR, SIGNAL, IMAGE, VOLUME = torch.rand(3, 5), torch.rand(3, 5, 9), torch.rand(3, 5, 9, 9), torch.rand(2, 5, 6, 6, 6)
CASES = {
    "Linear": (lambda: nn.LazyLinear(4), VECTOR),
    "BatchNorm1d": (nn.LazyBatchNorm1d, VECTOR),
    "BatchNorm2d": (nn.LazyBatchNorm2d, IMAGE),
    "BatchNorm3d": (nn.LazyBatchNorm3d, VOLUME),
    "InstanceNorm1d": (lambda: nn.LazyInstanceNorm1d(affine=True, track_running_stats=True), SIGNAL),
    "InstanceNorm2d": (lambda: nn.LazyInstanceNorm2d(affine=True, track_running_stats=True), IMAGE),
    "Conv1d": (lambda: nn.LazyConv1d(2, 3), SIGNAL),
    "Conv2d": (lambda: nn.LazyConv2d(2, 3), IMAGE),
    "Conv3d": (lambda: nn.LazyConv3d(2, 3), VOLUME),
    "ConvTranspose2d": (lambda: nn.LazyConvTranspose2d(2, 3), IMAGE),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.LazyConv2d(2, 3), nn.LazyBatchNorm2d()), nn.Flatten(), nn.LazyLinear(2)),
        IMAGE,
    ),
    "foreign": (lambda: LazyLinear(4), VECTOR),
    "heterogeneous": (Heterogeneous, VECTOR),
}


def state(model):
    """All that makes a lazy model lazy."""
    found = []
    for name, module in model.named_modules():
        hooks = [module._forward_pre_hooks, module._forward_hooks, module._load_state_dict_pre_hooks, module._state_dict_hooks]
        tensors = [*module._parameters.items(), *module._buffers.items()]
        found.append(
            (
                *(
                    name,
                    type(module),
                    {k: id(v) for k, v in vars(module).items()},
                    [list(map(id, one.values())) for one in hooks],
                ),
                [(key, id(t), type(t), None if t is None or is_lazy(t) else t.detach().clone()) for key, t in tensors],
                [t is not None and t.grad is not None for _, t in tensors],
            )
        )
    return found


def same_state(one, other):
    def plain(found):
        return [(*row[:4], [entry[:3] for entry in row[4]], row[5]) for row in found]

    values = [(a[3], b[3]) for x, y in zip(one, other, strict=True) for a, b in zip(x[4], y[4], strict=True)]
    return plain(one) == plain(other) and all(a is b or torch.equal(a, b) for a, b in values)


def trained(model, given):
    """A model is usable when it can be initialised, trained, copied and saved."""
    torch.manual_seed(3)
    model(given)
    torch.optim.SGD(model.parameters(), 0.1)
    model(given).sum().backward()
    copied = copy.deepcopy(model)
    return {name: value.detach().clone() for name, value in copied.state_dict(keep_vars=True).items() if not is_lazy(value)}


@pytest.mark.parametrize("name", CASES)
def test_a_lazy_model_is_logged_validated_and_lazy_again(name):
    make, given = CASES[name]
    torch.manual_seed(0)
    model = make()
    torch.manual_seed(0)
    twin = make()
    before = state(model)
    history = log(model, given)
    assert same_state(before, state(model))
    assert history.validate()
    assert str(history)
    assert str(history.summary())
    assert torcheer.validate_forward_pass(model, given)
    assert same_state(before, state(model))
    assert any(is_lazy(p) for p in model.parameters())
    one, two = trained(model, given), trained(twin, given)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], two[key]) for key in one)


def test_the_history_of_a_lazy_model_has_the_parameters_of_the_pass():
    model = nn.Sequential(LazyLinear(4), nn.LazyBatchNorm1d())
    torch.manual_seed(1)
    history = log(model, VECTOR)
    torch.manual_seed(1)
    plain = model(VECTOR)
    assert torch.equal(history["output"].tensor_contents, plain)
    arguments = history["linear_1"].creation_args
    assert torch.equal(arguments[1], model[0].weight)


def test_a_pass_of_a_lazy_model_that_raises_leaves_it_lazy():
    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(LazyLinear(4), nn.LazyBatchNorm1d())

        def forward(self, t):
            self.inner(t)
            raise ValueError("no")

    model = Fails()
    before = state(model)
    with pytest.raises(ValueError, match="no"):
        log(model, VECTOR)
    assert same_state(before, state(model))


def test_a_lazy_model_that_a_function_closes_over_stays_lazy():
    model = nn.Sequential(nn.LazyLinear(4), LazyLinear(2))
    before = state(model)
    log(lambda t: model(t) + 1, VECTOR)
    assert torcheer.validate_forward_pass(lambda t: model(t) + 1, VECTOR)
    assert same_state(before, state(model))


def test_gradients_of_a_lazy_model_can_be_followed():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    before = state(model)
    history = log(model, VECTOR, save_gradients=True)
    assert same_state(before, state(model))
    history.log_backward(history.outputs[0].tensor_contents.square().sum())
    assert history["linear_1"].grad_contents is not None
    assert type(model[0].weight) is UninitializedParameter
    assert type(model[1].running_mean) is UninitializedBuffer
    trained(model, VECTOR)


@pytest.mark.parametrize("operations", [True, False])
def test_a_graph_of_forward_and_backward_leaves_a_lazy_model_lazy(operations):
    model = nn.Sequential(LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    before = state(model)
    torch_vis.track_computational_graph_execution(model, VECTOR, track_tensor_ops=operations)
    assert same_state(before, state(model))


def test_attributes_of_an_uninitialised_parameter_are_there_in_a_log_and_after_it():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.LazyLinear(3)
            self.fc.weight.scale = 2.0

        def forward(self, x):
            return self.fc(x) * self.fc.weight.scale

    model = Scaled()
    torcheer.log_forward_pass(model, torch.rand(2, 4))
    assert is_lazy(model.fc.weight)
    assert model.fc.weight.scale == 2.0


def test_a_lazy_model_that_freezes_itself_is_left_as_it_was():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.LazyLinear(3)

        def forward(self, t):
            made = self.fc(t)
            self.fc.requires_grad_(False)
            return made

    model = Frozen()
    torcheer.log_forward_pass(model, torch.rand(2, 4))
    assert isinstance(model.fc.weight, UninitializedParameter)
    assert model.fc.weight.requires_grad
