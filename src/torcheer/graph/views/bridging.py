"""Takes nodes out of a graph and joins the nodes that they connected."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

from ..model import Edge, Graph
from .regrouping import reached


def bridge(graph: Graph, kept: AbstractSet[str]) -> Graph:
    """The graph with only these nodes, and an edge wherever a path led from one to another through other nodes."""
    found = _joined(graph, kept)
    for edge in graph.all_edges:
        if edge.is_feedback:
            _join_feedback(graph, kept, edge, found)
    nodes = tuple([node for node in graph.all_nodes if node.key in kept])
    order = {node.key: position for position, node in enumerate(nodes)}
    position = order.__getitem__  # direct edges in the order of arguments, then bridges in that of their sources
    edges = sorted(found.values(), key=lambda edge: (position(edge.target), position(edge.source) if edge.is_bridge else -1))
    return replace(graph, all_nodes=nodes, all_edges=tuple(edges))


def _joined(graph: Graph, kept: AbstractSet[str]) -> dict[tuple[str, str], Edge]:
    """The edges that remain and the bridges, without feedback."""
    uses = {key: sum(not edge.is_feedback for edge in edges) for key, edges in graph.edges_out.items()}
    reaching: dict[str, dict[str, Edge]] = {}  # by node that is taken out: the kept nodes that reach it, each with its edge
    found: dict[tuple[str, str], Edge] = {}
    for node in graph.all_nodes:
        direct: dict[str, Edge] = {}
        through: dict[str, Edge] = {}
        for edge in graph.edges_in.get(node.key, ()):
            if edge.is_feedback:
                continue
            if edge.source in kept:
                direct[edge.source] = edge
                continue
            uses[edge.source] -= 1
            more = reaching[edge.source]
            if uses[edge.source] == 0:  # the set is not used elsewhere: the larger one takes in the smaller, without a copy
                del reaching[edge.source]
                if len(more) > len(through):
                    through, more = more, through
            for source, known in more.items():
                through.setdefault(source, known)
        if node.key in kept:
            found.update(((source, node.key), edge) for source, edge in direct.items())
            for source, edge in through.items():
                if source not in direct:
                    found[source, node.key] = _bridge(graph, source, node.key, edge)
        elif uses.get(node.key):
            for source, edge in direct.items():
                through.setdefault(source, edge)
            reaching[node.key] = through
    return found


def _join_feedback(graph: Graph, kept: AbstractSet[str], edge: Edge, found: dict[tuple[str, str], Edge]) -> None:
    if edge.source in kept and edge.target in kept:
        found.setdefault((edge.source, edge.target), edge)
        return
    for source in kept & reached([edge.source], graph.edges_in, forwards=False, stops=kept):
        for target in kept & reached([edge.target], graph.edges_out, forwards=True, stops=kept):
            if (source, target) not in found:
                bridged = _bridge(graph, source, target, graph.edges_out[source][0])
                found[source, target] = replace(bridged, is_feedback=True)


def _bridge(graph: Graph, source: str, target: str, leaving: Edge) -> Edge:
    """A bridge carries the tensor that leaves its source."""
    passes = ((graph.by_key[source].passes[0], graph.by_key[target].passes[0]),)
    return Edge(
        source, target, is_bridge=True, passes=passes, tensors=leaving.tensors, shape=leaving.shape, bytes=leaving.bytes
    )
