"""A model's forward and backward pass as one function.

The backward pass starts with gradients of ones, as from the sum of the outputs. This computes nothing, so only the model's
own operations are recorded. This file is in `_torch/` so that its lines are not shown as lines of the user's program.
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
    """Runs a model and, if its result requires gradients, a backward pass from `loss(result)`, or from the sum of the
    result.
    """

    def __init__(self, model: Module, include_loss: bool, loss: Callable[[Any], Any] | None = None) -> None:
        self.__self__ = model  # makes addresses relative to the model
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
        if torch.overrides.has_torch_function(tuple(roots)):  # tells a recording that gradients are about to be written
            torch.overrides.handle_torch_function(backward, tuple(roots), *roots)
        else:
            backward(*roots)
    except Exception as error:
        put_on(error, "torcheer: the backward pass from the outputs raised this; under torch.no_grad() none is run.")
        raise


def _ones(root: Tensor) -> Tensor:
    """The gradient of the sum of the tensor's values: ones of its shape, 1+1j for a complex tensor. A real result is a view of
    one value.
    """
    one = torch.ones((), dtype=root.dtype, device=root.device)
    if root.is_complex():
        return (one * (1 + 1j)).expand(root.shape).contiguous()  # the FFT of torch 2.6 does not accept an expanded gradient
    return one.expand(root.shape)
