"""The own error of each operation of `b`: the error that remains when it runs on the values of `a`.

The log of `b` is run again, call by call. If a call returns the value of `a` within the tolerance, the run continues with `a`'s
value, so that later operations inherit no error. Operations without a match are run as part of the next matched operation.
If an operation differs but all its users agree again, it computes other values on the way to the same result (a scale
applied earlier): only a difference that stays is an error.

If `b` has a less precise dtype, the calls of `a` are repeated too, on values rounded to that dtype.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._torch.containers import replace_tensors
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.memory import cloned
from .._torch.tensor_table import storages_of
from ..errors import ReplayFailed, TorcheerError
from ..log.records import OperationRecord
from ..replay.comparison import same_bits
from ..replay.machine import Machine, WouldWrite, call_again, is_uninitialised, outcome
from ..replay.walk import tensors_of
from .alignment import Alignment
from .measures import Difference, difference, has_few_bits, is_measurable, lower, rounded, steps_apart, tolerance_of
from .steps import Side, first_after

_PER_CALL = 0.1  # each unmatched call before an operation widens the operation's tolerance by this fraction
_ROUNDINGS = 8.0  # a call may err by this many times the error that one rounding step in each of its arguments causes
_MOST = 2.0  # all unmatched calls together widen the tolerance by at most this factor


@dataclass(slots=True)
class RerunOfB:
    """One run of `b` on values of `a`: errors and tolerances by number in `b`."""

    own: dict[int, Difference | None] = field(default_factory=dict)
    inherited: dict[int, Difference | None] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)  # operations whose own error is unknown or above their tolerance
    tolerances: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # operations that could not be run again, with the reason


class _TolerantMachine(Machine):
    """A replay that continues with the kept value if an operation cannot be run again."""

    def __init__(self, side: Side, observer: Observer, rounding: dict[int, torch.dtype], *, borrow: bool) -> None:
        super().__init__(side.log, {}, observer, borrow=borrow)
        self._follower = observer
        self._rounding = rounding  # parameter or buffer -> the dtype to which its values are rounded
        self.failed: dict[int, str] = {}

    def _step(self, numbers: range) -> None:
        known = self._follower.known_values(numbers)
        if known is not None:
            self._live.update(known)
            return
        try:
            super()._step(numbers)
        except (ReplayFailed, KeyError) as error:
            why = str(error) if isinstance(error, ReplayFailed) else "an operation before it could not be run again"
            for number in numbers:
                self.failed[number] = why
                instead = self._follower.instead(number)
                if instead is not None:
                    with DisableTorchFunction(), torch.no_grad():
                        self._live[number] = cloned(instead.detach())  # a copy, because later calls may write to the value

    def _state(self, reference: int) -> Tensor:
        if self.log.states[-1 - reference].is_absent:
            raise ReplayFailed(
                "it uses a parameter that is not in the file; load the history with model=, or save it with params=True"
            )
        value = super()._state(reference)
        dtype = self._rounding.get(reference)
        if dtype is None or dtype == value.dtype or not value.is_floating_point():
            return value
        with torch.no_grad():
            return rounded(value.detach(), dtype).requires_grad_(value.requires_grad)


def run_side(side: Side, observer: Observer, rounding: dict[int, torch.dtype]) -> dict[int, str]:
    """Run a log again. Returns the operations that could not be run, with the reasons."""
    for borrow in (True, False):
        machine = _TolerantMachine(side, observer, rounding, borrow=borrow)
        observer.begin()
        try:
            machine.run()
        except WouldWrite:
            continue
        return machine.failed
    return {}


class Observer(ABC):
    """Gets every value of a replay, and may replace it."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._arguments: Any = ()
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """Called when a run begins. A run may begin a second time, with copied parameters."""

    @abstractmethod
    def instead(self, number: int) -> Tensor | None:
        """The value to continue with after an operation that cannot be run again; None if there is no such value."""

    @abstractmethod
    def after(self, number: int, value: Any) -> Any:
        """Called with the value of an operation. Returns the value to continue with."""

    def known_values(self, numbers: range) -> dict[int, Tensor] | None:
        """The values of a call, if they are known without running it."""
        return None

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = args, kwargs

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:  # noqa: B027 - the replay calls it
        """The replay calls this for every observer; this observer does nothing."""

    def _replaced(self, number: int, value: Tensor, target: Tensor) -> Tensor:
        """Write `target` into the memory of `value`, and return it. If other tensors share the memory and the call does not
        write to it, return a new tensor.
        """
        record = self.side.log.operations[number]
        with DisableTorchFunction(), torch.no_grad():
            if not _is_alike(target, value):
                return value
            target = target.detach()
            target = (target.real if target.is_complex() and not value.is_complex() else target).to(value.device, value.dtype)
            if same_bits(target, value):
                return value
            is_written = record.overwritten is not None
            if not is_written and (record.origin is not Origin.OPERATION or self._is_view(value)):
                return _like(value, target)
            try:
                value.copy_(target)
            except RuntimeError:  # torch refuses the write, because several elements share a place in memory
                return _like(value, target)
            return value

    def _is_view(self, value: Tensor) -> bool:
        """True if a result shares memory with the call's arguments."""
        given = {storage for tensor in tensors_of(self._arguments) for storage in storages_of(tensor)}
        return not given.isdisjoint(storages_of(value))


def _rounded_otherwise(tensor: Tensor) -> Tensor:
    """Move every other value of a tensor one rounding step up, and the remaining values one step down."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor
    steps = torch.full((tensor.numel(),), torch.finfo(tensor.dtype).eps, dtype=torch.float64, device=tensor.device)
    steps[1::2] *= -1
    return (tensor.detach().double() * (1 + steps.view(tensor.shape))).to(tensor.dtype)


def _is_alike(one: Tensor, other: Tensor) -> bool:
    """True if torch copies the values of one tensor into the other; False for a dense tensor and a sparse one, for example."""
    return one.shape == other.shape and one.layout is other.layout and one.is_quantized is other.is_quantized


def _like(value: Tensor, target: Tensor) -> Tensor:
    """A new tensor with the values of `target`, with the memory layout of `value` if possible."""
    fresh = torch.empty_like(value)  # keeps the strides of dense tensors
    return fresh.copy_(target)


class Reference(Observer):
    """The values of each operation of `a`, computed from values rounded to the dtype of `b`."""

    def __init__(self, alignment: Alignment) -> None:
        self.values: dict[int, Tensor] = {}
        self._alignment = alignment
        super().__init__(alignment.a)

    def begin(self) -> None:
        self.values = {}

    def instead(self, number: int) -> Tensor | None:
        return self.side.value(number)

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        partner, value = self._alignment.of_a.get(number), value.detach()
        if partner is None or not is_measurable(value):
            return value
        self.values[number] = value.clone()
        kept = self.side.value(number)
        dtype = self._alignment.b.log.operations[partner].dtype
        return value if kept is None else self._replaced(number, value, rounded(kept, dtype))


class _RunOnA(Observer):
    """Runs `b` on values of `a`."""

    def __init__(
        self,
        alignment: Alignment,
        reference: dict[int, Tensor],
        forced: set[int] | None,
        tolerance: float | None,
        earlier: RerunOfB | None,
    ) -> None:
        self.run = RerunOfB()
        has_writes = any(details.mutated for details in alignment.b.log.details.values())
        self._earlier = earlier if not has_writes else None  # a run with values of a after every operation
        self._apart: set[int] = set()  # operations after which the run did not continue with values of `a`
        self._alignment = alignment
        self._reference = reference
        self._forced = forced  # operations after which `b` continues with `a`'s value in any case; None: all
        self._tolerance = tolerance
        self._calls: dict[int, int] = {}  # by operation: how many calls ran since the run continued with a value of `a`
        super().__init__(alignment.b)

    def begin(self) -> None:
        self.run, self._calls, self._apart = RerunOfB(), {}, set()

    def known_values(self, numbers: range) -> dict[int, Tensor] | None:
        """The values of `a`, if the call agreed in an earlier run and has the same inputs again."""
        earlier, operations = self._earlier, self.side.log.operations
        if earlier is None or operations[numbers[0]].function.is_random:
            return None
        found: dict[int, Tensor] = {}
        for number in numbers:
            record, target = operations[number], self._alignment.value_of_a(number)
            if target is None or number in earlier.dirty or number not in earlier.tolerances or number in earlier.failed:
                return None
            if not self._apart.isdisjoint(record.dependencies):
                return None
            with DisableTorchFunction():
                found[number] = rounded(target.detach(), record.dtype).to(record.device, record.dtype)
        for number in numbers:
            self.run.own[number], self.run.inherited[number] = earlier.own[number], earlier.inherited[number]
            self.run.tolerances[number] = earlier.tolerances[number]
            self._calls[number] = 0
        return found

    def instead(self, number: int) -> Tensor | None:
        self._apart.add(number)
        kept, target = self.side.value(number), self._alignment.value_of_a(number)
        if target is not None and kept is not None:
            return rounded(target.detach(), kept.dtype).to(kept.device, kept.dtype)
        return kept if kept is not None else target

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach()
        record = self.side.log.operations[number]
        calls = min(100, 1 + sum(self._calls.get(parent, 0) for parent in dict.fromkeys(record.dependencies)))
        self._calls[number] = calls
        target = self._alignment.value_of_a(number)
        if target is None:
            if not self._apart.isdisjoint(record.dependencies):
                self._apart.add(number)
            return value
        if is_uninitialised(record):
            self.run.own[number] = None
            return self._replaced(number, value, target)
        expected = self._reference.get(self._alignment.of_b[number], target)
        ignored = self._alignment.ignored.get(number)
        own = self.run.own[number] = difference(expected, value, ignored=ignored, like=target)
        if own is None and ignored is not None:
            return self._replaced(number, value, target)
        self.run.inherited[number] = difference(value, self.side.value(number))
        allowed = self.run.tolerances[number] = self._allowed(record, target, value, calls)
        if own is not None and own.relative > allowed and calls == 1 and self._only_rounds(number, value, own, target):
            allowed = self.run.tolerances[number] = own.relative
        is_clean = own is not None and own.relative <= allowed
        if is_clean and self._tolerance is None and has_few_bits(dtype := self._least_precise(record, target, value)):
            is_clean = ignored is not None or steps_apart(expected, value, dtype) <= calls
        if not is_clean:
            self.run.dirty.add(number)
        if is_clean or self._forced is None or number in self._forced:
            self._calls[number] = 0
            return self._replaced(number, value, rounded(target, value.dtype))
        self._apart.add(number)
        return value

    def _only_rounds(self, number: int, value: Tensor, own: Difference, target: Tensor) -> bool:
        """True if both histories make the same call in other dtypes, and rounding its arguments causes as large an error."""
        record, partner = self.side.log.operations[number], self._alignment.a.log.operations[self._alignment.of_b[number]]
        is_same = record.function.type == partner.function.type and record.dtype != partner.dtype
        if not is_same or not math.isfinite(own.relative) or repr(record.template) != repr(partner.template):
            return False
        if record.function.is_random or record.details.mutated or record.origin is not Origin.OPERATION:
            return False
        try:
            args, kwargs = replace_tensors(self._arguments, _rounded_otherwise)
            again = outcome(record, call_again(record, args, kwargs), args, kwargs)
        except (TorcheerError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
            return False
        grown = difference(value, again.detach(), like=target) if isinstance(again, Tensor) else None
        return grown is not None and own.relative <= _ROUNDINGS * grown.relative

    def _allowed(self, record: OperationRecord, target: Tensor, value: Tensor, calls: int) -> float:
        if self._tolerance is not None:
            return self._tolerance
        dtype = self._least_precise(record, target, value)
        return tolerance_of(dtype, dtype) * min(_MOST, 1 + _PER_CALL * (calls - 1))

    def _least_precise(self, record: OperationRecord, target: Tensor, value: Tensor) -> torch.dtype:
        given = value.dtype
        if len(record.parents) == 1 and record.parents[0] >= 0:  # a cast adds no precision
            given = lower(value.dtype, self.side.log.operations[record.parents[0]].dtype)
        return lower(target.dtype, given) if tolerance_of(given, given) else target.dtype


def references(alignment: Alignment, state_pairs: dict[int, int]) -> dict[int, Tensor]:
    """Maps each operation of `a` to its value computed from values rounded to `b`'s dtype. Empty if `b` is as precise."""
    a, b = alignment.a.log, alignment.b.log
    pairs = [(a.operations[one].dtype, b.operations[other].dtype) for other, one in alignment.of_b.items()]
    if all(lower(one, other) == one for one, other in pairs):
        return {}
    state_a, state_b = alignment.a.index.state, alignment.b.index.state
    dtypes = {one: (state_a(one).tensor.dtype, state_b(other).tensor.dtype) for one, other in state_pairs.items()}
    rounding = {one: theirs for one, (ours, theirs) in dtypes.items() if lower(ours, theirs) == theirs}
    observer = Reference(alignment)
    failed = run_side(alignment.a, observer, rounding)
    return {number: value for number, value in observer.values.items() if number not in failed}


def run_on_values_of_a(
    alignment: Alignment,
    reference: dict[int, Tensor],
    *,
    forced: set[int] | None,
    tolerance: float | None,
    earlier: RerunOfB | None = None,
) -> RerunOfB:
    """Run `b` on values of `a`. After operations in `forced` (None: all), `b` continues with `a`'s value even if it differs.

    With an `earlier` run, in which all were forced, calls with the same inputs are not repeated.
    """
    observer = _RunOnA(alignment, reference, forced, tolerance, earlier)
    failed = run_side(alignment.b, observer, {})
    observer.run.failed = failed
    for number in failed:
        observer.run.own[number] = observer.run.inherited[number] = None
        observer.run.dirty.discard(number)
    return observer.run


def errors_that_matter(
    alignment: Alignment, lazy: RerunOfB, forced: RerunOfB, known: set[int], tolerance: float | None
) -> list[int]:
    """The operations of `b`, in order, whose difference is an own error.

    `lazy` continues with values of `a` only if `b` agrees, `forced` always. A difference matters if it reaches an output, or if
    it is lost among larger values: the user of the operation has a small error if it gets `a`'s value, and a larger one with
    `b`'s. The other operations compute other values on the way to the same result. Operations in `known` count as agreeing.
    For an operation that cannot be run again, the logged values show whether the difference reaches it, unless they inherit a
    known error.
    """
    reaching = _that_reach_an_end(alignment, lazy, known, _failed_that_differ(alignment, lazy, known, tolerance))
    dirty = sorted(number for number in lazy.dirty if number not in known)
    return [number for number in dirty if number in reaching or _is_diluted(alignment, lazy, forced, number)]


def _failed_that_differ(alignment: Alignment, run: RerunOfB, known: set[int], tolerance: float | None) -> set[int]:
    """Find operations that could not be run again, whose logged values differ, and that depend on no known error."""
    found: set[int] = set()
    after = set(known)  # the known errors, and all operations that depend on them
    for number in sorted(run.failed) if not known else range(len(alignment.b.log.rows)):
        if not after.isdisjoint(alignment.b.log.operations[number].dependencies):
            after.add(number)
        elif number in run.failed and number in alignment.of_b:
            error = alignment.error(number)
            if error is not None and error.relative > (alignment.tolerance(number) if tolerance is None else tolerance):
                found.add(number)
    return found


def _that_reach_an_end(alignment: Alignment, run: RerunOfB, known: set[int], ends: set[int]) -> set[int]:
    """The operations whose difference reaches an output, or another of the `ends`."""
    side = alignment.b
    ends = ends | ({number for number in side.ends if number in alignment.of_b} or set(side.ends))
    found: set[int] = set()
    for number in range(len(side.log.rows) - 1, -1, -1):
        is_measured = number in run.own and number not in run.failed
        if is_measured and (number not in run.dirty or number in known):
            continue
        if number in ends or any(child in found for child in side.children(number)):
            found.add(number)
    return found


def _is_diluted(alignment: Alignment, lazy: RerunOfB, forced: RerunOfB, number: int) -> bool:
    """True if the next operations that agree have larger errors with `b`'s value of the operation than with `a`'s value."""

    children = alignment.b.children
    grows = False
    for user in first_after(children(number), children, lambda one: one in lazy.own and one not in lazy.dirty):
        with_ours, with_theirs = forced.own.get(user), lazy.own.get(user)
        if with_ours is None or with_theirs is None or with_ours.relative > forced.tolerances.get(user, 0.0):
            return False
        dtype = alignment.b.log.operations[user].dtype
        least = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        grows = grows or with_theirs.relative > 2 * with_ours.relative + least
    return grows
