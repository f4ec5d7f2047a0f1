"""The picture, laid out but not drawn: rectangles, lines and words with their places, for whichever library draws them.

Views, words and places are those of torcheer's static pictures. Beside each node stands the one for its gradients.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from torcheer import DrawingFailed, PictureOptions
from torcheer.graph import Graph, Node
from torcheer.graph.views.regrouping import restrict
from torcheer.render.dot import Places, box_name, dot_text, title_lines, title_width
from torcheer.render.drawing import Drawing, DrawnEdge, DrawnNode, make_drawing
from torcheer.render.graphviz import TooSlow, run_graphviz
from torcheer.render.placing import read_layout
from torcheer.render.themes import Look
from torcheer.render.views import View, check_drawable, views

from .structures import DATA_FLOW, GRADIENT_FLOW, OperationType, Point
from .tracker import ComputationalGraphTracker
from .words import Words

WHOLE = 150  # operations up to which a graph is drawn whole; with its gradients that is a few hundred nodes
TIME_LIMIT = 30.0
_LOOK = Look("#FFFFFF", "#000000")


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle; y grows upwards, and a unit is a point of print."""

    x: float  # of the middle
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with its place. `kind` is None for what is no operation, such as an output."""

    key: str
    lines: tuple[str, ...]
    kind: OperationType | None
    place: Rectangle
    hover: tuple[str, ...]
    is_small: bool = False
    is_module: bool = False


@dataclass(frozen=True, slots=True)
class PlacedEdge:
    """An arrow: a Bézier curve of 3n + 1 points, and the points it starts and ends at."""

    kind: str  # data_flow or gradient_flow
    curve: tuple[Point, ...]
    tip: Point
    line: str = "solid"
    text: str = ""
    text_place: Point = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class PlacedBox:
    """A module around what ran in it."""

    lines: tuple[str, ...]
    depth: int
    place: Rectangle
    corner: Point  # where the title begins, halfway up


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything in a picture."""

    title: str
    notes: tuple[str, ...]
    nodes: tuple[PlacedNode, ...]
    edges: tuple[PlacedEdge, ...]
    boxes: tuple[PlacedBox, ...]

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Left, low, right and high of all that is drawn."""
        places = [node.place for node in self.nodes] + [box.place for box in self.boxes]
        points = [point for edge in self.edges for point in edge.curve]
        xs = [x for p in places for x in (p.x - p.width / 2, p.x + p.width / 2)] + [x for x, _ in points]
        ys = [y for p in places for y in (p.y - p.height / 2, p.y + p.height / 2)] + [y for _, y in points]
        return min(xs), min(ys), max(xs), max(ys)

    @property
    def kinds(self) -> list[OperationType]:
        """The types of operation in the picture, in the order the legend lists them."""
        seen = {node.kind for node in self.nodes}
        return [kind for kind in OperationType if kind in seen]


def make_scene(tracker: ComputationalGraphTracker) -> Scene:
    """Lay out what a tracker saw; what is too large or too slow is drawn with its modules collapsed, and the notes say so."""
    words = Words(tracker.translation, times=tracker.track_timing, sizes=tracker.track_memory)
    assert tracker.history is not None
    graph = _without_orphans(tracker.history.graph)
    check_drawable(graph)
    end = time.monotonic() + TIME_LIMIT
    for view, options in _views(graph):
        drawing = _with_gradients(make_drawing(view, options), view.graph, words)
        left = max(end - time.monotonic(), 0.0)
        try:
            laid_out = run_graphviz(dot_text(drawing, edge_texts=False), "dot", "json0", max(left * 0.6, 5.0))
        except TooSlow:
            continue
        return _scene(drawing, view.graph, words, laid_out, graph)
    raise DrawingFailed(f"no view of {graph.title} could be laid out within {TIME_LIMIT:g} s.")


def _without_orphans(graph: Graph) -> Graph:
    """Without what neither comes from an input nor leads to an output, such as the counters of normalisation layers."""
    kept = {node.key for node in graph.nodes if node.from_input or node.to_output}
    return restrict(graph, kept) if kept else graph


def _views(graph: Graph) -> Iterable[tuple[View, PictureOptions]]:
    """The views to try: everything; modules collapsed; then also equal blocks and passes drawn once."""
    if len(graph.nodes) <= WHOLE:
        yield View(graph), PictureOptions(rolled=False, nesting_depth="all", fold_repeats=False, legend=False)
    collapsed = PictureOptions(rolled=False, fold_repeats=False, legend=False)
    for view in views(graph, collapsed):
        if view.size <= WHOLE and not any(node.kind == "omitted" for node in view.graph.nodes):
            yield view, collapsed
    anything = PictureOptions(legend=False)
    for view in views(graph, anything):
        yield view, anything


# Gradients --------------------------------------------------------------------------------------------------------


def _with_gradients(drawing: Drawing, graph: Graph, words: Words) -> Drawing:
    """The drawing with a node for the gradients of each node that has some, and the arrows between them.

    Gradients run against the forward pass: for the layout their arrows are turned round, so that both stand side by side.
    """
    ids = {node.key: node.id for node in drawing.nodes if not node.is_reference}
    nodes, edges = [], []
    back: dict[str, str] = {}
    for node in graph.nodes:
        lines = words.gradient_lines(node)
        if lines:
            back[node.key] = f"g{ids[node.key]}"
            nodes.append(DrawnNode(back[node.key], f"gradient of {node.key}", tuple(lines), _LOOK, "box"))
    order = {node.key: place for place, node in enumerate(graph.nodes)}
    led = set()
    for source, target in words.gradient_flows(graph):
        if source in back and target in back:
            led.add(target)
            edges.append(DrawnEdge(back[source], back[target], weight=6, is_backward=order[source] > order[target]))
    edges += [DrawnEdge(ids[key], back[key], line="dashed") for key in back if key not in led]
    return replace(drawing, nodes=(*drawing.nodes, *nodes), edges=(*drawing.edges, *edges), seen=(), scale=None)


# Places -----------------------------------------------------------------------------------------------------------


def _scene(drawing: Drawing, graph: Graph, words: Words, laid_out: bytes, whole: Graph) -> Scene:
    places = read_layout(laid_out, drawing)
    objects = {one["name"]: one for one in json.loads(laid_out).get("objects", ()) if "pos" in one}
    words.look_at(graph)
    by_id = {drawn.id: graph.by_key[drawn.key] for drawn in drawing.nodes if drawn.key in graph.by_key}
    nodes = [_node(drawn, objects[drawn.id], by_id, words) for drawn in drawing.nodes if drawn.id in objects]
    edges = [_edge(number, edge, places) for number, edge in enumerate(drawing.edges) if places.edges.get(number)]
    boxes = []
    for number, box in enumerate(drawing.boxes):
        if (name := box_name(number)) in places.boxes:
            bounds, title = places.boxes[name]
            left, low, right, high = map(float, bounds.split(","))
            rectangle = Rectangle((left + right) / 2, (low + high) / 2, right - left, high - low)
            lines = title_lines(box, places.cuts.get(name, 0))
            x, y = _point(title)
            boxes.append(PlacedBox(lines, box.depth, rectangle, (max(x - title_width(lines) / 2, left + 5), y)))
    return Scene(drawing.title, words.notes(graph, whole), tuple(nodes), tuple(edges), tuple(boxes))


def _node(drawn: DrawnNode, found: dict[str, Any], by_id: dict[str, Node], words: Words) -> PlacedNode:
    x, y = _point(found["pos"])
    place = Rectangle(x, y, float(found["width"]) * 72, float(found["height"]) * 72)
    if drawn.id in by_id:
        node = by_id[drawn.id]
        kind = words.kind(node) if not drawn.is_reference else None
        hover = words.hover(node)
        is_module = node.kind == "module"
    else:
        node = by_id[drawn.id[1:]]
        is_module = node.kind == "module"
        kind = OperationType.BACKWARD if is_module else OperationType.GRADIENT_OP
        hover = words.gradient_hover(node)
    return PlacedNode(drawn.key, drawn.lines, kind, place, tuple(hover), drawn.is_reference, is_module)


def _edge(number: int, edge: DrawnEdge, places: Places) -> PlacedEdge:
    start: Point | None = None
    end: Point | None = None
    points: list[Point] = []
    for word in places.edges[number].split():
        if word[:2] == "s,":
            start = _point(word[2:])
        elif word[:2] == "e,":
            end = _point(word[2:])
        else:
            points.append(_point(word))
    if edge.is_backward:  # laid out the other way
        points.reverse()
        start, end = end, start
    text_place = _point(places.edge_texts[number]) if number in places.edge_texts else (0.0, 0.0)
    text = edge.text if number in places.edge_texts else ""
    kind = GRADIENT_FLOW if edge.target.startswith("g") else DATA_FLOW
    return PlacedEdge(kind, tuple(points), end or points[-1], edge.line, text, text_place)


def _point(text: str) -> Point:
    x, y = text.split(",")[:2]
    return float(x), float(y)
