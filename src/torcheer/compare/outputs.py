"""What decides a verdict: the values that both models return; where neither returns any, the values that nothing uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..history.printing.text import plural
from ..torch_internals import DisableTorchFunction
from .alignment import Alignment
from .error_table import ComparedOperation
from .measures import Difference, difference_of_any, is_measurable, tolerance_of
from .sides import Side


@dataclass(frozen=True, slots=True)
class ComparedOutput:
    """One output that both models have, and how far it is apart."""

    row: ComparedOperation
    error: Difference | None  # None where it cannot be told
    tolerance: float

    @property
    def is_never_written(self) -> bool:
        """Whether the whole tensor is memory that was never written, in which nothing can be compared."""
        return self.error is None and self.row.unwritten > 0

    @property
    def typical(self) -> float | None:
        """How far a typical value is apart, relative to a typical value that is not 0; None where that says nothing."""
        values = self._values()
        if values is None or self.error is None or self.error.is_none or self.is_beyond:
            return None
        with DisableTorchFunction(), torch.no_grad():
            one, other = (value.reshape(-1).double() for value in values)
            counts = torch.isfinite(one) & torch.isfinite(other) & (one != 0)
            sizes, apart = one[counts].abs(), (one - other)[counts].abs()
            return float(apart.median() / sizes.median()) if sizes.numel() else None

    @property
    def is_beyond(self) -> bool:
        return self.error is not None and self.error.relative > self.tolerance

    @property
    def is_unusual(self) -> bool:
        """Whether it is sparse, quantised or nested: the operations before it cannot be told apart by it."""
        return self.row.error is None and self.error is not None

    def apart(self, name: str) -> str:
        """How far it is apart, in words."""
        error = self.error
        if error is None or error.is_none:
            ours, theirs = self.row.a.tensor_dtype, self.row.b.tensor_dtype
            if ours != theirs:
                return f"{name} has the same values, as {ours} in a and {theirs} in b".lstrip()
            return "the same values" if error is not None and error.is_of_bits else "the same bits"
        if (count := self._not_finite()) is not None:
            return f"{name} differs by inf of its scale: {count}"
        count = self._differing_integers()
        return f"{name} differs by {error.relative:.1e} of its scale{f' ({count})' if count else ''}"

    def _values(self) -> tuple[Tensor, Tensor] | None:
        if not self.row.a.has_saved_activations or not self.row.b.has_saved_activations:
            return None
        one, other = self.row.a.tensor_contents, self.row.b.tensor_contents
        if not is_measurable(one) or not is_measurable(other) or one.shape != other.shape:
            return None
        return one.detach(), other.detach().to(one.device)

    def _not_finite(self) -> str | None:
        """How many values are finite in one model only; None where all are finite in both or in none."""
        values = self._values()
        if values is None or self.error is None or self.error.relative != float("inf"):
            return None
        with DisableTorchFunction(), torch.no_grad():
            finite = [torch.isfinite(value) for value in values]
            lost = [int((mine & ~yours).sum()) for mine, yours in (finite, finite[::-1])]
        words = [f"{n} of {values[0].numel()} values are not finite in {side}" for n, side in zip(lost, "ba", strict=True) if n]
        return ", ".join(words) or None

    def _differing_integers(self) -> str:
        values = self._values()
        if values is None or any(value.is_floating_point() or value.is_complex() for value in values):
            return ""
        with DisableTorchFunction(), torch.no_grad():
            return f"{int((values[0] != values[1]).sum())} of {plural(values[0].numel(), 'value')}"


def compared_outputs(alignment: Alignment, rows: list[ComparedOperation], tolerance: float | None) -> list[ComparedOutput]:
    """The outputs that both have; where neither returns a tensor, the matched operations that nothing uses."""
    ends = set(alignment.b.ends)
    rounding = [_rounding(side) for side in (alignment.a, alignment.b)]
    found = []
    for row in rows:
        if row.b._number in ends:
            error = row.error if row.error is not None or row.unwritten else _difference_of_kept(row)
            dtypes = [known[one._number] for known, one in zip(rounding, (row.a, row.b), strict=True)]
            allowed = 0.0 if 0.0 in dtypes else max(row.tolerance, *dtypes)
            found.append(ComparedOutput(row, error, allowed if tolerance is None else tolerance))
    return found


def _difference_of_kept(row: ComparedOperation) -> Difference | None:
    is_known = row.a.has_saved_activations and row.b.has_saved_activations
    return difference_of_any(row.a.tensor_contents, row.b.tensor_contents) if is_known else None


def _rounding(side: Side) -> dict[int, float]:
    """By operation: how far it may be apart by rounding, from the dtype with the fewest digits that it was computed in."""
    found: dict[int, float] = {}
    within: dict[int, float] = {}
    for record in side.log.operations:
        own = tolerance_of(record.dtype, record.dtype)
        given = max((within[parent] for parent in record.dependencies if parent >= 0), default=0.0)
        within[record.number] = max(own, given) if record.number in side.varying else given
        found[record.number] = max(own, given) if own else 0.0  # integers are not rounded
    return found


def largest_jump(
    alignment: Alignment, rows: list[ComparedOperation], outputs: list[ComparedOutput]
) -> ComparedOperation | None:
    """The operation before the worst output at which an inherited error grows most; None where none grows."""
    known = [one for one in outputs if one.error is not None and not one.error.is_none]
    if not known:
        return None
    end = max(known, key=lambda one: one.error.relative if one.error is not None else 0.0).row.b._number
    before = {end, *alignment.b.behind(end, ())}
    inside = [row for row in rows if row.b._number in before and not row.b.is_output_layer]
    grown = [row for row in inside if row.amplification is not None and row.amplification > 1]
    beyond = [row for row in grown if row.error is not None and row.error.relative > row.tolerance]
    return max(beyond or grown, key=lambda row: row.amplification or 0.0, default=None)
