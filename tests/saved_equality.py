"""Whether a loaded history is the one that was saved: every text it makes and every tensor it holds."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

import torcheer
from torcheer.errors import TorcheerError
from torcheer.pictures.dot import dot_text
from torcheer.pictures.drawing import make_drawing
from torcheer.pictures.options import PictureOptions
from torcheer.pictures.views import views


def texts_of(history: torcheer.ModelHistory) -> dict[str, Any]:
    """Everything printed and paged of a history, and what Graphviz is given to draw it."""
    found: dict[str, Any] = {
        "print": str(history),
        "card": history._card_text(),
        "modules": str(history.modules),
        "module": [str(one) for one in history.modules.values()],
        "calls": [str(call) for one in history.modules.values() for call in one.calls],
        "layers": [str(layer) for layer in history],
        "operations": [str(one) for one in history.operations],
        "keys": history.keys(),
        "rows": [{key: repr(value) for key, value in row.items()} for row in history.to_rows()],
        "reads": [repr(read) for read in history.python_reads],
        "notes": history.notes,
        "stacks": [list(map(str, one.stack)) for one in history.operations],
        "params": [repr(one) for one in (*history.params.values(), *history.buffers.values())],
        "summary": str(history.summary()),
        "cost": repr(history.cost.flops) + repr(sorted(history.cost.unknown.items())),
        "memory": str(history.memory),
        "backward": [repr(one) for one in history.backward_passes],
        "nodes": [repr(node) for one in history.backward_passes for node in one.operations],
        "calls_between": str(history.module_calls),
        "page": history.to_json(),
        "explorer": repr(history.to_model_explorer()),
        "seed": history.random_seed,
        "times": history.time_by_phase,
    }
    for options in ({"rolled": True}, {"rolled": False, "nesting_depth": 2}, {"rolled": True, "show_buffers": True}):
        chosen = PictureOptions(**options)
        found[f"dot {options}"] = dot_text(make_drawing(next(views(history.graph, chosen)), chosen))
    return found


def differences(one: torcheer.ModelHistory, other: torcheer.ModelHistory) -> list[str]:
    """In what two histories differ, in words."""
    found = []
    ours, theirs = texts_of(one), texts_of(other)
    for key, text in ours.items():
        if text != theirs[key]:
            found.append(f"{key}: {first_difference(text, theirs[key])}")
    found += tensor_differences(one, other)
    return found


def first_difference(one: Any, other: Any) -> str:
    if isinstance(one, str) and isinstance(other, str):
        place = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return f"…{one[max(0, place - 60) : place + 60]!r} is …{other[max(0, place - 60) : place + 60]!r}"
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(first_difference(a, b) for a, b in zip(one, other, strict=True) if a != b)
    return f"{one!r:.300} is {other!r:.300}"


def tensor_differences(one: torcheer.ModelHistory, other: torcheer.ModelHistory) -> list[str]:
    found = []
    ours, theirs = kept_tensors(one), kept_tensors(other)
    if ours.keys() != theirs.keys():
        return [f"one has {ours.keys() ^ theirs.keys()} alone"]
    for name, tensor in ours.items():
        if isinstance(tensor, str):
            # an error; addresses of objects may be in it
            if re.sub("0x[0-9a-f]+", "", tensor) != re.sub("0x[0-9a-f]+", "", str(theirs[name])):
                found.append(f"{name}: {tensor} is {theirs[name]}")
        elif not same_tensor(tensor, theirs[name]):
            found.append(f"{name}: {describe(tensor)} is {describe(theirs[name])}")
    if sharing(ours) != sharing(theirs):
        found.append("other tensors share memory")
    return found


def kept_tensors(history: torcheer.ModelHistory) -> dict[str, Any]:
    """Every tensor that a history holds, by a name; where there is an error in its place, that."""
    found: dict[str, Any] = {}
    for one in history.operations:
        if one.has_saved_activations:
            found[one.layer_label_w_pass] = asked(lambda one=one: one.tensor_contents)
        for turn, gradient in enumerate(one.grads):
            found[f"{one.layer_label_w_pass} grad {turn}"] = gradient
    for turn, passed in enumerate(history.backward_passes):
        for name, gradient in passed.param_grads.items():
            found[f"{name} grad {turn}"] = gradient
    for number, details in history._log.details.items():
        for slot, held in (details.held or {}).items():
            found[f"argument {number} {slot}"] = held.value
    return found


def asked(question: Any) -> Any:
    try:
        return question()
    except TorcheerError as error:
        return f"{type(error).__name__}: {error}"


def describe(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        return repr(tensor)
    strides = tensor.stride() if tensor.layout is torch.strided and not tensor.is_nested else ""
    return f"{tensor.dtype} {tuple(tensor.shape) if not tensor.is_nested else 'nested'} {strides} {tensor.layout}"


def same_tensor(one: Any, other: Any) -> bool:
    """Bit for bit, with type, shape, strides and layout."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and repr(one) == repr(other)
    if (one.dtype, one.layout, one.is_nested, one.is_quantized) != (
        other.dtype,
        other.layout,
        other.is_nested,
        other.is_quantized,
    ):
        return False
    if one.is_nested:
        return _same_parts(one, other)
    if one.is_quantized:
        return one.stride() == other.stride() and torch.equal(one.int_repr(), other.int_repr()) and str(one) == str(other)
    if one.device.type == "meta":
        return (one.shape, one.stride(), other.device) == (other.shape, other.stride(), one.device)
    if one.layout is not torch.strided:
        return torch.equal(one.to_dense(), other.to_dense()) and one.shape == other.shape
    if (one.shape, one.stride(), one.is_conj(), one.is_neg()) != (other.shape, other.stride(), other.is_conj(), other.is_neg()):
        return False
    return bits(one) == bits(other)


def _same_parts(one: Any, other: Any) -> bool:
    if one.device.type == "meta":  # its lengths are not known
        return same_tensor(one._values, other._values) and same_tensor(one._offsets, other._offsets)
    return len(one.unbind()) == len(other.unbind()) and all(
        same_tensor(a, b) for a, b in zip(one.unbind(), other.unbind(), strict=True)
    )


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().cpu()
    if flat.dtype in (torch.int4, torch.uint4):
        flat = flat.view(torch.uint8)
    flat = torch.empty(flat.shape, dtype=flat.dtype).copy_(flat).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def sharing(tensors: dict[str, Any]) -> list[set[str]]:
    """Which tensors overlap in memory: those that a write to one would show in."""
    by_storage: dict[int, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor) or tensor.is_nested or tensor.layout is not torch.strided or not tensor.numel():
            continue
        begin = tensor.storage_offset() * tensor.element_size()
        reach = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        by_storage.setdefault(tensor.untyped_storage()._cdata, []).append((begin, begin + reach * tensor.element_size(), name))
    found = []
    for windows in by_storage.values():
        end = -1
        for first, last, name in sorted(windows, key=lambda one: (one[0], -one[1])):
            if first >= end:
                found.append(set())
            found[-1].add(name)
            end = max(end, last)
    return sorted((group for group in found if len(group) > 1), key=sorted)


def graph_of(history: torcheer.ModelHistory) -> list[tuple[Any, ...]]:
    """Everything about the operations of a history that options must not change."""
    return [
        (
            *(operation.label, operation.func_applied_name, tuple(operation.tensor_shape), operation.tensor_dtype),
            *(operation.parent_layers, operation.child_layers, operation.parent_arg_positions),
            *(operation.containing_modules, operation.modules_exited, operation.is_inplace),
            *(operation.output_path, operation.composite, [param.name for param in operation.parent_params]),
            str(operation.source),
        )
        for operation in history.operations
    ]
