"""Puts a picture of a tensor on a Matplotlib figure, with its channel numbers and colours, at even pixels so that it is sharp.

A plate is worked out first: how large it is, what is written beside it. So a figure knows its size before anything is drawn,
and nothing overlaps. Nothing here uses pyplot: no window opens, no figure stays behind, the backend is left alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..snapshots.records import Entry
from .captions import axes_of, number
from .colors import GAP, NONFINITE, ColorScale, as_fractions, reaches_beyond
from .tiles import Mosaic, Tile

DPI = 200
FAINT = "#5A5F69"
INK = "#16181D"
ALARM = "#C00000"

_LARGEST = 100  # pixels one value takes at most
_FLATTEST = 4.0  # a matrix is stretched until its sides are no further apart
_STRIDES: list[int] = [base * 10**power for power in range(6) for base in (1, 2, 5)]

_STYLE = {"text.usetex": False, "axes.grid": False, "text.parse_math": False, "axes.unicode_minus": True}


def import_matplotlib() -> Any:
    """Matplotlib, or an error that says how to get it."""
    try:
        import matplotlib
        import matplotlib.cm
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.textpath
    except ImportError as error:
        raise ImportError("figures of an Xray need matplotlib: pip install matplotlib") from error
    return matplotlib


# Text ---------------------------------------------------------------------------------------------------------------


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """How wide a line of text is, in pixels."""
    matplotlib = import_matplotlib()
    font = matplotlib.font_manager.FontProperties(size=size, weight=weight)
    return float(matplotlib.textpath.text_to_path.get_text_width_height_descent(text, font, False)[0]) * DPI / 72


def line_height(size: float) -> float:
    return size * 1.35 * DPI / 72


def wrapped(parts: list[str], width: float, size: float, weight: str = "normal", joint: str = " · ") -> list[str]:
    """Parts joined into lines of at most `width` pixels; a part that is wider by itself is cut into pieces."""
    lines: list[str] = []
    for part in parts:
        if lines and text_width(lines[-1] + joint + part, size, weight) <= width:
            lines[-1] += joint + part
        else:
            lines += _pieces(part, width, size, weight)
    return lines


def _pieces(text: str, width: float, size: float, weight: str) -> list[str]:
    """A text cut where it must be, after a space or a dot if there is one."""
    pieces = []
    while text_width(text, size, weight) > width and len(text) > 1:
        end = max(1, int(len(text) * width / text_width(text, size, weight)))
        while end > 1 and text_width(text[:end], size, weight) > width:
            end -= 1
        better = max(text.rfind(mark, end // 2, end) for mark in " ._/") + 1
        end = better or end
        pieces.append(text[:end].rstrip())
        text = text[end:].lstrip()
    return [*pieces, text]


# Sheets -------------------------------------------------------------------------------------------------------------


class Sheet:
    """A figure that is filled by pixels from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = math.ceil(width), math.ceil(height)
        with self.style():
            figure = import_matplotlib().figure.Figure
            self.figure = figure(figsize=(self.width / DPI, self.height / DPI), dpi=DPI, facecolor="white", layout="none")

    @staticmethod
    def style() -> Any:
        """What a user's own style must not change in these figures."""
        matplotlib = import_matplotlib()
        return matplotlib.rc_context({key: value for key, value in _STYLE.items() if key in matplotlib.rcParams})

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        bottom = self.height - top - height
        place = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place, facecolor="none")

    def write(self, left: float, top: float, text: str, size: float, **look: Any) -> None:
        """A line of text whose top left corner is at a place."""
        look = {"color": INK, "va": "top", "ha": "left", "parse_math": False, **look}
        self.figure.text(left / self.width, 1 - top / self.height, text, fontsize=size, **look)

    def write_lines(self, left: float, top: float, lines: list[str], size: float, **look: Any) -> float:
        """Lines below each other. Returns where they end."""
        for at, line in enumerate(lines):
            self.write(left, top + at * line_height(size), line, size, **look)
        return top + len(lines) * line_height(size)


# Plates -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plate:
    """A picture, how large it is drawn, and the numbers beside it."""

    mosaic: Mosaic
    scale: ColorScale
    size: float  # of the numbers, in points
    across: float  # pixels of the figure for one of the picture
    down: float
    numbered: tuple[Tile, ...]  # tiles with their number on them
    rows: tuple[tuple[float, float, str], ...]  # beside the picture: where, from the top and from the left of it, and what
    columns: tuple[tuple[float, str], ...]  # above it
    words: tuple[str, str]  # what rows and columns are
    left: float  # room that the numbers need, in pixels
    top: float

    @property
    def width(self) -> float:
        return self.mosaic.width * self.across

    @property
    def height(self) -> float:
        return self.mosaic.height * self.down


def make_plate(mosaic: Mosaic, entry: Entry, scale: ColorScale, box: tuple[float, float], size: float) -> Plate:
    """A picture that fits into a box (width and height in pixels), numbers beside it not counted."""
    across, down = _zoom(mosaic, *box)
    numbered: tuple[Tile, ...] = ()
    rows: list[tuple[float, float, str]] = []
    columns: list[tuple[float, str]] = []
    words = axes_of(entry)
    if mosaic.form == "matrix":
        rows = [(at * down + down / 2, 0.0, str(row)) for at, row in enumerate(mosaic.rows)]
        columns = [(at * across + across / 2, str(column)) for at, column in enumerate(mosaic.columns)]
    elif mosaic.form == "grid":
        first, topmost = mosaic.tiles[0].column, [tile for tile in mosaic.tiles if tile.top == 0]
        starts = [tile for tile in mosaic.tiles if tile.column == first and _has_margin(mosaic, tile, across, size)]
        rows = [((tile.top + tile.height / 2) * down, tile.left * across, str(tile.row)) for tile in starts]
        columns = [((tile.left + tile.width / 2) * across, str(tile.column)) for tile in topmost]
    elif _have_room(mosaic, across, down, size):
        numbered, words = mosaic.tiles, ("", "")
    else:
        starts = [tile for tile in mosaic.tiles if tile.left == 0]
        rows = [((tile.top + tile.height / 2) * down, 0.0, str(tile.row)) for tile in starts]
        words = (f"first {words[0]}", "")
    rows, columns = _thin_rows(rows, size), _thin_columns(columns, size)
    words = (words[0] if text_width(words[0], size) <= mosaic.height * down else "", words[1])
    left = max((text_width(text, size) for *_, text in rows), default=0.0) + 10 if rows else 0.0
    left += line_height(size) if rows and words[0] else 0.0
    top = line_height(size) * ((1 if columns else 0) + (1 if columns and words[1] else 0)) + (4 if columns else 0)
    return Plate(mosaic, scale, size, across, down, numbered, tuple(rows), tuple(columns), words, left, top)


def draw_plate(sheet: Sheet, plate: Plate, left: float, top: float) -> Any:
    """Draw a plate whose picture, without its numbers, has its top left corner at a place. Returns what a colour bar needs."""
    matplotlib = import_matplotlib()
    axes = sheet.axes(left, top, plate.width, plate.height)
    axes.set_xlim(-0.5, plate.mosaic.width - 0.5)
    axes.set_ylim(plate.mosaic.height - 0.5, -0.5)
    colors = _colors(matplotlib, plate)
    norm = matplotlib.colors.Normalize(plate.scale.low, plate.scale.high)
    mosaic = plate.mosaic
    look: dict[str, Any] = {"aspect": "auto", "origin": "upper", "interpolation": "nearest"}
    if min(plate.across, plate.down) < 1:
        look["interpolation"] = "antialiased"
    if mosaic.is_color:
        shares = np.where(np.isnan(mosaic.values), 1.0, plate.scale.shares(mosaic.values))
        axes.imshow(shares, **look)
        shown = matplotlib.cm.ScalarMappable(norm, colors)
    else:
        shown = axes.imshow(np.ma.masked_invalid(mosaic.values), cmap=colors, norm=norm, **look)
    if mosaic.nonfinite.any():
        cover = np.zeros((mosaic.height, mosaic.width, 4))
        cover[mosaic.nonfinite] = (*as_fractions(NONFINITE), 1.0)
        axes.imshow(cover, aspect="auto", origin="upper", interpolation="nearest")
    _write_numbers(axes, plate)
    for spine in axes.spines.values():
        spine.set(visible=mosaic.form == "matrix", color="#B4B9C2", linewidth=0.5)
    return shown


def draw_color_bar(sheet: Sheet, plate: Plate, shown: Any, place: tuple[float, float, float, float], size: float) -> None:
    """The colours of a plate and their values, at a place: left, top, width, height. Not drawn where no value is finite."""
    if not np.isfinite(plate.mosaic.values).any():
        return
    below, above = reaches_beyond(plate.mosaic, plate.scale)
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]
    axes = sheet.axes(*place)
    middle = 0.0 if plate.scale.is_diverging else plate.scale.high / 2
    ticks = [plate.scale.low, middle, plate.scale.high]
    bar = sheet.figure.colorbar(shown, cax=axes, orientation="horizontal", extend=extend, extendfrac=0.04, ticks=ticks)
    labels = bar.ax.set_xticklabels([number(tick) for tick in ticks])
    labels[0].set_ha("left")
    labels[-1].set_ha("right")
    bar.ax.tick_params(labelsize=size, length=2, pad=2, width=0.5, color=FAINT, labelcolor=INK, which="both")
    bar.ax.minorticks_off()
    bar.outline.set(linewidth=0.5, edgecolor="#8B9099")


def _zoom(mosaic: Mosaic, width: float, height: float) -> tuple[float, float]:
    """Pixels of the figure for one of the picture, across and down."""
    room = width / mosaic.width, height / mosaic.height
    most = min(*room, _LARGEST / max(mosaic.enlarged))
    across, down = most, most
    if mosaic.form == "matrix":
        across = max(most, min(room[0], _LARGEST, most * mosaic.height / (_FLATTEST * mosaic.width)))
        down = max(most, min(room[1], _LARGEST, most * mosaic.width / (_FLATTEST * mosaic.height)))
    return _even(across), _even(down)


def _even(zoom: float) -> float:
    """The next smaller zoom at which pixels are of nearly one size."""
    if zoom >= 3:
        return float(math.floor(zoom))
    return math.floor(zoom * 2) / 2 if zoom >= 1 else zoom


def _have_room(mosaic: Mosaic, across: float, down: float, size: float) -> bool:
    """Whether a number takes only a corner of its tile."""
    if not mosaic.tiles:
        return True
    widest = max(text_width(str(tile.row), size) for tile in mosaic.tiles)
    tile = mosaic.tiles[0]
    width, height = tile.width * across, tile.height * down
    box = widest + 8, line_height(size)
    return box[0] <= 0.7 * width and box[1] <= 0.7 * height and box[0] * box[1] <= 0.2 * width * height


def _has_margin(mosaic: Mosaic, tile: Tile, across: float, size: float) -> bool:
    """Whether the number of a filter fits between its block and the one before."""
    if tile.left == 0:
        return True
    before = max(other.left + other.width for other in mosaic.tiles if other.left < tile.left)
    return text_width(str(tile.row), size) + 10 <= (tile.left - before) * across


def _thin_rows(rows: list[tuple[float, float, str]], size: float) -> list[tuple[float, float, str]]:
    """Every n-th row, so that their numbers do not touch; the same rows in every block."""
    tops = sorted({top for top, *_ in rows})
    if len(tops) < 2:
        return rows
    kept = set(tops[:: _stride(line_height(size), tops[1] - tops[0])])
    return [row for row in rows if row[0] in kept]


def _thin_columns(columns: list[tuple[float, str]], size: float) -> list[tuple[float, str]]:
    """Every n-th column, so that their numbers do not touch, counted from the first of each block."""
    if len(columns) < 2:
        return columns
    widest = max(text_width(text, size) for _, text in columns)
    stride = _stride(widest + 10, columns[1][0] - columns[0][0])
    first = columns[0][1]
    kept, since = [], 0
    for column in columns:
        since = 0 if column[1] == first else since + 1
        if since % stride == 0:
            kept.append(column)
    return kept


def _stride(needed: float, there: float) -> int:
    return next(stride for stride in _STRIDES if stride * there >= needed)


def _write_numbers(axes: Any, plate: Plate) -> None:
    mark = {"fontsize": plate.size, "color": INK, "parse_math": False}
    word = {**mark, "color": FAINT, "ha": "left"}
    paper = {"boxstyle": "square,pad=0.12", "facecolor": "white", "alpha": 0.8, "linewidth": 0}
    for tile in plate.numbered:
        at = (tile.left - 0.5 + 5 / plate.across, tile.top - 0.5 + 5 / plate.down)
        axes.text(*at, str(tile.row), ha="left", va="top", bbox=paper, **mark)
    beside = [(top, text) for top, left, text in plate.rows if left == 0]
    axes.set_yticks([top / plate.down - 0.5 for top, _ in beside], [text for _, text in beside])
    for top, left, text in plate.rows:
        if left:
            axes.text((left - 6) / plate.across - 0.5, top / plate.down - 0.5, text, ha="right", va="center_baseline", **mark)
    axes.set_xticks([at / plate.across - 0.5 for at, _ in plate.columns], [text for _, text in plate.columns])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2, labelsize=plate.size, labelcolor=INK, which="both")
    if plate.rows and plate.words[0]:
        axes.text(
            -plate.left / plate.across - 0.5, plate.mosaic.height / 2 - 0.5, plate.words[0], rotation=90, va="center", **word
        )
    if plate.columns and plate.words[1]:
        axes.text(-0.5, -plate.top / plate.down - 0.5, plate.words[1], va="top", **word)


def _colors(matplotlib: Any, plate: Plate) -> Any:
    """The colours as Matplotlib has them; black to white where the picture is in colour itself."""
    if plate.mosaic.is_color:
        return matplotlib.colors.LinearSegmentedColormap.from_list("torcheer grey", ["black", "white"])
    table = plate.scale.colors() / 255
    name = "torcheer diverging" if plate.scale.is_diverging else "torcheer sequential"
    colors = matplotlib.colors.ListedColormap(table, name=name)
    return colors.with_extremes(bad=as_fractions(GAP), under=table[0], over=table[-1])
