"""Parts of a graph: what leads to a node, what follows from it, what is between two, the way to an output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...errors import InvalidArgument
from ..model import Edge, Graph
from .regrouping import restrict
from .rolling import pass_by_pass


@pass_by_pass
def ancestors(graph: Graph, key: Any) -> Graph:
    """A node and everything that leads to it. Of several that a key means, all."""
    return restrict(graph, _reached(_keys(graph, key), graph.edges_in, forwards=False))


@pass_by_pass
def descendants(graph: Graph, key: Any) -> Graph:
    """A node and everything that follows from it. Of several that a key means, all."""
    return restrict(graph, _reached(_keys(graph, key), graph.edges_out, forwards=True))


@pass_by_pass
def subgraph_between(graph: Graph, first: Any, last: Any) -> Graph:
    """Everything on a way from one node to another, both included.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: (x + 1).relu() + x.sin(), torch.ones(2)))
    >>> [node.label for node in subgraph_between(graph, "add_1_1", "add_2_4").nodes]
    ['add_1_1', 'relu_1_2', 'add_2_4']
    """
    after = _reached(_keys(graph, first), graph.edges_out, forwards=True)
    between = after & _reached(_keys(graph, last), graph.edges_in, forwards=False)
    if not between:
        back = _reached(_keys(graph, last), graph.edges_out, forwards=True) & set(_keys(graph, first))
        hint = " There is a way in the other direction." if back else ""
        raise InvalidArgument(f"no way leads from {first!r} to {last!r}.{hint}")
    return restrict(graph, between)


@pass_by_pass
def path_to_output(graph: Graph, key: Any) -> Graph:
    """The shortest way from a node to an output, as a graph that is a line."""
    came_from: dict[str, str | None] = dict.fromkeys(_keys(graph, key))
    for here in (waiting := list(came_from)):
        if graph.by_key[here].kind == "output":
            return restrict(graph, _way_back(came_from, here))
        for edge in graph.edges_out.get(here, ()):
            if edge.target not in came_from:
                came_from[edge.target] = here
                waiting.append(edge.target)
    raise InvalidArgument(f"no way leads from {key!r} to an output of this graph.")


def _way_back(came_from: Mapping[str, str | None], end: str) -> set[str]:
    here: str | None = end
    way = set()
    while here is not None:
        way.add(here)
        here = came_from[here]
    return way


def _keys(graph: Graph, key: Any) -> list[str]:
    return [node.key for node in graph.find(key)]


def _reached(starts: Iterable[str], edges: Mapping[str, list[Edge]], *, forwards: bool) -> set[str]:
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        for edge in edges.get(waiting.pop(), ()):
            beyond = edge.target if forwards else edge.source
            if beyond not in seen:
                seen.add(beyond)
                waiting.append(beyond)
    return seen
