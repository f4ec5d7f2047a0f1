"""Colours of values: one scale for both signs, one for values that are never negative; colour-blind readers tell them apart.

Both scales change evenly in lightness, so they can be read in grey print as well. Their colours are those of
`_text/colors.py`, so that a figure, an animation and a page show the same value in the same colour, whatever is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .._text import colors
from ..errors import InvalidArgument
from .records import Entry
from .run import Run, limits_of
from .tiles import Array, Mosaic

ScaleName = Literal["run", "frame"]
SCALE_WORDS: dict[str, str] = {"run": "scale of the run", "frame": "scale of this step"}
_GRADIENTS = ("grad", "layer_grad")

GAP = (255, 255, 255)
INK = (22, 24, 29)
FAINT_SHARE = 0.1  # colours of a picture are faint if no value reaches this fraction of the scale's end
NUM_COLORS = 255  # odd, so that zero has a colour of its own in the middle of the scale with both signs


def _bytes(color: str) -> tuple[int, int, int]:
    red, green, blue = bytes.fromhex(color[1:])
    return red, green, blue


NONFINITE = _bytes(colors.NONFINITE)


@dataclass(frozen=True, slots=True)
class ColorScale:
    """Maps values to colours. Values beyond the ends have the colours of the ends."""

    low: float
    high: float

    @property
    def is_diverging(self) -> bool:
        return self.low < 0

    def shares(self, values: Array) -> Array:
        """The position of values between the ends, from 0 to 1; NaN stays NaN."""
        width = self.high - self.low
        return np.clip((np.asarray(values, np.float64) - self.low) / (width or 1.0), 0.0, 1.0)

    def levels(self, values: Array, count: int = NUM_COLORS) -> Array:
        """For each value: the number of its colour among `count` colours; 0 for NaN."""
        return np.rint(np.nan_to_num(self.shares(values)) * (count - 1)).astype(np.uint8)

    def colors(self, count: int = NUM_COLORS) -> Array:
        """`count` colours from the lowest value to the highest, as bytes of red, green and blue."""
        anchors = colors.BOTH_SIGNS if self.is_diverging else colors.NEVER_NEGATIVE
        stops = np.array([_bytes(anchor) for anchor in anchors], np.float64)
        at = np.linspace(0.0, len(stops) - 1.0, count)
        return np.stack([np.interp(at, np.arange(len(stops)), channel) for channel in stops.T], axis=1).round().astype(np.uint8)


def chosen_scale(kind: str, scale: ScaleName | None) -> ScaleName:
    """The scale that the user asked for. By default "run"; for gradients "frame", since gradients shrink."""
    return scale if scale is not None else "frame" if kind in _GRADIENTS else "run"


def scales_of(run: Run, layer: str, kind: str, scale: ScaleName) -> Callable[[Entry], ColorScale]:
    """A function from an entry of a layer and kind to its colours: fixed over the run, or fitted to the entry."""
    whole = ColorScale(*run.limits(layer, kind))

    def fitting(entry: Entry) -> ColorScale:
        low, high = limits_of(entry)
        reach = max(-low, high)
        return ColorScale(-reach, reach) if whole.is_diverging else ColorScale(low, high)

    return fitting if scale == "frame" else lambda entry: whole


def check_scale(scale: str | None) -> None:
    """Raise if a scale is neither "run" nor "frame"."""
    if scale is not None and scale not in SCALE_WORDS:
        raise InvalidArgument(f"scale is 'run' (colours fixed over the run) or 'frame' (of each step alone); got {scale!r}.")


def paint(mosaic: Mosaic, scale: ColorScale) -> Array:
    """A picture in bytes of red, green and blue. Values that are not finite have a colour of their own."""
    if mosaic.is_color:  # the values are the colours: zero is grey, the ends of the scale are black and full
        painted = np.rint(np.nan_to_num(scale.shares(mosaic.values)) * 255).astype(np.uint8)
    else:
        painted = scale.colors()[scale.levels(mosaic.values)]
    painted[mosaic.gaps] = GAP
    painted[mosaic.nonfinite] = NONFINITE
    return painted


def as_fractions(color: tuple[int, int, int]) -> tuple[float, ...]:
    """A colour as fractions from 0 to 1, as Matplotlib takes it."""
    return tuple(part / 255 for part in color)


def share_reached(mosaic: Mosaic, scale: ColorScale) -> float:
    """Divide the largest magnitude of the values by the end of the scale."""
    known = mosaic.values[np.isfinite(mosaic.values)].astype(np.float64)
    return float(abs(known).max() / scale.high) if known.size else 0.0


def reaches_beyond(mosaic: Mosaic, scale: ColorScale) -> tuple[bool, bool]:
    """Two flags: True if values lie below the scale; True if values lie above it."""
    known = mosaic.values[np.isfinite(mosaic.values)]
    if not known.size:
        return False, False
    slack = 1e-3 * (scale.high - scale.low)  # values were rounded to half precision, so a tiny excess does not count
    return bool(known.min() < scale.low - slack), bool(known.max() > scale.high + slack)
