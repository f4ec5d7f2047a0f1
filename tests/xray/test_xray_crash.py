"""A training that is killed: what was taken can be read, and the run goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
from torch import nn

from forked import start_a_copy
from torcheer import Xray


def make_model():
    return nn.Sequential(nn.Conv2d(1, 40, 3), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 2))


def train(folder):
    """Until it is killed."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    xray = Xray(model, (2, 1, 8, 8), ["0", "3"], folder=folder, optimizer=optimizer)
    print(xray._next)
    for step in range(10_000):
        optimizer.zero_grad()
        model(torch.randn(4, 1, 8, 8)).square().mean().backward()
        optimizer.step()
        xray.take_graphs()
        if step == 3:
            print("running")


@pytest.mark.parametrize("after", [0.0, 0.15, 0.3])
def test_a_training_that_is_killed_loses_at_most_the_snapshot_being_written(tmp_path, after):
    """kill -9 in the middle of a loop that takes a snapshot at every step; then another process goes on."""
    training, said = start_a_copy(lambda: train(tmp_path))
    with said:
        assert said.readline() == "0\n"
        assert said.readline() == "running\n"
        time.sleep(after)
        os.kill(training, signal.SIGKILL)
        os.waitpid(training, 0)
    run = Xray.open(tmp_path).run
    steps = run.steps()
    assert steps == list(range(len(steps)))  # no step is missing
    assert len(steps) >= 3  # of four that were taken, the last may not have been written
    rows = {run.entry("0", "weight", step).rows for step in steps}
    for step in steps:
        assert run.tensor("0", "weight", step).shape == (32, 1, 3, 3)
        assert run.entry("3", "grad", step).statistics.count == 2 * 40 * 36
    with Xray(make_model(), torch.ones(2, 1, 8, 8), ["0", "3"], folder=tmp_path, resume=True) as xray:
        xray.take_graphs()
    assert xray.run.steps() == [*steps, len(steps)]
    assert {xray.run.entry("0", "weight").rows} == rows
