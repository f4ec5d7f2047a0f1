"""Draws many inputs or outputs that are alike as one, such as the cache a language model returns."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..model import Edge, Graph, Node
from .regrouping import merge_facts, regroup

_FEW = 2
_FLAT = 8  # how many equal results of a flat tuple are drawn one by one


def merge_ports(graph: Graph) -> Graph:
    """Draw more than two equal inputs or outputs as one. It looks at what is seen.

    Equal are tensors of one shape in one nested value, such as the keys and values in a cache; those that feed the same nodes,
    or come from the same ones; and more than eight of one shape.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: [x] * 9, torch.ones(2)))
    >>> [(node.label, node.num_operations) for node in merge_ports(graph).nodes]
    [('input_1_0', 1), ('output_1_1…output_9_9', 9)]
    """
    entering, leaving = _ends(graph.edges)
    groups: dict[str, str] = {}

    def ends(node: Node) -> object:
        return frozenset(entering.get(node.key, ()) if node.kind == "output" else leaving.get(node.key, ()))

    def tensor(node: Node) -> tuple[object, ...]:
        return node.shape, node.dtype

    ways: list[tuple[int, Callable[[Node], object]]] = [
        (_FEW, lambda node: (nested_in(node.role), *tensor(node)) if nested_in(node.role) else None),
        (_FEW, ends),
        (_FLAT, tensor),
    ]
    for few, alike in ways:
        found: dict[tuple[object, ...], list[Node]] = {}
        for node in graph.nodes:
            if node.kind in ("input", "output") and node.key not in groups and (what := alike(node)) is not None:
                found.setdefault((node.kind, what, node.modules), []).append(node)
        for nodes in found.values():
            if len(nodes) > few:
                groups |= dict.fromkeys((node.key for node in nodes), f"{nodes[0].key}…{nodes[-1].key}")
    return regroup(graph, groups, _merged, at_last=True) if groups else graph


def nested_in(role: str) -> str:
    """What a tensor in a nested value is part of; empty where the value is not nested.

    >>> nested_in("output['past_key_values'].layers[3].keys"), nested_in("output['logits']"), nested_in("output[1][0]")
    ("output['past_key_values'].layers", '', 'output[1]')
    """
    found = re.match(r"(\w+\[[^\]]*\])(.+)", role)
    if found is None:
        return ""
    return found[1] + re.split(r"\[\d+\]", found[2], maxsplit=1)[0]


def _ends(edges: tuple[Edge, ...]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    entering: dict[str, list[str]] = {}
    leaving: dict[str, list[str]] = {}
    for edge in edges:
        entering.setdefault(edge.target, []).append(edge.source)
        leaving.setdefault(edge.source, []).append(edge.target)
    return entering, leaving


def _merged(key: str, nodes: list[Node]) -> Node:
    shared = {nested_in(node.role) for node in nodes}
    several = f"{nodes[0].role} … {nodes[-1].role}" if nodes[0].role else ""
    role = shared.pop() if len(shared) == 1 and "" not in shared else several
    label = f"{nodes[0].label}…{nodes[-1].label}"
    return merge_facts(nodes, key=key, label=label, role=role, passes=(1,), num_passes=1)
