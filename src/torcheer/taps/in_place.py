"""Values that the model writes in place: a change is written into the tensor, so that every later reader sees the new value.

With gradients on, the call or module gets a copy to write to, and the new value is written into the tensor afterwards: autograd
may need what the call itself wrote, which nobody may overwrite.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..capture.keep.keeper import version_of
from ..containers import replace_tensors
from ..errors import InvalidArgument
from ..functions import TorchFunction, groups
from ..tensor_memory import copy_of, may_overlap
from ..torch_internals import DisableTorchFunction, base_of
from .places import Place


class Copies:
    """Copies of tensors, which a call or module gets to write to. None are made where autograd follows nothing."""

    def __init__(self, tensors: Iterable[Tensor] = ()) -> None:
        self._of: dict[int, tuple[Tensor, Tensor, int]] = {}  # by id of the tensor: it, its copy, and the copy's version
        if not torch.is_grad_enabled():
            return
        for tensor in tensors:
            if id(tensor) not in self._of and _can_be_followed(tensor):
                copied = followed_copy(tensor)
                self._of[id(tensor)] = tensor, copied, version_of(copied)

    def __len__(self) -> int:
        return len(self._of)

    def put_in(self, value: Any) -> Any:
        """The value with the copies in it."""
        if not self._of:
            return value
        return replace_tensors(value, lambda tensor: self._of[id(tensor)][1] if id(tensor) in self._of else tensor)

    def original(self, tensor: Tensor) -> Tensor | None:
        """The tensor that this one is the copy of; None if it is no copy."""
        return next((one for one, copied, _ in self._of.values() if copied is tensor), None)

    def home(self, tensor: Tensor) -> Tensor:
        """The tensor that the program has: the original of a copy, else the tensor itself."""
        original = self.original(tensor)
        return tensor if original is None else original

    def settle(self, new: dict[int, Tensor], place: Place | None) -> None:
        """Write what was written to the copies into the tensors; `new` has, by the id of a copy, what is written instead."""
        for tensor, copied, version in self._of.values():
            value = new.get(id(copied), copied)
            if value is not copied or version_of(copied) != version:
                write(tensor, value, place)


def followed_copy(tensor: Tensor) -> Tensor:
    """A copy with the strides of the tensor, through which gradients flow."""
    copied = copy_of(tensor)
    return copied.detach().copy_(tensor) if tensor.requires_grad and not copied.requires_grad else copied


def is_state(tensor: Tensor) -> bool:
    """Whether autograd lets nobody write to a tensor while it follows: a parameter, or a view of one."""
    base = base_of(tensor)
    return any(one is not None and one.requires_grad and one.is_leaf for one in (tensor, base))


def _can_be_followed(tensor: Tensor) -> bool:
    """Whether a copy can stand for a tensor that a call writes: what torch refuses to write to goes to the call as it is."""
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_inference():
        return False
    return type(tensor) in (Tensor, Parameter) and not is_state(tensor) and not may_overlap(tensor)


def given_to_change(tensor: Tensor) -> Tensor:
    """What a change gets of a tensor that is written to afterwards: autograd may hold that for the change's backward pass."""
    if not torch.is_grad_enabled():
        return tensor
    return tensor.detach() if is_state(tensor) else followed_copy(tensor)


def write(tensor: Tensor, new: Tensor, place: Place | None) -> None:
    """Write a new value into a tensor; raises, by the name of the place, where that cannot be."""
    if may_overlap(tensor):
        raise refused(place, "several elements of the tensor are at one place of its memory")
    state = torch.is_grad_enabled() and is_state(tensor)
    if state and new.requires_grad:
        raise refused(place, "gradients of the change cannot flow through a tensor that is a leaf of the autograd graph")
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not state):
            tensor.copy_(new)
    except (RuntimeError, TypeError, ValueError) as error:
        raise refused(place, f"torch says: {error}") from error


def write_as(function: TorchFunction, tensor: Tensor, new: Tensor, place: Place) -> None:
    """Give a new value to a tensor that a call of the function has just changed.

    `detach_`, `set_` and `p.data = …` write no elements: they change what the tensor is, so the tensor gets other memory. The
    memory it has may be that of other tensors.
    """
    if function.name not in _EXCHANGE or new.requires_grad:
        write(tensor, new, place)
        return
    try:
        tensor.data = new
    except (RuntimeError, TypeError) as error:
        raise refused(place, f"torch says: {error}") from error


def differ(one: Tensor, other: Tensor) -> Tensor | bool:
    """Whether two tensors have other values; not known yet for tensors on a device, which nothing waits for."""
    with DisableTorchFunction(), torch.no_grad():
        try:
            if one.is_meta or other.is_meta:
                return one is not other
            return not torch.equal(one, other) if one.is_cpu and other.is_cpu else (one != other).any()
        except Exception:  # torch does not compare some layouts and dtypes, nor within transforms; a class may raise anything
            return one is not other


_EXCHANGE = frozenset({"detach_", "set_", "set_data"})


def written_by(function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors whose new value a call puts into the tensors themselves."""
    if function.name == "detach_":
        return [tensor for tensor in args[:1] if isinstance(tensor, Tensor)]
    return [tensor for tensor in function.writes(args, kwargs) if isinstance(tensor, Tensor)]


def writes_elements(function: TorchFunction) -> bool:
    """Whether a function that works in place writes elements; others (`t_`, `resize_`) change what the tensor is."""
    return function.name not in _EXCHANGE and not function.is_view and not function.is_in(groups.RESIZING)


def refused(place: Place | None, why: str) -> InvalidArgument:
    """The error for a value that is written in place and cannot be changed there."""
    return InvalidArgument(
        f"{place or 'a change'}: the value is written in place, and another one cannot be written into the tensor: {why}. "
        "Change what the model makes of the tensor afterwards."
    )
