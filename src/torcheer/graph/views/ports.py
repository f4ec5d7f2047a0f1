"""Draws many inputs or outputs that are connected alike as one, such as the cache a language model returns."""

from __future__ import annotations

from ..model import Edge, Graph, Node
from .regrouping import merge_facts, regroup

_FEW = 2


def merge_ports(graph: Graph) -> Graph:
    """Draw more than two inputs that feed the same nodes, or outputs of the same nodes, as one. It looks at what is seen.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: [x] * 9, torch.ones(2)))
    >>> [(node.label, node.num_operations) for node in merge_ports(graph).nodes]
    [('input_1_0', 1), ('output_1_1…output_9_9', 9)]
    """
    alike: dict[tuple[object, ...], list[Node]] = {}
    entering, leaving = _ends(graph.edges)
    for node in graph.nodes:
        if node.kind in ("input", "output"):
            ends = entering.get(node.key, []) if node.kind == "output" else leaving.get(node.key, [])
            alike.setdefault((node.kind, frozenset(ends), node.modules), []).append(node)
    groups = {node.key: f"{nodes[0].key}…{nodes[-1].key}" for nodes in alike.values() if len(nodes) > _FEW for node in nodes}
    return regroup(graph, groups, _merged) if groups else graph


def _ends(edges: tuple[Edge, ...]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    entering: dict[str, list[str]] = {}
    leaving: dict[str, list[str]] = {}
    for edge in edges:
        entering.setdefault(edge.target, []).append(edge.source)
        leaving.setdefault(edge.source, []).append(edge.target)
    return entering, leaving


def _merged(key: str, nodes: list[Node]) -> Node:
    roles = f"{nodes[0].role} … {nodes[-1].role}" if nodes[0].role else ""
    label = f"{nodes[0].label}…{nodes[-1].label}"
    return merge_facts(nodes, key=key, label=label, role=roles, passes=(1,), num_passes=1)
