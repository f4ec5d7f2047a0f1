"""One step of a model, forward and backward, logged or watched, that leaves everything as it was.

The backward pass begins as from the sum of the outputs: with ones. Nothing has to be computed for that, so nothing besides the
model's own operations is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Module

from .api import log_forward_pass
from .capture.addresses import without_parallelism
from .capture.restore.left_as_found import left_as_found
from .containers import find_tensors
from .errors import InvalidArgument, put_on
from .history.keeping.options import LogOptions
from .inputs import as_arguments, explained
from .model_history import ModelHistory
from .module_calls import ModuleCalls, watch_modules
from .torch_internals import DisableTorchFunction

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TrainingStep:
    """A forward pass of a model and, when its result requires gradients, a backward pass as from the sum of that.

    >>> import torch, torcheer
    >>> step = torcheer.TrainingStep(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> [one.name for one in step.log(save_gradients=True).backward_passes[0].operations][0]
    'AddmmBackward0'
    >>> [(call.label, len(call.backward)) for call in step.watch_modules()]
    [(':1', 1)]

    Args:
        model: the module. It, its gradients, the inputs and the random states are left as they were, whichever way it is run.
        inputs: as `input_args` of `log_forward_pass`.
        include_loss: compute the sum of the float outputs, so that it and its gradients are part of what is recorded.
        called: the name of the function that the user called, for errors that show the right call.

    Under `torch.no_grad()` there is no backward pass.
    """

    def __init__(self, model: Module, inputs: Any, *, include_loss: bool = False, called: str = "TrainingStep") -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(f"model must be an nn.Module; got {type(model).__name__}: {model!r:.80}.")
        self.model = model
        self.include_loss = include_loss
        self.history: ModelHistory | None = None  # of the last `log`, also where the step raised
        self.module_calls: ModuleCalls | None = None  # of the last `watch_modules`, likewise
        self._called = called
        self._arguments = as_arguments(model, inputs, call=called)

    def log(self, **options: Unpack[LogOptions]) -> ModelHistory:
        """Run the step and log it, with the options of `log_forward_pass`."""
        self.history = None
        try:
            with explained(self.model, self._arguments, self._called):
                self.history = log_forward_pass(_Run(self.model, self.include_loss), *self._arguments, **options)
        except BaseException as error:
            self.history = getattr(error, "history", None)
            raise
        return self.history

    def watch_modules(self, *, timing: bool = True) -> ModuleCalls:
        """Run the step and watch its modules only.

        Nobody sees what such a step writes to, so parameters, buffers and inputs are copied first.
        """
        self.module_calls = None
        model = without_parallelism(self.model)
        with DisableTorchFunction():
            inputs = list({id(tensor): tensor for _, tensor in find_tensors(self._arguments)}.values())
        with (
            explained(self.model, self._arguments, self._called),
            left_as_found(model, list(model.modules()), inputs, self._arguments, []) as undone,
        ):
            undone.restorer.back_up_everything()
            with watch_modules(model, timing=timing) as self.module_calls:
                _Run(model, self.include_loss)(*undone.args, **undone.kwargs)
        return self.module_calls


class _Run:
    """The step as a function."""

    def __init__(self, model: Module, include_loss: bool) -> None:
        self.__self__ = model  # addresses are those within it
        self.__name__ = type(model).__name__
        self.include_loss = include_loss

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.__self__(*args, **kwargs)
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
        put_on(error, "torcheer: the backward pass from the outputs raised this; under torch.no_grad() none is run.")
        raise


def _ones(root: Tensor) -> Tensor:
    """The gradient of the sum of a tensor's values (of a complex one, of both parts), as a view of one value."""
    one = torch.ones((), dtype=root.dtype, device=root.device)
    return (one * (1 + 1j) if root.is_complex() else one).expand(root.shape)
