"""Proves a log: the plain model agrees with it, and running its graph again gives every value in it.

1. outputs: the plain model, from the same random state, gives the same bits;
2. values: the recorded graph, run from inputs, parameters and constants alone, gives the same bits at every operation;
3. edges: every tensor argument is accounted for, writes that reach a tensor through other memory are known, and changing an
   argument changes the result;
4. modules: what crossed every module is what plain forward hooks see;
5. another input: the graph, run from another input, gives what the model gives for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..capture.callsite import source_of
from ..capture.identity import TensorTable, storage_of
from ..capture.retention import version_of
from ..containers import Arguments, shares_no_container
from ..errors import InvalidArgument, ReplayFailed
from ..history import History
from ..history.filling import run
from ..history.history import first_difference
from ..records import MODULE, TEMPLATE, OperationRecord, Origin
from ..tensor_memory import is_freed
from .comparison import Agreement, difference, is_close, same_bits
from .edges import EdgeProver, is_plain, varies
from .machine import COLLECTIVE, given_because, refuse_changed_states, run_again
from .plain import HookWatch, addresses_of, run_plainly
from .report import Check, ValidationReport
from .walk import at, tensors_of


def validate(history: History) -> ValidationReport:
    """Check what a history can prove by itself: its values and its edges."""
    _refuse_unfit(history)
    checks, _ = _replay(history)
    return ValidationReport(history.model_name, history.num_operations, tuple(checks))


def validate_against(history: History, model: Callable[..., Any], arguments: Arguments) -> ValidationReport:
    """Check a history of `model` against the model itself as well."""
    _refuse_unfit(history)
    replayed, agrees = _replay(history)
    outputs, modules = _compare_with_plain(history, model, arguments, agrees)
    another = _another_input(history, model, arguments, agrees)
    return ValidationReport(history.model_name, history.num_operations, (outputs, *replayed, modules, another))


def _refuse_unfit(history: History) -> None:
    if not history.is_complete:
        raise InvalidArgument("only the history of a pass that ran to its end can be validated.")
    if not history._log.holds_tensors:
        raise InvalidArgument("a history made with activation_postfunc has no tensors to validate; log without it.")
    for record in history._log.operations:
        is_given = record.origin is Origin.INPUT or given_because(record) is not None
        if is_given and not record.is_saved:
            raise InvalidArgument(
                f"this history did not keep its {record.function.name}s, so it cannot be run again. Log with "
                "layers_to_save='all', or with 'input' in the list."
            )
    refuse_changed_states(history)


# Against the plain model -----------------------------------------------------------------------------------------------


def _compare_with_plain(
    history: History, model: Callable[..., Any], arguments: Arguments, agrees: Agreement
) -> tuple[Check, Check]:
    outputs, modules = Check("outputs equal those of the plain model"), Check("modules hold what plain hooks see")
    _check_ranges(history, modules)
    outputs.skipped = _why_not_run(history)
    if outputs.skipped is not None:
        modules.skipped = outputs.skipped if modules.passed else None
        return outputs, modules
    watch = HookWatch(history._log, modules, agrees, addresses_of(model))
    with watch.watching():
        plain = run_plainly(model, arguments, history._log)
    watch.finish()
    logged = history.outputs
    if len(logged) != len(plain):
        outputs.disagree("the outputs", f"{len(logged)} tensors were logged, the plain model returned {len(plain)}")
    for ours, theirs in zip(logged, plain, strict=False):
        if is_freed(ours._record.value) or is_freed(theirs):
            outputs.exempt["of which the memory was freed"] += 1
        elif ours.has_saved_activations:
            outputs.count += 1
            if not agrees(outputs, ours.tensor_contents, theirs):
                outputs.disagree(ours.label, difference(ours.tensor_contents, theirs), ours.source)
    return outputs, modules


def _check_ranges(history: History, check: Check) -> None:
    """Every operation lies inside the module call it ran in, and every call inside the one around it."""
    log = history._log
    for number, row in enumerate(log.rows):
        if row[MODULE] >= 0:
            call = log.modules[row[MODULE]]
            if not call.first <= number < call.end:
                check.disagree(history._index.label(number), f"it did not run inside {call.address}:{call.call}")
    for call in log.modules:
        outer = call.outer
        if outer is not None and not outer.first <= call.first <= call.end <= outer.end:
            check.disagree(f"{call.address}:{call.call}", f"it did not run inside {outer.address}:{outer.call}")


# By running it again ---------------------------------------------------------------------------------------------------


def _replay(history: History) -> tuple[list[Check], Agreement]:
    """What a replay says, and how values of this history are to be compared from now on."""
    try:
        told = run_again(history._log, {}, lambda: _Comparing(history))
    except ReplayFailed as error:
        values = Check("values come again from inputs, parameters and constants alone")
        record = history._log.operations[error.operation] if error.operation is not None else None
        where = _label(history, record) if record is not None else "the replay"
        values.disagree(where, str(error), source_of(record.site, record.module) if record is not None else None)
        return [values], Agreement()
    return [told.values, told.memory, told.edges], Agreement(told.not_deterministic())


class _Comparing:
    """Compares every value of a replay with what was kept, and tries every edge."""

    def __init__(self, history: History) -> None:
        self.values = Check("values come again from inputs, parameters and constants alone")
        self.memory = Check("writes that reach a tensor through other memory are known")
        self.edges = Check("changing an argument changes the result")
        self._history = history
        self._log = history._log
        self._prover = EdgeProver(self.edges)
        self._table = TensorTable()
        self._varied: set[int] = set()  # operations that are not deterministic, or downstream of one that is not
        self._latest: list[Tensor] = []  # among the arguments of the call that is being made
        self._versions: list[tuple[Tensor, int]] = []  # and how often torch had counted a write to them

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensors = tensors_of((args, kwargs))
        self._check_memory(record, tensors)
        self._prover.try_call(record, tensors)
        self._versions = [(tensor, version_of(tensor)) for tensor in tensors]
        self._latest = tensors

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Nothing to do."""

    def after(self, number: int, value: Any) -> Any:
        record = self._log.operations[number]
        self._check_writes(record)
        self._note(record, value)
        kept = record.value
        if is_freed(kept):
            self.values.exempt["of which the memory was freed"] += 1
            return value
        if not isinstance(kept, Tensor):
            self.values.exempt["not kept"] += 1
            return value
        reason = given_because(record) or ("uninitialised memory" if record.function.is_uninitialised else None)
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
        self.values.disagree(self._label(record), difference(kept, value), source_of(record.site, record.module))

    def _varies(self, record: OperationRecord) -> bool:
        """Whether a function is not deterministic: by its name, or because the call gives other bits when made again."""
        is_known = record.function.is_nondeterministic or not self._varied.isdisjoint(record.dependencies)
        if is_known or (not record.details.mutated and varies(record, self._latest)):
            self._varied.add(record.number)
        return record.number in self._varied

    def not_deterministic(self) -> list[str]:
        """The functions of this history that are not deterministic, as found, or as torch says of those on accelerators."""
        found = {record.function.name for record in map(self._log.operations.__getitem__, self._varied)}
        for record in self._log.operations:
            if record.function.is_nondeterministic and record.device.type not in ("cpu", "meta"):
                found.add(record.function.name)
        return sorted(found - {"output"})

    def _label(self, record: OperationRecord) -> str:
        return _label(self._history, record)

    # Memory: the same bookkeeping as when it was logged, on the tensors of the replay

    def _note(self, record: OperationRecord, value: Any) -> None:
        if not isinstance(value, Tensor):
            return
        with torch._C.DisableTorchFunction():
            self._table.point(value, record.number, storage_of(value))
            if record.details.mutated and record.call == record.number:
                self._table.wrote(value, record.number)

    def _check_writes(self, record: OperationRecord) -> None:
        """A call must have written to the arguments the log says, and to no others."""
        written = {storage_of(self._versions[slot][0]) for slot in record.details.mutated if slot < len(self._versions)}
        for slot, (tensor, version) in enumerate(self._versions):
            if version_of(tensor) != version and storage_of(tensor) not in written:
                self.memory.disagree(
                    self._label(record),
                    f"it writes to its argument {slot}, which the log does not say",
                    source_of(record.site, record.module),
                )
        self._versions = []

    def _check_memory(self, record: OperationRecord, tensors: list[Tensor]) -> None:
        if not self._table.last_write:
            return
        known = {*record.dependencies}
        for tensor, parent in zip(tensors, record.parents, strict=True):
            storage = storage_of(tensor)
            if parent < 0 or storage is None or storage not in self._table.last_write:
                continue
            self.memory.count += 1
            missing = [n for n in self._table.writes_since(tensor, parent) if n not in known and n != parent]
            if missing:
                writers = ", ".join(self._label(self._log.operations[n]) for n in missing[:3])
                self.memory.disagree(
                    self._label(record),
                    f"its argument was overwritten by {writers}, which it does not depend on",
                    source_of(record.site, record.module),
                )


def _label(history: History, record: OperationRecord) -> str:
    if history._index.table.shows(record.number):
        return history._index.label(record.number)
    return f"{record.function.name} (operation {record.number}, not connected to any output)"


# Another input ---------------------------------------------------------------------------------------------------------


def _another_input(history: History, model: Callable[..., Any], arguments: Arguments, agrees: Agreement) -> Check:
    check = Check("the graph gives what the model gives for another input")
    check.skipped = _why_not_another(history)
    if check.skipped is not None:
        return check
    try:
        changed, inputs = _changed_inputs(history, arguments)
    except Exception as error:  # whatever a stranger's object may raise when it is to be copied
        check.skipped = f"the arguments cannot be copied: {type(error).__name__}"
        return check
    if not inputs:
        check.skipped = "no input can be changed"
        return check
    try:
        expected = run_plainly(model, changed, history._log)
    except Exception as error:  # whatever a model may raise when it does not like an input
        check.skipped = f"the model does not take the changed input: {type(error).__name__}"
        return check
    try:
        told = run_again(history._log, inputs, lambda: _Outputs(history))
    except ReplayFailed as error:
        return _explained(check, history, model, [arguments, changed], str(error))
    check.count = len(expected)
    for label, ours, theirs in zip(told.labels, told.values, expected, strict=False):
        if not agrees(check, theirs, ours):
            return _explained(check, history, model, [arguments, changed], f"{label}: {difference(theirs, ours)}")
    return check


def _why_not_run(history: History) -> str | None:
    """Why the model is not run again: other processes would have to run it at the same time."""
    count = history._log.collectives
    return f"{count} collective{'s' * (count != 1)} ran in this pass, in which other processes take part" if count > 0 else None


def _why_not_another(history: History) -> str | None:
    if (why := _why_not_run(history)) is not None:
        return why
    if history.escapes:
        return f"values left for Python {len(history.escapes)} times, and may decide what runs"
    opaque = Counter(given_because(record) for record in history._log.operations if record.origin is not Origin.SOURCE)
    opaque.pop(None, None)
    return f"{sum(opaque.values())} values were {', '.join(map(str, opaque))}" if opaque else None


def _changed_inputs(history: History, arguments: Arguments) -> tuple[Arguments, dict[int, Tensor]]:
    """The arguments with every float input moved a little and every other one turned around, and those by number."""
    generator = torch.Generator().manual_seed(7)
    records = [record for record in history._log.operations if record.origin is Origin.INPUT]
    sides = dict(zip(("args", "kwargs"), arguments, strict=True))
    replaced: dict[int, Tensor] = {}
    numbers: dict[int, Tensor] = {}
    for record in records:
        for path in history._log.input_paths.get(record.number, ()):
            tensor = at(sides, path)
            if not isinstance(tensor, Tensor) or not is_plain(tensor):
                continue
            if is_freed(tensor):
                continue
            if id(tensor) not in replaced:
                moved = _moved(tensor, generator)
                if same_bits(moved, tensor.detach()):
                    continue
                replaced[id(tensor)] = moved
            numbers[record.number] = replaced[id(tensor)]
    changed = shares_no_container(arguments, replaced)
    if {id(tensor) for tensor in replaced.values()} - {id(tensor) for tensor in tensors_of(changed, into_objects=True)}:
        raise InvalidArgument("an object among the arguments holds tensors and cannot be copied.")
    return changed, numbers


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    with torch.no_grad():
        value = tensor.detach().clone()
        if value.is_floating_point():
            value += 0.1 * torch.rand(value.shape, generator=generator, device="cpu").to(value)
        elif value.dtype is not torch.bool and not value.is_complex():
            value = value.flip(tuple(range(value.dim()))).clone()
    return value.requires_grad_(tensor.requires_grad)


def _explained(check: Check, history: History, model: Callable[..., Any], both: list[Arguments], what: str) -> Check:
    """A disagreement, unless the model simply runs other operations on the other input. Logs both anew to tell."""
    sources = sum(record.origin is Origin.SOURCE for record in history._log.operations)
    if sources:
        check.skipped = f"{sources} values came from where nobody could watch, and may depend on the input"
        return check
    logs = []
    for arguments in both:
        logs.append(type(history)(history.model_name, history._options))
        run(logs[-1], model, *arguments, None, backs_up_everything=True)
    if first_difference(*logs) is not None or not _same_constants(*logs):
        check.skipped = "on another input the model runs other operations, or with other sizes"
    else:
        check.disagree("another input", what)
    return check


def _same_constants(one: History, other: History) -> bool:
    """Whether the arguments of all calls, apart from tensors, are the same."""
    pairs = zip(one._log.rows, other._log.rows, strict=True)
    try:
        return all(bool(a[TEMPLATE] == b[TEMPLATE]) for a, b in pairs)
    except (RuntimeError, ValueError):  # a stranger's __eq__
        return False


class _Outputs:
    """Collects the outputs of a replay."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.labels: list[str] = []
        self.values: list[Any] = []

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Nothing to do."""

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Nothing to do."""

    def after(self, number: int, value: Any) -> Any:
        if self._history._log.operations[number].origin is Origin.OUTPUT:
            self.labels.append(self._history._index.label(number))
            self.values.append(value.detach().clone() if isinstance(value, Tensor) else value)
        return value
