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
