"""Everything of a snapshot in one figure: a table of layers and kinds, or pictures side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from ...display import few
from ...errors import InvalidArgument
from ..snapshots.records import KINDS, WORDS, Entry, Kind, Snapshot
from ..snapshots.run import Run, near_names
from .captions import nonfinite_in_words, number, shape_of, shown_of, statistics_in_words
from .colors import FAINT_SHARE, SCALE_WORDS, ScaleName, check_scale, chosen_scale, scales_of, share_reached
from .tensor_figure import (
    ALARM,
    FAINT,
    INK,
    Plate,
    Sheet,
    draw_color_bar,
    draw_plate,
    import_matplotlib,
    line_height,
    make_plate,
    wrapped,
)
from .tiles import make_mosaic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 40.0
_NARROWEST = 1000.0
_CELL = (460.0, 390.0)  # a picture, in pixels
_SPACE = 44.0  # between those
_MOST_PICTURES = 24  # that a figure shows by itself
_LAYERS_ASKED = 40  # that it shows when they are named
_FILLED = 0.5  # the least part of a table's cells that are filled; below it pictures stand side by side
_ACROSS = 4  # pictures side by side


def figure_of_snapshot(
    run: Run, step: int | None = None, *, layers: Sequence[str] | None = None, scale: ScaleName | None = None
) -> Figure:
    """Everything of a snapshot in one Matplotlib figure: a row for each layer, with the kinds that were kept of it.

    Where layers have one picture each, or such different ones that much of a table would be empty, pictures stand side by side.

        figure_of_snapshot(run, step=100).savefig("step_100.png")

    Args:
        run: the run to read from.
        step: of the training, by default of the snapshot that was taken last and can be read.
        layers: which layers, at most 40. By default those of the first 24 pictures; the figure names those it leaves out.
        scale: `"run"` has the same colours for the same values of a layer and kind over the whole run; `"frame"` has colours
            that fit this step alone. By default `"frame"` for gradients, else `"run"`. The figure says which.
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
    """One picture, with what is said above it."""

    entry: Entry
    plate: Plate
    about: list[str]


@dataclass(frozen=True, slots=True)
class _Row:
    """Pictures side by side, each with its heading."""

    title: str
    cells: list[tuple[list[str], _Cell]]

    @property
    def above(self) -> float:
        """Room for what is said above the pictures."""
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
    """What the colours mean: one sentence, or one for each kind where they differ."""
    by_scale: dict[str, list[str]] = {}
    for kind in kinds:
        by_scale.setdefault(SCALE_WORDS[chosen_scale(kind, scale)], []).append(WORDS[kind])
    return list(by_scale) if len(by_scale) == 1 else [f"{words} ({', '.join(of)})" for words, of in by_scale.items()]


def _cell(run: Run, entry: Entry, kept: Tensor, scale: ScaleName | None) -> _Cell:
    mosaic = make_mosaic(kept.float().numpy(), entry, room=0.16)
    colors = scales_of(run, entry.layer, entry.kind, chosen_scale(entry.kind, scale))
    plate = make_plate(mosaic, entry, colors(entry), _CELL, 6)
    parts = [shape_of(entry), shown_of(entry, mosaic)]
    return _Cell(entry, plate, wrapped(parts, _CELL[0], 6.5) + (wrapped([entry.note], _CELL[0], 6.5) if entry.note else []))


def _chosen(run: Run, snapshot: Snapshot, layers: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The layers to show, and those left out."""
    there = list(dict.fromkeys(entry.layer for entry in snapshot.entries))
    if layers is None:
        counts = Counter(entry.layer for entry in snapshot.entries)
        fitting = [counts[layer] for layer in there]
        most = max(1, sum(sum(fitting[: at + 1]) <= _MOST_PICTURES for at in range(len(there))))
        return there[:most], there[most:]
    asked = check_layers(layers)
    for layer in asked:
        if layer not in there:
            _no_such_layer(run, snapshot, layer)
    return asked, []


def check_layers(layers: Sequence[str], known: Sequence[str] | None = None) -> list[str]:
    """The layers of a figure, each once; raises where they cannot be shown, or where one is not among those that are known."""
    if isinstance(layers, str):
        raise InvalidArgument(f"layers is a list of names; got the text {layers!r}: give [{layers!r}].")
    asked = list(dict.fromkeys(layers))
    if not asked or len(asked) > _LAYERS_ASKED:
        raise InvalidArgument(f"a figure shows 1 to {_LAYERS_ASKED} layers; got {len(asked)}. Make several figures.")
    for layer in asked:
        if known is not None and layer not in known:
            raise InvalidArgument(f"layer {layer!r} is not in this run. There are pictures of {near_names(layer, known)}.")
    return asked


def _no_such_layer(run: Run, snapshot: Snapshot, layer: str) -> None:
    """The error for a layer that is unknown, or that this snapshot lacks."""
    known = run.kinds(layer)
    run.entry(layer, known[0] if known else "weight", snapshot.step)


def _remarks(run: Run, snapshot: Snapshot, left_out: list[str]) -> list[str]:
    """What is not in the figure, and what the snapshot says of itself."""
    said = []
    if left_out:
        said.append(f"Left out: {few(left_out, 6)}. Name them to see them: layers=[…].")
    there = {entry.layer for entry in snapshot.entries}
    missing = [layer for layer in run.layers if layer not in there]
    if missing:
        said.append(f"Not in this snapshot: {few(missing, 6)}.")
    return [*said, *snapshot.notes]


def _overview(run: Run, snapshot: Snapshot, rows: list[_Row], remarks: list[str], scale_words: str) -> Figure:
    """Rows of pictures. Places are worked out first, then drawn."""
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
    """Where the pictures of each column begin, so that they line up, and how wide the figure is."""
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
    """A thin colour bar and a line of statistics."""
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
