"""Tables for terminals and notebooks, the abilities of a terminal, and phrases for messages ("a, b and 3 more", "did you
mean").
"""

from __future__ import annotations

import html
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas


_STYLES: Final = {"bold": "1", "dim": "2", "yellow": "33", "cyan": "36"}


def is_terminal(stream: Any = None) -> bool:
    """True if a stream (by default standard output) writes to a terminal."""
    stream = sys.stdout if stream is None else stream
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no stream, or a closed stream
        return False


def has_colors(stream: Any = None) -> bool:
    """True if a stream shows colours: it is a terminal, and neither `NO_COLOR` nor `TERM=dumb` is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(stream: Any = None) -> int | None:
    """The characters in a line of the terminal; None if the stream is not a terminal, so that lines have no limit."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def paint(text: str, style: str) -> str:
    """Text in a terminal style: `bold`, `dim`, `yellow` or `cyan`."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text else text


# Phrases for messages: lists of texts, and known names that resemble an unknown name.


def few(things: Iterable[object], most: int, joint: str = ", ") -> str:
    """The first `most` things and the number of the others: `a, b and 3 more`, or `a; b; and 3 more`."""
    texts = [str(thing) for thing in things]
    shown, left = joint.join(texts[:most]), len(texts) - most
    return f"{shown}{' ' if joint == ', ' else joint}and {left} more" if left > 0 else shown


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of an error message that suggests the most similar known name. Empty if no name is similar."""
    near = get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""


def nearest(name: object, known: Iterable[str], what: str = "") -> str:
    """The end of an error message that suggests the five most similar known names. Empty if no name is similar."""
    near = get_close_matches(str(name), list(known), n=5, cutoff=0.5)
    return f" The nearest {what}{' ' if what else ''}are {', '.join(map(repr, near))}." if near else ""


# A table of texts, written for a terminal or a notebook.

_LEAST = 6  # a column is narrowed to no fewer characters than this
_COMFORTABLE = 10  # extra columns are left out before a column of text gets fewer characters than this
_BRANCHES = "├└│─ "


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column, and whether it has numbers, which are aligned right and never cut."""

    head: str
    is_number: bool = False
    is_extra: bool = False  # left out where the table is too wide


@dataclass(slots=True)
class Table:
    """Rows under heads, with an optional row of totals and notes below. Cells of the first column may draw a tree."""

    columns: Sequence[Column]
    rows: list[tuple[str, ...]]
    total: tuple[str, ...] | None = None
    more: str = ""  # says how many rows are left out
    notes: list[str] = field(default_factory=list)

    def text(self, width: int | None = None, *, color: bool = False) -> str:
        """The table as lines of at most `width` characters.

        Text that does not fit is cut: at the end in the other columns, and only then, in the middle, in the first column.
        Extra columns that have no room are left out, and a note names them.
        """
        if width is not None and (left_out := self._without_room(width)):
            return self._without(left_out).text(width, color=color)
        head = tuple(column.head for column in self.columns)
        last = [self.total] if self.total is not None else []
        widths = self._widths()
        if width is not None:
            self._narrow(widths, width)
        rule = "  ".join("─" * one for one in widths)
        lines = [self._line(head, widths, "bold" if color else None), paint(rule, "dim") if color else rule]
        lines += [self._line(row, widths, "row" if color else None) for row in self.rows]
        lines += [self.more] if self.more else []
        lines += [paint(rule, "dim") if color else rule]
        lines += [self._line(one, widths, "bold" if color else None) for one in last]
        return "\n".join([*lines, *(paint(note, "yellow") if color else note for note in self.notes)])

    def _widths(self) -> list[int]:
        head = tuple(column.head for column in self.columns)
        last = [self.total] if self.total is not None else []
        return [max(map(len, cells)) for cells in zip(head, *last, *self.rows, strict=True)]

    def _without_room(self, width: int) -> list[int]:
        """Choose extra columns to leave out, so that the other columns fit without cutting the first column."""
        widths = self._widths()
        needed = [
            one if column.is_number or not at else min(one, _COMFORTABLE)
            for at, (one, column) in enumerate(zip(widths, self.columns, strict=True))
        ]
        gone: list[int] = []
        for at in [at for at, column in enumerate(self.columns) if column.is_extra]:
            if sum(needed) + 2 * (len(needed) - 1) - sum(needed[one] + 2 for one in gone) <= width:
                break
            gone.append(at)
        return gone

    def _without(self, gone: list[int]) -> Table:
        def kept(cells: Sequence[Any]) -> tuple[Any, ...]:
            return tuple(cell for at, cell in enumerate(cells) if at not in gone)

        names = ", ".join(repr(self.columns[at].head) for at in gone)
        note = f"No room here for the columns {names}." if len(gone) > 1 else f"No room here for the column {names}."
        total = kept(self.total) if self.total is not None else None
        return Table(kept(self.columns), [kept(row) for row in self.rows], total, self.more, [*self.notes, note])

    def _narrow(self, widths: list[int], width: int) -> None:
        """Narrow text columns, the widest first, until the table fits. The first column is narrowed last."""
        while sum(widths) + 2 * (len(widths) - 1) > width:
            free = [at for at, column in enumerate(self.columns) if at and not column.is_number and widths[at] > _LEAST]
            if not free and (self.columns[0].is_number or widths[0] <= _LEAST):
                return
            widths[max(free, key=widths.__getitem__, default=0)] -= 1

    def _line(self, cells: tuple[str, ...], widths: list[int], style: str | None) -> str:
        written = []
        for at, (cell, width, column) in enumerate(zip(cells, widths, self.columns, strict=True)):
            shown = cell if len(cell) <= width else cell[: width - 1] + "…" if at else _cut_in_middle(cell, width)
            aligned = shown.rjust(width) if column.is_number else shown.ljust(width)
            if style == "bold":
                aligned = paint(aligned, "bold")
            elif style == "row" and at == 0:
                name = aligned.lstrip(_BRANCHES)
                aligned = paint(aligned[: len(aligned) - len(name)], "dim") + name
            elif style == "row" and at == 1 and not column.is_number:
                aligned = paint(aligned, "cyan")
            written.append(aligned)
        line = "  ".join(written)
        return line if style is not None else line.rstrip()

    def html(self) -> str:
        """The table as HTML. It has no style sheet, because some sites remove style sheets."""
        heads = self._html_cells(tuple(column.head for column in self.columns), "th")
        body = "".join(f"<tr>{self._html_cells(row, 'td')}</tr>" for row in self.rows)
        if self.more:
            body += f'<tr><td colspan="{len(self.columns)}">{html.escape(self.more)}</td></tr>'
        if self.total is not None:
            body += f"<tr>{self._html_cells(self.total, 'th')}</tr>"
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{notes}"

    def _html_cells(self, row: tuple[str, ...], tag: str) -> str:
        cells = []
        for column, cell in zip(self.columns, row, strict=True):
            side = "right" if column.is_number else "left"
            text = html.escape(cell).replace(" ", "&nbsp;") if column is self.columns[0] else html.escape(cell)
            style = f"text-align:{side};white-space:nowrap;padding:0 .5em"
            cells.append(f'<{tag} align="{side}" style="{style}">{text}</{tag}>')
        return "".join(cells)


def _cut_in_middle(cell: str, width: int) -> str:
    """Cut a name that does not fit in its middle. Its branch of the tree stays."""
    name = cell.lstrip(_BRANCHES)
    branch = cell[: len(cell) - len(name)][: max(width - _LEAST, 0)]
    room = width - len(branch) - 1
    return f"{branch}{name[: room - room // 2]}…{name[len(name) - room // 2 :]}"


def aligned(rows: Sequence[Sequence[str]], *, has_head: bool = False) -> str:
    """Rows as lines with aligned columns. With `has_head`, a rule follows the first row.

    >>> print(aligned([("layer", "kind"), ("conv1", "weight")], has_head=True))
    layer  kind
    ─────  ──────
    conv1  weight
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rule = [["─" * width for width in widths]] if has_head else []
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in [*rows[:1], *rule, *rows[1:]])


def data_frame(rows: list[dict[str, Any]]) -> pandas.DataFrame:
    """Rows as a pandas table, or an error that says how to install pandas."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError("to_pandas() needs pandas: pip install pandas") from error
    return pandas.DataFrame(rows)
