"""The probe: one pass of a fixed input through the model, which leaves model, gradients and random state as they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import cleaning
from .._torch import inputs
from .._torch.addresses import innermost
from .._torch.containers import replace_tensors, tensors_in
from ..api import log_forward_pass
from ..errors import InvalidArgument
from ..history import ModelHistory
from ..log.options import LayersToSave


class Probe:
    """Runs a model on a fixed input, with a loss if there is one."""

    def __init__(
        self,
        model: Module,
        input: Any,
        *,
        loss_fn: Callable[..., Tensor] | None = None,
        target: Any = None,
        training: bool = False,
        seed: int = 0,
    ) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(f"model must be an nn.Module; got {type(model).__name__}.")
        if loss_fn is not None and not callable(loss_fn):
            raise InvalidArgument(f"loss_fn must be a function of the output and the target; got {type(loss_fn).__name__}.")
        self.given = model
        self.model = innermost(model)
        self.args, self.kwargs = as_arguments(input, self.model, seed)
        self.loss_fn = loss_fn
        self.target = target
        self.training = training

    def run(self, layers_to_save: LayersToSave = "all") -> ModelHistory:
        """Run the model once and return the history; by default every tensor is kept."""
        explained = inputs.explained(self.model, (self.args, self.kwargs), "Xray")
        with explained, _mode(self.model, self.training), torch.no_grad():
            return log_forward_pass(self.model, self.args, self.kwargs, layers_to_save=layers_to_save)

    def run_backward(self) -> tuple[ModelHistory, dict[str, Tensor], Tensor]:
        """Run the model and the backward pass of the loss. Returns the history, gradients by parameter name, and the loss."""
        assert self.loss_fn is not None
        with _mode(self.model, self.training), torch.inference_mode(False), torch.enable_grad():
            returned: list[Any] = []
            handle = self.model.register_forward_hook(lambda module, args, output: returned.append(output))
            try:
                history = log_forward_pass(self.model, self.args, self.kwargs, save_gradients=True)
            finally:
                handle.remove()
            output = _as_handed(returned[-1], history)
            loss = self.loss_fn(output) if self.target is None else self.loss_fn(output, self.target)
            if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                raise InvalidArgument(
                    "loss_fn must return one number that depends on the model's output; got "
                    + (f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__)
                    + (", which requires no gradient." if isinstance(loss, Tensor) and loss.numel() == 1 else ".")
                )
            named = {name: param for name, param in self.model.named_parameters() if param.requires_grad}
            gradients = torch.autograd.grad(loss.sum(), list(named.values()), allow_unused=True) if named else ()
        found = {name: grad for name, grad in zip(named, gradients, strict=True) if grad is not None}
        return history, found, loss.detach()


def _as_handed(output: Any, history: ModelHistory) -> Any:
    """Rebuild the model's output from the history's tensors: a buffer that the model returned is restored after the pass."""
    tensors, handed = tensors_in(output), [one.tensor_contents for one in history.outputs]
    if len(tensors) != len(handed) or all(map(is_, tensors, handed)):
        return output
    others = {id(tensor): other for tensor, other in zip(tensors, handed, strict=True)}
    return replace_tensors(output, lambda tensor: others.get(id(tensor), tensor))


@cleaning
def _mode(model: Module, training: bool) -> Iterator[None]:
    """Put every module into one mode, and afterwards back into its own mode: some modules may be frozen on purpose.

    Transformer layers of torch have a fused kernel for evaluation, which a training never takes and which hides everything
    inside; the probe goes without.
    """
    flags = [(module, module.training) for module in model.modules()]
    is_fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    for module, _ in flags:
        module.training = training
    yield
    torch.backends.mha.set_fastpath_enabled(is_fused)
    for module, flag in flags:
        module.training = flag


# Inputs -----------------------------------------------------------------------------------------------------------


def as_arguments(given: Any, model: Module, seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Make positional and named arguments from an input, or from sizes. The same sizes always give the same arguments."""
    if inputs.is_shape(given, 1):
        return (_made([given], model, seed)[0],), {}
    if isinstance(given, list) and given and all(inputs.is_shape(size, 1) for size in given):
        return tuple(_made(given, model, seed)), {}
    if given is None or isinstance(given, (str, int, float)) or inputs.is_shape(given, -math.inf):
        raise InvalidArgument(
            "an input is a tensor, a tuple of arguments, a dictionary of named arguments, a size such as (1, 3, 32, 32), or a "
            f"list of sizes; got {given!r}."
        )
    return inputs.as_arguments(model, given, call="Xray")


def _made(sizes: list[Any], model: Module, seed: int) -> list[Tensor]:
    """Normal random numbers of these sizes, on the model's device and in its dtype, from a generator of their own."""
    first = next((p for p in model.parameters() if p.is_floating_point()), None)
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):
        made = [torch.randn(tuple(size), generator=generator, device="cpu") for size in sizes]
        return [one.to(device=first.device, dtype=first.dtype) for one in made] if first is not None else made
