"""A model's forward and backward pass as one function.

The backward pass starts with gradients of ones, as from the sum of the outputs. This computes nothing, so only the model's
own operations are recorded. This file is in `_torch/` so that its lines are not shown as lines of the user's program.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..errors import InvalidArgument, ReplayFailed, put_on
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
                roots = differentiable(result)
            if roots:
                _run_backward([_sum(roots)] if self.include_loss else roots)
        return result


def differentiable(result: Any) -> list[Tensor]:
    """The distinct tensors in a result at which a backward pass can begin."""
    found = {id(tensor): tensor for _, tensor in find_tensors(result)}
    usable = [one for one in found.values() if one.layout is torch.strided and not one.is_nested]
    return [one for one in usable if one.requires_grad]


class PassAgain:
    """Runs a model again, and backward from the gradients that its outputs had in an earlier pass.

    Args:
        gradients: maps the number of an output, among the `differentiable` outputs, to its gradient; None if unknown.
        added: for an output from which other outputs are computed, the part of its gradient that did not come from them.

    Returns the outputs that had a gradient. One output may be computed from another, as a loss is from logits. Then the
    gradient of the logits comes from the loss, and is in `arrived` afterwards.
    """

    def __init__(self, model: Module, gradients: dict[int, Tensor | None], added: dict[int, Tensor]) -> None:
        self.__self__ = model  # makes addresses relative to the model
        self.__name__ = type(model).__name__
        self.gradients = gradients
        self.added = added
        self.inner: set[int] = set()  # the outputs that other outputs are computed from
        self.arrived: dict[int, Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__self__(*args, **kwargs)
        with DisableTorchFunction():
            outputs = differentiable(result)
            if max(self.gradients) >= len(outputs):
                raise ReplayFailed(
                    f"The model returned {len(outputs)} tensors that require gradients; in the first run there were more."
                )
            used = {number: outputs[number] for number in self.gradients}
            before = {number: _nodes_before(tensor) for number, tensor in used.items()}
            self.inner = {one for one in used if any(used[one].grad_fn in before[other] for other in used if other != one)}
            for number in self.inner:
                used[number].register_hook(partial(self.arrived.__setitem__, number))  # type: ignore[no-untyped-call]
            begun = {n: one for n, one in self.gradients.items() if n not in self.inner and one is not None} | self.added
        if begun:
            _run_backward([used[number] for number in begun], list(begun.values()))
        return tuple(used.values())


def _nodes_before(tensor: Tensor) -> set[Any]:
    """Find the autograd nodes before the tensor's own node."""
    found: set[Any] = set()
    waiting = [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        following = [one for one, _ in node.next_functions if one is not None and one not in found] if node is not None else []
        found.update(following)
        waiting += following
    return found


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


def _run_backward(roots: list[Tensor], gradients: list[Tensor] | None = None) -> None:
    """Run backward from these tensors, with gradients of ones if none are given."""
    with DisableTorchFunction():
        begun = gradients if gradients is not None else [_ones(root) for root in roots]

    def backward(*tensors: Tensor) -> None:
        torch.autograd.backward(tensors, begun)

    try:
        if torch.overrides.has_torch_function(tuple(roots)):  # tells a recording that gradients are about to be written
            torch.overrides.handle_torch_function(backward, tuple(roots), *roots)
        else:
            backward(*roots)
    except Exception as error:
        put_on(error, "torcheer: the backward pass from the outputs raised this; under torch.no_grad() none is run.")
        raise


def _ones(root: Tensor) -> Tensor:
    """Return the gradient of the sum of the tensor's values: ones of its shape, or 1+1j for a complex tensor. Real ones are a
    view of one value.
    """
    one = torch.ones((), dtype=root.dtype, device=root.device)
    if root.is_complex():
        return (one * (1 + 1j)).expand(root.shape).contiguous()  # the FFT of torch 2.6 does not accept an expanded gradient
    return one.expand(root.shape)
