"""Culprit: the first operation with an error of its own, and what is different about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..capture.restore.randomness import RandomState
from ..containers import fill_call
from ..errors import ReplayFailed, TorcheerError
from ..functions.signatures import positional_names
from ..history import Operation
from ..history.printing.text import plural
from ..records import TENSOR, OperationRecord, Origin
from ..replay.machine import call_again, outcome
from ..torch_internals import DisableTorchFunction
from .alignment import Alignment
from .measures import Difference, difference, is_measurable
from .own_error import Run
from .parameters import ParameterDifference
from .sides import Side

_UNSAID = object()  # stands for an argument that one of two calls does not name


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first operation with an error of its own.

    `a` and `b` are the operation in both histories; one of them is None where only the other runs it, as a scale that was left
    out. `arguments` has what differs, `(name, value in a, value in b)`. `parameters` are those that explain it. `missing` ran
    only in a and `extra` only in b, between operations that agree and the first one that does not, which is `shown_by`.
    """

    a: Operation | None
    b: Operation | None
    shown_by: tuple[Operation, Operation]
    own_error: Difference | None
    arguments: tuple[tuple[str, Any, Any], ...] = ()
    parameters: tuple[ParameterDifference, ...] = ()
    missing: tuple[Operation, ...] = ()
    extra: tuple[Operation, ...] = ()
    inputs: tuple[tuple[Operation, Operation], ...] = ()  # what it is given in a and in b, where these do not correspond
    is_explained_by_parameters: bool = False

    @property
    def label(self) -> str:
        """The label in a; in b where only b runs it."""
        operation = self.a if self.a is not None else self.b
        assert operation is not None
        return operation.label

    @property
    def module(self) -> str | None:
        """The address of the module it ran in: in a, or in b where only b runs it."""
        operation = self.a if self.a is not None else self.b
        assert operation is not None
        return operation.containing_module

    @property
    def name(self) -> str:
        """How it is called in a sentence: its label and module in a, and those in b where they differ."""
        if self.a is None or self.b is None:
            return _named(self.a or self.b)
        if self.a.label == self.b.label and self.a.containing_module == self.b.containing_module:
            return _named(self.a)
        return f"{_named(self.a)} in a, {_named(self.b)} in b,"

    @property
    def argument_words(self) -> list[str]:
        """The arguments that differ, in words."""
        return [f"{name} is {_short(one)} in a and {_short(other)} in b" for name, one, other in self.arguments]

    @property
    def reason(self) -> str:
        """What is different about it, in words."""
        if self.is_explained_by_parameters:
            return f"its parameters differ ({'; '.join(map(str, self.parameters[:3]))})"
        if self.arguments:
            return ", ".join(self.argument_words)
        if self.a is None or self.b is None:
            alone = self.missing if self.b is None else self.extra
            here, there = ("a", "b") if self.b is None else ("b", "a")
            others = (
                f", as {'does' if len(alone) == 2 else 'do'} {plural(len(alone) - 1, 'operation')} after it{_modules(alone)}"
                if len(alone) > 1
                else ""
            )
            return f"runs in {here} and not in {there}{others}"
        if self.missing or self.extra or self.a.layer_type != self.b.layer_type:
            ours, theirs = (*self.missing, self.a), (*self.extra, self.b)
            return f"a runs {_types(tuple(dict.fromkeys(ours)))} where b runs {_types(tuple(dict.fromkeys(theirs)))}"
        if self.inputs:
            one, other = self.inputs[0]
            return f"it is given {_named(one)} in a and {_named(other)} in b"
        first, second = self.a, self.b
        if first.tensor_device != second.tensor_device:
            return f"it gives other values on {second.tensor_device} than on {first.tensor_device}{_tf32(second)}"
        if self.parameters:
            return f"its parameters differ ({'; '.join(map(str, self.parameters[:3]))})"
        if self.own_error is None:
            return "it is the first that is known to differ"
        if second._record.function.is_random:
            return "it draws random numbers, which are not the same in both"
        return "the same call gives another result"

    def __str__(self) -> str:
        return f"{self.name} {self.reason}" if self.a is None or self.b is None else f"{self.name} differs: {self.reason}"


def _named(operation: Operation | None) -> str:
    assert operation is not None
    module = operation.containing_module
    return f"{operation.label} in {module!r}" if module else operation.label


def _modules(operations: tuple[Operation, ...]) -> str:
    """The module that all of several operations ran in, if there is one."""
    if len(operations) < 2:
        return ""
    stacks = [one.containing_modules for one in operations]
    common = [names[0] for names in zip(*stacks, strict=False) if len(set(names)) == 1]
    named = [name for name in common if name.partition(":")[0]]
    return f", all of {named[-1].removesuffix(':1')!r}" if named else ""


def _types(operations: tuple[Operation, ...]) -> str:
    if not operations:
        return "nothing"
    shown = ", ".join(one.layer_type for one in operations[:6])
    return f"{shown} and {len(operations) - 6} more" if len(operations) > 6 else shown


def _tf32(operation: Operation) -> str:
    try:
        is_allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # it was set by the newer `fp32_precision`
        is_allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return " (TF32 is allowed there)" if operation.tensor_device.type == "cuda" and is_allowed else ""


def _short(value: Any) -> str:
    if value is _UNSAID or value is TENSOR:
        return "left out" if value is _UNSAID else "a tensor"
    return f"{value!r:.60}"


# Finding out what is different -------------------------------------------------------------------------------------


class Inquiry:
    """Finds out what is different about operations with errors of their own."""

    def __init__(self, alignment: Alignment, synced: set[int], differing: dict[int, ParameterDifference]) -> None:
        self._alignment = alignment
        self._synced = synced  # the operations of b after which it goes on with values of a
        values = alignment.a.value
        self._harmless = {b for b, a in alignment.of_b.items() if b not in synced and values(a) is not None}
        self._differing = differing  # by parameter or buffer of b, as its log numbers it

    def culprit(self, number: int, run: Run, reference: dict[int, Tensor]) -> Culprit:
        """What is different about an operation of b with an error of its own."""
        a, b = self._alignment.a, self._alignment.b
        partner = self._alignment.of_b[number]
        pair = (a.operation(partner), b.operation(number))
        own, allowed = run.own.get(number), run.tolerances.get(number, 0.0)
        expected = reference.get(partner, a.value(partner))
        parameters = self._parameters(number)
        missing, extra = self._between(partner, number)
        is_output = b.log.operations[number].origin is Origin.OUTPUT
        if parameters and not missing and not extra and self._agrees(partner, number, expected, allowed, with_states_of_a=True):
            return Culprit(*pair, pair, own, self._arguments(partner, number), parameters, is_explained_by_parameters=True)
        if (inside := self._other_arguments(missing, extra)) is not None:
            return Culprit(*inside, pair, own, self._arguments(inside[0]._number, inside[1]._number))
        if is_output or self._agrees(partner, number, expected, allowed, with_states_of_a=False):
            inputs = self._inputs(partner, number)
            ours = missing[0 if not extra else -1] if missing else None
            theirs = extra[0 if not missing else -1] if extra else None
            blamed = (ours, theirs) if missing or extra else pair
            return Culprit(*blamed, pair, own, missing=missing, extra=extra, inputs=inputs)
        arguments = self._arguments(partner, number)
        return Culprit(*pair, pair, own, arguments, parameters, missing, extra)

    def _other_arguments(
        self, missing: tuple[Operation, ...], extra: tuple[Operation, ...]
    ) -> tuple[Operation, Operation] | None:
        """Of operations that both run, but whose values cannot be compared, the first with other arguments."""
        ours = {one._number: one for one in missing}
        for theirs in extra:
            partner = self._alignment.of_b.get(theirs._number, -1)
            if partner in ours and theirs._number not in self._harmless and self._arguments(partner, theirs._number):
                return ours[partner], theirs
        return None

    def unexplained(self, number: int) -> Culprit:
        """What is different about an operation of b that cannot be run again."""
        partner = self._alignment.of_b[number]
        pair = (self._alignment.a.operation(partner), self._alignment.b.operation(number))
        return Culprit(*pair, pair, None, self._arguments(partner, number), self._parameters(number))

    def _parameters(self, number: int) -> tuple[ParameterDifference, ...]:
        """The parameters that an operation of b and what is run as part of it use, and that differ."""
        record = self._alignment.b.log.operations[number]
        found = {
            self._differing[parent].name: self._differing[parent] for parent in record.parents if parent in self._differing
        }
        return tuple(found.values())

    def _between(self, partner: int, number: int) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """What runs on each side between operations that agree and this pair, as it has no match."""
        of_a = {self._alignment.of_b[one] for one in self._synced}
        return _unsynced(self._alignment.a, partner, of_a), _unsynced(self._alignment.b, number, self._synced)

    def _inputs(self, partner: int, number: int) -> tuple[tuple[Operation, Operation], ...]:
        """The operations the pair is given that do not correspond."""
        a, b = self._alignment.a, self._alignment.b
        pairs = zip(a.log.operations[partner].parents, b.log.operations[number].parents, strict=False)
        return tuple(
            (a.operation(one), b.operation(other))
            for one, other in pairs
            if one >= 0 and other >= 0 and self._alignment.of_b.get(other) != one
            if one in a.index.positions and other in b.index.positions
        )

    def _is_same_call(self, partner: int, number: int) -> bool:
        one, other = self._alignment.a.log.operations[partner], self._alignment.b.log.operations[number]
        same_slots = [parent < 0 for parent in one.parents] == [parent < 0 for parent in other.parents]
        return one.function.type == other.function.type and same_slots and other.function.func is not None

    def _agrees(self, partner: int, number: int, expected: Tensor | None, allowed: float, *, with_states_of_a: bool) -> bool:
        """Whether the call of b, given exactly what a's was given, gives what a has."""
        if expected is None or not self._is_same_call(partner, number):
            return False
        b = self._alignment.b
        record = b.log.operations[number]
        random = RandomState.now()
        try:
            tensors = [self._given(partner, number, slot, with_states_of_a) for slot in range(len(record.parents))]
            args, kwargs = fill_call(record.template, record.names, iter(tensors))
            with torch.no_grad():
                value = outcome(record, call_again(record, args, kwargs), args, kwargs)
        except (TorcheerError, ReplayFailed, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
            return False
        finally:
            random.restore()
        apart = difference(expected, value) if is_measurable(value) else None
        return apart is not None and apart.relative <= allowed

    def _given(self, partner: int, number: int, slot: int, with_states_of_a: bool) -> Tensor:
        a, b = self._alignment.a, self._alignment.b
        theirs = b.log.operations[number].parents[slot]
        if theirs < 0 and not with_states_of_a:
            return _copied(b.log.states[-1 - theirs].value)
        value = a.operation(partner)._argument(slot)
        like = b.log.states[-1 - theirs].value if theirs < 0 else b.log.operations[theirs]
        dtype = like.dtype if value.is_floating_point() and like.dtype.is_floating_point else value.dtype
        with DisableTorchFunction():
            return _copied(value).to(like.device, dtype)

    def _arguments(self, partner: int, number: int) -> tuple[tuple[str, Any, Any], ...]:
        ours = _arguments_of(self._alignment.a.log.operations[partner])
        theirs = _arguments_of(self._alignment.b.log.operations[number])
        if self._alignment.a.log.operations[partner].function.type != self._alignment.b.log.operations[number].function.type:
            return ()
        names = dict.fromkeys([*ours, *theirs])
        pairs = [(name, ours.get(name, _UNSAID), theirs.get(name, _UNSAID)) for name in names]
        return tuple((name, one, other) for name, one, other in pairs if not _is_same(one, other))


def _unsynced(side: Side, number: int, synced: set[int]) -> tuple[Operation, ...]:
    """The operations that lead to one without passing another that agrees, in order."""
    found: set[int] = set()
    waiting = list(side.log.operations[number].dependencies)
    while waiting:
        one = waiting.pop()
        if one in synced or one in found:
            continue
        found.add(one)
        waiting += side.log.operations[one].dependencies
    return tuple(side.operation(one) for one in sorted(found) if one in side.index.positions)


def _copied(tensor: Tensor) -> Tensor:
    with DisableTorchFunction(), torch.no_grad():
        return tensor.detach().clone()


def _arguments_of(record: OperationRecord) -> dict[str, Any]:
    """The arguments of a call, by name, or by position where they have none; `TENSOR` stands for those that are tensors."""
    args = record.args
    names = positional_names(record.function, args, [value is TENSOR for value in args])
    if record.function.plain_name in ("getitem", "setitem"):
        names = ["self", "index", "value"][: len(args)]
    found = {name or f"argument {place}": value for place, (name, value) in enumerate(zip(names, args, strict=True), 1)}
    found.update(record.kwargs)
    return found


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or (one is _UNSAID and other is None) or (other is _UNSAID and one is None)
    except Exception:  # a user-defined __eq__ may raise anything
        return True
