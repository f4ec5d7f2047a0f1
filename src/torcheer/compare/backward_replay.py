"""Gradients that the calls of a log give again, from any values and any incoming gradients.

The log is run again, and each call is made a second time on copies that autograd follows. From the gradient of what it made,
autograd computes the gradients of what it was given. The sums of these, over everything that uses an operation, are what the
operation's gradient should be. Operations without a match are not ends: autograd goes through them.

    y = fc(x); z = y.tanh() * y      the gradient of y is what tanh and mul give together: each from its own incoming one

What a custom `autograd.Function` does cannot be made again: the calls inside its forward ran without autograd.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..capture.restore.randomness import random_as_found
from ..records import OperationRecord
from ..replay.machine import call_again, outcome
from ..replay.walk import tensors_of
from ..templates import fill_call
from .own_error import Observer, run_side
from .sides import Side

Source = tuple[int, Tensor]  # an operation, or (negative) a parameter, and the copy of it that autograd follows


class BackwardReplay(Observer):
    """One run of a log that collects gradients.

    Args:
        value: the value to go on with after an operation; None for the one it has.
        gradient: the incoming gradient of an operation; None for none.
        ends: the operations at which gradients are taken; autograd goes through the others.
        only: an operation or (negative) parameter. The gradients that its users give it are kept one by one, in `parts`.
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
        self.unknown: set[int] = set()  # operations whose gradients cannot be computed, as one that uses them cannot be run
        self.parts: dict[int, Tensor] = {}
        super().__init__(side)
        for number in run_side(side, self, {}):
            self.unknown.update(side.log.operations[number].parents)

    def begin(self) -> None:
        self.sums, self.unknown, self.parts = {}, set(), {}
        self._inside: dict[int, tuple[Tensor, list[Source]]] = {}  # of operations that are gone through
        self._made: tuple[int, Any, tuple[Any, ...], dict[str, Any], list[Source]] | None = None

    def instead(self, number: int) -> Tensor | None:
        value = self._value(number)
        return value.detach() if value is not None else self.side.value(number)

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().before(record, args, kwargs)
        self._made = None
        if record.gradfunc is None:
            return  # autograd did not follow it
        try:
            if record.details.also:
                raise RuntimeError("what it is given was written to through another view")
            tensors, sources = self._followed(record, tensors_of((args, kwargs)))
            again_args, again_kwargs = fill_call(record.template, record.names, iter(tensors))
            with torch.enable_grad(), random_as_found() if record.function.is_random else contextlib.nullcontext():
                result = call_again(record, again_args, again_kwargs)
            self._made = record.number, result, again_args, again_kwargs, sources
        except Exception:  # whatever a torch function may raise
            self.unknown.update(record.parents)

    def _followed(self, record: OperationRecord, given: list[Tensor]) -> tuple[list[Tensor], list[Source]]:
        """Copies of the tensors a call is given, which autograd follows back to the operations they come from."""
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
            except Exception:  # autograd may raise anything
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
