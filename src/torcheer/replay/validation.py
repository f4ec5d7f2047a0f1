"""Validates a log by these checks:

1. outputs: the plain model, from the same random state, returns the same bits;
2. values: the recorded graph, run from inputs, parameters and constants alone, gives the same bits at every operation;
3. edges: every tensor argument has an edge, writes that reach a tensor through another view are recorded, and changing an
   argument changes the result;
4. modules: plain forward hooks see the recorded inputs and outputs of every module call;
5. another input: the recorded graph and the plain model give the same outputs for another input.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from .._torch.containers import Arguments
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.memory import is_freed
from .._torch.source_code import source_of
from ..errors import InvalidArgument, ReplayFailed
from ..log.operation import OperationFacts
from ..log.records import MODULE, OperationRecord
from ..log.run import LoggedRun
from .another_input import try_another_input, why_not_run
from .comparison import Agreement, difference, is_close, same_bits
from .edges import EdgeProver, varies
from .machine import COLLECTIVE, given_because, is_uninitialised, refuse_changed_states, refuse_without_tensors, run_again
from .memory import MemoryProof
from .reference_run import HookWatch, addresses_of, is_on_accelerator, may_race, run_plainly, why_unsteady
from .report import Check, ValidationReport
from .walk import tensors_of


def validate(run: LoggedRun) -> ValidationReport:
    """Make the checks that need no model: values and edges."""
    _refuse_unfit(run)
    checks, _ = _replay(run)
    return ValidationReport(run.log.title, len(run.index.operations), tuple(checks), tuple(run.log.notes))


def validate_against(run: LoggedRun, model: Callable[..., Any], arguments: Arguments) -> ValidationReport:
    """Make all checks, including those that run `model`."""
    _refuse_unfit(run)
    replayed, agrees = _replay(run)
    outputs, modules = _compare_with_plain(run, model, arguments, agrees)
    another = try_another_input(run, model, arguments, agrees)
    checks = (outputs, *replayed, modules, another)
    return ValidationReport(run.log.title, len(run.index.operations), checks, tuple(run.log.notes))


def _refuse_unfit(run: LoggedRun) -> None:
    if not run.log.is_complete:
        raise InvalidArgument("only the history of a pass that ran to its end can be validated.")
    refuse_without_tensors(run, "validate")
    for record in run.log.operations:
        is_given = record.origin is Origin.INPUT or given_because(record) is not None
        if is_given and not record.is_saved:
            if run.options.layers_to_save == "all":
                raise InvalidArgument(
                    f"{run.index.label(record.number)} could not be kept: its class of tensors allows neither a view "
                    "nor a copy. So this history cannot be run again, which validating does."
                )
            raise InvalidArgument(
                f"this history did not keep its {record.function.name}s, so it cannot be run again. Log with "
                "layers_to_save='all', or with 'input' in the list."
            )
    refuse_changed_states(run)


# Against the plain model -----------------------------------------------------------------------------------------------


def _compare_with_plain(
    run: LoggedRun, model: Callable[..., Any], arguments: Arguments, agrees: Agreement
) -> tuple[Check, Check]:
    outputs, modules = Check("outputs equal those of the plain model"), Check("modules hold what plain hooks see")
    _check_ranges(run, modules)
    outputs.skipped = why_not_run(run)
    if outputs.skipped is not None:
        modules.skipped = outputs.skipped if modules.passed else None
        return outputs, modules
    watch = HookWatch(run.log, modules, agrees, addresses_of(model))
    with watch.watching():
        plain = run_plainly(model, arguments, run.log)
    watch.finish()
    logged = [OperationFacts(run.index, number) for number in run.index.of_origin(Origin.OUTPUT)]
    if len(logged) != len(plain):
        outputs.disagree("the outputs", f"{len(logged)} tensors were logged, the plain model returned {len(plain)}")
    for ours, theirs in zip(logged, plain, strict=False):
        if is_freed(ours._record.value) or is_freed(theirs):
            outputs.exempt["of which the memory was freed"] += 1
        elif is_uninitialised(run.log.operations[ours._number]):
            outputs.exempt["uninitialised memory"] += 1
        elif ours.has_saved_activations:
            outputs.count += 1
            if not agrees(outputs, ours.tensor_contents, theirs):
                outputs.disagree(ours.label, difference(ours.tensor_contents, theirs), ours.source)
    if not (outputs.passed and modules.passed):
        why = why_unsteady(model, arguments, run.log, plain, agrees)
        for check in (outputs, modules) if why is not None else ():
            check.disagreements.clear()
            check.skipped = why
    return outputs, modules


def _check_ranges(run: LoggedRun, check: Check) -> None:
    """Check that every operation lies inside its module call, and every call inside its outer call."""
    log = run.log
    for number, row in enumerate(log.rows):
        if row[MODULE] >= 0:
            call = log.modules[row[MODULE]]
            if not call.first <= number < call.end:
                check.disagree(run.index.label(number), f"it did not run inside {call.address}:{call.call}")
    for call in log.modules:
        outer = call.outer
        if outer is not None and not outer.first <= call.first <= call.end <= outer.end:
            check.disagree(f"{call.address}:{call.call}", f"it did not run inside {outer.address}:{outer.call}")


# By a replay -----------------------------------------------------------------------------------------------------------


def _replay(run: LoggedRun) -> tuple[list[Check], Agreement]:
    """Run the log again. Returns the checks, and the comparison (exact or tolerant) for the checks against the model."""
    try:
        told = run_again(run.log, {}, lambda: _Comparing(run))
    except ReplayFailed as error:
        values = Check("values come again from inputs, parameters and constants alone")
        record = run.log.operations[error.operation] if error.operation is not None else None
        where = _label(run, record) if record is not None else "the replay"
        values.disagree(where, str(error), source_of(record.site, record.module) if record is not None else None)
        return [values], Agreement()
    return [told.values, told.memory, told.edges], Agreement(told.not_deterministic())


class _Comparing:
    """Compares every value of a replay with the kept value, and tests the edges."""

    def __init__(self, run: LoggedRun) -> None:
        self.values = Check("values come again from inputs, parameters and constants alone")
        self.memory = Check("writes that reach a tensor through other memory are known")
        self.edges = Check("changing an argument changes the result")
        self._log = run.log
        self._prover = EdgeProver(self.edges)
        self._label = partial(_label, run)
        self._memory = MemoryProof(self.memory, self._label)
        self._varied: set[int] = set()  # operations that are not deterministic, or depend on such an operation
        self._raced: set[int] = set()  # operations whose results are undefined, or that depend on such an operation
        self._latest: list[Tensor] = []  # tensors among the arguments of the call that is being made

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = tensors_of((args, kwargs))
        self._prover.try_call(record, tensors)
        self._memory.before(record, tensors)
        self._latest = tensors

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        self._memory.before_given(record, written)

    def after(self, number: int, value: Any) -> Any:
        record = self._log.operations[number]
        self._memory.after(record, value)
        kept = record.value
        if is_freed(kept):
            self.values.exempt["of which the memory was freed"] += 1
            return value
        if not isinstance(kept, Tensor):
            self.values.exempt["not kept"] += 1
            return value
        reason = given_because(record) or ("uninitialised memory" if is_uninitialised(record) else None)
        if reason is not None:
            self.values.exempt[reason] += 1
            if reason is COLLECTIVE and record.call == number:
                self.edges.exempt[reason] += len(record.parents)
            return value
        self.values.count += 1
        if not same_bits(kept, value):
            self._disagree(record, kept, value)
        return value

    def _disagree(self, record: OperationRecord, kept: Tensor, value: Any) -> None:
        if isinstance(value, Tensor) and is_close(kept, value) and self._varies(record):
            self.values.exempt[f"compared with a tolerance, not deterministic ({record.function.name})"] += 1
            return
        if self._races(record):
            self.values.exempt["behind several values that were written to one place, in no order"] += 1
            return
        self.values.disagree(self._label(record), difference(kept, value), source_of(record.site, record.module))

    def _varies(self, record: OperationRecord) -> bool:
        """True if a function is nondeterministic: by its name, or because the call gave different bits when made again."""
        is_known = _may_vary(record) or not self._varied.isdisjoint(record.dependencies)
        if is_known or (not record.details.mutated and varies(record, self._latest)):
            self._varied.add(record.number)
        return record.number in self._varied

    def _races(self, record: OperationRecord) -> bool:
        """True if the result of the call, or of a call it depends on, is undefined: a second call gave other values."""
        if not self._raced.isdisjoint(record.dependencies) or (may_race(record) and varies(record, self._latest)):
            self._raced.add(record.number)
        return record.number in self._raced

    def not_deterministic(self) -> list[str]:
        """List the functions in this history that were not deterministic, or that torch calls so on accelerators."""
        found = {record.function.name for record in map(self._log.operations.__getitem__, self._varied)}
        for record in self._log.operations:
            is_sure = is_on_accelerator(record) or record.function.is_in(groups.VARY_WITH_MEMORY)
            if is_sure and _may_vary(record):
                found.add(record.function.name)
        return sorted(found - {"output"})


def _may_vary(record: OperationRecord) -> bool:
    """True if torch does not guarantee the same bits in each run. On accelerators, this includes convolutions (cuDNN)."""
    is_convolution = is_on_accelerator(record) and record.function.is_in(groups.CONVOLUTIONS)
    return is_convolution or record.function.is_in(groups.NONDETERMINISTIC)


def _label(run: LoggedRun, record: OperationRecord) -> str:
    if run.index.table.shows(record.number):
        return run.index.label(record.number)
    return f"{record.function.name} (operation {record.number}, not connected to any output)"
