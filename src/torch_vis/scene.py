"""The picture of what a tracker saw: torcheer's layout of the forward graph, with a node for the gradients beside each node."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from torcheer import DrawingFailed, PictureOptions
from torcheer.graph import Graph, restrict
from torcheer.render import Companions, LaidOutBox, LaidOutEdge, LaidOutNode, Layout, Rect, lay_out

from .structures import DATA_FLOW, GRADIENT_FLOW, OperationType
from .tracker import ComputationalGraphTracker
from .words import Words

WHOLE = 150  # operations up to which a graph is drawn whole; with its gradients that is a few hundred nodes
_COLLAPSED = PictureOptions(rolled=False, fold_repeats=False, legend=False)
_ANYTHING = PictureOptions(legend=False)


@dataclass(frozen=True, slots=True)
class PlacedNode:
    """A node with its place. `kind` is None for an output and other nodes that are no operation."""

    key: str
    lines: tuple[str, ...]
    kind: OperationType | None
    place: Rect
    hover: tuple[str, ...]
    is_small: bool = False
    is_module: bool = False


@dataclass(frozen=True, slots=True)
class Scene:
    """Everything in a picture."""

    title: str
    notes: tuple[str, ...]
    nodes: tuple[PlacedNode, ...]
    edges: dict[str, list[LaidOutEdge]]  # by what they carry: data_flow, gradient_flow
    boxes: tuple[LaidOutBox, ...]
    bounds: Rect

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
    layout = _laid_out(graph, words)
    words.look_at(layout.graph)
    edges: dict[str, list[LaidOutEdge]] = {}
    for edge in layout.edges:
        edges.setdefault(GRADIENT_FLOW if edge.is_beside else DATA_FLOW, []).append(edge)
    nodes = tuple([_node(one, words) for one in layout.nodes])
    return Scene(layout.title, words.notes(layout.graph, graph), nodes, edges, layout.boxes, layout.bounds)


def _without_orphans(graph: Graph) -> Graph:
    """The graph without operations that no input leads to and that lead to no output, such as counters of batch norms."""
    kept = {node.key for node in graph.nodes if node.from_input or node.to_output}
    return restrict(graph, kept) if kept else graph


def _laid_out(graph: Graph, words: Words) -> Layout:
    """Everything; failing that, with modules collapsed; failing that, also with equal blocks and passes drawn once."""

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
