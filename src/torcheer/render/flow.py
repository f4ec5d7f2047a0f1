"""Coordinates along a model: how far it has got, and how far aside. With them all four directions are one."""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import Point


@dataclass(frozen=True, slots=True)
class Flow:
    """Turns points of a picture into (aside, along), and back.

    They grow to where the next column stands, and to where the model goes. Of a turned rectangle, `left` and `right` are aside,
    `low` and `high` along.
    """

    direction: str

    def turned(self, point: Point) -> Point:
        x, y = point
        return {"down": (x, -y), "up": (x, y), "right": (-y, x), "left": (-y, -x)}[self.direction]

    def back(self, point: Point) -> Point:
        aside, along = point
        places = {"down": (aside, -along), "up": (aside, along), "right": (along, -aside), "left": (-along, -aside)}
        return places[self.direction]
