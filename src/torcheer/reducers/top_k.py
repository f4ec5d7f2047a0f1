"""TopK: the samples for which each unit is largest or smallest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..display import Shown
from ..errors import InvalidArgument
from .reducer import Form, Reducer, State
from .units import Units, around_units, computable, wide

_NOBODY = torch.iinfo(torch.int64).max  # the sample number in places that no sample has taken


@dataclass(frozen=True, repr=False)
class TopK(Reducer):
    """The `k` samples for which each unit is largest, or smallest with `largest=False`.

    Of a unit with several positions (pixels, tokens) the mean counts, or with `positions="max"` the largest (the smallest with
    `largest=False`). Of equal samples the first are kept. Samples whose value is NaN or infinite are left out and counted. Of
    complex numbers the magnitudes are taken.

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
            raise InvalidArgument(f"positions is 'mean' or 'max': what counts of a sample's positions; got {self.positions!r}.")
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
        # The sign is chosen so that the best score is always the largest; minus infinity is worse than any sample.
        scores = torch.where(finite, scores if self.largest else -scores, -math.inf).T
        known = torch.where(finite.T, numbers.to(scores.device, torch.int64), _NOBODY)
        best, whose = self._best(scores, known)
        lacking = self.k - best.shape[1]
        if lacking > 0:
            best = torch.nn.functional.pad(best, (0, lacking), value=-math.inf)
            whose = torch.cat((whose, whose.new_full((len(whose), lacking), _NOBODY)), 1)
        return {"values": best, "numbers": whose, "left_out": (~finite).sum(0)}

    def _best(self, scores: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The first `k` of each row: by score, and of equal scores by number."""
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
    """The result of `TopK`: a row for each unit, the best sample first; with fewer samples, rows end with -1 and NaN."""

    reducer: TopK
    values: Tensor
    numbers: Tensor
    left_out: Tensor  # samples of each unit whose value was not finite

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
