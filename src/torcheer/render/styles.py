"""Styles: what pictures are for. They set sizes and room, how much is written, and how tall a picture may be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Style:
    """Sizes of text are in points, room around things in inches."""

    theme: str
    has_head: bool  # title, notes and legend
    is_short: bool  # writes as little as a reader of a paper needs
    name_size: float
    text_size: float
    edge_size: float
    title_size: float
    node_margin: str
    solid_margin: str  # of collapsed modules
    room: float  # between nodes side by side
    rank_room: float
    noted_rank_room: float  # where many arrows have notes
    box_margin: float  # in points
    arrow: float
    line: float  # factor for the widths of lines
    tallest: float  # the ratio of height to width from which on a picture is drawn in columns
    tall: float  # the height from which on a picture is drawn in columns, in points
    best: float  # the ratio of height to width that columns aim at


STYLES = {
    "screen": Style(
        theme="light",
        has_head=True,
        is_short=False,
        name_size=10.5,
        text_size=9,
        edge_size=8,
        title_size=10,
        node_margin="0.11,0.055",
        solid_margin="0.16,0.09",
        room=0.28,
        rank_room=0.34,
        noted_rank_room=0.52,
        box_margin=9,
        arrow=0.6,
        line=1.0,
        tallest=4.0,
        tall=2000.0,
        best=1.3,
    ),
    "paper": Style(
        theme="paper",
        has_head=False,
        is_short=True,
        name_size=8,
        text_size=7,
        edge_size=6,
        title_size=7.5,
        node_margin="0.055,0.025",
        solid_margin="0.11,0.075",
        room=0.14,
        rank_room=0.16,
        noted_rank_room=0.3,
        box_margin=6,
        arrow=0.45,
        line=0.6,
        tallest=2.0,
        tall=300.0,
        best=1.2,
    ),
}

_POINTS = {"pt": 1.0, "px": 0.75, "mm": 72 / 25.4, "cm": 72 / 2.54, "in": 72.0}


@dataclass(frozen=True, slots=True)
class Length:
    """A length as it was given: a number and its unit."""

    number: float
    unit: str

    @property
    def points(self) -> float:
        return self.number * _POINTS[self.unit]

    def times(self, factor: float) -> Length:
        return Length(self.number * factor, self.unit)

    def __str__(self) -> str:
        return f"{self.number:.6g}{self.unit}"


def read_length(length: object) -> Length:
    """A length; a number is in points.

    >>> str(read_length("8.5 cm")), round(read_length("8.5cm").points, 1), read_length(240).points
    ('8.5cm', 240.9, 240.0)
    """
    found = Length(0.0, "pt")
    if isinstance(length, (int, float)) and not isinstance(length, bool):
        found = Length(float(length), "pt")
    elif isinstance(length, str) and (read := re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(pt|px|mm|cm|in)\s*", length)):
        found = Length(float(read[1]), read[2])
    if not 10 <= found.points <= 100_000:
        raise InvalidArgument(
            f"width is a length such as '8.5cm', '80mm', '3.3in' or '240pt', from 10 points; got {length!r:.60}."
        )
    return found
