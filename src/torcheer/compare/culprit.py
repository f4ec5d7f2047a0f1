"""`Culprit`: the first operation with an own error, and what differs there. `LoneCalls`: calls that only one history makes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .._text import few, plural
from .._torch.internals import DisableTorchFunction
from .._torch.sentinels import TENSOR
from ..history import Operation
from ..log.records import ModuleCall
from .alignment import Alignment
from .measures import Difference, absolute_values, is_measurable
from .parameters import ParameterDifference
from .steps import Side


@dataclass(frozen=True, slots=True)
class LoneModules:
    """Neighbouring module calls that only one history runs, with all their operations."""

    names: tuple[str, ...]  # addresses; a call after the first has its number: `blocks.3:2`
    addresses: tuple[str, ...]
    operations: tuple[Operation, ...]
    # the first operation of the same call in the other history, if the call runs at another place there
    elsewhere: Operation | None = None


class LoneCalls:
    """The outermost module calls in which no operation has a match. Constants that a call makes do not count."""

    def __init__(self, alignment: Alignment) -> None:
        self._sides = alignment.a, alignment.b
        self._calls = _lone(alignment.a, alignment.of_a), _lone(alignment.b, alignment.of_b)

    def around(self, operations: tuple[Operation, ...], *, of_a: bool) -> LoneModules | None:
        """Return the unmatched module calls around operations of one history; None if the first operation is in none."""
        place = 0 if of_a else 1
        side, (calls, members) = self._sides[place], self._calls[place]
        varying = [one._number for one in operations if one._number in side.varying]
        if not varying or varying[0] not in calls:
            return None
        found = list({calls[number].number: calls[number] for number in varying if number in calls}.values())
        inside = tuple(side.operation(number) for call in found for number in members[call.number])
        return LoneModules(
            tuple(_name(call) for call in found),
            tuple(call.address for call in found),
            inside,
            self._elsewhere(found[0], place),
        )

    def _elsewhere(self, call: ModuleCall, place: int) -> Operation | None:
        """Return the first operation of the same module call in the other history, if no operation of that call has a match."""
        side, other = self._sides[place], self._sides[1 - place]
        calls, members = self._calls[1 - place]
        for twin in {one.number: one for one in calls.values()}.values():
            if side.rename(call.address) == other.rename(twin.address) and call.call == twin.call:
                return other.operation(members[twin.number][0])
        return None


def _name(call: ModuleCall) -> str:
    return call.address if call.call == 1 else f"{call.address}:{call.call}"


def _lone(side: Side, matched: dict[int, int]) -> tuple[dict[int, ModuleCall], dict[int, list[int]]]:
    """Map operations to the outermost unmatched module call around them, and the numbers of these calls to their operations."""
    shared = {
        call
        for step in side.steps
        if step.number in matched and step.number in side.varying
        for call in side.stack(step.number)
    }
    calls: dict[int, ModuleCall] = {}
    members: dict[int, list[int]] = {}
    for step in side.steps:
        around = side.log.operations[step.number].module
        if around is None or around.number in shared:
            continue
        call = next((one for one in around.stack() if one.address and one.number not in shared), None)
        if call is not None:
            calls[step.number] = call
            members.setdefault(call.number, []).append(step.number)
    return calls, members


# `Culprit`: the first operation with an own error, and what is different about it.

UNSAID = object()  # stands for an argument that a call leaves out and the call in the other history has


@dataclass(frozen=True, slots=True)
class Culprit:
    """The first operation with an own error.

    `a` and `b` are the operation in each history; None in the history that does not run it (a missing scale).
    `arguments` are the differing arguments, `(name, value in a, value in b)`; `parameters` are its differing parameters.
    `missing` are operations that only `a` runs, and `extra` those that only `b` runs, after the last operations that agree and
    before `shown_by`, the first operation that differs.
    """

    a: Operation | None
    b: Operation | None
    shown_by: tuple[Operation, Operation] | None  # None if only one history has the output that depends on the culprit
    own_error: Difference | None
    arguments: tuple[tuple[str, Any, Any], ...] = ()
    parameters: tuple[ParameterDifference, ...] = ()
    missing: tuple[Operation, ...] = ()
    extra: tuple[Operation, ...] = ()
    inputs: tuple[tuple[Operation, Operation], ...] = ()  # pairs (parent in `a`, parent in `b`) that are no match
    is_explained_by_parameters: bool = False
    lone: LoneModules | None = None  # module calls that only one history runs, with all operations

    @property
    def modules(self) -> tuple[str, ...]:
        """The module calls that only one history runs: `("blocks.3",)` if that block was deleted; empty if there are none."""
        return self.lone.names if self.lone is not None else ()

    @property
    def _operation(self) -> Operation:
        """The operation in `a`, or in `b` if only `b` runs it."""
        operation = self.a if self.a is not None else self.b
        assert operation is not None
        return operation

    @property
    def label(self) -> str:
        """The label in `a`, or in `b` if only `b` runs it."""
        return self._operation.label

    @property
    def module(self) -> str | None:
        """The address of the culprit's module; if only one history runs whole modules, the address of the first of these."""
        return self.lone.addresses[0] if self.lone is not None else self._operation.containing_module

    @property
    def name(self) -> str:
        """The culprit's name in a sentence: label and module in `a`, and in `b` if they differ."""
        if self._is_block:
            return _listed([repr(name) for name in self.modules])
        if self.a is None or self.b is None:
            return _named(self._operation)
        if self.a.label == self.b.label and self.a.containing_module == self.b.containing_module:
            return _named(self.a)
        return f"{_named(self.a)} in a, {_named(self.b)} in b,"

    @property
    def _is_block(self) -> bool:
        return self.lone is not None and len(self.lone.operations) > 1

    @property
    def argument_words(self) -> list[str]:
        """Texts for the differing arguments."""
        return [f"{name} is {short(one)} in a and {short(other)} in b" for name, one, other in self.arguments]

    @property
    def reason(self) -> str:
        """A text that says what differs at the culprit."""
        if self.is_explained_by_parameters:
            return f"its parameters differ ({few(self.parameters, 3, '; ')})"
        if self.a is not None and self.b is not None and self.a.layer_type == self.b.layer_type:
            ours, theirs = self.a.tensor_shape, self.b.tensor_shape
            if ours != theirs:
                return ", ".join([f"its shape is {ours} in a and {theirs} in b", *self.argument_words])
        if self.arguments:
            return ", ".join(self.argument_words)
        if self._is_block and self.lone is not None:
            return self._block_words(self.lone)
        if self.a is None or self.b is None:
            alone = self.missing if self.b is None else self.extra
            here, there = ("a", "b") if self.b is None else ("b", "a")
            verb, rest = "does" if len(alone) == 2 else "do", plural(len(alone) - 1, "operation")
            others = f", as {verb} {rest} after it{_modules(alone)}" if len(alone) > 1 else ""
            return f"runs in {here} and not in {there}{others}"
        if self.missing or self.extra or self.a.layer_type != self.b.layer_type:
            run = [_types(tuple(dict.fromkeys(some))) for some in ((*self.missing, self.a), (*self.extra, self.b))]
            return f"a runs {run[0]} where b runs {run[1]}"
        if self.inputs:
            one, other = self.inputs[0]
            return f"it is given {_named(one)} in a and {_named(other)} in b"
        if self.a.tensor_device != self.b.tensor_device:
            return f"it gives other values on {self.b.tensor_device} than on {self.a.tensor_device}{_tf32(self.b)}"
        if self.parameters:
            return f"its parameters differ ({few(self.parameters, 3, '; ')})"
        if self.own_error is None:
            return "it is the first that is known to differ"
        if (lost := self._lost()) is not None:
            return lost
        if self.b._record.function.is_random:
            return "it draws random numbers, which are not the same in both"
        dtypes = self.a.tensor_dtype, self.b.tensor_dtype
        if dtypes[0] != dtypes[1]:
            return f"it gives {dtypes[0]} in a and {dtypes[1]} in b, and they are further apart than the tolerance"
        return "the same call gives another result"

    def _lost(self) -> str | None:
        """A sentence that says where values are finite in one history but not in the other; None if there are none."""
        if self.a is None or self.b is None or self.own_error is None or self.own_error.relative != float("inf"):
            return None
        values = self.a.tensor_contents, self.b.tensor_contents
        if not all(map(is_measurable, values)) or values[0].shape != values[1].shape:
            return None
        for kept, other, names in ((*values, "ab"), (*values[::-1], "ba")):
            with DisableTorchFunction(), torch.no_grad():
                lost = torch.isfinite(kept) & ~torch.isfinite(other).to(kept.device)
                count, largest = int(lost.sum()), float(absolute_values(kept[lost]).max()) if bool(lost.any()) else 0.0
            if count:
                overflows = f", more than {other.dtype} holds" if largest > torch.finfo(other.dtype).max else ""
                return (
                    f"{count} of {plural(kept.numel(), 'value')} {'is' if count == 1 else 'are'} not finite in {names[1]}; "
                    f"the largest of these in {names[0]} is {largest:.2g}{overflows}"
                )
        return None

    def _block_words(self, lone: LoneModules) -> str:
        here, there = ("a", "b") if self.b is None else ("b", "a")
        verb = "runs" if len(lone.names) == 1 else "run"
        if lone.elsewhere is not None and len(lone.names) == 1:
            ours, theirs = (self.label, lone.elsewhere.label) if self.b is None else (lone.elsewhere.label, self.label)
            return f"runs at another place in b (its first operation is {ours} in a and {theirs} in b)"
        count = plural(len(lone.operations), "operation")
        return f"{verb} in {here} and not in {there} ({count}, the first is {self.label})"

    def __str__(self) -> str:
        return f"{self.name} {self.reason}" if self.a is None or self.b is None else f"{self.name} differs: {self.reason}"


def _named(operation: Operation) -> str:
    module = operation.containing_module
    return f"{operation.label} in {module!r}" if module else operation.label


def _listed(words: list[str]) -> str:
    shown = words[:4] + ([f"{len(words) - 4} more"] if len(words) > 4 else [])
    return " and ".join(([", ".join(shown[:-1])] if len(shown) > 1 else []) + shown[-1:])


def _modules(operations: tuple[Operation, ...]) -> str:
    """A phrase for the module in which all these operations ran; empty if there is none."""
    stacks = [one.containing_modules for one in operations]
    common = [names[0] for names in zip(*stacks, strict=False) if len(set(names)) == 1]
    named = [name for name in common if name.partition(":")[0]]
    return f", all of {named[-1].removesuffix(':1')!r}" if named else ""


def _types(operations: tuple[Operation, ...]) -> str:
    return few((one.layer_type for one in operations), 6)


def _tf32(operation: Operation) -> str:
    try:
        is_allowed = torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32
    except RuntimeError:  # the setting was made by the newer `fp32_precision`
        is_allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return " (TF32 is allowed there)" if operation.tensor_device.type == "cuda" and is_allowed else ""


def short(value: Any) -> str:
    """The text for an argument's value: `left out`, `a tensor`, or its repr, cut to 60 characters."""
    return "left out" if value is UNSAID else "a tensor" if value is TENSOR else f"{value!r:.60}"
