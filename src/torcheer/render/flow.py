"""Coordinates along a model: how far it has got, and how far aside. With them all four directions are one."""

from __future__ import annotations

from dataclasses import dataclass

from .geometry import Arrow, Point, Rect


@dataclass(frozen=True, slots=True)
class Flow:
    """Turns points of a picture into (aside, along), which grow to where the next column stands and to where the model goes."""

    direction: str

    def turned(self, point: Point) -> Point:
        x, y = point
        return {"down": (x, -y), "up": (x, y), "right": (-y, x), "left": (-y, -x)}[self.direction]

    def back(self, point: Point) -> Point:
        aside, along = point
        return {"down": (aside, -along), "up": (aside, along), "right": (along, -aside), "left": (-along, -aside)}[
            self.direction
        ]

    def turned_rect(self, rect: Rect) -> Rect:
        """`left` and `right` are aside, `low` and `high` along."""
        return _between(self.turned((rect.left, rect.low)), self.turned((rect.right, rect.high)))

    def back_rect(self, rect: Rect) -> Rect:
        return _between(self.back((rect.left, rect.low)), self.back((rect.right, rect.high)))

    def turned_arrow(self, arrow: Arrow) -> Arrow:
        return arrow.mapped(self.turned)

    def back_arrow(self, arrow: Arrow) -> Arrow:
        return arrow.mapped(self.back)


def _between(a: Point, b: Point) -> Rect:
    return Rect(min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]))
