"""How far two tensors are apart, and how far they may be for their dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..measure import dot, norm
from ..tensor_memory import is_freed
from ..torch_internals import DisableTorchFunction

# How many units in the last place, relative to a tensor's scale, two ways to compute one operation may differ by.
_UNITS = {torch.float64: 32, torch.float32: 32, torch.float16: 8, torch.bfloat16: 4}
_OUTLIER = 1e4  # a value so many times a typical one, such as a mask's -1e9, does not count for the scale of the others
_SAMPLE = 4096
_WHOLE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two tensors are apart. `relative` is to the scale of the first: its largest value, outliers left out."""

    largest: float
    relative: float
    cosine: float
    ulps: int | None  # representable numbers between the two values that are furthest apart; None for other dtypes

    @property
    def is_none(self) -> bool:
        return self.largest == 0


NO_DIFFERENCE = Difference(0.0, 0.0, 1.0, 0)


def tolerance_of(one: torch.dtype, other: torch.dtype) -> float:
    """How large a relative error may be where the operation is the same: by the dtype with fewer digits; 0 for integers."""
    return max((_UNITS.get(dtype, 4) * torch.finfo(dtype).eps for dtype in (one, other) if _is_inexact(dtype)), default=0.0)


def lower(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """The dtype of two that has fewer digits."""
    if not _is_inexact(one) or not _is_inexact(other):
        return one
    return one if torch.finfo(one).eps >= torch.finfo(other).eps else other


def _is_inexact(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def is_measurable(value: Any) -> bool:
    """Whether values of a tensor can be compared: it has memory, and is of an ordinary layout."""
    if not isinstance(value, Tensor) or is_freed(value):
        return False
    return value.layout is torch.strided and not value.is_nested and not value.is_quantized and not value.is_meta


def difference(one: Tensor, other: Tensor) -> Difference | None:
    """How far two tensors of one shape are apart; None where that cannot be said."""
    with DisableTorchFunction(), torch.no_grad():
        if not is_measurable(one) or not is_measurable(other) or one.shape != other.shape:
            return None
        one, other = one.detach(), other.detach()
        if other.device != one.device:
            other = other.to(one.device)
        if one.dtype == other.dtype and torch.equal(one, other):
            return NO_DIFFERENCE
        return _measured(one, other)


def unusual_difference(one: Any, other: Any) -> Difference | None:
    """How far two sparse, quantised or nested tensors are apart; None where they are ordinary, or that cannot be said."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or is_measurable(one) or is_measurable(other):
        return None
    try:
        with DisableTorchFunction(), torch.no_grad():
            return difference(_dense(one.detach()), _dense(other.detach()))
    except (RuntimeError, NotImplementedError):  # torch does not convert it, or it does not fit into memory
        return None


def _dense(value: Tensor) -> Tensor:
    """The values as an ordinary tensor; the parts of a nested one after each other."""
    if value.is_nested:
        return torch.cat([part.reshape(-1) for part in value.unbind()])
    return value.dequantize() if value.is_quantized else value.to_dense()


def _measured(one: Tensor, other: Tensor) -> Difference:
    a, b = _wide(one).reshape(-1), _wide(other).reshape(-1)
    if a.dtype != b.dtype:
        a, b = a.double(), b.double()
    if a.numel() == 0 or torch.equal(a, b):
        return NO_DIFFERENCE
    a_finite, b_finite = torch.isfinite(a), torch.isfinite(b)
    cosine = 1.0
    is_finite = bool(a_finite.all()) and bool(b_finite.all())
    if not is_finite:
        if not bool(torch.equal(a_finite, b_finite)) or not _same_nonfinite(a[~a_finite], b[~b_finite]):
            return Difference(math.inf, math.inf, math.nan, None)
        a, b = a[a_finite], b[a_finite]
        if a.numel() == 0:
            return NO_DIFFERENCE
    apart = (a - b).abs()
    largest = float(apart.max())
    if largest == 0:
        return NO_DIFFERENCE
    sizes = a.abs()
    scale, has_outliers = _scale(sizes)
    if scale == 0:
        scale = float(b.abs().max())
    relative = float((apart / torch.clamp(sizes, min=scale)).max()) if has_outliers else largest / scale
    norms = float(norm(a)) * float(norm(b))
    if norms and math.isfinite(norms):
        cosine = min(1.0, float(dot(a, b)) / norms)
    ulps = _ulps(one, other, int(apart.argmax())) if is_finite else None
    return Difference(largest, relative, cosine, ulps)


def _wide(tensor: Tensor) -> Tensor:
    """The values in a dtype to compute with."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.resolve_neg()
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


def _same_nonfinite(one: Tensor, other: Tensor) -> bool:
    return bool(torch.equal(one.nan_to_num(0.0, 1.0, -1.0), other.nan_to_num(0.0, 1.0, -1.0)))


def _scale(sizes: Tensor) -> tuple[float, bool]:
    """The largest of these sizes, those left out that are far above a typical one; and whether there are such."""
    largest, mean = float(sizes.max()), float(sizes.mean(dtype=torch.float64))
    sample = sizes[:: max(1, sizes.numel() // _SAMPLE)]
    if largest <= 100 * mean and float(sample.min()) * _OUTLIER >= largest:
        return largest, False
    sample = sample[sample > 0]
    if sample.numel() == 0:
        return largest, False
    typical = float(sample.kthvalue(max(1, sample.numel() // 4)).values)
    if largest <= _OUTLIER * typical:
        return largest, False
    ordinary = sizes[sizes <= _OUTLIER * typical]
    return float(ordinary.max()), True


def _ulps(one: Tensor, other: Tensor, place: int) -> int | None:
    """How many representable numbers lie between two values; None where the dtypes differ or are no plain floats."""
    if one.dtype != other.dtype or not one.is_floating_point() or one.element_size() not in _WHOLE:
        return None
    ends = [_ordinal(tensor.reshape(-1)[place]) for tensor in (one, other)]
    return abs(ends[0] - ends[1])


def _ordinal(value: Tensor) -> int:
    """The position of a float among all floats of its dtype."""
    size = value.element_size()
    bits = int(value.clone().view(_WHOLE[size]).item())
    return bits if bits >= 0 else -(bits & ((1 << (8 * size - 1)) - 1))
