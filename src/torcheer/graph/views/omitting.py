"""Leaves out the middle of a graph that is too large to look at and has no modules left to collapse."""

from __future__ import annotations

from ..model import Graph, Node
from .regrouping import common_path, merge_unseen, regroup


def omit_middle(graph: Graph, keep: int) -> Graph:
    """Draw the middle nodes as one, which says for how many operations it stands; `keep` nodes at both ends stay.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> def many(x):
    ...     for _ in range(50):
    ...         x = x.sin()
    ...     return x
    >>> graph = omit_middle(build_graph(torcheer.log_forward_pass(many, torch.ones(2))), keep=4)
    >>> [(node.kind, node.num_operations) for node in graph.nodes]
    [('input', 1), ('operation', 1), ('operation', 1), ('omitted', 48), ('output', 1)]
    """
    nodes = graph.nodes
    if len(nodes) <= keep + 1:
        return graph
    head = keep - keep // 4
    middle = nodes[head : len(nodes) - keep // 4]
    groups = dict.fromkeys((node.key for node in middle), "… left out")
    return regroup(graph, groups, _omitted)


def _omitted(key: str, middle: list[Node]) -> Node:
    return merge_unseen(
        middle,
        key=key,
        label=key,
        kind="omitted",
        type="omitted",
        repeats=1,
        sharing="",
        modules=common_path([node.modules for node in middle]),
        shape=middle[-1].shape,
        dtype=middle[-1].dtype,
        output_path="",
        place=None,
    )
