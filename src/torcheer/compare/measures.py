"""Differences between two tensors, and tolerances by dtype."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from .._torch.internals import DisableTorchFunction
from .._torch.measure import computes, dense, dot, norm
from .._torch.memory import is_freed
from ..replay.comparison import same_bits

# Two ways to compute one operation may differ by this many units in the last place of the tensor's largest value.
_UNITS = {torch.float64: 32, torch.float32: 32, torch.float16: 8, torch.bfloat16: 4}
# a dtype with a larger `eps` has few bits (float8): for such a dtype each error is compared with its own value
_FEW_BITS = 2**-5
# this fraction of the tensors' largest value is subtracted from each difference: operations of other dtypes may cause it
_SLACK = 1e-4
_OF_EACH_ROUNDING = 0.4  # the root mean square of the errors of one rounding, in units of `eps`; the largest is half an `eps`
_OUTLIER = 1e4  # values this many times larger than a typical value are outliers: a mask's -1e9 does not set the scale
_PROBABLE = 0.1  # the typical value is taken to be at least this, so that the 1 of a softmax is no outlier
_SAMPLE = 4096  # a typical value is found among at most this many values of a tensor
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # integer dtypes by size in bytes


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of two tensors. `relative` is relative to the scale of the first: its largest value without outliers."""

    largest: float
    relative: float
    cosine: float
    ulps: int | None  # number of representable numbers between the two values that differ most; None if dtypes differ

    @property
    def is_none(self) -> bool:
        return self.largest == 0

    @property
    def is_of_bits(self) -> bool:
        """True if values are equal but bits differ: 0.0 and -0.0, or another dtype."""
        return self.largest == 0 and self.ulps is None


NO_DIFFERENCE = Difference(0.0, 0.0, 1.0, 0)
SAME_VALUES = Difference(0.0, 0.0, 1.0, None)  # equal values with other bits: 0.0 and -0.0, or another dtype
INFINITE_DIFFERENCE = Difference(math.inf, math.inf, math.nan, None)  # NaN, or no value at all, in one tensor only


def tolerance_of(one: torch.dtype, other: torch.dtype) -> float:
    """The largest relative error between two equal operations, by the less precise dtype; 0 for integers."""
    return max(map(_tolerance, (one, other)))


def _tolerance(dtype: torch.dtype) -> float:
    units = 1 if has_few_bits(dtype) else _UNITS.get(dtype, 4)
    return units * torch.finfo(dtype).eps if _is_inexact(dtype) else 0.0


def has_few_bits(dtype: torch.dtype) -> bool:
    """True for float8 and smaller floats."""
    return _is_inexact(dtype) and torch.finfo(dtype).eps > _FEW_BITS


def most_by_rounding(eps: float, times: int) -> tuple[float, float]:
    """Return the largest relative error and the root mean square that this many roundings, one after another, explain."""
    return eps * min(4.0, max(1.0, math.sqrt(times) / 2)), eps * _OF_EACH_ROUNDING * min(4.0, math.sqrt(times))


def spread(one: Tensor, other: Tensor) -> float:
    """Divide the root mean square of the difference by that of the first tensor. Ignores values that are not finite."""
    a, b = _finite_pairs(one, other)
    size = float(a.square().mean()) if a.numel() else 0.0
    apart = float((a - b).square().mean()) if a.numel() else 0.0
    return math.sqrt(apart / size) if size else math.inf if apart else 0.0


def steps_apart(one: Tensor, other: Tensor, dtype: torch.dtype) -> float:
    """The largest difference of two tensors in rounding steps of `dtype`. The step of a value is `eps` times the value."""
    a, b = _finite_pairs(one, other)
    if a.numel() == 0:
        return 0.0
    facts, sizes = torch.finfo(dtype), torch.maximum(a.abs(), b.abs())
    beyond = ((a - b).abs() - _SLACK * float(sizes.max())).clamp(min=0)
    return float((beyond / (facts.eps * sizes.clamp(min=facts.smallest_normal))).max())


def _finite_pairs(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    with DisableTorchFunction(), torch.no_grad():
        a, b = (_wide(value.detach()).double().reshape(-1) for value in (one, other.to(one.device)))
        counts = torch.isfinite(a) & torch.isfinite(b)
        return a[counts], b[counts]


def lower(one: torch.dtype, other: torch.dtype) -> torch.dtype:
    """Of two dtypes, the less precise dtype."""
    if not _is_inexact(one) or not _is_inexact(other):
        return one
    return one if torch.finfo(one).eps >= torch.finfo(other).eps else other


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Round values to a less precise dtype. Finite values stay finite: they are clamped to the range of that dtype."""
    if not value.is_floating_point() or not dtype.is_floating_point or lower(value.dtype, dtype) == value.dtype:
        return value
    value = value.detach()
    fits = value.to(dtype).to(value.dtype)
    overflows = torch.isinf(fits) & torch.isfinite(value)
    if bool(overflows.any()):
        fits = torch.where(overflows, value.sign() * torch.finfo(dtype).max, fits)
    return fits


def _is_inexact(dtype: torch.dtype) -> bool:
    return (dtype.is_floating_point or dtype.is_complex) and _is_readable(dtype)


def is_measurable(value: Any) -> bool:
    """True if a tensor's values can be compared: it has memory, and an ordinary layout and dtype."""
    if not isinstance(value, Tensor) or is_freed(value):
        return False
    is_ordinary = value.layout is torch.strided and not value.is_nested and not value.is_quantized and not value.is_meta
    return is_ordinary and _is_readable(value.dtype) and computes(value)


@cache
def _is_readable(dtype: torch.dtype) -> bool:
    """True if torch can convert values of this dtype to numbers. For `int4`, `bits8` and others it only stores the bits."""
    try:
        torch.empty(1, dtype=dtype).to(torch.complex128)
    except RuntimeError:
        return False
    return True


def difference(
    one: Tensor | None, other: Tensor | None, *, ignored: Tensor | None = None, like: Tensor | None = None
) -> Difference | None:
    """The difference of two tensors of equal shape; None if one is missing or cannot be measured.

    Elements where `ignored` is True are left out; the result is None if it is True everywhere. The error is relative to the
    scale of `one`, or to that of the tensor `like` if that is larger.
    """
    with DisableTorchFunction(), torch.no_grad():
        if one is None or other is None or not is_measurable(one) or not is_measurable(other) or one.shape != other.shape:
            return None
        one, other = one.detach(), other.detach()
        if other.device != one.device:
            other = other.to(one.device)
        if ignored is not None:
            kept = ~ignored.to(one.device)
            one, other = one[kept], other[kept]
            if one.numel() == 0:
                return None
        return NO_DIFFERENCE if same_bits(one, other) else _measured(one, other, like)


def is_close(one: Tensor | None, other: Tensor | None, tolerance: float) -> bool:
    """True if two tensors are known to differ by no more than the tolerance."""
    apart = difference(one, other)
    return apart is not None and apart.relative <= tolerance


def difference_of_any(one: Any, other: Any) -> Difference | None:
    """The difference of two values of any layout, including sparse, quantised and nested.

    None if a value cannot be read, unless the two have the same bits.
    """
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or is_freed(one) or is_freed(other):
        return None
    with DisableTorchFunction(), torch.no_grad():
        if _part_shapes(one) != _part_shapes(other):
            return INFINITE_DIFFERENCE
        apart = difference(dense(one), dense(other))
        return NO_DIFFERENCE if apart is None and not one.is_meta and same_bits(one, other) else apart


def _part_shapes(value: Tensor) -> list[torch.Size]:
    return [part.shape for part in value.unbind()] if value.is_nested else [value.shape]


def absolute_values(tensor: Tensor) -> Tensor:
    """The absolute values of a tensor, in a dtype torch computes with; for complex numbers, of real and imaginary parts."""
    return _wide(tensor.detach()).abs()


def _measured(one: Tensor, other: Tensor, like: Tensor | None) -> Difference:
    if one.is_complex() is not other.is_complex():
        one, other = one.to(torch.complex128), other.to(torch.complex128)
    a, b = _wide(one).reshape(-1), _wide(other).reshape(-1)
    if a.dtype != b.dtype:
        a, b = a.double(), b.double()
    if a.numel() == 0:
        return NO_DIFFERENCE
    if torch.equal(a, b):
        return SAME_VALUES
    a_finite, b_finite = torch.isfinite(a), torch.isfinite(b)
    is_finite = bool(a_finite.all()) and bool(b_finite.all())
    if not is_finite:
        if not torch.equal(a_finite, b_finite) or not _same_nonfinite(a[~a_finite], b[~b_finite]):
            return INFINITE_DIFFERENCE
        a, b = a[a_finite], b[a_finite]
        if a.numel() == 0:
            return SAME_VALUES
    apart = (a - b).abs()
    largest = float(apart.max())
    if largest == 0:
        return SAME_VALUES
    sizes = a.abs()
    scale, has_outliers = _scale(sizes)
    scale = max(scale, _scale_of(like))
    if scale == 0:
        scale = float(b.abs().max())
    relative = float((apart / torch.clamp(sizes, min=scale)).max()) if has_outliers else largest / scale
    norms = float(norm(a)) * float(norm(b))
    cosine = min(1.0, float(dot(a, b)) / norms) if norms and math.isfinite(norms) else 1.0
    ulps = _ulps(one, other, int(apart.argmax())) if is_finite else None
    return Difference(largest, relative, cosine, ulps)


def _scale_of(tensor: Tensor | None) -> float:
    """The scale of the finite values of a tensor; 0 if there are none."""
    if tensor is None or not is_measurable(tensor):
        return 0.0
    sizes = absolute_values(tensor).reshape(-1)
    sizes = sizes[torch.isfinite(sizes)]
    return _scale(sizes)[0] if sizes.numel() else 0.0


def _wide(tensor: Tensor) -> Tensor:
    """The values in a dtype that can be computed with."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.dtype in (torch.float32, torch.float64):
        return tensor.resolve_neg()
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


def _same_nonfinite(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(0.0, 1.0, -1.0), other.nan_to_num(0.0, 1.0, -1.0))


def _scale(sizes: Tensor) -> tuple[float, bool]:
    """Return the largest of these absolute values except outliers, and whether there are outliers."""
    largest, mean = float(sizes.max()), float(sizes.mean(dtype=torch.float64))
    sample = sizes[:: max(1, sizes.numel() // _SAMPLE)]
    if largest <= 100 * mean and float(sample.min()) * _OUTLIER >= largest:
        return largest, False
    sample = sample[sample > 0]
    if sample.numel() == 0:
        return largest, False
    typical = float(sample.kthvalue(max(1, sample.numel() // 4)).values)
    most = _OUTLIER * max(typical, _PROBABLE)
    if largest <= most:
        return largest, False
    ordinary = sizes[sizes <= most]
    return float(ordinary.max()), True


def _ulps(one: Tensor, other: Tensor, place: int) -> int | None:
    """Count the representable numbers between the elements at `place`; None if the dtypes differ or are not plain floats."""
    if one.dtype != other.dtype or not one.is_floating_point() or one.element_size() not in _INTEGERS:
        return None
    return abs(_ordinal(one.reshape(-1)[place]) - _ordinal(other.reshape(-1)[place]))


def _ordinal(value: Tensor) -> int:
    """The position of a float among all floats of its dtype."""
    size = value.element_size()
    bits = int(value.clone().view(_INTEGERS[size]).item())
    return bits if bits >= 0 else -(bits & ((1 << (8 * size - 1)) - 1))
