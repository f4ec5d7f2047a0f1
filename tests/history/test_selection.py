"""`layers_to_save` holds what a key means while the model runs, and nothing more."""

from __future__ import annotations

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from models import log
from torcheer._torch.internals import DisableTorchFunction

FUNCTIONS = (torch.sin, torch.cos, torch.exp, torch.tanh, torch.sigmoid)


def held_while_running(wanted) -> tuple[list[str], list[str]]:
    """Which of a chain of functions still have their memory when the model is about to return, and which are saved."""
    held = []

    def chain(t):
        memory = {}
        for function in FUNCTIONS:
            t = function(t)
            with DisableTorchFunction():  # a storage that is asked for in sight is taken to be handed out
                memory[function.__name__] = StorageWeakRef(t.untyped_storage())
        t = t * 1 * 1
        held.extend(name for name, one in memory.items() if not one.expired())
        return t

    history = log(chain, torch.rand(3), layers_to_save=wanted)
    return held, [one.layer_type for one in history.saved]


@pytest.mark.parametrize(
    ("wanted", "held", "saved"),
    [
        ("none", [], []),
        ([3], ["cos", "exp"], ["exp"]),
        ([1, 4], ["sin", "exp", "tanh"], ["sin", "tanh"]),
        (["exp_1"], ["cos", "exp"], ["exp"]),
        (["tanh_1_4"], ["exp", "tanh"], ["tanh"]),
        ([torch.sin, torch.tanh], ["sin", "exp", "tanh"], ["sin", "tanh"]),
        ("input", [], ["input"]),
        (lambda one: one.layer_type == "exp", ["cos", "exp"], ["exp"]),
        (torch.exp, ["cos", "exp"], ["exp"]),
        ([-3], ["sin", "cos", "exp", "tanh", "sigmoid"], ["mul"]),  # known only at the end
    ],
)
def test_a_key_that_is_known_while_the_model_runs_costs_no_more_than_what_it_means(wanted, held, saved):
    """That is the operation and its arguments, which are kept with it."""
    assert held_while_running(wanted) == (held, saved)
