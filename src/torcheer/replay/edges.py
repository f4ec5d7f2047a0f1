"""Whether edges are real: changing an argument changes the result, unless at these values it cannot.

Each call is made again with one argument changed, from the same random state. Where nothing changes, the other arguments
are changed as well, to tell a function that is saturated, masked or multiplied by zero here from one that only looks at
the argument's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..capture.retention import alias, copied
from ..containers import fill_call
from ..records import OperationRecord
from .comparison import same_bits
from .machine import call_again
from .report import Check
from .walk import tensors_of

_LARGEST = 1 << 24  # values; a larger tensor is not copied to be changed

SATURATED = "without effect at these values (saturated, masked or multiplied by zero)"
IGNORED = "of which only shape or type is used"
WHOLE = "whole numbers or truth values without effect at these values"
OVERWRITTEN = "overwritten without being read"
UNCHANGEABLE = "not to be called with other values"
EMPTY = "without values"
LARGE = "too large to try"


class EdgeProver:
    """Tries every edge of a replay, one call at a time."""

    def __init__(self, check: Check) -> None:
        self.check = check
        self._generator = torch.Generator().manual_seed(20_000)

    def try_call(self, record: OperationRecord, tensors: list[Tensor]) -> None:
        """Try the edges of a call that is about to be made with these tensors. Changes nothing."""
        if not tensors:
            return
        if sum(tensor.numel() for tensor in tensors if not tensor.is_nested) > _LARGEST:
            self.check.exempt[LARGE] += len(tensors)
            return
        if record.function.is_uninitialised:
            self.check.exempt[IGNORED] += len(tensors)
            return
        call = _Again(record)
        try:
            expected = call.results([_copy(tensor) for tensor in tensors])
        except NotCopied:
            expected = None
        if expected is None:
            self.check.exempt[UNCHANGEABLE] += len(tensors)
            return
        for slot in range(len(tensors)):
            reason = self._effect(call, tensors, slot, expected)
            if reason is None:
                self.check.count += 1
            else:
                self.check.exempt[reason] += 1

    def _effect(self, call: _Again, tensors: list[Tensor], slot: int, expected: list[Any]) -> str | None:
        """None when the argument in this slot has an effect, otherwise why it has none."""
        tensor = tensors[slot]
        if not is_plain(tensor):
            return UNCHANGEABLE
        if tensor.numel() == 0:
            return EMPTY
        raised = False
        for change in _CHANGES:
            changed = [_copy(other) if n != slot else self._changed(other, change) for n, other in enumerate(tensors)]
            results = call.results(changed)
            if results is None:
                raised = True
            elif _differ(results, expected):
                return None
        if raised:
            return UNCHANGEABLE
        if slot in call.record.details.mutated:
            return OVERWRITTEN
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return WHOLE
        return SATURATED if self._matters_elsewhere(call, tensors, slot) else IGNORED

    def _matters_elsewhere(self, call: _Again, tensors: list[Tensor], slot: int) -> bool:
        """Whether the argument has an effect when the other arguments have other values."""
        for change in (_noise, _flip):
            others = [tensor if n == slot else self._changed(tensor, change) for n, tensor in enumerate(tensors)]
            base = call.results([_copy(tensor) for tensor in others])
            moved = call.results(
                [self._changed(tensor, _redraw) if n == slot else _copy(tensor) for n, tensor in enumerate(others)]
            )
            if base is not None and moved is not None and _differ(base, moved):
                return True
        return False

    def _changed(self, tensor: Tensor, change: Callable[[Tensor, torch.Generator], Tensor]) -> Tensor:
        with torch.no_grad():
            value = tensor.detach()
            if not is_plain(value):
                return _copy(value)
            fresh = _copy(tensor)
            fresh.data.copy_(change(value, self._generator))
            return fresh


class NotCopied(Exception):
    """A tensor is of a class that allows no copy."""


class _Again:
    """One call, to be made again with other tensors and always from the same random state."""

    def __init__(self, record: OperationRecord) -> None:
        self.record = record
        self._random = _random_states()

    def results(self, tensors: list[Tensor]) -> list[Any] | None:
        """Every tensor the call makes of these arguments, or writes to; None if it raises."""
        args, kwargs = fill_call(self.record.template, self.record.names, iter(tensors))
        try:
            result = call_again(self.record, args, kwargs)
        except Exception:  # whatever a function may raise when it does not like a value
            return None
        finally:
            _restore_random(self._random)
        found = [tensors[slot] for slot in self.record.details.mutated]
        found += tensors_of(result)
        return [tensor.detach() for tensor in found]


def varies(record: OperationRecord, tensors: list[Tensor]) -> bool:
    """Whether a call gives other bits when it is made again, with its arguments elsewhere in memory."""
    call = _Again(record)
    try:
        first = call.results([_copy(tensor) for tensor in tensors])
    except NotCopied:
        return False
    if first is None:
        return False
    others = (call.results([_elsewhere(tensor, shift) for tensor in tensors]) for shift in range(1, 9))
    return any(other is not None and _differ(other, first) for other in others)


def _elsewhere(tensor: Tensor, shift: int) -> Tensor:
    """A copy that starts so many elements into its memory."""
    if not is_plain(tensor):
        return _copy(tensor)
    with torch.no_grad():
        room = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device=tensor.device)
        moved = room[shift:].view(tensor.shape).copy_(tensor.detach())
    return moved.detach().requires_grad_(tensor.requires_grad)


def is_plain(tensor: Tensor) -> bool:
    """Whether a tensor has values in memory of the ordinary kind, which can be changed one by one."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return False  # what a class of its own does with its values is its own affair
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta")


def _random_states() -> list[tuple[Any, Tensor]]:
    states: list[tuple[Any, Tensor]] = [(torch.default_generator, torch.default_generator.get_state())]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
        states += [(generator, generator.get_state()) for generator in torch.cuda.default_generators]
    return states


def _restore_random(states: list[tuple[Any, Tensor]]) -> None:
    for generator, state in states:
        generator.set_state(state)


def _copy(tensor: Tensor) -> Tensor:
    """A copy with memory of its own that requires gradients as the tensor does."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return _copy_of_class(tensor)
    fresh = tensor.detach().clone()
    if tensor.requires_grad and not fresh.is_inference():
        fresh.requires_grad_()
        if not tensor.is_leaf:
            with torch.enable_grad():
                return fresh.clone()  # what no leaf is may be written to
    return fresh


def _copy_of_class(tensor: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        view = alias(tensor)
        fresh = copied(view) if view is not None else None
        if fresh is None:
            raise NotCopied
        return fresh.requires_grad_() if tensor.requires_grad and not fresh.requires_grad else fresh


def _differ(results: list[Any], expected: list[Any]) -> bool:
    return len(results) != len(expected) or not all(map(same_bits, results, expected))


# How a value is changed, gently first --------------------------------------------------------------------------------


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    dtype = torch.complex64 if like.is_complex() else torch.float32
    return torch.randn(like.shape, generator=generator, dtype=dtype, device="cpu").to(like.device)


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    if value.is_complex():
        return (value + _drawn(value, generator)).to(value.dtype)
    if value.is_floating_point():
        wide = value.float()
        scale = float(wide.abs().nan_to_num(0, 0, 0).mean()) + 1e-3
        return (wide + _drawn(value, generator) * scale).to(value.dtype)
    return _flip(value, generator)


def _redraw(value: Tensor, generator: torch.Generator) -> Tensor:
    if value.is_floating_point() or value.is_complex():
        return (_drawn(value, generator) * 10).to(value.dtype)
    if value.dtype is torch.bool:
        return torch.rand(value.shape, generator=generator, device="cpu").to(value.device) > 0.5
    low, high = int(value.min()), int(value.max())
    return torch.randint(low, high + 1, value.shape, generator=generator, device="cpu").to(value)


def _flip(value: Tensor, generator: torch.Generator) -> Tensor:
    """The same values elsewhere; where they are all the same, others next to them."""
    if value.dtype is torch.bool:
        return ~value
    flat = value.reshape(-1).flip(0)
    if not value.is_floating_point() and not value.is_complex() and bool((flat == value.reshape(-1)).all()):
        return torch.where(value > 0, value - 1, value + 1)
    return flat.reshape(value.shape)


def _missing(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.full_like(value, float("nan")) if value.is_floating_point() or value.is_complex() else _flip(value, generator)


_CHANGES = (_noise, _redraw, _missing)
