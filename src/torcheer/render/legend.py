"""The head of a picture: its title, what a reader must know, and what its colours, shapes and lines mean."""

from __future__ import annotations

import html
import textwrap

from .drawing import Drawing
from .themes import Look, Theme, ramp_color

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
    "feedback": "to the next pass or block",
    "gradient": "gradient",
    "memory": "through shared memory",
    "positions": "position of the argument",
}
_STEPS = 14
_NOTE = 62  # characters in a line; a wider head would pull the legend apart


def escape(text: str) -> str:
    """Text as it may stand in a label. Graphviz would put a node's name for `\\N`, so backslashes are doubled."""
    return html.escape(text, quote=True).replace("\\", "\\\\")


def head(drawing: Drawing, columns: int) -> str:
    """The label of the whole picture, in the markup of Graphviz."""
    theme = drawing.theme
    rows = [f'<tr><td align="left" colspan="2"><font point-size="15"><b>{escape(drawing.title)}</b></font></td></tr>']
    for line in (line for note in drawing.notes for line in textwrap.wrap(note, _NOTE)):
        words = f'<font point-size="9" color="{theme.faint}">{escape(line)}</font>'
        rows.append(f'<tr><td align="left" colspan="2">{words}</td></tr>')
    if drawing.scale is not None:
        rows.append(f'<tr><td align="left" colspan="2">{_scale(drawing)}</td></tr>')
    entries = [(_sample(name, theme, drawing.scale is not None), _WORDS[name]) for name in _WORDS if name in drawing.seen]
    if entries:
        rows.append(f'<tr><td align="left" colspan="2">{_grid(entries, theme, columns)}</td></tr>')
    return f'<table border="0" cellborder="0" cellspacing="0" cellpadding="1">{"".join(rows)}</table>'


def _grid(entries: list[tuple[str, str]], theme: Theme, columns: int) -> str:
    """Samples and words, filled column by column."""
    height = -(-len(entries) // max(columns, 1))
    rows = []
    for row in range(height):
        cells = []
        for sample, words in entries[row::height]:
            text = f'<font point-size="9" color="{theme.ink}">{escape(words)}  </font>'
            cells.append(f'<td>{sample}</td><td align="left">{text}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f'<table border="0" cellborder="0" cellspacing="3" cellpadding="0">{"".join(rows)}</table>'


def _sample(name: str, theme: Theme, is_colored: bool) -> str:
    if name in ("feedback", "memory", "gradient"):
        return _line("dotted" if name == "memory" else "dashed", theme.gradient if name == "gradient" else theme.edge)
    if name == "positions":
        return f'<font point-size="8" color="{theme.faint}">0, 1</font>'
    plain = theme.looks["function"]
    look = theme.looks.get(name, plain)  # type: ignore[call-overload]  # names that are not looks are drawn plain
    if name == "reference":
        look = Look(theme.page, theme.looks["internal"].border, 1.0, "dotted")
    if is_colored:
        look = Look(theme.unknown, look.border, look.width, look.line)
    styles = [style for style in (look.line, "rounded" if name in _ROUND else "") if style not in ("", "solid")]
    if name in ("in place", "collapsed"):
        return _double(look, "rounded" if name == "in place" else "")
    return _frame(look, styles, "", 20, 12)


_ROUND = ("function output", "internal", "decision", "in place", "opaque", "failed")


def _frame(look: Look, styles: list[str], content: str, width: int, height: int) -> str:
    style = f' style="{",".join(styles)}"' if styles else ""
    border = max(1, round(look.width))
    size = f'fixedsize="true" width="{width}" height="{height}"'
    return (
        f'<table border="{border}" cellborder="0" cellspacing="0" cellpadding="0" color="{look.border}" '
        f'bgcolor="{look.fill}" {size}{style}><tr><td>{content}</td></tr></table>'
    )


def _double(look: Look, style: str) -> str:
    how = f' style="{style}"' if style else ""
    cell = f'<td border="1" color="{look.border}" width="14" height="6" fixedsize="true"{how}></td>'
    frame = f'border="1" cellspacing="2" cellpadding="0" color="{look.border}" bgcolor="{look.fill}"{how}'
    frame += ' fixedsize="true" width="20" height="12"'
    return f"<table {frame}><tr>{cell}</tr></table>"


def _line(style: str, color: str) -> str:
    cell = f'<td border="1" sides="b" style="{style}" color="{color}" width="20" height="5" fixedsize="true"></td>'
    below = '<td height="5" fixedsize="true"></td>'
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
