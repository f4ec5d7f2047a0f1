"""Matplotlib figures of a run, which the user can change and save: one kind of one layer large, or a whole snapshot.

A plate, the picture of one tensor with its channel numbers and colours, is worked out before anything is drawn: its size, and
what is written beside it. So a figure knows its size, and nothing overlaps. Pixels are even, so that they are sharp. Nothing
here uses pyplot: no window opens, no figure stays behind, the backend is left alone.
"""

from __future__ import annotations

import io
import math
import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from torch import Tensor

from .._files.files import is_link, write_whole
from .._text import few
from .._text.screen import notebook
from ..errors import InvalidArgument, NotWritten
from ..pictures.sheet import ALARM, DPI, FAINT, INK, Sheet, import_matplotlib, line_height, text_width, wrapped
from .captions import axes_of, is_part, kept_of, nonfinite_in_words, number, shape_of, source_of, statistics_in_words, title_of
from .colors import (
    FAINT_SHARE,
    GAP,
    NONFINITE,
    SCALE_WORDS,
    ColorScale,
    ScaleName,
    as_fractions,
    check_scale,
    chosen_scale,
    reaches_beyond,
    scales_of,
    share_reached,
)
from .records import KINDS, WORDS, Entry, Kind, Snapshot
from .run import Run, near_names
from .tiles import Mosaic, Tile, make_mosaic

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_LARGEST = 100  # one value takes at most this many pixels, down and across
_FLATTEST = 4.0  # a matrix is stretched until its longer side is at most this many times the shorter side
_STRIDES: list[int] = [base * 10**power for power in range(6) for base in (1, 2, 5)]

# Plates -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plate:
    """A picture, how large it is drawn, and the numbers beside it."""

    mosaic: Mosaic
    scale: ColorScale
    size: float  # size of the numbers, in points
    across: float  # pixels of the figure per pixel of the picture, across
    down: float
    numbered: tuple[Tile, ...]  # the tiles that show their number
    # (distance from the top, distance from the left, text) of the texts beside the picture
    rows: tuple[tuple[float, float, str], ...]
    columns: tuple[tuple[float, str], ...]  # (distance from the left, text) of the texts above the picture
    words: tuple[str, str]  # the names of rows and of columns, such as "filter"
    left: float  # number of pixels that the numbers need at the left
    top: float

    @property
    def width(self) -> float:
        return self.mosaic.width * self.across

    @property
    def height(self) -> float:
        return self.mosaic.height * self.down


def make_plate(mosaic: Mosaic, entry: Entry, scale: ColorScale, box: tuple[float, float], size: float) -> Plate:
    """Make the plate of a picture that fits into a box (width and height in pixels). Numbers beside the picture are outside."""
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
    """Draw a plate: (left, top) is the corner of the picture without its numbers. Returns the image for a colour bar."""
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
    """Draw the colours of a plate and their values at (left, top, width, height). Draws nothing if no value is finite."""
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
    """Pixels of the figure per pixel of the picture, across and down."""
    room = width / mosaic.width, height / mosaic.height
    most = min(*room, _LARGEST / max(mosaic.enlarged))
    across, down = most, most
    if mosaic.form == "matrix":
        across = max(most, min(room[0], _LARGEST, most * mosaic.height / (_FLATTEST * mosaic.width)))
        down = max(most, min(room[1], _LARGEST, most * mosaic.width / (_FLATTEST * mosaic.height)))
    return _even(across), _even(down)


def _even(zoom: float) -> float:
    """Round a zoom down to a zoom at which all pixels have nearly the same size."""
    if zoom >= 3:
        return float(math.floor(zoom))
    return math.floor(zoom * 2) / 2 if zoom >= 1 else zoom


def _have_room(mosaic: Mosaic, across: float, down: float, size: float) -> bool:
    """True if a number takes only a corner of its tile."""
    if not mosaic.tiles:
        return True
    widest = max(text_width(str(tile.row), size) for tile in mosaic.tiles)
    tile = mosaic.tiles[0]
    width, height = tile.width * across, tile.height * down
    box = widest + 8, line_height(size)
    return box[0] <= 0.7 * width and box[1] <= 0.7 * height and box[0] * box[1] <= 0.2 * width * height


def _has_margin(mosaic: Mosaic, tile: Tile, across: float, size: float) -> bool:
    """True if the number of a filter fits between its block and the previous block."""
    if tile.left == 0:
        return True
    before = max(other.left + other.width for other in mosaic.tiles if other.left < tile.left)
    return text_width(str(tile.row), size) + 10 <= (tile.left - before) * across


def _thin_rows(rows: list[tuple[float, float, str]], size: float) -> list[tuple[float, float, str]]:
    """Return every n-th row, so that the numbers beside the picture do not touch. Every block keeps the same rows."""
    tops = sorted({top for top, *_ in rows})
    if len(tops) < 2:
        return rows
    kept = set(tops[:: _stride(line_height(size), tops[1] - tops[0])])
    return [row for row in rows if row[0] in kept]


def _thin_columns(columns: list[tuple[float, str]], size: float) -> list[tuple[float, str]]:
    """Return every n-th column, counted from the first column of each block, so that the numbers do not touch."""
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
    """The colours as a Matplotlib colour map; black to white if the picture is in colour itself."""
    if plate.mosaic.is_color:
        return matplotlib.colors.LinearSegmentedColormap.from_list("torcheer grey", ["black", "white"])
    table = plate.scale.colors() / 255
    name = "torcheer diverging" if plate.scale.is_diverging else "torcheer sequential"
    colors = matplotlib.colors.ListedColormap(table, name=name)
    return colors.with_extremes(bad=as_fractions(GAP), under=table[0], over=table[-1])


# Everything of a snapshot in one figure: a table of layers and kinds, or pictures side by side.

_MARGIN = 40.0
_NARROWEST = 1000.0
_CELL = (460.0, 390.0)  # size of a picture in pixels
_SPACE = 44.0  # number of pixels between pictures
_MOST_PICTURES = 24  # a figure shows at most this many pictures if no layers are given
_LAYERS_ASKED = 40  # the user may name at most this many layers for a figure
_FILLED = 0.5  # if less than this fraction of a table's cells has a picture, pictures stand side by side instead
_ACROSS = 4  # number of pictures side by side


def figure_of_snapshot(
    run: Run, step: int | None = None, *, layers: Sequence[str] | None = None, scale: ScaleName | None = None
) -> Figure:
    """Draw everything of a snapshot in one Matplotlib figure: a row for each layer, with the kinds that were kept of it.

    Where layers have one picture each, or such different ones that much of a table would be empty, pictures stand side by side.
    Without `layers`, the layers of the first 24 pictures are shown, and the figure names the others.
    """
    import_matplotlib()
    check_scale(scale)
    snapshot = run.snapshot(step) if step is not None else run.last_readable()
    tensors = run.files.tensors(snapshot)
    shown, left_out = _chosen(run, snapshot, layers)
    kinds = [kind for kind in KINDS if any(snapshot.find(layer, kind) for layer in shown)]
    with Sheet.style():
        cells = {
            (layer, kind): _cell(run, entry, tensors[entry.key], scale)
            for layer in shown
            for kind in kinds
            if (entry := snapshot.find(layer, kind)) is not None
        }
        is_table = len(cells) > len(shown) and len(cells) >= _FILLED * len(shown) * len(kinds)
        rows = _by_layer(shown, kinds, cells) if is_table else _side_by_side(cells)
        words = "; ".join(_scale_words(kinds, scale))
        return _overview(run, snapshot, rows, _remarks(run, snapshot, left_out), words)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A picture with the lines of text above it."""

    entry: Entry
    plate: Plate
    about: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of pictures, each with its heading."""

    title: str
    cells: list[tuple[list[str], _Cell]]

    @property
    def above(self) -> float:
        """Number of pixels for the lines above the pictures."""
        headings = max(len(heading) for heading, _ in self.cells) * line_height(8)
        return headings + max(len(cell.about) * line_height(6.5) + cell.plate.top for _, cell in self.cells) + 12

    def height(self, title: list[str]) -> float:
        pictures = max(cell.plate.height for _, cell in self.cells)
        return 16 + len(title) * line_height(10) + self.above + pictures + 14 + 12 + 2 * line_height(6.5) + 44


def _by_layer(layers: list[str], kinds: list[Kind], cells: dict[tuple[str, Kind], _Cell]) -> list[_Row]:
    return [_Row(layer, [([WORDS[kind]], cells[layer, kind]) for kind in kinds if (layer, kind) in cells]) for layer in layers]


def _side_by_side(cells: dict[tuple[str, Kind], _Cell]) -> list[_Row]:
    named = [([*wrapped([layer], _CELL[0], 8, "bold"), WORDS[kind]], cell) for (layer, kind), cell in cells.items()]
    across = min(_ACROSS, len(named))
    return [_Row("", named[at : at + across]) for at in range(0, len(named), across)]


def _scale_words(kinds: list[Kind], scale: ScaleName | None) -> list[str]:
    """Say what the colours mean: in one sentence, or in one sentence for each kind if kinds have different scales."""
    by_scale: dict[str, list[str]] = {}
    for kind in kinds:
        by_scale.setdefault(SCALE_WORDS[chosen_scale(kind, scale)], []).append(WORDS[kind])
    return list(by_scale) if len(by_scale) == 1 else [f"{words} ({', '.join(of)})" for words, of in by_scale.items()]


def _cell(run: Run, entry: Entry, kept: Tensor, scale: ScaleName | None) -> _Cell:
    mosaic = make_mosaic(kept.float().numpy(), entry, room=0.16)
    colors = scales_of(run, entry.layer, entry.kind, chosen_scale(entry.kind, scale))
    plate = make_plate(mosaic, entry, colors(entry), _CELL, 6)
    parts = [shape_of(entry), kept_of(entry, mosaic)]
    return _Cell(entry, plate, wrapped(parts, _CELL[0], 6.5) + (wrapped([entry.note], _CELL[0], 6.5) if entry.note else []))


def _chosen(run: Run, snapshot: Snapshot, layers: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The layers to show, and the layers to leave out."""
    there = list(dict.fromkeys(entry.layer for entry in snapshot.entries))
    if layers is None:
        counts = Counter(entry.layer for entry in snapshot.entries)
        fitting = [counts[layer] for layer in there]
        most = max(1, sum(sum(fitting[: at + 1]) <= _MOST_PICTURES for at in range(len(there))))
        return there[:most], there[most:]
    asked = check_layers(layers)
    for layer in asked:
        if layer not in there:
            run.entry(layer, next(iter(run.kinds(layer)), "weight"), snapshot.step)  # raises, and says why
    return asked, []


def check_layers(layers: Sequence[str], known: Sequence[str] | None = None) -> list[str]:
    """Return the layers of a figure, each once. Raises InvalidArgument for no layer, too many layers or an unknown layer."""
    if isinstance(layers, str):
        raise InvalidArgument(f"layers is a list of names; got the text {layers!r}: give [{layers!r}].")
    asked = list(dict.fromkeys(layers))
    if not asked or len(asked) > _LAYERS_ASKED:
        raise InvalidArgument(f"a figure shows 1 to {_LAYERS_ASKED} layers; got {len(asked)}. Make several figures.")
    for layer in asked:
        if known is not None and layer not in known:
            raise InvalidArgument(f"layer {layer!r} is not in this run. There are pictures of {near_names(layer, known)}.")
    return asked


def _remarks(run: Run, snapshot: Snapshot, left_out: list[str]) -> list[str]:
    """Lines about layers that are missing in the figure, and the notes of the snapshot."""
    said = []
    if left_out:
        said.append(f"Left out: {few(left_out, 6)}. Name them to see them: layers=[…].")
    there = {entry.layer for entry in snapshot.entries}
    missing = [layer for layer in run.layers if layer not in there]
    if missing:
        said.append(f"Not in this snapshot: {few(missing, 6)}.")
    return [*said, *snapshot.notes]


def _overview(run: Run, snapshot: Snapshot, rows: list[_Row], remarks: list[str], scale_words: str) -> Figure:
    """Draw rows of pictures. Positions are worked out before anything is drawn."""
    lefts, width = _columns(rows)
    inner = width - 2 * _MARGIN
    title = wrapped([run.title, f"step {snapshot.step}"], inner, 11, "bold")
    colors = wrapped([f"colours: {scale_words}, for each picture by itself"], inner, 8)
    said = [line for remark in remarks for line in wrapped([remark], inner, 8)]
    titles = [wrapped([row.title], inner, 10, "bold") if row.title else [] for row in rows]
    tops, end = [], _MARGIN + len(title) * line_height(11) + len(colors) * line_height(8) + 16
    for row, its_title in zip(rows, titles, strict=True):
        tops.append(end)
        end += row.height(its_title)
    sheet = Sheet(width, end + len(said) * line_height(8) + _MARGIN)
    under = sheet.write_lines(_MARGIN, _MARGIN, title, 11, weight="bold")
    sheet.write_lines(_MARGIN, under, colors, 8, color=FAINT)
    for row, its_title, top in zip(rows, titles, tops, strict=True):
        _draw_row(sheet, row, its_title, lefts, top)
    sheet.write_lines(_MARGIN, end, said, 8, color=FAINT)
    return cast("Figure", sheet.figure)


def _columns(rows: list[_Row]) -> tuple[list[float], float]:
    """Return the left edge of each column of pictures, and the width of the figure."""
    lefts: list[float] = []
    left = _MARGIN
    for column in range(max(len(row.cells) for row in rows)):
        left += max(row.cells[column][1].plate.left for row in rows if column < len(row.cells))
        lefts.append(left)
        left += _CELL[0] + _SPACE
    return lefts, max(_NARROWEST, left - _SPACE + _MARGIN)


def _draw_row(sheet: Sheet, row: _Row, title: list[str], lefts: list[float], top: float) -> None:
    rule = sheet.axes(_MARGIN, top, sheet.width - 2 * _MARGIN, 1)
    rule.set(xticks=[], yticks=[], facecolor="#C9CDD4")
    rule.spines[:].set_visible(False)
    top = sheet.write_lines(_MARGIN, top + 16, title, 10, weight="bold")
    picture = top + row.above
    for left, (heading, cell) in zip(lefts, row.cells, strict=False):
        under = sheet.write_lines(left, top, heading, 8, weight="bold", color=INK)
        sheet.write_lines(left, under, cell.about, 6.5, color=FAINT)
        shown = draw_plate(sheet, cell.plate, left, picture)
        _write_below(sheet, cell, shown, left, picture + cell.plate.height + 14)


def _write_below(sheet: Sheet, cell: _Cell, shown: Any, left: float, top: float) -> None:
    """Draw a thin colour bar and a line of statistics below a picture."""
    if not cell.plate.mosaic.is_empty:
        draw_color_bar(sheet, cell.plate, shown, (left, top, _CELL[0], 12), 6)
    top += 12 + line_height(6.5) + 16
    nonfinite = nonfinite_in_words(cell.entry)
    if nonfinite:
        sheet.write(left, top, nonfinite, 6.5, weight="bold", color=ALARM)
    else:
        said = [part for part in statistics_in_words(cell.entry) if not part.startswith("min ")]
        reached = share_reached(cell.plate.mosaic, cell.plate.scale)
        if 0 < reached < FAINT_SHARE:
            said = [f"these reach {number(100 * reached)} % of the scale", *said]
        sheet.write(left, top, wrapped(said, _CELL[0], 6.5)[0], 6.5)


# Figures of a run, as Matplotlib figures that the user can change and save: one layer large, or a whole snapshot.

_BOX = (1240.0, 1060.0)  # size of the picture of one layer, in pixels
_BAR = (480.0, 24.0)


def figure_of(run: Run, layer: str, kind: str, step: int | None = None, *, scale: ScaleName | None = None) -> Figure:
    """Draw one kind of one layer, at a step or at the last step that can be read.

    The figure says how much of the tensor was kept, and is shown; the statistics are of the whole tensor.
    """
    import_matplotlib()
    check_scale(scale)
    if step is None:
        snapshot, entry, kept = run.last_picture(layer, kind)
        step = snapshot.step
    else:
        entry, kept = run.entry(layer, kind, step), run.tensor(layer, kind, step)
    mosaic = make_mosaic(kept, entry)
    scale = chosen_scale(kind, scale)
    with Sheet.style():
        plate = make_plate(mosaic, entry, scales_of(run, layer, kind, scale)(entry), _BOX, 7)
        return _one_layer(entry, step, plate, SCALE_WORDS[scale])


def _image(png: bytes, inches: float) -> Any:
    return sys.modules["IPython"].display.Image(data=png, format="png", width=round(inches * 96))


def _shown_here(figure: Figure) -> None:
    """Stop the notebook cell that has shown a figure from showing it again as the cell's value; other cells still show it."""
    shown = getattr(notebook(), "execution_count", 0)

    def display() -> None:
        if getattr(notebook(), "execution_count", 0) != shown:
            sys.modules["IPython"].display.display(_image(png_of(figure), figure.get_figwidth()))

    figure._ipython_display_ = display  # type: ignore[attr-defined]  # what IPython asks an object for


class Displays:
    """The figures that a notebook shows. A figure is shown once in a cell, and from then on updated in place."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], str] = {}

    def place(self, name: str) -> tuple[bool, str | None]:
        """Returns whether the place is new, and the id of the place of the cell's figure. Outside a notebook: (False, None)."""
        shell = notebook()
        if shell is None:
            return False, None
        key = name, int(getattr(shell, "execution_count", 0))
        is_new = key not in self._ids
        if is_new:
            display = sys.modules["IPython"].display
            self._ids[key] = display.display(display.HTML("<i>drawing …</i>"), display_id=True).display_id
        return is_new, self._ids[key]

    def present(self, figure: Figure, path: Path, name: str) -> None:
        """Show a figure in its place in this cell; outside a notebook write a file and print its path."""
        shell = notebook()
        if shell is None:
            write_figure(path, png_of(figure))
            print(f"Picture: {path}")
            return
        key = name, int(getattr(shell, "execution_count", 0))
        display, picture = sys.modules["IPython"].display, _image(png_of(figure), figure.get_figwidth())
        _shown_here(figure)
        if key in self._ids:
            display.update_display(picture, display_id=self._ids[key])
        else:
            self._ids[key] = display.display(picture, display_id=True).display_id


def write_figure(path: Path, png: bytes) -> None:
    """Write a picture into the folder of a run. If the folder is a link, no file is replaced: others may own the files."""
    if os.path.lexists(path) and is_link(path.parent):
        raise NotWritten(
            f"{path} is there already, and {path.parent} is a link, behind which nothing is replaced. Move that file away, or "
            "let the run have a folder of figures of its own."
        )
    write_whole(path, png, "figure", follows=False)


def show_png(png: bytes, display_id: str) -> None:
    """Show a picture in a place of a notebook."""
    width = int.from_bytes(png[16:20], "big")  # from the header of the PNG
    sys.modules["IPython"].display.update_display(_image(png, width / DPI), display_id=display_id)


def png_of(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


# One layer ----------------------------------------------------------------------------------------------------------


def _one_layer(entry: Entry, step: int, plate: Plate, scale_words: str) -> Figure:
    width = max(_NARROWEST, plate.left + plate.width + 2 * _MARGIN)
    inner = width - 2 * _MARGIN
    title = wrapped(title_of(entry, step).split(" · "), inner, 12, "bold")
    about = wrapped([part for part in (source_of(entry), shape_of(entry), kept_of(entry, plate.mosaic)) if part], inner, 9)
    note = wrapped([entry.note], inner, 9) if entry.note else []
    statistics = statistics_in_words(entry)
    if is_part(entry):
        statistics[0] = f"whole tensor: {statistics[0]}"
    below = wrapped(statistics, inner, 8.5)
    nonfinite = wrapped([nonfinite_in_words(entry)], inner, 8.5, "bold") if nonfinite_in_words(entry) else []

    picture = _MARGIN + len(title) * line_height(12) + (len(about) + len(note)) * line_height(9) + 24 + plate.top
    bar = picture + plate.height + 34
    words = bar + _BAR[1] + line_height(7) + 34
    sheet = Sheet(width, words + (len(below) + len(nonfinite)) * line_height(8.5) + _MARGIN - 10)

    end = sheet.write_lines(_MARGIN, _MARGIN, title, 12, weight="bold")
    end = sheet.write_lines(_MARGIN, end, about, 9, color=FAINT)
    sheet.write_lines(_MARGIN, end, note, 9, style="italic", color=FAINT)
    shown = draw_plate(sheet, plate, _MARGIN + plate.left, picture)
    if not plate.mosaic.is_empty:
        draw_color_bar(sheet, plate, shown, (_MARGIN, bar, *_BAR), 7)
        _write_key(sheet, plate, _MARGIN + _BAR[0] + 36, bar, scale_words)
    end = sheet.write_lines(_MARGIN, words, below, 8.5)
    sheet.write_lines(_MARGIN, end, nonfinite, 8.5, weight="bold", color=ALARM)
    return cast("Figure", sheet.figure)


def _write_key(sheet: Sheet, plate: Plate, left: float, top: float, scale_words: str) -> None:
    """Write the explanation of the colour bar beside it."""
    said = f"red, green, blue: {scale_words}" if plate.mosaic.is_color else scale_words
    if not np.isfinite(plate.mosaic.values).any():
        said = "no value is finite"
    reached = share_reached(plate.mosaic, plate.scale)
    if 0 < reached < FAINT_SHARE:
        said += f", these reach {number(100 * reached)} % of it"
    sheet.write(left, top + _BAR[1] / 2, said, 8, va="center", color=FAINT)
    if plate.mosaic.nonfinite.any():
        left += text_width(said, 8) + 30
        box = sheet.axes(left, top, _BAR[1], _BAR[1])
        box.set(xticks=[], yticks=[], facecolor=as_fractions(NONFINITE))
        sheet.write(left + _BAR[1] + 12, top + _BAR[1] / 2, "not finite", 8, va="center", color=ALARM)
