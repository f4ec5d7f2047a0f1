"""Whether the gradients of a case are those of the plain model, bit by bit.

The plain model runs first, from the same seed: forward, then backward from the mean squares of what it returned. Its gradients
are those that torch leaves in parameters and inputs, and those that plain hooks see at the outputs of modules.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.modules import module as module_hooks

import torcheer
from torcheer._torch.addresses import roots_of, without_parallelism, wrapped_module
from torcheer._torch.containers import find_tensors, tensors_in
from torcheer._torch.internals import is_functorch_wrapped

from .cases import Built

Model = Callable[..., Any]
AGAIN = 3
Gradients = dict[str, Tensor | None]  # by name of the parameter, input or output of a module; None where there is none


class NothingToCompare(Exception):
    """The plain model has no gradients, or torch cannot compute them."""


class Comparison(NamedTuple):
    """How many gradients were compared, how many plain torch does not give twice, and what is wrong with the others."""

    compared: int
    unsteady: int
    problem: str | None


def compare_gradients(make: Callable[[], Built]) -> Comparison:
    """Compare the gradients of a logged model with those of the plain one. `make` builds it, the same one every time.

    A gradient is the same bits. Where it is not, the plain model runs a few times more: TorchScript computes otherwise once it
    knows what it is given, and some kernels (of bfloat16 in three dimensions) give something else every time.
    Raises `NothingToCompare` where the plain model has no way back.
    """
    make = partial(_with_gradients, make)
    expected = run_plainly(*make())
    found = run_logged(*make())
    wrong = [where for where, gradient in expected.items() if not same_bits(gradient, found.get(where))]
    unsteady: list[str] = []
    if any(expected[where] is not None and found.get(where) is not None for where in wrong):
        again = [run_plainly(*make()) for _ in range(AGAIN)]
        unsteady = [where for where in wrong if not all(same_bits(expected[where], plain[where]) for plain in again)]
    wrong = [where for where in wrong if where not in unsteady]
    problem = f"the gradient of {wrong[0]}: {difference(expected[wrong[0]], found.get(wrong[0]))}" if wrong else None
    compared = sum(gradient is not None for gradient in expected.values()) - len(unsteady)
    return Comparison(compared, len(unsteady), problem)


def _with_gradients(make: Callable[[], Built]) -> Built:
    """A model and its arguments; where it has no parameters, its inputs require gradients."""
    model, args, kwargs = make()
    if not any(parameter.requires_grad for parameter in named_parameters(model).values()):
        for _, tensor in find_tensors((args, kwargs)):
            if tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_()
    return model, args, kwargs


def run_logged(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gradients:
    """The gradients of the model as torcheer logs them."""
    seed()
    history = torcheer.log_forward_pass(model, args, kwargs, save_gradients=True, layers_to_save="none")
    passed = history.log_backward(loss_of([one.tensor_contents for one in history.outputs]))
    found: Gradients = dict(passed.param_grads)
    found |= {f"input {number}": passed._record.gradient(one._number) for number, one in enumerate(history.inputs, 1)}
    for number, call in enumerate(history._log.modules):
        found |= {_output(number, place): passed._record.gradient(one) for place, one in enumerate(call.outputs)}
    return found


def run_plainly(model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Gradients:
    """The gradients of the plain model."""
    model = without_parallelism(model)
    given = list({id(tensor): tensor for _, tensor in find_tensors((args, kwargs))}.values())
    seed()
    try:
        with without_fused_attention(), OutputHooks() as hooks:
            result = model(*args, **kwargs)
    except Exception as error:  # with gradients, torch allows less
        raise NothingToCompare(f"the plain model: {error}") from error
    outputs = [tensor for _, tensor in find_tensors(result)]
    parameters = named_parameters(model)
    for tensor in (*given, *parameters.values()):
        if tensor.is_leaf:
            tensor.grad = None  # of backward passes inside the model
    hooks.gradients.clear()
    loss = loss_of(outputs)
    try:
        loss.backward()
    except Exception as error:  # whatever a stranger's backward may raise
        raise NothingToCompare(f"the plain model: {error}") from error
    found: Gradients = {name: parameter.grad for name, parameter in parameters.items()}
    found |= {f"input {n}": tensor.grad for n, tensor in enumerate(given, 1) if tensor.is_leaf and tensor.requires_grad}
    return found | {place: hooks.gradients.get(place) for place in hooks.places}


def _output(call: int, place: int) -> str:
    return f"output {place} of module call {call}"


def loss_of(outputs: list[Tensor]) -> Tensor:
    """The sum of the mean squares of all outputs that have a way back."""
    parts = []
    for tensor in outputs:
        if tensor.requires_grad and not tensor.is_leaf and (tensor.is_floating_point() or tensor.is_complex()):
            dense = tensor.to_dense() if tensor.layout is not torch.strided else tensor
            values = torch.cat([one.flatten() for one in dense.unbind()]) if dense.is_nested else dense
            size = values.abs() if values.is_complex() else values
            parts.append(size.float().square().mean())
    if not parts:
        raise NothingToCompare("no output has a way back")
    return torch.stack(parts).sum()


class OutputHooks:
    """Plain hooks that see the gradients at the outputs of modules."""

    def __init__(self) -> None:
        self.places: list[str] = []
        self.gradients: dict[str, Tensor] = {}
        self._calls = 0
        self._running: list[tuple[object, int]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> OutputHooks:
        self._handles = [
            module_hooks.register_module_forward_pre_hook(self._enter),
            module_hooks.register_module_forward_hook(self._exit),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: Any, args: Any) -> None:
        if wrapped_module(module) is None:
            self._running.append((module, self._calls))
            self._calls += 1

    def _exit(self, module: Any, args: Any, result: Any) -> None:
        if not self._running or self._running[-1][0] is not module:
            return
        _, call = self._running.pop()
        for place, tensor in enumerate(tensors_in(result)):
            if tensor.requires_grad and not is_functorch_wrapped(tensor):
                self.places.append(_output(call, place))
                tensor.register_hook(self._keeper(_output(call, place)))

    def _keeper(self, place: str) -> Callable[[Tensor], None]:
        def keep(gradient: Tensor | None) -> None:
            if gradient is not None:
                self.gradients[place] = gradient.detach().clone()

        return keep


def named_parameters(model: Model) -> dict[str, Tensor]:
    """Every parameter of the modules a callable holds, named as a history names it."""
    return {
        ".".join(part for part in (prefix, name) if part): parameter
        for root, prefix in roots_of(model)
        for name, parameter in root.named_parameters()
    }


@contextlib.contextmanager
def without_fused_attention() -> Iterator[None]:
    """While a model is logged, attention does not take its fused path."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def seed() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients are the same; NaN is NaN."""
    if one is None or other is None:
        return one is other
    if one.dtype != other.dtype or one.layout != other.layout or one.is_nested != other.is_nested:
        return False
    if one.is_nested:
        return all(map(same_bits, one.unbind(), other.unbind()))
    one, other = (tensor.to_dense() if tensor.layout is not torch.strided else tensor for tensor in (one, other))
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())


def difference(one: Tensor | None, other: Tensor | None) -> str:
    if one is None or other is None:
        return "there is one where plain torch has none" if one is None else "it is missing"
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return f"{other.dtype} {tuple(other.shape)} {other.layout} instead of {one.dtype} {tuple(one.shape)} {one.layout}"
    return f"it differs by up to {(one - other).abs().max().item():.3g}, the largest is {one.abs().max().item():.3g}"
