"""Digests: equal where batches and functions are equal, in every process, and different where something they use differs."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from torcheer.features.digests import described_function, value_digest

SCALE = torch.ones(3)
FACTOR = 2


def helper(tensor):
    return tensor * FACTOR


class Projection:
    step = 1

    def __init__(self, by: Any) -> None:
        self.by = by
        self.made_at = object()  # differs each time, and is not used

    def apply(self, tensor):
        return self.moved(tensor)

    def moved(self, tensor):
        return tensor * self.by + self.step

    def __call__(self, tensor):
        return tensor * self.by


def closing_over(value):
    return lambda tensor: tensor + value.sum()


def uses_a_global(tensor):
    return tensor * SCALE


def calls_a_helper(tensor):
    return helper(tensor)


def first_of_sets(tensor):
    return tensor if "a" in {"a", "b", "c", "dd", "eee"} else -tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda n: closing_over(torch.full((2,), n)),
        lambda n: closing_over(np.full(2, n)),
        lambda n: closing_over(np.array([n, "text"], dtype=object)),
        lambda n: (lambda inner: lambda tensor: inner(tensor))(with_weight(n)),
        lambda n: (lambda inner: lambda tensor: inner(tensor))(functools.partial(torch.mul, other=n)),
        lambda n: Projection(n),
        lambda n: Projection(n).apply,
        lambda n: functools.partial(Projection(n).apply),
        lambda n: (lambda inner: lambda tensor: inner.moved(tensor))(Projection(n)),
        lambda n: (lambda options: lambda tensor: tensor + options["by"])({"by": n}),
        lambda n: (lambda some: lambda tensor: tensor + len(some))({n, "x"}),
        lambda n: with_weight(n).forward,
    ],
)
def test_functions_differ_where_what_they_use_does(make):
    assert described_function(make(1)) == described_function(make(1)) != described_function(make(2))


def with_weight(value):
    module = nn.Linear(2, 2)
    nn.init.constant_(module.weight, value)
    nn.init.constant_(module.bias, 0)
    return module


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (uses_a_global, "SCALE", torch.zeros(3)),
        (calls_a_helper, "FACTOR", 3),
        (calls_a_helper, "helper", lambda tensor: -tensor),
        (lambda tensor: Projection.step * tensor, "Projection", nn.Linear(1, 1)),
        (lambda tensor: [one * SCALE for one in tensor], "SCALE", torch.zeros(3)),
    ],
)
def test_globals_that_a_function_uses_belong_to_it(function, name, value, monkeypatch):
    before = described_function(function)
    monkeypatch.setitem(globals(), name, value)
    assert described_function(function) != before


def test_what_a_function_does_not_use_does_not_matter(monkeypatch):
    before = described_function(uses_a_global), described_function(Projection(1).apply)
    monkeypatch.setitem(globals(), "FACTOR", 17)
    projection = Projection(1)
    projection.unused = torch.rand(3)
    assert (described_function(uses_a_global), described_function(projection.apply)) == before


@pytest.mark.parametrize(
    "make",
    [
        lambda n: (lambda device: lambda model, batch: model(batch.to(device)))(f"cuda:{n}"),
        lambda n: (lambda where: lambda model, batch: model(batch.to(where)))(torch.device("cuda", n)),
        lambda n: (lambda local_rank: lambda model, batch: model(batch.to(local_rank)))(n),
    ],
)
def test_the_device_of_a_process_does_not_matter(make):
    assert described_function(make(1)) == described_function(make(2))


def test_functions_that_call_themselves_and_objects_that_hold_themselves_end():
    projection = Projection(1)
    projection.by = [projection]

    def again(tensor):
        return again(tensor) + projection.by

    assert described_function(again) == described_function(again)


def test_the_same_list_twice_counts_as_two_equal_lists():
    once = [torch.ones(2)]
    assert value_digest([once, once]) == value_digest([[torch.ones(2)], [torch.ones(2)]])


def test_digests_are_the_same_in_every_process():
    """Python orders sets of texts otherwise in each."""
    program = (
        "import test_digests as t, torch; from torcheer.features.digests import *; "
        "print(described_function(t.first_of_sets), value_digest([{'a', 'b', 'c', 'dd'}, object(), torch.ones(2)]))"
    )
    command = [sys.executable, "-c", program]
    found = {
        subprocess.run(command, capture_output=True, text=True, check=True, cwd="tests/features", env=seeded(seed)).stdout
        for seed in (1, 2)
    }
    assert len(found) == 1


def seeded(seed: int) -> dict[str, str]:
    source = os.path.abspath("src")
    return {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": f"{source}:{os.environ.get('PYTHONPATH', '')}"}


@dataclass
class Batch:
    x: Any


class Opaque:
    def __init__(self, x: Any) -> None:
        self.x = x


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.full((3,), n),
        lambda n: {"x": torch.ones(3), "scale": n},
        lambda n: (torch.ones(3), [f"text {n}"]),
        lambda n: {"x": np.full(3, n)},
        lambda n: [np.full(2000, n)],
        lambda n: Batch(torch.full((3,), n)),
        lambda n: Batch(n),
        lambda n: Opaque(torch.full((3,), n)),
        lambda n: OrderedDict(x=torch.ones(2), y=n),
        lambda n: [torch.ones(2), np.int64(n)],
        lambda n: (torch.ones(2), None if n == 1 else False),
        lambda n: torch.ones(n),
        lambda n: [[n], [torch.ones(2)], [n]],
        lambda n: torch.ones(3, dtype=torch.int8 if n == 1 else torch.uint8),
    ],
)
def test_batches_differ_where_any_of_their_values_does(make):
    assert value_digest(make(1)) == value_digest(make(1)) != value_digest(make(2))
