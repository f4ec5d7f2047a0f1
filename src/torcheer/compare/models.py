"""The calls that run models and compare what they did: `compare_models`, `assert_close`, `assert_unchanged`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from ..api import load, log_forward_pass
from ..capture.forward_backward import ForwardBackward
from ..containers import Arguments, find_tensors, shares_no_container
from ..errors import InvalidArgument
from ..history.fingerprint import is_fingerprint, is_same
from ..inputs import LEFT_OUT, as_arguments, refuse_read_once
from ..model_history import ModelHistory
from ..torch_internals import DisableTorchFunction
from .comparing import compare
from .comparison import Comparison
from .structure import changes_of_fingerprint, changes_of_structure


def compare_models(
    model_a: Callable[..., object],
    model_b: Callable[..., object],
    input_args: object = LEFT_OUT,
    input_kwargs: Mapping[str, object] | None = None,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    random_seed: int = 0,
) -> Comparison:
    """Run two models on one input and compare what they did, operation by operation.

    >>> import torch, torcheer
    >>> a, b = torch.nn.LayerNorm(4), torch.nn.LayerNorm(4, eps=1e-3)
    >>> print(torcheer.compare_models(a, b, torch.rand(2, 4)).headline)
    different: layernorm_1_1 differs: eps is 1e-05 in a and 0.001 in b

    Args:
        model_a: the model that is taken as right.
        model_b: the model that is compared with it.
        input_args, input_kwargs: as in `log_forward_pass`. Tensors are moved to the device of each model, floating-point ones
            to its dtype too.
        names, tolerance: as in `compare`.
        loss: a function of what a model returns that gives a number to run backward from: gradients are compared as well.
        random_seed: both passes start from it.
    """
    histories = []
    for model in (model_a, model_b):
        arguments = _for_model(model, as_arguments(model, input_args, input_kwargs, call="compare_models"))
        refuse_read_once(arguments, "compare_models")
        histories.append(_logged(model, arguments, loss, random_seed))
    return compare(histories[0], histories[1], names=names, tolerance=tolerance)


def _logged(
    model: Callable[..., object], arguments: Arguments, loss: Callable[[Any], Tensor] | None, seed: int
) -> ModelHistory:
    if loss is None:
        return log_forward_pass(model, *arguments, random_seed=seed)
    if not isinstance(model, Module) or not callable(loss):
        raise InvalidArgument(
            f"loss= takes a function and needs modules; got {type(loss).__name__} and {type(model).__name__}."
        )
    with torch.enable_grad():
        return log_forward_pass(ForwardBackward(model, False, loss), *arguments, random_seed=seed, save_gradients=True)


def _for_model(model: Any, arguments: Arguments) -> Arguments:
    """The arguments on the device of a model, floating-point ones in its dtype."""
    if not isinstance(model, Module):
        return arguments
    states = [*model.parameters(), *model.buffers()]
    dtype = next((state.dtype for state in states if state.is_floating_point()), None)
    device = next((state.device for state in states), None)
    replaced: dict[int, Tensor] = {}
    with DisableTorchFunction():
        for _, tensor in find_tensors(arguments):
            if tensor.is_meta:
                continue
            moved = tensor.detach().to(device=device, dtype=dtype if tensor.is_floating_point() else None)
            if moved.device != tensor.device or moved.dtype != tensor.dtype:
                replaced[id(tensor)] = moved.requires_grad_(tensor.requires_grad)
    return shares_no_container(arguments, replaced) if replaced else arguments


def assert_close(
    a: ModelHistory, b: ModelHistory, *, names: Mapping[str, str] | None = None, tolerance: float | None = None
) -> Comparison:
    """Raise an `AssertionError` with the verdict where two histories differ, or an output cannot be compared.

    Returns the comparison otherwise.
    """
    comparison = compare(a, b, names=names, tolerance=tolerance)
    if not comparison:
        raise AssertionError(str(comparison))
    return comparison


def assert_unchanged(
    model: Callable[..., object],
    input_args: object = LEFT_OUT,
    expected: str | os.PathLike[str] | ModelHistory | None = None,
    *,
    input_kwargs: Mapping[str, object] | None = None,
) -> str:
    """Raise an `AssertionError` that says what changed where a model does not run the operations it is expected to.

    >>> import torch, torcheer
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2)
    >>> expected = torcheer.log_forward_pass(model, x).fingerprint()
    >>> torcheer.assert_unchanged(model, x, expected) == expected
    True

    Args:
        model, input_args, input_kwargs: as in `log_forward_pass`.
        expected: a fingerprint, which tells how many operations ran, and whether functions, shapes or wiring changed; or a
            history or the path of a saved one, which tell the operations that changed.

    Only the structure counts: functions, shapes and what each was computed from; not names, weights or values. Returns the
    fingerprint.
    """
    if isinstance(expected, (str, os.PathLike)) and not is_fingerprint(expected):
        expected = load(expected)
    if not isinstance(expected, (str, ModelHistory)):
        raise InvalidArgument(
            f"expected is a fingerprint, a history or the path of a saved one; got {type(expected).__name__}."
        )
    history = log_forward_pass(model, input_args, input_kwargs, layers_to_save="none")
    found = history.fingerprint()
    wanted = expected if isinstance(expected, str) else expected.fingerprint()
    if is_same(found, wanted):
        return found
    said = f"the model does not run the operations it is expected to: its fingerprint is {found}, expected was {wanted}."
    changed = changes_of_fingerprint(wanted, history) if isinstance(expected, str) else changes_of_structure(expected, history)
    raise AssertionError("\n".join([said, *changed]))
