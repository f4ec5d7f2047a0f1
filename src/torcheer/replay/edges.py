"""Checks that each edge is real: `EdgeProver` calls each operation again with one argument changed; the result must change.

An argument is changed only to values that are known to be valid for its role (`_torch/functions/structure.py`). An index
becomes another index that occurs, a divisor anything but zero, a probability a value between those that occur. Not changed
are lengths, offsets, pivots and sizes, and, for functions outside torch, integers and whole numbers among floating-point
arguments, which may be indices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._cleanup import pass_interrupts_on
from .._torch.functions.structure import Role
from .._torch.internals import DisableTorchFunction
from .._torch.memory import alias, cloned, copied
from .._torch.randomness import RandomState, random_as_found
from ..log.records import OperationRecord
from ..log.templates import fill_call
from .comparison import same_bits
from .machine import call_again
from .report import Check
from .walk import tensors_of

Change = Callable[[Tensor, torch.Generator], Tensor]


def changes_of(tensor: Tensor, role: Role) -> tuple[Change, ...]:
    """Return the valid changes of an argument of this role, the smallest first; none if no other value is known to be valid."""
    if tensor.dtype is torch.bool:
        return (_flip, _redraw) if role in (Role.VALUE, Role.INDEX, Role.UNKNOWN, Role.DIVISOR) else ()
    if role is Role.PROBABILITY:
        return (_drawn_together,)
    if tensor.is_floating_point() or tensor.is_complex():
        return (_move_fractions,) if role is Role.UNKNOWN else (_noise, _redraw, _missing)
    return {
        Role.VALUE: (_flip, _redraw),
        Role.DIVIDEND: (_flip_above_least, _redraw_above_least),
        Role.INDEX: (_choose, _choose),
        Role.DIVISOR: (_positive, _positive_redraw),
    }.get(role, ())


def other_values(tensor: Tensor, role: Role) -> tuple[Change, Change] | None:
    """Return two changes to make to an argument while another argument is tested; None if it must stay unchanged."""
    found = changes_of(tensor, role)
    if not found:
        return None
    return found[0], (_flip if len(found) == 3 else found[-1])


# Any value ------------------------------------------------------------------------------------------------------------


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    dtype = torch.complex64 if like.is_complex() else torch.float32
    return torch.randn(like.shape, generator=generator, dtype=dtype, device="cpu").to(like.device)


def _noise(value: Tensor, generator: torch.Generator) -> Tensor:
    if value.is_complex():
        return (value + _drawn(value, generator)).to(value.dtype)
    wide = value.float()
    scale = float(wide.abs().nan_to_num(0, 0, 0).mean()) + 1e-3
    return (wide + _drawn(value, generator) * scale).to(value.dtype)


def _redraw(value: Tensor, generator: torch.Generator) -> Tensor:
    if value.is_floating_point() or value.is_complex():
        return (_drawn(value, generator) * 10).to(value.dtype)
    if value.dtype is torch.bool:
        return torch.rand(value.shape, generator=generator, device="cpu").to(value.device) > 0.5
    low, high = int(value.min()), min(int(value.max()), torch.iinfo(torch.int64).max - 1)
    return torch.randint(low, high + 1, value.shape, generator=generator, device="cpu").to(value)


def _flip(value: Tensor, generator: torch.Generator) -> Tensor:
    """Reverse the order of the values; negate booleans; use neighbouring integers if reversing changes nothing."""
    if value.dtype is torch.bool:
        return ~value
    flat = value.reshape(-1).flip(0)
    if not value.is_floating_point() and not value.is_complex() and bool((flat == value.reshape(-1)).all()):
        return torch.where(value > 0, value - 1, value + 1)
    return flat.reshape(value.shape)


def _missing(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.full_like(value, float("nan"))


# Values that are valid for a role -------------------------------------------------------------------------------------


def _choose(value: Tensor, generator: torch.Generator) -> Tensor:
    """Replace each index by another one in the tensor, or by zero: if any index is valid, zero is valid too."""
    known = torch.cat([value.reshape(-1), value.new_zeros(1)])
    places = torch.randint(0, known.numel(), value.shape, generator=generator, device="cpu").to(value.device)
    return known.take(places)


def _positive(value: Tensor, generator: torch.Generator) -> Tensor:
    return value.abs().clamp(max=torch.iinfo(value.dtype).max - 1) + 1


def _positive_redraw(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(1, 100, value.shape, generator=generator, device="cpu").to(value)


def _flip_above_least(value: Tensor, generator: torch.Generator) -> Tensor:
    """Like `_flip`, but never returns the least integer of the dtype: dividing that by -1 ends the process."""
    return _flip(value, generator).clamp(min=torch.iinfo(value.dtype).min + 1)


def _redraw_above_least(value: Tensor, generator: torch.Generator) -> Tensor:
    return _redraw(value, generator).clamp(min=torch.iinfo(value.dtype).min + 1)


def _drawn_together(value: Tensor, generator: torch.Generator) -> Tensor:
    """Move values towards the largest value: between two valid probabilities, rates or deviations, all values are valid."""
    return (value + value.max()) / 2 if value.is_floating_point() else value


def _move_fractions(value: Tensor, generator: torch.Generator) -> Tensor:
    """Change values that are not whole numbers a little; keep whole numbers."""
    if value.is_complex():
        return _noise(value, generator)
    is_whole = value == value.round()
    moved = value.float() * (1 + 0.01 * torch.rand(value.shape, generator=generator, device="cpu").to(value.device))
    return torch.where(is_whole, value, moved.to(value.dtype))


# Each call is made again with one argument changed, from the same random state. If the result does not change, the other
# arguments are changed as well. This distinguishes a function that is saturated, masked or multiplied by zero at these values
# from a function that uses only the argument's shape.

_LARGEST = 1 << 24  # a tensor of more values is not copied and changed

_TRIED = 64  # test at most this many arguments of a call, at equal distances: each test makes the call again

_STORED_ONLY = frozenset({torch.uint16, torch.uint32, torch.uint64})

SATURATED = "without effect at these values (saturated, masked or multiplied by zero)"
IGNORED = "of which only shape or type is used"
WHOLE = "whole numbers or truth values without effect at these values"
OVERWRITTEN = "overwritten without being read"
UNCHANGEABLE = "not to be called with other values"
STRUCTURE = "structure (indices, lengths, offsets, sizes) that no other value is known to be valid for"
FOREIGN = "of functions that are not torch's own, without effect when changed a little"
EMPTY = "without values"
LARGE = "too large to try"
MANY = f"of calls with more than {_TRIED} tensors, between those that were tried"


@dataclass(frozen=True, slots=True)
class _Slot:
    """Stands for the n-th tensor of a call while the roles of arguments are looked up."""

    number: int


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
        expected = call.results_of_copies(tensors)
        if expected is None:
            self.check.exempt[UNCHANGEABLE] += len(tensors)
            return
        roles = _roles(record, len(tensors))
        tried = _spread(len(tensors))
        for slot in tried:
            reason = self._effect(call, tensors, roles, slot, expected)
            if reason is None:
                self.check.count += 1
            else:
                self.check.exempt[reason] += 1
        if len(tried) < len(tensors):
            self.check.exempt[MANY] += len(tensors) - len(tried)

    def _effect(self, call: _Again, tensors: list[Tensor], roles: list[Role], slot: int, expected: list[Any]) -> str | None:
        """Test the argument in this slot. Returns None if changing it has an effect, else the reason to exempt it."""
        tensor = tensors[slot]
        if not is_plain(tensor):
            return UNCHANGEABLE
        if tensor.numel() == 0:
            return EMPTY
        changes = changes_of(tensor, roles[slot])
        if not changes:
            return STRUCTURE
        raised = False
        for change in changes:
            results = self._results_with(call, tensors, slot, change)
            if results is None:
                raised = True
            elif _differ(results, expected):
                return None
        if raised:
            return UNCHANGEABLE
        if slot in call.record.details.mutated:
            return OVERWRITTEN
        if roles[slot] is Role.UNKNOWN:
            return FOREIGN
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return WHOLE
        return SATURATED if roles[slot] is Role.PROBABILITY or self._matters_elsewhere(call, tensors, roles, slot) else IGNORED

    def _results_with(self, call: _Again, tensors: list[Tensor], slot: int, change: Change) -> list[Any] | None:
        """Make the call with one argument changed. Returns None if it raises, or if torch does not compute with the dtype."""
        try:
            changed = [_copy(other) if n != slot else self._changed(other, change) for n, other in enumerate(tensors)]
        except (RuntimeError, ValueError):
            return None
        return call.results(changed)

    def _matters_elsewhere(self, call: _Again, tensors: list[Tensor], roles: list[Role], slot: int) -> bool:
        """True if changing the argument has an effect after the other arguments were changed too."""
        change = changes_of(tensors[slot], roles[slot])[:2][-1]
        ways = [other_values(tensor, role) if is_plain(tensor) else None for tensor, role in zip(tensors, roles, strict=True)]
        for turn in (0, 1):
            others = [
                tensor if n == slot or way is None else self._changed(tensor, way[turn])
                for n, (tensor, way) in enumerate(zip(tensors, ways, strict=True))
            ]
            base = call.results([_copy(tensor) for tensor in others])
            moved = call.results(
                [self._changed(tensor, change) if n == slot else _copy(tensor) for n, tensor in enumerate(others)]
            )
            if base is not None and moved is not None and _differ(base, moved):
                return True
        return False

    def _changed(self, tensor: Tensor, change: Change) -> Tensor:
        with torch.no_grad():
            value = tensor.detach()
            if not is_plain(value) or not value.numel():
                return _copy(tensor)
            fresh = _copy(tensor)
            fresh.data.copy_(change(computable(value), self._generator))
            return fresh


def _spread(count: int) -> list[int]:
    """Choose the slots of a call to try: all slots; if there are more than `_TRIED`, the first, the last and some between."""
    return list(range(count)) if count <= _TRIED else [slot * (count - 1) // (_TRIED - 1) for slot in range(_TRIED)]


class NotCopied(Exception):
    """Raised for a tensor of a class that allows no copy."""


def _roles(record: OperationRecord, count: int) -> list[Role]:
    """The role of each tensor of a call; unknown for tensors inside objects."""
    slots = [_Slot(number) for number in range(count)]
    args, kwargs = fill_call(record.template, record.names, iter(slots))
    roles = [Role.UNKNOWN] * count
    for slot, role in record.function.structure.roles(args, kwargs, _Slot):
        roles[slot.number] = role
    return roles


class _Again:
    """One call, to be made again with other tensors and always from the same random state."""

    def __init__(self, record: OperationRecord) -> None:
        self.record = record
        function = record.function
        draws = function.draws is not None and function.draws(record.args, record.kwargs)
        self._state = RandomState.now() if draws else None
        self._may_draw = draws or (function.draws is None and (function.is_random or not function.is_known))

    def results(self, tensors: list[Tensor]) -> list[Any] | None:
        """Make the call with these arguments. Returns every tensor that it makes or writes to; None if it raises."""
        args, kwargs = fill_call(self.record.template, self.record.names, iter(tensors))
        with random_as_found() if self._may_draw else contextlib.nullcontext() as random:
            if random is not None and self._state is not None:
                random.start_from(self._state)
            try:
                result = call_again(self.record, args, kwargs)
            except Exception as error:  # a function may raise anything for an argument that it does not take
                pass_interrupts_on(error)
                return None
        found = [tensors[slot] for slot in self.record.details.mutated]
        found += tensors_of(result)
        return [tensor.detach() for tensor in found]

    def results_of_copies(self, tensors: list[Tensor]) -> list[Any] | None:
        """Like `results`, with copies of the arguments. Also returns None if an argument cannot be copied."""
        try:
            return self.results([_copy(tensor) for tensor in tensors])
        except NotCopied:
            return None


def varies(record: OperationRecord, tensors: list[Tensor]) -> bool:
    """True if a call gives different bits when it runs again with its arguments elsewhere in memory."""
    call = _Again(record)
    first = call.results_of_copies(tensors)
    if first is None:
        return False
    others = (call.results([_elsewhere(tensor, shift) for tensor in tensors]) for shift in range(1, 9))
    return any(other is not None and _differ(other, first) for other in others)


def writes_another(record: OperationRecord, tensors: list[Tensor], slot: int) -> bool:
    """True if the call writes to an argument that was given another value: before, it may have written the same value."""
    tensor = tensors[slot]
    if not is_plain(tensor) or not tensor.numel():
        return False
    generator = torch.Generator().manual_seed(20_000)
    for change in changes_of(tensor, Role.VALUE):
        with torch.no_grad():
            other = change(computable(tensor.detach()), generator).to(tensor.dtype)
        given = [_copy(one) if at != slot else other.clone() for at, one in enumerate(tensors)]
        if _Again(record).results(given) is not None and not same_bits(given[slot].detach(), other):
            return True
    return False


def _elsewhere(tensor: Tensor, shift: int) -> Tensor:
    """Copy a tensor into new memory, `shift` elements after the start of that memory."""
    if not is_plain(tensor):
        return _copy(tensor)
    with torch.no_grad():
        room = torch.empty(tensor.numel() + shift, dtype=tensor.dtype, device=tensor.device)
        moved = room[shift:].view(tensor.shape).copy_(tensor.detach())
    return moved.detach().requires_grad_(tensor.requires_grad)


def is_plain(tensor: Tensor) -> bool:
    """True for a dense tensor of class `Tensor` or `Parameter` with values, whose elements can be changed one by one."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return False  # a tensor subclass may do anything with its values
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta")


def computable(value: Tensor) -> Tensor:
    """Convert unsigned dtypes that torch stores but cannot compute with to int64."""
    return value.long() if value.dtype in _STORED_ONLY else value


def _copy(tensor: Tensor) -> Tensor:
    """Copy a tensor into memory of its own. The copy requires gradients if the tensor does."""
    if type(tensor) is not Tensor and type(tensor) is not Parameter:
        return _copy_of_class(tensor)
    fresh = cloned(tensor.detach())
    if tensor.requires_grad and not fresh.is_inference():
        fresh.requires_grad_()
        if not _is_leaf(tensor):
            with torch.enable_grad():
                return fresh.clone()  # a clone is no leaf, so it may be written to in place
    return fresh


def _is_leaf(tensor: Tensor) -> bool:
    try:
        return tensor.is_leaf
    except RuntimeError:  # a view made while gradients were off, of a tensor written to since
        return False


def _copy_of_class(tensor: Tensor) -> Tensor:
    with DisableTorchFunction():
        view = alias(tensor)
        fresh = copied(view) if view is not None else None
        if fresh is None:
            raise NotCopied
        return fresh.requires_grad_() if tensor.requires_grad and not fresh.requires_grad else fresh


def _differ(results: list[Any], expected: list[Any]) -> bool:
    return len(results) != len(expected) or not all(map(same_bits, results, expected))
