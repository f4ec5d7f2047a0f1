"""Reducers give what NumPy gives of all values at once, whatever the dtype and the batches, and count what is not finite."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torcheer import InvalidArgument, UnreadableFile
from torcheer.reducers import Covariance, Histogram, Mean, Reducer, TopK, Units, reducer_from

NAN, INF = math.nan, math.inf
ALL = [Mean(), Mean(unit_dim="all"), Covariance(), TopK(3), TopK(2, largest=False, positions="max"), Histogram()]
ALL += [Histogram([-1.0, 0.0, 0.5]), Histogram(4, range=(-2, 2)), Histogram(unit_dim=1)]


def state_of(reducer: Reducer, values: torch.Tensor, sizes=(), first: int = 0) -> dict[str, torch.Tensor]:
    """The state after batches of the given sizes; what is left is one more batch."""
    state, at = reducer.begin(), 0
    for size in (*sizes, len(values)):
        part = values[at : at + size]
        reducer.update(state, part, torch.arange(first + at, first + at + len(part)))
        at += len(part)
    return state


def result_of(reducer: Reducer, values: torch.Tensor, sizes=()):
    return reducer.finish(state_of(reducer, values, sizes))


def observations(values: torch.Tensor) -> np.ndarray:
    """Observations × units in float64, by a loop over samples and positions."""
    array = values.to(torch.complex128 if values.is_complex() else torch.float64).numpy()
    if array.ndim == 1:
        return array[:, None]
    if array.ndim > 3:
        array = np.moveaxis(array, 1, -1)
    return np.array([array[place] for place in np.ndindex(array.shape[:-1])])


def assert_same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype
        assert one[name].numpy().tobytes() == other[name].numpy().tobytes(), name


torch.manual_seed(0)
SHAPES = {
    "features": torch.randn(37, 5),
    "tokens": torch.randn(9, 4, 6),
    "convolution": torch.randn(11, 3, 4, 5),
    "volume": torch.randn(4, 2, 3, 3, 2),
    "one number": torch.randn(20),
    "far from zero": torch.randn(200, 3, dtype=torch.float64) + 1e8,
    "bfloat16": torch.randn(30, 4).bfloat16(),
    "float16": torch.randn(30, 4).half() * 1e4,
    "float8": torch.randn(30, 4).to(torch.float8_e4m3fn),
    "large float32": torch.randn(30, 4) * 1e38,
    "integers": torch.randint(-(2**40), 2**40, (30, 4)),
    "bytes": torch.randint(0, 255, (30, 4), dtype=torch.uint8),
    "truth": torch.rand(30, 4) > 0.3,
    "constant": torch.full((30, 2), 0.1),
    "expanded": torch.randn(30, 1).expand(30, 4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_moments_are_those_of_all_values_at_once(name):
    values = SHAPES[name]
    found = result_of(Mean(), values, sizes=(3, 1, 2))
    rows = observations(values)
    scale = np.abs(rows).max()
    for unit in range(rows.shape[1]):
        exact = [Fraction(float(value)) for value in rows[:, unit]]
        mean = sum(exact) / len(exact)
        variance = sum((value - mean) ** 2 for value in exact) / len(exact)
        at = (unit,) if found.mean.dim() else ()
        assert float(found.mean[at]) == pytest.approx(float(mean), rel=1e-14, abs=1e-16 * scale)
        lost = 1e-16 * scale * float(variance) ** 0.5  # by rounding means, which matters far from zero
        assert float(found.variance[at]) == pytest.approx(float(variance), rel=1e-10, abs=lost + 1e-30 * scale**2)
        assert float(found.std[at]) == pytest.approx(float(variance) ** 0.5, rel=1e-10, abs=1e-15 * scale)
        assert (found.min[at], found.max[at], found.count[at]) == (rows[:, unit].min(), rows[:, unit].max(), len(rows))


def test_values_that_are_not_finite_are_counted_and_left_out():
    values = torch.tensor([[1.0, NAN, INF], [3.0, 2.0, -INF], [5.0, NAN, NAN]])
    found = result_of(Mean(), values, sizes=(1,))
    assert found.mean.tolist()[:2] == [3.0, 2.0]
    assert all(math.isnan(one[2]) for one in (found.mean, found.min, found.max, found.variance))
    assert (found.count.tolist(), found.nan.tolist(), found.inf.tolist()) == ([3, 1, 0], [0, 2, 1], [0, 0, 2])
    assert "Note: left out as not finite, in 2 of the units: 3 NaN, 2 infinite." in str(found)
    found = result_of(Mean(), torch.tensor([[1.0, NAN], [2.0, 3.0]]), sizes=(1,))
    assert "Note: left out as not finite, in 1 of the units: 1 NaN, 0 infinite." in str(found)


def test_the_mean_of_complex_numbers_is_complex():
    values = torch.randn(50, 3, dtype=torch.complex64)
    values[3, 1] = complex(NAN, 1)
    found = result_of(Mean(), values, sizes=(7, 20))
    rows = values.numpy().astype(np.complex128)
    for unit in range(3):
        column = rows[np.isfinite(rows[:, unit]), unit]
        assert complex(found.mean[unit]) == pytest.approx(column.mean(), rel=1e-12)
        assert float(found.variance[unit]) == pytest.approx((np.abs(column - column.mean()) ** 2).mean(), rel=1e-12)
        assert float(found.max[unit]) == pytest.approx(np.abs(column).max())


def test_every_element_can_be_a_unit():
    values = torch.randn(12, 3, 4, 5)
    found = result_of(Mean(unit_dim="all"), values, sizes=(5,))
    np.testing.assert_allclose(found.mean.numpy(), values.double().numpy().mean(0), rtol=1e-12)
    assert found.as_mean().shape == (3, 4, 5)


@pytest.mark.parametrize(("shape", "unit_dim", "broadcast"), [((6, 3, 4, 5), None, (3, 1, 1)), ((6, 4, 3), None, (3,))])
def test_a_mean_broadcasts_to_the_values(shape, unit_dim, broadcast):
    values = torch.randn(shape)
    mean = result_of(Mean(unit_dim=unit_dim), values).as_mean()
    assert mean.shape == broadcast
    assert float((values.double() - mean).mean()) == pytest.approx(0, abs=1e-12)


def test_units_are_the_dimension_that_is_said():
    values = torch.randn(6, 3, 4, 5)
    last = result_of(Mean(unit_dim=-1), values).mean
    np.testing.assert_allclose(last.numpy(), values.double().numpy().mean((0, 1, 2)), rtol=1e-12)
    convolution = result_of(Mean(unit_dim=1), values[..., 0]).mean
    np.testing.assert_allclose(convolution.numpy(), values[..., 0].double().numpy().mean((0, 2)), rtol=1e-12)


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "large float32"])
def test_the_covariance_is_numpys(name):
    rows = observations(SHAPES[name])
    found = result_of(Covariance(), SHAPES[name], sizes=(3, 1, 2))
    wanted = np.atleast_2d(np.cov(rows.T, ddof=0))
    lost = 1e-12 * max(np.abs(wanted).max(), 1e-30) + 1e-16 * np.abs(rows).max()  # the latter far from zero
    np.testing.assert_allclose(found.covariance.numpy(), wanted, rtol=1e-9, atol=lost)
    np.testing.assert_allclose(found.mean.numpy(), rows.mean(0), rtol=1e-12, atol=1e-15 * np.abs(rows).max())
    assert torch.equal(found.covariance, found.covariance.T)
    if name == "features":
        np.testing.assert_allclose(found.correlation.numpy(), np.corrcoef(rows.T), rtol=1e-9)


def test_the_covariance_of_complex_units_is_hermitian():
    values = torch.randn(40, 3, dtype=torch.complex64)
    found = result_of(Covariance(), values, sizes=(9, 9))
    np.testing.assert_allclose(found.covariance.numpy(), np.cov(values.numpy().astype(np.complex128).T, ddof=0), rtol=1e-9)


def test_observations_that_are_not_finite_are_left_out_of_the_covariance():
    values = torch.randn(40, 3)
    values[[3, 7], [0, 2]] = torch.tensor([NAN, INF])
    found = result_of(Covariance(), values, sizes=(5,))
    kept = np.delete(values.double().numpy(), [3, 7], axis=0)
    np.testing.assert_allclose(found.covariance.numpy(), np.cov(kept.T, ddof=0), rtol=1e-10)
    assert (found.count, found.left_out) == (38, 2)
    assert "2 observations" in str(found)
    with pytest.raises(InvalidArgument, match="in every observation"):
        result_of(Covariance(), torch.full((4, 2), NAN))


def test_a_covariance_that_would_fill_the_disk_is_refused():
    with pytest.raises(InvalidArgument, match=r"20,000 units would take 3\.0 GiB .* transform="):
        result_of(Covariance(), torch.zeros(1, 20_000))


def best_by_hand(values: np.ndarray, k: int, largest: bool, how: str) -> list[list[tuple[float, int]]]:
    """For each unit the values and numbers of its best samples, by sorting pairs."""
    samples = values.reshape(len(values), -1, 1) if values.ndim == 1 else values
    units = np.moveaxis(samples, 1, -1) if samples.ndim > 3 else samples
    found = []
    for unit in range(units.shape[-1]):
        scored = []
        for number, sample in enumerate(units[..., unit]):
            positions = [float(value) for value in np.ravel(sample)]
            score = math.fsum(positions) / len(positions) if how == "mean" and np.isfinite(positions).all() else NAN
            if how == "max" and not np.isnan(positions).any():
                score = max(positions) if largest else min(positions)
            if math.isfinite(score):
                scored.append((score, number))
        scored.sort(key=lambda one: (-one[0] if largest else one[0], one[1]))
        found.append(scored[:k])
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from(["mean", "max"]),
    st.lists(st.integers(0, 9), max_size=4),
    st.sampled_from([(23, 3), (13, 2, 3), (12, 3, 2, 2), (17,)]),
    st.integers(0, 1000),
)
def test_the_best_samples_are_those_of_sorting_all_with_ties_by_number(k, largest, how, sizes, shape, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-2, 3, shape, generator=generator).float()  # so few different ones that most are tied
    values[torch.rand(shape, generator=generator) < 0.03] = NAN
    values[torch.rand(shape, generator=generator) < 0.03] = -INF
    found = result_of(TopK(k, largest=largest, positions=how), values, sizes)
    for unit, wanted in enumerate(best_by_hand(values.double().numpy(), k, largest, how)):
        numbers = [number for number in found.numbers[unit].tolist() if number >= 0]
        assert numbers == [number for _, number in wanted]
        assert found.values[unit, : len(wanted)].tolist() == pytest.approx([value for value, _ in wanted])
        assert found.values[unit, len(wanted) :].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint16, torch.uint32, torch.int8, torch.bool])
@pytest.mark.parametrize("largest", [True, False])
def test_the_largest_position_counts_in_every_dtype(dtype, largest):
    values = (torch.rand(7, 3, 2, 2) * 9).to(dtype)
    found = result_of(TopK(3, largest=largest, positions="max"), values)
    wanted = best_by_hand(values.double().numpy(), 3, largest, "max")
    assert found.numbers.tolist() == [[number for _, number in unit] for unit in wanted]


def test_samples_without_a_finite_value_are_counted():
    found = result_of(TopK(2), torch.tensor([[1.0, NAN], [NAN, NAN], [INF, NAN]]))
    assert found.numbers.tolist() == [[0], [-1]]
    assert found.left_out.tolist() == [2, 3]
    assert "up to 3 of a unit" in str(found)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("bins", [(10, (-1.0, 1.0)), ([-5.0, -0.3, 0.0, 0.1, 7.0, 1e9], None)])
def test_histograms_in_given_bins_are_numpys(name, bins):
    rows = observations(SHAPES[name])
    reducer = Histogram(bins[0], range=bins[1])
    found = result_of(reducer, SHAPES[name], sizes=(2, 3))
    for unit in range(rows.shape[1]):
        counts, edges = np.histogram(rows[:, unit], bins[0], bins[1])
        assert found.counts[unit].tolist() == counts.tolist()
        assert int(found.below[unit]) == (rows[:, unit] < edges[0]).sum()
        assert int(found.above[unit]) == (rows[:, unit] > edges[-1]).sum()
    np.testing.assert_allclose(found.edges.numpy(), edges)


@pytest.mark.parametrize("name", SHAPES)
def test_bins_of_their_own_hold_every_value_between_their_edges(name):
    rows = observations(SHAPES[name])
    found = result_of(Histogram(), SHAPES[name], sizes=(2, 3))
    edges = found.edges.numpy()
    assert (np.diff(edges) > 0).all() or len(edges) == 2
    for unit in range(rows.shape[1]):
        counts = [0] * (len(edges) - 1)
        for value in rows[:, unit][rows[:, unit] != 0]:
            nearer, farther = (edges[:-1], edges[1:]) if value > 0 else (-edges[1:], -edges[:-1])
            counts[np.flatnonzero((nearer <= abs(value)) & (abs(value) < farther))[0]] += 1
        assert found.counts[unit].tolist() == counts
        assert int(found.zeros[unit]) == (rows[:, unit] == 0).sum()


@settings(max_examples=200, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_in_a_bin_an_eighth_as_wide_whatever_its_size(value):
    found = result_of(Histogram(), torch.tensor([[value]], dtype=torch.float64))
    if value == 0:
        assert found.zeros.tolist() == [1]
        return
    (at,) = found.counts[0].nonzero().flatten().tolist()
    low, high = sorted(abs(float(edge)) for edge in found.edges[at : at + 2])
    if abs(value) < 2.0**128:
        assert low <= abs(value) < high
        assert (float(found.edges[at]) >= 0) == (value > 0)
    if 2.0**-126 <= abs(value) < 2.0**128:
        assert high - low <= low / 8


def test_histograms_count_what_is_not_finite():
    for reducer in (Histogram(), Histogram([0, 1, 2])):
        found = result_of(reducer, torch.tensor([[1.0, NAN], [INF, NAN], [-INF, 0.0]]))
        assert (found.nan.tolist(), found.inf.tolist(), int(found.total.sum())) == ([0, 2], [2, 0], 2 if reducer.bins else 1)
        assert "2 NaN, 2 infinite" in str(found)


def test_histograms_of_complex_numbers_are_of_magnitudes():
    found = result_of(Histogram([0, 4.5, 5.5]), torch.tensor([[3 + 4j], [1j]]))
    assert found.counts.tolist() == [[1, 1]]


@pytest.mark.parametrize("reducer", ALL, ids=repr)
def test_a_state_that_was_written_is_read_as_it_was(reducer):
    values = torch.randn(9, 3, 2, 2)
    values[2, 1] = NAN
    state = state_of(reducer, values)
    again = reducer.from_tensors(reducer.to_tensors(state))
    assert_same_bits(again, state)
    assert reducer_from(reducer.describe()) == reducer
    assert str(reducer.finish(again)) == repr(reducer.finish(state))
    assert reducer.finish(state)._repr_html_().startswith("<div>")


@pytest.mark.parametrize("reducer", ALL, ids=repr)
def test_tensors_that_are_no_state_are_refused(reducer):
    state = reducer.to_tensors(state_of(reducer, torch.randn(9, 3, 2, 2)))
    wrong = [{name: tensor for name, tensor in state.items() if name != left_out} for left_out in state]
    wrong += [
        {**state, name: tensor[:-1] if tensor.dim() else tensor[None]} for name, tensor in state.items() if name != "codes"
    ]
    wrong += [{**state, name: tensor.to(torch.float32)} for name, tensor in state.items()]
    units = [[1, 0, 4, -3], [4, 0, 4, 3], [1, 0, 65, 3], [1]]  # a negative count, no such dimension, too many, too short
    wrong += [{**state, "more": torch.zeros(3)}, *({**state, "units": torch.tensor(numbers)} for numbers in units)]
    for tensors in wrong:
        with pytest.raises(UnreadableFile, match="not a state of"):
            reducer.from_tensors(tensors)


@pytest.mark.parametrize("reducer", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64, torch.bool, torch.bfloat16])
def test_merging_two_halves_gives_what_one_pass_gives(reducer, dtype):
    values = (torch.randn(40, 3, 2, 2) * 3).to(dtype) if dtype is not torch.complex64 else torch.randn(40, 3, 2, 2, dtype=dtype)
    left, right = state_of(reducer, values[:13]), state_of(reducer, values[13:], first=13)
    before = {name: tensor.clone() for name, tensor in left.items()}
    merged, whole = reducer.merge(left, right), state_of(reducer, values)
    assert_same_bits(left, before)
    assert merged.keys() == whole.keys()
    for name in whole:
        np.testing.assert_allclose(merged[name].numpy(), whole[name].numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("reducer", ALL, ids=repr)
def test_merging_with_nothing_changes_no_bit(reducer):
    state = state_of(reducer, torch.randn(9, 3, 2, 2))
    empty = state_of(reducer, torch.randn(0, 3, 2, 2))
    for nothing in (reducer.begin(), empty):
        assert_same_bits(reducer.merge(state, nothing), state)
        assert_same_bits(reducer.merge(nothing, state), state)
        with pytest.raises(InvalidArgument, match="no values"):
            reducer.finish(nothing)
    before = dict(state)
    reducer.update(state, torch.randn(0, 3, 2, 2), torch.arange(0))
    assert_same_bits(state, before)


@pytest.mark.parametrize("reducer", ALL, ids=repr)
def test_batches_with_other_units_are_refused(reducer):
    state = state_of(reducer, torch.randn(9, 3, 2, 2))
    for other in (torch.randn(2, 4, 2, 2), torch.randn(2, 3), torch.randn(2, 3, 2, 2, dtype=torch.complex64)):
        with pytest.raises(InvalidArgument, match=r"all batches need the same units"):
            reducer.update(state, other, torch.arange(2))
        with pytest.raises(InvalidArgument, match=r"cannot be merged"):
            reducer.merge(state, state_of(reducer, other if other.dim() > 2 else other[..., None]))


def test_positions_may_be_of_any_number():
    state = Mean().begin()
    Mean().update(state, torch.ones(2, 7, 3), torch.arange(2))
    Mean().update(state, torch.zeros(2, 1, 3), torch.arange(2, 4))
    assert Mean().finish(state).mean.tolist() == pytest.approx([14 / 16] * 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TopK(0), "1 or more; got 0"),
        (lambda: TopK(True), "1 or more"),
        (lambda: TopK(3, positions="sum"), "'mean' or 'max'"),
        (lambda: TopK(3, largest=1), "largest is True or False"),
        (lambda: Mean(unit_dim="channels"), "unit_dim is the number"),
        (lambda: Histogram(10), r"bins=50, range=\(-3, 3\)"),
        (lambda: Histogram([1, 0]), "ascend"),
        (lambda: Histogram([0, INF]), "finite"),
        (lambda: Histogram("auto"), "no bins, edges"),
        (lambda: Histogram(10, range=(1, 1)), "a range that ascends"),
        (lambda: result_of(Mean(unit_dim=4), torch.zeros(2, 3)), "not a dimension of units"),
        (lambda: result_of(Mean(unit_dim=0), torch.zeros(2, 3)), "dimension 0 counts samples"),
        (lambda: result_of(Mean(), torch.zeros(2, 3, device="meta")), "device meta"),
        (lambda: reducer_from({"reducer": "os.system"}), "not describe any of the reducers Mean, Covariance"),
        (lambda: reducer_from({"reducer": "Mean", "command": 1}), "no such options"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


@pytest.mark.parametrize("largest", [True, False])
def test_top_samples_of_float8_by_their_largest_position(largest):
    values = torch.tensor([[1.0, 5.0], [4.0, 2.0], [3.0, 0.5]]).to(torch.float8_e4m3fn)[..., None]
    reducer = TopK(3, positions="max", largest=largest)
    state = reducer.begin()
    reducer.update(state, values, torch.arange(3))
    assert reducer.finish(state).numbers.tolist() == ([[0, 1, 2]] if largest else [[2, 0, 1]])


@pytest.mark.parametrize(
    "units", [Units(-1, (3, 4), False), Units(1, (3, 5), True), Units(0, (2, 1), False), Units(-1, (), True)]
)
def test_units_are_read_as_they_were_written(units):
    assert Units.from_tensor(units.to_tensor()) == units


@pytest.mark.parametrize(
    "written",
    [[-2, 0, 3], [-1, 2, 3], [-1, 0, -3], [0, 0, 2, 2], [1, 0, 3], [3, 0, 3, 5], [1, 0, 65, 5], [1, 1, 3, 5, 5]],
    ids=str,
)
def test_other_numbers_are_no_units(written):
    with pytest.raises(ValueError):
        Units.from_tensor(torch.tensor(written))
