"""Numbers about a tensor, for everybody who shows some: the graph page, Xray, its report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .internals import DisableTorchFunction

# The values of a tensor of any kind, as numbers that can be computed with.

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
    except Exception as error:  # a class of the user's may raise anything
        pass_interrupts_on(error)
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


# Statistics of every value of a tensor, piece by piece, so that a large one needs little more memory.

_POWERS = range(-27, 15)  # 2**-27 is 7.5e-9, 2**14 is 16,384
_POSITIVE = [2.0**power for power in _POWERS]

# The edges of fixed bins: symmetric and logarithmic, the same for every tensor, so that histograms can be compared and added.
# Bin 0 is everything up to the first edge, bin i lies between edges i - 1 and i, the last is everything from the last edge on.
# They are powers of two, because the exponent of a float32 is its bin then, which is ten times faster than to search for it.
BIN_EDGES: tuple[float, ...] = (*(-edge for edge in reversed(_POSITIVE)), *_POSITIVE)
NUM_BINS = len(BIN_EDGES) + 1
ZERO_BIN = len(_POSITIVE)  # values nearer to zero than the smallest edge
LINEAR_BINS = 32
_SIGN_AND_EXPONENT = 512  # what a float32 has
_ORDINARY = (1e-15, 1e15)  # magnitudes whose squares float32 can hold
_LARGEST = torch.finfo(torch.float32).max

Bins = Literal["fixed", "linear"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Statistics of all values of a tensor: truth values count as 0 and 1, complex numbers by their magnitudes.

    Mean, deviation, extremes and norm are over the finite values, None where there are none. The standard deviation is that of
    these values, not the estimate from a sample.
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
    histogram: tuple[int, ...]  # in fixed bins, see `BIN_EDGES`, or in linear ones from min to max; empty where they are equal

    @property
    def nonfinite(self) -> int:
        return self.nan + self.inf

    @property
    def zero_fraction(self) -> float:
        return self.zeros / self.count if self.count else 0.0


def statistics_of(tensor: Tensor, bins: Bins = "fixed") -> Statistics | None:
    """Statistics of a tensor, worked out on its own device; None where it has no values, as on the meta device.

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
    """What is known of the pieces so far. Deviations are summed around the mean so far, which loses no digits."""

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
        """Add the moments of a piece to those of the ones before."""
        total, apart = self.known + count, mean - self.mean
        self.spread += spread + apart * apart * (self.known * count / total)
        self.mean += apart * (count / total)
        self.known = total

    def statistics(self, count: int, times: int, histogram: tuple[int, ...]) -> Statistics:
        """The statistics of `count` values, each of which stands for `times`."""
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
    """Whether float32 can hold the squares of values between these two, as far as they matter."""
    return _ORDINARY[0] < max(abs(low), abs(high)) < _ORDINARY[1]


def _wide(values: Tensor) -> Tensor:
    return values.double() if values.device.type != "mps" else values


def _exponents(piece: Tensor) -> Tensor:
    """How many finite values have each sign and exponent."""
    if piece.dtype is not torch.float32:
        piece = piece.clamp(-_LARGEST, _LARGEST).float()  # beyond that they are in the last bins anyway
    bits = piece.view(torch.int32) >> 23 & (_SIGN_AND_EXPONENT - 1)
    return torch.bincount(bits, minlength=_SIGN_AND_EXPONENT).cpu()


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


def _linear(flat: Tensor, sums: _Sums) -> tuple[int, ...]:
    """Counts in equal bins from the smallest to the largest value; empty where all values are the same."""
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
