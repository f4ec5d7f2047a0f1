"""Makes a scene, the common input of both renderers: placed nodes, edges and boxes, with their texts and colours."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace

from torcheer import DrawingFailed, PictureOptions
from torcheer.graph import Graph, Node, restrict
from torcheer.pictures import (
    Companions,
    LaidOutBox,
    LaidOutEdge,
    LaidOutNode,
    Layout,
    Rect,
    clean,
    dimensions,
    human_count,
    human_size,
    lay_out,
    plural,
)

from .operations import Translation
from .structures import DATA_FLOW, GRADIENT_FLOW, GraphNode, OperationType, Shape
from .tracker import ComputationalGraphTracker

_SHOWN = 4


class Words:
    """Texts on the nodes of a view, and for hovering, from the tracked graph."""

    def __init__(self, translation: Translation, *, times: bool, sizes: bool) -> None:
        self._nodes = translation.graph.nodes
        self._of = translation.of
        self._gradients = translation.gradients.by_operation
        self._num_gradients = translation.gradients.count
        flows = [edge for edge in translation.graph.edges if edge.edge_type == GRADIENT_FLOW]
        self._flows = [edge for edge in flows if (edge.metadata or {}).get("level") == "operation"]
        self._with_inner = {one.address for one in translation.calls.values() if one.has_inner}
        self._times = times
        self._sizes = sizes
        self._alone: set[str] = set()

    def look_at(self, graph: Graph) -> None:
        """Use this view's nodes and edges for texts from now on."""
        inside = Counter(key for node in graph.nodes for key in node.modules)
        self._alone = {key for key, count in inside.items() if count == 1}

    def kind(self, node: Node) -> OperationType | None:
        """Return the operation type of a view's node. The only operation of a module counts as a layer."""
        if node.kind in ("output", "omitted"):
            return None
        if node.kind == "module":
            address = node.label if node.label in self._with_inner else node.key.removeprefix("@").rpartition(":")[0]
            return OperationType.FORWARD if address in self._with_inner else OperationType.LAYER_OP
        if any(key in self._alone or key.rpartition(":")[0] in self._alone for key in node.exits):
            return OperationType.LAYER_OP
        made = self._made(node)
        return made[0].operation_type if made else OperationType.TENSOR_OP

    def _made(self, node: Node) -> list[GraphNode]:
        ids = dict.fromkeys(self._of[number] for number in node.operations if number in self._of)
        return [self._nodes[name] for name in ids]

    def hover(self, node: Node) -> list[str]:
        """The text shown when hovering over a forward node, line by line."""
        made = self._made(node)
        lines = [clean(node.label if node.kind != "module" else f"{node.label} ({node.type})", 80)]
        kind = self.kind(node)
        if kind is not None:
            lines.append(f"type: {kind.value}")
        if node.function:
            lines.append(f"function: {clean(node.function)}")
        module = node.modules[-1].rpartition(":")[0] if node.modules else ""
        if module:
            lines.append(f"module: {clean(module, 80)}")
        given = list(node.input_shapes) or [shape for one in made[:1] for shape in one.input_shapes or ()]
        returned = list(node.output_shapes) or ([node.shape] if node.shape is not None else [])
        lines.append(f"shapes: {_shapes(given)} → {_shapes(returned)}")
        if node.num_operations > 1:
            lines.append(f"operations: {node.num_operations:,}")
        if self._times and node.seconds is not None and node.kind not in ("input", "output", "source"):
            lines.append(f"time: {_seconds(node.seconds)}")
        if self._sizes:
            lines.append(f"memory: {human_size(node.bytes)}")
        if node.params:
            names = _first([clean(param.name) for param in node.params])
            lines.append(f"parameters: {human_count(node.num_params)} ({names})")
        if node.source:
            lines.append(clean(node.source, 100))
        return lines

    # Gradients ----------------------------------------------------------------------------------------------------

    def _ran(self, node: Node) -> list[GraphNode]:
        found = [name for number in node.operations for name in self._gradients.get(number, ())]
        return [self._nodes[name] for name in dict.fromkeys(found)] if node.kind != "output" else []

    def gradient_flows(self, graph: Graph) -> dict[tuple[str, str], None]:
        """Return the pairs of nodes in a view between which a gradient flowed, each pair once, in order."""
        holder = {one.id: node.key for node in graph.nodes for one in self._ran(node)}
        ends = [(holder.get(edge.source_id, ""), holder.get(edge.target_id, "")) for edge in self._flows]
        return dict.fromkeys((a, b) for a, b in ends if a and b and a != b)

    def gradient_lines(self, node: Node) -> list[str]:
        """Return the text for the node that shows the gradients of `node`. Empty if `node` has no gradients."""
        ran = self._ran(node)
        if not ran:
            return []
        if node.kind == "module":
            return [f"backward of {clean(node.label)}", f"{len(ran)} autograd nodes"]
        names = list(dict.fromkeys(one.name for one in ran))
        times = len(node.passes)
        others = round(len(ran) / times) - 1 if len(names) > 1 else 0
        lines = [clean(names[0] + (f" + {others}" if others else "") + (f" ×{times}" if times > 1 else ""), 40)]
        shapes = ran[0].input_shapes or []
        if shapes:
            lines.append(f"∂ {_shapes(shapes[:1])}")
        trained = [param.name.rpartition(".")[2] for param in node.params if param.is_trainable]
        if trained:
            lines.append(clean(f"∂ {_first(trained)}"))
        return lines

    def gradient_hover(self, node: Node) -> list[str]:
        """The text shown when hovering over a node's gradients, line by line."""
        ran = self._ran(node)
        names = list(dict.fromkeys(one.name for one in ran))
        lines = [f"gradients of {clean(node.label, 80)}"]
        lines.append(f"autograd: {', '.join(names[:_SHOWN])}{f', … {len(ran):,} nodes' if len(names) > _SHOWN else ''}")
        if ran and node.kind != "module":
            lines.append(f"shapes: {_shapes(ran[0].input_shapes or [])} → {_shapes(ran[0].output_shapes or [])}")
        if self._times:
            lines.append(f"time: {_seconds(sum(one.execution_time or 0.0 for one in ran))}")
        if self._sizes:
            lines.append(f"memory: {human_size(sum(one.memory_usage or 0 for one in ran))}")
        if node.modules:
            lines.append(f"module: {clean(node.modules[-1].rpartition(':')[0], 80)}")
        return lines

    # Notes --------------------------------------------------------------------------------------------------------------

    def notes(self, graph: Graph, whole: Graph) -> tuple[str, ...]:
        """Sentences about what a reader must know about a view of a graph."""
        backward = self._num_gradients
        gradients = plural(backward, "autograd node") if backward else "no gradients"
        found = [f"{plural(whole.num_operations, 'operation')}, {gradients}."]
        if any(node.kind == "module" for node in graph.nodes):
            found.append(f"Collapsed by module to {len(graph.nodes):,} nodes.")
        if any(node.repeats > 1 for node in graph.nodes):
            found.append("Equal blocks in a row are drawn once.")
        if graph.is_rolled:
            found.append("Passes are rolled up: ×N is how often a layer ran.")
        if any(node.kind == "omitted" for node in graph.nodes):
            found.append("Operations in the middle are left out.")
        return tuple(found)


def _shapes(shapes: list[Shape]) -> str:
    return _first([*map(dimensions, shapes)]) or "–"


def _first(texts: list[str]) -> str:
    return ", ".join(texts[:_SHOWN]) + (", …" if len(texts) > _SHOWN else "")


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.3f} s"


# Colours of the operation types. Colour-blind readers can tell them apart, and so can grey prints.

# name, fill, border
LOOKS = {
    OperationType.FORWARD: ("FORWARD (module)", "#DCE9F7", "#00538A"),
    OperationType.LAYER_OP: ("LAYER_OP (layer)", "#A9CFF2", "#00538A"),
    OperationType.TENSOR_OP: ("TENSOR_OP (torch function)", "#FFFFFF", "#5E636C"),
    OperationType.MEMORY_OP: ("MEMORY_OP (input, allocation)", "#BFE6D6", "#00684F"),
    OperationType.BACKWARD: ("BACKWARD (module)", "#FCE3D2", "#A84300"),
    OperationType.GRADIENT_OP: ("GRADIENT_OP (autograd)", "#FFC9A0", "#A84300"),
    OperationType.CUSTOM: ("CUSTOM", "#E3D3EE", "#6C3F8A"),
    None: ("output, reference", "#F4F4F4", "#5E636C"),
}
INK = "#16181D"
FAINT = "#51565F"
BOX_FILLS = ("#F6F7F9", "#FFFFFF")
BOX_BORDER = "#9298A2"


def edge_color(kind: str) -> str:
    return "#B4480A" if kind == GRADIENT_FLOW else "#4D525B"


# A scene: torcheer's layout of the forward graph, with a node for the gradients beside each node.

WHOLE = 150  # a graph with at most this many operations is drawn whole; with gradients, it has a few hundred nodes
_COLLAPSED = PictureOptions(rolled=False, fold_repeats=False, legend=False)
_ANYTHING = PictureOptions(legend=False)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with its position. `kind` is None for nodes other than operations, such as outputs."""

    key: str
    lines: tuple[str, ...]
    kind: OperationType | None
    place: Rect
    hover: tuple[str, ...]
    is_small: bool = False
    is_module: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture before it is drawn: placed nodes, edges and boxes, with title and notes."""

    title: str
    notes: tuple[str, ...]
    nodes: tuple[PlacedNode, ...]
    edges: dict[str, list[LaidOutEdge]]  # kind of edge (data_flow, gradient_flow) -> edges
    boxes: tuple[LaidOutBox, ...]
    bounds: Rect

    @property
    def kinds(self) -> list[OperationType]:
        """The operation types in the picture, in the order of the legend."""
        seen = {node.kind for node in self.nodes}
        return [kind for kind in OperationType if kind in seen]


def make_scene(tracker: ComputationalGraphTracker) -> Scene:
    """Lay out the graph of a tracker. If it is too large or too slow, modules are collapsed, and a note says so."""
    words = Words(tracker.translation, times=tracker.track_timing, sizes=tracker.track_memory)
    assert tracker.history is not None
    graph = _without_orphans(tracker.history.graph)
    layout = _laid_out(graph, words)
    words.look_at(layout.graph)
    edges: dict[str, list[LaidOutEdge]] = {}
    for edge in layout.edges:
        edges.setdefault(GRADIENT_FLOW if edge.is_beside else DATA_FLOW, []).append(edge)
    nodes = tuple([_node(one, words) for one in layout.nodes])
    return Scene(layout.title, words.notes(layout.graph, graph), nodes, edges, layout.boxes, layout.bounds)


def _without_orphans(graph: Graph) -> Graph:
    """The graph without operations connected to neither an input nor an output, such as counters of batch norms."""
    kept = {node.key for node in graph.nodes if node.from_input or node.to_output}
    return restrict(graph, kept) if kept else graph


def _laid_out(graph: Graph, words: Words) -> Layout:
    """The whole graph if possible; else with collapsed modules; else also with repeated blocks and passes drawn once."""

    def gradients(view: Graph) -> Companions:
        lines = {node.key: tuple(words.gradient_lines(node)) for node in view.nodes}
        return Companions({key: some for key, some in lines.items() if some}, words.gradient_flows(view))

    began = time.monotonic()
    try:
        return lay_out(graph, _COLLAPSED, most=WHOLE, beside=gradients)
    except DrawingFailed:
        left = max(_ANYTHING.time_limit - (time.monotonic() - began), 5.0)
        return lay_out(graph, replace(_ANYTHING, time_limit=left), beside=gradients)


def _node(one: LaidOutNode, words: Words) -> PlacedNode:
    node = one.node
    is_module = node.kind == "module"
    if one.is_beside:
        kind = OperationType.BACKWARD if is_module else OperationType.GRADIENT_OP
        hover = tuple(words.gradient_hover(node))
        return PlacedNode(f"gradient of {node.key}", one.lines, kind, one.place, hover, is_module=is_module)
    forward = words.kind(node) if not one.is_reference else None
    return PlacedNode(node.key, one.lines, forward, one.place, tuple(words.hover(node)), one.is_reference, is_module)
