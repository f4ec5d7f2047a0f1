"""`TrainingStep`: one forward and backward pass of a model, logged or watched, after which everything is restored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import Module

from ._torch.addresses import class_name, without_parallelism
from ._torch.containers import find_tensors
from ._torch.forward_backward import ForwardBackward
from ._torch.inputs import as_arguments, explained
from ._torch.internals import DisableTorchFunction
from ._torch.left_as_found import left_as_found
from ._torch.restore_state import counts_as_found
from ._torch.thread_state import thread_left_as_found
from .api import log_forward_pass
from .errors import InvalidArgument
from .history import ModelHistory
from .live.module_calls import ModuleCalls, watch_modules
from .log.options import LogOptions, check_log_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class TrainingStep:
    """A forward pass of a model and, if its result requires gradients, a backward pass from the sum of the result.

    >>> import torch, torcheer
    >>> step = torcheer.TrainingStep(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> [one.name for one in step.log(save_gradients=True).backward_passes[0].operations][0]
    'AddmmBackward0'
    >>> [(call.label, len(call.backward)) for call in step.watch_modules()]
    [(':1', 1)]

    Args:
        model: the module. It, its gradients, the inputs and the random states are restored after each run.
        inputs: as `input_args` of `log_forward_pass`.
        include_loss: compute the sum of the float outputs, so that the sum and its gradients are recorded.
        called: the name of the function that the user called, for errors.

    Under `torch.no_grad()` there is no backward pass.
    """

    @thread_left_as_found
    def __init__(self, model: Module, inputs: object, *, include_loss: bool = False, called: str = "TrainingStep") -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(f"model must be an nn.Module; got {type(model).__name__}: {model!r:.80}.")
        self.model = model
        self.include_loss = include_loss
        self.history: ModelHistory | None = None  # the history of the last `log`, even if the step raised
        self.module_calls: ModuleCalls | None = None  # the calls of the last `watch_modules`, even if the step raised
        self._called = called
        self._arguments = as_arguments(model, inputs, call=called)

    def __repr__(self) -> str:
        ran = [word for word, found in (("logged", self.history), ("watched", self.module_calls)) if found is not None]
        return f"<TrainingStep of {class_name(self.model)}, {' and '.join(ran) or 'not run yet'}>"

    def log(self, **options: Unpack[LogOptions]) -> ModelHistory:
        """Run the step and log it, with the options of `log_forward_pass`."""
        self.history = None
        check_log_options(options, "TrainingStep.log", "random_seed", "random_state", "vis_opt")
        try:
            with explained(self.model, self._arguments, self._called):
                self.history = log_forward_pass(ForwardBackward(self.model, self.include_loss), *self._arguments, **options)
        except BaseException as error:
            self.history = getattr(error, "history", None)
            raise
        return self.history

    @thread_left_as_found
    def watch_modules(self, *, timing: bool = True) -> ModuleCalls:
        """Run the step and watch only its modules.

        Parameters, buffers and inputs are copied first, because writes to them are not watched.
        """
        self.module_calls = None
        model = without_parallelism(self.model)
        with DisableTorchFunction():
            inputs = list({id(tensor): tensor for _, tensor in find_tensors(self._arguments)}.values())
        with (
            explained(self.model, self._arguments, self._called),
            counts_as_found(model, self._arguments),
            left_as_found(model, list(model.modules()), inputs, self._arguments, []) as undone,
        ):
            undone.restorer.back_up_everything()
            with watch_modules(model, timing=timing) as self.module_calls:
                ForwardBackward(model, self.include_loss)(*undone.args, **undone.kwargs)
        return self.module_calls
