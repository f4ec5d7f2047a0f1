"""Points, rectangles, curves and arrows, and their format in Graphviz."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from itertools import pairwise
from typing import Any

Point = tuple[float, float]
Cell = tuple[int, int]  # (column, row) of a cell
CELL = 60.0  # number of points; the cell size of the grid that finds neighbours
_EDGE = 1e-6  # a line crosses a cell if it comes this close to the cell, in fractions of a cell: it allows for rounding
_TIP = 6.0  # number of points; the length of an arrowhead


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; y grows upwards."""

    left: float
    low: float
    right: float
    high: float

    @property
    def x(self) -> float:
        """The x coordinate of the middle."""
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        """The y coordinate of the middle."""
        return (self.low + self.high) / 2

    @property
    def middle(self) -> Point:
        return self.x, self.y

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.high - self.low

    @classmethod
    def around(cls, middle: Point, width: float, height: float) -> Rect:
        """The rectangle with this middle and size."""
        x, y = middle
        return cls(x - width / 2, y - height / 2, x + width / 2, y + height / 2)

    def mapped(self, change: Callable[[Point], Point]) -> Rect:
        """The rectangle whose corners are the mapped corners."""
        return bounds_of((), [change((self.left, self.low)), change((self.right, self.high))])

    def moved(self, by: Point) -> Rect:
        """The rectangle, moved by a distance."""
        return Rect(self.left + by[0], self.low + by[1], self.right + by[0], self.high + by[1])

    def overlap(self, other: Rect) -> float:
        """The area of the intersection."""
        if self.left >= other.right or other.left >= self.right or self.low >= other.high or other.low >= self.high:
            return 0.0
        width = min(self.right, other.right) - max(self.left, other.left)
        return width * (min(self.high, other.high) - max(self.low, other.low))

    def contains(self, point: Point) -> bool:
        return self.left <= point[0] <= self.right and self.low <= point[1] <= self.high

    def is_crossed(self, a: Point, b: Point) -> bool:
        """True if the line between two points crosses the rectangle."""
        (x, y), (z, w) = a, b
        if (x <= self.left and z <= self.left) or (x >= self.right and z >= self.right):
            return False
        if (y <= self.low and w <= self.low) or (y >= self.high and w >= self.high):
            return False
        low, high = 0.0, 1.0
        for start, end, least, most in ((a[0], b[0], self.left, self.right), (a[1], b[1], self.low, self.high)):
            step = end - start
            if abs(step) < 1e-9:
                if not least < start < most:
                    return False
                continue
            first, last = sorted(((least - start) / step, (most - start) / step))
            low, high = max(low, first), min(high, last)
        return low < high

    def cells(self) -> Iterator[Cell]:
        for x in range(math.floor(self.left / CELL), math.floor(self.right / CELL) + 1):
            for y in range(math.floor(self.low / CELL), math.floor(self.high / CELL) + 1):
                yield x, y


def bounds_of(rects: Iterable[Rect], points: Iterable[Point] = ()) -> Rect:
    """The smallest rectangle around rectangles and points."""
    corners = [corner for rect in rects for corner in ((rect.left, rect.low), (rect.right, rect.high))]
    xs, ys = zip(*corners, *points, strict=True)
    return Rect(min(xs), min(ys), max(xs), max(ys))


def cells_along(a: Point, b: Point) -> Iterator[tuple[int, int, int]]:
    """The cells crossed by the line between two points: (first column, last column, row) for each row.

    >>> list(cells_along((10, 0), (130, 80)))
    [(0, 1, 0), (1, 2, 1)]
    """
    (x, y), (right, high) = sorted((a, b), key=lambda point: point[1])
    slope = (right - x) / (high - y) if high > y else 0.0
    for row in range(math.floor(y / CELL), math.floor(high / CELL) + 1):
        low, top = max(y, row * CELL), min(high, (row + 1) * CELL)
        ends = (x + (low - y) * slope, x + (top - y) * slope) if slope else (x, right)
        yield math.floor(min(ends) / CELL - _EDGE), math.floor(max(ends) / CELL + _EDGE), row


def moved(point: Point, by: Point) -> Point:
    """The point, moved by a distance."""
    return point[0] + by[0], point[1] + by[1]


def sides(rect: Rect) -> Iterator[tuple[Point, Point]]:
    corners = [(rect.left, rect.low), (rect.right, rect.low), (rect.right, rect.high), (rect.left, rect.high)]
    return zip(corners, corners[1:] + corners[:1], strict=True)


def read_point(text: str) -> Point:
    """Read a point from Graphviz."""
    x, y = text.split(",")[:2]
    return float(x), float(y)


def write_point(point: Point) -> str:
    """Write a point for Graphviz."""
    return f"{point[0]:.2f},{point[1]:.2f}"


def read_rect(text: str) -> Rect:
    """Read a rectangle from Graphviz."""
    return Rect(*map(float, text.split(",")))


def write_rect(rect: Rect) -> str:
    """Write a rectangle for Graphviz."""
    return ",".join(f"{side:.2f}" for side in astuple(rect))


@dataclass(frozen=True, slots=True)
class Arrow:
    """A Bézier curve of 3n + 1 points from tail to head, with optional tips beyond its ends."""

    curve: tuple[Point, ...]
    head: Point | None = None
    tail: Point | None = None  # for an arrow that was laid out in reverse

    def mapped(self, change: Callable[[Point], Point]) -> Arrow:
        """The arrow with every point mapped."""
        head, tail = (change(tip) if tip is not None else None for tip in (self.head, self.tail))
        return Arrow(tuple(map(change, self.curve)), head, tail)

    def moved(self, by: Point) -> Arrow:
        """The arrow, moved by a distance."""
        return self.mapped(lambda point: moved(point, by))

    def reversed(self) -> Arrow:
        """The same line in the other direction."""
        return Arrow(self.curve[::-1], self.tail, self.head)

    def line(self) -> list[Point]:
        """The arrow as a polyline, from tail to head."""
        way = [self.tail] if self.tail is not None else []
        way += self.curve[:1]
        for i in range(0, len(self.curve) - 3, 3):
            way += list(_curve(self.curve[i : i + 4]))
        if self.head is not None:
            way.append(self.head)
        return way


def read_arrow(pos: str) -> Arrow:
    """Read an arrow from Graphviz."""
    words = pos.split()
    tips = {word[0]: read_point(word[2:]) for word in words if word[:2] in ("s,", "e,")}
    return Arrow(tuple(read_point(word) for word in words if word[0] not in "se"), tips.get("e"), tips.get("s"))


def write_arrow(arrow: Arrow) -> str:
    """Write an arrow for Graphviz."""
    tips = [f"{name},{write_point(tip)}" for name, tip in (("s", arrow.tail), ("e", arrow.head)) if tip is not None]
    return " ".join([*tips, *map(write_point, arrow.curve)])


def _curve(points: Sequence[Point]) -> Iterator[Point]:
    return along_curve(points, max(2, min(12, int(math.dist(points[0], points[3]) / 8))))


def along_curve(points: Sequence[Point], steps: int) -> Iterator[Point]:
    """Points along a cubic Bézier curve, without the first."""
    for step in range(1, steps + 1):
        t = step / steps
        u = 1 - t
        weights = (u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t)
        x, y = (sum(w * p[i] for w, p in zip(weights, points, strict=True)) for i in (0, 1))
        yield x, y


def rounded(corners: Sequence[Point], radius: float) -> list[Point]:
    """A polyline with rounded corners, as a Bézier curve of 3n + 1 points."""
    curve = [corners[0]]
    here = corners[0]
    for corner, beyond in pairwise(corners[1:]):
        before, after = _towards(corner, here, radius), _towards(corner, beyond, radius)
        curve += [*_straight(here, before), corner, corner, after]
        here = after
    return curve + _straight(here, corners[-1])


def _towards(a: Point, b: Point, distance: float) -> Point:
    """The point at a distance from `a` towards `b`, at most halfway."""
    share = min(distance / max(math.dist(a, b), 1e-9), 0.5)
    return a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share


def _straight(a: Point, b: Point) -> list[Point]:
    return [_towards(a, b, math.dist(a, b) / 3), _towards(b, a, math.dist(a, b) / 3), b]


def bent_arrow(corners: Sequence[Point], radius: float = 5.0) -> Arrow:
    """An arrow with rounded corners and its tip at the last point."""
    tip = corners[-1]
    return Arrow(tuple(rounded([*corners[:-1], _towards(tip, corners[-2], _TIP)], radius)), tip)


def arrow_around(rect: Rect, direction: str, room: float) -> Arrow:
    """An arrow around a rectangle, from its end to its beginning in the model's direction."""
    if direction in ("right", "left"):
        y = rect.low + min(14.0, rect.height / 4)
        ends = (rect.right, rect.left) if direction == "right" else (rect.left, rect.right)
        out = room if direction == "right" else -room
        aside = rect.low - room
        turns = [(ends[0] + out, y), (ends[0] + out, aside), (ends[1] - out, aside), (ends[1] - out, y)]
        return bent_arrow([(ends[0], y), *turns, (ends[1], y)])
    x = rect.right - min(14.0, rect.width / 4)
    ends = (rect.low, rect.high) if direction == "down" else (rect.high, rect.low)
    out = -room if direction == "down" else room
    aside = rect.right + room
    turns = [(x, ends[0] + out), (aside, ends[0] + out), (aside, ends[1] - out), (x, ends[1] - out)]
    return bent_arrow([(x, ends[0]), *turns, (x, ends[1])])


# The positions from a layout of nodes, arrows and boxes, before texts are placed.


@dataclass(frozen=True, slots=True)
class GraphvizLayout:
    """Positions by names in the DOT text; arrows by the number of their edge."""

    bounds: Rect
    head: Rect | None  # title, notes and legend
    nodes: Mapping[str, Rect]
    arrows: dict[int, Arrow]
    boxes: Mapping[str, Rect]
    title_heights: Mapping[str, float] = field(default_factory=dict)  # box -> height of its title
    # number of an edge -> the middle of its text, if the layout placed the text
    texts: Mapping[int, Point] = field(default_factory=dict)


def read_layout(laid_out: bytes) -> GraphvizLayout:
    """The positions in a layout that Graphviz wrote as JSON."""
    read: dict[str, Any] = json.loads(laid_out)
    objects = read.get("objects", [])
    edges = {int(one["id"][1:]): one for one in read.get("edges", ()) if "id" in one}
    boxes = {one["name"]: one for one in objects if "bb" in one}
    return GraphvizLayout(
        bounds=read_rect(read["bb"]),
        head=_rect(read["lp"], read["lwidth"], read["lheight"]) if "lp" in read else None,
        nodes={
            one["name"]: _rect(one["pos"], one["width"], one["height"]) for one in objects if "bb" not in one and "pos" in one
        },
        arrows={number: read_arrow(one["pos"]) for number, one in edges.items() if "pos" in one},
        boxes={name: read_rect(one["bb"]) for name, one in boxes.items()},
        title_heights={name: float(one.get("lheight", 0.3)) * 72 for name, one in boxes.items()},
        texts={number: read_point(one["lp"]) for number, one in edges.items() if "lp" in one},
    )


def _rect(middle: str, width: str, height: str) -> Rect:
    """A rectangle from its middle, and its size in inches."""
    return Rect.around(read_point(middle), float(width) * 72, float(height) * 72)
