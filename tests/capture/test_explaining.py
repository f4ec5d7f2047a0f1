"""Tensors that no recorded call made: parameters that the model makes as it runs, and tensors that are filled later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from models import is_upstream, log, made_with

x = torch.rand(3)


def loose(t):
    return nn.Parameter(torch.outer(t, t)) @ t


def in_a_new_module(t):
    layer = nn.Linear(3, 3, bias=False)
    layer.weight = nn.Parameter(torch.outer(t, t))
    return layer(t)


@made_with(inner=lambda: nn.Linear(3, 3, bias=False))
def Own(self, t):
    """Computes the weight of a module of its own."""
    self.inner.weight = nn.Parameter(torch.outer(t, t))
    return self.inner(t)


class Deep(nn.Module):
    """A new module whose parameter is two levels down, and a view of what was computed."""

    def forward(self, t):
        layer = nn.Sequential(nn.Sequential(nn.Linear(3, 3, bias=False)))
        layer[0][0].weight = nn.Parameter(torch.outer(t, t).t())
        return layer(t)


@pytest.mark.parametrize("make", [lambda: loose, lambda: in_a_new_module, Own, Deep])
def test_a_parameter_that_was_computed_from_an_input_depends_on_it(make):
    history = log(make(), x)
    last = history.operations[-2]
    assert is_upstream(history, "outer_1", last.label)
    assert len(last.parent_layers) == 2
    assert torch.allclose(history["output"].activation, torch.outer(x, x) @ x)
    assert history.validate()


@pytest.mark.parametrize("make", [lambda: in_a_new_module, Own, Deep])
def test_it_does_so_in_a_recording(make):
    model = make()
    with torcheer.recording() as history:
        model(x * 1)
    assert is_upstream(history, "outer_1", history.operations[-1].label)


def test_a_parameter_that_was_computed_from_no_input_is_a_parameter():
    """A module that is made in the pass has the parameters it was made with."""

    def made_here(t):
        layer = nn.Linear(3, 2)
        layer.scale = nn.Parameter(torch.ones(2) * 3)
        return layer(t) * layer.scale

    history = log(made_here, x)
    assert len(history["mul_1"].parent_params) == 1
    assert history["mul_1"].parent_layers == ["linear_1_3"]
    assert history.validate()


EMPTY = {
    "filled": (lambda t: t + torch.empty(3).fill_(1), ["empty_1", "fill_1", "add_1"]),
    "without elements, used": (lambda t: torch.cat([torch.empty(0), t]), ["empty_1", "cat_1"]),
    "given memory unseen": (lambda t: torch.empty(0).set_(t) + 1, ["add_1"]),
    "never used": (lambda t: (torch.empty(0), torch.empty(2), t + 1)[2], ["add_1"]),
}


@pytest.mark.parametrize("name", EMPTY)
def test_what_torch_empty_made_is_there_where_it_was_used(name):
    """The placeholder that a data loader fills unseen is not; a recording also shows what ran and led nowhere."""
    program, labels = EMPTY[name]
    history = log(program, x)
    assert [one.layer_label_short for one in history.operations[1:-1] if one.layer_type != "set"] == labels
    with torcheer.recording() as recorded:
        program(x)
    shown = [one.layer_label_short for one in recorded.operations if one.layer_type not in ("set", "input")]
    assert shown == (["empty_1", "add_1"] if name == "never used" else labels)
    assert (name == "never used") == (recorded["empty_1"].shape == (2,) if "empty_1" in shown else False)
