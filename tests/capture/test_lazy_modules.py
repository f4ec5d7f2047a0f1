"""Lazy modules are logged as they are, and afterwards they are uninitialised again: class, hooks, parameters and buffers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter, is_lazy

import torch_vis
from catalogue.modules import LAZY, LazyLinear
from models import log, unchanged

VECTOR = torch.rand(3, 5)


def trained(model, given):
    """A model is usable when it can be initialised, trained, copied and saved."""
    torch.manual_seed(3)
    model(given)
    torch.optim.SGD(model.parameters(), 0.1)
    model(given).sum().backward()
    copied = copy.deepcopy(model)
    return {name: value.detach().clone() for name, value in copied.state_dict(keep_vars=True).items() if not is_lazy(value)}


@pytest.mark.parametrize("name", [name for name in LAZY if name not in ("in a closure", "frozen by itself")])
def test_a_lazy_model_that_was_logged_is_initialised_and_trained_as_one_that_was_not(name):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(LAZY[name].make())
    (given,) = LAZY[name].given()
    log(models[0], given)
    assert any(is_lazy(p) for p in models[0].parameters())
    one, two = (trained(model, given) for model in models)
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


def test_gradients_of_a_lazy_model_can_be_followed():
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with unchanged(model):
        history = log(model, VECTOR, save_gradients=True)
    history.log_backward(history.outputs[0].tensor_contents.square().sum())
    assert history["linear_1"].grad_contents is not None
    assert type(model[0].weight) is UninitializedParameter
    assert type(model[1].running_mean) is UninitializedBuffer
    trained(model, VECTOR)


@pytest.mark.parametrize("operations", [True, False])
def test_a_graph_of_forward_and_backward_leaves_a_lazy_model_lazy(operations):
    model = nn.Sequential(LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    with unchanged(model):
        torch_vis.track_computational_graph_execution(model, VECTOR, track_tensor_ops=operations)
