"""Principal components of the features of a layer, from rows that are read a few at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...display import Shown, few
from ...errors import InvalidArgument
from ...inputs import is_whole
from ...reducers import Covariance, CovarianceResult
from .rows import BYTES_READ, Rows, mean_row
from .sample_products import product_tile

_BYTES = 8
_COPIES = 4  # of the matrix that an eigendecomposition needs
MEMORY = 2 << 30
_ROOM = 64 << 20  # bytes for rows while their products are taken


@dataclass(frozen=True, eq=False, repr=False)
class Components(Shown):
    """Principal components: directions of unit length, the most variable first, and how much the samples vary along each.

    Signs are such that the entry of a direction that is farthest from zero is positive.
    """

    directions: Tensor  # components × features
    variances: Tensor  # of the samples, divided by their number
    mean: Tensor  # of the features
    total_variance: float  # of all components
    samples: int  # or observations, where it comes from a covariance
    left_out: int = 0
    rows: Rows | None = None

    @property
    def explained(self) -> Tensor:
        """The part of the whole variance that each component explains."""
        return self.variances / self.total_variance if self.total_variance > 0 else torch.zeros_like(self.variances)

    def project(self, values: Tensor | None = None) -> Tensor:
        """The coordinates of samples along the components, samples × components; without values, those of all samples."""
        if values is None:
            if self.rows is None:
                raise InvalidArgument(
                    "these components come from a covariance, so there are no samples; give the values to project."
                )
            parts = [self._projected(part) for _, part in self.rows.parts()]
            return torch.cat(parts) if parts else torch.zeros(0, len(self.directions), dtype=torch.float64)
        rows = Rows("values", values)
        if rows.width != len(self.mean):
            raise InvalidArgument(f"values to project have {len(self.mean):,} features for each sample; got {rows.width:,}.")
        return self._projected(rows.read(0, rows.count))

    def _projected(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) @ self.directions.T

    def __str__(self) -> str:
        explained = self.explained
        parts = few((f"{100 * part:.1f} %" for part in explained.tolist()), 8)
        lines = [f"{len(self.directions)} principal components of {len(self.mean):,} features:", f"\tSamples: {self.samples:,}"]
        lines += [f"\tExplained: {100 * float(explained.sum()):.1f} % of the variance ({parts})"]
        if self.left_out:
            lines.append(f"\tNote: left out, as they have a NaN or an infinity: {self.left_out:,} samples.")
        return "\n".join(lines)


def _check_number(k: object) -> None:
    if not is_whole(k, 1):
        raise InvalidArgument(f"the number of components is 1 or more; got {k!r}.")


def components_of(rows: Rows, k: int, memory: int = MEMORY) -> Components:
    """The first `k` principal components of rows, from the covariance of features or from products of samples."""
    _check_number(k)
    usable, left_out = _finite(rows)
    if usable.count < 2:
        raise InvalidArgument(f"principal components need 2 samples or more; {rows.name!r} has {usable.count}.")
    smaller = min(usable.width, usable.count)
    if smaller**2 * _BYTES * _COPIES > memory:
        fitting = math.isqrt(memory // (_BYTES * _COPIES))
        raise InvalidArgument(
            f"principal components of {usable.count:,} samples with {usable.width:,} features each need more than "
            f"{memory / 2**30:.3g} GiB: use fewer samples, samples={fitting}, or raise memory=."
        )
    if usable.width <= usable.count:
        reducer = Covariance()
        state = reducer.begin()
        for begin, part in usable.parts():
            reducer.update(state, part, torch.arange(begin, begin + len(part)))
        return from_covariance(reducer.finish(state), k, rows=rows, left_out=left_out)
    return _from_samples(usable, min(k, smaller), rows, left_out)


def from_covariance(found: CovarianceResult, k: int, rows: Rows | None = None, left_out: int = 0) -> Components:
    """The first `k` principal components of units whose covariance is known."""
    if found.covariance.is_complex():
        raise InvalidArgument("principal components are of real units; the covariance is of complex ones.")
    _check_number(k)
    values, vectors = _largest(found.covariance, k)
    total = float(found.covariance.diagonal().sum())
    return Components(_signed(vectors.T), values, found.mean, total, found.count, left_out or found.left_out, rows)


def _largest(products: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest eigenvalues of a symmetric matrix, and their vectors as columns."""
    if not products.isfinite().all():
        raise InvalidArgument(
            "products of the values are too large for principal components: make the values smaller with transform=."
        )
    values, vectors = torch.linalg.eigh(products)
    return values.flip(0)[:k].clamp(min=0), vectors.flip(1)[:, :k]


def _from_samples(usable: Rows, k: int, rows: Rows, left_out: int) -> Components:
    """For fewer samples than features: eigenvectors of the products of samples say how samples make the directions."""
    centred = _Centred(usable)
    mean, count = centred.mean, usable.count
    products = torch.zeros(count, count, dtype=torch.float64)
    size = max(1, min(count, 1024, _ROOM // (2 * BYTES_READ * usable.unit_width)))
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            tile = product_tile(centred, begin, other, size, _ROOM)
            products[begin : begin + size, other : other + size] = tile
            products[other : other + size, begin : begin + size] = tile.T
    values, vectors = _largest(products, k)
    directions = torch.zeros(k, usable.width, dtype=torch.float64)
    for begin, part in usable.parts():
        directions += vectors[begin : begin + len(part)].T @ (part - mean)
    # Directions along which nothing varies are rounding errors; these are made orthogonal to the others.
    directions = torch.linalg.qr(directions.T)[0].T
    total = float(products.diagonal().sum()) / usable.count
    return Components(_signed(directions), values / usable.count, mean, total, usable.count, left_out, rows)


class _Centred:
    """Rows less their mean."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.mean = mean_row(rows)

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        return self.rows.read(begin, end, columns) - self.mean[self.rows.flat(columns)]


def _signed(directions: Tensor) -> Tensor:
    """Directions whose entry farthest from zero is positive: which of two opposite ones is found is a matter of chance."""
    farthest = directions.abs().argmax(1, keepdim=True)
    return (directions * directions.gather(1, farthest).sign()).contiguous()


def _finite(rows: Rows) -> tuple[Rows, int]:
    """The rows without a NaN or an infinity, and how many others there are."""
    finite = [part.isfinite().all(1) for _, part in rows.parts()]
    good = torch.cat(finite) if finite else torch.zeros(0, dtype=torch.bool)
    if bool(good.all()):
        return rows, 0
    return rows.of(good.nonzero().flatten().numpy()), int((~good).sum())
