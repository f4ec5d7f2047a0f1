"""ArchitectureTracer: from any layer to its autograd node, and from any node to its layer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torcheer import LayerNotFound
from torcheer.xray import ArchitectureTracer


class Branches(nn.Module):
    """Two convolutions with the same kind of node, a function in between, and the absolute value that a loss may use too."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3, padding=1)
        self.out = nn.Linear(2, 3)

    def forward(self, x):
        x = F.relu(self.one(x)).abs()
        return self.out((x + F.gelu(self.two(x))).mean((2, 3)))


@pytest.fixture
def tracer():
    return ArchitectureTracer(Branches(), (2, 1, 6, 6))


def all_nodes(output: torch.Tensor) -> list:
    waiting, seen = [output.grad_fn], {}
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen[node] = None
            waiting += [following for following, _ in node.next_functions]
    return list(seen)


def test_every_node_of_the_backward_graph_has_its_layer(tracer):
    """Which convolution a ConvolutionBackward belongs to is known, and a node of a parameter tells the parameter."""
    owners = {}
    for node in all_nodes(tracer.output):
        owners.setdefault(type(node).__name__, set()).add(tracer.layer_of(node))
    assert owners["ConvolutionBackward0"] == {"conv2d_1_1", "conv2d_2_4"}
    assert owners["AbsBackward0"] == {"abs_1_3"}
    assert owners["AccumulateGrad"] == {f"{layer}.{kind}" for layer in ("one", "two", "out") for kind in ("weight", "bias")}
    assert None not in {owner for found in owners.values() for owner in found}


def test_the_node_of_a_convolution_leads_to_its_own_weight(tracer):
    """The layer a node was given is right: its parameters are that layer's."""
    for node in all_nodes(tracer.output):
        if type(node).__name__ == "ConvolutionBackward0":
            weight = next(following for following, _ in node.next_functions if hasattr(following, "variable"))
            module = tracer.module(tracer.layer_of(node))
            assert tracer.layer_of(weight).startswith(f"{module}.")


def test_from_a_layer_to_its_node_and_neighbours(tracer):
    """By label or by module."""
    assert tracer.grad_fn("one") == "ConvolutionBackward0"
    assert tracer.grad_fn("gelu_1") == "GeluBackward0"
    assert [type(node).__name__ for node in tracer.nodes_of("two")] == ["ConvolutionBackward0"]
    assert tracer.parents("two") == ["abs_1_3"]
    assert tracer.children("one") == ["relu_1_2"]
    assert tracer.activation("one") == "relu_1_2"
    assert tracer.activation("two") == "gelu_1_5"
    assert tracer.activation("out") is None
    assert tracer.modules == ["one", "two", "out"]


def test_a_stranger_s_node_is_told(tracer):
    """With what to do instead."""
    with pytest.raises(LayerNotFound, match=r"tracer\.output\.grad_fn"):
        tracer.layer_of(torch.ones(1, requires_grad=True).exp().grad_fn)


def test_the_defaults_as_a_dictionary(tracer):
    """To change and hand to an Xray."""
    found = tracer.layers_to_inspect()
    assert found["one"] == {"weight": False, "layer": True, "activation": True, "grad": False}
    assert found["out"] == {"weight": False, "layer": True, "activation": False, "grad": False}


def test_nothing_is_left_behind():
    """No gradient, no mode changed; printing names every layer."""
    model = Branches()
    tracer = ArchitectureTracer(model, (1, 1, 6, 6))
    assert all(param.grad is None for param in model.parameters())
    assert model.training
    assert "conv2d_2_4  [two]  ConvolutionBackward0 → gelu_1_5" in str(tracer)


class WrittenOut(nn.Module):
    """A GELU written out in a module of its own."""

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(0.79788 * (x + 0.044715 * x**3)))


class NewGELUActivation(WrittenOut):
    pass


def test_an_activation_module_of_several_operations_is_one_activation():
    """Its output counts, not the tanh inside."""
    tracer = ArchitectureTracer(nn.Sequential(nn.Linear(2, 3), NewGELUActivation(), nn.Linear(3, 1)), (1, 2))
    assert tracer.activation("0") == tracer.history["1"].label
