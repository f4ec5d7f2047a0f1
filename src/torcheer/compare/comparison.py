"""Comparison: where two histories of one input part. What `torcheer.compare` returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from ..display import Column, Fold, Shown, Table, data_frame, few
from ..errors import InvalidArgument
from ..history import Operation
from ..history.printing.text import plural
from ..model_history import ModelHistory
from ..render import DrawOptions, Picture, Target
from ..viewer import to_html
from ..viewer.payload import MAX_BYTES
from .culprit import Culprit
from .error_table import ComparedOperation, ErrorTable, relative
from .gradients import GradientCulprit
from .measures import Difference, absolute_values, difference_of_any
from .page import PageSide, payloads_of
from .parameters import ParameterDifference
from .pictures import culprit_operations, draw_side

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack

Verdict = Literal["equal", "equal within tolerance", "different", "not compared"]
_LOST = 0.5  # of the scale: a value with an error from here on has nothing in common with that of a
_MOST = 30  # rows that a notebook shows


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


@dataclass(eq=False, repr=False)
class Comparison(Shown):
    """Where two histories of one input part: a verdict, the culprit, and the error of every operation.

    It is true where the two are equal, or equal within the tolerance. The verdict is "not compared" where nothing differs that
    can be compared, but the values of an output were not kept or cannot be read.
    """

    a: ModelHistory
    b: ModelHistory
    rows: list[ComparedOperation]
    unmatched: Unmatched
    culprits: list[Culprit]
    parameters: list[ParameterDifference]
    tolerance: float
    gradient_culprit: GradientCulprit | None = None
    notes: tuple[str, ...] = ()

    @property
    def culprit(self) -> Culprit | None:
        """The first operation with an error of its own above the tolerance; None where there is none."""
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
        found = self.culprits, self.gradient_culprit, self._has_other_outputs, self.first_lost, self._unusual_output
        if any(found):
            return "different"
        errors = [error for _, error in self._output_errors]
        if None in errors:
            return "not compared"
        if any(one.is_in_both for one in self.parameters):
            return "equal within tolerance" if (self.output_error or 0.0) <= self.tolerance else "different"
        known = [*errors, *(row.own_error for row in self.rows)]
        return "equal" if errors and all(one is None or one.is_none for one in known) else "equal within tolerance"

    @property
    def first_lost(self) -> ComparedOperation | None:
        """The first operation whose value is lost in b, where an output differs though no operation has an error of its own.

        Rounding adds up, or values are too small or too large for the dtype of b.
        """
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
        path: Target | None = None,
        *,
        side: Literal["a", "b"] = "b",
        format: str | None = None,
        **options: Unpack[DrawOptions],
    ) -> Picture:
        """Draw the graph of one of the two, coloured by the own error of its operations (by the error where that is unknown).

        Args:
            path, format, options: as in `ModelHistory.draw`.
            side: `"a"` or `"b"`.
        """
        if side not in ("a", "b"):
            raise InvalidArgument(f"side is 'a' or 'b'; got {side!r:.60}.")
        history = self.a if side == "a" else self.b
        title = f"{side}: {history.graph.title}"
        culprits = culprit_operations(self.culprits, side)
        return draw_side(history, path, format, self._errors_of(side), culprits, title, options)

    def _errors_of(self, side: str) -> dict[int, float]:
        """By number of an operation: its own error, or its error where that is unknown."""
        errors = [(row.a if side == "a" else row.b, row.own_error or row.error) for row in self.rows]
        return {operation._number: error.relative for operation, error in errors if error is not None}

    def to_html(
        self, path: str | os.PathLike[str], *, title: str | None = None, previews: bool = True, max_bytes: int = MAX_BYTES
    ) -> Path:
        """Write a page with the verdict and both graphs, coloured by own error, inherited error or error.

        The arguments are those of `ModelHistory.to_html`.
        """
        one, other = payloads_of(self._page_sides(), self.headline, previews=previews, max_bytes=max_bytes)
        return to_html(one, path, compare=other, title=title, max_bytes=max_bytes)

    def _page_sides(self) -> tuple[PageSide, PageSide]:
        figures: tuple[dict[int, tuple[float | None, ...]], ...] = ({}, {})
        pairs = {row.a._number: row.b._number for row in self.rows}
        for row in self.rows:
            for side, operation in zip(figures, (row.a, row.b), strict=True):
                side[operation._number] = tuple(map(relative, (row.own_error, row.inherited_error, row.error)))
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
            return f"different: {self.culprit}{self._other_number_of_outputs()}"
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
            ends = [f"{float(absolute_values(one.activation).max()):.2g}" for one in (lost.a, lost.b)]
            return (
                f"different: the output differs by {self.output_error:.1e} of its scale, though every operation by itself only "
                f"rounds; {lost.label} is the first to lose its value (its largest is {ends[0]} in a and {ends[1]} in b)"
            )
        if self.verdict == "different":
            return f"different: {said}"
        if self.verdict == "equal":
            return f"equal: {self._compared_words()}"
        more = f"; {said}" if differing else ""
        if self.verdict == "not compared":
            row = next(row for row, error in self._output_errors if error is None)
            rest = "no operation that can be compared has an error of its own above its tolerance"
            return f"not compared: {_why_not_compared(row)}; {rest}{more}"
        error = self.output_error
        apart = f"the output differs by {error:.1e} of its scale, " if error else ""
        return f"equal within tolerance: {apart}no operation has an error of its own above its tolerance{more}"

    def _other_number_of_outputs(self) -> str:
        """How many tensors each side returns, where the culprit is behind one that only one side returns."""
        a, b = len(self.a.outputs), len(self.b.outputs)
        if self.culprit is None or self.culprit.shown_by is not None or a == b:
            return ""
        return f"; a returns {plural(a, 'tensor')}, b returns {b}"

    def _compared_words(self) -> str:
        """How many operations give the same bits, where all that can be compared do."""
        count = sum(row.error is not None for row in self.rows)
        rest = f"; {len(self.rows) - count} more were not kept, or cannot be compared" if count < len(self.rows) else ""
        same = f"{plural(count, 'operation')} {'gives' if count == 1 else 'give'}" if count else "the outputs have"
        return f"{same} the same bits{rest}"

    def __str__(self) -> str:
        lines = _culprit_lines(self.culprit) if self.culprit is not None else []
        return "\n".join([self.headline, *lines, *self._totals(), *(f"\tNote: {note}" for note in self.notes)])

    def _totals(self) -> list[str]:
        error = self.output_error
        apart = "not compared" if error is None else f"differs by {error:.1e} of its scale" if error else "the same bits"
        lines = [f"\tOutput: {apart}"]
        beyond = [row for row in self.rows if row.own_error is not None and row.own_error.relative > row.tolerance]
        if len(self.culprits) > 1 or len(beyond) > 1:
            lines.append(f"\tAbove tolerance: {plural(len(beyond), 'operation')}: {few((row.label for row in beyond), 5)}")
        if self.parameters:
            lines.append(f"\tParameters: {_parameter_words(self.parameters)}")
        alone = f"{len(self.unmatched.a)} only in a, {len(self.unmatched.b)} only in b"
        lines.append(f"\tMatched: {plural(len(self.rows), 'operation')}, {alone}")
        if self.gradient_culprit is not None:
            lines += [f"\tGradient: {self.gradient_culprit}", *_source_lines(self.gradient_culprit)]
        if self.has_unknown_errors:
            lines.append("\tOwn errors: unknown for some operations, which cannot be run again (without parameters, or opaque)")
        return lines

    def _folds(self) -> list[Fold]:
        worst = sorted((row for row in self.rows if row.error is not None), key=_badness, reverse=True)[:_MOST]
        table = ErrorTable(sorted(worst, key=lambda row: row.b._number), False).table
        folds = [Fold(f"The {plural(len(worst), 'operation')} with the largest errors", table.html())]
        if self.parameters:
            rows: list[tuple[str, ...]] = [(one.name, str(one).partition(": ")[2]) for one in self.parameters[:_MOST]]
            shown = Table([Column("name"), Column("how")], rows)
            folds.append(Fold(plural(len(self.parameters), "parameter"), shown.html()))
        return folds


def _culprit_lines(culprit: Culprit) -> list[str]:
    lines = [f"\tOperation: {culprit.name.rstrip(',')}", *_source_lines(culprit)]
    lines += [f"\tArgument: {words}" for words in culprit.argument_words]
    lines += [f"\tParameter: {one}" for one in culprit.parameters]
    if culprit.shown_by is not None and (culprit.a is None or culprit.b is None):
        lines.append(f"\tShown by: {culprit.shown_by[0].label}, the first that both have and that differs")
    own = culprit.own_error
    lines.append(f"\tOwn error: {'unknown' if own is None else f'{own.relative:.1e} of its scale ({own.largest:.2g})'}")
    return lines


def _source_lines(culprit: Culprit | GradientCulprit) -> list[str]:
    """The operation of a culprit in each of the two, with its source line."""
    sides = [(name, one) for name, one in (("a", culprit.a), ("b", culprit.b)) if one is not None]
    return [f"\tIn {name}: {one.label}{f' ({one.source})' if one.source is not None else ''}" for name, one in sides]


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
    return relative(row.own_error) or 0.0, relative(row.error) or 0.0


def _shapes(history: ModelHistory) -> str:
    return ", ".join(str(one.tensor_shape) for one in history.outputs)
