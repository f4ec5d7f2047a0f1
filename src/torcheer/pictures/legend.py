"""The head of a picture (title, notes, colour scale, legend), and the width of texts in Helvetica."""

from __future__ import annotations

import html
import textwrap
import unicodedata
from dataclasses import dataclass, replace

from .drawing import Drawing
from .options import Look, Theme, ramp_color

# Widths in thousandths of the font size; Arial and Liberation Sans have the same. Unlisted characters have the width of a
# digit.
_DIGIT = 556
_REGULAR = {
    191: "'",
    222: "ijl",
    260: "|",
    278: " !,./:;I[\\]ft·\u00a0",
    333: "()-`r",
    334: "{}",
    355: '"',
    389: "*",
    469: "^",
    500: "Jcksvxyz",
    584: "+<=>~×",
    611: "FTZ",
    667: "&ABEKPSVXY",
    722: "CDHNRUw",
    778: "GOQ",
    833: "Mm",
    889: "%",
    944: "W",
    1000: "…→—",
    1015: "@",
}
_BOLD = {
    238: "'",
    278: " ,./I\\ijl·\u00a0",
    280: "|",
    333: "!()-:;[]`ft",
    389: "*r{}",
    474: '"',
    500: "z",
    584: "+<=>^~×",
    611: "?FLTZbdghnopqu",
    667: "EPSVXY",
    722: "&ABCDHKNRU",
    778: "GOQw",
    833: "M",
    889: "%m",
    944: "W",
    975: "@",
    1000: "…→—",
}


def _by_character(widths: dict[int, str]) -> dict[str, int]:
    return {character: width for width, characters in widths.items() for character in characters}


_WIDTHS = {False: _by_character(_REGULAR), True: _by_character(_BOLD)}


def text_width(text: str, size: float, *, is_bold: bool = False) -> float:
    """The width of a line of text, in the unit of its font size.

    >>> text_width("relu", 10), text_width("relu", 10, is_bold=True)
    (16.67, 18.34)
    """
    known = _WIDTHS[is_bold]
    total = sum(known[character] if character in known else _unlisted(character) for character in text)
    return round(total * size / 1000, 2)


def _unlisted(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 1000 if unicodedata.east_asian_width(character) in "WF" else _DIGIT


# The head of a picture: its title, notes for the reader, and the meaning of its colours, shapes and lines.

_WORDS = {
    "input": "input",
    "output": "output",
    "trainable": "trainable parameters",
    "frozen": "frozen parameters",
    "mixed": "partly frozen parameters",
    "internal": "does not depend on an input",
    "buffer": "buffer",
    "decision": "a truth value left for Python",
    "opaque": "opaque: cannot be looked into",
    "failed": "raised an error",
    "module output": "returned by a module",
    "function output": "returned by a function",
    "in place": "written in place",
    "collapsed": "collapsed module",
    "reference": "stands for a node that feeds many",
    "stub": "the model goes on",
    "feedback": "to the next pass or block",
    "gradient": "gradient",
    "memory": "through shared memory",
    "positions": "position of the argument",
}
SAMPLE = (22.0, 12.0)  # size of a sample in points
_ROW = 15.0
_WIDER = 1.2  # a picture's font may be this many times as wide as Helvetica
_SHAPES = {"collapsed": "box3d", "buffer": "cylinder"}
_ROUND = ("function output", "internal", "decision", "in place", "opaque", "failed")
_COLUMN = 165.0  # width of a column in points
_STEPS = 14
_NOTE = 62  # a line of a note has at most this many characters: a wider head would pull the legend apart


def escape(text: str) -> str:
    """Text escaped for a label. Backslashes are doubled, because Graphviz replaces `\\N` by a node's name."""
    return html.escape(text, quote=True).replace("\\", "\\\\")


def head(drawing: Drawing) -> str:
    """The label of the whole picture in Graphviz markup, empty if it has none; it ends with room for the legend."""
    theme, has_title = drawing.theme, drawing.style.has_head
    title = f'<tr><td align="left"><font point-size="15"><b>{escape(drawing.title)}</b></font></td></tr>'
    rows = [title] if has_title else []
    said = [escape(line) for note in drawing.notes for line in textwrap.wrap(note, _NOTE) if has_title]
    rows += [f'<tr><td align="left"><font point-size="9" color="{theme.faint}">{line}</font></td></tr>' for line in said]
    if drawing.scale is not None:
        rows.append(f'<tr><td align="left">{_scale(drawing)}</td></tr>')
    entries = legend_entries(drawing)
    if entries:
        size = f'width="{max(entry.x + entry.width for entry in entries):.0f}" height="{legend_height(drawing):.0f}"'
        room = f'<table border="0" fixedsize="true" {size}><tr><td></td></tr></table>'
        rows.append(f'<tr><td align="left">{room}</td></tr>')
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{"".join(rows)}</table>' if rows else ""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A sample and its meaning; `x` and `row` count from the upper left corner of the legend."""

    name: str
    words: str
    x: float
    row: int
    width: float

    def sample_place(self, corner: tuple[float, float]) -> tuple[float, float]:
        """The middle of the sample."""
        return corner[0] + self.x + SAMPLE[0] / 2, corner[1] - (self.row + 0.5) * _ROW

    def words_place(self, corner: tuple[float, float]) -> tuple[float, float, float]:
        """The middle of the text, and its width."""
        width = self.width - SAMPLE[0] - 4
        return corner[0] + self.x + SAMPLE[0] + 4 + width / 2, corner[1] - (self.row + 0.5) * _ROW, width


def legend_height(drawing: Drawing) -> float:
    """The height of the legend, in points."""
    return max((entry.row + 1 for entry in legend_entries(drawing)), default=0) * _ROW + 4


def legend_entries(drawing: Drawing) -> list[LegendEntry]:
    """The entries of a drawing's legend, filled column by column."""
    names = [name for name in _WORDS if name in drawing.seen]
    columns = _columns(drawing)
    height = max(1, -(-len(names) // max(columns, 1)))
    found: list[LegendEntry] = []
    x = 0.0
    for first in range(0, len(names), height):
        column = names[first : first + height]
        width = SAMPLE[0] + 4 + _WIDER * max(text_width(_WORDS[name], 9) for name in column) + 8
        found += [LegendEntry(name, _WORDS[name], x, row, width) for row, name in enumerate(column)]
        x += width
    return found


def _columns(drawing: Drawing) -> int:
    """The number of columns of the legend, about as many as fit the picture's width."""
    order = {node.id: position for position, node in enumerate(drawing.nodes)}
    rank = [0] * len(drawing.nodes)
    for edge in drawing.edges:
        if not edge.is_free and not edge.is_backward and not edge.around:
            rank[order[edge.target]] = max(rank[order[edge.target]], rank[order[edge.source]] + 1)
    sizes: dict[int, float] = {}
    for position, node in enumerate(drawing.nodes):
        width = 24 + 5.0 * max(map(len, node.lines))
        sizes[rank[position]] = sizes.get(rank[position], 0.0) + width
    if drawing.direction in ("right", "left"):
        widest = len(sizes) * 150.0
    else:
        widest = max(sizes.values(), default=0.0)
    return max(2, min(6, int(widest / _COLUMN)))


def legend_sample(name: str, theme: Theme, is_colored: bool) -> tuple[Look, str, bool]:
    """The look and shape of a node of this kind, and True if its border is double."""
    look = theme.looks.get(name, theme.looks["function"])  # type: ignore[call-overload]  # other names have the plain look
    if name == "reference":
        look = Look(theme.page, theme.looks["internal"].border, 1.0, "dotted")
    if name == "stub":
        look = theme.looks["omitted"]
    if name == "collapsed":
        look = theme.looks["trainable"]
    if is_colored:
        look = replace(look, fill=theme.unknown)
    return look, _SHAPES.get(name, "pill" if name in _ROUND else "box"), name == "in place"


def line_sample(name: str, theme: Theme) -> str:
    """The sample of a line, or of a note on an arrow, in Graphviz markup; empty if the sample is a node."""
    if name == "positions":
        return f'<font point-size="8" color="{theme.faint}">0, 1</font>'
    if name not in ("feedback", "memory", "gradient"):
        return ""
    style, color = ("dotted" if name == "memory" else "dashed"), (theme.gradient if name == "gradient" else theme.edge)
    width = f'width="{SAMPLE[0]:.0f}"'
    cell = f'<td border="1" sides="b" style="{style}" color="{color}" {width} height="6" fixedsize="true"></td>'
    below = '<td height="6" fixedsize="true"></td>'
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="0"><tr>{cell}</tr><tr>{below}</tr></table>'


def _scale(drawing: Drawing) -> str:
    """A bar of colours from the smallest value to the largest."""
    scale, theme = drawing.scale, drawing.theme
    assert scale is not None
    bar = "".join(
        f'<td bgcolor="{ramp_color(theme.ramp, step / (_STEPS - 1))}" width="9" height="10"></td>' for step in range(_STEPS)
    )
    words = f"{scale.title}{' (logarithmic)' if scale.is_log else ''}"
    low, high = (scale.words(scale.low), scale.words(scale.high)) if scale.values else ("nothing known", "")

    def said(text: str) -> str:
        return f'<td><font point-size="9" color="{theme.ink}">{escape(f" {text} ")}</font></td>'

    frame = f'border="1" color="{theme.faint}" cellborder="0" cellspacing="0" cellpadding="0"'
    cells = f"{said(words)}{said(low)}<td><table {frame}><tr>{bar}</tr></table></td>{said(high)}"
    return f'<table border="0" cellborder="0" cellspacing="2" cellpadding="0"><tr>{cells}</tr></table>'
