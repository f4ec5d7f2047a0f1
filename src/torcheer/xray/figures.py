"""Figures of a run, as Matplotlib figures that the user can change and save: one layer large, or a whole snapshot."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

from ..errors import InvalidArgument, SnapshotNotFound
from ..files import write_whole
from ..render.showing import notebook
from .captions import is_part, nonfinite_in_words, number, shape_of, shown_of, source_of, statistics_in_words, title_of
from .colours import NONFINITE, SCALE_WORDS, ScaleName, as_fractions, check_scale, chosen_scale, scales_of, share_reached
from .plates import (
    ALARM,
    DPI,
    FAINT,
    INK,
    Plate,
    Sheet,
    draw_colour_bar,
    draw_plate,
    import_matplotlib,
    line_height,
    make_plate,
    text_width,
    wrapped,
)
from .records import KINDS, WORDS, Entry, Kind, Snapshot
from .run import Run
from .tiles import make_mosaic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 40.0
_BOX = (1240.0, 1060.0)  # the picture of one layer, in pixels
_NARROWEST = 1000.0
_BAR = (480.0, 24.0)

_CELL = (460.0, 390.0)  # a picture in a snapshot
_SPACE = 44.0  # between those
_MOST_LAYERS = 8  # that a figure shows by itself
_FAINT_SHARE = 0.1  # of the scale; what reaches less far is hardly seen
_LAYERS_ASKED = 40  # that it shows when they are named


def figure_of(run: Run, layer: str, kind: str, step: int | None = None, *, scale: ScaleName | None = None) -> Figure:
    """One kind of one layer at one step, as a Matplotlib figure.

        figure = figure_of(run, "conv1", "weight", step=100)
        figure.savefig("conv1.png")

    Args:
        run: the run to read from.
        layer: as it was named when the run was made.
        kind: `"weight"`, `"layer"`, `"activation"`, `"grad"` or `"layer_grad"`.
        step: of the training; by default the last that has this layer and kind and can be read.
        scale: `"run"` has the same colours for the same values over the whole run, so that change is seen; `"frame"` has
            colours that fit this step alone. By default gradients have the latter, since they shrink. The figure says which.

    Only what was kept is shown, and the figure says how much of the tensor that is; the statistics are of the whole tensor.
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


def figure_of_snapshot(
    run: Run, step: int | None = None, *, layers: Sequence[str] | None = None, scale: ScaleName | None = None
) -> Figure:
    """Everything of a snapshot in one Matplotlib figure: a row for each layer, a column for each kind.

        figure_of_snapshot(run, step=100).savefig("step_100.png")

    Args:
        run: the run to read from.
        step: of the training, by default of the snapshot that was taken last and can be read.
        layers: which layers, at most 40. By default the first 8, and the figure names those it leaves out.
        scale: `"run"` has the same colours for the same values of a layer and kind over the whole run; `"frame"` has colours
            that fit this step alone. By default gradients have the latter. The figure says which.
    """
    import_matplotlib()
    check_scale(scale)
    snapshot, tensors = _read(run, step)
    shown, left_out = _chosen(run, snapshot, layers)
    kinds = [kind for kind in KINDS if any(snapshot.find(layer, kind) for layer in shown)]
    with Sheet.style():
        cells = {
            (layer, kind): _cell(run, entry, tensors[entry.key], scale)
            for layer in shown
            for kind in kinds
            if (entry := snapshot.find(layer, kind)) is not None
        }
        words = "; ".join(_scale_words(kinds, scale))
        return _overview(run, snapshot, shown, kinds, cells, _remarks(run, snapshot, shown, left_out), words)


def present(figure: Figure, path: str | Path, display_id: str | None = None, *, update: bool = False) -> str | None:
    """Show a figure: in the notebook, or, where there is none, in a PNG file whose path is printed.

    Args:
        figure: any Matplotlib figure.
        path: of the file, if one is written; it is there whole or not at all.
        display_id: what the notebook calls the place of the figure; it finds a name itself by default.
        update: put the figure in the place that has this id already, instead of showing it anew.

    Returns the display id; None where a file was written. `Displays` remembers the ids of figures that are shown repeatedly.
    """
    if notebook() is None:
        write_whole(Path(path), _png(figure))
        print(f"Picture: {path}")
        return None
    display = sys.modules["IPython"].display
    picture = display.Image(data=_png(figure), format="png", width=round(figure.get_figwidth() * 96))
    if update and display_id is not None:
        display.update_display(picture, display_id=display_id)
        return display_id
    return cast(str, display.display(picture, display_id=display_id or True).display_id)


class Displays:
    """The figures that a notebook shows: each once in a cell, and from then on updated in place."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, int], str] = {}

    def place(self, name: str) -> tuple[bool, str | None]:
        """Where this cell shows the figure of that name, and whether that is a new place. None where there is no notebook."""
        shell = notebook()
        if shell is None:
            return False, None
        key = name, int(getattr(shell, "execution_count", 0))
        is_new = key not in self._ids
        if is_new:
            display = sys.modules["IPython"].display
            self._ids[key] = display.display(display.HTML("<i>drawing …</i>"), display_id=True).display_id
        return is_new, self._ids[key]

    def present(self, figure: Figure, path: str | Path, name: str) -> None:
        """Show a figure, in the place where this cell showed the last one of that name."""
        key = name, int(getattr(notebook(), "execution_count", 0))
        shown = present(figure, path, self._ids.get(key), update=key in self._ids)
        if shown is not None:
            self._ids[key] = shown


def show_png(png: bytes, display_id: str) -> None:
    """Show a picture in a place of a notebook."""
    display = sys.modules["IPython"].display
    width = int.from_bytes(png[16:20], "big")  # of the header
    display.update_display(display.Image(data=png, format="png", width=round(width * 96 / DPI)), display_id=display_id)


def _png(figure: Figure) -> bytes:
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


# One layer ----------------------------------------------------------------------------------------------------------


def _one_layer(entry: Entry, step: int, plate: Plate, scale_words: str) -> Figure:
    width = max(_NARROWEST, plate.left + plate.width + 2 * _MARGIN)
    inner = width - 2 * _MARGIN
    title = wrapped(title_of(entry, step).split(" · "), inner, 12, "bold")
    about = wrapped([part for part in (source_of(entry), shape_of(entry), shown_of(entry, plate.mosaic)) if part], inner, 9)
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
        draw_colour_bar(sheet, plate, shown, (_MARGIN, bar, *_BAR), 7)
        _write_key(sheet, plate, _MARGIN + _BAR[0] + 36, bar, scale_words)
    end = sheet.write_lines(_MARGIN, words, below, 8.5)
    sheet.write_lines(_MARGIN, end, nonfinite, 8.5, weight="bold", color=ALARM)
    return cast("Figure", sheet.figure)


def _write_key(sheet: Sheet, plate: Plate, left: float, top: float, scale_words: str) -> None:
    """What the colour bar shows, beside it."""
    said = f"red, green, blue: {scale_words}" if plate.mosaic.is_colour else scale_words
    reached = share_reached(plate.mosaic, plate.scale)
    if 0 < reached < _FAINT_SHARE:
        said += f", these reach {number(100 * reached)} % of it"
    sheet.write(left, top + _BAR[1] / 2, said, 8, va="center", color=FAINT)
    if plate.mosaic.nonfinite.any():
        left += text_width(said, 8) + 30
        box = sheet.axes(left, top, _BAR[1], _BAR[1])
        box.set(xticks=[], yticks=[], facecolor=as_fractions(NONFINITE))
        sheet.write(left + _BAR[1] + 12, top + _BAR[1] / 2, "not finite", 8, va="center", color=ALARM)


# A snapshot ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """One picture in a figure of a snapshot, with what is said above it."""

    entry: Entry
    plate: Plate
    about: list[str]


def _read(run: Run, step: int | None) -> tuple[Snapshot, dict[str, Tensor]]:
    """A snapshot and everything that was kept in it."""
    if step is not None:
        snapshot = run.snapshot(step)
        return snapshot, run.files.tensors(snapshot)
    latest = run.latest
    for at in range(len(latest)):
        try:
            return latest[at], run.files.tensors(latest[at])
        except SnapshotNotFound as error:
            run.tell(int(latest.table["number"][at]), str(error))
    raise SnapshotNotFound("there is no snapshot that can be read: take_graphs() makes one.")


def _scale_words(kinds: list[Kind], scale: ScaleName | None) -> list[str]:
    """What the colours mean, where that is not the same for all kinds for each of them."""
    by_scale: dict[str, list[str]] = {}
    for kind in kinds:
        by_scale.setdefault(SCALE_WORDS[chosen_scale(kind, scale)], []).append(WORDS[kind])
    return list(by_scale) if len(by_scale) == 1 else [f"{words} ({', '.join(of)})" for words, of in by_scale.items()]


def _cell(run: Run, entry: Entry, kept: Tensor, scale: ScaleName | None) -> _Cell:
    mosaic = make_mosaic(kept.float().numpy(), entry, room=0.16)
    colours = scales_of(run, entry.layer, entry.kind, chosen_scale(entry.kind, scale))
    plate = make_plate(mosaic, entry, colours(entry), _CELL, 6)
    parts = [shape_of(entry), shown_of(entry, mosaic)]
    return _Cell(entry, plate, wrapped(parts, _CELL[0], 6.5) + (wrapped([entry.note], _CELL[0], 6.5) if entry.note else []))


def _chosen(run: Run, snapshot: Snapshot, layers: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The layers to show, and those left out."""
    there = list(dict.fromkeys(entry.layer for entry in snapshot.entries))
    if layers is None:
        return there[:_MOST_LAYERS], there[_MOST_LAYERS:]
    if isinstance(layers, str):
        raise InvalidArgument(f"layers is a list of names; got the text {layers!r}: give [{layers!r}].")
    asked = list(dict.fromkeys(layers))
    if not asked or len(asked) > _LAYERS_ASKED:
        raise InvalidArgument(f"a figure shows 1 to {_LAYERS_ASKED} layers; got {len(asked)}. Make several figures.")
    for layer in asked:
        if layer not in there:
            _no_such_layer(run, snapshot, layer)
    return asked, []


def _no_such_layer(run: Run, snapshot: Snapshot, layer: str) -> None:
    """Says that a layer is unknown, or that it is only missing here."""
    known = run.kinds(layer)
    run.entry(layer, known[0] if known else "weight", snapshot.step)


def _remarks(run: Run, snapshot: Snapshot, shown: list[str], left_out: list[str]) -> list[str]:
    """What is not in the figure, and what the snapshot says of itself."""
    said = []
    if left_out:
        named = ", ".join(left_out[:6]) + (f" and {len(left_out) - 6} more" if len(left_out) > 6 else "")
        said.append(f"Left out: {named}. Name them to see them: layers=[…].")
    there = {entry.layer for entry in snapshot.entries}
    missing = [layer for layer in run.layers if layer not in there]
    if missing:
        named = ", ".join(missing[:6]) + (f" and {len(missing) - 6} more" if len(missing) > 6 else "")
        said.append(f"Not in this snapshot: {named}.")
    return [*said, *snapshot.notes]


def _overview(
    run: Run,
    snapshot: Snapshot,
    layers: list[str],
    kinds: list[Kind],
    cells: dict[tuple[str, Kind], _Cell],
    remarks: list[str],
    scale_words: str,
) -> Figure:
    """Rows of cells. Places are worked out first, then drawn."""
    lefts, width = _columns(kinds, cells)
    inner = width - 2 * _MARGIN
    title = wrapped([run.title, f"step {snapshot.step}"], inner, 11, "bold")
    colours = wrapped([f"colours: {scale_words}, for each picture by itself"], inner, 8)
    said = [line for remark in remarks for line in wrapped([remark], inner, 8)]
    names = {layer: wrapped([layer], inner, 10, "bold") for layer in layers}
    tops, end = [], _MARGIN + len(title) * line_height(11) + len(colours) * line_height(8) + 16
    for layer in layers:
        tops.append(end)
        end += _row_height(layer, names[layer], cells)
    sheet = Sheet(width, end + len(said) * line_height(8) + _MARGIN)
    under = sheet.write_lines(_MARGIN, _MARGIN, title, 11, weight="bold")
    sheet.write_lines(_MARGIN, under, colours, 8, color=FAINT)
    for layer, top in zip(layers, tops, strict=True):
        _draw_row(sheet, layer, names[layer], kinds, cells, lefts, top)
    sheet.write_lines(_MARGIN, end, said, 8, color=FAINT)
    return cast("Figure", sheet.figure)


def _columns(kinds: list[Kind], cells: dict[tuple[str, Kind], _Cell]) -> tuple[dict[Kind, float], float]:
    """Where the pictures of each kind begin, so that they line up, and how wide the figure is."""
    lefts: dict[Kind, float] = {}
    left = _MARGIN
    for kind in kinds:
        left += max((cell.plate.left for (_, one), cell in cells.items() if one == kind), default=0.0)
        lefts[kind] = left
        left += _CELL[0] + _SPACE
    return lefts, max(_NARROWEST, left - _SPACE + _MARGIN)


def _above(layer: str, cells: dict[tuple[str, Kind], _Cell]) -> float:
    """Room for what is said above the pictures of a layer."""
    row = [cell for (one, _), cell in cells.items() if one == layer]
    return line_height(8) + max(len(cell.about) * line_height(6.5) + cell.plate.top for cell in row) + 12


def _row_height(layer: str, name: list[str], cells: dict[tuple[str, Kind], _Cell]) -> float:
    pictures = max(cell.plate.height for (one, _), cell in cells.items() if one == layer)
    return 16 + len(name) * line_height(10) + _above(layer, cells) + pictures + 14 + 12 + 2 * line_height(6.5) + 44


def _draw_row(
    sheet: Sheet,
    layer: str,
    name: list[str],
    kinds: list[Kind],
    cells: dict[tuple[str, Kind], _Cell],
    lefts: dict[Kind, float],
    top: float,
) -> None:
    rule = sheet.axes(_MARGIN, top, sheet.width - 2 * _MARGIN, 1)
    rule.set(xticks=[], yticks=[], facecolor="#C9CDD4")
    rule.spines[:].set_visible(False)
    top = sheet.write_lines(_MARGIN, top + 16, name, 10, weight="bold")
    picture = top + _above(layer, cells)
    for kind in kinds:
        cell = cells.get((layer, kind))
        sheet.write(lefts[kind], top, WORDS[kind], 8, weight="bold", color=FAINT if cell is None else INK)
        if cell is None:
            sheet.write(lefts[kind], top + line_height(8), "not kept", 6.5, color=FAINT)
            continue
        sheet.write_lines(lefts[kind], top + line_height(8), cell.about, 6.5, color=FAINT)
        shown = draw_plate(sheet, cell.plate, lefts[kind], picture)
        _write_below(sheet, cell, shown, lefts[kind], picture + cell.plate.height + 14)


def _write_below(sheet: Sheet, cell: _Cell, shown: Any, left: float, top: float) -> None:
    """A thin colour bar and a line of statistics."""
    if not cell.plate.mosaic.is_empty:
        draw_colour_bar(sheet, cell.plate, shown, (left, top, _CELL[0], 12), 6)
    top += 12 + line_height(6.5) + 16
    nonfinite = nonfinite_in_words(cell.entry)
    if nonfinite:
        sheet.write(left, top, nonfinite, 6.5, weight="bold", color=ALARM)
    else:
        said = [part for part in statistics_in_words(cell.entry) if not part.startswith("min ")]
        sheet.write(left, top, wrapped(said, _CELL[0], 6.5)[0], 6.5)
