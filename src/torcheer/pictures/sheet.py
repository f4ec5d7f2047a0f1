"""Matplotlib figures that are filled by pixels from the top left corner; texts are measured before they are placed.

pyplot is not used, so that no window and no global list of figures is involved.
"""

from __future__ import annotations

import math
from typing import Any

DPI = 200
FAINT = "#5A5F69"
INK = "#16181D"
ALARM = "#C00000"
_STYLE = {"text.usetex": False, "axes.grid": False, "text.parse_math": False, "axes.unicode_minus": True}


def import_matplotlib() -> Any:
    """Import Matplotlib, or raise an error that says how to install it."""
    try:
        import matplotlib
        import matplotlib.cm
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.textpath
    except ImportError as error:
        raise ImportError("figures of an Xray need matplotlib: pip install matplotlib") from error
    return matplotlib


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """The width of a line of text, in pixels."""
    matplotlib = import_matplotlib()
    font = matplotlib.font_manager.FontProperties(size=size, weight=weight)
    return float(matplotlib.textpath.text_to_path.get_text_width_height_descent(text, font, False)[0]) * DPI / 72


def line_height(size: float) -> float:
    return size * 1.35 * DPI / 72


def wrapped(parts: list[str], width: float, size: float, weight: str = "normal", joint: str = " · ") -> list[str]:
    """Parts joined into lines of at most `width` pixels; a part that is wider is cut into pieces."""
    lines: list[str] = []
    for part in parts:
        if lines and text_width(lines[-1] + joint + part, size, weight) <= width:
            lines[-1] += joint + part
        else:
            lines += _pieces(part, width, size, weight)
    return lines


def _pieces(text: str, width: float, size: float, weight: str) -> list[str]:
    """Pieces of a text that fit the width, cut after a space or a dot if possible."""
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


class Sheet:
    """A Matplotlib figure on which texts and pictures are placed by pixels from the top left corner."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = math.ceil(width), math.ceil(height)
        with self.style():
            figure = import_matplotlib().figure.Figure
            self.figure = figure(figsize=(self.width / DPI, self.height / DPI), dpi=DPI, facecolor="white", layout="none")

    @staticmethod
    def style() -> Any:
        """A context that overrides the user's Matplotlib style."""
        matplotlib = import_matplotlib()
        return matplotlib.rc_context({key: value for key, value in _STYLE.items() if key in matplotlib.rcParams})

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        bottom = self.height - top - height
        place = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place, facecolor="none")

    def write(self, left: float, top: float, text: str, size: float, **look: Any) -> None:
        """Write a line of text with this top left corner."""
        look = {"color": INK, "va": "top", "ha": "left", "parse_math": False, **look}
        self.figure.text(left / self.width, 1 - top / self.height, text, fontsize=size, **look)

    def write_lines(self, left: float, top: float, lines: list[str], size: float, **look: Any) -> float:
        """Write lines below each other. Returns the bottom of the last line."""
        for at, line in enumerate(lines):
            self.write(left, top + at * line_height(size), line, size, **look)
        return top + len(lines) * line_height(size)
