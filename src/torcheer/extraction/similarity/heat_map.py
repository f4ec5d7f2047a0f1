"""A heat map of a matrix whose rows and columns are layers, drawn so large that every name can be read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...xray.figures.tensor_figure import FAINT, INK, Sheet, import_matplotlib, line_height, text_width
from ..statistics.drawn import Drawn

Array = np.ndarray[Any, Any]
_MARGIN = 30  # pixels
_LONGEST = 34  # letters of a name
_FEW = 16  # rows and columns that have their numbers written in
_CELL, _SMALL_CELL = 88, 30
_MOST = 4000  # pixels of a side of the matrix


def short_name(name: str, longest: int = _LONGEST) -> str:
    """A name without its middle, where it is long: its end tells layers apart.

    >>> short_name("encoder.layers.11.attention.self.query", 20)
    'encod…ion.self.query'
    """
    if len(name) <= longest:
        return name
    end = (longest - 1) * 3 // 4
    return f"{name[: longest - 1 - end]}…{name[-end:]}"


def heat_map(values: Array, rows: list[str], columns: list[str], title: str, words: str, ends: tuple[str, str]) -> Drawn:
    """Draw a matrix. `words` name its numbers beside the colours; `ends` are what rows and columns are of."""
    matplotlib = import_matplotlib()
    count = max(values.shape)
    cell = _CELL if count <= _FEW else max(min(_SMALL_CELL, _MOST // count), 2)
    every = max(1, math.ceil(_SMALL_CELL / cell))  # where there are too many, not all are named
    size = 9.0 if count <= _FEW else 7.0
    names = [[short_name(name) for name in some] for some in (rows, columns)]
    room = [max(text_width(name, size) for name in some) + 24 for some in names]
    is_flat = count <= _FEW and room[1] <= cell  # names of columns that fit above them
    height, width = values.shape[0] * cell, values.shape[1] * cell
    head = line_height(12) + (line_height(8) if any(ends) else 0) + 20
    top = _MARGIN + head + (line_height(size) + 12 if is_flat else room[1])
    left = _MARGIN + room[0]
    bar = 24
    total = max(left + width + 40 + bar + 110 + _MARGIN, 2 * _MARGIN + text_width(title, 12, "bold"))
    with Sheet.style():
        sheet = Sheet(total, top + max(height, 160) + _MARGIN)
        sheet.write(_MARGIN, _MARGIN, title, 12, weight="bold")
        if any(ends):
            sheet.write(_MARGIN, _MARGIN + line_height(12), f"rows: {ends[0]}, columns: {ends[1]}", 8, color=FAINT)
        axes = sheet.axes(left, top, width, height)
        low = -1.0 if np.nanmin(values, initial=0.0) < -0.05 else 0.0
        colors = matplotlib.colormaps["RdBu_r" if low < 0 else "magma"].with_extremes(bad="#D8DAE0")
        picture = axes.imshow(values, cmap=colors, vmin=low, vmax=1.0, aspect="auto", interpolation="nearest")
        axes.tick_params(length=0, labelsize=size, colors=INK, top=False, bottom=False, labeltop=True, labelbottom=False)
        axes.set_yticks(range(0, len(rows), every), names[0][::every])
        axes.set_xticks(range(0, len(columns), every), names[1][::every], rotation=0 if is_flat else 90)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if count <= _FEW:
            _write_numbers(axes, values, picture)
        key = sheet.axes(left + width + 40, top, bar, max(height, 160))
        sheet.figure.colorbar(picture, cax=key, label=words)
        key.tick_params(labelsize=7, colors=INK)
        key.yaxis.label.set_size(8)
        key.yaxis.label.set_color(INK)
        key.spines[:].set_visible(False)
    return Drawn(sheet.figure, title)


def _write_numbers(axes: Any, values: Array, picture: Any) -> None:
    value: Any
    for (row, column), value in np.ndenumerate(values):
        red, green, blue, _ = picture.cmap(picture.norm(value)) if not math.isnan(value) else (1.0, 1.0, 1.0, 1.0)
        is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        text = "–" if math.isnan(value) else f"{value:.2f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if is_dark else INK)
