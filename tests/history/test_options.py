"""The options of logging are named once, typed for editors, shown by help, and checked."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch
from torch import nn

import torcheer
from torcheer.log.options import LogOptions, Options

MODEL, X = nn.Linear(2, 3), torch.ones(1, 2)


def test_names_and_types_for_editors_are_those_of_the_options():
    typed = {name: getattr(one, "__forward_arg__", one) for name, one in LogOptions.__annotations__.items()}
    assert typed == {field.name: field.type for field in fields(Options)}


@pytest.mark.parametrize("function", [torcheer.log_forward_pass, torcheer.recording])
def test_help_shows_every_option_with_its_default(function):
    shown = inspect.signature(function).parameters
    for field in fields(Options):
        assert shown[field.name].default == field.default
        assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY


def test_an_unknown_option_names_the_nearest_one():
    with pytest.raises(torcheer.InvalidArgument, match=r"no option 'layer_to_save'. Did you mean 'layers_to_save'"):
        torcheer.log_forward_pass(MODEL, X, layer_to_save="none")
    with pytest.raises(torcheer.InvalidArgument, match=r"no option 'zzz'. There are: layers_to_save, .*, unseen"):
        torcheer.recording(MODEL, zzz=1)
    with pytest.raises(torcheer.InvalidArgument, match=r"Did you mean 'random_seed'\?"):
        torcheer.log_forward_pass(MODEL, X, random_sed=1)
    with pytest.raises(torcheer.InvalidArgument, match=r"TrainingStep\.log takes no option 'unsen'\. Did you mean 'unseen'\?"):
        torcheer.TrainingStep(MODEL, X).log(unsen="warn")
    assert torcheer.TrainingStep(MODEL, X).log(random_seed=1).random_seed == 1


def test_an_unknown_option_that_an_xray_hands_on_names_the_nearest_one(tmp_path):
    with torcheer.Xray(MODEL, X, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    layer = xray.run.layers[0]
    for call in (xray.gif, xray.strip):
        with pytest.raises(torcheer.InvalidArgument, match=r"takes no option 'frame'\. Did you mean 'frames'\?"):
            call(layer, "layer", tmp_path / "out", frame=2)
    with pytest.raises(torcheer.InvalidArgument, match=r"Xray\.report takes no option 'titel'\. Did you mean 'title'\?"):
        xray.report(tmp_path / "out.html", titel="")


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torcheer.summary(MODEL, X, colums=["time"]), "colums"),
        (lambda: torcheer.validate_forward_pass(MODEL, X, seed=1), "seed"),
        (lambda: torcheer.Xray(MODEL, X, layer=["0"]), "layer"),
    ],
)
def test_where_all_arguments_have_names_python_tells_the_unknown_one(call, name):
    """Its TypeError names the function and the argument."""
    with pytest.raises(TypeError, match=rf"\w+\(\) got an unexpected keyword argument '{name}'"):
        call()


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"output_device": "bla"}, "output_device is a device of this machine"),
        ({"output_device": 3.5}, "output_device is a device of this machine"),
        ({"layer_label_format": 3}, "layer_label_format is a text"),
        ({"keep_orphans": "no"}, "keep_orphans is True or False"),
        ({"time_on_device": "yes"}, "time_on_device is True or False"),
        ({"save_gradients": 3.3}, "^save_gradients must be"),
        ({"layers_to_save": 3.3}, "^layers_to_save must be"),
    ],
)
def test_options_of_the_wrong_kind_say_what_they_are(option, expected):
    with pytest.raises(torcheer.InvalidArgument, match=expected):
        torcheer.log_forward_pass(MODEL, X, **option)
