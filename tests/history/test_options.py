"""The options of logging are named once, typed for editors, shown by help, and checked."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch
from torch import nn

import torcheer
from torcheer.history.keeping.options import LogOptions, Options

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
    with pytest.raises(torcheer.InvalidArgument, match=r"no option 'layer_to_save'. Did you mean layers_to_save"):
        torcheer.log_forward_pass(MODEL, X, layer_to_save="none")
    with pytest.raises(torcheer.InvalidArgument, match=r"no option 'zzz'. It takes layers_to_save, .*, unseen"):
        torcheer.recording(MODEL, zzz=1)
    with pytest.raises(torcheer.InvalidArgument, match=r"Did you mean random_seed\?"):
        torcheer.log_forward_pass(MODEL, X, random_sed=1)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ({"output_device": "bla"}, "output_device is a device of this machine"),
        ({"output_device": 3.5}, "output_device is a device of this machine"),
        ({"layer_label_format": 3}, "layer_label_format is a text"),
        ({"keep_orphans": "no"}, "keep_orphans is True or False"),
        ({"time_on_device": "yes"}, "time_on_device is True or False"),
    ],
)
def test_options_of_the_wrong_kind_say_what_they_are(option, expected):
    with pytest.raises(torcheer.InvalidArgument, match=expected):
        torcheer.log_forward_pass(MODEL, X, **option)
