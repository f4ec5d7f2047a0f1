"""Comparison: where two histories of one input part. What `torcheer.compare` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from torch import Tensor

from ..display import Column, Fold, Shown, ShownTable, Table, data_frame, few
from ..errors import InvalidArgument
from ..history import Operation
from ..history.printing.text import plural
from ..model_history import ModelHistory
from ..render import DrawOptions, Picture
from ..viewer.payload import MAX_BYTES
from .culprit import Culprit
from .gradients import GradientCulprit
from .measures import Difference, difference_of_any
from .page import PageSide, write_page
from .parameters import ParameterDifference
from .pictures import culprit_operations, draw_side

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

Verdict = Literal["equal", "equal within tolerance", "different", "not compared"]
_LOST = 0.5  # of the scale of an output: from here on it is another one, however it came about
_MOST = 30  # rows of a table that is printed


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """One operation that both histories have, and how far it is apart in them. An error is None where it is not known."""

    a: Operation
    b: Operation
    error: Difference | None  # of what was logged
    own_error: Difference | None  # what is left when b's operation is given a's values
    inherited_error: Difference | None  # what the operations before it added
    tolerance: float
    matched_by: str
    gradient_error: Difference | None = None
    own_gradient_error: Difference | None = None  # what is left when the backward of b is given a's values and gradients
    inherited_gradient_error: Difference | None = None

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
            "error": _relative(self.error),
            "own_error": _relative(self.own_error),
            "inherited_error": _relative(self.inherited_error),
            "max_abs_error": self.error.largest if self.error is not None else None,
            "cosine": self.error.cosine if self.error is not None else None,
            "ulps": self.error.ulps if self.error is not None else None,
            "gradient_error": _relative(self.gradient_error),
            "own_gradient_error": _relative(self.own_gradient_error),
            "inherited_gradient_error": _relative(self.inherited_gradient_error),
            "tolerance": self.tolerance,
            "matched_by": self.matched_by,
        }


def _relative(error: Difference | None) -> float | None:
    return error.relative if error is not None else None


@dataclass(frozen=True, slots=True)
class Unmatched:
    """The operations that exist on one side only."""

    a: tuple[Operation, ...]
    b: tuple[Operation, ...]

    def __len__(self) -> int:
        return len(self.a) + len(self.b)

    def __repr__(self) -> str:
        names = [", ".join(one.label for one in side) or "none" for side in (self.a, self.b)]
        return f"<only in a: {names[0]}; only in b: {names[1]}>"


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
        figures = ["error", "own error", "inherited error", "cosine", "ULPs"] + [
            "gradient error",
            "own gradient error",
        ] * self._has_gradients
        columns = [*(Column(head) for head in heads), *(Column(head, is_number=True) for head in figures), Column("matched by")]
        return Table(columns, [self._cells(row) for row in self.rows])

    def _cells(self, row: ComparedOperation) -> tuple[str, ...]:
        error = row.error
        names = [f"{one.label} ({one.containing_module or 'the model'})" for one in (row.a, row.b)]
        figures = [_figure(error), _figure(row.own_error), _figure(row.inherited_error)]
        figures += [f"{error.cosine:.6f}" if error is not None else "unknown"]
        figures += [str(error.ulps) if error is not None and error.ulps is not None else ""]
        if self._has_gradients:
            has_one = row.gradient_error is not None
            figures += [_figure(error) if has_one else "" for error in (row.gradient_error, row.own_gradient_error)]
        return (row.a.layer_type, *names, *figures, row.matched_by)


def _figure(error: Difference | None) -> str:
    if error is None:
        return "unknown"
    return "0" if error.is_none else f"{error.relative:.1e}"


class Comparison(Shown):
    """Where two histories of one input part: a verdict, the culprit, and the error of every operation.

    It is true where the two are equal, or equal within the tolerance. The verdict is "not compared" where nothing differs that
    can be compared, but the values of an output were not kept or cannot be read.
    """

    def __init__(
        self,
        a: ModelHistory,
        b: ModelHistory,
        rows: list[ComparedOperation],
        unmatched: Unmatched,
        culprits: list[Culprit],
        parameters: list[ParameterDifference],
        *,
        tolerance: float,
        gradient_culprit: GradientCulprit | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.a = a
        self.b = b
        self.rows = rows
        self.unmatched = unmatched
        self.culprits = culprits
        self.parameters = parameters
        self.tolerance = tolerance
        self.gradient_culprit = gradient_culprit
        self.notes = notes

    @property
    def culprit(self) -> Culprit | None:
        """The first operation with an error of its own beyond the tolerance; None where there is none."""
        return self.culprits[0] if self.culprits else None

    @property
    def outputs(self) -> list[ComparedOperation]:
        """The outputs that both have."""
        return [row for row in self.rows if row.a.is_output_layer]

    @cached_property
    def _output_errors(self) -> list[tuple[ComparedOperation, Difference | None]]:
        """The error of each output that both have; None where it cannot be told.

        Sparse, quantised and nested outputs are compared here only: which operation makes them differ is not looked for.
        """
        return [(row, row.error if row.error is not None else _output_difference(row)) for row in self.outputs]

    @property
    def output_error(self) -> float | None:
        """The largest error of an output, relative to its scale; None where no output can be compared."""
        return max((error.relative for _, error in self._output_errors if error is not None), default=None)

    @property
    def has_unknown_errors(self) -> bool:
        """Whether the own error of an operation that differs is not known."""
        return any(row.own_error is None and row.error is not None and not row.error.is_none for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        if self.culprits or self.gradient_culprit is not None or self._has_other_outputs or self.first_lost is not None:
            return "different"
        if self._unusual_output is not None:
            return "different"
        errors = [error for _, error in self._output_errors]
        if None in errors:
            return "not compared"
        if any(one.is_in_both for one in self.parameters):
            return "equal within tolerance" if (self.output_error or 0.0) <= self.tolerance else "different"
        is_equal = all(error is not None and error.is_none for error in errors)
        own_is_none = all(row.own_error is None or row.own_error.is_none for row in self.rows)
        return "equal" if is_equal and own_is_none and errors else "equal within tolerance"

    @property
    def first_lost(self) -> ComparedOperation | None:
        """The first operation that has nothing of its value in b any more, where that reaches an output though no operation
        has an error of its own: rounding adds up, or values are too small or too large for the dtype of b."""
        error = self.output_error
        if self.culprits or error is None or error < max(_LOST, self.tolerance):
            return None
        return next((row for row in self.rows if row.error is not None and row.error.relative >= _LOST), None)

    @property
    def _has_other_outputs(self) -> bool:
        """Whether no output of the two can be compared, as their shapes differ."""
        return not self.outputs and bool(self.a.outputs) and bool(self.b.outputs)

    @property
    def _unusual_output(self) -> tuple[ComparedOperation, Difference] | None:
        """The first sparse, quantised or nested output that differs, and by how much."""
        unusual = ((row, apart) for row, apart in self._output_errors if row.error is None and apart is not None)
        return next((pair for pair in unusual if pair[1].relative > self.tolerance), None)

    def __bool__(self) -> bool:
        return self.verdict in ("equal", "equal within tolerance")

    # Tables -----------------------------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> ErrorTable:
        """Every operation that both have: label, names, own and inherited error, cosine, ULPs."""
        return ErrorTable(self.rows, any(row.gradient_error is not None for row in self.rows))

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame, one row per operation that both have."""
        return data_frame([row.as_row() for row in self.rows])

    # Pictures ---------------------------------------------------------------------------------------------------------

    def draw(
        self,
        path: str | os.PathLike[str] | IO[bytes] | IO[str] | None = None,
        *,
        side: Literal["a", "b"] = "b",
        **options: Unpack[DrawOptions],
    ) -> Picture:
        """Draw the graph of one of the two, with the own error of its operations as colour (the error, where it is unknown).

        Args:
            path, options: as in `ModelHistory.draw`.
            side: `"a"` or `"b"`.
        """
        if side not in ("a", "b"):
            raise InvalidArgument(f"side is 'a' or 'b'; got {side!r:.60}.")
        history = self.a if side == "a" else self.b
        title = f"{side}: {history.graph.title}"
        return draw_side(history, path, self._errors_of(side), culprit_operations(self.culprits, side), title, options)

    def _errors_of(self, side: str) -> dict[int, float]:
        """By number of an operation: its own error, or the whole one where that is not known."""
        found: dict[int, float] = {}
        for row in self.rows:
            error = row.own_error if row.own_error is not None else row.error
            if error is not None:
                found[(row.a if side == "a" else row.b)._number] = error.relative
        return found

    def to_html(
        self, path: str | os.PathLike[str], *, title: str | None = None, previews: bool = True, max_bytes: int = MAX_BYTES
    ) -> Path:
        """Write a page with both graphs side by side, coloured by own error (or inherited error, or error), with the verdict.

        The arguments are those of `ModelHistory.to_html`.
        """
        return write_page(path, self._page_sides(), self.headline, title=title, previews=previews, max_bytes=max_bytes)

    def _page_sides(self) -> tuple[PageSide, PageSide]:
        figures: tuple[dict[int, tuple[float | None, ...]], ...] = ({}, {})
        pairs = {row.a._number: row.b._number for row in self.rows}
        for row in self.rows:
            for side, operation in zip(figures, (row.a, row.b), strict=True):
                side[operation._number] = tuple(map(_relative, (row.own_error, row.inherited_error, row.error)))
        a = PageSide(self.a, figures[0], pairs, culprit_operations(self.culprits, "a"))
        b = PageSide(self.b, figures[1], {b: a for a, b in pairs.items()}, culprit_operations(self.culprits, "b"))
        return a, b

    # Text -------------------------------------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        differing = [one for one in self.parameters if one.is_in_both]
        said = f"{plural(len(differing), 'parameter')} {'differs' if len(differing) == 1 else 'differ'}"
        if self.culprit is not None and self.culprit.is_explained_by_parameters:
            others = [one for one in self.culprits if not one.is_explained_by_parameters]
            rest = f", and {others[0]}" if others else ", nothing else does"
            return f"different: {said}{rest}. The first that matters: {self.culprit}"
        if self.culprit is not None:
            return f"different: {self.culprit}"
        if self._has_other_outputs:
            return f"different: a returns {_shapes(self.a)}, b returns {_shapes(self.b)}"
        if self.gradient_culprit is not None:
            return f"different: {self.gradient_culprit}"
        if self._unusual_output is not None:
            row, by = self._unusual_output
            return (
                f"different: {row.label} differs by {by.relative:.1e} of its scale; which operation makes it differ cannot be "
                "told, since it is sparse, quantised or nested"
            )
        if (lost := self.first_lost) is not None:
            ends = [f"{float(one.activation.detach().abs().max()):.2g}" for one in (lost.a, lost.b)]
            return (
                f"different: the output differs by {self.output_error:.1e} of its scale, though every operation by itself only "
                f"rounds; {lost.label} is the first to lose its value (its largest is {ends[0]} in a and {ends[1]} in b)"
            )
        if self.verdict == "different":
            return f"different: {said}"
        if self.verdict == "equal":
            return f"equal: {plural(len(self.rows), 'operation')} give the same bits"
        more = f"; {said}" if differing else ""
        if self.verdict == "not compared":
            row = next(row for row, error in self._output_errors if error is None)
            rest = "no operation that can be compared has an error of its own above its tolerance"
            return f"not compared: {_why_not_compared(row)}; {rest}{more}"
        error = self.output_error
        apart = f"the output differs by {error:.1e} of its scale, " if error else ""
        return f"equal within tolerance: {apart}no operation has an error of its own above its tolerance{more}"

    def __str__(self) -> str:
        lines = [self.headline]
        culprit = self.culprit
        if culprit is not None:
            lines += self._culprit_lines(culprit)
        lines += self._totals()
        lines += [f"\tNote: {note}" for note in self.notes]
        return "\n".join(lines)

    def _culprit_lines(self, culprit: Culprit) -> list[str]:
        lines = [f"\tOperation: {culprit.name.rstrip(',')}"]
        for name, operation in (("a", culprit.a), ("b", culprit.b)):
            if operation is not None:
                where = f" ({operation.source})" if operation.source is not None else ""
                lines.append(f"\tIn {name.upper()}: {operation.label}{where}")
        lines += [f"\tArgument: {words}" for words in culprit.argument_words]
        lines += [f"\tParameter: {one}" for one in culprit.parameters]
        if culprit.shown_by is not None and (culprit.a is None or culprit.b is None):
            lines.append(f"\tShown by: {culprit.shown_by[0].label}, the first that both have and that differs")
        own = culprit.own_error
        lines.append(f"\tOwn error: {'unknown' if own is None else f'{own.relative:.1e} of its scale ({own.largest:.2g})'}")
        return lines

    def _totals(self) -> list[str]:
        error = self.output_error
        apart = "not compared" if error is None else f"differs by {error:.1e} of its scale" if error else "the same bits"
        lines = [f"\tOutput: {apart}"]
        beyond = [row for row in self.rows if row.own_error is not None and row.own_error.relative > row.tolerance]
        if len(self.culprits) > 1 or len(beyond) > 1:
            names = ", ".join(row.label for row in beyond[:5]) + ", …" * (len(beyond) > 5)
            lines.append(f"\tAbove tolerance: {plural(len(beyond), 'operation')}: {names}")
        if self.parameters:
            lines.append(f"\tParameters: {_parameter_words(self.parameters)}")
        alone = f"{len(self.unmatched.a)} only in a, {len(self.unmatched.b)} only in b"
        lines.append(f"\tMatched: {plural(len(self.rows), 'operation')}, {alone}")
        if self.gradient_culprit is not None:
            lines += self._gradient_lines(self.gradient_culprit)
        if self.has_unknown_errors:
            lines.append("\tOwn errors: unknown for some operations, which cannot be run again (without parameters, or opaque)")
        return lines

    def _gradient_lines(self, culprit: GradientCulprit) -> list[str]:
        lines = [f"\tGradient: {culprit}"]
        for name, operation in (("a", culprit.a), ("b", culprit.b)):
            if operation is not None and operation.source is not None:
                lines.append(f"\tIn {name.upper()}: {operation.label} ({operation.source})")
        return lines

    def __repr__(self) -> str:
        return str(self)

    def _folds(self) -> list[Fold]:
        worst = sorted((row for row in self.rows if row.error is not None), key=_badness, reverse=True)[:_MOST]
        table = ErrorTable(sorted(worst, key=lambda row: row.b._number), False).table
        folds = [Fold(f"The {plural(len(worst), 'operation')} with the largest errors", table.html())]
        if self.parameters:
            rows: list[tuple[str, ...]] = [(one.name, str(one).partition(": ")[2]) for one in self.parameters[:_MOST]]
            shown = Table([Column("name"), Column("how")], rows)
            folds.append(Fold(plural(len(self.parameters), "parameter"), shown.html()))
        return folds


def _output_difference(row: ComparedOperation) -> Difference | None:
    is_known = row.a.has_saved_activations and row.b.has_saved_activations
    return difference_of_any(row.a.tensor_contents, row.b.tensor_contents) if is_known else None


def _why_not_compared(row: ComparedOperation) -> str:
    for name, one in (("a", row.a), ("b", row.b)):
        if not one.has_saved_activations:
            return f"{row.label} was not kept in {name}"
    tensor = row.b.tensor_contents
    kind = f"{tensor.layout}, {tensor.dtype}, device {tensor.device}" if isinstance(tensor, Tensor) else type(tensor).__name__
    return f"the values of {row.label} ({kind}) cannot be read"


def _parameter_words(parameters: list[ParameterDifference]) -> str:
    both = [one for one in parameters if one.is_in_both]
    alone = [sum(one.name_b is None for one in parameters), sum(one.name_a is None for one in parameters)]
    counts = [f"{count} only in {side}" for count, side in zip(alone, "ab", strict=True) if count]
    words = [f"{len(both)} {'differs' if len(both) == 1 else 'differ'}: {few(both, 3, '; ')}"] if both else []
    return ", ".join([*words, *counts])


def _badness(row: ComparedOperation) -> tuple[float, float]:
    own = row.own_error.relative if row.own_error is not None else 0.0
    return own, row.error.relative if row.error is not None else 0.0


def _shapes(history: ModelHistory) -> str:
    return ", ".join(str(one.tensor_shape) for one in history.outputs)
