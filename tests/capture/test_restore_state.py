"""Observation changes nothing: the model, its inputs and the random state are as before, also after a failure."""

from __future__ import annotations

import copy
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import torcheer
from models import Convolutional, Mlp, log, same, unchanged, world

x = torch.rand(2, 3)
image = torch.rand(2, 3, 8, 8)


def train(model, observe):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(image).square().mean().backward()
        if observe:
            log(model, image)
        optimizer.step()
        if observe:
            log(model, image, random_seed=5)
    return world(model)


def test_training_is_bit_identical_with_and_without_logging():
    torch.manual_seed(0)
    one = Convolutional()
    two = copy.deepcopy(one)
    plain, observed = train(one, False), train(two, True)
    for part in ("tensors", "gradients", "torch"):
        assert same(plain[part], observed[part])


wide = torch.rand(3, 4)
GRADIENT_WRITES = {
    "add_": lambda weight: weight.grad.add_(1),
    "through .data": lambda weight: weight.grad.data.add_(1),
    "part of it": lambda weight: weight.grad[1:].mul_(3),
    "zero_": lambda weight: weight.grad.zero_(),
    "foreach": lambda weight: torch._foreach_mul_([weight.grad], 2.0),
    "clipped": lambda weight: nn.utils.clip_grad_norm_([weight], 1.0),
    "augmented": lambda weight: setattr(weight, "grad", weight.grad.__iadd__(1)),
    "accumulated": lambda weight: (weight * weight).sum().backward(),
}


@pytest.mark.parametrize("write", GRADIENT_WRITES.values(), ids=GRADIENT_WRITES)
def test_a_log_keeps_what_a_model_writes_to_gradients_that_were_there(write):
    weight = nn.Parameter(torch.arange(4.0))
    weight.grad = torch.arange(4.0) + 5

    class Clipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, t):
            write(self.weight)
            return t * self.weight.grad

    model = Clipping()
    history = torcheer.log_forward_pass(model, wide)
    assert torch.equal(weight.grad, torch.arange(4.0) + 5)
    for operation in history.operations:  # none of them is lost
        assert operation.activation is not None
    assert torcheer.validate_forward_pass(model, wide)
    written = history[-2].inputs[1].clone()
    write(weight)
    assert torch.equal(written, weight.grad)


def test_attributes_of_gradients_are_put_back():
    model = nn.Linear(4, 4)
    model.weight.grad, model.bias.grad = torch.ones(4, 4), torch.ones(4)
    model.weight.grad.norm_before = 4.0

    def forward(t):
        model.weight.grad.norm_before = 5.0
        model.bias.grad.is_seen = True
        model.bias.grad = model.bias.grad * 2
        return model(t)

    torcheer.log_forward_pass(forward, wide)
    assert vars(model.weight.grad) == {"norm_before": 4.0}
    assert vars(model.bias.grad) == {}


def sparse(coalesced):
    places, values = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([1.0, 2.0, 3.0])
    made = torch.sparse_coo_tensor(places, values, (4, 4), check_invariants=True)
    return made.coalesce() if coalesced else made


SPARSE_WRITES = {
    "mul_": lambda matrix: matrix.mul_(2),
    "values": lambda matrix: matrix._values().mul_(2),
    "zero_": lambda matrix: matrix.zero_(),
    "add_": lambda matrix: matrix.add_(torch.eye(4).to_sparse()),
}


@pytest.mark.parametrize("coalesced", [True, False])
@pytest.mark.parametrize("held", ["buffer", "gradient"])
@pytest.mark.parametrize("write", SPARSE_WRITES.values(), ids=SPARSE_WRITES)
def test_what_a_model_writes_to_sparse_tensors_is_put_back_and_kept(write, held, coalesced):
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.zeros(4, 4))
            self.register_buffer("matrix", sparse(coalesced))
            self.table.grad = sparse(coalesced)

        def forward(self, t):
            matrix = self.matrix if held == "buffer" else self.table.grad
            write(matrix)
            return t @ matrix.to_dense()

    model = Graph()
    matrix = model.matrix if held == "buffer" else model.table.grad
    values, count = matrix._values(), matrix._version
    history = torcheer.log_forward_pass(model, wide)
    assert matrix is (model.matrix if held == "buffer" else model.table.grad)
    assert matrix.is_coalesced() is coalesced
    assert matrix._version == count
    assert matrix._values().data_ptr() == values.data_ptr()
    assert torch.equal(matrix.to_dense(), sparse(coalesced).to_dense())
    for operation in history.operations:
        assert operation.activation is not None
    assert torcheer.validate_forward_pass(model, wide)
    assert torch.equal(history["output"].activation, model(wide))


def torch_state():
    return (
        len(module_hooks._global_forward_hooks),
        len(module_hooks._global_forward_pre_hooks),
        len(module_hooks._global_forward_hooks_always_called),
        len(module_hooks._global_forward_hooks_with_kwargs),
        torch._C._len_torch_function_stack(),
        torch.is_grad_enabled(),
        torch.compiler.is_compiling(),
        torch.backends.mha.get_fastpath_enabled(),
        torch.relu,
        torch.nn.functional.relu,
        torch.Tensor.add,
        warnings.filters[:],
        threading.active_count(),
    )


class Fails(nn.Module):
    def __init__(self, error):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(()))
        self.error = error

    def forward(self, t):
        self.count += 1
        self.fc(t)
        raise self.error


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)], ids=lambda e: type(e).__name__)
def test_a_pass_that_raises_leaves_everything_as_it_was(error):
    model = Fails(error)
    before = torch_state()
    with unchanged(model), pytest.raises(type(error)) as caught:
        log(model, x)
    assert caught.value is error
    assert torch_state() == before
    history = error.history
    assert [layer.label for layer in history] == ["input_1_0", "add_1_1", "linear_1_2"]
    assert not history.is_complete
    assert "incomplete" in str(history)


def test_torch_is_as_before_after_a_pass():
    before = torch_state()
    log(Mlp(), torch.rand(2, 4))
    with torcheer.recording():
        torch.ones(3).relu()
    assert torch_state() == before


def test_a_random_seed_fixes_the_pass_and_nothing_else():
    def model(t):
        return t + torch.rand(3) + random.random() + float(np.random.rand())

    before = world(nn.Identity())
    one, two = log(model, x, random_seed=3), log(model, x, random_seed=3)
    other = log(model, x, random_seed=4)
    assert same(world(nn.Identity()), before)
    assert torch.equal(one["output"].tensor_contents, two["output"].tensor_contents)
    assert not torch.equal(one["output"].tensor_contents, other["output"].tensor_contents)
    assert one.random_seed == 3


def test_without_a_seed_the_pass_can_be_repeated_from_its_recorded_state():
    history = log(lambda t: t + torch.rand(3), x)
    torch.rand(10)
    history.random_state.restore()
    assert torch.equal(history["output"].tensor_contents, x + torch.rand(3))


def test_a_recording_keeps_the_effects_of_the_users_code():
    model = Convolutional().train()
    before = model.features[1].running_mean.clone()
    state = torch.get_rng_state()
    with torcheer.recording(model):
        model(image)
    assert not torch.equal(model.features[1].running_mean, before)
    assert not torch.equal(torch.get_rng_state(), state)
