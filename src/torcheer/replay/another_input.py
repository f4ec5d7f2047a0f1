"""Checks that the recorded graph, run on another input, gives the same outputs as the model on that input.

The model runs too, so integers in the inputs stay as they are: an index out of range could end the process or the CUDA
context. `first_difference` compares the graphs of two passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.containers import Arguments, shares_no_container
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.functions.structure import takes_probabilities
from .._torch.left_as_found import left_as_found
from .._torch.memory import cloned, is_freed
from ..capture import run_model
from ..errors import InvalidArgument, ReplayFailed
from ..log.operation import OperationFacts
from ..log.records import TEMPLATE, Log, OperationRecord
from ..log.run import Index, LoggedRun
from .comparison import Agreement, difference, same_bits
from .edges import is_plain
from .machine import given_because, is_uninitialised, run_again
from .reference_run import run_plainly, why_unsteady
from .report import Check
from .walk import at, tensors_of

_UNINITIALISED = object()  # stands for an output that is uninitialised memory


def try_another_input(run: LoggedRun, model: Callable[..., Any], arguments: Arguments, agrees: Agreement) -> Check:
    check = Check("the graph gives what the model gives for another input")
    check.skipped = _why_not_another(run)
    if check.skipped is None:
        given = tensors_of(arguments, into_objects=True)
        with left_as_found(model, [], given, arguments, []) as undone:  # the model may reach its inputs by another name
            undone.restorer.back_up_everything()
            _try(check, run, model, arguments, agrees)
    return check


def _try(check: Check, run: LoggedRun, model: Callable[..., Any], arguments: Arguments, agrees: Agreement) -> None:
    try:
        changed, inputs = _changed_inputs(run, arguments)
    except Exception as error:  # a user-defined object may raise anything when it is copied
        pass_interrupts_on(error)
        check.skipped = f"the arguments cannot be copied: {type(error).__name__}"
        return
    if not inputs:
        kept = "integers, what the model makes integers of, and tensors without values"
        check.skipped = f"no input can be changed: {kept} are left as they are"
        return
    try:
        expected = run_plainly(model, changed, run.log)
    except Exception as error:  # a model may raise anything for an input it does not take
        pass_interrupts_on(error)
        check.skipped = f"the model does not take the changed input: {type(error).__name__}"
        return
    try:
        told = run_again(run.log, inputs, lambda: _Outputs(run))
    except ReplayFailed as error:
        _explain(check, run, model, [arguments, changed], str(error))
        return
    check.count = len(expected)
    for label, ours, theirs in zip(told.labels, told.values, expected, strict=False):
        if ours is not _UNINITIALISED and not agrees(check, theirs, ours):
            check.skipped = why_unsteady(model, changed, run.log, expected, agrees)
            if check.skipped is not None:
                return
            _explain(check, run, model, [arguments, changed], f"{label}: {difference(theirs, ours)}")
            return


def why_not_run(run: LoggedRun) -> str | None:
    """If other processes would have to run the model at the same time, return this as the reason not to run it; else None."""
    count = run.log.collectives
    return f"{count} collective{'s' * (count != 1)} ran in this pass, in which other processes take part" if count > 0 else None


def _why_not_another(run: LoggedRun) -> str | None:
    if (why := why_not_run(run)) is not None:
        return why
    if run.log.python_reads:
        return f"values left for Python {len(run.log.python_reads)} times, and may decide what runs"
    opaque = Counter(given_because(record) for record in run.log.operations if record.origin is not Origin.SOURCE)
    opaque.pop(None, None)
    return f"{sum(opaque.values())} values were {', '.join(map(str, opaque))}" if opaque else None


def _changed_inputs(run: LoggedRun, arguments: Arguments) -> tuple[Arguments, dict[int, Tensor]]:
    """Change every input that may change. Returns the arguments with the changed inputs, and these inputs by number."""
    mover = _Mover(run.log)
    records = [record for record in run.log.operations if record.origin is Origin.INPUT]
    sides = dict(zip(("args", "kwargs"), arguments, strict=True))
    replaced: dict[int, Tensor] = {}
    numbers: dict[int, Tensor] = {}
    for record in records:
        for path in run.log.input_paths.get(record.number, ()):
            tensor = at(sides, path)
            if not isinstance(tensor, Tensor) or not is_plain(tensor) or not tensor.is_floating_point() or is_freed(tensor):
                continue
            if id(tensor) not in replaced:
                moved = mover.moved(record.number, tensor)
                if moved is None or same_bits(moved, tensor.detach()):
                    continue
                replaced[id(tensor)] = moved
            numbers[record.number] = replaced[id(tensor)]
    others = {id(value): value for value in (*arguments[0], *arguments[1].values()) if not _holds(value, replaced)}
    changed = shares_no_container(arguments, others | replaced)  # unchanged objects are not copied: the model may hold them
    if {id(tensor) for tensor in replaced.values()} - {id(tensor) for tensor in tensors_of(changed, into_objects=True)}:
        raise InvalidArgument("an object among the arguments holds tensors and cannot be copied.")
    return changed, numbers


def _holds(value: Any, replaced: dict[int, Tensor]) -> bool:
    """True if `value` contains a tensor that is replaced."""
    return any(id(tensor) in replaced for tensor in tensors_of(value, into_objects=True))


class _Mover:
    """Makes other inputs from the logged inputs.

    Integer inputs stay as they are, and so do inputs that the model converts to integers. Functions outside torch may use
    whole numbers as indices: in their inputs, only values that are not whole numbers are changed.
    """

    def __init__(self, log: Log) -> None:
        self._generator = torch.Generator().manual_seed(7)
        self._inputs = {r.number: 1 << place for place, r in enumerate(r for r in log.operations if r.origin is Origin.INPUT)}
        self._converted = self._foreign = 0  # sets of inputs: bit n of the number stands for input n
        self._has_probabilities = False
        behind: list[int] = []  # for each operation: the inputs that its value was computed from
        for record in log.operations:
            mask = self._inputs.get(record.number, 0)
            for parent in record.dependencies:
                mask |= behind[parent]
            behind.append(mask)
            if record.origin is Origin.OPERATION:
                self._note(record, mask)

    def _note(self, record: OperationRecord, mask: int) -> None:
        function = record.function
        is_foreign = function.structure.is_foreign
        if is_foreign:
            self._foreign |= mask
        dtype = record.dtype
        if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool) and (
            is_foreign or function.is_elementwise or function.is_in(groups.SELECTIONS | groups.ARRANGEMENTS)
        ):
            self._converted |= mask
        self._has_probabilities |= takes_probabilities(function.plain_name)

    def moved(self, number: int, tensor: Tensor) -> Tensor | None:
        """Return the input with other values; None if it must stay unchanged."""
        mask = self._inputs[number]
        if self._converted & mask or not tensor.numel():
            return None
        with torch.no_grad():
            value = tensor.detach().clone()
            # new values lie between values that occur, so they stay in the same range
            moved = value + 0.1 * (self._shuffled(value) - value)
            if same_bits(moved, value) and not self._has_probabilities:
                moved = value + 0.1 * torch.rand(value.shape, generator=self._generator, device="cpu").to(value)
            if self._foreign & mask:
                moved = torch.where(value == value.round(), value, moved)
        return moved.to(value.dtype).requires_grad_(tensor.requires_grad)

    def _shuffled(self, value: Tensor) -> Tensor:
        order = torch.randperm(value.numel(), generator=self._generator, device="cpu").to(value.device)
        return value.reshape(-1)[order].reshape(value.shape)


def _explain(check: Check, run: LoggedRun, model: Callable[..., Any], both: list[Arguments], what: str) -> None:
    """Report a disagreement, unless the model runs different operations on the other input. Logs both passes to find out."""
    sources = sum(record.origin is Origin.SOURCE for record in run.log.operations)
    if sources:
        check.skipped = f"{sources} values were computed in code torcheer cannot trace, and may depend on the input"
        return
    logs = []
    for arguments in both:
        logs.append(LoggedRun.begin(run.log.title, run.options))
        run_model(logs[-1], model, arguments, None, backs_up_everything=True)
    one, other = logs
    if first_difference(one.index, other.index) is not None or not _same_constants(one.log, other.log):
        check.skipped = "on another input the model runs other operations, or with other sizes"
    elif not _same_states(one.log, other.log):
        check.skipped = "parameters or buffers were made during the pass, from the input"
    else:
        check.disagree("another input", what)


def _same_constants(one: Log, other: Log) -> bool:
    """True if the arguments of all calls, except tensors, are equal."""
    pairs = zip(one.rows, other.rows, strict=True)
    try:
        return all(bool(a[TEMPLATE] == b[TEMPLATE]) for a, b in pairs)
    except (RuntimeError, ValueError):  # a user-defined __eq__
        return False


def _same_states(one: Log, other: Log) -> bool:
    """True if the parameters and buffers that operations read have the same values in both logs."""
    ours, theirs = one.states, other.states
    return len(ours) == len(theirs) and all(same_bits(a.value, b.value) for a, b in zip(ours, theirs, strict=True))


class _Outputs:
    """Collects the outputs of a replay."""

    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self.labels: list[str] = []
        self.values: list[Any] = []

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing to do."""

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Nothing to do."""

    def after(self, number: int, value: Any) -> Any:
        record = self._run.log.operations[number]
        if record.origin is Origin.OUTPUT:
            self.labels.append(self._run.index.label(number))
            kept = cloned(value.detach()) if isinstance(value, Tensor) else value
            self.values.append(_UNINITIALISED if is_uninitialised(record) else kept)
        return value


def first_difference(before: Index, after: Index) -> str | None:
    """Find the first operation in which two passes differ. Returns a sentence about it; None if they ran the same graph."""
    for position, (a, b) in enumerate(zip(before.operations, after.operations, strict=False)):
        one, two = before.record(a), after.record(b)
        label = before.label(a)
        where = OperationFacts(after, b).source
        at = f" ({where})" if where is not None else ""
        if one.function.type != two.function.type:
            return f"operation {position + 1} was {label}, now {two.function.name!r} ran{at}"
        ours = [before.positions[p] for p in before.parents(a)]
        theirs = [after.positions[p] for p in after.parents(b)]
        if ours != theirs:
            return f"{label} has other parents than before{at}"
        if _address(one) != _address(two):
            return f"{label} ran in module {_address(two)!r}, before it was {_address(one)!r}{at}"
    count, now = len(before.operations), len(after.operations)
    if count != now:
        longer, numbers = (before, before.operations) if count > now else (after, after.operations)
        first = longer.label(numbers[min(count, now)])
        return f"it has {now} operations instead of {count}; {first} is the first that only one of them has"
    return None


def _address(record: OperationRecord) -> str | None:
    return record.module.address if record.module is not None else None
