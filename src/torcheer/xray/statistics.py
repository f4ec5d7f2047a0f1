"""Statistics of a whole tensor, piece by piece, so that a large one needs little more memory; no outlier is dropped."""

from __future__ import annotations

import torch
from torch import Tensor

from .records import Statistics, finite

_POWERS = range(-27, 15)  # 2**-27 is 7.5e-9, 2**14 is 16,384
_POSITIVE = [2.0**power for power in _POWERS]

# Symmetric and logarithmic, the same for every tensor of every run, so that histograms can be compared and added. Bin 0 is
# everything up to the first edge, bin i lies between edges i - 1 and i, the last is everything from the last edge on. They are
# powers of two, because the exponent of a number is its bin then, which is ten times faster than to search for it.
BIN_EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE)
NUM_BINS = len(BIN_EDGES) + 1
ZERO_BIN = len(_POSITIVE)  # values nearer to zero than the smallest edge

# Values looked at together. On the processor so few that torch does not wake its other threads: the training needs them.
_PIECE = 1 << 15
_PIECE_ON_DEVICE = 1 << 24
_SIGN_AND_EXPONENT = 512  # what a float32 has


def statistics_of(tensor: Tensor) -> Statistics:
    """Statistics of a whole tensor, worked out on its own device."""
    flat = _as_float32(tensor)
    count = flat.numel()
    totals = torch.zeros(5, dtype=torch.float64, device="cpu")  # sum, sum of squares, zeros, not a number, infinite
    exponents = torch.zeros(_SIGN_AND_EXPONENT, dtype=torch.int64, device="cpu")
    low, high = float("inf"), float("-inf")
    for piece in pieces(flat):
        known = piece
        nan = inf = 0
        smallest, largest = (float(x) for x in piece.aminmax())
        if not (smallest >= -_LARGEST and largest <= _LARGEST):  # also true when one is not a number
            nan = int(piece.isnan().sum())
            known = piece[piece.isfinite()]
            inf = piece.numel() - known.numel() - nan
            if known.numel():
                smallest, largest = (float(x) for x in known.aminmax())
        wide = known.double()
        sums = [float(wide.sum()), float(wide.dot(wide)), float((known == 0).sum()), nan, inf]
        totals += torch.tensor(sums, dtype=torch.float64, device="cpu")
        if known.numel():
            low, high = min(low, smallest), max(high, largest)
            bits = known.view(torch.int32) >> 23 & (_SIGN_AND_EXPONENT - 1)
            exponents += torch.bincount(bits, minlength=_SIGN_AND_EXPONENT).cpu()
    total, squares, zeros, nan_count, inf_count = totals.tolist()
    number = count - int(nan_count) - int(inf_count)
    mean = total / number if number else float("nan")
    variance = max(squares / number - mean * mean, 0.0) if number else float("nan")
    return Statistics(
        count=count,
        mean=finite(mean),
        std=finite(variance**0.5),
        min=finite(low),
        max=finite(high),
        norm=finite(squares**0.5) if number else None,
        zeros=int(zeros),
        nan=int(nan_count),
        inf=int(inf_count),
        histogram=_binned(exponents.tolist()),
    )


_LARGEST = torch.finfo(torch.float32).max


def pieces(flat: Tensor) -> tuple[Tensor, ...]:
    """A row of values in pieces that are looked at together."""
    size = _PIECE if flat.device.type == "cpu" else _PIECE_ON_DEVICE
    return torch.split(flat, size) if flat.numel() else ()


def readable(tensor: Tensor) -> Tensor:
    """A tensor as one whose values can be read one by one: dense, and not quantized."""
    values = tensor.detach()
    if values.layout is not torch.strided:
        values = values.to_dense()
    return values.dequantize() if values.is_quantized else values


def _as_float32(tensor: Tensor) -> Tensor:
    """All values of a tensor of any kind in one row; the two parts of complex numbers count as two."""
    values = readable(tensor)
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.reshape(-1).float()


def _binned(exponents: list[int]) -> tuple[int, ...]:
    """Counts by sign and exponent as counts by bin."""
    bins = [0] * NUM_BINS
    first, last = _POWERS[0], _POWERS[-1]
    for code, count in enumerate(exponents):
        if count:
            power = (code & 255) - 127
            reach = 0 if power < first else min(power, last) - first + 1  # how many edges lie between it and zero
            bins[ZERO_BIN + (-reach if code > 255 else reach)] += count
    return tuple(bins)
