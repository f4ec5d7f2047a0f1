"""Statistics that `extract(keep=…)` keeps of a layer instead of its values: mean, covariance, top samples, histograms.

    from torcheer.reducers import Mean, TopK
    features = tl.extract(model, loader, ["layer3"], to="features/", keep=[Mean(), TopK(20)])

A reducer is an immutable description. Its intermediate result is a state: named tensors. States of parts of the data are
merged in the order of the data, so that the result is always the same, to the last bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ._text import Shown, few, sparkline
from ._torch.internals import DisableTorchFunction
from ._torch.measure import dense
from .errors import InvalidArgument, UnreadableFile

# The units of a layer: statistics are computed for each unit separately.

UnitDim = int | Literal["all"] | None


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a layer. Samples and positions are observations of them."""

    dim: int  # 0: one unit (values with a single dimension); -1: every element of a sample is a unit
    sizes: tuple[int, ...]  # (number of dimensions, number of units); with dim -1 the shape of a sample
    is_complex: bool

    @property
    def count(self) -> int:
        return self.sizes[1] if self.dim >= 0 else math.prod(self.sizes)

    @property
    def broadcast_shape(self) -> tuple[int, ...]:
        """The shape to give one number per unit, so that these numbers broadcast to the values of a sample."""
        if self.dim < 0:
            return self.sizes
        return (self.count, *[1] * (self.sizes[0] - 1 - self.dim)) if self.dim else ()

    def to_tensor(self) -> Tensor:
        return torch.tensor([self.dim, int(self.is_complex), *self.sizes], dtype=torch.int64, device="cpu")

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Units:
        """Read the units that `to_tensor` wrote. Raises ValueError for other tensors."""
        dim, is_complex, *sizes = tensor.tolist()
        if dim < -1 or is_complex not in (0, 1) or min(sizes, default=0) < 0:
            raise ValueError
        if dim >= 0 and (len(sizes) != 2 or not dim < sizes[0] <= 64 or (dim == 0 and sizes[1] != 1)):
            raise ValueError
        return cls(dim, tuple(sizes), bool(is_complex))

    def __str__(self) -> str:
        kind = "complex units" if self.is_complex else "units"
        return f"{self.count} {kind} in {self.sizes[0]} dimensions" if self.dim >= 0 else f"{kind} of shape {self.sizes}"


def check_unit_dim(unit_dim: Any) -> None:
    if unit_dim is None or unit_dim == "all" or (isinstance(unit_dim, int) and not isinstance(unit_dim, bool)):
        return
    raise InvalidArgument(
        "unit_dim is the number of the dimension that counts units, such as 1 or -1, or 'all' where every element of a sample "
        f"is a unit; got {unit_dim!r}."
    )


def units_of(values: Tensor, unit_dim: UnitDim) -> Units:
    """The units of values whose first dimension is samples.

    Without `unit_dim`: the last dimension if there are at most three (features, or tokens and features), else dimension 1
    (channels).
    """
    shape, is_complex = tuple(values.shape), values.is_complex()
    if not shape:
        raise InvalidArgument("a reducer takes values whose first dimension counts samples; got one number.")
    if unit_dim == "all":
        return Units(-1, shape[1:], is_complex)
    if unit_dim is None:
        unit_dim = 1 if len(shape) > 3 else len(shape) - 1
    dim = unit_dim + len(shape) if unit_dim < 0 else unit_dim
    if not (0 < dim < len(shape) or (dim == 0 and len(shape) == 1)):
        raise InvalidArgument(
            f"unit_dim={unit_dim} is not a dimension of units for values with shape {shape}: dimension 0 counts samples, "
            f"so it is one of 1 to {len(shape) - 1}."
        )
    return Units(dim, (len(shape), shape[dim] if dim else 1), is_complex)


def around_units(values: Tensor, units: Units) -> Tensor:
    """Reshape values to samples × positions × units × positions, without a copy if possible."""
    if units.dim < 0 or values.dim() == 1:
        return values.reshape(len(values), 1, units.count, 1)
    before, after = values.shape[1 : units.dim], values.shape[units.dim + 1 :]
    return values.reshape(len(values), before.numel(), units.count, after.numel())


def by_unit(values: Tensor, units: Units) -> Tensor:
    """Reshape values to observations × units."""
    return around_units(values, units).movedim(2, -1).reshape(-1, units.count)


def wide(values: Tensor) -> Tensor:
    """Convert values to double precision: booleans to 0 and 1, complex numbers to complex128."""
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def computable(values: Tensor) -> Tensor:
    """Convert real values to a floating-point dtype that torch computes with: float8 and integers become float64."""
    return values if values.is_floating_point() and values.element_size() > 1 else values.double()


# Results of reducers as text.


def spread(values: Tensor) -> str:
    """Write a single number as text, or several numbers as the range from the smallest to the largest: `0.1 to 3.2`."""
    sizes = values.abs() if values.is_complex() else values
    known = sizes[~sizes.isnan()] if sizes.is_floating_point() else sizes.reshape(-1)
    if not known.numel():
        return "none"
    low, high = known.min().item(), known.max().item()
    words = f"{low:.4g}" if isinstance(low, float) else f"{low:,}"
    if low != high:
        words += f" to {high:.4g}" if isinstance(high, float) else f" to {high:,}"
    return f"{words} (magnitude)" if values.is_complex() else words


def not_finite_note(nan: Tensor, inf: Tensor) -> list[str]:
    """Return a note that says how many values were left out, as a list. The list is empty if none were left out."""
    if not (all_nan := int(nan.sum())) + (all_inf := int(inf.sum())):
        return []
    units = int(((nan + inf) > 0).sum())
    return [f"\tNote: left out as not finite, in {units:,} of the units: {all_nan:,} NaN, {all_inf:,} infinite."]


# The base of all reducers. A subclass computes the state of a piece of the values, and merges two states.

State = dict[str, Tensor]  # the intermediate result; empty before the first values
Form = tuple[torch.dtype, tuple[int, ...]]  # dtype and shape of a tensor

_PIECE = 1 << 19  # at most this many values are processed at once: in double precision they fit a CPU cache
_PIECE_ON_DEVICE = 1 << 26
UNITS = "units"


@dataclass(frozen=True, repr=False)
class Reducer(ABC):
    """A statistic of the units of a layer.

    Units are the last dimension of values with up to three dimensions (features; tokens and features), and dimension 1 of
    others (channels of a convolution). `unit_dim` selects another dimension, such as 1 for a one-dimensional convolution or
    -1 for channels last; with `"all"` every element of a sample is a unit.
    """

    unit_dim: UnitDim = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_unit_dim(self.unit_dim)

    def begin(self) -> State:
        """The state of a reducer before any values."""
        return {}

    def update(self, state: State, values: Tensor, sample_numbers: Tensor) -> None:
        """Add values to the state. Their first dimension is samples. The state stays on the device of the values."""
        with DisableTorchFunction(), torch.no_grad():
            read = dense(values)
            if read is None:
                raise InvalidArgument(f"{self} cannot read values of a {values.layout} tensor on device {values.device}.")
            if read.device.type == "mps":  # MPS has no double precision
                read = read.cpu()
            units = units_of(read, self.unit_dim)
            if UNITS not in state:
                state[UNITS] = units.to_tensor()
            elif (before := units_in(state)) != units:
                raise InvalidArgument(
                    f"{self} was given values of shape {tuple(values.shape)} after others with {before}: all batches need the "
                    "same units. transform= can make them so; unit_dim= says which dimension counts units."
                )
            for piece, numbers in _pieces(read, sample_numbers):
                self._absorb(state, piece, numbers, units)

    def _absorb(self, state: State, values: Tensor, numbers: Tensor, units: Units) -> None:
        found = self._measured(values, numbers, units)
        if len(state) > 1:
            found = self._merged(state, found)
        state.update(found)

    def merge(self, left: State, right: State) -> State:
        """Merge the states of two parts of the data, `left` before `right`. Both stay unchanged. The last bits of the
        result depend on the order.
        """
        if len(left) < 2 or len(right) < 2:
            return dict(left if len(left) >= len(right) else right)
        ours, theirs = units_in(left), units_in(right)
        if ours != theirs:
            raise InvalidArgument(f"{self} of {ours} cannot be merged with one of {theirs}: all blocks need the same units.")
        with DisableTorchFunction(), torch.no_grad():
            return {UNITS: left[UNITS], **self._merged(left, right)}

    def to_tensors(self, state: State) -> dict[str, Tensor]:
        """Copy the state to main memory, to write it to a file."""
        return {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}

    def from_tensors(self, tensors: Mapping[str, Tensor]) -> State:
        """Read the state from a file's tensors. Raises UnreadableFile if they are not a state of this reducer."""
        if not tensors:
            return {}
        try:
            given = tensors[UNITS]
            if given.dtype is not torch.int64 or given.dim() != 1:
                raise ValueError
            units = Units.from_tensor(given)
            others = {name: tensor for name, tensor in tensors.items() if name != UNITS}
            if others and not self._is_state(others, units):
                raise ValueError
        except (KeyError, ValueError):
            forms = few((f"{name} {tensor.dtype} {tuple(tensor.shape)}" for name, tensor in tensors.items()), 8)
            raise UnreadableFile(f"these tensors are not a state of {self}: {forms}.") from None
        return dict(tensors)

    def _is_state(self, tensors: Mapping[str, Tensor], units: Units) -> bool:
        forms = self._forms(units, tensors)
        return tensors.keys() == forms.keys() and all(
            (tensor.dtype, tuple(tensor.shape)) == forms[name] for name, tensor in tensors.items()
        )

    @abstractmethod
    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        """The dtypes and shapes of the tensors of a state."""

    @abstractmethod
    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        """Compute the state of one non-empty piece of the values."""

    @abstractmethod
    def _merged(self, left: State, right: State) -> State: ...

    @abstractmethod
    def _result(self, state: State, units: Units) -> Any: ...

    def finish(self, state: State) -> Any:
        """Compute the result from a state, in main memory. Raises InvalidArgument if no values were added to the state."""
        if len(state) < 2:
            raise InvalidArgument(f"{self} was given no values, so it has no result.")
        return self._result({name: tensor.cpu() for name, tensor in state.items()}, units_in(state))

    def describe(self) -> dict[str, Any]:
        """The reducer as JSON values; `reducers.reducer_from` converts them back."""
        return {"reducer": type(self).__name__, **{one.name: getattr(self, one.name) for one in fields(self)}}

    def __repr__(self) -> str:
        values = [(one, getattr(self, one.name)) for one in fields(self)]
        given = [f"{one.name}={value!r}" for one, value in values if value != one.default]
        return f"{type(self).__name__}({', '.join(given)})"


def units_in(state: Mapping[str, Tensor]) -> Units:
    return Units.from_tensor(state[UNITS])


def _pieces(values: Tensor, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield values and their sample numbers in pieces; each piece is small enough for one computation."""
    if not values.numel():
        return
    largest = _PIECE if values.device.type == "cpu" else _PIECE_ON_DEVICE
    together = max(1, largest // (values.numel() // len(values)))
    yield from zip(torch.split(values, together), torch.split(numbers, together), strict=True)


# `Mean`: the count, mean, variance, minimum and maximum of each unit.


@dataclass(frozen=True, repr=False)
class Mean(Reducer):
    """Count, mean, variance, standard deviation, minimum and maximum of each unit, in double precision.

    Every position of a sample is an observation; `unit_dim="all"` separates positions. NaN and infinities are counted and
    left out. For complex numbers the mean is complex, the variance is the mean squared distance to it, and the minimum and
    maximum are magnitudes.

    >>> import torch
    >>> reducer = Mean()
    >>> state = reducer.begin()
    >>> reducer.update(state, torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.arange(2))
    >>> reducer.finish(state).mean.tolist(), reducer.finish(state).variance.tolist()
    ([2.0, 5.0], [1.0, 0.0])
    """

    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        one, parts = (units.count,), (units.count, 2) if units.is_complex else (units.count,)
        counts = dict.fromkeys(("count", "nan", "inf"), (torch.int64, one))
        return {**counts, "mean": (torch.float64, parts), **dict.fromkeys(("squares", "min", "max"), (torch.float64, one))}

    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        seen = wide(around_units(values, units))
        total, observed = _sum(seen), seen.numel() // units.count
        if seen.is_cpu and bool(total.isfinite().all()):  # if the sum is finite, all values are finite
            finite = None
            count = torch.full_like(total, observed, dtype=torch.int64)
            nan = torch.zeros_like(count)
        else:
            finite = seen.isfinite()
            count, nan = _sum(finite), _sum(seen.isnan())
            total = _sum(torch.where(finite, seen, 0))
        some = count.clamp(min=1)
        mean = total / some
        away = seen - mean[:, None]
        if finite is not None:
            away = torch.where(finite, away, 0)
        rest = _sum(away)  # the sum of differences from the mean is zero except for rounding
        mean = mean + rest / some
        squares = _sum(_squared(away)) - _squared(rest) / some
        size = seen.abs() if units.is_complex else seen
        low, high = (size, size) if finite is None else (torch.where(finite, size, end) for end in (math.inf, -math.inf))
        return {
            "count": count,
            "nan": nan,
            "inf": observed - count - nan,
            "mean": torch.view_as_real(mean) if units.is_complex else mean,
            "squares": squares.clamp(min=0),
            "min": low.amin(3).amin((0, 1)),
            "max": high.amax(3).amax((0, 1)),
        }

    def _merged(self, left: State, right: State) -> State:
        count = left["count"] + right["count"]
        share = right["count"].double() / count.clamp(min=1)
        apart = right["mean"] - left["mean"]
        parts = apart.dim() > 1
        both = (left["count"] > 0) & (right["count"] > 0)
        between = torch.where(both, (apart * apart).sum(1) if parts else apart * apart, 0)
        return {
            "count": count,
            "nan": left["nan"] + right["nan"],
            "inf": left["inf"] + right["inf"],
            "mean": left["mean"] + apart * (share[:, None] if parts else share),
            "squares": left["squares"] + right["squares"] + between * (left["count"] * share),
            "min": torch.minimum(left["min"], right["min"]),
            "max": torch.maximum(left["max"], right["max"]),
        }

    def _result(self, state: State, units: Units) -> MeanResult:
        none = state["count"] == 0
        mean = torch.view_as_complex(state["mean"].contiguous()) if units.is_complex else state["mean"]
        shape = units.sizes if units.dim < 0 else (units.count,) if units.dim else ()
        known = {
            "mean": torch.where(none, math.nan, mean),
            "variance": torch.where(none, math.nan, state["squares"] / state["count"].clamp(min=1)),
            "min": torch.where(none, math.nan, state["min"]),
            "max": torch.where(none, math.nan, state["max"]),
        }
        counts = {name: state[name] for name in ("count", "nan", "inf")}
        return MeanResult(**{name: one.reshape(shape) for name, one in {**known, **counts}.items()}, units=units)


def _sum(values: Tensor) -> Tensor:
    """Sum the values of each unit. Neighbours in memory are summed first, because that is several times faster."""
    return values.sum(3).sum((0, 1))


def _squared(values: Tensor) -> Tensor:
    return (values.conj() * values).real if values.is_complex() else values * values


@dataclass(frozen=True, eq=False, repr=False)
class MeanResult(Shown):
    """The result of `Mean`: one number per unit, over its finite values; NaN for a unit without any.

    The variance is divided by the number of values; it is not the estimate from a sample.
    """

    mean: Tensor
    variance: Tensor
    min: Tensor
    max: Tensor
    count: Tensor
    nan: Tensor
    inf: Tensor
    units: Units

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    def as_mean(self) -> Tensor:
        """The mean in a shape that broadcasts to the values of the layer, for `changes.mean`."""
        if unknown := int(self.mean.isnan().sum()):
            raise InvalidArgument(
                f"{unknown:,} of {self.mean.numel():,} units have no finite value, so their mean is not known."
            )
        return self.mean.reshape(self.units.broadcast_shape)

    def __str__(self) -> str:
        lines = [f"Mean of {self.mean.numel()} units:"]
        lines += [f"\tMean: {spread(self.mean)}", f"\tStandard deviation: {spread(self.std)}"]
        lines += [f"\tValues: {_range(self.min, self.max)}"]
        lines += [f"\tNumber of values of a unit: {spread(self.count)}"]
        return "\n".join(lines + not_finite_note(self.nan, self.inf))


def _range(low: Tensor, high: Tensor) -> str:
    known = ~low.isnan()
    return f"{float(low[known].min()):.4g} to {float(high[known].max()):.4g}" if bool(known.any()) else "none"


# `Covariance` of the units of a layer; their correlation and principal components follow from it.

_MOST_UNITS = 16_384  # a layer may have at most this many units: the matrix then takes 2 GiB


@dataclass(frozen=True, repr=False)
class Covariance(Reducer):
    """The mean and the covariance matrix of the units, in double precision.

    Every position of a sample is an observation. Observations with a NaN or an infinity in any unit are counted and left
    out. The covariance of complex units is Hermitian. Each block stores a units × units matrix, so a layer may have at most
    16,384 units; `transform=` can select or average units.

    >>> import torch
    >>> reducer = Covariance()
    >>> state = reducer.begin()
    >>> reducer.update(state, torch.tensor([[1.0, 5.0], [3.0, 9.0]]), torch.arange(2))
    >>> reducer.finish(state).covariance.tolist()
    [[1.0, 2.0], [2.0, 4.0]]
    """

    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        parts = (2,) if units.is_complex else ()
        counts: dict[str, Form] = {"count": (torch.int64, ()), "left_out": (torch.int64, ())}
        mean, products = (units.count, *parts), (units.count, units.count, *parts)
        return {**counts, "mean": (torch.float64, mean), "products": (torch.float64, products)}

    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        if units.count > _MOST_UNITS:
            raise InvalidArgument(
                f"Covariance of {units.count:,} units would take {units.count**2 * 8 / 2**30:.1f} GiB for each block; it takes "
                f"{_MOST_UNITS:,} units at most. transform= can choose or average some of them, or project them to fewer."
            )
        seen = wide(by_unit(values, units))
        finite = seen.isfinite().all(1)
        count = finite.sum()
        some, where = count.clamp(min=1), finite[:, None]
        mean = torch.where(where, seen, 0).sum(0) / some
        away = torch.where(where, seen - mean, 0)
        mean = mean + away.sum(0) / some
        away = torch.where(where, seen - mean, 0)
        products = away.T @ away.conj()
        if units.is_complex:
            mean, products = torch.view_as_real(mean), torch.view_as_real(products.resolve_conj())
        return {"count": count, "left_out": len(seen) - count, "mean": mean, "products": products}

    def _merged(self, left: State, right: State) -> State:
        return self._added(left, right, left["products"] + right["products"])

    def _absorb(self, state: State, values: Tensor, numbers: Tensor, units: Units) -> None:
        found = self._measured(values, numbers, units)
        if len(state) > 1:  # adding to the large matrix in place saves most of the time
            found = self._added(state, found, state["products"].add_(found["products"]))
        state.update(found)

    def _added(self, left: State, right: State, products: Tensor) -> State:
        """Merge two states. `products` must be the sum of both states' products; the result uses and overwrites this tensor."""
        count = left["count"] + right["count"]
        share = right["count"].double() / count.clamp(min=1)
        apart = right["mean"] - left["mean"]
        scaled = apart * (left["count"] * share)
        if apart.dim() > 1:
            one, other = torch.view_as_complex(scaled.contiguous()), torch.view_as_complex(apart.contiguous())
            products.add_(torch.view_as_real(torch.outer(one, other.conj()).resolve_conj()))
        else:
            products.addr_(scaled, apart)
        mean = left["mean"] + apart * share
        return {"count": count, "left_out": left["left_out"] + right["left_out"], "mean": mean, "products": products}

    def _result(self, state: State, units: Units) -> CovarianceResult:
        mean, products = state["mean"], state["products"]
        if units.is_complex:
            mean, products = torch.view_as_complex(mean.contiguous()), torch.view_as_complex(products.contiguous())
        if not int(state["count"]):
            raise InvalidArgument(f"{self} found a NaN or an infinity in every observation, so it has no result.")
        covariance = products / state["count"]
        covariance = ((covariance + covariance.mH) / 2).resolve_conj()  # rounding leaves it slightly asymmetric
        return CovarianceResult(mean, covariance, int(state["count"]), int(state["left_out"]))


@dataclass(frozen=True, eq=False, repr=False)
class CovarianceResult(Shown):
    """The result of `Covariance`. The covariance is divided by the number of observations."""

    mean: Tensor
    covariance: Tensor
    count: int  # number of observations
    left_out: int  # number of observations with a NaN or an infinity

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal().real.clone() if self.covariance.is_complex() else self.covariance.diagonal().clone()

    @property
    def correlation(self) -> Tensor:
        """The correlation matrix of the units: NaN in the rows and columns of constant units."""
        std = self.variance.sqrt()
        found = self.covariance / (std[:, None] * std[None, :])
        return torch.where((std[:, None] > 0) & (std[None, :] > 0), found, torch.nan)

    def __str__(self) -> str:
        lines = [f"Covariance of {len(self.mean)} units:", f"\tObservations: {self.count:,}"]
        lines += [f"\tMean: {spread(self.mean)}", f"\tVariance: {spread(self.variance)}"]
        if self.left_out:
            lines.append(f"\tNote: left out, as they have a NaN or an infinity: {self.left_out:,} observations.")
        return "\n".join(lines)


# `Histogram` of each unit: in given bins, or in bins that fit all values and always merge exactly.

_SHIFT = 20  # a bin's number is a float32 without this many low bits: the sign, the exponent and three bits of the fraction
_CODES = 1 << (32 - _SHIFT)
_TOGETHER = 1 << 22  # at most this many counts (units × bins) are computed at once
_MOST_BINS = 100_000


@dataclass(frozen=True, repr=False)
class Histogram(Reducer):
    """Counts how often the values of each unit fall into bins.

    Without `bins`, every power of two has eight bins of equal width, for all numbers that float32 can hold, and zero has a
    bin: the range need not be known beforehand, the width of a bin is at most an eighth of its values, and histograms of any
    data merge exactly. Larger numbers are in the last bins, and a bin contains the edge nearer to zero.

    `bins` are ascending edges, or with `range=(low, high)` a number of equal bins. As in NumPy, a bin includes its lower
    edge, and the last bin both edges; values outside are counted as `below` and `above`. NaN and infinities are counted
    separately. For complex numbers, magnitudes are used.

    >>> import torch
    >>> reducer = Histogram(bins=2, range=(0, 2))
    >>> state = reducer.begin()
    >>> reducer.update(state, torch.tensor([[0.5], [1.0], [2.0], [7.0]]), torch.arange(4))
    >>> reducer.finish(state).counts.tolist(), reducer.finish(state).above.tolist()
    ([[1, 2]], [1])
    """

    bins: tuple[float, ...] | None = None

    def __init__(
        self,
        bins: int | Sequence[float] | Tensor | None = None,
        *,
        range: tuple[float, float] | None = None,
        unit_dim: UnitDim = None,
    ) -> None:
        object.__setattr__(self, "bins", _edges(bins, range))
        object.__setattr__(self, "unit_dim", unit_dim)
        self.__post_init__()

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "bins": None if self.bins is None else list(self.bins)}

    def __repr__(self) -> str:
        if self.bins is None:
            return super().__repr__()
        said = f"{len(self.bins) - 1} bins from {self.bins[0]:g} to {self.bins[-1]:g}"
        return f"Histogram({said}{'' if self.unit_dim is None else f', unit_dim={self.unit_dim!r}'})"

    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        counts = dict.fromkeys(("nan", "inf"), (torch.int64, (units.count,)))
        if self.bins is not None:
            return {**counts, "counts": (torch.int64, (units.count, len(self.bins) + 1))}
        used = tensors["codes"].numel()
        return {**counts, "codes": (torch.int64, (used,)), "counts": (torch.int64, (units.count, used))}

    def _is_state(self, tensors: Mapping[str, Tensor], units: Units) -> bool:
        if not super()._is_state(tensors, units):
            return False
        if any(bool((tensors[name] < 0).any()) for name in ("nan", "inf", "counts")):
            return False
        codes = tensors["codes"] if self.bins is None else torch.zeros(0, dtype=torch.int64)
        return bool((codes.diff() > 0).all() and (codes >= 0).all() and (codes <= _CODES).all())

    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        seen = by_unit(values, units)
        seen = seen.to(torch.complex128).abs() if units.is_complex else seen
        seen = computable(seen)
        finite = seen.isfinite()
        nan = seen.isnan().sum(0)
        places = _codes(seen) if self.bins is None else self._places(seen)
        size = _CODES + 1 if self.bins is None else len(self.bins) + 1
        counts = _counted(torch.where(finite, places, size), size)
        found = {"nan": nan, "inf": (~finite).sum(0) - nan, "counts": counts}
        if self.bins is not None:
            return found
        used = counts.any(0).nonzero().flatten()
        return {**found, "codes": used, "counts": counts[:, used]}

    def _places(self, seen: Tensor) -> Tensor:
        """Count the edges at or below each value. A value equal to the last edge belongs to the last bin."""
        edges = torch.tensor(self.bins, dtype=torch.float64, device=seen.device)
        places = torch.searchsorted(edges, seen.double().contiguous(), right=True)
        return torch.where(seen == edges[-1], len(edges) - 1, places)

    def _merged(self, left: State, right: State) -> State:
        found = {name: left[name] + right[name] for name in ("nan", "inf")}
        if self.bins is not None:
            return {**found, "counts": left["counts"] + right["counts"]}
        codes = torch.unique(torch.cat([left["codes"], right["codes"]]))
        counts = left["counts"].new_zeros(len(left["nan"]), len(codes))
        for one in (left, right):
            counts[:, torch.searchsorted(codes, one["codes"])] += one["counts"]
        return {**found, "codes": codes, "counts": counts}

    def _result(self, state: State, units: Units) -> HistogramResult:
        if self.bins is not None:
            edges, counts = torch.tensor(self.bins, dtype=torch.float64), state["counts"]
            below, above, inside = counts[:, 0], counts[:, -1], counts[:, 1:-1]
            return HistogramResult(edges, inside, below, above, None, state["nan"], state["inf"])
        edges, counts, zeros = _laid_out(state["codes"], state["counts"])
        none = torch.zeros_like(zeros)
        return HistogramResult(edges, counts, none, none, zeros, state["nan"], state["inf"])


def _edges(bins: Any, ends: tuple[float, float] | None) -> tuple[float, ...] | None:
    if isinstance(bins, Tensor):
        bins = bins.tolist()
    if bins is None and ends is None:
        return None
    if isinstance(bins, int) and not isinstance(bins, bool) and ends is not None:
        low, high = (float(end) for end in ends)
        if not 1 <= bins <= _MOST_BINS or not (low < high and math.isfinite(high - low)):
            raise InvalidArgument(f"bins are 1 to {_MOST_BINS:,}, in a range that ascends; got bins={bins} and range={ends!r}.")
        return tuple(np.linspace(low, high, bins + 1).tolist())  # torch's linspace gives -6e-17 in place of 0
    try:
        edges = tuple(float(edge) for edge in bins) if ends is None and not isinstance(bins, str) else ()
    except (TypeError, ValueError):  # `bins` is not a sequence of numbers
        edges = ()
    is_ascending = all(a < b for a, b in pairwise(edges)) and all(map(math.isfinite, edges))
    if not 2 <= len(edges) <= _MOST_BINS + 1 or not is_ascending:
        raise InvalidArgument(
            "Histogram takes no bins, edges that are finite and ascend such as bins=[0, 1, 10], or bins=50, range=(-3, 3); "
            f"got bins={bins!r:.80} and range={ends!r}."
        )
    return edges


def _codes(seen: Tensor) -> Tensor:
    """Return the bin number of each value: sign, exponent and first fraction bits of a float32. Zeros get `_CODES`."""
    largest = torch.finfo(torch.float32).max
    if seen.dtype is torch.float64:
        narrow = seen.clamp(-largest, largest).float()
        toward_zero = torch.nextafter(narrow, torch.zeros_like(narrow))
        is_rounded_up = narrow.double().abs() > seen.abs().clamp(max=largest)
        narrow = torch.where(is_rounded_up, toward_zero, narrow)  # rounding must not cross an edge
    else:
        narrow = seen.float()
    codes = (narrow.contiguous().view(torch.int32) >> _SHIFT) & (_CODES - 1)
    return torch.where(seen == 0, _CODES, codes)


def _counted(places: Tensor, size: int) -> Tensor:
    """Count, for each unit, how often each place below `size` occurs. Takes a few units at a time to save memory."""
    together = max(1, _TOGETHER // (size + 1))
    counts = []
    for some in torch.split(places, together, dim=1):
        offsets = torch.arange(some.shape[1], device=some.device) * (size + 1)
        counted = torch.bincount((some + offsets).flatten(), minlength=some.shape[1] * (size + 1))
        counts.append(counted.view(some.shape[1], size + 1)[:, :size])
    return torch.cat(counts).contiguous()


def _laid_out(codes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the edges of ascending bins without gaps, the counts in these bins, and the counts of zeros."""
    zeros = counts[:, codes == _CODES].sum(1)
    counts, codes = counts[:, codes != _CODES], codes[codes != _CODES]
    size = codes & (_CODES // 2 - 1)
    ends = [((size + more).to(torch.int32) << _SHIFT).view(torch.float32).double() for more in (0, 1)]
    ends[1] = torch.where(ends[1].isinf(), 2.0**128, ends[1])
    is_negative = codes >= _CODES // 2
    low, high = torch.where(is_negative, -ends[1], ends[0]), torch.where(is_negative, -ends[0], ends[1])
    if not len(codes):
        return torch.zeros(2, dtype=torch.float64), counts.new_zeros(len(counts), 1), zeros
    edges = torch.unique(torch.cat([low, high]))
    spread_out = counts.new_zeros(len(counts), len(edges) - 1)
    spread_out[:, torch.searchsorted(edges, low)] = counts
    return edges, spread_out, zeros


@dataclass(frozen=True, eq=False, repr=False)
class HistogramResult(Shown):
    """The result of `Histogram`: bin `i` lies between `edges[i]` and `edges[i + 1]`; `counts` has a row for each unit.

    Without given bins, each bin contains its edge nearer to zero; zeros are in no bin but counted in `zeros`.
    """

    edges: Tensor
    counts: Tensor
    below: Tensor
    above: Tensor
    zeros: Tensor | None  # number of zeros per unit; None for given bins, which contain the zeros
    nan: Tensor
    inf: Tensor

    @property
    def total(self) -> Tensor:
        """The counts of all units together."""
        return self.counts.sum(0)

    def __str__(self) -> str:
        lines = [f"Histogram of {len(self.counts)} units:"]
        lines += [f"\tBins: {self.counts.shape[1]:,} from {float(self.edges[0]):.4g} to {float(self.edges[-1]):.4g}"]
        lines += [f"\tAll units: {sparkline(_fewer(self.total))}"]
        if self.zeros is not None:
            lines.append(f"\tZeros of a unit: {spread(self.zeros)}")
        if outside := int(self.below.sum() + self.above.sum()):
            lines.append(f"\tOutside of the bins: {outside:,}")
        return "\n".join(lines + not_finite_note(self.nan, self.inf))


def _fewer(counts: Tensor, most: int = 60) -> list[int]:
    """Add up the counts of neighbouring bins until at most `most` counts are left."""
    width = -(-len(counts) // most)
    return [int(some.sum()) for some in torch.split(counts, width)] if len(counts) else []


# `TopK`: the samples for which each unit is largest or smallest.

_NOBODY = torch.iinfo(torch.int64).max  # the sample number of an empty place


@dataclass(frozen=True, repr=False)
class TopK(Reducer):
    """The `k` samples for which each unit is largest, or smallest with `largest=False`.

    For a unit with several positions (pixels, tokens) the mean counts, or with `positions="max"` the largest (with
    `largest=False` the smallest). Of equal samples the first are kept. Samples whose value is NaN or infinite are counted
    and left out. For complex numbers, magnitudes are used.

    >>> import torch
    >>> reducer = TopK(2)
    >>> state = reducer.begin()
    >>> reducer.update(state, torch.tensor([[1.0], [7.0], [7.0], [3.0]]), torch.arange(4))
    >>> reducer.finish(state).numbers.tolist()
    [[1, 2]]
    """

    k: int = 20
    positions: Literal["mean", "max"] = field(default="mean", kw_only=True)
    largest: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise InvalidArgument(f"TopK keeps a number of samples for each unit, 1 or more; got {self.k!r}.")
        if self.positions not in ("mean", "max"):
            raise InvalidArgument(
                f"positions is 'mean' or 'max': how a sample's positions are combined; got {self.positions!r}."
            )
        if not isinstance(self.largest, bool):
            raise InvalidArgument(f"largest is True or False; got {self.largest!r}.")

    def _forms(self, units: Units, tensors: Mapping[str, Tensor]) -> dict[str, Form]:
        kept, one = (units.count, self.k), (units.count,)
        return {"values": (torch.float64, kept), "numbers": (torch.int64, kept), "left_out": (torch.int64, one)}

    def _measured(self, values: Tensor, numbers: Tensor, units: Units) -> State:
        seen = around_units(values, units)
        seen = wide(seen).abs() if units.is_complex else seen
        if self.positions == "mean":
            positions = seen.shape[1] * seen.shape[3]
            scores = seen.sum(3, dtype=torch.float64).sum(1) / positions
        else:
            seen = computable(seen)
            scores = wide(seen.amax((1, 3)) if self.largest else seen.amin((1, 3)))
        finite = scores.isfinite()
        # With this sign the best score is always the largest; minus infinity is worse than any sample.
        scores = torch.where(finite, scores if self.largest else -scores, -math.inf).T
        known = torch.where(finite.T, numbers.to(scores.device, torch.int64), _NOBODY)
        best, whose = self._best(scores, known)
        lacking = self.k - best.shape[1]
        if lacking > 0:
            best = torch.nn.functional.pad(best, (0, lacking), value=-math.inf)
            whose = torch.cat((whose, whose.new_full((len(whose), lacking), _NOBODY)), 1)
        return {"values": best, "numbers": whose, "left_out": (~finite).sum(0)}

    def _best(self, scores: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the `k` best samples of each row: by score, and among equal scores by sample number."""
        numbers, order = numbers.sort(dim=1, stable=True)
        scores, order = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
        return scores[:, : self.k].contiguous(), numbers.gather(1, order[:, : self.k])

    def _merged(self, left: State, right: State) -> State:
        both = [torch.cat([left[name], right[name]], 1) for name in ("values", "numbers")]
        values, numbers = self._best(*both)
        return {"values": values, "numbers": numbers, "left_out": left["left_out"] + right["left_out"]}

    def _result(self, state: State, units: Units) -> TopKResult:
        most = int((state["numbers"] != _NOBODY).sum(1).max()) if state["numbers"].numel() else 0
        values, numbers = state["values"][:, :most], state["numbers"][:, :most]
        is_sample = numbers != _NOBODY
        values = torch.where(is_sample, values if self.largest else -values, math.nan)
        return TopKResult(self, values, torch.where(is_sample, numbers, -1), state["left_out"])


@dataclass(frozen=True, eq=False, repr=False)
class TopKResult(Shown):
    """The result of `TopK`: a row for each unit, the best sample first; if there are fewer samples, rows end with -1 and
    NaN.
    """

    reducer: TopK
    values: Tensor
    numbers: Tensor
    left_out: Tensor  # for each unit: the number of samples whose value was not finite

    def __str__(self) -> str:
        which = "largest" if self.reducer.largest else "smallest"
        lines = [f"The {self.values.shape[1]} samples for which each of {len(self.values)} units is {which}:"]
        lines += [f"\tFirst of unit {unit}: {self._first(unit)}" for unit in range(min(3, len(self.values)))]
        if bool(self.left_out.any()):
            units, most = int((self.left_out > 0).sum()), int(self.left_out.max())
            lines.append(
                f"\tNote: samples whose value is not finite are left out, up to {most:,} of a unit, in {units:,} units."
            )
        return "\n".join(lines)

    def _first(self, unit: int) -> str:
        numbers = self.numbers[unit]
        if not numbers.numel() or numbers[0] < 0:
            return "none"
        return f"sample {int(numbers[0])} with {float(self.values[unit, 0]):.4g}"


KINDS: dict[str, type[Reducer]] = {kind.__name__: kind for kind in (Mean, Covariance, TopK, Histogram)}


def reducer_from(description: object) -> Reducer:
    """Make the reducer that `describe()` described. Raises InvalidArgument if the description is of no reducer.

    >>> reducer_from(TopK(5).describe())
    TopK(k=5)
    """
    if not isinstance(description, dict) or description.get("reducer") not in KINDS:
        raise InvalidArgument(f"this does not describe any of the reducers {', '.join(KINDS)}: {description!r:.80}.")
    options = {name: value for name, value in description.items() if name != "reducer"}
    kind = KINDS[description["reducer"]]
    if not options.keys() <= {one.name for one in fields(kind)}:
        raise InvalidArgument(f"{kind.__name__} has no such options: {description!r:.200}.")
    return kind(**options)
