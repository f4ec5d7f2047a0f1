"""What is held against a model: of the catalogue in test_promises.py, and of tests that state more about their own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import torcheer
from catalogue.entry import Entry
from models import unchanged
from torcheer._torch.internals import is_functorch_wrapped
from torcheer.replay.comparison import difference, same_bits
from torcheer.replay.walk import tensors_of


def seed() -> None:
    torch.default_generator.manual_seed(0)  # quicker than `torch.manual_seed`, which also seeds devices
    random.seed(0)
    np.random.seed(0)


Made = tuple[Any, tuple[Any, ...], dict[str, Any]]


def made(entry: Entry | Callable[[], Made]) -> Made:
    """A new model and its arguments; from here on every run draws the same."""
    seed()
    new = (entry.make(), entry.given(), dict(entry.kwargs)) if isinstance(entry, Entry) else entry()
    seed()
    return new


def uninitialised(history: torcheer.ModelHistory) -> set[str]:
    """What is in memory that nobody wrote to."""
    found: set[str] = set()
    for one in history.operations:
        is_empty = one.layer_type in ("empty", "emptylike", "emptystrided", "newempty")
        if is_empty or (one.layer_type in ("setdata", "setitem", "alias") and found & set(one.parent_layers)):
            found.add(one.label)
    return found


def assert_same_values(one: torcheer.ModelHistory, other: torcheer.ModelHistory) -> None:
    """Bit for bit, where both have values; not of memory that nobody wrote to."""
    untold = uninitialised(one)
    for ours, theirs in zip(one.operations, other.operations, strict=True):
        if theirs.has_saved_activations and ours.label not in untold:
            made, again = ours.tensor_contents, theirs.tensor_contents
            assert same_bits(made, again), f"{ours.label}: {difference(made, again)}"


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error of torch that it raises."""
    try:
        return call()
    except RuntimeError as error:
        return error


def assert_logged_as_it_runs(entry: Entry | Callable[[], Made]) -> torcheer.ModelHistory | None:
    """A log has the inputs and outputs of the plain model, is proved, and changes nothing; both raise what torch raises."""
    twin, args, kwargs = made(entry)
    given = [one.detach().clone() for one in tensors_of((args, kwargs))]
    expected = outcome(lambda: tensors_of(twin(*args, **kwargs)))
    model, args, kwargs = made(entry)
    with unchanged(model, args, kwargs):
        history = outcome(lambda: torcheer.log_forward_pass(model, args, kwargs))
    if isinstance(history, RuntimeError):
        assert str(history) == str(expected)
        return None
    assert not isinstance(expected, RuntimeError), expected
    ours = [one.tensor_contents for one in history.outputs]
    assert len(ours) == len(expected)
    for mine, plain in zip(ours, expected, strict=True):
        assert same_bits(mine, plain), difference(mine, plain)
        assert not is_functorch_wrapped(mine)
    if len(given) == len(history.inputs):
        assert all(map(same_bits, [one.tensor_contents for one in history.inputs], given))
    with unchanged(model, args, kwargs):
        report = torcheer.validate_forward_pass(model, args, kwargs)
    assert report, str(report)
    assert report.num_operations == history.num_operations
    return history
