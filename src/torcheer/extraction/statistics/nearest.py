"""The samples whose features are nearest to those of a sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidArgument
from ...inputs import is_whole
from .chosen_samples import ChosenSamples, SampleNames, as_integer
from .rows import Rows

Nearness = Literal["cosine", "correlation", "dot", "euclidean"]
GivenSample = int | str | Tensor | Sequence[float] | np.ndarray[Any, Any]  # its number, its id, or its features
_MEASURES = {"cosine": True, "correlation": True, "dot": True, "euclidean": False}  # whether the largest is nearest


def nearest_samples(rows: Rows, sample: Any, k: int, measure: str, names: SampleNames) -> ChosenSamples:
    """The `k` samples whose rows are nearest to a sample, given by its number or its id, or to features."""
    if measure not in _MEASURES:
        raise InvalidArgument(f"measure is one of {', '.join(map(repr, _MEASURES))}; got {measure!r}.")
    if not is_whole(k, 1):
        raise InvalidArgument(f"the number of nearest samples is 1 or more; got {k!r}.")
    sample = as_integer(sample)
    own = names.row_of(sample, rows.name)
    wanted = _features(sample, rows) if own is None else rows.read(own, own + 1)[0]
    if not bool(wanted.isfinite().all()):
        raise InvalidArgument("the features to compare with have a NaN or an infinity.")
    best = torch.zeros(0, dtype=torch.float64)
    whose = torch.zeros(0, dtype=torch.int64)
    left_out = 0
    for begin, part in rows.parts():
        values = _measured(part, wanted, measure)
        places = torch.arange(begin, begin + len(part))
        usable = values.isfinite()
        left_out += int((~usable).sum())
        usable &= places != (-1 if own is None else own)
        values, places = torch.cat([best, values[usable]]), torch.cat([whose, places[usable]])
        # Rows come in the order of samples, and sorting keeps that among equal ones.
        order = values.sort(descending=_MEASURES[measure], stable=True).indices[:k]
        best, whose = values[order], places[order]
    what = "the given features" if own is None else f"sample {sample}"
    word = "distance" if measure == "euclidean" else measure
    numbers = names.of_rows(whose)
    title = f"nearest to {what} in {rows.name}"
    return ChosenSamples(title, word, numbers, best, names.ids_of(numbers), left_out=left_out)


def _features(sample: Any, rows: Rows) -> Tensor:
    try:
        given = torch.as_tensor(sample)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidArgument(f"a sample is given by its number, its id or its features; got {sample!r:.60}.") from None
    read = Rows("sample", given[None])
    if read.width != rows.width:
        raise InvalidArgument(f"the features of a sample of {rows.name!r} are {rows.width:,} numbers; got {read.width:,}.")
    return read.read(0, 1)[0]


def _measured(rows: Tensor, wanted: Tensor, measure: str) -> Tensor:
    if measure == "euclidean":
        return (rows - wanted).square().sum(1).sqrt()
    if measure == "correlation":
        rows, wanted = rows - rows.mean(1, keepdim=True), wanted - wanted.mean()
    products = rows @ wanted
    if measure == "dot":
        return products
    lengths = rows.square().sum(1).sqrt() * wanted.square().sum().sqrt()
    return torch.where(lengths > 0, products / lengths, math.nan)
