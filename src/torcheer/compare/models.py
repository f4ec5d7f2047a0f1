"""`compare_models`, `assert_close`, `assert_unchanged`: run models and compare them; describe structural changes in words."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._text import few, plural
from .._torch.containers import Arguments, find_tensors, shares_no_container
from .._torch.forward_backward import ForwardBackward
from .._torch.inputs import LEFT_OUT, as_arguments, refuse_read_once
from .._torch.internals import DisableTorchFunction
from .._torch.thread_state import thread_left_as_found
from ..api import load, log_forward_pass
from ..errors import InvalidArgument
from ..history import ModelHistory, Operation
from ..log.fingerprint import is_fingerprint, is_same, what_differs
from .alignment import Alignment, align
from .comparing import compare
from .comparison import Comparison
from .steps import Side

_MOST = 8  # a text lists at most this many changes or functions


def changes_of_fingerprint(wanted: str, now: ModelHistory) -> list[str]:
    """Lines that say how a model's structure differs from a fingerprint."""
    found = now.fingerprint()
    before, count = (int(one.partition("-")[0]) for one in (wanted, found))
    differs, same = what_differs(wanted, found)
    if before != count:
        lines = [f"It runs {plural(count, 'operation')} instead of {before}."]
    else:
        lines = [f"It still runs {plural(count, 'operation')}."]
        if differs:
            lines.append(f"Changed: {', '.join(differs)}. The same: {', '.join(same) or 'nothing'}.")
    types = Counter(operation.layer_type for operation in now.operations if operation.layer_type not in ("input", "output"))
    lines.append(f"It runs {few((f'{name} × {times}' for name, times in types.most_common()), _MOST)}.")
    lines.append(
        "A fingerprint cannot tell which operations changed. Save a history of the model as it should be, "
        "log_forward_pass(model, x, layers_to_save='none').save('expected.safetensors'), and give its path instead."
    )
    return lines


def changes_of_structure(expected: ModelHistory, now: ModelHistory) -> list[str]:
    """A line for each operation that only one history has, or that has another shape or other parents."""
    alignment = align(Side(expected), Side(now))
    a, b = alignment.a, alignment.b
    gone = [a.operation(number) for number in alignment.only_in(a)]
    new = [b.operation(number) for number in alignment.only_in(b)]
    lines = []
    for operation in gone:
        place = operation.layer_type, operation.containing_module
        twin = next((one for one in new if (one.layer_type, one.containing_module) == place), None)
        if twin is not None:
            new.remove(twin)
            lines.append(f"{_named(twin)} has shape {twin.tensor_shape}, expected was {operation.tensor_shape}")
        else:
            lines.append(f"{_named(operation)} does not run any more")
    lines += [f"{_named(operation)} is new" for operation in new]
    lines += [f"{_named(b.operation(number))} {what}" for number, what in _rewired(alignment)]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]


def _rewired(alignment: Alignment) -> list[tuple[int, str]]:
    """Find matched operations that now run another function, or have other parents or parameters, each with a phrase for it."""
    a, b = alignment.a, alignment.b
    found = []
    for number in sorted(alignment.of_b):
        one, other = a.log.operations[alignment.of_b[number]], b.log.operations[number]
        if one.function.type != other.function.type:
            found.append((number, f"runs instead of {a.index.label(one.number)}"))
            continue
        ours = [parent for parent in one.parents if parent >= 0]
        theirs = [alignment.of_b.get(parent) for parent in other.parents if parent >= 0]
        shapes = [
            [tuple(side.index.state(parent).tensor.shape) for parent in record.parents if parent < 0]
            for side, record in ((a, one), (b, other))
        ]
        if ours != theirs and None not in theirs:
            names = ", ".join(a.index.label(parent) for parent in ours if parent in a.index.positions)
            found.append((number, f"is computed from other tensors than expected ({names})"))
        elif shapes[0] != shapes[1]:
            found.append((number, "uses other parameters than expected"))
    return found


def _named(operation: Operation) -> str:
    module = operation.containing_module
    where = f" ({operation.source})" if operation.source is not None else ""
    return f"{operation.label}{f' in {module!r}' if module else ''}{where}"


# The calls that run models and compare them.


@thread_left_as_found
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
    """Run two models on one input and compare their operations one by one.

    >>> import torch, torcheer
    >>> a, b = torch.nn.LayerNorm(4), torch.nn.LayerNorm(4, eps=1e-3)
    >>> print(torcheer.compare_models(a, b, torch.rand(2, 4)).headline)
    different: layernorm_1_1 differs: eps is 1e-05 in a and 0.001 in b

    Args:
        model_a: the model that is taken as correct.
        model_b: the model that is compared with it.
        input_args, input_kwargs: as in `log_forward_pass`. Tensors are moved to the device of each model, and floating-point
            tensors converted to its dtype.
        names, tolerance: as in `compare`.
        loss: a function of a model's result that returns a scalar to run backward from; gradients are then compared as well.
        random_seed: the seed for both passes.
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
    """Move arguments to a model's device, and convert floating-point tensors to the model's dtype."""
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
    """Raise an `AssertionError` with the verdict if two histories differ, or if an output cannot be compared.

    Otherwise returns the comparison.
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
    """Raise an `AssertionError` that lists the changes if a model does not run the expected operations.

    >>> import torch, torcheer
    >>> model, x = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2)
    >>> expected = torcheer.log_forward_pass(model, x).fingerprint()
    >>> torcheer.assert_unchanged(model, x, expected) == expected
    True

    Args:
        model, input_args, input_kwargs: as in `log_forward_pass`.
        expected: a fingerprint, which shows the number of operations, and whether functions, shapes or wiring changed; or a
            history or the path of a saved history, which show the operations that changed.

    Only the structure counts: functions, shapes, and wiring; not names, weights or values. Returns the fingerprint.
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
    said = f"the model does not run the expected operations: its fingerprint is {found}, expected was {wanted}."
    changed = changes_of_fingerprint(wanted, history) if isinstance(expected, str) else changes_of_structure(expected, history)
    raise AssertionError("\n".join([said, *changed]))
