"""Draws many inputs or outputs that are alike as one, such as the cache a language model returns."""

from __future__ import annotations

from ..equal_ports import EqualPorts, equal_ports
from ..model import Graph, Node
from .regrouping import merge_facts, regroup


def merge_ports(graph: Graph) -> Graph:
    """Draw equal inputs, and equal outputs, as one. Hidden ones stay as they are.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: [x] * 9, torch.ones(2)))
    >>> [(node.label, node.num_operations) for node in merge_ports(graph).nodes]
    [('input_1_0', 1), ('output_1_1…output_9_9', 9)]
    """
    found = {f"{group.nodes[0].key}…{group.nodes[-1].key}": group for group in equal_ports(graph.nodes)}
    groups = {node.key: name for name, group in found.items() for node in group.nodes}
    return regroup(graph, groups, lambda key, nodes: _merged(key, found[key]), at_last=True) if groups else graph


def _merged(key: str, group: EqualPorts) -> Node:
    first, last = group.nodes[0], group.nodes[-1]
    role = group.place if group.is_nested else f"{first.role} … {last.role}"
    label = f"{first.label}…{last.label}"
    return merge_facts(list(group.nodes), key=key, label=label, role=role, passes=(1,), num_passes=1)
