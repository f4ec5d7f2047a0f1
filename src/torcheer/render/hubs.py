"""Nodes that feed very many others: masks, rotary tables, shared inputs. Drawn as such they tie a layout into a knot."""

from __future__ import annotations

from dataclasses import dataclass

from ..graph import Edge, Graph

FEEDS_MANY = 8


@dataclass(frozen=True, slots=True)
class References:
    """The edges that are drawn as small references at their targets, in order."""

    cut: dict[Edge, None]


def references(graph: Graph) -> References:
    """The edges of nodes that feed more than a few others. The first consumer keeps its edge, so that a hub is not alone."""
    feeds: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if not edge.is_feedback:
            feeds.setdefault(edge.source, []).append(edge)
    return References(dict.fromkeys(edge for edges in feeds.values() if len(edges) > FEEDS_MANY for edge in edges[1:]))
