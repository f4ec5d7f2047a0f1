"""Statistics of a tensor's values, for the graph page, Xray and its report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .internals import DisableTorchFunction

# Converts any tensor to values that torch can compute with.

# Process this many values at once: few enough to fit a CPU cache and to keep torch on one thread, so that a training can use
# the other threads. On other devices more values are processed at once, because every read costs a round trip.
_PIECE = 1 << 15
_PIECE_ON_DEVICE = 1 << 24
_PART = 1 << 20  # let torch sum at most this many products in their own dtype
_DENSE = 1 << 24  # do not convert a sparse tensor with more elements than this


def dense(tensor: Tensor) -> Tensor | None:
    """Convert a tensor so that its values can be read one by one.

    None if it has no values (meta, lazy), is a very large sparse tensor, or its class does not support computation.
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
    """False if a tensor has no values, or if its subclass raises when values are read (masked tensors)."""
    if tensor.device.type == "meta":
        return False
    if tensor.is_nested or tensor.layout is not torch.strided:
        return True
    if type(tensor) is Tensor or type(tensor) is Parameter:
        return True
    try:
        values = tensor.detach()
        values.permute(tuple(range(values.dim()))).reshape(-1)[:1].to(torch.float64).abs().tolist()
    except Exception as error:  # a class of the user's may raise anything
        pass_interrupts_on(error)
        return False
    return True


def real(values: Tensor) -> Tensor:
    """Convert values to real floating-point numbers; complex numbers become their magnitudes."""
    if values.is_complex():
        return magnitudes(values)
    if values.dtype in (torch.float32, torch.float64):
        return values
    exact = values.dtype in (torch.int32, torch.int64, torch.uint32, torch.uint64)
    return values.double() if exact and values.device.type != "mps" else values.float()


def norm(values: Tensor) -> Tensor:
    """The norm of real values. `torch.norm` is off by 0.2 % for 40 million float32 values on the CPU."""
    if values.numel() <= _PART or not (values.is_cpu and values.dtype is torch.float32):
        whole: Tensor = torch.linalg.vector_norm(values)
        return whole
    flat = values.reshape(-1)
    return dot(flat, flat).sqrt()


def dot(one: Tensor, other: Tensor) -> Tensor:
    """The dot product of two flat tensors. Unlike in torch, parts of large tensors are summed in float64."""
    if one.numel() <= _PART or one.device.type == "mps":
        return torch.dot(one, other)
    parts = zip(torch.split(one, _PART), torch.split(other, _PART), strict=True)
    return torch.stack([torch.dot(mine, theirs) for mine, theirs in parts]).double().sum()


def magnitudes(values: Tensor) -> Tensor:
    """The magnitudes of complex numbers, in float64 because float32 may overflow: the magnitude of 3e38 + 3e38j is 4.2e38."""
    return values.abs() if values.device.type == "mps" else values.to(torch.complex128).abs()


def stored(values: Tensor) -> tuple[Tensor, int]:
    """Return all stored values in memory order, and how often each counts: `expand` repeats values without storing them."""
    times = 1
    for dimension, step in reversed(list(enumerate(values.stride()))):
        if step == 0 and values.shape[dimension] > 1:
            times *= values.shape[dimension]
            values = values.select(dimension, 0)
    steps = values.stride()
    order = sorted(range(values.dim()), key=lambda dimension: -steps[dimension])
    return values.permute(order).reshape(-1), times


def pieces(flat: Tensor) -> tuple[Tensor, ...]:
    """Split the values into pieces that are processed one at a time."""
    size = _PIECE if flat.device.type == "cpu" else _PIECE_ON_DEVICE
    return torch.split(flat, size) if flat.numel() else ()


def finite(value: float) -> float | None:
    """The number, or None if it is not finite, because JSON cannot hold it."""
    return value if math.isfinite(value) else None


def short(value: float | None) -> float | None:
    """The number with six digits, or None if it is not finite."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


# Statistics of all values of a tensor, computed piece by piece to need little memory.

_POWERS = range(-27, 15)  # 2**-27 is 7.5e-9, 2**14 is 16,384
_POSITIVE = [2.0**power for power in _POWERS]

# The edges of the fixed bins: symmetric and logarithmic, the same for every tensor, so that histograms can be compared and
# added. Bin 0 has everything up to the first edge, bin i lies between edges i - 1 and i, the last bin has everything from
# the last edge on. The edges are powers of two, because then the exponent of a float32 is its bin, which is ten times faster
# than a search.
BIN_EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE)
NUM_BINS = len(BIN_EDGES) + 1
ZERO_BIN = len(_POSITIVE)  # values closer to zero than the smallest edge
LINEAR_BINS = 32
_SIGN_AND_EXPONENT = 512  # combinations of sign and exponent in a float32
_ORDINARY = (1e-15, 1e15)  # float32 can hold the squares of values whose magnitudes are in this range
_LARGEST = torch.finfo(torch.float32).max

Bins = Literal["fixed", "linear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of all values of a tensor. Booleans count as 0 and 1, complex numbers by their magnitudes.

    Mean, deviation, extremes and norm are over the finite values; None if there are none. The standard deviation is of these
    values, not the estimate from a sample.
    """

    count: int
    mean: float | None
    std: float | None
    min: float | None
    max: float | None
    norm: float | None
    zeros: int
    nan: int
    inf: int
    # counts in fixed bins (`BIN_EDGES`) or in linear bins from min to max; empty if all values are equal
    histogram: tuple[int, ...]

    @property
    def nonfinite(self) -> int:
        return self.nan + self.inf

    @property
    def zero_fraction(self) -> float:
        return self.zeros / self.count if self.count else 0.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread inside the block: many small reductions are faster so, mostly on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def statistics_of(tensor: Tensor, bins: Bins = "fixed") -> Statistics | None:
    """Statistics of a tensor, computed on its own device; None if it has no values, as on the meta device.

    >>> import torch
    >>> found = statistics_of(torch.tensor([0.0, 1.0, 2.0, float("nan")]))
    >>> found.count, found.mean, found.zeros, found.nan, sum(found.histogram)
    (4, 1.0, 1, 1, 3)
    """
    with DisableTorchFunction(), torch.no_grad():
        readable = dense(tensor)
        if readable is None:
            return None
        flat, times = stored(readable)
        sums = _Sums()
        for piece in pieces(flat):
            sums.add(real(piece), by_exponent=bins == "fixed")
        histogram = _binned(sums.exponents.tolist()) if bins == "fixed" else _linear(flat, sums)
        return sums.statistics(flat.numel(), times, histogram)


class _Sums:
    """Running statistics of a tensor that is read in pieces. Deviations are taken from the running mean, to lose no digits."""

    def __init__(self) -> None:
        self.known = self.zeros = self.nan = self.inf = 0
        self.low, self.high = math.inf, -math.inf
        self.mean = self.spread = 0.0  # spread: the sum of squared deviations from the mean
        self.exponents = torch.zeros(_SIGN_AND_EXPONENT, dtype=torch.int64, device="cpu")

    def add(self, piece: Tensor, *, by_exponent: bool) -> None:
        smallest, largest = (float(end) for end in piece.aminmax())
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            nan, finite = int(piece.isnan().sum()), piece[piece.isfinite()]
            self.nan += nan
            self.inf += piece.numel() - finite.numel() - nan
            piece = finite
            if not piece.numel():
                return
            smallest, largest = (float(end) for end in piece.aminmax())
        self.low, self.high = min(self.low, smallest), max(self.high, largest)
        self.zeros += piece.numel() - int(torch.count_nonzero(piece))
        if by_exponent:
            self.exponents += _exponents(piece)
        if not _has_ordinary_squares(smallest, largest):
            piece = _wide(piece)
        mean = float(piece.sum()) / piece.numel()
        away = piece - mean
        self._merge(piece.numel(), mean, float(torch.dot(away, away)))

    def _merge(self, count: int, mean: float, spread: float) -> None:
        """Add the mean and squared deviations of a piece to the running sums."""
        total, apart = self.known + count, mean - self.mean
        self.spread += spread + apart * apart * (self.known * count / total)
        self.mean += apart * (count / total)
        self.known = total

    def statistics(self, count: int, times: int, histogram: tuple[int, ...]) -> Statistics:
        """Return the statistics of `count` stored values; each value counts `times` times."""
        some = self.known > 0
        return Statistics(
            count=count * times,
            mean=finite(self.mean) if some else None,
            std=finite(math.sqrt(self.spread / self.known)) if some else None,
            min=self.low if some else None,
            max=self.high if some else None,
            norm=finite(math.sqrt((self.spread + self.known * self.mean * self.mean) * times)) if some else None,
            zeros=self.zeros * times,
            nan=self.nan * times,
            inf=self.inf * times,
            histogram=tuple(found * times for found in histogram),
        )


def _has_ordinary_squares(low: float, high: float) -> bool:
    """True if float32 can hold the squares of values in this range without loss."""
    return _ORDINARY[0] < max(abs(low), abs(high)) < _ORDINARY[1]


def _wide(values: Tensor) -> Tensor:
    return values.double() if values.device.type != "mps" else values


def _exponents(piece: Tensor) -> Tensor:
    """Count the finite values of each sign and exponent."""
    if piece.dtype is not torch.float32:
        piece = piece.clamp(-_LARGEST, _LARGEST).float()  # larger values are in the first or last bin anyway
    bits = piece.view(torch.int32) >> 23 & (_SIGN_AND_EXPONENT - 1)
    return torch.bincount(bits, minlength=_SIGN_AND_EXPONENT).cpu()


def _binned(exponents: list[int]) -> tuple[int, ...]:
    """Convert counts by sign and exponent to counts by bin."""
    bins = [0] * NUM_BINS
    first, last = _POWERS[0], _POWERS[-1]
    for code, count in enumerate(exponents):
        if count:
            power = (code & 255) - 127
            reach = 0 if power < first else min(power, last) - first + 1  # the number of edges between the value and zero
            bins[ZERO_BIN + (-reach if code > 255 else reach)] += count
    return tuple(bins)


def _linear(flat: Tensor, sums: _Sums) -> tuple[int, ...]:
    """Count values in equal bins from the smallest to the largest value; empty if all values are equal."""
    width = sums.high - sums.low
    if not 0.0 < width < math.inf:
        return ()
    counts = torch.zeros(LINEAR_BINS, dtype=torch.int64, device="cpu")
    for piece in map(real, pieces(flat)):
        if sums.nan or sums.inf:
            piece = piece[piece.isfinite()]
        if width < _ORDINARY[0] or not _has_ordinary_squares(sums.low, sums.high):
            piece = _wide(piece)
        places = (piece - sums.low).mul_(LINEAR_BINS / width).clamp_(0, LINEAR_BINS - 1).to(torch.uint8)
        counts += torch.bincount(places, minlength=LINEAR_BINS).cpu()
    return tuple(counts.tolist())
