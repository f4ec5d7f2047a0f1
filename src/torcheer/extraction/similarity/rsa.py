"""Representational similarity analysis (Kriegeskorte et al. 2008): layers are similar where the same samples are far apart.

The distance of two samples in a layer is one minus the correlation of their features; two layers are compared by Spearman's
rank correlation of their distances, where equal distances share the mean of their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ..statistics.rows import BYTES_READ, Rows
from ..statistics.sample_products import product_tile

Array = np.ndarray[Any, Any]
_BYTES = 8
_WORKING = 9  # arrays of one number for each pair of samples that are there while the pairs of a layer are ranked
_ROOM = 64 << 20  # bytes for rows while their products are taken
_DIGITS = 12  # of a distance: what rounding in sums adds must not tell equal ones apart


def rank_similarity(a: Sequence[Rows], b: Sequence[Rows] | None, memory: int) -> Array:
    """The matrix of rank correlations of layers with the same samples: of `a` with one another, or with those of `b`."""
    count = a[0].count
    pairs = count * (count - 1) // 2
    held = memory // (_BYTES * max(1, pairs)) - _WORKING  # how many layers may be there ranked
    if held < 2:
        fitting = math.isqrt(2 * memory // (_BYTES * (_WORKING + 2)))
        raise InvalidArgument(
            f"the distances of {count:,} samples need {pairs * _BYTES * (_WORKING + 2) / 2**30:.1f} GiB, and memory= allows "
            f"{memory / 2**30:.3g} GiB: use fewer, samples={fitting}, or raise memory=."
        )
    others = a if b is None else b
    result = np.full((len(a), len(others)), math.nan)
    for begin in range(0, len(a), held - 1):
        some = {at: _ranked(a[at]) for at in range(begin, min(begin + held - 1, len(a)))}
        for column, rows in enumerate(others):
            if b is None and column < begin:
                continue  # it is the mirror of what was found before
            ranks = some[column] if b is None and column in some else _ranked(rows)
            for row, own in some.items():
                result[row, column] = float(own @ ranks)
                if b is None:
                    result[column, row] = result[row, column]
    return result


def _ranked(rows: Rows) -> Array:
    """The ranks of the distances of all pairs of samples, less their mean, as a vector of length 1.

    NaN where they tell nothing: all are equal, or the features of some sample are.
    """
    distances = _distances(rows)
    ranks = average_ranks(distances) if not np.isnan(distances).any() else np.zeros_like(distances)
    del distances
    ranks -= ranks.mean() if len(ranks) else 0.0
    length = math.sqrt(float(ranks @ ranks))
    ranks /= length if length > 0 else math.nan
    return ranks


def _distances(rows: Rows) -> Array:
    """One minus the correlation of each pair of samples, in the order (0, 1), (0, 2), …, (1, 2), …"""
    count, standard = rows.count, _Standard(rows)
    size = max(1, min(count, 1024, _ROOM // (2 * BYTES_READ * rows.unit_width)))
    found = np.empty(count * (count - 1) // 2)
    for begin in range(0, count, size):
        for other in range(begin, count, size):
            products = (1.0 - product_tile(standard, begin, other, size, _ROOM)).round(decimals=_DIGITS).numpy()
            last = other + products.shape[1]
            for row in range(begin, begin + products.shape[0]):
                first = max(row + 1, other)  # the first of the others that makes a new pair
                if first < last:
                    place = row * (2 * count - row - 1) // 2 + first - row - 1
                    found[place : place + last - first] = products[row - begin, first - other :]
    return found


class _Standard:
    """Rows less their means, each of length 1."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        parts = [self._ends(part) for _, part in rows.parts()]
        self._largest, self._mean, self._length = (torch.cat(some)[:, None] for some in zip(*parts, strict=True))

    def _ends(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What rows are divided by so that no square overflows, the mean of what is left, and its distance from that."""
        largest = rows.abs().amax(1)
        largest = torch.where(largest > 0, largest, 1.0)
        scaled = rows / largest[:, None]
        mean = scaled.mean(1)
        return largest, mean, (scaled - mean[:, None]).square().sum(1).sqrt()

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor:
        which = slice(begin, end)
        scaled = self.rows.read(begin, end, columns) / self._largest[which]
        return scaled.sub_(self._mean[which]).div_(self._length[which])


def average_ranks(values: Array) -> Array:
    """The rank of each value, from 0; equal ones share the mean of theirs.

    >>> average_ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [1.5, 0.0, 1.5]
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    ranks = np.empty(len(values))
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(values) else np.zeros(0, dtype=np.int64)
    if len(starts) == len(values):
        ranks[order] = np.arange(len(values), dtype=np.float64)
        return ranks
    counts = np.diff(np.r_[starts, len(values)])
    ranks[order] = np.repeat(starts + (counts - 1) / 2, counts)
    return ranks
