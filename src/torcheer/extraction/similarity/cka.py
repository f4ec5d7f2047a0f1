"""Linear CKA (Kornblith et al. 2019) of layers, from features that are read a few at a time.

With centred features X and Y it is |XᵀY|² / (|XᵀX| |YᵀY|), in Frobenius norms. |XᵀY|² is found in one of two ways, whichever
takes less work and fits the memory: from products of features, XᵀY, summed over samples; or, where features are more than
samples, from products of samples, since |XᵀY|² = ⟨XXᵀ, YYᵀ⟩, tile by tile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ..statistics.rows import BYTES_READ, Rows, mean_row
from ..statistics.sample_products import product_tile

Array = np.ndarray[Any, Any]
Pairs = list[tuple[int, int]]
_BYTES = 8  # of a number


class _Centred:
    """The rows of a layer, less their mean and scaled by a power of two, so that no square overflows or vanishes."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.width = rows.width
        self._mean = mean_row(rows)
        largest = max((float(part.abs().max()) for _, part in rows.parts() if part.numel()), default=0.0)
        self._scale = 2.0 ** -max(math.frexp(largest)[1], -1000)
        norms = [((part - self._mean) * self._scale).square().sum(1) for _, part in rows.parts()]
        self.norms = torch.cat(norms) if norms else torch.zeros(0, dtype=torch.float64)  # squared, of each row

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        away = self.rows.read(begin, end, columns) - self._mean[self.rows.flat(columns)]
        return away.mul_(self._scale)


def linear_cka(a: Sequence[Rows], b: Sequence[Rows] | None, memory: int, *, debiased: bool) -> Array:
    """The matrix of CKA of layers with the same samples: of `a` with one another, or of `a` with those of `b`.

    Debiased, every sum over pairs of samples leaves out a sample with itself, as in the estimator of Song et al. (2012).
    """
    layers = [_Centred(rows) for rows in (*a, *(b or ()))]
    count = layers[0].rows.count
    if b is None:
        wanted = list(combinations_with_replacement(range(len(a)), 2))
    else:
        wanted = [(one, len(a) + other) for one in range(len(a)) for other in range(len(b))]
        wanted += [(one, one) for one in range(len(layers))]
    found = _squared_products(layers, wanted, memory)
    if debiased:
        for one, other in wanted:
            found[one, other] = _without_self(float(found[one, other]), layers[one].norms, layers[other].norms, count)
    own = found.diagonal()
    lengths = np.sqrt(np.where(own > 0, own, math.nan))
    scaled = found / lengths[:, None] / lengths[None, :]
    result: Array = scaled[: len(a), len(a) :] if b is not None else np.triu(scaled) + np.triu(scaled, 1).T
    return result


def _without_self(product: float, one: Tensor, other: Tensor, count: int) -> float:
    """n (n - 3) times the unbiased estimate of HSIC. `one` and `other` are the diagonals of the two products of samples.

    Rows are centred, so each row of these products sums to zero, and without its diagonal to minus that.
    """
    together = float(one @ other)
    sums = float(one.sum()) * float(other.sum())
    return product - together + sums / ((count - 1) * (count - 2)) - 2 * together / (count - 2)


def _squared_products(layers: Sequence[_Centred], pairs: Pairs, memory: int) -> Array:
    """|XᵀY|² of each of the pairs; zero elsewhere."""
    count, widths = layers[0].rows.count, [layer.width for layer in layers]
    by_features = count * sum(widths[one] * widths[other] for one, other in pairs)
    by_samples = count * count * (sum(widths) + len(layers) ** 2)
    largest = max(widths[one] * widths[other] for one, other in pairs) * _BYTES
    if by_features <= by_samples and largest + BYTES_READ * max(widths) <= memory // 2:
        return _from_features(layers, pairs, memory)
    return _from_samples(layers, memory)


def _from_features(layers: Sequence[_Centred], pairs: Pairs, memory: int) -> Array:
    found = np.zeros((len(layers), len(layers)))
    for group in _groups(pairs, [layer.width for layer in layers], memory // 2):
        used = sorted({one for pair in group for one in pair})
        widths = sum(layers[one].width for one in used)
        together = max(1, min(4096, memory // 4 // (BYTES_READ * widths)))
        products = {(i, j): torch.zeros(layers[i].width, layers[j].width, dtype=torch.float64) for i, j in group}
        for begin in range(0, layers[0].rows.count, together):
            parts = {one: layers[one].read(begin, begin + together) for one in used}
            for (one, other), product in products.items():
                product.addmm_(parts[one].T, parts[other])
        for (one, other), product in products.items():
            found[one, other] = float(product.flatten() @ product.flatten())
    return found


def _groups(pairs: Pairs, widths: list[int], memory: int) -> list[Pairs]:
    """Pairs whose products fit the memory together. The features are read once for each group."""
    groups: list[Pairs] = [[]]
    left = memory
    for one, other in pairs:
        size = widths[one] * widths[other] * _BYTES
        if groups[-1] and size > left:
            groups.append([])
            left = memory
        groups[-1].append((one, other))
        left -= size
    return groups


def _from_samples(layers: Sequence[_Centred], memory: int) -> Array:
    count, widest = layers[0].rows.count, max(layer.rows.unit_width for layer in layers)
    by_tiles = math.isqrt(memory // 2 // (_BYTES * (len(layers) + 1)))
    by_rows = memory // 4 // (2 * BYTES_READ * widest)
    size = min(count, by_tiles, by_rows)
    if size < 1:
        raise InvalidArgument(
            f"samples with {widest:,} positions of a unit do not fit the memory limit of {memory / 2**30:.3g} GiB. Raise "
            "memory=, or extract the layer with a transform= that keeps fewer features."
        )
    found = torch.zeros(len(layers), len(layers), dtype=torch.float64)
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            shape = min(size, count - begin), min(size, count - other)
            stacked = torch.empty(len(layers), shape[0] * shape[1], dtype=torch.float64)
            for one, layer in zip(stacked, layers, strict=True):
                one.copy_(product_tile(layer, begin, other, size, memory // 4).flatten())
            found += stacked @ stacked.T * (1 if begin == other else 2)
    return found.numpy()
