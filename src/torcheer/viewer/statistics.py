"""Statistics of a tensor, as the viewer shows them: of every value, piece by piece, so that little memory is needed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..torch_internals import DisableTorchFunction

BINS = 32
_PIECE = 1 << 16  # values that fit a processor's cache
_LARGE_PIECE = 1 << 24  # for other devices, where every question costs a round trip
_DENSE = 1 << 24  # values of the largest sparse tensor that is written out
_ORDINARY = (1e-15, 1e15)  # magnitudes whose squares float32 can hold


def statistics_of(tensor: Tensor) -> dict[str, Any] | None:
    """Count, range, moments and a histogram of the finite values; None of a tensor that holds no values.

    >>> import torch
    >>> found = statistics_of(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
    >>> found["count"], found["mean"], found["zeros"], found["nan"], found["histogram"]["counts"][-1]
    (4, 1.0, 1, 1, 1)

    Booleans are 0 and 1; of complex numbers the magnitudes are taken. The standard deviation is that of these values, not the
    estimate from a sample. Where all values are equal there is no histogram.
    """
    with DisableTorchFunction(), torch.no_grad():
        readable = dense(tensor)
        return _statistics(*_once(readable)) if readable is not None else None


def dense(tensor: Tensor) -> Tensor | None:
    """A tensor as one whose values can be read one by one; None where there are none to read."""
    if tensor.device.type == "meta" or torch.nn.parameter.is_lazy(tensor):
        return None
    if tensor.is_nested:
        parts = [part.reshape(-1) for part in tensor.unbind()]
        return torch.cat(parts) if parts else None
    if tensor.layout is not torch.strided:
        return tensor.detach().to_dense() if tensor.numel() <= _DENSE else None
    values = tensor.detach()
    return values.dequantize() if values.is_quantized else values


def real(values: Tensor) -> Tensor:
    """Values as floating-point numbers that can be computed with."""
    if values.is_complex():
        values = values.abs()
    if values.dtype in (torch.float32, torch.float64):
        return values
    exact = values.dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64)
    return values.double() if exact and values.device.type != "mps" else values.float()


def _once(values: Tensor) -> tuple[Tensor, int]:
    """Every value that is stored, in the order of memory, and for how many each stands (`expand` repeats without storing)."""
    times = 1
    for dimension, step in reversed(list(enumerate(values.stride()))):
        if step == 0 and values.shape[dimension] > 1:
            times *= values.shape[dimension]
            values = values.select(dimension, 0)
    steps = values.stride()
    order = sorted(range(values.dim()), key=lambda dimension: -steps[dimension])
    return values.permute(order).reshape(-1), times


def _pieces(flat: Tensor) -> Iterator[Tensor]:
    return map(real, torch.split(flat, _PIECE if flat.device.type == "cpu" else _LARGE_PIECE))


def _statistics(flat: Tensor, times: int) -> dict[str, Any]:
    nan = infinite = known = 0
    total, low, high = 0.0, math.inf, -math.inf
    for piece in _pieces(flat) if flat.numel() else ():
        smallest, largest = (float(end) for end in piece.aminmax())
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            without = int(piece.isnan().sum())
            finite = piece[piece.isfinite()]
            nan += without
            infinite += piece.numel() - finite.numel() - without
            piece = finite
            if not piece.numel():
                continue
            smallest, largest = (float(end) for end in piece.aminmax())
        known += piece.numel()
        low, high = min(low, smallest), max(high, largest)
        total += float(piece.sum(dtype=torch.float64) if _is_extreme(smallest, largest) else piece.sum())
    found: dict[str, Any] = {"count": flat.numel() * times, "nan": nan * times, "inf": infinite * times}
    if not known:
        return {**found, "min": None, "max": None, "mean": None, "std": None, "norm": None, "zeros": 0, "histogram": None}
    mean = total / known
    spread, zeros, counts = _second_look(flat, mean, low, high, is_partial=nan + infinite > 0)
    deviation, length = math.sqrt(spread / known), math.sqrt(max(spread + known * mean * mean, 0.0) * times)
    histogram = {"low": short(low), "high": short(high), "counts": [count * times for count in counts]} if counts else None
    numbers = {"min": low, "max": high, "mean": mean, "std": deviation, "norm": length}
    return {**found, **{name: short(value) for name, value in numbers.items()}, "zeros": zeros * times, "histogram": histogram}


def _second_look(flat: Tensor, mean: float, low: float, high: float, *, is_partial: bool) -> tuple[float, int, list[int]]:
    """The sum of squared deviations, the zeros, and the histogram (nothing where there is one value only)."""
    width = high - low
    is_spread = 0.0 < width < math.inf
    is_extreme = _is_extreme(low, high) or width < _ORDINARY[0]
    spread, zeros = 0.0, 0
    counts = torch.zeros(BINS, dtype=torch.int64, device="cpu")
    for piece in _pieces(flat):
        if is_partial:
            piece = piece[piece.isfinite()]
        if is_extreme and piece.device.type != "mps":
            piece = piece.double()
        away = piece - mean
        spread += float(torch.dot(away, away))
        zeros += piece.numel() - int(torch.count_nonzero(piece))
        if is_spread:
            bins = away.copy_(piece).sub_(low).mul_(BINS / width).clamp_(0, BINS - 1).to(torch.uint8)
            counts += torch.bincount(bins, minlength=BINS).cpu()
    return spread, zeros, counts.tolist() if is_spread else []


def _is_extreme(low: float, high: float) -> bool:
    return not _ORDINARY[0] < max(abs(low), abs(high)) < _ORDINARY[1]


def short(value: float) -> float | None:
    """A number with six digits; None where it is not finite."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
