"""A view of one part of a model: its nodes, and small stubs for the nodes and modules next to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...errors import InvalidArgument, LayerNotFound
from ..model import Graph, Node
from .regrouping import common_path, merge_unseen, regroup, restrict
from .rolling import pass_by_pass

_STEPS = 2  # how far the neighbourhood of an operation goes


@pass_by_pass
def focus(graph: Graph, key: Any) -> Graph:
    """The modules or operations that a key means, and stubs for their neighbours.

    Of a module everything inside is drawn, and each module or operation next to it is a stub; of an operation, everything up to
    two steps away is drawn.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(5)))
    >>> graph = focus(build_graph(torcheer.log_forward_pass(model, torch.ones(1, 2))), "2")
    >>> [(node.kind, node.label) for node in graph.nodes]
    [('stub', '1'), ('operation', 'linear_3_5'), ('operation', 'relu_3_6'), ('stub', '3')]
    """
    kept = _inside(graph, key) or _around(graph, [node.key for node in graph.find(key)])
    crossing = [edge for edge in graph.edges if (edge.source in kept) != (edge.target in kept)]
    beside = {edge.source if edge.target in kept else edge.target for edge in crossing}
    if not beside:
        return restrict(graph, kept)
    part = restrict(graph, kept | beside)
    home = common_path([graph.by_key[name].modules for name in kept])
    groups = {}
    for name in beside:
        node = graph.by_key[name]
        if node.kind not in ("input", "output"):
            is_before = any(edge.target in kept for edge in graph.edges_out.get(name, ()))
            groups[name] = f"… {_outer(node, home) or name} {'before' if is_before else 'after'}"
    edges = tuple([edge for edge in part.all_edges if edge.source in kept or edge.target in kept])
    return regroup(replace(part, all_edges=edges), groups, lambda name, nodes: _stub(name, nodes, home, graph))


def _inside(graph: Graph, key: Any) -> set[str]:
    """The nodes that ran in all calls of the modules a key means; empty where these are fewer than two."""
    try:
        boxes = {box.key for box in graph.boxes_of(key)}
    except (LayerNotFound, InvalidArgument):
        return set()
    found = {node.key for node in graph.nodes if not boxes.isdisjoint(node.modules)}
    return found if len(found) > 1 else set()


def _around(graph: Graph, starts: Iterable[str]) -> set[str]:
    """Nodes, and those a few steps from them."""
    found = set(starts)
    here = set(found)
    for _ in range(_STEPS):
        here = {edge.target for name in here for edge in graph.edges_out.get(name, ())} | {
            edge.source for name in here for edge in graph.edges_in.get(name, ())
        }
        found |= here
    return {name for name in found if not graph.by_key[name].is_hidden}


def _outer(node: Node, home: tuple[str, ...]) -> str | None:
    """The key of the outermost module around a node that is not around the focus as well."""
    return next((name for place, name in enumerate(node.modules) if home[place : place + 1] != (name,)), None)


def _stub(name: str, nodes: list[Node], home: tuple[str, ...], graph: Graph) -> Node:
    outer = _outer(nodes[0], home)
    box = graph.boxes[outer] if outer is not None else None
    return merge_unseen(
        nodes,
        key=name,
        label=box.step if box is not None else nodes[0].label,
        kind="stub",
        type=box.class_name if box is not None else nodes[0].type,
        operations=(),
        params=(),
        buffers=(),
        modules=common_path([home, *(node.modules for node in nodes)]),
        is_inplace=False,
        error="",
    )
