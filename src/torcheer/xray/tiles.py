"""Turns the kept part of a tensor into one picture: tiles side by side, as plain arrays. Nothing here knows colours or figures.

A picture is near a wanted shape, whatever the number of tiles. Tiles are one pixel apart; small tiles are enlarged by a whole
factor, so that the gap stays thin. Every tile knows the number of its channel in the whole tensor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import InvalidArgument
from .records import Entry, misfit

Array = Any  # a NumPy array; NumPy's types are not followed

ASPECT = 1.2  # the wanted width of a picture, divided by its height; 8, 16, 32 and 64 square tiles then fill their rows
_GAP = 1
_LEAST = 12  # the least number of pixels of a tile's longer side
_LONE = 0.7  # cost if the last row has a single tile; for comparison, a picture that is e times too wide costs 1
_RAGGED = 0.2  # cost of a last row that is not full; `_UNFILLED` is added in proportion to the empty places
_UNFILLED = 0.45
_BLOCK = 0.1  # cost of each further block of filters; `_UNFILLED_BLOCK` is the additional cost of a block that is not full
_UNFILLED_BLOCK = 2.0

Form = Literal[
    "tiles",  # one tile for each channel
    "grid",  # each row is one filter, each column one input channel
    "matrix",  # one pixel for each value
]


@dataclass(frozen=True, slots=True)
class Tile:
    """The place of a tile in the picture, in pixels, and its channel in the whole tensor."""

    top: int
    left: int
    height: int
    width: int
    row: int  # number of the channel or filter
    column: int | None = None  # number of the input channel


@dataclass(frozen=True, slots=True)
class Mosaic:
    """One picture of a tensor."""

    form: Form
    values: Array  # [height, width], or [height, width, 3] in colour; NaN in gaps and where a value is not finite
    gaps: Array  # True for pixels without a value
    nonfinite: Array  # True for values that are NaN or infinite
    tiles: tuple[Tile, ...] = ()
    enlarged: tuple[int, int] = (1, 1)  # number of pixels, down and across, that one value takes
    rows: tuple[int, ...] = ()  # for a matrix: the numbers of its rows and columns in the whole tensor
    columns: tuple[int, ...] = ()

    @property
    def height(self) -> int:
        return int(self.values.shape[0])

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def is_color(self) -> bool:
        return int(self.values.ndim) == 3

    @property
    def is_empty(self) -> bool:
        return bool(self.gaps.all())


def make_mosaic(kept: Array, entry: Entry, *, aspect: float = ASPECT, room: float = 0.05) -> Mosaic:
    """Make one picture of the kept part of a tensor.

    Args:
        kept: as `Run.tensor` gives it.
        entry: what is known of it.
        aspect: the wanted width of the picture by its height; a matrix is as it is.
        room: the part of the picture's width to leave between blocks of filters, for their numbers.
    """
    if wrong := misfit(tuple(kept.shape), entry):
        raise InvalidArgument(f"{wrong}.")
    if not kept.size:
        return _mosaic("tiles", np.full((1, 1), np.nan), np.ones((1, 1), bool))
    rows = entry.rows
    columns = entry.columns if entry.columns is not None else tuple(range(kept.shape[1]))
    if entry.layout == "filters" and kept.shape[2:] == (1, 1):
        kept = kept[:, :, 0, 0]
    if kept.ndim == 2:
        return _mosaic("matrix", kept, np.zeros(kept.shape, bool), rows=rows, columns=columns)
    if kept.ndim == 3:
        return _tiles(kept, rows, aspect)
    if kept.shape[1] == 1:
        return _tiles(kept[:, 0], rows, aspect)
    if entry.is_color and kept.shape[1] == 3:
        return _tiles(kept.transpose(0, 2, 3, 1), rows, aspect)
    return _grid(kept, rows, columns, aspect, room)


def choose_columns(count: int, height: int, width: int, aspect: float = ASPECT) -> int:
    """Choose the number of tiles in a row, so that the picture is near the wanted shape and the last row is well filled."""

    def cost(columns: int) -> float:
        rows = math.ceil(count / columns)
        last = count - (rows - 1) * columns
        misshapen = abs(math.log(columns * width / (rows * height) / aspect))
        is_lone = rows > 1 and columns > 1 and last == 1
        ragged = _RAGGED + _UNFILLED * (columns - last) / columns if last < columns else 0.0
        return misshapen + ragged + _LONE * is_lone

    return min(range(1, count + 1), key=cost)


def _tiles(maps: Array, rows: tuple[int, ...], aspect: float) -> Mosaic:
    """Place tiles, [tile, height, width] or [tile, height, width, 3], row by row."""
    maps, enlarged = _enlarge(maps)
    height, width = maps.shape[1:3]
    across = choose_columns(len(maps), height + _GAP, width + _GAP, aspect)
    values, gaps = _side_by_side(maps, across)
    tiles = [
        Tile(at // across * (height + _GAP), at % across * (width + _GAP), height, width, row) for at, row in enumerate(rows)
    ]
    return _mosaic("tiles", values, gaps, tuple(tiles), enlarged)


def _grid(filters: Array, rows: tuple[int, ...], columns: tuple[int, ...], aspect: float, room: float) -> Mosaic:
    """Place filters: a row for each filter, a column for each input channel. Many small filters fill several blocks."""
    count, inputs = filters.shape[:2]
    flat, enlarged = _enlarge(filters.reshape(count * inputs, *filters.shape[2:]))
    height, width = flat.shape[1] + _GAP, flat.shape[2] + _GAP
    strip = inputs * width
    blocks = _choose_blocks(count, height, strip, aspect)
    down = math.ceil(count / blocks)
    between = max(3, round(room * blocks * strip)) if blocks > 1 else 0
    shape = (down * height - _GAP, blocks * (strip - _GAP + between) - between)
    values, gaps, tiles = np.full(shape, np.nan, flat.dtype), np.ones(shape, bool), []
    for block in range(blocks):
        first, left = block * down, block * (strip - _GAP + between)
        part, holes = _side_by_side(flat[first * inputs : (first + down) * inputs], inputs)
        place = slice(0, part.shape[0]), slice(left, left + part.shape[1])
        values[place], gaps[place] = part, holes
        for at, row in enumerate(rows[first : first + down]):
            tiles += [
                Tile(at * height, left + i * width, height - _GAP, width - _GAP, row, column)
                for i, column in enumerate(columns)
            ]
    return _mosaic("grid", values, gaps, tuple(tiles), enlarged)


def _choose_blocks(count: int, height: int, width: int, aspect: float) -> int:
    """Choose how many blocks stand side by side: the picture is near the wanted shape, and the last block is well filled."""

    def cost(blocks: int) -> float:
        down = math.ceil(count / blocks)
        unfilled = (down * blocks - count) / down
        return abs(math.log(blocks * width / (down * height) / aspect)) + _UNFILLED_BLOCK * unfilled + _BLOCK * blocks

    return min(range(1, count + 1), key=cost)


def _side_by_side(maps: Array, across: int) -> tuple[Array, Array]:
    """Place tiles row by row. Also returns a mask of the pixels without a value."""
    count, height, width, *color = maps.shape
    down = math.ceil(count / across)
    values = np.full((down * across, height + _GAP, width + _GAP, *color), np.nan, maps.dtype)
    gaps = np.ones((down * across, height + _GAP, width + _GAP), bool)
    values[:count, :height, :width] = maps
    gaps[:count, :height, :width] = False
    return _joined(values, down, across), _joined(gaps, down, across)


def _joined(tiles: Array, down: int, across: int) -> Array:
    _, height, width, *color = tiles.shape
    joined = tiles.reshape(down, across, height, width, *color).swapaxes(1, 2)
    return joined.reshape(down * height, across * width, *color)[:-_GAP, :-_GAP]


def _enlarge(maps: Array) -> tuple[Array, tuple[int, int]]:
    """Enlarge small tiles, so that the gap between them stays thin. A line becomes a band."""
    height, width = maps.shape[1:3]
    factor = math.ceil(_LEAST / max(height, width))
    down = max(factor, _LEAST if height == 1 else 1)
    across = max(factor, _LEAST if width == 1 else 1)
    return maps.repeat(down, axis=1).repeat(across, axis=2), (down, across)


def _mosaic(
    form: Form,
    values: Array,
    gaps: Array,
    tiles: tuple[Tile, ...] = (),
    enlarged: tuple[int, int] = (1, 1),
    rows: tuple[int, ...] = (),
    columns: tuple[int, ...] = (),
) -> Mosaic:
    known = np.isfinite(values)
    nonfinite = ~(known.all(axis=2) if values.ndim == 3 else known) & ~gaps
    return Mosaic(form, np.where(known, values, np.nan), gaps, nonfinite, tiles, enlarged, rows, columns)
