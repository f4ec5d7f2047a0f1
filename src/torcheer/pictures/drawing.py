"""Makes a drawing from a view: nodes, edges and boxes with their texts and looks, before the layout places them.

Also finds hubs (nodes with very many edges, which are drawn as small references), colour scales, and the arrows to draw
straight.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .._text import human_size, human_time, plural
from ..errors import InvalidArgument
from ..graph import Edge, Graph, ModuleBox, Node, add_gradient_edges
from .options import THEMES, Look, LookName, PictureOptions, Style, Theme, Value, ramp_color, readable_ink
from .views import View
from .wording import (
    box_lines,
    clean,
    edge_text,
    formatted,
    human_count,
    node_lines,
    own_lines,
    own_repeats,
    reference_text,
    short_box_lines,
    short_node_lines,
)

FEEDS_MANY = 8


@dataclass(frozen=True, slots=True)
class References:
    """The edges that are drawn as small references, in order: `cut` at their targets, `ending` at their sources."""

    cut: dict[Edge, None]
    ending: dict[Edge, None]


def references(graph: Graph) -> References:
    """Choose the edges of hubs that become references. One edge per hub stays an arrow: the first out of it or last into it."""
    feeding = _hubs(graph, lambda edge: edge.source)
    cut = dict.fromkeys(edge for edges in feeding for edge in edges[1:])
    fed = _hubs(graph, lambda edge: edge.target if graph.by_key[edge.target].kind == "output" else "")
    return References(cut, dict.fromkeys(edge for edges in fed for edge in edges[:-1] if edge not in cut))


def _hubs(graph: Graph, end: Callable[[Edge], str]) -> list[list[Edge]]:
    """Group the edges that share an end with many other edges."""
    found: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if not edge.is_feedback and (key := end(edge)):
            found.setdefault(key, []).append(edge)
    return [edges for edges in found.values() if len(edges) > FEEDS_MANY]


# Colour by a number: time, memory, parameters, or the result of a function.

_FAR_APART = 50.0  # a scale is logarithmic if its values differ by more than this factor


@dataclass(frozen=True, slots=True)
class Scale:
    """Values of nodes, with their title and format. Nodes without a value are not coloured."""

    title: str
    values: dict[str, float]
    low: float
    high: float
    is_log: bool
    words: Callable[[float], str]

    def share(self, value: float) -> float:
        """The position of a value between the ends, 0 to 1."""
        if self.high <= self.low:
            return 0.5
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _of_tensors(value: Callable[[Node], float | None]) -> Callable[[Node], float | None]:
    return lambda node: None if node.kind in ("input", "output", "buffer", "identity", "failed", "stub") else value(node)


_MEASURES: dict[str, tuple[str, Callable[[Node], float | None], Callable[[float], str]]] = {
    "time": ("time", _of_tensors(lambda node: node.seconds), human_time),
    "memory": ("memory of outputs", _of_tensors(lambda node: node.bytes), human_size),
    "params": ("parameters", lambda node: node.num_params or None, human_count),
}


def make_scale(graph: Graph, color_by: str | Callable[[Any], float | None] | None) -> Scale | None:
    """The scale for the option `color_by`; None without it."""
    if color_by is None:
        return None
    if color_by in ("flops", "grad"):
        raise InvalidArgument(f"color_by={color_by!r} needs a history: use history.draw(color_by={color_by!r}).")
    if isinstance(color_by, str):
        title, value, words = _MEASURES[color_by]
    else:
        title, value, words = _name_of(color_by), color_by, lambda number: f"{number:.3g}"
    values = {node.key: float(found) for node in graph.nodes if (found := value(node)) is not None}
    known = {key: number for key, number in values.items() if math.isfinite(number)}
    low, high = (min(known.values()), max(known.values())) if known else (0.0, 0.0)
    above = min((number for number in known.values() if number > 0), default=0.0)
    is_log = low >= 0 and above > 0 and high / above > _FAR_APART
    return Scale(title, known, above if is_log else low, high, is_log, words)


def _name_of(function: Callable[..., Any]) -> str:
    """The title for a user's function."""
    name = getattr(function, "__name__", "")
    return "value" if name in ("", "<lambda>") else name.strip("_").replace("_", " ")


# Arrows to draw straight: those on the longest paths through a graph. Skips and side branches bend around them.


def spine(graph: Graph, edges: Iterable[Edge]) -> set[tuple[str, str]]:
    """Find edges on the longest path through both their nodes. Of equally long paths, the path that ran first counts."""
    forward = [edge for edge in edges if not edge.is_feedback]
    entering: dict[str, list[Edge]] = {}
    leaving: dict[str, list[Edge]] = {}
    for edge in forward:
        entering.setdefault(edge.target, []).append(edge)
        leaving.setdefault(edge.source, []).append(edge)
    order = {node.key: position for position, node in enumerate(graph.nodes)}
    depth: dict[str, int] = {}
    for node in graph.nodes:
        depth[node.key] = max((depth[edge.source] + 1 for edge in entering.get(node.key, ())), default=0)
    height: dict[str, int] = {}
    for node in reversed(graph.nodes):
        height[node.key] = max((height[edge.target] + 1 for edge in leaving.get(node.key, ())), default=0)
    first_in = {
        key: max(some, key=lambda edge: (depth[edge.source], -order[edge.source])).source for key, some in entering.items()
    }
    first_out = {
        key: max(some, key=lambda edge: (height[edge.target], -order[edge.target])).target for key, some in leaving.items()
    }
    return {
        (edge.source, edge.target)
        for edge in forward
        if first_in[edge.target] == edge.source and first_out[edge.source] == edge.target
    }


# The drawing: plain nodes, edges and boxes with their texts and looks, before the layout places them.

Attributes = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node with its texts and its look. The first line is its name."""

    id: str
    key: str
    lines: tuple[str, ...]
    look: Look
    shape: str
    box: str | None = None  # the key of the innermost box around it
    is_double: bool = False
    is_reference: bool = False
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrawnEdge:
    source: str
    target: str
    text: str = ""
    line: str = "solid"
    weight: int = 1
    is_free: bool = False  # True if the edge does not influence the layout
    is_backward: bool = False  # True if the edge points against the order of the nodes
    is_text_on_arrow: bool = False
    around: str = ""  # for the arrow around a repeated block: the key of its box, or the id of its node
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrawnBox:
    key: str
    parent: str | None
    lines: tuple[str, ...]
    depth: int
    has_arrow_inside: bool = False  # True if an arrow goes around something inside the box
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A whole picture, in execution order; outer boxes first."""

    title: str
    notes: tuple[str, ...]
    theme: Theme
    style: Style
    direction: str
    nodes: tuple[DrawnNode, ...]
    edges: tuple[DrawnEdge, ...]
    boxes: tuple[DrawnBox, ...]
    seen: tuple[str, ...] = ()  # the kinds of things that the legend explains
    scale: Scale | None = None
    attributes: Attributes = field(default_factory=dict)
    below: tuple[tuple[str, str], ...] = ()  # (id, id): the second node is placed after the first


def make_drawing(view: View, options: PictureOptions) -> Drawing:
    """Make the drawing of a view: the nodes, edges and boxes with their texts."""
    graph = add_gradient_edges(view.graph) if options.show_gradients else view.graph
    return _DrawingMaker(graph, options).drawing(view)


class _DrawingMaker:
    def __init__(self, graph: Graph, options: PictureOptions) -> None:
        self.graph = graph
        self.options = options
        self.theme = THEMES[options.theme or options.looks.theme]
        self.scale = make_scale(graph, options.color_by)
        self.ids = {node.key: f"n{number}" for number, node in enumerate(graph.nodes)}
        self.boxes = _boxes_drawn(graph)
        self.repeated = {key for key in self.boxes if (box := graph.boxes[key]).repeats > 1 and not box.is_parallel}
        looped = {edge.source for edge in graph.edges if edge.is_to_next_block and edge.source == edge.target}
        self.looped = [node for node in graph.nodes if node.key in looped and own_repeats(node, graph) > 1]
        inner = (*(graph.boxes[key].path[:-1] for key in self.repeated), *(node.modules for node in self.looped))
        self.around_arrows = {key for path in inner for key in path}  # boxes with an arrow around something inside
        self.seen: dict[str, None] = {}
        self.straight: set[tuple[str, str]] = set()

    def drawing(self, view: View) -> Drawing:
        hubs = references(self.graph)
        drawn = [edge for edge in self.graph.edges if edge not in hubs.cut and edge not in hubs.ending]
        self.straight = spine(self.graph, drawn)
        nodes = [self._node(node) for node in self.graph.nodes]
        edges = [self._edge(edge) for edge in drawn if not self._is_around(edge)]
        self._refer(hubs, nodes, edges)
        edges += self._arrows_around()
        boxes = [self._box(box) for key, box in self.graph.modules.items() if key in self.boxes]
        return Drawing(
            title=clean(self.graph.title, 80),
            notes=(_counts(self.graph, view.folded), *view.notes),
            theme=self.theme,
            style=self.options.looks,
            direction=self.options.direction,
            nodes=tuple(nodes),
            edges=tuple(edges),
            boxes=tuple(boxes),
            seen=tuple(self.seen) if self.options.has_legend else (),
            scale=self.scale if self.options.has_legend else None,
            attributes=self._overrides("graph", self.graph),
            below=tuple(dict.fromkeys(self._order_constraints())),
        )

    # Nodes --------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> DrawnNode:
        name = look_name(node)
        is_told = not self.options.looks.is_short and node.kind not in ("module", "input", "output", "plumbing")
        is_double = node.is_inplace and is_told
        self._note(name, node, is_double)
        return DrawnNode(
            id=self.ids[node.key],
            key=node.key,
            lines=tuple(self._lines(node)),
            look=self._look(name, node),
            shape=_shape(node),
            box=self._innermost_box(node),
            is_double=is_double,
            attributes=self._overrides("node", node),
        )

    def _lines(self, node: Node) -> list[str]:
        label = self.options.label
        if label is None:
            return short_node_lines(node, self.graph) if self.options.looks.is_short else node_lines(node, self.graph)
        return own_lines(formatted(label, node) if isinstance(label, str) else label(node))

    def _look(self, name: LookName, node: Node) -> Look:
        look = self.theme.looks[name]
        if self.scale is None:
            return look
        value = self.scale.values.get(node.key)
        fill = ramp_color(self.theme.ramp, self.scale.share(value)) if value is not None else self.theme.unknown
        return replace(look, fill=fill, text=readable_ink(fill))

    def _note(self, name: LookName, node: Node, is_double: bool) -> None:
        """Remember the kinds that the legend must explain."""
        seen: list[str] = [name]
        if node.kind == "stub":
            seen.append("stub")
        elif node.kind == "module":
            seen.append("collapsed")
        elif name not in ("input", "output", "omitted", "buffer", "failed", "plumbing"):
            seen.append("module output" if node.exits else "function output")
        if is_double:
            seen.append("in place")
        self.seen.update(dict.fromkeys(seen))

    def _innermost_box(self, node: Node) -> str | None:
        return next((key for key in reversed(node.modules) if key in self.boxes), None)

    # Edges --------------------------------------------------------------------------------------------------------

    def _edge(self, edge: Edge) -> DrawnEdge:
        line = "dashed" if edge.is_feedback else "dotted" if edge.is_memory else "solid"
        if line != "solid":
            self.seen["gradient" if edge.is_gradient else "feedback" if edge.is_feedback else "memory"] = None
        text = edge_text(edge, self.graph, is_short=self.options.looks.is_short)
        if edge.positions and text and not text.startswith("pass"):
            self.seen["positions"] = None
        source, target = self.ids[edge.source], self.ids[edge.target]
        is_only = len(self.graph.edges_in[edge.target]) == 1  # a single edge into a node pulls a branch towards its beginning
        weight = 100 if (edge.source, edge.target) in self.straight else 2 if is_only else 1
        is_backward = edge.is_feedback and int(source[1:]) > int(target[1:])
        own = self._overrides("edge", edge)
        if edge.is_gradient:  # drawn beside the data edge, without influence on the layout
            own = {"color": self.theme.gradient, **own}
            return DrawnEdge(source, target, "", "dashed", 0, True, attributes=own)
        is_on_arrow = bool(edge.pass_note) and "pass" in text
        return DrawnEdge(source, target, text, line, weight, edge.is_feedback, is_backward, is_on_arrow, attributes=own)

    def _is_around(self, edge: Edge) -> bool:
        """True if the arrow around a repeated block, or around a collapsed node, replaces this edge."""
        if not edge.is_to_next_block:
            return False
        source, target = (set(self.graph.by_key[key].modules) for key in (edge.source, edge.target))
        return edge.source == edge.target or not self.repeated.isdisjoint(source & target)

    def _arrows_around(self) -> Iterator[DrawnEdge]:
        """For each repeated block, one arrow from its end to its beginning."""
        inside: dict[str, list[str]] = {}
        for node in self.graph.nodes:
            for key in node.modules:
                inside.setdefault(key, []).append(self.ids[node.key])
        blocks = [(key, inside[key][-1], inside[key][0]) for key in self.graph.modules if key in self.repeated]
        blocks += [(self.ids[node.key],) * 3 for node in self.looped]
        for around, last, first in blocks:
            self.seen["feedback"] = None
            yield DrawnEdge(last, first, line="dashed", weight=0, is_free=True, around=around)

    def _refer(self, hubs: References, nodes: list[DrawnNode], edges: list[DrawnEdge]) -> None:
        """Draw the edges of hubs as small references: a node with the hub's name beside the node at the other end."""
        theme = self.theme
        look = Look(theme.page, theme.looks["internal"].border, 0.8, "dotted", theme.faint)
        for number, edge in enumerate((*hubs.cut, *hubs.ending)):
            is_ending = edge in hubs.ending
            far, near = (edge.target, edge.source) if is_ending else (edge.source, edge.target)
            hub, home = self.graph.by_key[far], self._innermost_box(self.graph.by_key[near])
            name = f"r{number}"
            text = reference_text(hub)
            if edge.passes and hub.num_passes > 1 and not self.graph.is_rolled:
                text += f":{hub.passes[0]}"
            nodes.append(DrawnNode(name, hub.key, (text,), look, "box", home, is_reference=True))
            arrow = replace(self._edge(edge), line="dotted", weight=20, is_free=False)
            edges.append(replace(arrow, target=name) if is_ending else replace(arrow, source=name))
            self.seen["reference"] = None

    def _order_constraints(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of nodes, to place the second after the first: outputs after the modules that make them."""
        last = {key: self.ids[node.key] for node in self.graph.nodes for key in node.modules}
        for edge in self.graph.edges:
            source, target = self.graph.by_key[edge.source], self.graph.by_key[edge.target]
            if target.kind == "output" and source.modules and last[source.modules[0]] != self.ids[source.key]:
                yield last[source.modules[0]], self.ids[target.key]

    # Modules ------------------------------------------------------------------------------------------------------

    def _box(self, box: ModuleBox) -> DrawnBox:
        around = [key for key in box.path[:-1] if key in self.boxes]
        parent = around[-1] if around else None
        is_short = self.options.looks.is_short
        lines = tuple(short_box_lines(box, self.graph) if is_short else box_lines(box, self.graph))
        has_arrow = box.key in self.around_arrows
        return DrawnBox(box.key, parent, lines, len(around) + 1, has_arrow, self._overrides("module", box))

    def _overrides(self, part: str, thing: object) -> Attributes:
        return {name: text for name, value in self.options.overrides.get(part, {}).items() if (text := _text(value, thing))}


def _text(value: Value, thing: object) -> str:
    found = value if isinstance(value, (str, int, float)) else value(thing)
    return "" if found is None else str(found)


def look_name(node: Node) -> LookName:
    """The kind of a node that its look must show."""
    if node.kind == "failed" or node.error:
        return "failed"
    if node.kind in ("input", "output", "opaque", "buffer", "omitted", "plumbing"):
        return node.kind
    if node.kind == "stub":
        return "omitted"
    if any(read.is_decision for read in node.python_reads):
        return "decision"
    if node.trainable:
        return node.trainable
    return "internal" if node.is_internal else "function"


def _shape(node: Node) -> str:
    if node.kind == "module":
        return "box3d"
    if node.kind == "buffer":
        return "cylinder"
    return "box" if node.exits or node.kind in ("input", "output", "stub", "plumbing") else "pill"


def _boxes_drawn(graph: Graph) -> set[str]:
    """Return the modules that get a box: all modules except those whose only node already names the module."""
    inside: Counter[str] = Counter(key for node in graph.nodes for key in node.modules)
    alone = set()
    for node in graph.nodes:
        exits = {*node.exits, *(key.rpartition(":")[0] for key in node.exits)}
        if node.kind != "module":
            alone |= {key for key in node.modules if inside[key] == 1 and key in exits}
    return {key for key, box in graph.modules.items() if key not in alone or box.repeats > 1}


def _counts(graph: Graph, folded: int) -> str:
    """Write the first line below the title of a picture: the numbers of operations and of parameters."""
    params = {param.name: param.numel for node in graph.nodes for param in node.params}
    facts = [plural(graph.num_operations + folded, "operation")]
    if params:
        facts.append(f"{human_count(sum(params.values()))} parameters")
    return " · ".join(facts)
