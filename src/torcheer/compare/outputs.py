"""`ComparedOperation` and `ComparedOutput`: matched operations and outputs with their errors, as rows and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._text import Column, ShownTable, Table, plural
from .._torch.internals import DisableTorchFunction
from ..history import Operation
from .alignment import Alignment
from .measures import Difference, difference_of_any, is_measurable, tolerance_of
from .steps import Side


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """A matched operation and its errors. An error is None if unknown."""

    a: Operation
    b: Operation
    error: Difference | None  # of the logged values
    own_error: Difference | None  # of `b`'s operation on `a`'s values
    inherited_error: Difference | None  # added by earlier operations
    tolerance: float
    matched_by: str
    gradient_error: Difference | None = None
    own_gradient_error: Difference | None = None  # of `b`'s backward on `a`'s values and gradients
    inherited_gradient_error: Difference | None = None
    amplification: float | None = None  # its inherited error, divided by the largest error of its inputs
    unwritten: int = 0  # elements that are not compared, because they come from memory that was never written

    @property
    def label(self) -> str:
        """The label in a."""
        return self.a.label

    def as_row(self) -> dict[str, Any]:
        """The errors as a dictionary, for a table."""
        return {
            "label": self.label,
            "name_a": self.a.label,
            "name_b": self.b.label,
            "module_a": self.a.containing_module,
            "module_b": self.b.containing_module,
            "error": relative(self.error),
            "own_error": relative(self.own_error),
            "inherited_error": relative(self.inherited_error),
            "amplification": self.amplification,
            "max_abs_error": self.error.largest if self.error is not None else None,
            "cosine": self.error.cosine if self.error is not None else None,
            "ulps": self.error.ulps if self.error is not None else None,
            "gradient_error": relative(self.gradient_error),
            "own_gradient_error": relative(self.own_gradient_error),
            "inherited_gradient_error": relative(self.inherited_gradient_error),
            "tolerance": self.tolerance,
            "matched_by": self.matched_by,
        }


def relative(error: Difference | None) -> float | None:
    return error.relative if error is not None else None


class ErrorTable(ShownTable):
    """The matched operations with their errors, in the order `b` ran them."""

    def __init__(self, rows: list[ComparedOperation], has_gradients: bool) -> None:
        self.rows = rows
        self._has_gradients = has_gradients

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: int) -> ComparedOperation:
        return self.rows[place]

    @property
    def table(self) -> Table:
        heads = ["operation", "in a", "in b"]
        figures = ["error", "own error", "inherited error", "amplification", "cosine", "ULPs"]
        figures += ["gradient error", "own gradient error"] if self._has_gradients else []
        columns = [*(Column(head) for head in heads), *(Column(head, is_number=True) for head in figures), Column("matched by")]
        return Table(columns, [self._cells(row) for row in self.rows])

    def _cells(self, row: ComparedOperation) -> tuple[str, ...]:
        error = row.error
        names = [f"{one.label} ({one.containing_module or 'the model'})" for one in (row.a, row.b)]
        figures = [_figure(error), _figure(row.own_error), _figure(row.inherited_error)]
        figures += [times(row.amplification) if row.amplification is not None else ""]
        figures += [f"{error.cosine:.6f}" if error is not None else "unknown"]
        figures += [str(error.ulps) if error is not None and error.ulps is not None else ""]
        if self._has_gradients:
            has_one = row.gradient_error is not None
            figures += [_figure(error) if has_one else "" for error in (row.gradient_error, row.own_gradient_error)]
        return (row.a.layer_type, *names, *figures, row.matched_by)


def times(amplification: float) -> str:
    """The growth of an error, in words."""
    return (
        f"{amplification:.2g}×"
        if amplification < 10
        else f"{amplification:.0f}×"
        if amplification < 1e6
        else f"{amplification:.0e}×"
    )


def _figure(error: Difference | None) -> str:
    if error is None:
        return "unknown"
    return "0" if error.is_none else f"{error.relative:.1e}"


# The values that decide a verdict: the outputs of both models; if neither returns a tensor, the operations that nothing
# uses.


@dataclass(frozen=True, slots=True)
class ComparedOutput:
    """A matched output, and its error."""

    row: ComparedOperation
    error: Difference | None  # None if unknown
    tolerance: float

    @property
    def is_never_written(self) -> bool:
        """True if the whole tensor is memory that was never written, so that there is nothing to compare."""
        return self.error is None and self.row.unwritten > 0

    @property
    def typical(self) -> float | None:
        """The difference of a typical value, relative to a typical value other than 0; None if it has no meaning."""
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
        """True if it is sparse, quantised or nested: then it does not show which operation differs."""
        return self.row.error is None and self.error is not None

    def apart(self, name: str) -> str:
        """Its error, in words."""
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
        """The number of values that are finite in one model only; None if there are none."""
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
    """The matched outputs; if neither history returns a tensor, the matched operations that nothing uses."""
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
    """For each operation: the error that rounding may cause, by the least precise dtype of its computation."""
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
    """The operation before the worst output at which the inherited error grows most; None if it grows nowhere."""
    known = [one for one in outputs if one.error is not None and not one.error.is_none]
    if not known:
        return None
    end = max(known, key=lambda one: one.error.relative if one.error is not None else 0.0).row.b._number
    before = {end, *alignment.b.ancestors(end, ())}
    inside = [row for row in rows if row.b._number in before and not row.b.is_output_layer]
    grown = [row for row in inside if row.amplification is not None and row.amplification > 1]
    beyond = [row for row in grown if row.error is not None and row.error.relative > row.tolerance]
    return max(beyond or grown, key=lambda row: row.amplification or 0.0, default=None)
