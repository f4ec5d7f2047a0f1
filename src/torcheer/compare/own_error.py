"""What each operation of the second history adds to the error by itself.

The log of b is run again, call by call. Wherever a call gives what a has there, within the tolerance, it goes on with the value
of a, so that no later operation inherits an error. What is left after a call is its own error. Operations without a match are
run in between, as part of the next one that has. An operation that differs, while everything that uses it agrees again,
computes something else on the way to the same (a scale applied earlier): only a difference that stays is an error.

Where b has a dtype with fewer digits, the calls of a are made again too, on values rounded to that dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..capture.identity.tensor_table import storages_of
from ..errors import ReplayFailed
from ..records import OperationRecord, Origin
from ..replay.kept_values import is_uninitialised
from ..replay.machine import Machine, WouldWrite
from ..replay.walk import tensors_of
from ..torch_internals import DisableTorchFunction
from .alignment import Alignment
from .measures import Difference, difference, has_same_values, is_measurable, lower, tolerance_of
from .sides import Side

_PER_CALL, _MOST = (
    0.1,
    2.0,
)  # by how much calls without a match before an operation widen its tolerance, and by how much at most


@dataclass(slots=True)
class Run:
    """One run of b on values of a: errors and tolerances by number in b, and which operations were beyond them."""

    own: dict[int, Difference | None] = field(default_factory=dict)
    inherited: dict[int, Difference | None] = field(default_factory=dict)
    dirty: set[int] = field(default_factory=set)
    tolerances: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)  # operations that could not be run again, and why


class _TolerantMachine(Machine):
    """A replay that goes on where an operation cannot be run again, with what was kept of it."""

    failed: dict[int, str]
    rounding: dict[int, torch.dtype]  # by parameter or buffer: the dtype that its values are rounded to

    def _step(self, numbers: range) -> None:
        known = self._observer.known_values(numbers)  # type: ignore[attr-defined]  # both observers here have it
        if known is not None:
            self._live.update(known)
            return
        try:
            super()._step(numbers)
        except (ReplayFailed, KeyError) as error:
            why = str(error) if isinstance(error, ReplayFailed) else "an operation before it could not be run again"
            for number in numbers:
                self.failed[number] = why
                instead = self._observer.instead(number)  # type: ignore[attr-defined]  # both observers here have it
                if instead is not None:
                    self._live[number] = instead

    def _state(self, reference: int) -> Tensor:
        if self.log.states[-1 - reference].is_absent:
            raise ReplayFailed(
                "it uses a parameter that is not in the file; load the history with model=, or save it with params=True"
            )
        value = super()._state(reference)
        dtype = self.rounding.get(reference)
        if dtype is None or dtype == value.dtype or not value.is_floating_point():
            return value
        with torch.no_grad():
            return value.detach().to(dtype).to(value.dtype).requires_grad_(value.requires_grad)


def run_side(side: Side, observer: Any, rounding: dict[int, torch.dtype]) -> dict[int, str]:
    """Run a log again; what could not be run is returned with the reasons."""
    for borrow in (True, False):
        machine = _TolerantMachine(side.log, {}, observer, borrow=borrow)
        machine.failed, machine.rounding = {}, rounding
        observer.begin()
        try:
            machine.run()
        except WouldWrite:
            continue
        return machine.failed
    return {}


class Observer:
    """What the two observers share: knowing whether a result has memory of its own."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self._arguments: Any = ()
        self.begin()

    def begin(self) -> None:
        """A run begins, perhaps anew."""

    def known_values(self, numbers: range) -> dict[int, Tensor] | None:
        """The values of operations that one call made, where they are known without making it again."""
        return None

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._arguments = args, kwargs

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Nothing to do."""

    def _replaced(self, number: int, value: Tensor, target: Tensor) -> Tensor:
        """`value` with other values: in its own memory where nothing else has that, or where the call was to write to it."""
        record = self.side.log.operations[number]
        with DisableTorchFunction(), torch.no_grad():
            target = target.detach().to(value.device, value.dtype)
            if has_same_values(target, value):
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
        partner = self._alignment.of_a.get(number)
        if partner is None or not isinstance(value, Tensor):
            return value.detach() if isinstance(value, Tensor) else value
        value = value.detach()
        dtype = self._alignment.b.log.operations[partner].dtype
        if is_measurable(value):
            self.values[number] = value.clone()
            kept = self.side.value(number)
            if kept is not None:
                return self._replaced(number, value, _rounded(kept, dtype))
        return value


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    if not value.is_floating_point() or not dtype.is_floating_point or lower(value.dtype, dtype) == value.dtype:
        return value
    return value.detach().to(dtype).to(value.dtype)


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
        """Those of a, where the call was given what it was given in an earlier run, and agreed then."""
        earlier, operations = self._earlier, self.side.log.operations
        if earlier is None or operations[numbers[0]].function.is_random:
            return None
        found: dict[int, Tensor] = {}
        for number in numbers:
            partner = self._alignment.of_b.get(number)
            target = self._alignment.a.value(partner) if partner is not None else None
            if target is None or number in earlier.dirty or number not in earlier.tolerances or number in earlier.failed:
                return None
            if not self._apart.isdisjoint(operations[number].dependencies):
                return None
            with DisableTorchFunction():
                record = operations[number]
                found[number] = _rounded(target.detach(), record.dtype).to(record.device, record.dtype)
        for number in numbers:
            for kept, was in zip(_figures(self.run), _figures(earlier), strict=True):
                kept[number] = was[number]
            self._calls[number] = 0
        return found

    def instead(self, number: int) -> Tensor | None:
        self._apart.add(number)
        partner = self._alignment.of_b.get(number)
        kept = self.side.value(number)
        target = self._alignment.a.value(partner) if partner is not None else None
        if target is not None and kept is not None:
            return target.detach().to(kept.device, kept.dtype)
        return kept if kept is not None else target

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = value.detach()
        record = self.side.log.operations[number]
        calls = min(100, 1 + sum(self._calls.get(parent, 0) for parent in dict.fromkeys(record.dependencies)))
        self._calls[number] = calls
        partner = self._alignment.of_b.get(number)
        target = self._alignment.a.value(partner) if partner is not None else None
        if partner is None or target is None:
            if not self._apart.isdisjoint(record.dependencies):
                self._apart.add(number)
            return value
        if is_uninitialised(record):
            self.run.own[number] = None
            return self._replaced(number, value, target)
        expected = self._reference.get(partner, target)
        own = difference(expected, value)
        actual = self.side.value(number)
        self.run.own[number] = own
        self.run.inherited[number] = difference(actual, value) if actual is not None else None
        allowed = self.run.tolerances[number] = self._allowed(record, target, value, calls)
        is_clean = own is not None and own.relative <= allowed
        if not is_clean:
            self.run.dirty.add(number)
        if is_clean or self._forced is None or number in self._forced:
            self._calls[number] = 0
            return self._replaced(number, value, _rounded(target, value.dtype))
        self._apart.add(number)
        return value

    def _allowed(self, record: OperationRecord, target: Tensor, value: Tensor, calls: int) -> float:
        if self._tolerance is not None:
            return self._tolerance
        given = value.dtype
        if len(record.parents) == 1 and record.parents[0] >= 0:  # a cast gives no digits that it was not given
            given = lower(value.dtype, self.side.log.operations[record.parents[0]].dtype)
        return tolerance_of(target.dtype, given) * min(_MOST, 1 + _PER_CALL * (calls - 1))


def _figures(run: Run) -> tuple[dict[int, Any], ...]:
    return run.own, run.inherited, run.tolerances


def references(alignment: Alignment, state_pairs: dict[int, int]) -> dict[int, Tensor]:
    """What a gives on values rounded to b's dtype, by operation of a; empty where b has all the digits that a has."""
    a, b = alignment.a.log, alignment.b.log
    pairs = [(a.operations[one].dtype, b.operations[other].dtype) for other, one in alignment.of_b.items()]
    if all(lower(one, other) == one for one, other in pairs):
        return {}
    dtypes = {one: b.states[-1 - other].tensor.dtype for one, other in state_pairs.items()}
    rounding = {one: dtype for one, dtype in dtypes.items() if lower(a.states[-1 - one].tensor.dtype, dtype) == dtype}
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
    """Run b on values of a. `forced` are operations after which it goes on with a's value also where it differs; None: all.

    With an `earlier` run, in which all were, calls that are given the same again are not made again.
    """
    observer = _Forcing(alignment, reference, forced, tolerance, earlier)
    failed = run_side(alignment.b, observer, {})
    observer.run.failed = failed
    for number in failed:
        observer.run.own[number] = observer.run.inherited[number] = None
        observer.run.dirty.discard(number)
    return observer.run


def errors_that_matter(alignment: Alignment, lazy: Run, forced: Run, known: set[int]) -> list[int]:
    """The operations of b, in order, whose difference is an error of their own.

    `lazy` goes on with values of a only where b agrees, `forced` everywhere. A difference matters where it reaches an output,
    and also where it is soon lost in larger values: what uses the operation agrees with a's value of it, and less so without.
    The others compute something else on the way to the same. Those in `known` are taken as agreeing.
    """
    reaching = _that_reach_an_output(alignment, lazy, known)
    dirty = sorted(number for number in lazy.dirty if number not in known)
    return [number for number in dirty if number in reaching or _is_diluted(alignment, lazy, forced, number)]


def _that_reach_an_output(alignment: Alignment, run: Run, known: set[int]) -> set[int]:
    side = alignment.b
    ends = {number for number in side.outputs if number in alignment.of_b} or set(side.outputs)
    if not ends:  # a recording: whatever nothing uses
        ends = {step.number for step in side.steps if not side.children.get(step.number)}
    found: set[int] = set()
    for number in range(len(side.log.rows) - 1, -1, -1):
        is_measured = number in run.own and number not in run.failed
        if is_measured and (number not in run.dirty or number in known):
            continue
        if number in ends or any(child in found for child in side.children.get(number, ())):
            found.add(number)
    return found


def _is_diluted(alignment: Alignment, lazy: Run, forced: Run, number: int) -> bool:
    """Whether the next operations that agree again do so with a's values, and are further off with b's."""
    users = _next_that_agree(alignment, lazy, number)
    grows = False
    for user in users:
        with_ours, with_theirs = forced.own.get(user), lazy.own.get(user)
        if with_ours is None or with_theirs is None or with_ours.relative > forced.tolerances.get(user, 0.0):
            return False
        dtype = alignment.b.log.operations[user].dtype
        least = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
        grows = grows or with_theirs.relative > 2 * with_ours.relative + least
    return grows


def _next_that_agree(alignment: Alignment, run: Run, number: int) -> list[int]:
    """The next operations with a match that depend on one and agree."""
    side = alignment.b
    found: set[int] = set()
    waiting = list(side.children.get(number, ()))
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if one in run.own and one not in run.dirty:
            found.add(one)
        else:
            waiting += side.children.get(one, ())
    return sorted(found)
