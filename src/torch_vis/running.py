"""One step of a model: forward, and backward from what it returned; and undoing it.

The backward pass begins as from the sum of the outputs: with ones. Nothing has to be computed for that, so nothing besides the
model's own operations is recorded.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torcheer.capture.modules import without_parallelism, wrapped_module
from torcheer.capture.restore.randomness import RandomState
from torcheer.capture.restore.recursion import deeper_calls
from torcheer.capture.restore.restore_state import StateRestorer, not_copied
from torcheer.cleaning import cleaning
from torcheer.containers import find_tensors, shares_no_container
from torcheer.errors import put_on
from torcheer.torch_internals import DisableTorchFunction, run_uncompiled


class Step:
    """A forward pass of a model and, when its result requires gradients, a backward pass as from the sum of that.

    With `include_loss` the sum is computed, and so is part of what is recorded.
    """

    def __init__(self, model: Module, *, include_loss: bool = False) -> None:
        self.model = model
        self.include_loss = include_loss
        self.__name__ = type(model).__name__

    @property
    def __self__(self) -> Module:
        """The model this is a step of: addresses are those within it."""
        return self.model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.model(*args, **kwargs)
        if torch.is_grad_enabled():
            with DisableTorchFunction():
                found = {id(tensor): tensor for _, tensor in find_tensors(result)}
                usable = [one for one in found.values() if one.layout is torch.strided and not one.is_nested]
                roots = [one for one in usable if one.requires_grad]
            if roots:
                _run_backward([_sum(roots)] if self.include_loss else roots)
        return result


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
        put_on(error, "torch_vis: the backward pass from the outputs raised this; under torch.no_grad() none is run.")
        raise


def _ones(root: Tensor) -> Tensor:
    """The gradient of the sum of a tensor's values (of a complex one, of both parts), as a view of one value."""
    one = torch.ones((), dtype=root.dtype, device=root.device)
    return (one * (1 + 1j) if root.is_complex() else one).expand(root.shape)


@cleaning
def undone(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Step, tuple[Any, ...], dict[str, Any]]]:
    """A step and arguments to run it with; afterwards the model, its gradients, the inputs and random states are as before.

    Nobody sees what such a step writes to, so parameters, buffers and inputs are copied first.
    """
    model = without_parallelism(step.model)
    with DisableTorchFunction():
        inputs = list({id(tensor): tensor for _, tensor in find_tensors((args, kwargs))}.values())
        given, (args, kwargs) = (args, kwargs), shares_no_container((args, kwargs))
        own = (*not_copied(given[0], args), *not_copied(given[1], kwargs))
        restorer = StateRestorer(list(model.modules()), inputs, own)
    random = RandomState.now()
    restorer.back_up_everything()
    with deeper_calls():
        yield Step(model, include_loss=step.include_loss), args, kwargs
    with contextlib.ExitStack() as steps:  # each is taken whatever another raises
        steps.callback(random.restore)
        steps.callback(restorer.restore)
    restorer.finish([], sys.exc_info()[0] is not None)


def without_compiling(model: Module) -> AbstractContextManager[None]:
    """A compiled model runs as it is written, where its modules can be followed."""
    return run_uncompiled(has_wrappers=any(wrapped_module(module) is not None for module in model.modules()))
