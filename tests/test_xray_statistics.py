"""Statistics of whole tensors, against plain PyTorch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torcheer.xray.statistics import BIN_EDGES, NUM_BINS, ZERO_BIN, statistics_of


def histogram_by_hand(values: list[float]) -> tuple[int, ...]:
    """Each value put into its bin by searching; an edge belongs to the bin that is farther from zero."""
    bins = [0] * NUM_BINS
    for value in values:
        bins[bisect_right(BIN_EDGES, value) if value >= 0 else bisect_left(BIN_EDGES, value)] += 1
    return tuple(bins)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(100_000, generator=torch.Generator().manual_seed(0)),
        torch.randn(7, 5, 3) * 1e-6,
        torch.randn(40).bfloat16(),
        torch.randn(40).double(),
        torch.arange(-5, 10),
        torch.tensor([True, False, True]),
        torch.tensor([1e30, -1e-30, 2.0, -2.0, 0.0]),
        torch.randn(4, 6).t(),
    ],
    ids=["large", "small values", "bfloat16", "double", "integers", "truth values", "extremes", "not contiguous"],
)
def test_statistics_equal_those_of_torch(tensor):
    """Mean, deviation, extremes, norm, zeros and histogram are what torch and a search by hand say."""
    found = statistics_of(tensor)
    plain = tensor.float().double().flatten()
    assert found.count == tensor.numel()
    assert found.mean == pytest.approx(plain.mean().item(), rel=1e-9, abs=1e-12)
    assert found.std == pytest.approx(plain.std(correction=0).item(), rel=1e-6)
    assert (found.min, found.max) == (plain.min().item(), plain.max().item())
    assert found.norm == pytest.approx(plain.norm().item(), rel=1e-9)
    assert found.zeros == int((plain == 0).sum())
    assert found.nonfinite == 0
    assert found.histogram == histogram_by_hand(plain.tolist())


def test_values_that_are_no_numbers_are_counted_and_left_out_of_the_rest():
    """NaN and infinities have counts of their own; the rest is over the finite values."""
    nan, inf = float("nan"), float("inf")
    found = statistics_of(torch.tensor([1.0, nan, -inf, 3.0, inf, nan, 0.0]))
    assert (found.nan, found.inf, found.nonfinite) == (2, 2, 4)
    assert (found.min, found.max, found.zeros) == (0.0, 3.0, 1)
    assert found.mean == pytest.approx(4 / 3)
    assert sum(found.histogram) == 3


@pytest.mark.parametrize("tensor", [torch.zeros(0), torch.full((5,), float("nan"))], ids=["empty", "nothing finite"])
def test_where_nothing_is_finite_there_is_no_number(tensor):
    """None, not NaN: JSON has no word for that."""
    found = statistics_of(tensor)
    assert (found.mean, found.std, found.min, found.max, found.norm) == (None,) * 5
    assert found.count == tensor.numel()


def test_tensors_of_other_kinds_are_understood():
    """Complex numbers count as two values, sparse and quantized tensors as what they stand for."""
    complex_ = statistics_of(torch.tensor([3 + 4j]))
    assert (complex_.count, complex_.min, complex_.max) == (2, 3.0, 4.0)
    sparse = statistics_of(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse())
    assert (sparse.count, sparse.zeros, sparse.max) == (4, 3, 2.0)


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), max_size=40))
def test_every_finite_value_is_in_exactly_one_bin(values):
    """The histogram and the counts of what is not finite add up to everything."""
    found = statistics_of(torch.tensor(values, dtype=torch.float32))
    assert sum(found.histogram) + found.nonfinite == len(values)
    assert found.histogram == histogram_by_hand([v for v in values if abs(v) < float("inf")])


def test_bins_are_symmetric_around_zero():
    """A tensor and its negative have mirrored histograms."""
    values = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    assert statistics_of(values).histogram == statistics_of(-values).histogram[::-1]
    assert statistics_of(torch.zeros(3)).histogram[ZERO_BIN] == 3
