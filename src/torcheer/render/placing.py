"""Reads a layout and finds room for words: titles of modules and notes on edges go where no arrow runs over them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .dot import Places, box_name, title_lines, title_width
from .drawing import Drawing

Point = tuple[float, float]
_CELL = 60.0  # points; the grid that things nearby are found with
_GAP = 4.0


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle; y grows upwards."""

    left: float
    low: float
    right: float
    high: float

    @property
    def x(self) -> float:
        """Of the middle."""
        return (self.left + self.right) / 2

    @property
    def y(self) -> float:
        """Of the middle."""
        return (self.low + self.high) / 2

    @property
    def width(self) -> float:
        return self.right - self.left

    @property
    def height(self) -> float:
        return self.high - self.low

    def overlap(self, other: Rect) -> float:
        """The area that two have in common."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.high, other.high) - max(self.low, other.low)
        return width * height if width > 0 and height > 0 else 0.0

    def is_crossed(self, a: Point, b: Point) -> bool:
        """Whether a line between two points goes through it."""
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

    def cells(self) -> Iterator[tuple[int, int]]:
        for x in range(math.floor(self.left / _CELL), math.floor(self.right / _CELL) + 1):
            for y in range(math.floor(self.low / _CELL), math.floor(self.high / _CELL) + 1):
                yield x, y


@dataclass(slots=True)
class _Grid:
    """Rectangles and lines, found by where they are."""

    rects: dict[tuple[int, int], list[Rect]] = field(default_factory=dict)
    lines: dict[tuple[int, int], list[tuple[Point, Point, int]]] = field(default_factory=dict)

    def add_rect(self, rect: Rect) -> None:
        for cell in rect.cells():
            self.rects.setdefault(cell, []).append(rect)

    def add_line(self, a: Point, b: Point, owner: int) -> None:
        around = Rect(min(a[0], b[0]), min(a[1], b[1]), max(a[0], b[0]), max(a[1], b[1]))
        for cell in around.cells():
            self.lines.setdefault(cell, []).append((a, b, owner))

    def cost(self, rect: Rect, owner: int) -> float:
        """How much is in the way: what lies under it, and the arrows that cross it."""
        area = 0.0
        crossed: set[int] = set()
        for cell in rect.cells():
            area += sum(rect.overlap(other) for other in self.rects.get(cell, ()))
            for a, b, whose in self.lines.get(cell, ()):
                if whose not in crossed and rect.is_crossed(a, b):
                    crossed.add(whose)
        return area + sum(60.0 if whose == owner else 30.0 for whose in crossed)

    def lines_in(self, rect: Rect) -> Iterator[tuple[Point, Point]]:
        for cell in rect.cells():
            for a, b, _ in self.lines.get(cell, ()):
                if rect.is_crossed(a, b):
                    yield a, b


def read_layout(laid_out: bytes, drawing: Drawing) -> Places:
    """The places in a layout that Graphviz wrote as JSON, with room found for every word."""
    found: dict[str, Any] = json.loads(laid_out)
    objects = found.get("objects", [])
    nodes = {one["name"]: one for one in objects if "bb" not in one and "pos" in one}
    boxes = {one["name"]: one for one in objects if "bb" in one}
    edges = {int(one["id"][1:]): one["pos"] for one in found.get("edges", ()) if "pos" in one and "id" in one}
    grid = _Grid()
    for one in nodes.values():
        grid.add_rect(node_rect(one))
    ways = {number: _polyline(pos) for number, pos in edges.items()}
    for number, way in ways.items():
        for a, b in pairwise(way):
            grid.add_line(a, b, number)
    titles = {}
    cuts = {}
    for number, box in enumerate(drawing.boxes):
        name = box_name(number)
        if name in boxes:
            widths = [title_width(title_lines(box, cut)) for cut in (0, 1, 2)]
            titles[name], cuts[name] = _title_place(boxes[name], widths, grid)
    for one in boxes.values():
        for a, b in _sides(Rect(*map(float, one["bb"].split(",")))):
            grid.add_line(a, b, -1)
    texts = {int(one["id"][1:]): one["lp"] for one in found.get("edges", ()) if "lp" in one and "id" in one}
    for number, place in texts.items():
        grid.add_rect(_text_rect(place, drawing.edges[number].text))
    for number, edge in enumerate(drawing.edges):
        if edge.text and number in ways and number not in texts:
            way = ways[number][::-1] if edge.is_backward else ways[number]
            texts[number] = _text_place(way, edge.text, number, grid)
    return Places(
        bounds=found.get("bb", ""),
        head=found.get("lp", ""),
        nodes={name: one["pos"] for name, one in nodes.items()},
        edges=edges,
        edge_texts=texts,
        boxes=titles,
        cuts=cuts,
    )


def size_of(places: Places) -> tuple[float, float]:
    """Width and height of a picture, in points."""
    left, low, right, high = map(float, places.bounds.split(","))
    return right - left, high - low


def node_rect(node: dict[str, Any]) -> Rect:
    """Where a node is, as Graphviz writes it."""
    x, y = map(float, node["pos"].split(","))
    half_width, half_height = float(node["width"]) * 36, float(node["height"]) * 36
    return Rect(x - half_width, y - half_height, x + half_width, y + half_height)


def _sides(rect: Rect) -> Iterator[tuple[Point, Point]]:
    corners = [(rect.left, rect.low), (rect.right, rect.low), (rect.right, rect.high), (rect.left, rect.high)]
    return zip(corners, corners[1:] + corners[:1], strict=True)


def read_point(text: str) -> Point:
    """A point, as Graphviz writes it."""
    x, y = text.split(",")[:2]
    return float(x), float(y)


def read_way(pos: str) -> tuple[Point | None, list[Point], Point | None]:
    """An arrow, as Graphviz writes it: the tip at its tail, if it has one there, a Bézier curve, and the tip at its head."""
    words = pos.split()
    tips = {word[0]: read_point(word[2:]) for word in words if word[:2] in ("s,", "e,")}
    return tips.get("s"), [read_point(word) for word in words if word[0] not in "se"], tips.get("e")


def _polyline(pos: str) -> list[Point]:
    """An arrow as a line with many corners, from tail to head."""
    start, points, end = read_way(pos)
    way = [start] if start is not None else []
    way += points[:1]
    for i in range(0, len(points) - 3, 3):
        way += list(_curve(points[i : i + 4]))
    if end is not None:
        way.append(end)
    return way


def _curve(points: list[Point]) -> Iterator[Point]:
    return along_curve(points, max(2, min(12, int(math.dist(points[0], points[3]) / 8))))


def along_curve(points: Sequence[Point], steps: int) -> Iterator[Point]:
    """Points along a Bézier curve of four, without the first."""
    for step in range(1, steps + 1):
        t = step / steps
        u = 1 - t
        weights = (u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t)
        x, y = (sum(w * p[i] for w, p in zip(weights, points, strict=True)) for i in (0, 1))
        yield x, y


def _title_place(box: dict[str, Any], widths: list[float], grid: _Grid) -> tuple[tuple[str, str], int]:
    """Where the title of a box goes, as far left as no arrow runs through it; and which of its forms has room there."""
    bounds = Rect(*map(float, box["bb"].split(",")))
    height = float(box.get("lheight", 0.3)) * 72
    middle = float(box["lp"].split(",")[1]) if "lp" in box else bounds.high - height / 2 - 4
    band = Rect(bounds.left, middle - height / 2 - 1, bounds.right, middle + height / 2 + 1)
    taken = []
    for a, b in grid.lines_in(band):
        xs = sorted(_between(a, b, band))
        taken.append((xs[0] - _GAP, xs[-1] + _GAP))
    cut = 0
    for cut, width in enumerate(widths):  # noqa: B007 - the last one tried is the one that is used
        left, fits = _free_place(bounds.left + 7, bounds.right - 5, width, taken)
        if fits:
            break
    grid.add_rect(Rect(left, band.low, left + width, band.high))
    return (box["bb"], f"{left + width / 2:.2f},{middle:.2f}"), cut


def _between(a: Point, b: Point, band: Rect) -> list[float]:
    """The x of a line where it enters and leaves a band."""
    heights = [y for y in (band.low, band.high) if (a[1] - y) * (b[1] - y) < 0]
    found = [a[0] + (b[0] - a[0]) * (y - a[1]) / (b[1] - a[1]) for y in heights]
    return found + [x for x, y in (a, b) if band.low <= y <= band.high] or [a[0], b[0]]


def _free_place(left: float, right: float, width: float, taken: Iterable[tuple[float, float]]) -> tuple[float, bool]:
    """The leftmost place that is wide enough; failing that, the start of the widest one, and that it is not."""
    best, best_room = left, -1.0
    here = left
    for start, end in (*sorted(taken), (right, right)):
        room = min(start, right) - here
        if room >= width:
            return here, True
        if room > best_room:
            best, best_room = here, room
        here = max(here, end)
    return min(best, max(left, right - width)), False


def _text_rect(place: str, text: str) -> Rect:
    x, y = map(float, place.split(","))
    half = 2.25 * len(text) + 2
    return Rect(x - half, y - 4.5, x + half, y + 4.5)


def _text_place(way: list[Point], text: str, number: int, grid: _Grid) -> str:
    """Where the note on an edge goes: beside the arrow, near its head, clear of everything if there is such a place."""
    width, height = 4.5 * len(text) + 3, 9.0
    best, best_cost = way[-1], math.inf
    for distance, (x, y), (dx, dy) in _along(list(reversed(way)), (13, 18, 24, 31, 40, 52, 68, 88, 112)):
        for side, gap in ((1, 2.5), (-1, 2.5), (1, 8.0), (-1, 8.0), (1, 18.0), (-1, 18.0)):
            aside = abs(dy) * (width / 2 + gap) + abs(dx) * (height / 2 + gap)
            place = (x - dy * side * aside, y + dx * side * aside)
            rect = Rect(place[0] - width / 2, place[1] - height / 2, place[0] + width / 2, place[1] + height / 2)
            cost = grid.cost(rect, number) + distance * 0.1 + gap
            if cost < best_cost:
                best, best_cost = place, cost
    grid.add_rect(Rect(best[0] - width / 2, best[1] - height / 2, best[0] + width / 2, best[1] + height / 2))
    return f"{best[0]:.2f},{best[1]:.2f}"


def _along(way: list[Point], distances: Iterable[float]) -> Iterator[tuple[float, Point, Point]]:
    """Points at distances along a line, each with the direction there."""
    wanted = list(distances)
    gone = 0.0
    for a, b in pairwise(way):
        length = math.dist(a, b)
        while wanted and length > 1e-9 and gone + length >= wanted[0]:
            share = (wanted[0] - gone) / length
            direction = ((b[0] - a[0]) / length, (b[1] - a[1]) / length)
            yield wanted.pop(0), (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share), direction
        gone += length
