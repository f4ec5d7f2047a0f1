"""The operations that two histories have in common, with their errors, as rows and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..display import Column, ShownTable, Table
from ..history import Operation
from .measures import Difference


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """One operation that both histories have, and its errors. An error is None where it is not known."""

    a: Operation
    b: Operation
    error: Difference | None  # of the logged values
    own_error: Difference | None  # when b's operation is given a's values
    inherited_error: Difference | None  # that the operations before it added
    tolerance: float
    matched_by: str
    gradient_error: Difference | None = None
    own_gradient_error: Difference | None = None  # when the backward of b is given a's values and gradients
    inherited_gradient_error: Difference | None = None
    amplification: float | None = None  # its inherited error, divided by the largest error that it is given
    unwritten: int = 0  # elements that are not compared, since they come from memory that was never written

    @property
    def label(self) -> str:
        """The label in a."""
        return self.a.label

    def as_row(self) -> dict[str, Any]:
        """As a row of a table."""
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
    """The operations that both histories have, with their errors, in the order b ran them."""

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
    """How much an error grows, in words."""
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
