"""Units: the dimension of a layer's values along which statistics are kept apart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidArgument

UnitDim = int | Literal["all"] | None


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a layer. Samples and positions are observations of them."""

    dim: int  # 0: the values have one dimension only, and there is one unit; -1: every element of a sample is a unit
    sizes: tuple[int, ...]  # the number of dimensions and of units; with dim -1 the shape of a sample
    is_complex: bool

    @property
    def count(self) -> int:
        return self.sizes[1] if self.dim >= 0 else math.prod(self.sizes)

    @property
    def broadcast_shape(self) -> tuple[int, ...]:
        """The shape in which one number for each unit broadcasts to the values of a sample."""
        if self.dim < 0:
            return self.sizes
        return (self.count, *[1] * (self.sizes[0] - 1 - self.dim)) if self.dim else ()

    def to_tensor(self) -> Tensor:
        return torch.tensor([self.dim, int(self.is_complex), *self.sizes], dtype=torch.int64, device="cpu")

    @classmethod
    def from_tensor(cls, tensor: Tensor) -> Units:
        """The units that `to_tensor` wrote; raises ValueError for other tensors."""
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
    """The units of values whose first dimension counts samples.

    Without `unit_dim`: the last dimension of up to three (features, or tokens and features), else dimension 1 (channels).
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
            f"unit_dim={unit_dim} is no dimension of units of values with shape {shape}: dimension 0 counts samples, "
            f"so it is one of 1 to {len(shape) - 1}."
        )
    return Units(dim, (len(shape), shape[dim] if dim else 1), is_complex)


def around_units(values: Tensor, units: Units) -> Tensor:
    """Values as samples × positions × units × positions, without copying where that is possible."""
    if units.dim < 0 or values.dim() == 1:
        return values.reshape(len(values), 1, units.count, 1)
    before, after = values.shape[1 : units.dim], values.shape[units.dim + 1 :]
    return values.reshape(len(values), before.numel(), units.count, after.numel())


def by_unit(values: Tensor, units: Units) -> Tensor:
    """Values as observations × units."""
    return around_units(values, units).movedim(2, -1).reshape(-1, units.count)


def wide(values: Tensor) -> Tensor:
    """Values in double precision: truth values as 0 and 1, complex numbers as complex128."""
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def computable(values: Tensor) -> Tensor:
    """Real values in a floating-point dtype that torch computes with: float8 and integers in double precision."""
    return values if values.is_floating_point() and values.element_size() > 1 else values.double()
