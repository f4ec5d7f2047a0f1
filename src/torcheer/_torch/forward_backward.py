"""A model's forward and backward pass as one function.

The backward pass begins as from the sum of the outputs: with ones. Nothing has to be computed for that, so nothing besides the
model's own operations is recorded. This file is in `_torch/`, whose lines are not shown as lines of the user's program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..errors import InvalidArgument, put_on
from .containers import find_tensors
from .internals import DisableTorchFunction


class ForwardBackward:
    """A function that runs a model and, where its result requires gradients, a backward pass: from `loss` of it, if given."""

    def __init__(self, model: Module, include_loss: bool, loss: Callable[[Any], Any] | None = None) -> None:
        self.__self__ = model  # addresses are those within it
        self.__name__ = type(model).__name__
        self.include_loss = include_loss
        self.loss = loss

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__self__(*args, **kwargs)
        if self.loss is not None:
            _run_backward([_checked_loss(self.loss(result))])
        elif torch.is_grad_enabled():
            with DisableTorchFunction():
                found = {id(tensor): tensor for _, tensor in find_tensors(result)}
                usable = [one for one in found.values() if one.layout is torch.strided and not one.is_nested]
                roots = [one for one in usable if one.requires_grad]
            if roots:
                _run_backward([_sum(roots)] if self.include_loss else roots)
        return result


def _checked_loss(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        came = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        is_free = isinstance(loss, Tensor) and not loss.requires_grad
        more = " that requires no gradient" if is_free else ""
        raise InvalidArgument(f"loss must return one number that requires gradients; got {came}{more}.")
    return loss


def _sum(tensors: list[Tensor]) -> Tensor:
    parts = [(torch.view_as_real(tensor) if tensor.is_complex() else tensor).sum() for tensor in tensors]
    loss = parts[0]
    for part in parts[1:]:
        loss = loss + part.to(loss.device)
    return loss


def _run_backward(roots: list[Tensor]) -> None:
    with DisableTorchFunction():
        ones = [_ones(root) for root in roots]

    def backward(*tensors: Tensor) -> None:
        torch.autograd.backward(tensors, ones)

    try:
        if torch.overrides.has_torch_function(tuple(roots)):  # a recording is told that gradients are about to be written
            torch.overrides.handle_torch_function(backward, tuple(roots), *roots)
        else:
            backward(*roots)
    except Exception as error:
        put_on(error, "torcheer: the backward pass from the outputs raised this; under torch.no_grad() none is run.")
        raise


def _ones(root: Tensor) -> Tensor:
    """The gradient of the sum of a tensor's values (of a complex one, of both parts), as a view of one value if real."""
    one = torch.ones((), dtype=root.dtype, device=root.device)
    if root.is_complex():
        return (one * (1 + 1j)).expand(root.shape).contiguous()  # the FFT of torch 2.6 refuses one value for all
    return one.expand(root.shape)
