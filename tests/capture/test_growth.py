"""The work of a log grows in proportion to the model: twice the layers, twice the lines of our code that run.

Lines are counted, not seconds, so that the tests do not depend on the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torcheer as tl
from lines_run import LinesRun


class Layers(nn.Module):
    """`count` modules, one after the other."""

    def __init__(self, count: int, make: Callable[[], nn.Module], step: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([make() for _ in range(count)])
        self.step = step

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.step(layer, x)
        return x


class Rows(nn.Module):
    """Writes to one row of a buffer after the other."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(count, 4))

    def forward(self, x: Tensor) -> Tensor:
        for place in range(len(self.rows)):
            self.rows[place] = x[0]
            x = x + self.rows[place]
        return x


def plain(layer: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = layer(x)
    return result


MODELS: dict[str, Callable[[int], nn.Module]] = {
    "layers": lambda count: Layers(count, lambda: nn.Linear(4, 4), plain),
    "results written in place": lambda count: Layers(count, lambda: nn.Linear(4, 4), lambda layer, x: layer(x).add_(x).relu_()),
    "running statistics": lambda count: Layers(count, lambda: nn.BatchNorm1d(4), plain),
    "arguments that are handed back": lambda count: Layers(count, nn.Identity, lambda layer, x: layer(x.to(x.dtype)) + 1),
    "rows of a buffer": Rows,
}
CALLS: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "log": tl.log_forward_pass,
    "log of one layer": lambda model, x: tl.log_forward_pass(model, x, layers_to_save=[-1]),
    "print": lambda model, x: str(tl.log_forward_pass(model, x)),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", MODELS)
def test_lines_run_grow_in_proportion_to_the_layers(kind: str, call: str) -> None:
    counts = []
    for size in (64, 128, 256, 512) if call == "print" else (4, 8, 16, 32):  # print looks for equal blocks from 61 on
        model, x = MODELS[kind](size), torch.rand(4, 4)
        CALLS[call](model, x)  # what is done once, such as looking a function up, is done now
        with LinesRun() as run:
            CALLS[call](model, x)
        counts.append(run.count)
    first, second, third = (after - before for before, after in pairwise(counts))
    assert first > 0
    assert third <= 2.2 * second <= 2.2 * 2.2 * first, counts


def looped(times: int) -> Callable[[Tensor], Tensor]:
    def loop(x: Tensor) -> Tensor:
        for _ in range(times):
            x = x + 1
        return x

    return loop


@pytest.mark.parametrize("key", [1, "add_1", "add_1_1", torch.add])
def test_a_lookup_runs_few_lines_for_each_pass(key: Any) -> None:
    counts = []
    for times in (100, 200):
        history = tl.log_forward_pass(looped(times), torch.rand(4, 4))
        found = history[key]
        assert len(found[0].passes if isinstance(found, list) else found.passes) == times
        with LinesRun() as run:
            history[key]
        counts.append(run.count)
    assert counts[1] - counts[0] <= 100 * 12, counts  # lines for each pass: whether it is shown, and of which layer it is
