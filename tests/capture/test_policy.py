"""What a recording keeps is a policy that is given to it: which operations, and what is held of their tensors."""

from __future__ import annotations

import torch
from torch import nn

from torcheer.capture import Policy, Session
from torcheer.log.records import Log


def run(policy: Policy, model: nn.Module, x: torch.Tensor) -> Log:
    log = Log("model")
    Session(log, policy).run(model, (x,), {}, None)
    return log


def test_values_can_be_sent_elsewhere_as_they_are_made():
    """A policy that writes each tensor away sees all of them, in order and as they were, and the log holds what it returned."""
    written: list[torch.Tensor] = []

    def write(tensor: torch.Tensor, record: object) -> str:
        written.append(tensor.clone())
        return f"place {len(written)}"

    model = nn.Sequential(nn.Linear(3, 2), nn.ReLU(inplace=True))
    x = torch.randn(4, 3)
    log = run(Policy(take=write), model, x)
    names = [log.operations[number].function.name for number in range(len(log.rows))]
    assert names == ["input", "linear", "relu", "output"]
    assert log.values == ["place 1", "place 2", "place 3", "place 3"]  # the output is what relu made
    assert torch.equal(written[1], model[0](x))  # before it was overwritten
    assert torch.equal(written[2], model(x))


def test_without_parts_everything_is_kept_by_reference():
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    log = run(Policy(), model, x)
    assert torch.equal(log.values[1], model(x))
    assert Policy().is_plain
    assert not Policy(take=lambda tensor, record: None).is_plain
