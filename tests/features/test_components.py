"""Principal components equal a singular value decomposition, whichever way they are found."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from torcheer import InvalidArgument
from torcheer.features.statistics import Rows, components_of, from_covariance
from torcheer.reducers import Covariance

rng = np.random.default_rng(0)


def features(samples: int, width: int) -> np.ndarray:
    """Features that vary along few directions, much along the first."""
    return (
        rng.normal(size=(samples, 4)) * [8, 4, 2, 1] @ rng.normal(size=(4, width)) + 0.1 * rng.normal(size=(samples, width)) + 5
    )


def assert_equals_svd(found, values: np.ndarray, k: int) -> None:
    away = values - values.mean(0)
    _, lengths, directions = np.linalg.svd(away, full_matrices=False)
    variances = lengths**2 / len(values)
    np.testing.assert_allclose(found.variances.numpy(), variances[:k], rtol=1e-8)
    np.testing.assert_allclose(np.abs((found.directions.numpy() * directions[:k]).sum(1)), 1, rtol=1e-7)
    np.testing.assert_allclose(found.explained.numpy(), variances[:k] / variances.sum(), rtol=1e-8)
    np.testing.assert_allclose(found.mean.numpy(), values.mean(0))
    assert (found.directions.numpy()[range(k), np.abs(found.directions.numpy()).argmax(1)] > 0).all()


@pytest.mark.parametrize(("samples", "width"), [(200, 7), (9, 60), (12, 12), (30, 300_000)])
def test_components_are_those_of_a_singular_value_decomposition(samples, width):
    values = features(samples, width)
    found = components_of(Rows("layer", values), 4)
    assert_equals_svd(found, values, 4)
    projected = found.project()
    np.testing.assert_allclose(projected.numpy(), (values - values.mean(0)) @ found.directions.numpy().T, atol=1e-8)
    np.testing.assert_allclose(projected.numpy().var(0), found.variances.numpy(), rtol=1e-8)


def test_rows_are_read_a_few_columns_at_a_time(monkeypatch):
    monkeypatch.setattr("torcheer.features.statistics._ROOM", 4000)
    values = features(9, 60).reshape(9, 10, 6)
    assert_equals_svd(components_of(Rows("layer", values), 4), values.reshape(9, 60), 4)


@pytest.mark.parametrize(("samples", "width"), [(9, 3), (3, 9)])
def test_values_whose_products_are_not_finite_are_refused(samples, width):
    with pytest.raises(InvalidArgument, match="products of the values are too large for principal components"):
        components_of(Rows("layer", 1e300 * features(samples, width)), 2)


def test_everything_of_a_sample_is_one_row():
    values = features(40, 2 * 3 * 3).reshape(40, 2, 3, 3).astype(np.float32)
    found = components_of(Rows("conv", torch.from_numpy(values)), 3)
    assert_equals_svd(found, values.reshape(40, -1).astype(np.float64), 3)
    one = found.project(torch.from_numpy(values[5:6]))
    np.testing.assert_allclose(one.numpy(), found.project()[5:6].numpy(), atol=1e-9)


def test_more_components_than_there_are_gives_all():
    assert len(components_of(Rows("layer", features(5, 30)), 99).directions) == 5
    assert len(components_of(Rows("layer", features(30, 5)), 99).directions) == 5


def test_a_covariance_that_was_kept_gives_the_components_of_units():
    values = features(50, 6)
    reducer = Covariance()
    state = reducer.begin()
    reducer.update(state, torch.from_numpy(values), torch.arange(50))
    found = from_covariance(reducer.finish(state), 3)
    assert_equals_svd(found, values, 3)
    with pytest.raises(InvalidArgument, match="give the values to project"):
        found.project()


def test_samples_that_are_not_finite_are_left_out():
    values = features(50, 6)
    values[[2, 9], 3] = [math.nan, math.inf]
    found = components_of(Rows("layer", values), 2)
    assert_equals_svd(found, np.delete(values, [2, 9], axis=0), 2)
    assert found.samples == 48
    assert "2 samples" in str(found)


def test_what_cannot_be_is_refused_in_words():
    rows = Rows("layer", features(50, 60))
    with pytest.raises(InvalidArgument, match=r"need more than .* samples=17"):
        components_of(rows, 2, memory=10_000)
    assert components_of(rows.of(np.arange(17)), 2, memory=10_000).samples == 17
    for wrong in (0, True, "3"):
        with pytest.raises(InvalidArgument, match="1 or more"):
            components_of(rows, wrong)
    with pytest.raises(InvalidArgument, match="60 features for each sample; got 3"):
        components_of(rows, 2).project(torch.zeros(2, 3))
    with pytest.raises(InvalidArgument, match="2 samples or more"):
        components_of(rows.of(np.arange(1)), 2)
