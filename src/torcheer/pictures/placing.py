"""Places texts in a layout: titles of modules and notes on edges, where no arrow crosses them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from .dot import ROOM_AROUND, Placement, box_name, title_lines, title_width
from .drawing import Drawing
from .geometry import CELL, Arrow, Cell, GraphvizLayout, Point, Rect, arrow_around, cells_along, sides
from .legend import legend_height

_GAP = 4.0


_ARROWS, _RECTS = 16, 32  # a cell of the grid lists at most this many arrows and rectangles: it is crowded anyway


@dataclass(slots=True)
class _Grid:
    """An index of rectangles and lines by position."""

    rects: dict[Cell, list[Rect]] = field(default_factory=dict)
    # lines of arrows, by the number of the arrow
    lines: dict[Cell, dict[int, list[tuple[Point, Point]]]] = field(default_factory=dict)
    full: dict[Cell, int] = field(default_factory=dict)  # full cell -> the next column that may have room

    def add_rect(self, rect: Rect) -> None:
        for cell in rect.cells():
            known = self.rects.setdefault(cell, [])
            if len(known) < _RECTS:
                known.append(rect)

    def add_line(self, a: Point, b: Point, owner: int) -> None:
        for first, last, row in cells_along(a, b):
            column = self._with_room(first, row)
            while column <= last:
                known = self.lines.setdefault((column, row), {})
                known.setdefault(owner, []).append((a, b))
                if len(known) == _ARROWS:
                    self.full[column, row] = column + 1
                column = self._with_room(column + 1, row)

    def _with_room(self, column: int, row: int) -> int:
        """Find the first column, from `column` on, whose cell in this row has room for another line."""
        passed = []
        while (beyond := self.full.get((column, row))) is not None:
            passed.append(column)
            column = beyond
        for one in passed:
            self.full[one, row] = column
        return column

    def cost(self, rect: Rect, owner: int, cost: float, best: float, *, is_on_arrow: bool) -> float:
        """Compute the cost of a position: covered rectangles and crossing arrows. Stops adding when the sum exceeds `best`."""
        own = 0.0 if is_on_arrow else 60.0
        crossed: set[int] = set()
        for cell in rect.cells():
            for other in self.rects.get(cell, ()):
                cost += rect.overlap(other)
                if cost >= best:
                    return cost
            for whose, lines in self.lines.get(cell, _NONE).items():
                if whose not in crossed and any(rect.is_crossed(a, b) for a, b in lines):
                    crossed.add(whose)
                    cost += own if whose == owner else 30.0
                    if cost >= best:
                        return cost
        return cost

    def lines_in(self, rect: Rect) -> Iterator[tuple[Point, Point]]:
        for cell in rect.cells():
            for lines in self.lines.get(cell, _NONE).values():
                for a, b in lines:
                    if rect.is_crossed(a, b):
                        yield a, b


_NONE: Mapping[int, list[tuple[Point, Point]]] = {}


def place_words(found: GraphvizLayout, drawing: Drawing) -> Placement:
    """The positions of a layout, including all texts."""
    grid = _Grid()
    for rect in found.nodes.values():
        grid.add_rect(rect)
    arrows = found.arrows | _arrows_around(found, drawing)
    ways = {number: arrow.line() for number, arrow in arrows.items()}
    for number, way in ways.items():
        for a, b in pairwise(way):
            grid.add_line(a, b, number)
    titles = {}
    cuts = {}
    for number, box in enumerate(drawing.boxes):
        name = box_name(number)
        if name in found.boxes:
            widths = [title_width(title_lines(box, cut), drawing.style) for cut in (0, 1, 2)]
            titles[name], cuts[name] = _title_place(found.boxes[name], found.title_heights[name], widths, grid)
    for rect in found.boxes.values():
        for a, b in sides(rect):
            grid.add_line(a, b, -1)
    texts = dict(found.texts)
    boxes, grounds = _Boxes(found.boxes), {}
    for number, place in texts.items():
        grid.add_rect(Rect.around(place, *_text_size(drawing.edges[number].text, drawing.style.edge_size)))
    for number, edge in enumerate(drawing.edges):
        if edge.text and number in ways and number not in texts:
            way = ways[number][::-1] if edge.is_backward else ways[number]
            size = _text_size(edge.text, drawing.style.edge_size)
            texts[number] = _text_place(way, size, number, grid, is_on_arrow=edge.is_text_on_arrow)
            if edge.is_text_on_arrow:
                grounds[number] = boxes.innermost(texts[number])
    return Placement(
        bounds=found.bounds,
        head=found.head.middle if found.head is not None else None,
        legend=(found.head.left + 1, found.head.low + legend_height(drawing)) if found.head is not None else (0.0, 0.0),
        nodes=found.nodes,
        edges=arrows,
        edge_texts=texts,
        edge_grounds=grounds,
        boxes=found.boxes,
        titles=titles,
        cuts=cuts,
    )


def _arrows_around(found: GraphvizLayout, drawing: Drawing) -> dict[int, Arrow]:
    """The arrows around repeated blocks, by edge number."""
    rects = {box.key: found.boxes[box_name(n)] for n, box in enumerate(drawing.boxes) if box_name(n) in found.boxes}
    rects |= found.nodes
    return {
        number: arrow_around(rects[edge.around], drawing.direction, ROOM_AROUND)
        for number, edge in enumerate(drawing.edges)
        if edge.around in rects
    }


class _Boxes:
    """Finds boxes by a point inside: each box is listed in the cells, of about its own size, that it covers."""

    def __init__(self, boxes: Mapping[str, Rect]) -> None:
        self.boxes = boxes
        self.cells: dict[tuple[float, int, int], list[str]] = {}
        for name, rect in boxes.items():
            size = CELL * 2.0 ** math.ceil(math.log2(max(rect.width, rect.height, CELL) / CELL))
            for x in range(math.floor(rect.left / size), math.floor(rect.right / size) + 1):
                for y in range(math.floor(rect.low / size), math.floor(rect.high / size) + 1):
                    self.cells.setdefault((size, x, y), []).append(name)
        self.sizes = sorted({size for size, _, _ in self.cells}, reverse=True)

    def innermost(self, point: Point) -> str:
        """The innermost box around a point; empty if there is none."""
        near = (self.cells.get((size, math.floor(point[0] / size), math.floor(point[1] / size)), ()) for size in self.sizes)
        around = [name for some in near for name in some if self.boxes[name].contains(point)]
        return min(around, key=lambda name: self.boxes[name].width * self.boxes[name].height, default="")


def _title_place(bounds: Rect, height: float, widths: list[float], grid: _Grid) -> tuple[Point, int]:
    """Place a box's title as far left as no arrow crosses it. Returns its middle, and by how many steps it is shortened."""
    middle = bounds.high - height / 2 - 4
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
    return (left + width / 2, middle), cut


def _between(a: Point, b: Point, band: Rect) -> list[float]:
    """The x coordinates of a line where it enters and leaves a band."""
    heights = [y for y in (band.low, band.high) if (a[1] - y) * (b[1] - y) < 0]
    found = [a[0] + (b[0] - a[0]) * (y - a[1]) / (b[1] - a[1]) for y in heights]
    return found + [x for x, y in (a, b) if band.low <= y <= band.high] or [a[0], b[0]]


def _free_place(left: float, right: float, width: float, taken: Iterable[tuple[float, float]]) -> tuple[float, bool]:
    """Find the leftmost interval that is wide enough: (start, True). Without one: (start of the widest interval, False)."""
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


def _text_size(text: str, size: float) -> Point:
    """The approximate width and height of a note."""
    return 0.5625 * size * len(text) + 3, size + 1


_CLEAR = 9.0  # this many points of an arrow stay visible between its end and a text on it
_DISTANCES = (13, 18, 24, 31, 40, 52, 68, 88, 112)  # numbers of points between a text and the head of its arrow
_FURTHER = 24  # about this many further distances are tried for a text on a long arrow
_BESIDE = ((1, 2.5), (-1, 2.5), (1, 8.0), (-1, 8.0), (1, 18.0), (-1, 18.0))  # (side, points from the arrow)
_CROWDED = 45.0  # a text on its arrow may be put beside the arrow if its place costs more than this


def _text_place(way: list[Point], size: Point, number: int, grid: _Grid, *, is_on_arrow: bool) -> Point:
    """The position of an edge's note: beside or on the arrow, near its head, and free of overlaps if possible."""
    best, cost = _best_place(way, size, number, grid, is_on_arrow=is_on_arrow)
    if is_on_arrow and cost > _CROWDED:
        beside, beside_cost = _best_place(way, size, number, grid, is_on_arrow=False)
        best = beside if beside_cost < cost - _CROWDED / 3 else best
    grid.add_rect(Rect.around(best, *size))
    return best


def _best_place(way: list[Point], size: Point, number: int, grid: _Grid, *, is_on_arrow: bool) -> tuple[Point, float]:
    """Find the position of least cost, and return it with its cost. The cost is infinite if the arrow is too short."""
    width, height = size
    best, best_cost = way[-1], math.inf
    length = sum(math.dist(a, b) for a, b in pairwise(way))
    further = range(140, int(length) - 20, max(30, int(length) // _FURTHER)) if is_on_arrow else ()
    distances = [*_DISTANCES, *further]
    for distance, (x, y), (dx, dy) in _along(list(reversed(way)), distances):
        along = abs(dx) * width / 2 + abs(dy) * height / 2
        if is_on_arrow and not along + _CLEAR < distance < length - along - 3:
            continue  # the text would cover the head or the tail
        for side, gap in ((0, 0.0),) if is_on_arrow else _BESIDE:
            aside = (abs(dy) * (width / 2 + gap) + abs(dx) * (height / 2 + gap)) * side
            place = (x - dy * aside, y + dx * aside)
            least = distance * 0.1 + gap
            if least >= best_cost:
                continue
            cost = grid.cost(Rect.around(place, *size), number, least, best_cost, is_on_arrow=is_on_arrow)
            if cost < best_cost:
                best, best_cost = place, cost
    return best, best_cost


def _along(way: list[Point], distances: Iterable[float]) -> Iterator[tuple[float, Point, Point]]:
    """Points at these distances along a line, with the direction at each."""
    wanted = list(distances)
    gone = 0.0
    for a, b in pairwise(way):
        length = math.dist(a, b)
        while wanted and length > 1e-9 and gone + length >= wanted[0]:
            share = (wanted[0] - gone) / length
            direction = ((b[0] - a[0]) / length, (b[1] - a[1]) / length)
            yield wanted.pop(0), (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share), direction
        gone += length
