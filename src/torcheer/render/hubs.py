"""Nodes that feed very many others, or are fed by them: masks, rotary tables, shared inputs, outputs of every layer.

Drawn with all their edges, they would tie a layout into a knot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..graph import Edge, Graph

FEEDS_MANY = 8


@dataclass(frozen=True, slots=True)
class References:
    """The edges that are drawn as small references, in order: at their targets, or (`ending`) at their sources."""

    cut: dict[Edge, None]
    ending: dict[Edge, None]


def references(graph: Graph) -> References:
    """The edges of nodes with more than a few. One stays, so that a hub is not alone: to the first, or from the last."""
    feeding = _hubs(graph, lambda edge: edge.source)
    cut = dict.fromkeys(edge for edges in feeding for edge in edges[1:])
    fed = _hubs(graph, lambda edge: edge.target if graph.by_key[edge.target].kind == "output" else "")
    return References(cut, dict.fromkeys(edge for edges in fed for edge in edges[:-1] if edge not in cut))


def _hubs(graph: Graph, end: Callable[[Edge], str]) -> list[list[Edge]]:
    """The edges that share an end with many others, by this end."""
    found: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if not edge.is_feedback and (key := end(edge)):
            found.setdefault(key, []).append(edge)
    return [edges for edges in found.values() if len(edges) > FEEDS_MANY]
