"""The values of a tensor of any kind, as numbers that can be computed with."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

# Values looked at together: so few that they fit a processor's cache and that torch does not wake its other threads, which a
# training needs. On other devices every question costs a round trip.
_PIECE = 1 << 15
_PIECE_ON_DEVICE = 1 << 24
_PART = 1 << 20  # products that torch adds up in their own dtype
_DENSE = 1 << 24  # values of the largest sparse tensor that is written out


def dense(tensor: Tensor) -> Tensor | None:
    """A tensor as one whose values can be read one by one.

    None where there are none (meta, lazy, a very large sparse one, a class that does not compute with its values).
    """
    if is_lazy(tensor) or not computes(tensor):
        return None
    if tensor.is_nested:
        parts = [part.detach().reshape(-1) for part in tensor.unbind()]
        return torch.cat(parts) if parts else torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    if tensor.layout is not torch.strided:
        return tensor.detach().to_dense() if tensor.numel() <= _DENSE else None
    values = tensor.detach()
    return values.dequantize() if values.is_quantized else values


def computes(tensor: Tensor) -> bool:
    """False for a tensor without values, and for one of a subclass that raises where values are looked at (masked tensors)."""
    if tensor.device.type == "meta":
        return False
    if tensor.is_nested or tensor.layout is not torch.strided:
        return True
    if type(tensor) is Tensor or type(tensor) is Parameter:
        return True
    try:
        values = tensor.detach()
        values.permute(tuple(range(values.dim()))).reshape(-1)[:1].to(torch.float64).abs().tolist()
    except Exception:  # a class of the user's may raise anything
        return False
    return True


def real(values: Tensor) -> Tensor:
    """Values as floating-point numbers; of complex numbers the magnitudes."""
    if values.is_complex():
        return magnitudes(values)
    if values.dtype in (torch.float32, torch.float64):
        return values
    exact = values.dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64)
    return values.double() if exact and values.device.type != "mps" else values.float()


def norm(values: Tensor) -> Tensor:
    """The norm of real values. torch's own is off by 0.2 % for 40 million float32 values on the CPU."""
    if values.numel() <= _PART or not (values.is_cpu and values.dtype is torch.float32):
        whole: Tensor = torch.linalg.vector_norm(values)
        return whole
    flat = values.reshape(-1)
    return dot(flat, flat).sqrt()


def dot(one: Tensor, other: Tensor) -> Tensor:
    """The scalar product of two flat tensors. Parts of large ones are added up in float64, which torch's own does not do."""
    if one.numel() <= _PART or one.device.type == "mps":
        return torch.dot(one, other)
    parts = zip(torch.split(one, _PART), torch.split(other, _PART), strict=True)
    return torch.stack([torch.dot(mine, theirs) for mine, theirs in parts]).double().sum()


def magnitudes(values: Tensor) -> Tensor:
    """The magnitudes of complex numbers, in float64 where float32 may not hold them: that of 3e38 + 3e38j is 4.2e38."""
    return values.abs() if values.device.type == "mps" else values.to(torch.complex128).abs()


def stored(values: Tensor) -> tuple[Tensor, int]:
    """Every value that is stored, in the order of memory, and for how many each stands (`expand` repeats without storing)."""
    times = 1
    for dimension, step in reversed(list(enumerate(values.stride()))):
        if step == 0 and values.shape[dimension] > 1:
            times *= values.shape[dimension]
            values = values.select(dimension, 0)
    steps = values.stride()
    order = sorted(range(values.dim()), key=lambda dimension: -steps[dimension])
    return values.permute(order).reshape(-1), times


def pieces(flat: Tensor) -> tuple[Tensor, ...]:
    """A row of values in pieces that are looked at together."""
    size = _PIECE if flat.device.type == "cpu" else _PIECE_ON_DEVICE
    return torch.split(flat, size) if flat.numel() else ()


def finite(value: float) -> float | None:
    """The number; None if it is not finite, which JSON cannot hold."""
    return value if math.isfinite(value) else None


def short(value: float | None) -> float | None:
    """A number with six digits; None where it is not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None
