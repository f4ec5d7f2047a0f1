"""`compare`: aligns two histories, runs `b` on the values of `a`, and finds the culprit.

`amplifications` computes how much each operation makes an inherited error grow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._text import few, plural
from .._torch.internals import DisableTorchFunction
from .._torch.thread_state import thread_left_as_found
from ..errors import ActivationNotSaved, InvalidArgument
from ..history import ModelHistory
from ..log.run import run_of
from ..replay.comparison import same_bits
from ..replay.machine import refuse_changed_states, refuse_without_tensors
from .alignment import Alignment, align
from .comparison import Comparison, Unmatched
from .culprit import Culprit
from .culprit_search import CulpritSearch, unsynced
from .gradients import GradientErrors, Gradients
from .measures import Difference, difference_of_any, is_measurable
from .outputs import ComparedOperation, ComparedOutput, compared_outputs, compared_values, largest_jump
from .own_error import RerunOfB, errors_that_matter, references, run_on_values_of_a
from .parameters import ParameterDifference, parameter_differences, state_pairs
from .steps import Side, renaming
from .uninitialised import ignore_uninitialised


def amplifications(
    alignment: Alignment, run: RerunOfB, errors: Mapping[int, Difference | None], states: Mapping[int, int]
) -> dict[int, float]:
    """Maps operations of `b` to their inherited error, divided by the largest error of their inputs and parameters.

    Operations with exact inputs or an unknown error are left out. `states` has parameters and buffers by number in `a`.
    """
    of_states = {theirs: _relative(difference_of_any(*_values(alignment, ours, theirs))) for ours, theirs in states.items()}
    found: dict[int, float] = {}
    passed_on: dict[int, float] = {}  # the error of an operation; if unknown, the largest error of its inputs
    for record in alignment.b.log.operations:
        number = record.number
        given = [passed_on[parent] for parent in record.dependencies if parent >= 0]
        before = max([*given, *(of_states.get(parent, 0.0) for parent in record.parents if parent < 0)], default=0.0)
        error = errors.get(number)
        passed_on[number] = before if error is None else error.relative
        after = _inherited(error, run.own.get(number), run.inherited.get(number), number in run.dirty)
        if number in errors and after is not None and 0 < before < math.inf:
            found[number] = after / before
    return found


def _inherited(error: Difference | None, own: Difference | None, inherited: Difference | None, is_dirty: bool) -> float | None:
    """Return the part of an error that the operation itself does not add; its rounded inputs count as its own part."""
    known = [inherited.relative] if inherited is not None else []
    if error is not None and own is not None and not is_dirty and math.isfinite(own.relative):
        known.append(max(0.0, error.relative - own.relative))
    return max(known, default=None)


def _relative(error: Difference | None) -> float:
    return error.relative if error is not None else 0.0


def _values(alignment: Alignment, ours: int, theirs: int) -> tuple[object, object]:
    return alignment.a.index.state(ours).value, alignment.b.index.state(theirs).value


# `compare`: align two histories, run `b` on the values of `a`, find the culprit.

_MUCH = 10  # note a difference between typical values if it is at least this many times the tolerance
_MOST_CULPRITS = 4  # search at most this many culprits, one after another; the table shows the other errors


@thread_left_as_found
def compare(
    a: ModelHistory, b: ModelHistory, *, names: Mapping[str, str] | None = None, tolerance: float | None = None
) -> Comparison:
    """Compare two histories of one input, operation by operation, and find where they diverge.

    >>> import torch, torcheer
    >>> exact, fast = torch.nn.Sequential(torch.nn.GELU()), torch.nn.Sequential(torch.nn.GELU(approximate="tanh"))
    >>> a, b = (torcheer.log_forward_pass(model, torch.linspace(-1, 1, 9)) for model in (exact, fast))
    >>> comparison = torcheer.compare(a, b)
    >>> comparison.verdict, comparison.culprit.label, comparison.culprit.arguments
    ('different', 'gelu_1_1', (('approximate', 'none', 'tanh'),))

    Args:
        a: the history that is taken as correct, logged or loaded.
        b: the history that is compared with it, made from the same input.
        names: maps parts of addresses in `a` to parts of addresses in `b`, `{"h": "layers"}`, if modules have other names.
            Without it modules are matched by parameters and structure.
        tolerance: the largest accepted error of an output, or own error of an operation, relative to the largest value of
            the tensor. By default it depends on the dtypes.

    An error is own or inherited: each operation of `b` is also run on the values of `a`, and the remaining error is its own.
    Limits: if `b` was loaded without its parameters, own errors are unknown; the culprit is then the first operation that
    differs although its inputs agree.
    """
    _check(a, "a")
    _check(b, "b")
    if tolerance is not None and (isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not tolerance >= 0):
        raise InvalidArgument(f"tolerance is a number from 0, relative to a tensor's largest value; got {tolerance!r:.60}.")
    alignment = align(Side(a, renaming(names, a, b)), Side(b))
    _check_inputs(alignment)
    pairs = state_pairs(alignment)
    parameters = parameter_differences(alignment, tolerance)
    ignore_uninitialised(alignment)
    reference = references(alignment, pairs)
    order, synced, run = _culprits(alignment, reference, tolerance)
    search = CulpritSearch(alignment, synced, _by_state(alignment, parameters))
    others = sorted(run.dirty & synced - set(order))
    culprits = [search.culprit(number, run, reference) for number in (*order, *others)]
    _drop_others(alignment, synced, search)
    gradients = Gradients(alignment, synced, pairs, tolerance)
    rows = _rows(alignment, run, pairs, gradients.errors, tolerance)
    outputs = compared_outputs(alignment, rows, tolerance)
    values, other_values = compared_values(alignment, tolerance)
    unknown = _first_unexplained(alignment, rows, run, search)
    if unknown is not None and not (order and order[0] < unknown[0]):
        culprits.insert(0, unknown[1])
    if (lone := search.lone_output()) is not None:
        culprits.append(lone)
    named: dict[object, Culprit] = {}
    for one in culprits:
        named.setdefault((one.a, one.b), one)
    unmatched = Unmatched(
        tuple(map(alignment.a.operation, alignment.only_in(alignment.a))),
        tuple(map(alignment.b.operation, alignment.only_in(alignment.b))),
    )
    return Comparison(
        a,
        b,
        rows,
        unmatched,
        list(named.values()),
        parameters,
        tolerance=max((one.tolerance for one in outputs), default=tolerance or 0.0),
        compared_outputs=outputs,
        compared_values=values,
        largest_jump=largest_jump(alignment, rows, outputs),
        gradient_beyond=gradients.beyond(),
        gradient_culprit=gradients.culprit() if not culprits else None,
        notes=(
            *_notes(rows, run),
            *_other_outputs(alignment),
            *other_values,
            *(str(one) for one in values if one.error is None),
            *_small_values(outputs),
            *(_other_arguments(search) if not culprits else ()),
        ),
    )


def _check(history: Any, name: str) -> None:
    if not isinstance(history, ModelHistory):
        came, advice = type(history).__name__, "For models: torcheer.compare_models(model_a, model_b, x)"
        if isinstance(history, (str, os.PathLike)):
            came, advice = f"the path {str(history)!r:.80}", "For a saved history: torcheer.load(path)"
        raise InvalidArgument(f"{name} must be a history, as log_forward_pass returns; got {came}. {advice}.")
    if not history.is_complete:
        raise InvalidArgument(f"{name} is the history of a pass that did not run to its end, so it cannot be compared.")
    run = run_of(history)
    refuse_without_tensors(run, "compare", name)
    if not any(operation.has_saved_activations for operation in history.operations):
        raise ActivationNotSaved(
            f"no activation of {name} was saved, so there is nothing to compare. Log with layers_to_save='all'."
        )
    if not any(is_measurable(run.log.values[operation.number]) for operation in history.operations):
        raise ActivationNotSaved(
            f"no activation of {name} has values that can be compared: they are meta, nested, sparse or quantized tensors."
        )
    if not any(state.is_absent for state in run.log.states):
        refuse_changed_states(run)


def _check_inputs(alignment: Alignment) -> None:
    """Raise if the two histories have different inputs."""
    a, b = alignment.a, alignment.b
    for number in b.inputs:
        apart = alignment.error(number)
        if apart is not None and apart.relative > alignment.tolerance(number) and not _is_converted(alignment, number):
            ours, theirs = alignment.pair(number)
            raise InvalidArgument(
                f"the histories have different inputs: {ours.label} of a and {theirs.label} of b differ by "
                f"{apart.largest:.3g}. Log both models with the same input, or use torcheer.compare_models(a, b, x)."
            )
    if a.inputs and b.inputs and not any(number in alignment.of_b for number in b.inputs):
        shapes = [", ".join(str(side.log.operations[n].shape) for n in side.inputs) for side in (a, b)]
        raise InvalidArgument(
            f"the histories have different inputs: {shapes[0]} in a, {shapes[1]} in b. Log both with the same one."
        )


def _is_converted(alignment: Alignment, number: int) -> bool:
    """True if an input of `b` is the input of `a` in another dtype, in which some of its values are not finite."""
    ours, theirs = alignment.value_of_a(number), alignment.b.value(number)
    if ours is None or theirs is None:
        return False
    with DisableTorchFunction(), torch.no_grad():
        return same_bits(ours.detach().to(theirs.device, theirs.dtype), theirs)


def _culprits(
    alignment: Alignment, reference: dict[int, Tensor], tolerance: float | None
) -> tuple[list[int], set[int], RerunOfB]:
    """Return the first operations with own errors, the operations after which `b` continues with values of `a`, and the run."""
    everything = {number for number in alignment.of_b if alignment.value_of_a(number) is not None}
    forced = run_on_values_of_a(alignment, reference, forced=None, tolerance=tolerance)
    found: list[int] = []
    if not forced.dirty:
        return found, everything, forced
    for _ in range(_MOST_CULPRITS + 1):
        lazy = run_on_values_of_a(alignment, reference, forced=set(found), tolerance=tolerance, earlier=forced)
        errors = errors_that_matter(alignment, lazy, forced, set(found), tolerance)
        if not errors:
            break
        found += _of_one_cause(alignment, errors, forced)
        if forced.dirty <= set(found):  # no other operation has an error on inputs of `a`
            return found, everything, forced
    synced = everything - (lazy.dirty - set(found) - set(errors))
    if synced != everything:
        forced = run_on_values_of_a(alignment, reference, forced=synced, tolerance=tolerance, earlier=forced)
    return found, synced, forced


def _drop_others(alignment: Alignment, synced: set[int], search: CulpritSearch) -> None:
    """Drop matches whose values differ on the way to the same result: they are neither errors nor the same call."""
    ends = {*alignment.b.inputs, *alignment.b.outputs}
    for number in sorted(alignment.of_b):
        if number in synced or number in ends or alignment.value_of_a(number) is None:
            continue
        if not search.is_counterpart(number):
            alignment.drop(number)


def _of_one_cause(alignment: Alignment, errors: list[int], forced: RerunOfB) -> list[int]:
    """Return the first error, and the other errors that depend on the same unmatched operations, as all users of a block do."""
    first, *others = errors
    a, b = alignment.a, alignment.b

    def behind(number: int) -> tuple[set[int], set[int]]:
        ours = {one._number for one in unsynced(a, alignment.of_b[number], alignment.of_a)}
        theirs = {one._number for one in unsynced(b, number, alignment.of_b)}
        return ours & a.varying, theirs & b.varying

    ours, theirs = behind(first)
    if not ours and not theirs:
        return [first]
    pairs = [(one, behind(one)) for one in others if one in forced.dirty]
    return [first, *(one for one, (mine, yours) in pairs if not ours.isdisjoint(mine) or not theirs.isdisjoint(yours))]


def _by_state(alignment: Alignment, parameters: list[ParameterDifference]) -> dict[int, ParameterDifference]:
    """Maps (negative) numbers in the log of `b` to the parameters that differ."""
    index, states = alignment.b.index, alignment.b.log.states
    named = {one.name_b: one for one in parameters if one.is_in_both}
    return {state.number: named[name] for state in states if (name := index.state_name(state)) in named}


def _rows(
    alignment: Alignment,
    run: RerunOfB,
    states: dict[int, int],
    gradients: dict[int, GradientErrors],
    tolerance: float | None,
) -> list[ComparedOperation]:
    rows: list[ComparedOperation] = []
    apart = {number: alignment.error(number) for number in alignment.of_b}
    grows = amplifications(alignment, run, apart, states)
    for number in sorted(alignment.of_b):
        allowed = run.tolerances.get(number, tolerance if tolerance is not None else alignment.tolerance(number))
        errors = apart[number], run.own.get(number), run.inherited.get(number)
        gradient = gradients.get(number)
        of_gradient = (gradient.error, gradient.own, gradient.inherited) if gradient is not None else ()
        ignored = alignment.ignored.get(number)
        unwritten = int(ignored.sum()) if ignored is not None else 0
        pair, because = alignment.pair(number), alignment.because[number]
        row = ComparedOperation(*pair, *errors, allowed, because, *of_gradient)
        rows.append(replace(row, amplification=grows.get(number), unwritten=unwritten))
    return rows


def _first_unexplained(
    alignment: Alignment, rows: list[ComparedOperation], run: RerunOfB, search: CulpritSearch
) -> tuple[int, Culprit] | None:
    """Find the first operation that differs, whose own error is unknown, and whose inputs are not known to differ."""
    errors = {row.b._number: row for row in rows}
    for row in rows:
        number = row.b._number
        if row.own_error is not None or row.error is None or row.error.relative <= row.tolerance or number not in run.failed:
            continue
        given = [errors[parent] for parent in alignment.b.log.operations[number].dependencies if parent in errors]
        if all(one.error is None or one.error.relative <= one.tolerance for one in given):
            return number, search.unexplained(number)
    return None


def _notes(rows: list[ComparedOperation], run: RerunOfB) -> tuple[str, ...]:
    unknown = [row for row in rows if row.b._number in run.failed]
    if not unknown:
        return ()
    why = run.failed[unknown[0].b._number]
    return (f"the own error of {len(unknown)} of {len(rows)} operations is unknown, the first is {unknown[0].label}: {why}",)


def _other_arguments(search: CulpritSearch) -> tuple[str, ...]:
    """Lists arguments that differ but change no measured result."""
    found = search.arguments_without_effect()
    if not found:
        return ()
    return (f"arguments differ, but no operation that can be measured gives other values: {few(found, 3, '; ')}",)


def _small_values(outputs: list[ComparedOutput]) -> tuple[str, ...]:
    """A note about the first output whose few large values hide that most of its values differ by more than the tolerance."""
    for one in outputs:
        typical = one.typical
        if typical is not None and typical > _MUCH * one.tolerance:
            said = (
                f"of {one.row.label} a few large values are the scale; half of its values differ by {typical:.1e} of a typical"
            )
            return (f"{said} one, or more",)
    return ()


def _other_outputs(alignment: Alignment) -> tuple[str, ...]:
    """A note that one model returns more tensors than the other."""
    a, b = alignment.a.outputs, alignment.b.outputs
    matched = sum(number in alignment.of_b for number in b)
    if matched == len(a) == len(b) or not matched:
        return ()
    return (f"a returns {plural(len(a), 'tensor')}, b returns {len(b)}; the {matched} that correspond are compared",)
