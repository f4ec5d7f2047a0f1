"""Which arrows are to be straight: those on the longest ways through a graph. Skips and side branches bend around them."""

from __future__ import annotations

from collections.abc import Iterable

from ..graph import Edge, Graph


def spine(graph: Graph, edges: Iterable[Edge]) -> set[tuple[str, str]]:
    """The arrows that are, at both of their ends, on the longest way; of equally long ones, the one that ran first."""
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
