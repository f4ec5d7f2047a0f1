"""Draws a long model in columns: cuts the layout between nodes where few arrows cross, and sets the pieces side by side.

The code works in coordinates (aside, along): across the model, and along it. With them all four directions are the same.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from .dot import box_name
from .drawing import Drawing, DrawnBox
from .geometry import Arrow, GraphvizLayout, Point, Rect, bounds_of, moved, rounded
from .options import PictureOptions


@dataclass(frozen=True, slots=True)
class Flow:
    """Converts points of a picture to (aside, along) and back.

    `along` grows in the direction of the model, `aside` towards the next column. In a turned rectangle, `left` and `right`
    are aside, `low` and `high` along.
    """

    direction: str

    def turned(self, point: Point) -> Point:
        x, y = point
        return {"down": (x, -y), "up": (x, y), "right": (-y, x), "left": (-y, -x)}[self.direction]

    def back(self, point: Point) -> Point:
        aside, along = point
        places = {"down": (aside, -along), "up": (aside, along), "right": (along, -aside), "left": (-along, -aside)}
        return places[self.direction]


# Possible cuts of a layout: between nodes, where few arrows cross and few boxes are open.

# A crossing arrow, and an open box, cost as much as a cut that is off its best place by this fraction of a column's length.
_ARROW, _BOX = 0.06, 0.05
_CONSIDERED = 160  # at most this many cuts are compared


@dataclass(frozen=True, slots=True)
class Cut:
    """A place at which a layout may be cut into columns."""

    along: float
    sources: frozenset[str]  # nodes whose arrows cross the cut
    boxes: int  # number of boxes that are open at the cut

    @property
    def cost(self) -> float:
        return _ARROW * max(len(self.sources) - 1, 0) + _BOX * self.boxes


def possible_cuts(turned: GraphvizLayout, drawing: Drawing) -> list[Cut]:
    """Find the possible cuts, in order: one in each gap between nodes, where fewest boxes are open. Boxes with an arrow around
    them are not cut.
    """
    whole = {edge.around for edge in drawing.edges if edge.around}
    boxes = [
        (turned.boxes[box_name(n)], box.key in whole) for n, box in enumerate(drawing.boxes) if box_name(n) in turned.boxes
    ]
    places = [place for gap in _gaps(turned) if (place := _place(gap, boxes)) is not None]
    crossing = _crossing(turned, drawing, [along for _, along in places])
    found = [Cut(along, sources, count) for (count, along), sources in zip(places, crossing, strict=True)]
    if len(found) > _CONSIDERED:
        found = sorted(sorted(found, key=lambda cut: cut.cost)[:_CONSIDERED], key=lambda cut: cut.along)
    return found


def _place(gap: tuple[float, float], boxes: list[tuple[Rect, bool]]) -> tuple[int, float] | None:
    """Find the place in a gap where fewest boxes are open. Returns their number and the place; None if no cut is allowed."""
    start, end = gap
    near = [(rect, is_whole) for rect, is_whole in boxes if rect.low < end and rect.high > start]
    borders = sorted({start, end, *(side for rect, _ in near for side in (rect.low, rect.high) if start < side < end)})
    found = []
    for low, high in pairwise(borders):
        middle = (low + high) / 2
        opened = [is_whole for rect, is_whole in near if rect.low < middle < rect.high]
        if not any(opened):
            found.append((len(opened), low - high, middle))
    if not found:
        return None
    count, _, middle = min(found)
    return count, middle


def _gaps(turned: GraphvizLayout) -> list[tuple[float, float]]:
    """The intervals along the model without nodes."""
    found = []
    reached = float("-inf")
    for rect in sorted(turned.nodes.values(), key=lambda rect: rect.low):
        if reached < rect.low and reached != float("-inf"):
            found.append((reached, rect.low))
        reached = max(reached, rect.high)
    return found


def _crossing(turned: GraphvizLayout, drawing: Drawing, places: list[float]) -> list[frozenset[str]]:
    """Find for each place, in order, the nodes whose arrows cross the place."""
    begin, finish = [], []
    for number in turned.arrows:
        edge = drawing.edges[number]
        ends = sorted((turned.nodes[edge.source].y, turned.nodes[edge.target].y))
        begin.append((ends[0], edge.source))
        finish.append((ends[1], edge.source))
    begin.sort(reverse=True)
    finish.sort(reverse=True)
    under_way: Counter[str] = Counter()
    found = []
    for place in places:
        while begin and begin[-1][0] < place:
            under_way[begin.pop()[1]] += 1
        while finish and finish[-1][0] < place:
            under_way[finish.pop()[1]] -= 1
        found.append(frozenset(name for name, count in under_way.items() if count > 0))
    return found


def best_cuts(cuts: list[Cut], columns: int, turned: GraphvizLayout) -> list[Cut]:
    """Choose cuts for about equally long columns with few crossings. Returns fewer cuts if there are not enough places."""
    columns = min(columns, len(cuts) + 1)
    start, end = turned.bounds.low, turned.bounds.high
    wanted = (end - start) / columns

    def unlike(length: float) -> float:
        return (length / wanted - 1) ** 2

    def lengthened(best: list[float], p: int, place: int) -> float:
        return best[p] + unlike(cuts[place].along - cuts[p].along)

    if columns < 2:
        return []
    costs = [cut.cost for cut in cuts]
    best = [unlike(cut.along - start) + cost for cut, cost in zip(cuts, costs, strict=True)]  # for each place of the last cut
    befores: list[list[int]] = []  # for each number of cuts from two on: the previous cut before each place
    for _ in range(columns - 2):
        before = _cheapest_before(len(cuts), partial(lengthened, best))
        best = [
            lengthened(best, p, place) + cost if p >= 0 else float("inf")
            for place, (p, cost) in enumerate(zip(before, costs, strict=True))
        ]
        befores.append(before)
    place = min(range(len(cuts)), key=lambda last: best[last] + unlike(end - cuts[last].along))
    chosen = [cuts[place]]
    for before in reversed(befores):
        place = before[place]
        chosen.append(cuts[place])
    return chosen[::-1]


def _cheapest_before(count: int, cost: Callable[[int, int], float]) -> list[int]:
    """Find for each of `count` places the earlier place of least cost. -1 for the first place.

    The cost is convex in the distance, so the answers ascend with the places: the answer in the middle bounds both halves.
    """
    found = [-1] * count
    waiting = [(1, count, 0, count)]  # (first place, end place, least answer, largest answer)
    while waiting:
        first, end, least, most = waiting.pop()
        if first < end:
            middle = (first + end) // 2
            found[middle] = answer = min(range(least, min(most, middle)), key=lambda p: cost(p, middle))
            waiting += [(first, middle, least, answer + 1), (middle + 1, end, answer, most)]
    return found


# Divides a layout into columns.
#
# An example: ResNet-18 is laid out in one column, nine times as tall as wide. Between `layer2` and `layer3` the arrows of
# one node cross and no box is open, so that is a good place for a cut. With two cuts the picture has three columns; an arrow
# that crosses a cut goes on from the bottom of its column through the gap beside it to the top of the next. A box that is
# cut ends at the bottom and begins again at the top, as `… layer2`.

_MOST = 12  # at most this many columns are tried
_CROSSING = 4  # arrows of at most this many nodes may cross a cut, unless `columns` was given
_READABLE = 0.7  # a picture may be printed at this fraction of its size; below it, fewer columns are better
_TRACK = 6.0  # distance of arrows in the gap between columns, in points
_HEAD_GAP = 10.0


def in_columns(found: GraphvizLayout, drawing: Drawing, options: PictureOptions) -> tuple[GraphvizLayout, Drawing]:
    """The layout in the requested number of columns, or by default in as many as fit a page."""
    flow = Flow(drawing.direction)
    turned = _turned(found, flow)
    if options.columns == 1 or not turned.nodes or (options.columns is None and not _is_tall(turned, options)):
        return found, drawing
    cuts = possible_cuts(turned, drawing)
    if options.columns is not None:
        return _set_columns(found, drawing, flow, turned, best_cuts(cuts, options.columns, turned))
    best, before = (found, drawing), _cost(found, options)
    for number in range(2, _MOST + 1):
        chosen = best_cuts(cuts, number, turned)
        if len(chosen) < number - 1 or any(len(cut.sources) > _CROSSING for cut in chosen):
            break
        made = _set_columns(found, drawing, flow, turned, chosen)
        cost = _cost(made[0], options)
        if cost >= before:  # more columns would be further from a good shape
            break
        best, before = made, cost
    return best


def _is_tall(turned: GraphvizLayout, options: PictureOptions) -> bool:
    bounds, style = turned.bounds, options.looks
    return bounds.height > style.tallest * bounds.width and bounds.height > style.tall


def _cost(found: GraphvizLayout, options: PictureOptions) -> float:
    """Compute how far a picture is from its best shape. The cost is larger if the picture would be printed too small."""
    across, along = found.bounds.width, found.bounds.height
    if options.direction in ("right", "left"):
        across, along = along, across
    cost = abs(math.log(along / max(across, 1.0) / options.looks.best))
    length = options.length
    if length is not None and found.bounds.width > length.points / _READABLE:
        cost += 4 * math.log(found.bounds.width * _READABLE / length.points)
    return cost


def _turned(found: GraphvizLayout, flow: Flow) -> GraphvizLayout:
    """The layout in (aside, along) coordinates, without its head."""
    nodes = {name: rect.mapped(flow.turned) for name, rect in found.nodes.items()}
    boxes = {name: rect.mapped(flow.turned) for name, rect in found.boxes.items()}
    arrows = {number: arrow.mapped(flow.turned) for number, arrow in found.arrows.items()}
    return replace(found, bounds=_bounds(nodes, boxes, arrows), head=None, nodes=nodes, boxes=boxes, arrows=arrows)


def _bounds(nodes: dict[str, Rect], boxes: dict[str, Rect], arrows: dict[int, Arrow]) -> Rect:
    return bounds_of([*nodes.values(), *boxes.values()], [point for arrow in arrows.values() for point in arrow.curve])


def _set_columns(
    found: GraphvizLayout, drawing: Drawing, flow: Flow, turned: GraphvizLayout, cuts: list[Cut]
) -> tuple[GraphvizLayout, Drawing]:
    if not cuts:
        return found, drawing
    setter = _Setter(turned, drawing, cuts)
    setter.set()
    boxes = {name: rect.mapped(flow.back) for name, rect in setter.boxes.items()}
    nodes = {name: rect.mapped(flow.back) for name, rect in setter.nodes.items()}
    arrows = {number: arrow.mapped(flow.back) for number, arrow in setter.arrows.items()}
    texts = {n: flow.back(setter.moved(flow.turned(place), drawing.edges[n].source)) for n, place in found.texts.items()}
    bounds = _bounds(nodes, boxes, arrows)
    head = None
    if found.head is not None:
        left, low = bounds.left, bounds.high + _HEAD_GAP
        head = Rect(left, low, left + found.head.width, low + found.head.height)
        bounds = bounds_of([bounds, head])
    titles = {**found.title_heights, **setter.title_heights}
    set_ = GraphvizLayout(bounds, head, nodes, arrows, boxes, titles, texts)
    return set_, replace(drawing, nodes=setter.drawn_nodes, boxes=setter.drawn_boxes)


@dataclass(slots=True)
class _Column:
    """A piece of the model: its interval along the model, and its displacement."""

    start: float
    end: float
    by: Point = (0.0, 0.0)
    right: float = 0.0
    last: float = 0.0  # where its last node or box ends


class _Setter:
    """Sets pieces side by side, in (aside, along) coordinates."""

    def __init__(self, turned: GraphvizLayout, drawing: Drawing, cuts: list[Cut]) -> None:
        self.turned = turned
        self.drawing = drawing
        self.cuts = cuts
        ends = [turned.bounds.low, *(cut.along for cut in cuts), turned.bounds.high]
        self.columns = [_Column(start, end) for start, end in pairwise(ends)]
        self.home = {name: self._column(rect.y) for name, rect in turned.nodes.items()}
        self.nodes: dict[str, Rect] = {}
        self.boxes: dict[str, Rect] = {}
        self.arrows: dict[int, Arrow] = {}
        self.leaving: dict[tuple[str, int], list[Point]] = {}  # (node, column) -> the path of its arrows out of the column
        self.entering: dict[int, list[Point]] = {}  # arrow -> its path in the column where it ends
        self.title_heights: dict[str, float] = {}
        self.drawn_nodes = drawing.nodes
        self.drawn_boxes = drawing.boxes
        self.title = drawing.style.title_size * 1.2 + 2
        self.margin = drawing.style.box_margin

    def _column(self, along: float) -> int:
        return bisect_left(self.cuts, along, key=lambda cut: cut.along)

    def moved(self, point: Point, node: str) -> Point:
        """The new position of a point beside a node."""
        return moved(point, self.columns[self.home[node]].by)

    def set(self) -> None:
        pieces = self._pieces()
        tracks = self._tracks()
        self._part()
        inside: list[list[Rect]] = [[] for _ in self.columns]
        points: list[list[Point]] = [[] for _ in self.columns]
        for name, rect in self.turned.nodes.items():
            inside[self.home[name]].append(rect)
        for (_, where), rect in pieces.items():
            inside[where].append(rect)
        for number, arrow in self.turned.arrows.items():
            if number not in self.entering:  # the arrow ends in the column where it begins
                points[self._ends(number)[0]] += arrow.curve
        for (_, where), way in self.leaving.items():
            points[where] += way
        for number, way in self.entering.items():
            points[max(self._ends(number))] += way
        here = 0.0
        for number, column in enumerate(self.columns):
            extent = bounds_of(inside[number], points[number])
            column.by = (here - extent.left, -extent.low)
            column.right = here + extent.width
            column.last = extent.height
            here = column.right + 4 * _TRACK + _TRACK * len(tracks.get(number, ()))
        self.nodes = {name: rect.moved(self.columns[self.home[name]].by) for name, rect in self.turned.nodes.items()}
        self._set_boxes(pieces)
        for number, arrow in self.turned.arrows.items():
            first, last = self._ends(number)
            if first == last:
                self.arrows[number] = arrow.moved(self.columns[first].by)
            else:
                self.arrows[number] = self._joined(number, arrow, tracks)

    def _ends(self, number: int) -> tuple[int, int]:
        """The columns in which an arrow begins and ends, in layout order."""
        edge = self.drawing.edges[number]
        source, target = self.home[edge.source], self.home[edge.target]
        return (target, source) if edge.is_backward else (source, target)

    # Boxes --------------------------------------------------------------------------------------------------------

    def _pieces(self) -> dict[tuple[int, int], Rect]:
        """Map (box number, column) to the part of the box in that column, before columns are moved. Inner boxes come first."""
        inside: dict[str, list[tuple[int, Rect]]] = {}
        for node in self.drawing.nodes:
            if node.box is not None and node.id in self.turned.nodes:
                inside.setdefault(node.box, []).append((self.home[node.id], self.turned.nodes[node.id]))
        found: dict[tuple[int, int], Rect] = {}
        for number, box in reversed(list(enumerate(self.drawing.boxes))):
            whole = self.turned.boxes.get(box_name(number))
            if whole is None:
                continue
            columns = sorted({column for column, _ in inside.get(box.key, ())})
            for column in columns:
                contents = [rect for where, rect in inside[box.key] if where == column]
                title = self.turned.title_heights[box_name(number)] if column == columns[0] else self.title
                is_end = (column == columns[0], column == columns[-1])
                piece = whole if len(columns) == 1 else self._piece(whole, contents, title, is_end)
                found[number, column] = piece
                if box.parent is not None:
                    inside.setdefault(box.parent, []).append((column, piece))
        return found

    def _piece(self, whole: Rect, contents: list[Rect], title: float, is_end: tuple[bool, bool]) -> Rect:
        """Make a part of a box, around its contents, with room for a title. `is_end`: whether the part begins where the box
        begins, and ends where the box ends.
        """
        around, direction = bounds_of(contents), self.drawing.direction
        start = around.low - self.margin - (title if direction == "down" else 0.0)
        end = around.high + self.margin + (title if direction == "up" else 0.0)
        left = around.left - self.margin - (title if direction in ("right", "left") else 0.0)
        return Rect(left, whole.low if is_end[0] else start, around.right + self.margin, whole.high if is_end[1] else end)

    def _set_boxes(self, pieces: dict[tuple[int, int], Rect]) -> None:
        boxes: list[DrawnBox] = []
        keys: dict[tuple[str, int], str] = {}  # (key of a box, column) -> key of its part
        first: dict[int, int] = {}
        for number, column in sorted(pieces):
            box = self.drawing.boxes[number]
            is_first = first.setdefault(number, column) == column
            keys[box.key, column] = box.key if is_first else f"{box.key} ({column - first[number] + 1})"
            lines = box.lines if is_first else (f"… {box.lines[0]}",)
            parent = keys[box.parent, column] if box.parent is not None else None
            name = box_name(len(boxes))
            boxes.append(replace(box, key=keys[box.key, column], parent=parent, lines=lines))
            self.boxes[name] = pieces[number, column].moved(self.columns[column].by)
            self.title_heights[name] = self.turned.title_heights[box_name(number)] if is_first else self.title
        self.drawn_boxes = tuple(boxes)
        self.drawn_nodes = tuple(
            replace(node, box=keys[node.box, self.home[node.id]]) if node.box is not None and node.id in self.home else node
            for node in self.drawing.nodes
        )

    # Arrows between columns ---------------------------------------------------------------------------------------

    def _tracks(self) -> dict[int, dict[str, int]]:
        """Assign in the gap after each column a track to every node whose arrows leave the column."""
        found: dict[int, dict[str, int]] = {}
        for number in self.turned.arrows:
            first, last = self._ends(number)
            if first != last:
                tracks = found.setdefault(min(first, last), {})
                tracks.setdefault(self._origin(number), len(tracks))
        return found

    def _origin(self, number: int) -> str:
        """Return the node at the end of an arrow that is in the earlier column."""
        edge = self.drawing.edges[number]
        return min(edge.source, edge.target, key=lambda name: self.home[name])

    def _part(self) -> None:
        """Find the paths of arrows out of a column and into another. All arrows of a node leave along the straightest path."""
        for number, laid_out in self.turned.arrows.items():
            first, last = self._ends(number)
            if first == last:
                continue
            arrow = laid_out.reversed() if first > last else laid_out
            way = arrow.line()[(arrow.tail is not None) : -1 if arrow.head is not None else None]
            here, there = self.columns[min(first, last)], self.columns[max(first, last)]
            self.entering[number] = [point for point in way if point[1] > there.start] or way[-1:]
            before = [point for point in way if point[1] < here.end] or way[:1]
            known = self.leaving.get((self._origin(number), min(first, last)))
            if known is None or _aside(before) < _aside(known):
                self.leaving[self._origin(number), min(first, last)] = before

    def _joined(self, number: int, arrow: Arrow, tracks: dict[int, dict[str, int]]) -> Arrow:
        """Draw an arrow between columns: near its ends as before, and between them along its track."""
        first, last = sorted(self._ends(number))
        is_back = self._ends(number) != (first, last)
        here, there = self.columns[first], self.columns[last]
        before = [moved(point, here.by) for point in self.leaving[self._origin(number), first]]
        after = [moved(point, there.by) for point in self.entering[number]]
        track = tracks[first][self._origin(number)]
        aside = here.right + 2 * _TRACK + _TRACK * track
        below, above = here.last + 2 * _TRACK + _TRACK * track, -2 * _TRACK - _TRACK * track
        corners = [*before, (before[-1][0], below), (aside, below), (aside, above), (after[0][0], above), *after]
        forward = arrow.reversed() if is_back else arrow
        tail = moved(forward.tail, here.by) if forward.tail is not None else None
        head = moved(forward.head, there.by) if forward.head is not None else None
        made = Arrow(tuple(rounded(_without_repeats(corners), 5.0)), head, tail)
        return made.reversed() if is_back else made


def _aside(way: list[Point]) -> float:
    return abs(way[-1][0] - way[0][0])


def _without_repeats(points: list[Point]) -> list[Point]:
    kept = points[:1]
    for point in points[1:]:
        if math.dist(point, kept[-1]) > 0.5:
            kept.append(point)
    return kept if len(kept) > 1 else points[:2]
