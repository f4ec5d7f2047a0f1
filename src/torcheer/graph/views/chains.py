"""Merges runs of elementwise operations into one node: `add → relu → mul`."""

from __future__ import annotations

from ..model import Graph, Node
from .regrouping import merge_facts, regroup
from .rolling import pass_by_pass


@pass_by_pass
def merge_elementwise(graph: Graph) -> Graph:
    """Draw each run of elementwise operations, of which nothing else uses the results in between, as one node.

    A run stays within one module call, and ends with what a module returns. Its node stands at the place of its last operation.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: torch.relu(x + 1) * 2, torch.ones(2)))
    >>> [node.title for node in merge_elementwise(graph).nodes]
    ['input', 'add → relu → mul', 'output']
    """
    chains: dict[str, list[Node]] = {}  # by the key of the last node so far
    for node in graph.all_nodes:
        if _is_elementwise(node):
            before = next((edge.source for edge in graph.edges_in.get(node.key, ()) if _joins(graph, edge.source, node)), None)
            chain = chains.pop(before, []) if before is not None else []
            chain.append(node)
            chains[node.key] = chain
    groups = {}
    for chain in chains.values():
        if len(chain) > 1:
            groups.update(dict.fromkeys([node.key for node in chain], f"{chain[0].key}…{chain[-1].key}"))
    return regroup(graph, groups, _chain_node, at_last=True) if groups else graph


def _is_elementwise(node: Node) -> bool:
    is_elementwise = node.facts is not None and node.facts.is_elementwise
    return node.kind == "operation" and is_elementwise and len(node.passes) == 1


def _joins(graph: Graph, source: str, node: Node) -> bool:
    """Whether a node continues the run that ends with another."""
    before = graph.by_key[source]
    return (
        _is_elementwise(before)
        and len(graph.edges_out[source]) == 1
        and before.modules == node.modules
        and before.from_input == node.from_input
        and not before.exits
    )


def _chain_node(key: str, chain: list[Node]) -> Node:
    first, last = chain[0], chain[-1]
    return merge_facts(
        chain,
        key=key,
        label=f"{first.label}…{last.label}",
        kind="chain",
        type="chain",
        function=" → ".join(node.function for node in chain),
        parts=tuple(node.type for node in chain),
        passes=last.passes,
        num_passes=last.num_passes,
        shape=last.shape,
        dtype=last.dtype,
        device=last.device,
        bottom_level_module=None,
        output_path="",
        place=last.place,
        arguments=None,
    )
