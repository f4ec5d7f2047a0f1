"""The modules that a callable holds are known by the names under which it holds them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from models import log

x = torch.rand(2, 4)


def through(first, second, t):
    return second(first(t))


class Pipeline:
    """No module, but it holds some."""

    def __init__(self) -> None:
        self.encoder, self.decoder, self.steps = nn.Linear(4, 3), nn.Linear(3, 2), 2

    def __call__(self, t):
        return self.decoder(self.encoder(t))

    def run(self, t):
        return self(t)


def closing():
    encoder, decoder = nn.Linear(4, 3), nn.Linear(3, 2)
    return lambda t: decoder(encoder(t))


HOLDERS = {
    "a closure": (closing, ["decoder", "encoder"]),
    "an object": (Pipeline, ["encoder", "decoder"]),
    "a partial with modules as arguments": (
        lambda: functools.partial(through, nn.Linear(4, 3), nn.Linear(3, 2)),
        ["args_0", "args_1"],
    ),
    "a partial of a closure": (lambda: functools.partial(closing()), ["decoder", "encoder"]),
    "a partial of a partial": (
        lambda: functools.partial(functools.partial(through, nn.Linear(4, 3)), nn.Linear(3, 2)),
        ["args_0", "args_1"],
    ),
    "a partial of a module": (lambda: functools.partial(nn.Sequential(nn.Linear(4, 3))), ["Sequential", "Sequential.0"]),
    "a method of a module": (lambda: nn.Sequential(nn.Linear(4, 3)).forward, ["", "0"]),
    "a module": (lambda: nn.Sequential(nn.Linear(4, 3)), ["", "0"]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_modules_are_named_by_how_they_are_held(name):
    """Those that never run are there too, and nothing changes in them."""
    make, addresses = HOLDERS[name]
    history = log(make(), x)
    assert sorted(history.modules) == sorted(addresses)
    assert history.validate()
