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
