"""Reads the arguments of a call before it runs, and protects the memory it is about to write to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...records import UNSAVED, Details, Held, TorchFunction
from ...templates import template
from ...torch_internals import DisableTorchFunction
from ..identity.tensor_table import memory_of
from ..recorder import Recorder
from .collectives import in_words


class Before(NamedTuple):
    """What is known of a call before it runs."""

    outline: tuple[Any, ...]  # a template of all arguments
    names: tuple[str, ...]  # of the last of them, which were given by name
    parents: tuple[int, ...]  # the records that the tensors among them stand for
    tensors: list[Tensor]
    details: Details | None  # facts that few calls have
    written: list[Tensor]  # the tensors that are about to be overwritten


def leaves_gradients_alone(written: Sequence[Tensor]) -> bool:
    """True for a write to what requires gradients, while gradients are switched off."""
    return not torch.is_grad_enabled() and any(tensor.requires_grad for tensor in written)


class ArgumentReader:
    """Reads the arguments of the calls of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._table = recorder.table
        self._keeper = recorder.keeper

    def read(self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Before:
        """Read the arguments of a call, and prepare for what it is about to do to them."""
        tensors: list[Tensor] = []
        outline = template((*args, *kwargs.values()), tensors.append)
        if function.is_collective:
            outline = in_words(outline)
        if self._recorder.memory:
            with DisableTorchFunction():
                self._recorder.memory.forget_moved(tensors)
                self._recorder.memory.look(tensors)
        parents = tuple([self._recorder.ref(tensor) for tensor in tensors])
        written = function.writes(args, kwargs)
        details = self._prepare(function, parents, tensors, written)
        if func is torch.autograd.grad and self._recorder.may_change_gradients(tensors):
            details = details or Details()
            details.is_hooked = True
        if self._recorder.gradients is not None:
            self._recorder.gradients.meet(parents, tensors)
            if func is torch.autograd.grad:
                self._recorder.gradients.watch(tensors)
        return Before(outline, tuple(kwargs), parents, tensors, details, written)

    def _prepare(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], written: list[Tensor]
    ) -> Details | None:
        """Find what the arguments depend on through shared memory, and protect what is about to be overwritten."""
        also: tuple[int, ...] = ()
        stale: list[int] = []
        held: dict[int, Held] | None = None
        mutated: tuple[int, ...] = ()
        if self._table.last_write:
            also, stale = self._recorder.also(tensors)
        if stale or self._keeper.selection is not None:
            held = self._hold_arguments(function, parents, tensors, stale)
        is_no_grad = False
        if written:
            mutated = self.protect(written, tensors)
            is_no_grad = leaves_gradients_alone(written)
        return Details(also=also, mutated=mutated, held=held, is_no_grad=is_no_grad) if also or held or mutated else None

    def _hold_arguments(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], stale: list[int]
    ) -> dict[int, Held] | None:
        """Keep the arguments whose records do not hold them, if the operation may be kept."""
        selection = self._keeper.selection
        if selection is not None and selection.before(function, self._recorder.module) is False:
            return None
        slots = [
            (slot, tensors[slot])
            for slot, number in enumerate(parents)
            if slot in stale or (number >= 0 and self._recorder.log.values[number] is UNSAVED)
        ]
        return self._keeper.hold_arguments(slots) if slots else None

    def protect(self, written: Sequence[Tensor], tensors: list[Tensor]) -> tuple[int, ...]:
        """Keep the old values of what is about to be overwritten. Returns which of the arguments' tensors that are."""
        for tensor in written:
            self._protect_one(tensor)
        ids = [id(tensor) for tensor in written]
        return tuple([slot for slot, tensor in enumerate(tensors) if id(tensor) in ids])

    def _protect_one(self, tensor: Tensor) -> None:
        """Copy a tensor that is about to be overwritten, for every kept activation and backup that needs the old values."""
        with DisableTorchFunction():
            for part in memory_of(tensor):
                storage = self._table.storage_of(part)
                if storage is not None:
                    self._recorder.protect(storage)
