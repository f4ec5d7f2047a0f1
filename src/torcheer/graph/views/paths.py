"""Parts of a graph: the ancestors of a node, its descendants, the nodes between two, a path to an output."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidArgument
from ..model import Graph
from .regrouping import reached, restrict
from .rolling import pass_by_pass


@pass_by_pass
def ancestors(graph: Graph, key: Any) -> Graph:
    """The nodes that a key means, and everything that leads to them."""
    return restrict(graph, reached(_keys(graph, key), graph.edges_in, forwards=False))


@pass_by_pass
def descendants(graph: Graph, key: Any) -> Graph:
    """The nodes that a key means, and everything that follows from them."""
    return restrict(graph, reached(_keys(graph, key), graph.edges_out, forwards=True))


@pass_by_pass
def subgraph_between(graph: Graph, first: Any, last: Any) -> Graph:
    """Everything on a path from one node to another, both included.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: (x + 1).relu() + x.sin(), torch.ones(2)))
    >>> [node.label for node in subgraph_between(graph, "add_1_1", "add_2_4").nodes]
    ['add_1_1', 'relu_1_2', 'add_2_4']
    """
    after = reached(_keys(graph, first), graph.edges_out, forwards=True)
    between = after & reached(_keys(graph, last), graph.edges_in, forwards=False)
    if not between:
        back = reached(_keys(graph, last), graph.edges_out, forwards=True) & set(_keys(graph, first))
        hint = " There is a way in the other direction." if back else ""
        raise InvalidArgument(f"no way leads from {first!r} to {last!r}.{hint}")
    return restrict(graph, between)


@pass_by_pass
def path_to_output(graph: Graph, key: Any) -> Graph:
    """The shortest path from a node to an output, as a graph that is a line."""
    came_from: dict[str, str | None] = dict.fromkeys(_keys(graph, key))
    for here in (waiting := list(came_from)):
        if graph.by_key[here].kind == "output":
            way, step = set[str](), came_from[here]
            while step is not None:
                way.add(step)
                step = came_from[step]
            return restrict(graph, {here} | way)
        for edge in graph.edges_out.get(here, ()):
            if edge.target not in came_from:
                came_from[edge.target] = here
                waiting.append(edge.target)
    raise InvalidArgument(f"no way leads from {key!r} to an output of this graph.")


def _keys(graph: Graph, key: Any) -> list[str]:
    return [node.key for node in graph.find(key)]
