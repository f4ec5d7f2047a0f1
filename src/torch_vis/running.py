"""One step of a model: forward, and backward from the sum of what it returned; and undoing it."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torcheer import InvalidArgument
from torcheer.capture.modules import without_parallelism, wrapped_module
from torcheer.capture.randomness import RandomState
from torcheer.capture.restore_state import StateRestorer
from torcheer.containers import find_tensors, shares_no_container


def arguments_of(input_tensor: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What an input means: a tuple is the positional arguments, a dictionary the named ones, anything else one argument."""
    if type(input_tensor) is tuple:
        return input_tensor, {}
    if isinstance(input_tensor, dict):
        if not all(isinstance(name, str) for name in input_tensor):
            raise InvalidArgument(
                "a dictionary of inputs has the names of the model's arguments as keys. To give a dictionary as the one "
                "argument, put it into a tuple: (inputs,)."
            )
        return (), input_tensor
    return (input_tensor,), {}


class Step:
    """A forward pass of a model and, when its result requires gradients, a backward pass from the sum of that."""

    def __init__(self, model: Module) -> None:
        self.model = model
        self.__name__ = type(model).__name__

    @property
    def __self__(self) -> Module:
        """The model this is a step of: addresses are those within it."""
        return self.model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.model(*args, **kwargs)
        if torch.is_grad_enabled():
            loss = _loss(result)
            if loss is not None:
                _run_backward(loss)
        return result


def _loss(result: Any) -> Tensor | None:
    with torch._C.DisableTorchFunction():
        found = {id(tensor): tensor for _, tensor in find_tensors(result)}
        parts = [one for one in found.values() if one.requires_grad and one.layout is torch.strided and not one.is_nested]
    loss: Tensor | None = None
    for tensor in parts:
        part = (torch.view_as_real(tensor) if tensor.is_complex() else tensor).sum()
        loss = part if loss is None else loss + part.to(loss.device)
    return loss


def _run_backward(loss: Tensor) -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
    except Exception as error:
        note = "torch_vis: the backward pass of the sum of the outputs raised this; under torch.no_grad() none is run."
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # type: ignore[attr-defined]  # as Python 3.11 does
        raise


@contextmanager
def undone(step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Step, tuple[Any, ...], dict[str, Any]]]:
    """A step and arguments to run it with; afterwards the model, its gradients, the inputs and random states are as before.

    Nobody sees what such a step writes to, so parameters, buffers and inputs are copied first.
    """
    model = without_parallelism(step.model)
    with torch._C.DisableTorchFunction():
        inputs = list({id(tensor): tensor for _, tensor in find_tensors((args, kwargs))}.values())
        args, kwargs = shares_no_container((args, kwargs))
        restorer = StateRestorer(list(model.modules()), inputs, (*args, *kwargs.values()))
    random = RandomState.now()
    try:
        restorer.back_up_everything()
        yield Step(model), args, kwargs
    finally:
        with contextlib.ExitStack() as steps:  # each is taken whatever another raises
            steps.callback(random.restore)
            steps.callback(restorer.restore)
        restorer.finish([], sys.exc_info()[0] is not None)


@contextmanager
def without_compiling(model: Module) -> Iterator[None]:
    """A compiled model runs as it is written, where its modules can be followed."""
    if "torch._dynamo.eval_frame" not in sys.modules:  # only then can anything have been compiled
        yield
        return
    with contextlib.ExitStack() as leave:
        leave.enter_context(torch.compiler.set_stance("force_eager"))
        if any(wrapped_module(module) is not None for module in model.modules()):
            leave.enter_context(warnings.catch_warnings())  # torch warns that hooks fire for wrappers; ours know wrappers
            warnings.filterwarnings("ignore", message=".*there are global hooks on modules")
        yield
