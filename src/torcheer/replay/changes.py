"""Other values for an argument, to see whether a call uses it: only values that are known to be valid for it.

Which values are valid depends on the role of the argument (`functions/structure.py`). An index may be any index that occurs, a
divisor anything but zero, a probability anything between those that occur. For lengths, offsets, pivots and sizes no other
value is known to be valid, and integers of functions that are not torch's own may mean anything: they are not changed. Whole
numbers among the floating-point arguments of such functions are not changed either: they may be indices.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..functions.structure import Role

Change = Callable[[Tensor, torch.Generator], Tensor]


def changes_of(tensor: Tensor, role: Role) -> tuple[Change, ...]:
    """How an argument of this role may be changed, gently first; empty where no other value is known to be valid."""
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
    """Two changes of an argument, for while another one is tried; None where it must stay as it is."""
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
    """The same values elsewhere; where they are all the same, others next to them."""
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
    """Indices among those that occur, and zero, which is an index wherever there is any."""
    known = torch.cat([value.reshape(-1), value.new_zeros(1)])
    places = torch.randint(0, known.numel(), value.shape, generator=generator, device="cpu").to(value.device)
    return known.take(places)


def _positive(value: Tensor, generator: torch.Generator) -> Tensor:
    return value.abs().clamp(max=torch.iinfo(value.dtype).max - 1) + 1


def _positive_redraw(value: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randint(1, 100, value.shape, generator=generator, device="cpu").to(value)


def _flip_above_least(value: Tensor, generator: torch.Generator) -> Tensor:
    """Not the least integer there is: divided by -1 it ends the process."""
    return _flip(value, generator).clamp(min=torch.iinfo(value.dtype).min + 1)


def _redraw_above_least(value: Tensor, generator: torch.Generator) -> Tensor:
    return _redraw(value, generator).clamp(min=torch.iinfo(value.dtype).min + 1)


def _drawn_together(value: Tensor, generator: torch.Generator) -> Tensor:
    """Nearer to the largest value: between two valid probabilities, rates or deviations, all others are valid."""
    return (value + value.max()) / 2 if value.is_floating_point() else value


def _move_fractions(value: Tensor, generator: torch.Generator) -> Tensor:
    """Move values that are not whole numbers a little."""
    if value.is_complex():
        return _noise(value, generator)
    is_whole = value == value.round()
    moved = value.float() * (1 + 0.01 * torch.rand(value.shape, generator=generator, device="cpu").to(value.device))
    return torch.where(is_whole, value, moved.to(value.dtype))
