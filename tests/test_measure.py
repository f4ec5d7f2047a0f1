"""Statistics agree with NumPy, for tensors of every kind; fixed bins with a search by hand."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torcheer._torch.measure import BIN_EDGES, LINEAR_BINS, NUM_BINS, ZERO_BIN, statistics_of


def expected(values: np.ndarray) -> dict[str, object]:
    """What NumPy says of these values, in double precision."""
    flat = np.abs(values).ravel() if np.iscomplexobj(values) else values.ravel()
    flat = flat.astype(np.float64)
    finite = flat[np.isfinite(flat)]
    found = {"count": flat.size, "nan": int(np.isnan(flat).sum()), "inf": int(np.isinf(flat).sum())}
    if not finite.size:
        return {**found, "zeros": 0, **dict.fromkeys(("min", "max", "mean", "std", "norm"))}
    moments = {"mean": finite.mean(), "std": finite.std(), "norm": np.sqrt((finite**2).sum())}
    return {**found, "zeros": int((finite == 0).sum()), "min": finite.min(), "max": finite.max(), **moments}


def check(tensor: torch.Tensor, values: np.ndarray | None = None) -> None:
    values = tensor.numpy() if values is None else values
    found, wanted = asdict(statistics_of(tensor, "linear")), expected(values)
    histogram = found.pop("histogram")
    assert found.keys() == wanted.keys()
    scale = max(abs(wanted["max"] or 0), abs(wanted["min"] or 0))
    for name, value in wanted.items():
        if value is None or name in ("count", "nan", "inf", "zeros"):
            assert found[name] == value, name
        else:
            assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6 * scale), name
    if wanted["min"] == wanted["max"]:
        assert histogram == ()
        return
    flat = np.abs(values).ravel() if np.iscomplexobj(values) else values.ravel()
    flat = flat[np.isfinite(flat)].astype(np.float64)
    counts, _ = np.histogram(flat, LINEAR_BINS, (wanted["min"], wanted["max"]))
    assert sum(histogram) == flat.size
    apart = np.abs(np.cumsum(histogram) - np.cumsum(counts))
    assert apart.max() <= max(2, flat.size * 1e-5)  # a value at the edge of two bins may be in either


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(7, 11),
        torch.randn(200_000) * 3 + 100,
        torch.randn(70_000, dtype=torch.float64),
        torch.randn(9, 9).relu(),
        torch.tensor([1.0]),
        torch.tensor(3.5),
        torch.zeros(5),
        torch.full((4, 4), -2.5),
        torch.empty(0, 3),
        torch.tensor([1.0, NAN, -INF, INF, 3.0, NAN]),
        torch.tensor([NAN, INF]),
        torch.cat([torch.randn(70_000), torch.tensor([NAN])]),
        torch.tensor([3e38, -3e38, 1e38]),
        torch.tensor([1e-40, 2e-40, 0.0]),
        torch.tensor([1e-20, 3e-20]),
        torch.tensor([1e18, 3e18, -1e18]),
        torch.tensor([1000000.0, 1000000.125, 1000000.25]),
        torch.tensor([True, False, True]),
        torch.arange(100),
        torch.arange(-5, 60, dtype=torch.int8),
        torch.tensor([2**53, 2**53 - 1, 0]),
        torch.arange(30, dtype=torch.uint8),
        torch.randn(50, dtype=torch.float16),
        torch.randn(6, 5, dtype=torch.complex64),
        torch.randn(3, 4, 5).permute(2, 0, 1),
        torch.randn(8, 8)[::2, 1::3],
        torch.randn(3, 1).expand(3, 500),
        torch.tensor(2.0).expand(4, 5),
        torch.randn(1, 6, 1).expand(4, 6, 9).transpose(0, 2),
        torch.randn(4, 6).t()[1:],
    ],
    ids=lambda t: f"{str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}",
)
def test_statistics_are_those_of_numpy(values):
    """Whatever the dtype, the strides and the range."""
    check(values)


@given(st.lists(st.floats(width=32), max_size=40))
@settings(max_examples=150, deadline=None)
def test_any_floats_have_the_statistics_of_numpy(values):
    """Infinities, NaN and denormal numbers among them."""
    tensor = torch.tensor(values, dtype=torch.float32)
    found, wanted = asdict(statistics_of(tensor, "linear")), expected(tensor.numpy())
    for name in ("count", "nan", "inf", "zeros"):
        assert found[name] == wanted[name]
    for name in ("min", "max"):
        assert (found[name] is None) == (wanted[name] is None)
        assert wanted[name] is None or found[name] == pytest.approx(wanted[name], rel=1e-5)
    if found["histogram"]:
        assert sum(found["histogram"]) == len(values) - wanted["nan"] - wanted["inf"]
    assert all(value is None or math.isfinite(value) for name, value in found.items() if name != "histogram")


def test_bfloat16_and_float8_are_read_as_what_they_hold():
    """NumPy has no such types, so float32 is asked instead."""
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        tensor = torch.randn(300).to(dtype)
        check(tensor, tensor.float().numpy())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch's own
def test_sparse_tensors_count_the_zeros_they_do_not_store():
    tensor = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, -1.0]])
    for sparse in (tensor.to_sparse(), tensor.to_sparse_csr()):
        check(sparse, tensor.numpy())


@pytest.mark.filterwarnings("ignore:.*quantiz:UserWarning", "ignore:.*quantiz:DeprecationWarning")
def test_quantized_tensors_are_read_as_the_numbers_they_stand_for():
    tensor = torch.quantize_per_tensor(torch.randn(40), 0.1, 0, torch.qint8)
    check(tensor, tensor.dequantize().numpy())


def test_nested_tensors_are_read_part_by_part():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    nested = torch.nested.nested_tensor(parts)
    check(nested, torch.cat(parts).numpy())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch's own
def test_a_tensor_without_values_has_no_statistics():
    """As those on the meta device, and a sparse one too large to be written out."""
    assert statistics_of(torch.empty(3, device="meta")) is None
    huge = torch.sparse_coo_tensor(torch.tensor([[5], [7]]), torch.ones(1), (1 << 20, 1 << 20))
    assert statistics_of(huge) is None


def test_an_expanded_tensor_is_not_written_out():
    """A terabyte that is one row, repeated."""
    found = statistics_of(torch.tensor([1.0, 3.0]).expand(1 << 37, 2), "linear")
    assert (found.count, found.mean, found.std) == (1 << 38, 2.0, 1.0)
    assert found.histogram[0] == found.histogram[-1] == 1 << 37


def test_looking_changes_nothing():
    """Neither values, nor the version torch counts, nor gradients."""
    tensor = torch.randn(5, requires_grad=True) * 2
    before, version = tensor.detach().clone(), tensor._version
    statistics_of(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == version


# Fixed bins


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
        torch.tensor([1e100, -1e90, 1e-200], dtype=torch.float64),
        torch.arange(-5, 10),
        torch.tensor([True, False, True]),
        torch.tensor([1e30, -1e-30, 2.0, -2.0, 0.0]),
        torch.randn(4, 6).t(),
    ],
    ids=[
        "large",
        "small values",
        "bfloat16",
        "double",
        "beyond float32",
        "integers",
        "truth values",
        "extremes",
        "not contiguous",
    ],
)
def test_statistics_equal_those_of_torch(tensor):
    """Mean, deviation, extremes, norm, zeros and histogram are what torch and a search by hand say."""
    found = statistics_of(tensor)
    plain = tensor.double().flatten()
    assert found.count == tensor.numel()
    assert found.mean == pytest.approx(plain.mean().item(), rel=1e-6, abs=1e-7)
    assert found.std == pytest.approx(plain.std(correction=0).item(), rel=1e-6)
    assert (found.min, found.max) == (plain.min().item(), plain.max().item())
    assert found.norm == pytest.approx(plain.norm().item(), rel=1e-6)
    assert found.zeros == int((plain == 0).sum())
    assert found.nonfinite == 0
    assert found.histogram == histogram_by_hand(plain.tolist())


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


def test_magnitudes_beyond_float32_are_finite():
    found = statistics_of(torch.full((2, 3), complex(3e38, -3e38), dtype=torch.complex64))
    assert found.nonfinite == 0
    assert found.max == pytest.approx(3e38 * 2**0.5)
