"""Compares tensors bit by bit, and says in a sentence where two tensors differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._torch.internals import DisableTorchFunction
from .._torch.memory import COMPRESSED, is_freed
from .._torch.shapes import shape_of
from .report import Check

_COMPARED = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(one: Any, other: Any) -> bool:
    """True if two tensors have the same dtype, shape and bits. For meta tensors, the device replaces the bits."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return one is other
    with DisableTorchFunction(), torch.no_grad():
        if one is other:
            return True
        if is_freed(one) or is_freed(other):
            return False
        if one.dtype != other.dtype or one.layout != other.layout or one.is_nested != other.is_nested:
            return False
        if _class_of(one) is not _class_of(other):
            return False
        ours, theirs = parts(one), parts(other)
        return len(ours) == len(theirs) and all(map(_same_plain, ours, theirs))


def parts(tensor: Tensor) -> list[Tensor]:
    """Return the plain tensors inside a sparse, nested, quantized or wrapper tensor; a plain tensor is its only part."""
    if _class_of(tensor) is not Tensor and _is_wrapper(tensor):
        return [part for inner in _inside(tensor) for part in parts(inner)]
    if tensor.is_nested:
        return [tensor.values()] if tensor.layout is torch.jagged else list(tensor.unbind())
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return [whole.indices(), whole.values()]
    if tensor.layout in COMPRESSED:
        return [getattr(tensor, name)() for name in COMPRESSED[tensor.layout]]
    if tensor.layout is not torch.strided:
        return [tensor.to_dense()]
    if tensor.is_quantized:
        return [tensor.int_repr(), *_quantiser(tensor)]
    return [tensor]


def _quantiser(tensor: Tensor) -> list[Tensor]:
    """The scales and zero points of a quantized tensor."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return [torch.tensor([tensor.q_scale(), tensor.q_zero_point()], dtype=torch.float64)]
    return [tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points(), torch.tensor([tensor.q_per_channel_axis()])]


def _class_of(tensor: Tensor) -> type:
    """The class of a tensor; `Tensor` for parameters."""
    return Tensor if type(tensor) is Parameter else type(tensor)


def _is_wrapper(tensor: Tensor) -> bool:
    """True if a tensor consists of inner tensors and has no memory of its own (DTensor, quantized weights)."""
    if _has_no_values(tensor):
        return False
    try:
        tensor.untyped_storage().data_ptr()
    except NotImplementedError:  # a sparse tensor
        return False
    except RuntimeError:
        return True
    return False


# values that a jagged tensor caches; they follow from its offsets
_WORKED_OUT = frozenset({"_min_seqlen_tensor", "_max_seqlen_tensor"})


def _inside(tensor: Any) -> list[Tensor]:
    if hasattr(tensor, "__tensor_flatten__"):
        names = tensor.__tensor_flatten__()[0]
    else:
        names = [*getattr(tensor, "__dict__", ()), *getattr(type(tensor), "__slots__", ())]
    values = [getattr(tensor, name, None) for name in sorted(names) if name not in _WORKED_OUT]
    return [value for value in values if isinstance(value, Tensor)]


def _same_plain(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if _has_no_values(one) or _has_no_values(other):
        return one.device == other.device
    if one.device != other.device:
        other = other.to(one.device)
    return torch.equal(_bits(one), _bits(other))


def _has_no_values(tensor: Tensor) -> bool:
    return tensor.device.type == "meta" or hasattr(tensor, "fake_mode")


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.dtype in _COMPARED:
        return tensor
    return tensor.contiguous().view(_WHOLE[tensor.element_size()])


def difference(one: Any, other: Any) -> str:
    """A sentence that says how the logged tensor (`one`) and the replayed tensor (`other`) differ."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return f"{type(one).__name__} was logged, {type(other).__name__} came"
    with DisableTorchFunction(), torch.no_grad():
        if _class_of(one) is not _class_of(other):
            return f"{_class_of(one).__name__} was logged, {_class_of(other).__name__} came"
        if shape_of(one) != shape_of(other) or one.dtype != other.dtype or one.layout != other.layout:
            return f"{_kind(one)} was logged, {_kind(other)} came"
        if one.device != other.device:
            return f"{_kind(one)} on {one.device} was logged, on {other.device} came"
        for a, b in zip(parts(one), parts(other), strict=False):
            if not _same_plain(a, b):
                return _first_difference(a, b)
    return "no difference"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape_of(tensor)}"


def _first_difference(one: Tensor, other: Tensor) -> str:
    if one.shape != other.shape:
        return f"{_kind(one)} was logged, {_kind(other)} came"
    different = (_bits(one) != _bits(other)).reshape(*one.shape, -1).any(-1)
    where = tuple(different.nonzero()[0].tolist()) if different.dim() else ()
    count = int(different.sum())
    values = f"{_value(one, where)} was logged, {_value(other, where)} came"
    return f"{count} of {one.numel()} values differ; at {list(where)} {values}"


def _value(tensor: Tensor, where: tuple[int, ...]) -> str:
    """One element as text; its bits if Python has no number type for the dtype."""
    try:
        return repr(tensor[where].item())
    except RuntimeError:  # NotImplementedError is a RuntimeError
        return f"bits {_bits(tensor)[where].item():#x}"


class Agreement:
    """Compares two values of a pass: bit by bit, or with a tolerance if the pass called nondeterministic functions."""

    def __init__(self, not_deterministic: Sequence[str] = ()) -> None:
        self._functions = ", ".join(not_deterministic)

    def __call__(self, check: Check, one: Any, other: Any) -> bool:
        if same_bits(one, other):
            return True
        if self._functions and isinstance(one, Tensor) and isinstance(other, Tensor) and is_close(one, other):
            check.exempt[f"compared with a tolerance, {self._functions} is not deterministic"] += 1
            return True
        return False


def is_close(one: Tensor, other: Tensor) -> bool:
    """True if two results of a nondeterministic function are equal within a tolerance."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout is not torch.strided:
        return False
    if one.device != other.device or _has_no_values(one) or _class_of(one) is not Tensor or _class_of(other) is not Tensor:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return False
    tolerance = 1e-2 if one.element_size() < 4 else 1e-4
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.detach().to(wide), other.detach().to(wide)
    size = one.abs().nan_to_num(0, 0, 0)  # NaN and infinity count as 0 in the tolerance
    largest = float(size.max()) if size.numel() else 0.0
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance * (largest + 1e-12), equal_nan=True)
