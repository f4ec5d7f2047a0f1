"""`Comparison`, the result of `compare`: its verdict, text, table, pictures and page."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from torch import Tensor

from .._text import Column, Fold, Shown, Table, data_frame, few, plural
from ..errors import InvalidArgument
from ..graph import Graph, Node
from ..history import ModelHistory, Operation
from ..page import payload_of, to_html
from ..page.payload import MAX_BYTES
from ..pictures import DrawOptions, Picture, Target, draw, picture_options
from .culprit import Culprit
from .gradients import GradientBeyond, GradientCulprit
from .measures import absolute_values
from .outputs import ComparedOperation, ComparedOutput, ComparedValue, ErrorTable, relative, times
from .parameters import ParameterDifference

if TYPE_CHECKING:
    import pandas
    from typing_extensions import Unpack


FIGURES = ["own error", "inherited error", "error"]


# Draws one history of a comparison: colours show errors, and frames mark culprits.

_FRAME = "#D81B60"  # visible on light and dark pages, and on every colour of the scale


def _error(errors: Mapping[int, float]) -> Callable[[Node], float | None]:
    """Make a function that returns the largest error of a node's operations; an infinite error counts as the largest finite."""
    most = max((error for error in errors.values() if math.isfinite(error)), default=1.0) or 1.0

    def own_error(node: Node) -> float | None:
        found = [min(errors[number], most) for number in node.operations if number in errors]
        return max(found, default=None)

    own_error.__name__ = "own error (framed: the culprit)"
    return own_error


def _set_apart(graph: Graph, framed: AbstractSet[int]) -> Graph:
    """Give each node of a culprit a structure of its own, so that folding joins it with no other node."""

    def apart(node: Node) -> Node:
        return replace(node, structure=lambda: ("culprit", node.key)) if not framed.isdisjoint(node.operations) else node

    return replace(graph, all_nodes=tuple(map(apart, graph.all_nodes)))


# `Comparison`: where two histories of one input diverge.

Verdict = Literal["equal", "equal within tolerance", "different", "not compared"]
_LOST = 0.5  # a value counts as lost if its error is at least this fraction of the largest value of the tensor
_MOST = 30  # a notebook shows at most this many rows


@dataclass(frozen=True, slots=True)
class Unmatched:
    """The operations without a match, in each history."""

    a: tuple[Operation, ...]
    b: tuple[Operation, ...]

    def __len__(self) -> int:
        return len(self.a) + len(self.b)

    def __repr__(self) -> str:
        names = [", ".join(one.label for one in side) or "none" for side in (self.a, self.b)]
        return f"<only in a: {names[0]}; only in b: {names[1]}>"


class Parts(NamedTuple):
    """The verdict in three sentences: outputs, structure, operations."""

    outputs: str
    structure: str
    operations: str


@dataclass(eq=False, repr=False)
class Comparison(Shown):
    """Where two histories of one input diverge: a verdict, the culprit, and the error of every operation.

    The outputs decide the verdict, including numbers and strings; if neither history returns a tensor, the operations that
    nothing uses decide it. A comparison is true if the two are equal, or equal within the tolerance. The verdict is "not
    compared" if no difference was found, but
    the values of an output were not kept or cannot be read, or there is no output to compare. `parts` has sentences about
    outputs, structure and operations.
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
    compared_outputs: list[ComparedOutput] = field(default_factory=list)
    compared_values: list[ComparedValue] = field(default_factory=list)  # returned values that are no tensors
    largest_jump: ComparedOperation | None = None  # the operation before the worst output at which the error grows most
    gradient_beyond: GradientBeyond | None = None  # the gradient of a parameter or input that is furthest above its tolerance

    @property
    def culprit(self) -> Culprit | None:
        """The first operation with an own error above the tolerance; None if there is none."""
        return self.culprits[0] if self.culprits else None

    @property
    def outputs(self) -> list[ComparedOperation]:
        """The matched outputs of both histories, with their errors."""
        return [row for row in self.rows if row.a.is_output_layer]

    @property
    def output_error(self) -> float | None:
        """The largest error of an output, relative to its scale; None if no output can be compared."""
        known = [one.error.relative for one in self.compared_outputs if one.error is not None and one.row.a.is_output_layer]
        return max(known, default=None)

    @property
    def has_unknown_errors(self) -> bool:
        """True if the own error of an operation that differs is unknown."""
        return any(row.own_error is None and row.error is not None and not row.error.is_none for row in self.rows)

    @property
    def verdict(self) -> Verdict:
        gradients = self.gradient_culprit, self.gradient_beyond
        if self._beyond or self._other_value or self._has_other_outputs or any(gradients):
            return "different"
        errors = [one.error for one in self.compared_outputs if not one.is_never_written]
        if (not errors and not self._values) or None in errors:
            return "different" if self.culprits else "not compared"
        is_equal = all(one is not None and one.is_none for one in errors) and not any(one.error for one in self._values)
        return "equal" if is_equal else "equal within tolerance"

    @property
    def _values(self) -> list[ComparedValue]:
        """The returned values, other than tensors and None, that could be compared."""
        return [one for one in self.compared_values if one.a is not None and one.error is not None]

    @property
    def _other_value(self) -> ComparedValue | None:
        """The first returned value, other than tensors, that differs."""
        return next((one for one in self.compared_values if one.is_beyond), None)

    @property
    def _beyond(self) -> ComparedOutput | None:
        """The output whose error is furthest above its tolerance; None if no output is above."""
        beyond = [one for one in self.compared_outputs if one.is_beyond]
        return max(beyond, key=lambda one: one.error.relative if one.error is not None else 0.0, default=None)

    @property
    def first_lost(self) -> ComparedOperation | None:
        """The first operation whose value is lost in `b`, if an output differs although no operation has an own error.

        Either rounding errors add up, or values are too small or too large for the dtype of `b`.
        """
        error = self.output_error
        if self.culprits or error is None or error < max(_LOST, self.tolerance):
            return None
        return next((row for row in self.rows if row.error is not None and row.error.relative >= _LOST), None)

    @property
    def _has_other_outputs(self) -> bool:
        """True if the histories return different tensors: their shapes differ, or only one history computes a tensor."""
        alone = [any(one.is_output_layer for one in side) for side in (self.unmatched.a, self.unmatched.b)]
        none_in_common = not self.outputs and bool(self.a.outputs or self.b.outputs)
        return all(alone) or none_in_common or any(one.shown_by is None for one in self.culprits)

    def __bool__(self) -> bool:
        return self.verdict in ("equal", "equal within tolerance")

    # Tables -----------------------------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> ErrorTable:
        """Every matched operation: label, names, own and inherited error, cosine, ULPs."""
        return ErrorTable(self.rows, any(row.gradient_error is not None for row in self.rows))

    def to_pandas(self) -> pandas.DataFrame:
        """The table as a pandas DataFrame, one row per matched operation."""
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
        """Draw the graph of one history, coloured by the own errors of its operations (by errors if unknown).

        Args:
            path, format, options: as in `ModelHistory.draw`.
            side: `"a"` or `"b"`.
        """
        if side not in ("a", "b"):
            raise InvalidArgument(f"side is 'a' or 'b'; got {side!r:.60}.")
        graph = (self.a if side == "a" else self.b).graph
        framed = self._causes(side).keys()
        chosen = picture_options({"color_by": _error(self._errors_of(side)), **options})

        def of_culprits(value: str) -> Callable[[Any], str | None]:
            return lambda node: None if framed.isdisjoint(node.operations) else value

        if framed:
            frame = {"color": of_culprits(_FRAME), "penwidth": of_culprits("4")}
            node = {**frame, **chosen.overrides.get("node", {})}
            chosen = replace(chosen, overrides={**chosen.overrides, "node": node})
        return draw(replace(_set_apart(graph, framed), title=f"{side}: {graph.title}"), chosen, path, format)

    def _causes(self, side: str) -> dict[int, str]:
        """Maps operations of one history to the text about their difference: culprits, and blocks that only this history runs.

        The first operation of a block has the words about the whole block.
        """
        found: dict[int, str] = {}
        for one in self.culprits:
            operation = one.a if side == "a" else one.b
            if operation is not None:
                found.setdefault(operation._number, str(one) if one.modules else one.reason)
                for inside in one.lone.operations if one.lone is not None else ():
                    found.setdefault(inside._number, f"only in {side}, part of {one.name}")
        if (backward := self.gradient_culprit) is not None:
            operation = backward.a if side == "a" else backward.b
            if operation is not None:
                found.setdefault(operation._number, str(backward))
        return found

    def _errors_of(self, side: str) -> dict[int, float]:
        """Maps operation numbers to own errors, or to errors if unknown."""
        errors = [(row.a if side == "a" else row.b, row.own_error or row.error) for row in self.rows]
        return {operation._number: error.relative for operation, error in errors if error is not None}

    def to_html(
        self, path: str | os.PathLike[str], *, title: str | None = None, previews: bool = True, max_bytes: int = MAX_BYTES
    ) -> Path:
        """Write a page with the verdict and both graphs, coloured by own error, inherited error or error.

        The arguments are those of `ModelHistory.to_html`.
        """
        one, other = self._payloads(previews, max_bytes)
        return to_html(one, path, compare=other, title=title, max_bytes=max_bytes)

    def _payloads(self, previews: bool, max_bytes: int) -> list[dict[str, Any]]:
        """The page data of both histories, with errors, causes, and the operation of `b` that matches each operation of `a`."""
        payloads, places = [], []
        for side, history in (("a", self.a), ("b", self.b)):
            payload = payload_of(history, previews=previews, max_bytes=max_bytes // 2)
            place = {number: at for at, node in enumerate(history.graph.all_nodes) for number in node.operations}
            causes = {number: cause for number, cause in self._causes(side).items() if number in place}
            payload |= {"metrics": FIGURES, "verdict": self.headline}
            if causes:
                payload["culprits"] = [place[number] for number in causes]
            for number, cause in causes.items():
                payload["nodes"][place[number]]["cause"] = cause
            for row in self.rows:
                if (at := place.get((row.a if side == "a" else row.b)._number)) is not None:
                    figures = map(relative, (row.own_error, row.inherited_error, row.error))
                    payload["nodes"][at]["metrics"] = [
                        1e308 if one == math.inf else one for one in figures
                    ]  # JSON has no infinity
            payloads.append(payload)
            places.append(place)
        pairs = {places[0].get(row.a._number): places[1].get(row.b._number, -1) for row in self.rows}
        payloads[0]["partners"] = [pairs.get(at, -1) for at in range(len(payloads[0]["nodes"]))]
        return payloads

    # Text -------------------------------------------------------------------------------------------------------------

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.verdict == "different":
            return f"different: {self._why_different()}"
        why = self._why_not_compared() if self.verdict == "not compared" else self._how_equal()
        though = f", though {self.culprit}" if self.culprit is not None else ""
        more = f"; {self._parameters_said}" if self._differing_parameters else ""
        return f"{self.verdict}: {why}{though}{more}"

    def _why_different(self) -> str:
        if self.culprit is not None and self.culprit.is_explained_by_parameters:
            others = [one for one in self.culprits if not one.is_explained_by_parameters]
            rest = f", and {others[0]}" if others else ", nothing else does"
            return f"{self._parameters_said}{rest}. The first that matters: {self.culprit}"
        if self.culprit is not None:
            return f"{self.culprit}{self._other_number_of_outputs()}"
        if self._has_other_outputs:
            return f"a returns {_shapes(self.a)}, b returns {_shapes(self.b)}"
        more = f"; {self._parameters_said}" if self._differing_parameters else ""
        if (value := self._other_value) is not None:
            return f"{value}{more}"
        if (beyond := self._beyond) is not None:
            return f"{self._above_tolerance(beyond)}; {self._operations_said(beyond)}{more}"
        if self.gradient_culprit is not None:
            return str(self.gradient_culprit)
        one = self.gradient_beyond
        assert one is not None
        how = f"differs by {one.error.relative:.1e} of its scale, above the tolerance of {one.tolerance:.1e}"
        return f"the gradient of {one.name} {how}; no backward is known to be wrong by itself{more}"

    def _above_tolerance(self, output: ComparedOutput) -> str:
        return f"{output.apart(self._name_of(output))}, {output.above()}"

    def _name_of(self, output: ComparedOutput) -> str:
        is_only = len(self.outputs) == 1 and output.row.a.is_output_layer
        return "the output" if is_only and not output.is_unusual else output.row.label

    def _operations_said(self, output: ComparedOutput | None) -> str:
        """A sentence about the operations, if an output differs and no operation has an own error."""
        if output is not None and output.is_unusual:
            return "which operation makes it differ cannot be told, since it is sparse, quantised or nested"
        unknown, what = ("known to be ", "the error") if self.has_unknown_errors else ("", "rounding")
        said = [f"no operation is {unknown}wrong by itself"]
        if (jump := self.largest_jump) is not None and jump.amplification is not None:
            said.append(f"{what} grows {times(jump.amplification)} at {jump.label}")
        if (lost := self.first_lost) is not None:
            ends = [f"{float(absolute_values(one.activation).max()):.2g}" for one in (lost.a, lost.b)]
            said.append(f"{lost.label} is the first to lose its value (its largest is {ends[0]} in a and {ends[1]} in b)")
        return "; ".join(said)

    def _why_not_compared(self) -> str:
        rest = "no operation that can be compared has an error of its own above its tolerance"
        unknown = [one for one in self.compared_outputs if one.error is None and not one.is_never_written]
        if unknown:
            return f"{_why_not_compared(unknown[0].row)}; {rest}"
        never = [one.row.label for one in self.compared_outputs]
        if never:
            verb = "is" if len(never) == 1 else "are"
            return f"there is nothing to compare: {few(never, 3)} {verb} memory that was never written; {rest}"
        return "there is nothing to compare: neither returns a tensor, and no operation of the two corresponds"

    def _how_equal(self) -> str:
        returned = "" if self.outputs else "neither returns a tensor; "
        rest = "".join(f"; {_unwritten_words(one.row)}" for one in self.compared_outputs if one.row.unwritten)
        if self.verdict == "equal":
            return f"{returned}{self._compared_words()}{rest}"
        worst = max((one for one in self.compared_outputs if one.error is not None), key=_error_of_output, default=None)
        if worst is None:
            return "; ".join([returned + ", ".join(str(one) for one in self.compared_values if one.error)])
        clean = ", no operation has an error of its own above its tolerance" if self.culprit is None else ""
        return f"{returned}{worst.apart(self._name_of(worst))}{clean}{rest}"

    @property
    def _differing_parameters(self) -> list[ParameterDifference]:
        return [one for one in self.parameters if one.is_in_both]

    @property
    def _parameters_said(self) -> str:
        differing = self._differing_parameters
        return f"{plural(len(differing), 'parameter')} {'differs' if len(differing) == 1 else 'differ'}"

    def _other_number_of_outputs(self) -> str:
        """A sentence about the numbers of returned tensors, if the culprit is an output that only one history has."""
        a, b = len(self.a.outputs), len(self.b.outputs)
        if self.culprit is None or self.culprit.shown_by is not None or a == b:
            return ""
        return f"; a returns {plural(a, 'tensor')}, b returns {b}"

    def _compared_words(self) -> str:
        """A phrase that says how many operations have equal bits, if the outputs have equal bits."""
        known = [row for row in self.rows if row.error is not None]
        same = [row for row in known if row.error is not None and row.error.is_none]
        left = len(self.rows) - len(known)
        rest = f"; {left} more {'was' if left == 1 else 'were'} not kept, or cannot be compared" if left else ""
        if known and len(same) == len(known):
            return f"{plural(len(same), 'operation')} {'gives' if len(same) == 1 else 'give'} {_sameness(same)}{rest}"
        others = f"; {len(known) - len(same)} of {plural(len(known), 'operation')} differ" if known else ""
        whose = "the outputs have" if self.outputs else "the values that nothing uses have"
        return f"{whose} {_sameness([one.row for one in self.compared_outputs])}{others}{rest}"

    @property
    def parts(self) -> Parts:
        """The verdict in three sentences: about the outputs, the structure and the operations."""
        return Parts(self._outputs_part(), self._structure_part(), self._operations_part())

    def _outputs_part(self) -> str:
        values = [one for one in self.compared_values if one.error]
        return "; ".join([self._tensors_part(), *map(str, values[:3])])

    def _tensors_part(self) -> str:
        if not self.a.outputs and not self.b.outputs:
            return "not compared: neither returns a tensor" if not self._values else "no tensor"
        if not self.outputs:
            return f"a returns {_shapes(self.a)}, b returns {_shapes(self.b)}"
        known = [one for one in self.compared_outputs if one.error is not None]
        lines = [self._output_words(self._beyond or max(known, key=_error_of_output))] if known else ["not compared"]
        lines += [_unwritten_words(one.row) for one in self.compared_outputs if one.row.unwritten]
        for side, alone in (("a", self.unmatched.a), ("b", self.unmatched.b)):
            if count := sum(one.is_output_layer for one in alone):
                lines.append(f"{plural(count, 'tensor')} returned by {side} only")
        return "; ".join(lines)

    def _output_words(self, output: ComparedOutput) -> str:
        said = output.apart(output.row.label if len(self.outputs) > 1 else "").lstrip()
        return said if not _error_of_output(output) else f"{said} (tolerance {output.tolerance:.1e})"

    def _structure_part(self) -> str:
        matched, alone = plural(len(self.rows), "operation"), (len(self.unmatched.a), len(self.unmatched.b))
        if not any(alone):
            return f"the same {matched} in both"
        return f"{matched} in both, {alone[0]} only in a, {alone[1]} only in b"

    def _operations_part(self) -> str:
        if self.culprit is not None:
            beyond = [row.label for row in self.rows if row.own_error is not None and row.own_error.relative > row.tolerance]
            more = f"; above tolerance: {plural(len(beyond), 'operation')}, {few(beyond, 5)}" if len(beyond) > 1 else ""
            return f"{self.culprit}{more}"
        if all(row.error is None or row.error.is_none for row in self.rows):
            return self._compared_words()
        return self._operations_said(None)

    def __str__(self) -> str:
        lines = _culprit_lines(self.culprit) if self.culprit is not None else []
        return "\n".join([self.headline, *lines, *self._totals(), *(f"\tNote: {note}" for note in self.notes)])

    def _totals(self) -> list[str]:
        parts = self.parts
        lines = [f"\tOutput: {parts.outputs}", f"\tStructure: {parts.structure}"]
        if self.parameters:
            lines.append(f"\tParameters: {_parameter_words(self.parameters)}")
        lines.append(f"\tOperations: {parts.operations}")
        if self.gradient_culprit is not None:
            lines += [f"\tGradient: {self.gradient_culprit}", *_source_lines(self.gradient_culprit)]
        if self.has_unknown_errors:
            lines.append("\tOwn errors: unknown for some operations, which cannot be run again (without parameters, or opaque)")
        return lines

    def _folds(self) -> list[Fold]:
        worst = sorted((row for row in self.rows if row.error is not None), key=_rank_by_error, reverse=True)[:_MOST]
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
    """The operation of a culprit in each history, with its source line."""
    sides = [(name, one) for name, one in (("a", culprit.a), ("b", culprit.b)) if one is not None]
    return [f"\tIn {name}: {one.label}{f' ({one.source})' if one.source is not None else ''}" for name, one in sides]


def _sameness(rows: list[ComparedOperation]) -> str:
    """A phrase that says in which way these rows are equal."""
    if any(row.a.tensor_dtype != row.b.tensor_dtype for row in rows):
        return "the same values, some in another dtype"
    return "the same values" if any(row.error is not None and row.error.is_of_bits for row in rows) else "the same bits"


def _error_of_output(output: ComparedOutput) -> float:
    return output.error.relative if output.error is not None else 0.0


def _unwritten_words(row: ComparedOperation) -> str:
    """A phrase for the elements of an output that are not compared."""
    if row.error is None:
        return f"{row.label} is memory that was never written, and is not compared"
    count = math.prod(row.b.tensor_shape)
    verb = "was" if row.unwritten == 1 else "were"
    return f"{row.unwritten} of {plural(count, 'element')} of {row.label} {verb} never written, and not compared"


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


def _rank_by_error(row: ComparedOperation) -> tuple[float, float]:
    return relative(row.own_error) or 0.0, relative(row.error) or 0.0


def _shapes(history: ModelHistory) -> str:
    return ", ".join(str(one.tensor_shape) for one in history.outputs) or "no tensor"
