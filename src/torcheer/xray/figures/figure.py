"""Figures of a run, as Matplotlib figures that the user can change and save: one layer large, or a whole snapshot."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...files import write_whole
from ...render.showing import notebook
from ..snapshots.records import Entry
from ..snapshots.run import Run
from .captions import is_part, nonfinite_in_words, number, shape_of, shown_of, source_of, statistics_in_words, title_of
from .colors import (
    FAINT_SHARE,
    NONFINITE,
    SCALE_WORDS,
    ScaleName,
    as_fractions,
    check_scale,
    chosen_scale,
    scales_of,
    share_reached,
)
from .overview import figure_of_snapshot as figure_of_snapshot
from .tensor_figure import (
    ALARM,
    DPI,
    FAINT,
    Plate,
    Sheet,
    draw_color_bar,
    draw_plate,
    import_matplotlib,
    line_height,
    make_plate,
    text_width,
    wrapped,
)
from .tiles import make_mosaic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 40.0
_BOX = (1240.0, 1060.0)  # the picture of one layer, in pixels
_NARROWEST = 1000.0
_BAR = (480.0, 24.0)


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
            colours that fit this step alone. By default `"frame"` for gradients, since they shrink. The figure says which.

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
        write_whole(Path(path), png_of(figure), "figure")
        print(f"Picture: {path}")
        return None
    display = sys.modules["IPython"].display
    picture = _image(png_of(figure), figure.get_figwidth())
    _shown_here(figure)
    if update and display_id is not None:
        display.update_display(picture, display_id=display_id)
        return display_id
    return cast(str, display.display(picture, display_id=display_id or True).display_id)


def _image(png: bytes, inches: float) -> Any:
    return sys.modules["IPython"].display.Image(data=png, format="png", width=round(inches * 96))


def _shown_here(figure: Figure) -> None:
    """Do not show a figure again as the last value of the cell that has shown it; other cells still show it."""
    shown = getattr(notebook(), "execution_count", 0)

    def display() -> None:
        if getattr(notebook(), "execution_count", 0) != shown:
            sys.modules["IPython"].display.display(_image(png_of(figure), figure.get_figwidth()))

    figure._ipython_display_ = display  # type: ignore[attr-defined]  # what IPython asks an object for


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
    width = int.from_bytes(png[16:20], "big")  # of the header
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
        draw_color_bar(sheet, plate, shown, (_MARGIN, bar, *_BAR), 7)
        _write_key(sheet, plate, _MARGIN + _BAR[0] + 36, bar, scale_words)
    end = sheet.write_lines(_MARGIN, words, below, 8.5)
    sheet.write_lines(_MARGIN, end, nonfinite, 8.5, weight="bold", color=ALARM)
    return cast("Figure", sheet.figure)


def _write_key(sheet: Sheet, plate: Plate, left: float, top: float, scale_words: str) -> None:
    """What the colour bar shows, beside it."""
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
