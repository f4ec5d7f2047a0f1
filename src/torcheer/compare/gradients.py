"""Compares the gradients of two histories, from the loss backwards, and finds the wrong backward.

`BackwardReplay` recomputes the gradients of a log from any values and any incoming gradients.

The log is run again, and each call is repeated on copies that autograd follows. From the gradient of the call's result,
autograd computes the gradients of its arguments. The sum over all users of an operation is the operation's gradient.
Autograd continues through operations without a match.

    y = fc(x); z = y.tanh() * y      the gradient of y is the sum of the gradients from tanh and mul

The backward of a custom `autograd.Function` cannot be repeated: the calls inside its forward ran without autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.randomness import random_as_found
from ..history import Operation
from ..log.records import OperationRecord
from ..log.templates import fill_call
from ..replay.machine import call_again, outcome
from ..replay.walk import tensors_of
from .alignment import Alignment
from .measures import INFINITE_DIFFERENCE, NO_DIFFERENCE, Difference, absolute_values, difference, is_measurable, tolerance_of
from .own_error import Observer, run_side
from .steps import Side, first_after

# (number of an operation or, negative, of a parameter; the copy of its tensor that autograd follows)
Source = tuple[int, Tensor]


class BackwardReplay(Observer):
    """One run of a log that collects gradients.

    Args:
        value: returns the value to continue with after an operation; None keeps the operation's own value.
        gradient: returns the incoming gradient of an operation; None if it gets no gradient.
        ends: collects gradients at these operations; autograd continues through all others.
        only: an operation or (negative) parameter. Its gradients from each user are kept separately, in `parts`.
    """

    def __init__(
        self,
        side: Side,
        value: Callable[[int], Tensor | None],
        gradient: Callable[[int], Tensor | None],
        ends: set[int],
        only: int | None = None,
    ) -> None:
        self._value, self._gradient, self._ends, self._only = value, gradient, ends, only
        self.sums: dict[int, Tensor] = {}
        self.unknown: set[int] = set()  # operations whose gradients are unknown, because one of their users cannot be run
        self.parts: dict[int, Tensor] = {}
        super().__init__(side)
        for number in run_side(side, self, {}):
            self.unknown.update(side.log.operations[number].parents)

    def begin(self) -> None:
        self.sums, self.unknown, self.parts = {}, set(), {}
        # maps each operation that autograd continues through to its result and the sources of its arguments
        self._inside: dict[int, tuple[Tensor, list[Source]]] = {}
        self._made: tuple[int, Any, tuple[Any, ...], dict[str, Any], list[Source]] | None = None

    def instead(self, number: int) -> Tensor | None:
        value = self._value(number)
        return value.detach() if value is not None else self.side.value(number)

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().before(record, args, kwargs)
        self._made = None
        if record.gradfunc is None:
            return  # autograd did not follow the call
        try:
            if record.details.also:
                raise RuntimeError("an argument was written to through another view")
            tensors, sources = self._followed(record, tensors_of((args, kwargs)))
            again_args, again_kwargs = fill_call(record.template, record.names, iter(tensors))
            with torch.enable_grad(), random_as_found() if record.function.is_random else contextlib.nullcontext():
                result = call_again(record, again_args, again_kwargs)
            self._made = record.number, result, again_args, again_kwargs, sources
        except Exception as error:  # a torch function may raise anything
            pass_interrupts_on(error)
            self.unknown.update(record.parents)

    def _followed(self, record: OperationRecord, given: list[Tensor]) -> tuple[list[Tensor], list[Source]]:
        """Copy the tensor arguments of a call. Autograd follows each copy back to the operation that made the argument."""
        tensors, sources = [], []
        for slot, (parent, tensor) in enumerate(zip(record.parents, given, strict=True)):
            if parent in self._inside:
                copy, behind = self._inside[parent]
                sources += behind
            elif tensor.is_floating_point() or tensor.is_complex():
                copy = tensor.detach().clone().requires_grad_()
                sources.append((parent, copy))
            else:
                copy = tensor.detach()
            tensors.append(copy.clone() if slot in record.details.mutated else copy)
        return tensors, sources

    def after(self, number: int, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        record = self.side.log.operations[number]
        call = record.details.call if record.details.call >= 0 else number
        if self._made is not None and self._made[0] == call:
            _, result, args, kwargs, sources = self._made
            try:
                self._collect(number, outcome(record, result, args, kwargs), sources)
            except Exception as error:  # autograd may raise anything
                pass_interrupts_on(error)
                self.unknown.update(parent for parent, _ in sources)
        target = self._value(number)
        return self._replaced(number, value.detach(), target) if target is not None else value.detach()

    def _collect(self, number: int, made: Tensor, sources: list[Source]) -> None:
        if not made.requires_grad:
            return
        if number not in self._ends:
            self._inside[number] = made, sources
            return
        incoming = self._gradient(number)
        if incoming is None or not sources:
            return
        incoming = incoming.detach().to(made.device, made.dtype)
        gradients = torch.autograd.grad(
            made, [copy for _, copy in sources], incoming, retain_graph=True, allow_unused=True, materialize_grads=False
        )
        for (parent, _), gradient in zip(sources, gradients, strict=True):
            if gradient is not None:
                gradient = gradient.detach()
                self.sums[parent] = self.sums[parent] + gradient if parent in self.sums else gradient
                if parent == self._only:
                    self.parts[number] = self.parts[number] + gradient if number in self.parts else gradient


# Compares gradients from the loss backwards: own and inherited errors, and the wrong backward.
#
# The gradient of an operation is the sum of what the backward of each of its users returns. So the log of `b` is run on the
# values of `a`, and each call gets the gradients of `a` (`BackwardReplay`). A remaining difference from `a`'s gradient is own
# error; the rest is inherited. This holds only if torch ran its own backward of the call. A replay of `b` shows whether it did:
# from `b`'s values and gradients, the same replay must return `b`'s gradients. Otherwise (a custom `autograd.Function`, a hook,
# checkpointing) the own error is known only if the incoming gradients of `a` and `b` agree: then it is the whole error.

# a gradient may differ by this many times the tolerance of values: it is a sum over uses, batch and time, in any order
_LOOSER = 16


@dataclass(frozen=True, slots=True)
class GradientCulprit:
    """An operation that gets the same gradient in both histories, but whose backward returns another gradient in `b`.

    If only one history runs the operation, it is None for the other. The gradient that differs is that of the operation with
    the label `at` in `a`, or of the parameter with the name `at`.
    """

    a: Operation | None
    b: Operation | None
    at: str
    own_error: Difference | None
    function: str | None  # the autograd function in `b`, if it is not torch's own: `WrongBackward`
    is_none_in: str = ""  # "a" or "b": the history that has no gradient; empty if both have one
    why: str = ""

    @property
    def label(self) -> str:
        """The label of the operation in `b`, or in `a` if only `a` runs it."""
        operation = self.b if self.b is not None else self.a
        assert operation is not None
        return operation.label

    def __str__(self) -> str:
        where = "" if self.a is not None and self.b is not None else f" in {'b' if self.a is None else 'a'}"
        called = f" ({self.function} in b)" if self.function else where
        if self.is_none_in:
            other = "a" if self.is_none_in == "b" else "b"
            none = f"no gradient in {self.is_none_in}, which has one in {other}{self.why}"
            return f"{self.label}{called} gives {self.at} {none}"
        far = f"by {self.own_error.relative:.1e} of its scale" if self.own_error is not None else "by how much is unknown"
        return f"the backward of {self.label}{called} gives {self.at} another gradient ({far}), though its own is the same"


@dataclass(frozen=True, slots=True)
class GradientErrors:
    """The own and inherited error of the gradient of one operation or parameter; None if unknown."""

    error: Difference
    own: Difference | None
    inherited: Difference | None
    tolerance: float

    @property
    def is_close(self) -> bool:
        return self.error.relative <= self.tolerance


@dataclass(frozen=True, slots=True)
class GradientBeyond:
    """The gradient of a parameter or input whose error is above its tolerance."""

    name: str
    error: Difference
    tolerance: float


def gradient_of(side: Side, number: int) -> Tensor | None:
    """The gradient of an operation or (negative) parameter in the last backward pass that reached it."""
    backward = side.log.backward
    if backward is None:
        return None
    found = [one.gradient(number) for one in backward.passes]
    return next((gradient for gradient in reversed(found) if gradient is not None), None)


class Gradients:
    """The gradients of two histories; nothing is compared unless both ran backward."""

    def __init__(self, alignment: Alignment, synced: set[int], states: dict[int, int], tolerance: float | None) -> None:
        self._alignment = alignment
        self._synced = synced  # the operations of `b` after which `b` continues with values of `a`
        self._ends: set[int] = set()  # the `_synced` operations whose gradients are collected
        self._ends_in_a: set[int] = set()
        # operation or (negative) parameter of `b` -> its match in `a`
        self._of_b = {**{theirs: ours for ours, theirs in states.items()}, **alignment.of_b}
        self._tolerance = tolerance
        self.errors: dict[int, GradientErrors] = {}  # operation or (negative) parameter of `b` -> errors of its gradient
        if alignment.a.history.backward_passes and alignment.b.history.backward_passes:
            self._compare()

    def _compare(self) -> None:
        a, b = self._alignment.a, self._alignment.b
        # if only `b` has a gradient, `a` does not follow the operation, and autograd continues through it
        for number in self._synced:
            if self._of_a(number) is not None or gradient_of(b, number) is None:
                self._ends.add(number)
                self._ends_in_a.add(self._of_b[number])
        self._whole: dict[int, Difference] = {}
        for number, partner in self._of_b.items():
            ours, theirs = gradient_of(a, partner), gradient_of(b, number)
            is_one_sided = (ours is None) != (theirs is None) and self._both_follow(partner, number)
            apart = INFINITE_DIFFERENCE if is_one_sided else difference(ours, theirs)
            if apart is not None:
                self._whole[number] = apart
        for number, error in self._whole.items():
            own, inherited = self._own(number)
            self.errors[number] = GradientErrors(error, own, inherited, self._allowed(number))

    def _both_follow(self, partner: int, number: int) -> bool:
        """True if autograd follows an operation in both histories; always True for a parameter."""
        if number < 0:
            return True
        a, b = self._alignment.a.log, self._alignment.b.log
        return a.operations[partner].gradfunc is not None and b.operations[number].gradfunc is not None

    def _allowed(self, number: int) -> float:
        if self._tolerance is not None:
            return self._tolerance
        return _LOOSER * self._rounding(number)

    # Own errors -------------------------------------------------------------------------------------------------------

    def _of_a(self, number: int) -> Tensor | None:
        """The gradient in `a` of the match of an operation or parameter of `b`."""
        partner = self._of_b.get(number)
        return gradient_of(self._alignment.a, partner) if partner is not None else None

    def _on_values_of_a(self, only: int | None = None) -> BackwardReplay:
        def value(number: int) -> Tensor | None:
            return self._alignment.value_of_a(number) if number in self._synced else None

        return BackwardReplay(self._alignment.b, value, self._of_a, self._ends, only)

    @cached_property
    def _with_a(self) -> BackwardReplay:
        return self._on_values_of_a()

    @cached_property
    def _by_itself(self) -> BackwardReplay:
        b = self._alignment.b
        return BackwardReplay(b, b.value, partial(gradient_of, b), self._ends)

    def _own(self, number: int) -> tuple[Difference | None, Difference | None]:
        """The own and the inherited error of the gradient of an operation or parameter of `b`."""
        if number >= 0 and not self._users(number):
            return NO_DIFFERENCE, self._whole[number]  # the backward pass began here
        ours, theirs = self._of_a(number), gradient_of(self._alignment.b, number)
        if self._is_as_torch_does(number):
            given = self._with_a.sums.get(number)
            return _apart(ours, given), _apart(theirs, given)
        if all(self._is_settled(user) for user in self._incoming(number)):
            return self._whole[number], NO_DIFFERENCE
        return None, None

    def _is_as_torch_does(self, number: int) -> bool:
        """True if `b`'s gradient equals the result of torch's own backward."""
        if number in self._by_itself.unknown or number in self._with_a.unknown:
            return False
        apart = _apart(gradient_of(self._alignment.b, number), self._by_itself.sums.get(number))
        return apart is not None and apart.relative <= self._allowed(number)

    def _users(self, number: int) -> list[int]:
        b = self._alignment.b
        if number >= 0:
            return [child for child in b.children(number) if child not in b.outputs]
        return self._users_of_states.get(number, [])

    @cached_property
    def _users_of_states(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for step in self._alignment.b.steps:
            for state in step.states:
                found.setdefault(state, []).append(step.number)
        return found

    def _incoming(self, number: int) -> list[int]:
        """Return the next operations towards the loss whose gradients are compared."""
        return first_after(self._users(number), self._users, self._whole.__contains__)

    def _is_settled(self, number: int) -> bool:
        """True if gradient and value of an operation agree in both histories."""
        apart = self._alignment.error(number)
        is_same = apart is None or apart.relative <= self._alignment.tolerance(number)
        return is_same and self._whole[number].relative <= self._allowed(number)

    def beyond(self) -> GradientBeyond | None:
        """The gradient of a parameter or input that is furthest above its tolerance.

        A gradient that should be zero is only rounding error. So its error counts relative to the largest of all gradients.
        """
        ends = {number: one for number, one in self.errors.items() if number < 0 or number in self._alignment.b.inputs}
        most = max((self._largest(number) for number in ends), default=0.0)
        found = [
            GradientBeyond(self._name(number), one.error, one.tolerance)
            for number, one in ends.items()
            if not one.is_close and one.error.largest > self._rounding(number) * most
        ]
        return max(found, key=lambda one: one.error.relative, default=None)

    def _largest(self, number: int) -> float:
        return _largest(self._of_a(number))

    def _is_rounding(self, number: int, errors: GradientErrors) -> bool:
        """True if the own error of a parameter's gradient is small compared with the terms of its sum: they cancel.

        y = batch_norm(x @ weight + bias)    the gradient of `bias` is 0, rounded
        """
        most = 0.0
        for user in self._users(number):
            parents = self._alignment.b.log.operations[user].parents
            given = max((_largest(self._alignment.value_of_a(parent)) for parent in parents if parent >= 0), default=1.0)
            most = max(most, self._largest(user) * min(1.0, given))
        return errors.own is not None and errors.own.largest <= errors.tolerance * most

    def _rounding(self, number: int) -> float:
        known = [
            gradient.dtype for gradient in (self._of_a(number), gradient_of(self._alignment.b, number)) if gradient is not None
        ]
        return tolerance_of(known[0], known[-1])

    # The culprit ------------------------------------------------------------------------------------------------------

    def culprit(self) -> GradientCulprit | None:
        """Find the first wrong backward, starting from the loss; None if gradients agree."""
        wrong = [
            (self._rank(number), number)
            for number, one in self.errors.items()
            if (one.own is not None and one.own.relative > one.tolerance and not (one.is_close and number < 0))
            if not (number < 0 and self._is_rounding(number, one))
        ]
        if wrong:
            return self._named(max(wrong)[1])
        unexplained = [number for number, one in self.errors.items() if one.own is None and not one.is_close]
        if unexplained and not any(one.own is not None and not one.is_close for one in self.errors.values()):
            return self._named(max(unexplained, key=self._rank))
        return None

    def _rank(self, number: int) -> int:
        """Return the largest number of a user, by which operations and parameters are ordered."""
        return max(self._users(number), default=number)

    def _named(self, number: int) -> GradientCulprit:
        one, b = self.errors[number], self._alignment.b
        user = self._at_fault(number)
        partner = self._alignment.of_b.get(user) if user >= 0 else -1 - user
        ours, theirs = self._of_a(number), gradient_of(b, number)
        is_none_in = "b" if theirs is None else "a" if ours is None else ""
        why = ""
        if number < 0 and is_none_in:
            why = f": requires_grad is {'False' if is_none_in == 'b' else 'True'} for it in b"
        return GradientCulprit(
            self._alignment.a.operation(partner) if partner is not None else None,
            b.operation(user) if user >= 0 else None,
            self._name(number),
            one.own,
            self._function(user) if user >= 0 else None,
            is_none_in,
            why,
        )

    def _name(self, number: int) -> str:
        a, partner = self._alignment.a, self._of_b[number]
        return a.state_name(partner) if number < 0 else a.index.label(partner)

    def _at_fault(self, number: int) -> int:
        """Find the operation that passes on a wrong gradient: its number in `b`; if it is in `a`, -1 minus its number there."""
        a, b = self._alignment.a, self._alignment.b
        users = sorted(self._users(number), reverse=True)
        cut = [user for user in users if self._cuts(user)]
        if cut:
            return cut[0]
        partner = self._of_b[number]
        cut_in_a = [user for user in sorted(a.children(partner), reverse=True) if self._cuts_in_a(user)]
        if cut_in_a:
            return -1 - cut_in_a[0]
        in_a = BackwardReplay(a, a.value, partial(gradient_of, a), self._ends_in_a, only=partner)
        if in_a.parts or self._with_a.sums.get(number) is not None:
            of_b = self._on_values_of_a(only=number).parts
            for end in sorted({*of_b, *(self._alignment.of_a.get(one, -1) for one in in_a.parts)} - {-1}, reverse=True):
                apart = _apart(in_a.parts.get(self._alignment.of_b[end]), of_b.get(end))
                if apart is None or apart.relative > self._allowed(number):
                    return self._first_between(number, end)
        opaque = [user for user in users if b.log.operations[user].gradfunc is None]
        return self._with_gradient(opaque[0]) if opaque else users[0]

    def _cuts(self, user: int) -> bool:
        """True if autograd follows an operation in `a` but not in `b`, or if an operation of `b` alone stops the gradient."""
        partner = self._alignment.of_b.get(user)
        is_followed_in_a = partner is None or self._alignment.a.log.operations[partner].gradfunc is not None
        return is_followed_in_a and _has_no_gradient(self._alignment.b, user)

    def _cuts_in_a(self, user: int) -> bool:
        """True if an operation of `a` stops the gradient although `b` has a gradient there."""
        partner = self._alignment.of_a.get(user)
        has_gradient_in_b = partner is None or gradient_of(self._alignment.b, partner) is not None
        return has_gradient_in_b and _has_no_gradient(self._alignment.a, user)

    def _with_gradient(self, number: int) -> int:
        """Replace an operation inside the forward of a custom function by the next user that has a gradient in `b`."""
        seen = number
        while gradient_of(self._alignment.b, seen) is None and self._users(seen):
            seen = self._users(seen)[0]
        return seen if gradient_of(self._alignment.b, seen) is not None else number

    def _first_between(self, number: int, end: int) -> int:
        """Find the first unmatched operation between `number` and its user `end`, numbered as in `_at_fault`; else `end`."""
        a, b = self._alignment.a, self._alignment.b
        for one in b.ancestors(end, self._ends):
            if number in b.log.operations[one].parents:
                return one
        for one in a.ancestors(self._alignment.of_b[end], self._ends_in_a):
            if self._of_b[number] in a.log.operations[one].parents:
                return -1 - one
        return end

    def _function(self, number: int) -> str | None:
        """The autograd function that ran backward for an operation, if it is not torch's own."""
        backward = self._alignment.b.log.backward
        if backward is None or self._alignment.b.log.operations[number].gradfunc is not None:
            return None
        nodes = [node for one in backward.passes for node in one.nodes if node.operation == number and node.role == "result"]
        return nodes[0].name if nodes else None


def _has_no_gradient(side: Side, number: int) -> bool:
    """True if an operation has floating-point values but neither a grad_fn nor a gradient."""
    record = side.log.operations[number]
    return record.gradfunc is None and record.dtype.is_floating_point and gradient_of(side, number) is None


def _largest(value: Tensor | None) -> float:
    """The largest finite absolute value of a tensor; 0 if there is none."""
    if value is None or not is_measurable(value) or not value.numel():
        return 0.0
    sizes = absolute_values(value)
    return float(torch.where(torch.isfinite(sizes), sizes, 0.0).max())


def _apart(one: Tensor | None, other: Tensor | None) -> Difference | None:
    """The difference of two gradients. A missing gradient counts as zeros."""
    if one is None or other is None:
        there = one if one is not None else other
        return NO_DIFFERENCE if there is None or not bool(there.any()) else INFINITE_DIFFERENCE
    return difference(one, other)
