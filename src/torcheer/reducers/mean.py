"""Mean: the number of values of each unit, their mean, variance, smallest and largest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..display import Shown
from ..errors import InvalidArgument
from .reducer import Form, Reducer, State
from .units import Units, around_units, wide
from .wording import not_finite_note, spread


@dataclass(frozen=True, repr=False)
class Mean(Reducer):
    """Mean, variance, standard deviation, number, smallest and largest value of each unit, in double precision.

    Every position of a sample is an observation; `unit_dim="all"` keeps positions apart. NaN and infinities are counted and
    left out. Of complex numbers the mean is complex, the variance is that of the distance to it, and the smallest and largest
    are magnitudes.

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
        if seen.is_cpu and bool(total.isfinite().all()):  # then every value is
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
        rest = _sum(away)  # zero but for rounding
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
    """The sum for each unit. Positions that are neighbours in memory are summed first, which is several times faster."""
    return values.sum(3).sum((0, 1))


def _squared(values: Tensor) -> Tensor:
    return (values.conj() * values).real if values.is_complex() else values * values


@dataclass(frozen=True, eq=False, repr=False)
class MeanResult(Shown):
    """The result of `Mean`: one number for each unit, over its finite values; NaN where a unit had none.

    The variance is that of these values (divided by their number), not the estimate from a sample.
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
