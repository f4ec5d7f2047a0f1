"""`ComparedOperation` and `ComparedOutput`: matched operations and outputs with their errors, as rows and as a table."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._text import Column, ShownTable, Table, few, plural
from .._torch.containers import Other, Path, SavedObject, format_path
from .._torch.internals import DisableTorchFunction
from .._torch.sentinels import TENSOR
from ..history import Operation
from .alignment import Alignment
from .measures import (
    Difference,
    difference,
    difference_of_any,
    has_few_bits,
    is_measurable,
    lower,
    most_by_rounding,
    spread,
    steps_apart,
    tolerance_of,
)
from .steps import Side
from .unrounded import differences_unrounded


@dataclass(frozen=True, slots=True)
class ComparedOperation:
    """A matched operation and its errors. An error is None if unknown."""

    a: Operation
    b: Operation
    error: Difference | None  # error of the logged values
    own_error: Difference | None  # error of `b`'s operation on `a`'s values
    inherited_error: Difference | None  # the part of the error that earlier operations added
    tolerance: float
    matched_by: str
    gradient_error: Difference | None = None
    own_gradient_error: Difference | None = None  # error of `b`'s backward on `a`'s values and gradients
    inherited_gradient_error: Difference | None = None
    amplification: float | None = None  # the operation's inherited error, divided by the largest error of its inputs
    unwritten: int = 0  # number of elements that are not compared, because they come from memory that was never written

    @property
    def label(self) -> str:
        """The label of the operation in `a`."""
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
    """The growth of an error as text: `12×`."""
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
class FewBits:
    """Compares an output's error with the error that rounding to float8 explains: for all values together, and for each."""

    dtype: torch.dtype
    spread: float
    most: float
    steps: float | None  # None if earlier operations round too: then small values have large errors
    differs_unrounded: bool = False  # True if the models differ even where no value is rounded to few bits

    @property
    def is_beyond(self) -> bool:
        return self.differs_unrounded or self.spread > self.most or (self.steps is not None and self.steps > 1)


@dataclass(frozen=True, slots=True)
class ComparedOutput:
    """A matched output of both models, and its error."""

    row: ComparedOperation
    error: Difference | None  # None if unknown
    tolerance: float
    few_bits: FewBits | None = None  # set if rounding to float8, or to a smaller dtype, explains the error

    @property
    def is_never_written(self) -> bool:
        """True if the whole tensor is memory that was never written, so that there is nothing to compare."""
        return self.error is None and self.row.unwritten > 0

    @property
    def typical(self) -> float | None:
        """The median difference, divided by the median of the values other than 0; None if it has no meaning."""
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
        if self.error is None or self.error.relative > self.tolerance:
            return self.error is not None
        return self.few_bits is not None and self.few_bits.is_beyond

    def above(self) -> str:
        """A text that names the limit which the output's error exceeds."""
        if self.few_bits is not None and self.error is not None and self.error.relative <= self.tolerance:
            return f"which rounding to {self.few_bits.dtype} does not explain"
        return f"above the tolerance of {self.tolerance:.1e}"

    @property
    def is_unusual(self) -> bool:
        """True for a sparse, quantised or nested output, which does not show which operation differs."""
        return self.row.error is None and self.error is not None

    def apart(self, name: str) -> str:
        """A text that says how far the outputs of the two models are apart."""
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
    sides = (alignment.a, alignment.b)
    same = [{one._number for row in rows for one in [getattr(row, name)] if _is_same(row)} for name in "ab"]
    rounding = [_rounding(side, known) for side, known in zip(sides, same, strict=True)]
    roundings = [_roundings(side, known) for side, known in zip(sides, same, strict=True)]
    found = []
    for row in rows:
        if row.b._number in ends:
            error = row.error if row.error is not None or row.unwritten else _difference_of_kept(row)
            numbers = row.a._number, row.b._number
            dtypes = [known[number] for known, number in zip(rounding, numbers, strict=True)]
            allowed = 0.0 if 0.0 in dtypes else max(row.tolerance, *dtypes)
            times, dtype = max(
                (known[number] for known, number in zip(roundings, numbers, strict=True)), key=lambda one: one[0]
            )
            few_bits = None
            if dtype is not None and tolerance is None and allowed:
                allowed, of_all = most_by_rounding(torch.finfo(dtype).eps, times)
                few_bits = _few_bits(row, dtype, of_all, times)
            found.append(ComparedOutput(row, error, allowed if tolerance is None else tolerance, few_bits))
    return _judged_unrounded(alignment, found)


def _judged_unrounded(alignment: Alignment, outputs: list[ComparedOutput]) -> list[ComparedOutput]:
    """If rounding to few bits seems to explain the error of an output, compare it again without that rounding, if possible."""
    judged = [one for one in outputs if one.few_bits is not None and not one.is_beyond and not _is_same(one.row)]
    if not judged:
        return outputs
    pairs = [(one.row.a._number, one.row.b._number) for one in judged]
    apart = differences_unrounded(alignment, pairs)
    allowed = [_rounding(side, range(len(side.log.operations))) for side in (alignment.a, alignment.b)]
    beyond = {
        theirs
        for ours, theirs in pairs
        if theirs in apart and apart[theirs].relative > max(allowed[0][ours], allowed[1][theirs])
    }
    return [
        replace(one, few_bits=replace(one.few_bits, differs_unrounded=True))
        if one.few_bits is not None and one.row.b._number in beyond
        else one
        for one in outputs
    ]


def _is_same(row: ComparedOperation) -> bool:
    """True if both values are equal and have the same dtype, so that no rounding differs."""
    return row.error is not None and row.error.is_none and row.a.tensor_dtype == row.b.tensor_dtype


def _roundings(side: Side, same: set[int]) -> dict[int, tuple[int, torch.dtype | None]]:
    """Map each operation to the number of roundings, one after another, to a dtype of few bits before it, and to that dtype.

    Operations in `same` have the same values in both histories, and explain no difference.
    """
    found: dict[int, tuple[int, torch.dtype | None]] = {}
    operations = side.log.operations
    for record in operations:
        given = [found[parent] for parent in record.dependencies if parent >= 0]
        times, dtype = max(given, key=lambda one: one[0], default=(0, None))
        is_cast = not any(has_few_bits(operations[parent].dtype) for parent in record.dependencies if parent >= 0)
        if has_few_bits(record.dtype) and is_cast and record.number in side.varying and record.number not in same:
            coarser = dtype is None or torch.finfo(dtype).eps < torch.finfo(record.dtype).eps
            times, dtype = times + 1, record.dtype if coarser else dtype
        found[record.number] = times, dtype
    return found


def _few_bits(row: ComparedOperation, dtype: torch.dtype, most: float, times: int) -> FewBits | None:
    one, other = row.a.tensor_contents, row.b.tensor_contents
    if not is_measurable(one) or not is_measurable(other) or one.shape != other.shape or row.unwritten:
        return None
    is_last = times == 1 and has_few_bits(lower(row.a.tensor_dtype, row.b.tensor_dtype))
    return FewBits(dtype, spread(one, other), most, steps_apart(one, other, dtype) if is_last else None)


def _difference_of_kept(row: ComparedOperation) -> Difference | None:
    is_known = row.a.has_saved_activations and row.b.has_saved_activations
    return difference_of_any(row.a.tensor_contents, row.b.tensor_contents) if is_known else None


def _rounding(side: Side, same: Collection[int] = ()) -> dict[int, float]:
    """Maps each operation to the error that rounding may cause, by the least precise dtype of its computation.

    Dtypes of few bits count only where the values of the two histories differ: not for operations in `same`.
    """
    found: dict[int, float] = {}
    within: dict[int, float] = {}
    for record in side.log.operations:
        own = tolerance_of(record.dtype, record.dtype)
        if has_few_bits(record.dtype) and record.number in same:
            own = tolerance_of(torch.float32, torch.float32)
        given = max((within[parent] for parent in record.dependencies if parent >= 0), default=0.0)
        within[record.number] = max(own, given) if record.number in side.varying else given
        found[record.number] = max(own, given) if own else 0.0  # integers are not rounded
    return found


# What a model returns besides tensors: numbers, strings, arrays.


@dataclass(frozen=True, slots=True)
class ComparedValue:
    """A value that both models return and that is not a tensor, and its error."""

    name: str  # "the result", or the path in it: `result[1]`
    a: Any
    b: Any
    error: float | None  # relative to the value in `a`; infinite if not both are numbers; None if they cannot be compared
    tolerance: float

    @property
    def is_beyond(self) -> bool:
        return self.error is not None and self.error > self.tolerance

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.name} is not compared ({_short(self.a)} in a, {_short(self.b)} in b)"
        return f"{self.name} is {_short(self.a)} in a and {_short(self.b)} in b"


def _short(value: Any) -> str:
    printed = " ".join(repr(value).split())
    return printed if len(printed) <= _LONGEST else f"{printed[: _LONGEST - 1]}…"


_LONGEST = 60  # texts show at most this many characters of a value


def compared_values(alignment: Alignment, tolerance: float | None) -> tuple[list[ComparedValue], list[str]]:
    """Return the pairs of returned values that correspond, and notes about values that only one model returns.

    Values correspond by their paths, or by their order if the models return other containers of the same number of items.
    """
    ours, theirs = alignment.a.log.result, alignment.b.log.result
    if ours is None or theirs is None:
        return [], []
    kinds = [[item is TENSOR for _, item in one] for one in (ours, theirs)]
    known: dict[Path, Any] = dict(theirs)
    if kinds[0] == kinds[1]:
        pairs = [(path, one, other) for (path, one), (_, other) in zip(ours, theirs, strict=True)]
    else:
        pairs = [(path, one, known[path]) for path, one in ours if path in known]
    allowed = tolerance if tolerance is not None else max(map(_tolerance_of_reads, (alignment.a, alignment.b)))
    found = [
        ComparedValue(format_path(path, "result") if path else "the result", one, other, _error_of(one, other), allowed)
        for path, one, other in pairs
        if one is not TENSOR and other is not TENSOR
    ]
    if kinds[0] == kinds[1]:
        return found, []
    shared = {path for path, *_ in pairs}
    return found, [*_alone("a", ours, shared), *_alone("b", theirs, shared)]


def _alone(side: str, items: list[tuple[Path, Any]], shared: set[Path]) -> list[str]:
    """A note about values that only one model returns."""
    paths = [path for path, item in items if path not in shared and item is not TENSOR and item is not None]
    names = few((format_path(path, "result") for path in paths), 3)
    return [f"only {side} returns {names}, {'no tensor' if len(paths) == 1 else 'no tensors'}"] if paths else []


def _tolerance_of_reads(side: Side) -> float:
    """The error that rounding may cause in numbers that Python reads from tensors."""
    rounding = _rounding(side)
    read = [parent for one in side.log.python_reads for parent in one.parents if parent >= 0]
    return max((rounding[number] for number in read), default=tolerance_of(torch.float64, torch.float64))


def _error_of(one: Any, other: Any) -> float | None:
    """The error of a value, relative to the value in `a`."""
    try:
        return _compared(one, other)
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return None


def _compared(one: Any, other: Any) -> float | None:
    if any(isinstance(value, (Other, SavedObject)) for value in (one, other)):
        are_known = not any(isinstance(value, Other) for value in (one, other))
        return (0.0 if repr(one) == repr(other) else math.inf) if are_known else None
    if isinstance(one, (np.ndarray, array)) or isinstance(other, (np.ndarray, array)):
        return _error_of_arrays(one, other)
    if type(one) is tuple and type(other) is tuple:
        if len(one) != len(other):
            return math.inf
        errors = list(map(_compared, one, other))
        beyond = [error for error in errors if error is not None]
        return None if len(beyond) < len(errors) and not any(beyond) else max(beyond, default=0.0)
    if isinstance(one, Number) and isinstance(other, Number):
        return _error_of_numbers(one, other)
    if one == other:
        return 0.0
    are_of_tensors = isinstance(one, (torch.dtype, torch.device)) and type(one) is type(other)
    return None if are_of_tensors else math.inf  # a dtype or device may differ although the models' tensors agree


def _error_of_numbers(one: Any, other: Any) -> float:
    if one == other or (one != one and other != other):  # NaN in both
        return 0.0
    if all(isinstance(value, (int, np.integer, np.bool_)) for value in (one, other)):
        return math.inf
    ours, theirs = complex(one), complex(other)
    apart = abs(ours - theirs)
    return apart / (abs(ours) or abs(theirs)) if math.isfinite(apart) else math.inf


def _error_of_arrays(one: Any, other: Any) -> float | None:
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return math.inf
    if bool(np.array_equal(one, other)):
        return 0.0
    if all(value.dtype.kind in "biu" for value in (one, other)):
        return math.inf
    dtype = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    apart = difference(torch.from_numpy(one.astype(dtype)), torch.from_numpy(other.astype(dtype)))
    return apart.relative if apart is not None else None


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
