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
from ..statistics.rows import Rows

Array = np.ndarray[Any, Any]
_BYTES = 8
_WORKING = 9  # arrays of one number for each pair of samples that are there while the pairs of a layer are ranked
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
    count = rows.count
    together = max(1, (1 << 22) // max(1, rows.width))
    found = np.empty(count * (count - 1) // 2)
    for begin, one in rows.parts(together):
        one = _standard(one)
        for other_begin in range(begin, count, together):
            other = one if other_begin == begin else _standard(rows.read(other_begin, other_begin + together))
            products = (1.0 - one @ other.T).round(decimals=_DIGITS).numpy()
            for at in range(len(one)):
                row = begin + at
                first = max(row + 1, other_begin)  # the first sample of the other part that makes a new pair
                last = other_begin + products.shape[1]
                if first < last:
                    place = row * (2 * count - row - 1) // 2 + first - row - 1
                    found[place : place + last - first] = products[at, first - other_begin :]
    return found


def _standard(rows: Tensor) -> Tensor:
    """Rows less their means, of length 1."""
    largest = rows.abs().amax(1, keepdim=True)
    away = rows / torch.where(largest > 0, largest, 1.0)  # so that no square overflows
    away = away - away.mean(1, keepdim=True)
    return away / away.square().sum(1, keepdim=True).sqrt()


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
