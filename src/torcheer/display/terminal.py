"""Asks what a terminal can do: colours, width."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any, Final

_STYLES: Final = {"bold": "1", "dim": "2", "yellow": "33", "cyan": "36"}


def is_terminal(stream: Any = None) -> bool:
    """Whether what is written to a stream (by default standard output) appears in a terminal."""
    stream = sys.stdout if stream is None else stream
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # no stream at all, or one that is closed
        return False


def has_colors(stream: Any = None) -> bool:
    """Whether a stream shows colours: it is a terminal, and neither `NO_COLOR` nor `TERM=dumb` is set."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def terminal_width(stream: Any = None) -> int | None:
    """How many characters a line of the terminal has; None where text goes elsewhere, and lines may be as long as they like."""
    return shutil.get_terminal_size().columns if is_terminal(stream) else None


def paint(text: str, style: str) -> str:
    """Text in a style that terminals know: `bold`, `dim`, `yellow` or `cyan`."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if text else text
