"""Covariance of the units of a layer, and from it their correlation and principal components."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..display import Shown
from ..errors import InvalidArgument
from .reducer import Form, Reducer, State
from .units import Units, by_unit, wide
from .wording import spread

_MOST_UNITS = 16_384  # whose matrix takes 2 GiB


@dataclass(frozen=True, repr=False)
class Covariance(Reducer):
    """The mean and the covariance matrix of the units, in double precision.

    Every position of a sample is an observation. Observations with a NaN or an infinity in any unit are left out and counted.
    The covariance of complex units is Hermitian. Each block writes a matrix of units × units, so a layer may have 16,384 units
    at most; `transform=` can choose or average some.

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
        if len(state) > 1:  # the large matrix of the state is added to in place, which saves most of the time
            found = self._added(state, found, state["products"].add_(found["products"]))
        state.update(found)

    def _added(self, left: State, right: State, products: Tensor) -> State:
        """Two states merged. `products` is the sum of their products; it is written to."""
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
            raise InvalidArgument(f"{self} found a NaN or an infinity in every observation, so there is nothing to tell.")
        covariance = products / state["count"]
        covariance = ((covariance + covariance.mH) / 2).resolve_conj()  # rounding leaves it not quite symmetric
        return CovarianceResult(mean, covariance, int(state["count"]), int(state["left_out"]))


@dataclass(frozen=True, eq=False, repr=False)
class CovarianceResult(Shown):
    """The result of `Covariance`. The covariance is that of these observations (divided by their number)."""

    mean: Tensor
    covariance: Tensor
    count: int  # of observations
    left_out: int  # observations with a NaN or an infinity

    @property
    def variance(self) -> Tensor:
        return self.covariance.diagonal().real.clone() if self.covariance.is_complex() else self.covariance.diagonal().clone()

    @property
    def correlation(self) -> Tensor:
        """NaN in the rows and columns of units that never change."""
        std = self.variance.sqrt()
        found = self.covariance / (std[:, None] * std[None, :])
        return torch.where((std[:, None] > 0) & (std[None, :] > 0), found, torch.nan)

    def __str__(self) -> str:
        lines = [f"Covariance of {len(self.mean)} units:", f"\tObservations: {self.count:,}"]
        lines += [f"\tMean: {spread(self.mean)}", f"\tVariance: {spread(self.variance)}"]
        if self.left_out:
            lines.append(f"\tNote: left out, as they have a NaN or an infinity: {self.left_out:,} observations.")
        return "\n".join(lines)
