"""Histogram of each unit: in given bins, or in bins that fit any values and always merge exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..display import Shown, sparkline
from ..errors import InvalidArgument
from .reducer import Form, Reducer, State
from .units import UnitDim, Units, by_unit, computable
from .wording import not_finite_note, spread

_SHIFT = 20  # low bits of a float32 that are dropped: sign, exponent and three bits of the fraction name a bin
_CODES = 1 << (32 - _SHIFT)
_TOGETHER = 1 << 22  # counts that are held at once, units × bins
_MOST_BINS = 100_000


@dataclass(frozen=True, repr=False)
class Histogram(Reducer):
    """How often the values of each unit fall into bins.

    Without `bins` every power of two has eight bins of equal width, for all numbers that float32 can hold, and zero has a bin:
    nothing has to be known beforehand, a bin is at most an eighth of its values wide, and histograms of any data merge exactly.
    Larger numbers are in the last bins, and a bin contains the edge that is nearer to zero.

    `bins` are ascending edges, or with `range=(low, high)` a number of equal bins. As in NumPy a bin has its lower edge, and
    the last one both; values outside are counted as `below` and `above`. NaN and infinities are counted apart. Of complex
    numbers the magnitudes are taken.

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
        """The number of edges at or below each value; a value at the last edge belongs to the bin before it."""
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
        return tuple(np.linspace(low, high, bins + 1).tolist())  # torch's own gives -6e-17 in place of 0
    try:
        edges = tuple(float(edge) for edge in bins) if ends is None and not isinstance(bins, str) else ()
    except (TypeError, ValueError):  # not a sequence of numbers
        edges = ()
    is_ascending = all(a < b for a, b in pairwise(edges)) and all(map(math.isfinite, edges))
    if not 2 <= len(edges) <= _MOST_BINS + 1 or not is_ascending:
        raise InvalidArgument(
            "Histogram takes no bins, edges that are finite and ascend such as bins=[0, 1, 10], or bins=50, range=(-3, 3); "
            f"got bins={bins!r:.80} and range={ends!r}."
        )
    return edges


def _codes(seen: Tensor) -> Tensor:
    """The bin of each value: sign, exponent and first bits of the fraction of a float32. Zeros have the code `_CODES`."""
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
    """How often each unit has each place below `size`, counted for a few units at a time to save memory."""
    together = max(1, _TOGETHER // (size + 1))
    counts = []
    for some in torch.split(places, together, dim=1):
        offsets = torch.arange(some.shape[1], device=some.device) * (size + 1)
        counted = torch.bincount((some + offsets).flatten(), minlength=some.shape[1] * (size + 1))
        counts.append(counted.view(some.shape[1], size + 1)[:, :size])
    return torch.cat(counts).contiguous()


def _laid_out(codes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The edges of ascending bins without gaps, the counts in them, and the counts of zeros."""
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

    Without given bins each contains its edge nearer to zero, and zeros are in none of them: `zeros` counts these.
    """

    edges: Tensor
    counts: Tensor
    below: Tensor
    above: Tensor
    zeros: Tensor | None  # None where the bins were given: zeros are in one of them
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
    """Counts of neighbouring bins, added up so that there are at most `most`."""
    width = -(-len(counts) // most)
    return [int(some.sum()) for some in torch.split(counts, width)] if len(counts) else []
