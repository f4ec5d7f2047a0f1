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


KINDS = {
    "parameter": lambda: {"code": nn.Parameter(torch.rand(3))},
    "buffer": lambda: {"code": nn.Buffer(torch.rand(3))},
    "attribute": lambda: {"code": torch.rand(3)},
}
MAKERS = {
    "view": lambda made: nn.Parameter(made.detach()),
    "copy": lambda made: nn.Parameter(made.detach().clone()),
    "part": lambda made: nn.Parameter(made.detach().repeat(2)[3:]),
}


class Made(nn.Module):
    """Makes a parameter of what it computes from something else that it holds."""

    def __init__(self, held, make, in_module):
        super().__init__()
        for name, value in held().items():
            setattr(self, name, value)
        self.make = make
        self.inner = nn.Linear(3, 3) if in_module else None
        self.edit = nn.Identity()

    def forward(self, t):
        bias = self.make(self.edit(torch.tanh(self.code)))
        if self.inner is None:
            return t * bias
        self.inner.bias = bias
        return self.inner(t)


class Tripled(nn.Module):
    def forward(self, value):
        return value * 3


@pytest.mark.parametrize("in_module", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("held", KINDS.values(), ids=KINDS)
def test_a_parameter_that_was_computed_from_what_the_model_holds_depends_on_it(held, make, in_module):
    model = Made(held, make, in_module)
    history = log(model, x)
    assert is_upstream(history, "tanh_1", history.operations[-2].label)
    assert history.validate()
    change = {"tanh_1": torcheer.changes.scale(3)}
    changed = history.replay(changes=change)
    with torcheer.intervene(model, change, like=history):
        live = model(x)
    model.edit = Tripled()
    assert torch.equal(changed["output"].activation, model(x))
    assert torch.equal(live, model(x))


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


def loose_constant(t):
    return t * nn.Parameter(torch.ones(3) * 2)


def loose_random(t):
    return t * nn.Parameter(torch.rand(3) * 2)


def loose_filled(t):
    return t * nn.Parameter(torch.empty(3).fill_(2) * 2)


def in_a_module_that_is_made(t):
    layer = nn.Linear(3, 3)
    layer.bias = nn.Parameter(torch.ones(3) * 2)
    return layer(t)


def initialised(t):
    layer = nn.Linear(3, 3)
    nn.init.constant_(layer.bias, 2)
    return layer(t)


@pytest.mark.parametrize(
    ("program", "key"),
    [(loose_constant, "mul_1"), (loose_random, "mul_1"), (loose_filled, "mul_1"), (in_a_module_that_is_made, "mul_1")],
)
def test_a_replay_never_goes_on_with_a_parameter_made_of_what_changes(program, key):
    history = log(program, x, keep_orphans=True)
    change = {key: torcheer.changes.scale(3)}
    with pytest.raises(torcheer.ReplayFailed, match=r"may be what the model made the parameter '\S+' of"):
        history.replay(changes=change)
    history.replay(inputs=x + 1)
    history.replay(changes={history.layer_labels[-2]: torcheer.changes.scale(3)})


def test_what_fills_a_parameter_that_is_made_can_be_changed():
    history = torcheer.log_forward_pass(initialised, x, keep_orphans=True, random_seed=1)
    change = {"constant_1": torcheer.changes.scale(3)}
    changed = history.replay(changes=change)
    assert torch.allclose(changed["output"].activation, history["output"].activation + 4)


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
