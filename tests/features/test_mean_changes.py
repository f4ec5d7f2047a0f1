"""Means over a dataset replace values while a model runs: mean ablation."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import torcheer as tl
from torcheer import InvalidArgument, changes
from torcheer.reducers import Mean


def moments(values: torch.Tensor, **options):
    reducer = Mean(**options)
    state = reducer.begin()
    reducer.update(state, values, torch.arange(len(values)))
    return reducer.finish(state)


@pytest.mark.parametrize(
    ("shape", "options", "dims"),
    [
        ((6, 3, 4, 5), {}, (0, 2, 3)),
        ((6, 4, 5), {}, (0, 1)),
        ((6, 5), {}, (0,)),
        ((6, 4, 5), {"unit_dim": 1}, (0, 2)),
        ((6, 4, 5), {"unit_dim": "all"}, (0,)),
        ((6,), {}, (0,)),
    ],
)
def test_the_mean_of_each_unit_is_put_where_its_values_are(shape, options, dims):
    values = torch.randn(shape)
    changed = changes.mean(moments(values, **options))(values[:2])
    torch.testing.assert_close(changed, values.mean(dims, keepdim=True).expand(shape)[:2])


def test_the_same_part_is_taken_of_a_mean():
    values = torch.randn(6, 3, 4, 5)
    change = changes.mean(moments(values), at=(slice(None), 1))
    changed = change(values)
    torch.testing.assert_close(changed[:, 1], values[:, 1].mean().expand(6, 4, 5))
    assert torch.equal(changed[:, [0, 2]], values[:, [0, 2]])
    assert str(change) == "mean(<tensor (3, 1, 1)>, at=[:, 1])"


def test_a_mean_that_is_not_known_is_refused():
    with pytest.raises(InvalidArgument, match="1 of 2 units have no finite value"):
        changes.mean(moments(torch.tensor([[1.0, math.nan]])))


def test_a_unit_is_ablated_while_a_model_runs():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)).eval()
    data = torch.randn(20, 1, 6, 6)
    with torch.no_grad():
        model(data)
        inner = model[1](model[0](data))
        wanted = inner.clone()
        wanted[:, 2] = inner[:, 2].mean()
        expected = model[3](model[2](wanted))
        with tl.intervene(model, {"1": changes.mean(moments(inner), at=(slice(None), 2))}):
            torch.testing.assert_close(model(data), expected)
