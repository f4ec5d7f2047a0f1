"""The entry points refuse what they cannot work with, in words that help."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp, labels, log, made_of
from torcheer import InvalidArgument

x = torch.rand(3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers_to_save": 3.5}, "layers_to_save must be"),
        ({"random_seed": -1}, "random_seed must be"),
        ({"random_seed": "seven"}, "random_seed must be"),
        ({"random_seed": True}, "random_seed must be"),
        ({"vis_opt": "nonsense"}, "vis_opt"),
        ({"activation_postfunc": 3}, "activation_postfunc must be"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(options, message):
    ran = []
    with pytest.raises(InvalidArgument, match=message):
        log(lambda t: ran.append(t), x, **options)
    assert ran == []


def test_a_model_must_be_callable():
    with pytest.raises(InvalidArgument, match="model must be callable"):
        torcheer.log_forward_pass(3, x)


@pytest.mark.parametrize(
    "call", [torcheer.log_forward_pass, torcheer.summary, torcheer.validate_forward_pass, torcheer.show_model_graph]
)
def test_a_class_of_modules_is_no_model(call):
    """The parentheses were forgotten: it would be made, with the input as a setting, and nothing would run."""
    with pytest.raises(InvalidArgument, match=r"got the class ReLU\. Make one of it first: model = ReLU\("):
        call(nn.ReLU, torch.ones(2))


@pytest.mark.parametrize("kwargs", [[("a", 1)], {1: 2}, "x"])
def test_named_arguments_must_be_a_dictionary_of_names(kwargs):
    with pytest.raises(InvalidArgument, match="input_kwargs"):
        torcheer.log_forward_pass(Mlp(), x, kwargs)


def test_named_arguments_are_passed():
    history = torcheer.log_forward_pass(lambda a, *, scale: a * scale, x, {"scale": torch.tensor(2.0)})
    assert [one.io_role for one in history.inputs] == ["args[0]", "kwargs['scale']"]
    only = torcheer.log_forward_pass(lambda *, a: a + 1, None, {"a": x})
    assert labels(only) == ["add_1"]


def test_a_recording_takes_modules():
    with pytest.raises(InvalidArgument, match="takes modules"):
        torcheer.recording(x)


CALLABLES = {
    "function": lambda model: lambda t: model(t),
    "bound method": lambda model: model.forward,
    "partial": lambda model: functools.partial(model),
    "module": lambda model: model,
    "object": lambda model: type(
        "Runner", (), {"__init__": lambda s: setattr(s, "net", model), "__call__": lambda s, t: s.net(t)}
    )(),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_any_callable_is_a_model(kind):
    history = torcheer.log_forward_pass(CALLABLES[kind](Mlp()), x)
    assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    assert history["linear_1"].containing_module.endswith("fc1")
    assert [p.name.split(".")[-2:] for p in history["linear_1"].parent_params] == [["fc1", "weight"], ["fc1", "bias"]]


def test_modules_made_on_the_fly_are_named_after_their_class():
    history = log(made_of(lambda self, t: nn.Softmax(-1)(t) + nn.Softmax(-1)(t)), x)
    assert {"Softmax", "Softmax_2"} <= set(history.keys())


def test_an_empty_pass_can_be_logged():
    with pytest.warns(torcheer.EmptyLogWarning, match="this log is empty"):
        history = torcheer.log_forward_pass(lambda: None, ())
    assert len(history) == 0
    assert str(history)
