"""The own error of each operation of b: what is left of its error when it is given the values of a.

The log of b is run again, call by call. Where a call gives the value of a within the tolerance, the run goes on with a's value,
so that no later operation inherits an error. Operations without a match are run as part of the next one that has a match. An
operation that differs, while everything that uses it agrees again, computes something else on the way to the same result (a
scale applied earlier): only a difference that stays is an error.

Where b has a dtype with fewer digits, the calls of a are made again too, on values rounded to that dtype.
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
from .measures import Difference, difference, is_measurable, lower, rounded, tolerance_of
from .steps import Side, first_after

_PER_CALL = 0.1  # by how much each call without a match before an operation widens its tolerance
_ROUNDINGS = 8.0  # how much further a call may be off than it is where each value it is given is off by one step
_MOST = 2.0  # by how much all of them together do at most


@dataclass(slots=True)
class Run:
    """One run of b on values of a: errors and tolerances by number in b."""

    own: dict[int, Difference | None] = field(default_factory=dict)
    inherited: dict[int, Difference | None] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)  # operations whose own error is above their tolerance, or unknown
    tolerances: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # operations that could not be run again, and why


class _TolerantMachine(Machine):
    """A replay that goes on with the kept value where an operation cannot be run again."""

    def __init__(self, side: Side, observer: Observer, rounding: dict[int, torch.dtype], *, borrow: bool) -> None:
        super().__init__(side.log, {}, observer, borrow=borrow)
        self._follower = observer
        self._rounding = rounding  # by parameter or buffer: the dtype that its values are rounded to
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
                        self._live[number] = cloned(instead.detach())  # calls after it may write to it

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
    """Follows a replay and may put other values in place of results."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._arguments: Any = ()
        self.begin()

    @abstractmethod
    def begin(self) -> None:
        """A run begins, perhaps for the second time."""

    @abstractmethod
    def instead(self, number: int) -> Tensor | None:
        """The value to go on with after an operation that cannot be run again."""

    @abstractmethod
    def after(self, number: int, value: Any) -> Any:
        """An operation has its value. Returns the value to go on with."""

    def known_values(self, numbers: range) -> dict[int, Tensor] | None:
        """The values that a call gives, where they are known without making the call again."""
        return None

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = args, kwargs

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:  # noqa: B027 - the replay calls it
        """Nothing to do."""

    def _replaced(self, number: int, value: Tensor, target: Tensor) -> Tensor:
        """`target` in place of `value`: written to its memory, unless others share that and the call does not write to it."""
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
            except RuntimeError:  # several elements at one place of memory
                return _like(value, target)
            return value

    def _is_view(self, value: Tensor) -> bool:
        """Whether a result shares memory with what its call was given."""
        given = {storage for tensor in tensors_of(self._arguments) for storage in storages_of(tensor)}
        return not given.isdisjoint(storages_of(value))


def _rounded_otherwise(tensor: Tensor) -> Tensor:
    """A tensor with every other value one step up, the others one step down."""
    if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.numel() == 0:
        return tensor
    steps = torch.full((tensor.numel(),), torch.finfo(tensor.dtype).eps, dtype=torch.float64, device=tensor.device)
    steps[1::2] *= -1
    return (tensor.detach().double() * (1 + steps.view(tensor.shape))).to(tensor.dtype)


def _is_alike(one: Tensor, other: Tensor) -> bool:
    """Whether torch copies the values of one tensor into the other: not from a dense one into a sparse one, for example."""
    return one.shape == other.shape and one.layout is other.layout and one.is_quantized is other.is_quantized


def _like(value: Tensor, target: Tensor) -> Tensor:
    """A new tensor of the values of `target`, laid out in memory as `value` is, where that is possible."""
    fresh = torch.empty_like(value)  # keeps the strides of dense tensors
    return fresh.copy_(target)


class Reference(Observer):
    """What a computes at each operation from values rounded to the dtype of b."""

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


class _Forcing(Observer):
    """Runs b on values of a."""

    def __init__(
        self,
        alignment: Alignment,
        reference: dict[int, Tensor],
        forced: set[int] | None,
        tolerance: float | None,
        earlier: Run | None,
    ) -> None:
        self.run = Run()
        has_writes = any(details.mutated for details in alignment.b.log.details.values())
        self._earlier = earlier if not has_writes else None  # a run with values of a after every operation
        self._apart: set[int] = set()  # operations that did not go on with the values of a
        self._alignment = alignment
        self._reference = reference
        self._forced = forced  # operations after which b goes on with a's value whatever it gave; None: all
        self._tolerance = tolerance
        self._calls: dict[int, int] = {}  # calls since the values of a
        super().__init__(alignment.b)

    def begin(self) -> None:
        self.run, self._calls, self._apart = Run(), {}, set()

    def known_values(self, numbers: range) -> dict[int, Tensor] | None:
        """The values of a, where the call agreed in an earlier run and is given the same again."""
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
        if not is_clean:
            self.run.dirty.add(number)
        if is_clean or self._forced is None or number in self._forced:
            self._calls[number] = 0
            return self._replaced(number, value, rounded(target, value.dtype))
        self._apart.add(number)
        return value

    def _only_rounds(self, number: int, value: Tensor, own: Difference, target: Tensor) -> bool:
        """Whether the same call, in another dtype, is as far off when what it is given is off by rounding alone."""
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
        given = value.dtype
        if len(record.parents) == 1 and record.parents[0] >= 0:  # a cast gives no digits that it was not given
            given = lower(value.dtype, self.side.log.operations[record.parents[0]].dtype)
        return tolerance_of(target.dtype, given) * min(_MOST, 1 + _PER_CALL * (calls - 1))


def references(alignment: Alignment, state_pairs: dict[int, int]) -> dict[int, Tensor]:
    """What a gives on values rounded to b's dtype, by operation of a; empty where the dtypes of b have as many digits."""
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
    earlier: Run | None = None,
) -> Run:
    """Run b on values of a. After the operations in `forced` it goes on with a's value also where b differs; None: after all.

    With an `earlier` run, in which all were forced, calls that are given the same again are not made again.
    """
    observer = _Forcing(alignment, reference, forced, tolerance, earlier)
    failed = run_side(alignment.b, observer, {})
    observer.run.failed = failed
    for number in failed:
        observer.run.own[number] = observer.run.inherited[number] = None
        observer.run.dirty.discard(number)
    return observer.run


def errors_that_matter(alignment: Alignment, lazy: Run, forced: Run, known: set[int], tolerance: float | None) -> list[int]:
    """The operations of b, in order, whose difference is an error of their own.

    `lazy` goes on with values of a only where b agrees, `forced` everywhere. A difference matters where it reaches an output,
    and also where it is lost in larger values: what uses the operation agrees with a's value of it, and less so with b's.
    The others compute something else on the way to the same result. Operations in `known` are taken as agreeing. What a
    difference makes of an operation that cannot be run again is seen in the logged values, unless these also inherit from a
    known error.
    """
    reaching = _that_reach_an_end(alignment, lazy, known, _failed_that_differ(alignment, lazy, known, tolerance))
    dirty = sorted(number for number in lazy.dirty if number not in known)
    return [number for number in dirty if number in reaching or _is_diluted(alignment, lazy, forced, number)]


def _failed_that_differ(alignment: Alignment, run: Run, known: set[int], tolerance: float | None) -> set[int]:
    """The operations that could not be run again and that were logged with other values, not because of what is known."""
    found: set[int] = set()
    after = set(known)  # and what comes after it
    for number in sorted(run.failed) if not known else range(len(alignment.b.log.rows)):
        if not after.isdisjoint(alignment.b.log.operations[number].dependencies):
            after.add(number)
        elif number in run.failed and number in alignment.of_b:
            error = alignment.error(number)
            if error is not None and error.relative > (alignment.tolerance(number) if tolerance is None else tolerance):
                found.add(number)
    return found


def _that_reach_an_end(alignment: Alignment, run: Run, known: set[int], ends: set[int]) -> set[int]:
    """The operations whose difference reaches an output, or one of the other `ends`."""
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


def _is_diluted(alignment: Alignment, lazy: Run, forced: Run, number: int) -> bool:
    """Whether the next operations that agree again do so with a's values, and are further off with b's."""

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
