"""Finds the cause of own errors: differing arguments or parameters, or operations that only one history runs before."""

from __future__ import annotations

import math
from collections.abc import Container
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.functions.facts import Origin
from .._torch.functions.signatures import positional_names
from .._torch.internals import DisableTorchFunction
from .._torch.randomness import random_as_found
from .._torch.sentinels import TENSOR
from ..errors import TorcheerError
from ..history import Operation
from ..log.records import NAMES, TEMPLATE, OperationRecord
from ..log.templates import fill_call
from ..replay.machine import call_again, outcome
from .alignment import Alignment
from .culprit import UNSAID, Culprit, LoneCalls, short
from .measures import Difference, is_close, tolerance_of
from .own_error import RerunOfB
from .parameters import ParameterDifference
from .steps import Side

_ALIKE = 4  # compare an operation with at most this many of equal value: more are constants or passed on unchanged
# types of arguments that may differ because the models have another dtype or device: they do not count as differences
_IMPLIED = (torch.dtype, torch.device, torch.memory_format)


class CulpritSearch:
    """Finds what causes the own error of an operation: its arguments, its parameters, or the operations before it."""

    def __init__(self, alignment: Alignment, synced: set[int], differing: dict[int, ParameterDifference]) -> None:
        self._alignment = alignment
        self._synced = synced  # the operations of `b` after which `b` continues with values of `a`
        self._synced_in_a = {alignment.of_b[one] for one in synced}
        # operations of `b` that compute different values on the way to the same result
        self._harmless = {b for b in alignment.of_b if b not in synced and alignment.value_of_a(b) is not None}
        self._differing = differing  # number of a parameter or buffer in the log of `b` -> its difference

    def culprit(self, number: int, run: RerunOfB, reference: dict[int, Tensor]) -> Culprit:
        """Find the cause of the own error of an operation of `b`."""
        a, b = self._alignment.a, self._alignment.b
        partner, pair = self._alignment.of_b[number], self._alignment.pair(number)
        own, allowed = run.own.get(number), run.tolerances.get(number, 0.0)
        expected = reference.get(partner, a.value(partner))
        parameters = self._parameters(number)
        missing, extra = self._between(partner, number)
        is_output = b.log.operations[number].origin is Origin.OUTPUT
        if parameters and not missing and not extra and self._agrees(partner, number, expected, allowed, with_states_of_a=True):
            return Culprit(*pair, pair, own, self._arguments(partner, number), parameters, is_explained_by_parameters=True)
        if (inside := self._differing_inside(missing, extra, pair, own)) is not None:
            return inside
        missing, extra = self._of_one_side_only(missing, extra)
        missing, extra = (() if _only_pass_on(side, some) else some for side, some in ((a, missing), (b, extra)))
        if (between := self._culprit_behind_reshapes(missing, extra, pair, own)) is not None:
            return between
        if (apart := _other_shape(missing, extra)) is not None:
            return Culprit(*apart, pair, own, self._arguments(apart[0]._number, apart[1]._number), missing=missing, extra=extra)
        if is_output or self._agrees(partner, number, expected, allowed, with_states_of_a=False):
            inputs = self._inputs(partner, number)
            if not missing and not extra:
                return Culprit(*pair, pair, own, inputs=inputs)
            return self._of_one_side(missing, extra, pair, own, inputs)
        arguments = self._arguments(partner, number)
        return Culprit(*pair, pair, own, arguments, parameters, missing, extra)

    def _culprit_behind_reshapes(
        self,
        missing: tuple[Operation, ...],
        extra: tuple[Operation, ...],
        pair: tuple[Operation, Operation],
        own: Difference | None,
    ) -> Culprit | None:
        """Find the culprit after operations that compute the same elements in other shapes: `(2, 5, 16)` and `(10, 16)`."""
        a, b = self._alignment.a, self._alignment.b
        twins = self._twins(missing, extra)
        if not twins:
            return None
        ours = unsynced(a, pair[0]._number, self._synced_in_a | {one._number for one, _ in twins})
        theirs = unsynced(b, pair[1]._number, self._synced | {other._number for _, other in twins})
        ours, theirs = _changing(a, ours), _changing(b, theirs)
        run = [[(one.layer_type, math.prod(one.tensor_shape)) for one in side] for side in (ours, theirs)]
        for kind, i, j, k, n in SequenceMatcher(None, run[0], run[1], autojunk=False).get_opcodes():
            if kind != "equal":
                return self._of_one_side(ours[i:j], theirs[k:n], pair, own)
            for one, other in zip(ours[i:j], theirs[k:n], strict=True):
                if not self._has_same_elements(one, other):
                    arguments, parameters = self._arguments(one._number, other._number), self._parameters(other._number)
                    return Culprit(one, other, pair, own, arguments, parameters)
        return None

    def _twins(self, missing: tuple[Operation, ...], extra: tuple[Operation, ...]) -> list[tuple[Operation, Operation]]:
        """Find pairs of operations with the same elements. Compares each operation of `b` with at most `_ALIKE` of `a`."""
        looks: dict[object, list[Operation]] = {}
        for one in missing:
            looks.setdefault(self._alignment.a.value_signature(one._number), []).append(one)
        pairs = []
        for other in extra:
            signature = self._alignment.b.value_signature(other._number)
            alike = looks.get(signature, []) if signature is not None else []
            pairs += [(one, other) for one in alike[:_ALIKE] if self._has_same_elements(one, other)]
        return pairs

    def _has_same_elements(self, one: Operation, other: Operation) -> bool:
        """True if two operations have the same elements in the same order, in any shape."""
        ours, theirs = self._alignment.a.value(one._number), self._alignment.b.value(other._number)
        if ours is None or theirs is None or ours.numel() != theirs.numel():
            return False
        with DisableTorchFunction(), torch.no_grad():
            return is_close(ours.reshape(-1), theirs.reshape(-1), tolerance_of(ours.dtype, theirs.dtype))

    def _of_one_side(
        self,
        missing: tuple[Operation, ...],
        extra: tuple[Operation, ...],
        shown_by: tuple[Operation, Operation] | None,
        own: Difference | None,
        inputs: tuple[tuple[Operation, Operation], ...] = (),
    ) -> Culprit:
        """Return the culprit if only one history runs operations here (`missing`, `extra`), or if both run different ones."""
        # If only one history runs operations here, look for the module calls around them that the other history does not make.
        lone = self._lone_calls.around(missing or extra, of_a=bool(missing)) if bool(missing) != bool(extra) else None
        if lone is not None:
            first = lone.operations[0]
            ours, theirs = (first, None) if missing else (None, first)
            return Culprit(ours, theirs, shown_by, own, missing=missing, extra=extra, inputs=inputs, lone=lone)
        which = -1 if missing and extra else 0  # name the last operations if both histories run different ones; else the first
        sides = (self._alignment.a, missing), (self._alignment.b, extra)
        ours, theirs = ((_changing(side, some) or some)[which] if some else None for side, some in sides)
        return Culprit(ours, theirs, shown_by, own, missing=missing, extra=extra, inputs=inputs)

    def lone_output(self) -> Culprit | None:
        """Find the culprit before the first output that only one history has; None if both have all outputs."""
        sides = (self._alignment.a, self._alignment.of_a), (self._alignment.b, self._alignment.of_b)
        has_none = all(not side.outputs for side, _ in sides)
        missing, extra = (
            _behind_lone_output(side, side.ends if has_none else side.outputs, matched) for side, matched in sides
        )
        if not missing and not extra:
            return None
        if (apart := _other_shape(missing, extra)) is not None:
            arguments = self._arguments(apart[0]._number, apart[1]._number)
            return Culprit(*apart, None, None, arguments, missing=missing, extra=extra)
        return self._of_one_side(missing, extra, None, None)

    @cached_property
    def _lone_calls(self) -> LoneCalls:
        return LoneCalls(self._alignment)

    def _differing_inside(
        self,
        missing: tuple[Operation, ...],
        extra: tuple[Operation, ...],
        pair: tuple[Operation, Operation],
        own: Difference | None,
    ) -> Culprit | None:
        """Of matches whose values cannot be compared, find the first whose arguments or parameters differ."""
        ours = {one._number: one for one in missing}
        for theirs in extra:
            number = theirs._number
            partner = self._alignment.of_b.get(number, -1)
            if partner not in ours or number in self._harmless:
                continue
            arguments, parameters = self._arguments(partner, number), self._parameters(number)
            if arguments or parameters:
                return Culprit(ours[partner], theirs, pair, own, arguments, parameters)
        return None

    def _of_one_side_only(
        self, missing: tuple[Operation, ...], extra: tuple[Operation, ...]
    ) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """Remove operations that have a match, but whose values cannot be compared: both histories run them."""
        of_b, theirs = self._alignment.of_b, {one._number for one in extra}
        both = {of_b[one]: one for one in theirs if one in of_b and one not in self._harmless}
        ours = {one._number for one in missing} & both.keys()
        return (
            tuple(one for one in missing if one._number not in ours),
            tuple(one for one in extra if of_b.get(one._number) not in ours or one._number in self._harmless),
        )

    def unexplained(self, number: int) -> Culprit:
        """Find what differs at an operation of `b` that cannot be run again: the operation itself, or its inputs."""
        partner, pair = self._alignment.of_b[number], self._alignment.pair(number)
        missing, extra = self._between(partner, number)
        if (inside := self._differing_inside(missing, extra, pair, None)) is not None:
            return inside
        missing, extra = self._of_one_side_only(missing, extra)
        if (missing or extra) and not self._is_given_the_same(partner, number):
            return self._of_one_side(missing, extra, pair, None, self._inputs(partner, number))
        return Culprit(*pair, pair, None, self._arguments(partner, number), self._parameters(number))

    def _is_given_the_same(self, partner: int, number: int) -> bool:
        """True if both calls were logged with equal tensor arguments, within the tolerance."""
        a, b = self._alignment.a, self._alignment.b
        for one, other in zip(a.log.operations[partner].parents, b.log.operations[number].parents, strict=False):
            if one < 0 or other < 0:
                continue
            ours, theirs = a.value(one), b.value(other)
            if ours is None or theirs is None or not is_close(ours, theirs, tolerance_of(ours.dtype, theirs.dtype)):
                return False
        return True

    def is_counterpart(self, number: int) -> bool:
        """True if a match is the same call in both histories: same function, matched operations as inputs, equal arguments."""
        partner = self._alignment.of_b[number]
        differing = [value for _, *values in self._arguments(partner, number) for value in values]
        is_alike = self._alignment.is_wired_alike(number)
        return is_alike and all(isinstance(value, _IMPLIED) or value in (UNSAID, None) for value in differing)

    def arguments_without_effect(self) -> list[str]:
        """A line for each matched operation whose arguments differ although its values agree."""
        a, b = self._alignment.a, self._alignment.b
        found = []
        for number, partner in sorted(self._alignment.of_b.items()):
            one, other = a.log.rows[partner], b.log.rows[number]
            if _is_same(one[TEMPLATE], other[TEMPLATE]) and one[NAMES] == other[NAMES]:
                continue
            if b.log.operations[number].function.is_view:
                continue  # `view(2, -1)` and `view(2, 3)` are equal
            for name, ours, theirs in self._arguments(partner, number):
                if isinstance(ours, _IMPLIED) or isinstance(theirs, _IMPLIED):
                    continue
                found.append(f"{a.index.label(partner)}: {name} is {short(ours)} in a and {short(theirs)} in b")
        return found

    def _parameters(self, number: int) -> tuple[ParameterDifference, ...]:
        """The differing parameters that an operation of `b` uses."""
        record = self._alignment.b.log.operations[number]
        found = [self._differing[parent] for parent in record.parents if parent in self._differing]
        return tuple({one.name: one for one in found}.values())

    def _between(self, partner: int, number: int) -> tuple[tuple[Operation, ...], tuple[Operation, ...]]:
        """For each history, return the operations that lie between the last ones that agree and this pair."""
        return unsynced(self._alignment.a, partner, self._synced_in_a), unsynced(self._alignment.b, number, self._synced)

    def _inputs(self, partner: int, number: int) -> tuple[tuple[Operation, Operation], ...]:
        """Return the parents of the two operations in pairs, if the parents of a pair are not each other's match."""
        a, b = self._alignment.a, self._alignment.b
        ours = [_origin(a, one, self._alignment.of_a) for one in a.log.operations[partner].parents]
        theirs = [_origin(b, one, self._alignment.of_b) for one in b.log.operations[number].parents]
        pairs = zip(ours, theirs, strict=False)
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
        """True if the call of `b`, given the inputs of `a`, returns the value of `a`."""
        if expected is None or not self._is_same_call(partner, number):
            return False
        b = self._alignment.b
        record = b.log.operations[number]
        try:
            with random_as_found():
                tensors = [self._given(partner, number, slot, with_states_of_a) for slot in range(len(record.parents))]
                args, kwargs = fill_call(record.template, record.names, iter(tensors))
                with torch.no_grad():
                    value = outcome(record, call_again(record, args, kwargs), args, kwargs)
        except (TorcheerError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError):
            return False
        return is_close(expected, value, allowed)

    def _given(self, partner: int, number: int, slot: int, with_states_of_a: bool) -> Tensor:
        a, b = self._alignment.a, self._alignment.b
        theirs = b.log.operations[number].parents[slot]
        if theirs < 0 and not with_states_of_a:
            return _copied(b.index.state(theirs).value)
        value = a.operation(partner)._argument(slot)
        like = b.index.state(theirs).value if theirs < 0 else b.log.operations[theirs]
        dtype = like.dtype if value.is_floating_point() and like.dtype.is_floating_point else value.dtype
        with DisableTorchFunction():
            return _copied(value).to(like.device, dtype)

    def _arguments(self, partner: int, number: int) -> tuple[tuple[str, Any, Any], ...]:
        """Return the arguments of two calls that differ, each as (name, value in `a`, value in `b`)."""
        one, other = self._alignment.a.log.operations[partner], self._alignment.b.log.operations[number]
        if one.function.type != other.function.type:
            return ()
        ours, theirs = _named_alike(_arguments_of(one), _arguments_of(other))
        names = dict.fromkeys([*ours, *theirs])
        pairs = [(name, ours.get(name, UNSAID), theirs.get(name, UNSAID)) for name in names]
        return tuple((name, one, other) for name, one, other in pairs if not _is_same(one, other))


def _behind_lone_output(side: Side, outputs: list[int], matched: dict[int, int]) -> tuple[Operation, ...]:
    """Return the unmatched operations that the first unmatched output depends on, and the output if it is an operation."""
    for output in outputs:
        if output not in matched:
            behind = unsynced(side, output, matched)
            behind = behind if output in side.outputs else (*behind, side.operation(output))
            if any(one._number in side.varying for one in behind):
                return behind
    return ()


def _passes_on(side: Side, number: int) -> bool:
    """True if an operation returns the elements of its input in the same order: `contiguous`, `view`, inactive dropout."""
    parents = side.log.operations[number].parents
    if len(parents) != 1 or parents[0] < 0:
        return False
    given, value = side.value(parents[0]), side.value(number)
    if given is None or value is None or given.numel() != value.numel():
        return False
    with DisableTorchFunction(), torch.no_grad():
        return is_close(given.reshape(-1), value.reshape(-1), 0.0)


def _origin(side: Side, number: int, matched: Container[int]) -> int:
    """Go back from an operation through those that pass a tensor on in the same shape. Returns the first other operation."""
    operations = side.log.operations
    while number >= 0 and number not in matched and _passes_on(side, number):
        if operations[operations[number].parents[0]].shape != operations[number].shape:
            break
        number = operations[number].parents[0]
    return number


def _only_pass_on(side: Side, operations: tuple[Operation, ...]) -> bool:
    """True if all these operations pass a tensor on in the same shape."""
    return all(_origin(side, one._number, ()) != one._number for one in operations)


def _changing(side: Side, operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """The operations, without operations that only pass a tensor on."""
    return tuple(one for one in operations if not _passes_on(side, one._number))


def _other_shape(missing: tuple[Operation, ...], extra: tuple[Operation, ...]) -> tuple[Operation, Operation] | None:
    """If the unmatched operations of both histories call the same functions, find the first pair of different shapes."""
    for one, other in zip(missing, extra, strict=False):
        if one.layer_type != other.layer_type:
            return None
        if one.tensor_shape != other.tensor_shape:
            return one, other
    return None


def unsynced(side: Side, number: int, synced: Container[int]) -> tuple[Operation, ...]:
    """Return the operations that `number` depends on, in order, back to the operations in `synced`, which agree."""
    return tuple(side.operation(one) for one in side.ancestors(number, synced) if one in side.index.positions)


def _copied(tensor: Tensor) -> Tensor:
    with DisableTorchFunction(), torch.no_grad():
        return tensor.detach().clone()


def _arguments_of(record: OperationRecord) -> dict[str, Any]:
    """The arguments of a call, by name, or by position if unnamed; `TENSOR` stands for a tensor."""
    args = record.args
    names = positional_names(record.function, args, [value is TENSOR for value in args])
    if record.function.plain_name in ("getitem", "setitem"):
        names = ["self", "index", "value"][: len(args)]
    found = {name or f"argument {place}": value for place, (name, value) in enumerate(zip(names, args, strict=True), 1)}
    found.update(record.kwargs)
    return found


def _named_alike(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of two calls with matching names: `self` of a method is `input` of a function.

    Arguments without effect on the result are left out: torch's private ones (`_stacklevel`), and `inplace=False`.
    """
    found = []
    for mine, yours in ((ours, theirs), (theirs, ours)):
        is_method = "self" in mine and "input" in yours and "input" not in mine and "self" not in yours
        named = {"input" if is_method and name == "self" else name: value for name, value in mine.items()}
        found.append({name: value for name, value in named.items() if name[:1] != "_" and (name, value) != ("inplace", False)})
    return found[0], found[1]


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, tuple):
        one = tuple(one)
    elif isinstance(one, tuple) and isinstance(other, list):
        other = tuple(other)
    try:
        return bool(one == other) or (one is UNSAID and other is None) or (other is UNSAID and one is None)
    except Exception as error:  # a user-defined __eq__ may raise anything
        pass_interrupts_on(error)
        return True
