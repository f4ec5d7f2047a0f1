"""`Shown`: gives a result its view in a notebook and in an interactive terminal.

The view is made from the text that `print` shows, so that they never disagree: the first line is the title, each indented
line `Name: value` is a fact, `Note: …`, `Warning: …` and `Failed: …` are warnings, and deeper lines belong to the fact above
them. A class adds tables, trees and pictures as `Fold`s. The HTML has no scripts and no style sheets, because some sites
remove them.
"""

from __future__ import annotations

import base64
import html
import re
import sys
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .tables import Table, has_colors, paint, terminal_width

_FACT = re.compile(r"^\t(?P<name>[A-Z][\w \-]{0,40}): (?P<value>.*)$")
_WARNINGS = ("Note", "Failed", "Warning")
_INSIDE = "\t\t"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Fold:
    """A part of a card that opens on a click."""

    title: str
    html: str
    is_open: bool = False


class Shown:
    """A result that notebooks show as a card, and interactive terminals in colour."""

    __slots__ = ()

    def _folds(self) -> Sequence[Fold]:
        """The parts that open on a click, below the facts."""
        return ()

    def _card_text(self) -> str:
        """The text from which the card is made."""
        return str(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return _card(self._card_text(), self._folds())

    def _terminal_text(self) -> str:
        """The text for a terminal, with colours if it has any."""
        return _painted(str(self)) if has_colors() else str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Called by IPython in a terminal: prints the text."""
        printer.text(_painted(repr(self)) if has_colors() else repr(self))


class ShownTable(Shown):
    """A result that notebooks and terminals show as a table."""

    __slots__ = ()

    @property
    @abstractmethod
    def table(self) -> Table:
        """The table to show."""

    def __str__(self) -> str:
        return self.table.text(terminal_width())

    def __repr__(self) -> str:
        return self.table.text(terminal_width(), color=is_interactive())

    def _terminal_text(self) -> str:
        return self.table.text(terminal_width(), color=has_colors())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self._terminal_text())

    def _repr_html_(self) -> str:
        return self.table.html()


def print_shown(result: Shown) -> None:
    """Print a result: with colours if standard output is a terminal that shows colours, else as plain text."""
    print(result._terminal_text())


def is_interactive() -> bool:
    """True at an interactive prompt in a terminal that shows colours."""
    return hasattr(sys, "ps1") and has_colors()


def _painted(text: str) -> str:
    """Add terminal styles to a text: a bold title, dim names of facts and yellow warnings."""
    if "\x1b" in text:
        return text
    first, *others = text.split("\n")
    lines = [paint(first, "bold")]
    for line in others:
        match = _FACT.match(line)
        if match is None:
            lines.append(line)
        elif match["name"] in _WARNINGS:
            lines.append(paint(line, "yellow"))
        else:
            lines.append(f"\t{paint(match['name'] + ':', 'dim')} {match['value']}")
    return "\n".join(lines)


def _card(text: str, folds: Sequence[Fold]) -> str:
    title, facts, warnings = _read(text)
    rows = "".join(
        f'<tr><td align="left" style="text-align:left;vertical-align:top"><b>{html.escape(name)}</b></td>'
        f'<td align="left" style="text-align:left">{_value(value)}</td></tr>'
        for name, value in facts
    )
    said = "".join(f"<p>⚠ {html.escape(one)}</p>" for one in warnings)
    parts = "".join(
        f"<details{' open' if fold.is_open else ''}><summary>{html.escape(fold.title)}</summary>{fold.html}</details>"
        for fold in folds
    )
    table = f"<table><tbody>{rows}</tbody></table>" if rows else ""
    return f"<div><details open><summary><b>{html.escape(title)}</b></summary>{said}{table}{parts}</details></div>"


def _value(text: str) -> str:
    return preformatted(text) if "\n" in text else html.escape(text)


def _read(text: str) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Split a text into its title, its facts and its warnings."""
    first, *lines = text.split("\n")
    facts: list[tuple[str, str]] = []
    warnings: list[str] = []
    for line in lines:
        match = _FACT.match(line)
        if match is not None and match["name"] in _WARNINGS:
            warnings.append(match["value"])
        elif match is not None:
            facts.append((match["name"], match["value"]))
        elif facts and (line.startswith("\t\t") or not line.startswith("\t")):  # a value of several lines, such as a tensor
            name, value = facts[-1]
            facts[-1] = (name, f"{value}\n{line.removeprefix(_INSIDE)}" if value else line.strip())
        elif line.strip():
            facts.append(("", line.strip()))
    return first.rstrip(":"), facts, warnings


def preformatted(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def image(png: bytes, words: str, width: int | None = None) -> str:
    """An HTML image with the PNG embedded; `words` is its alternative text."""
    size = f' width="{width}"' if width is not None else ""
    return f'<img alt="{html.escape(words, quote=True)}"{size} src="data:image/png;base64,{base64.b64encode(png).decode()}">'


def sparkline(counts: Sequence[int]) -> str:
    """A small histogram as text.

    >>> sparkline([0, 1, 4, 8, 2])
    '▁▁▄█▂'
    """
    most = max(counts, default=0)
    return "".join(_BARS[min(len(_BARS) - 1, count * len(_BARS) // (most + 1))] for count in counts) if most else ""
