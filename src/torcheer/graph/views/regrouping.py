"""What every view is made of: keeping some nodes, and drawing several as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from ..model import Edge, Graph, ModuleBox, Node
from ..node_details import BufferUse


def restrict(graph: Graph, kept: AbstractSet[str]) -> Graph:
    """The graph with only these nodes and the edges between them."""
    if all(node.key in kept for node in graph.all_nodes):
        return graph
    nodes = tuple([node for node in graph.all_nodes if node.key in kept])
    edges = tuple([edge for edge in graph.all_edges if edge.source in kept and edge.target in kept])
    return replace(graph, all_nodes=nodes, all_edges=edges)


def reached(
    starts: Iterable[str], edges: Mapping[str, list[Edge]], *, forwards: bool, stops: AbstractSet[str] = frozenset()
) -> set[str]:
    """The keys of the nodes that edges lead to from some nodes, these included; no way goes on from a node in `stops`."""
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        key = waiting.pop()
        for edge in edges.get(key, ()) if key not in stops else ():
            beyond = edge.target if forwards else edge.source
            if beyond not in seen:
                seen.add(beyond)
                waiting.append(beyond)
    return seen


# Several nodes as one ---------------------------------------------------------------------------------------------


def regroup(
    graph: Graph,
    groups: Mapping[str, str],
    merge: Callable[[str, list[Node]], Node],
    *,
    boxes: tuple[ModuleBox, ...] | None = None,
    at_last: bool = False,
    is_same_step: bool = False,
) -> Graph:
    """Draw the nodes of each group as one, under the name of the group, at the place of the first of them (or the last).

    Nodes without a group stay as they are. Edges inside a group are dropped, unless they are feedback. With `is_same_step` the
    members are one step at several times: then all edges stay, with their argument positions.
    """
    members: dict[str, list[Node]] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(graph.all_nodes):
        group = groups.get(node.key, node.key)
        members.setdefault(group, []).append(node)
        last[group] = position
    names = sorted(members, key=last.__getitem__) if at_last else list(members)
    merged = set(groups.values())
    nodes = {name: merge(name, members[name]) if name in merged else members[name][0] for name in names}
    order = {name: position for position, name in enumerate(nodes)}
    bundles: dict[tuple[str, str], list[Edge]] = {}
    for edge in graph.all_edges:
        source, target = groups.get(edge.source, edge.source), groups.get(edge.target, edge.target)
        if source != target or is_same_step or edge.is_feedback:
            bundles.setdefault((source, target), []).append(edge)
    edges = []
    for source, target in sorted(bundles, key=lambda ends: order[ends[1]]):
        edge = bundle(bundles[source, target], nodes[source], nodes[target], is_same_step=is_same_step)
        if target in merged and not is_same_step:
            edge = replace(edge, positions=())  # they are positions among the arguments of a member
        if order[source] >= order[target] and not edge.is_feedback:
            edge = replace(edge, is_feedback=True)
        edges.append(edge)
    kept = graph.all_boxes if boxes is None else boxes
    return replace(graph, all_nodes=tuple(nodes.values()), all_edges=tuple(edges), all_boxes=kept)


def bundle(edges: list[Edge], source: Node, target: Node, *, is_same_step: bool = True) -> Edge:
    """Edges between the same two nodes as one."""
    first = edges[0]
    passes = first.passes
    if is_same_step:
        passes = _united(edge.passes for edge in edges)
    elif len(source.passes) == 1 and len(target.passes) == 1:
        passes = ((source.passes[0], target.passes[0]),)
    if len(edges) == 1:
        return replace(first, source=source.key, target=target.key, passes=passes)
    sizes = {edge.tensors: edge.bytes for edge in edges}
    shapes = {edge.shape for edge in edges}
    return replace(
        first,
        source=source.key,
        target=target.key,
        positions=_united(edge.positions for edge in edges),
        is_memory=all(edge.is_memory for edge in edges),
        is_bridge=all(edge.is_bridge for edge in edges),
        is_feedback=all(edge.is_feedback for edge in edges),
        is_to_next_block=all(edge.is_to_next_block for edge in edges),
        passes=passes,
        tensors=_united(edge.tensors for edge in edges),
        shape=first.shape if len(shapes) == 1 else None,
        bytes=sum(sizes.values()),
    )


def _united(parts: Iterable[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The items of all parts, each once, sorted."""
    return tuple(sorted({item for part in parts for item in part}))


def common_path(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """The boxes that are around all of these, outermost first."""
    shared = paths[0]
    for path in dict.fromkeys(paths):
        while path[: len(shared)] != shared:
            shared = shared[:-1]
    return shared


def merge_facts(members: list[Node], **facts: Any) -> Node:
    """One node for several, with sums, unions and common values of their fields; `facts` replace some of these."""
    first = members[0]
    by_call = {(node.call if node.call is not None else node.key): node.seconds for node in members}
    agreed: dict[str, Any] = {
        name: getattr(first, name) if all(getattr(node, name) == getattr(first, name) for node in members) else None
        for name in ("shape", "dtype", "device", "composite", "bottom_level_module", "facts")
    }
    united: dict[str, Any] = {
        "operations": _united(node.operations for node in members),
        "exits": tuple(dict.fromkeys(key for node in members for key in node.exits)),
        "params": tuple(dict.fromkeys(param for node in members for param in node.params)),
        "buffers": _united_buffers(members),
        "python_reads": tuple(read for node in members for read in node.python_reads),
        "bytes": sum(node.bytes for node in members),
        "seconds": sum(filter(None, by_call.values())) if None not in by_call.values() else None,
        "is_inplace": any(node.is_inplace for node in members),
        "from_input": any(node.from_input for node in members),
        "to_output": any(node.to_output for node in members),
        "has_gradient": any(node.has_gradient for node in members),
        "is_hidden": all(node.is_hidden for node in members),
        "call": None,
    }
    return replace(first, **{**agreed, **united, **facts})


def merge_unseen(members: list[Node], **facts: Any) -> Node:
    """One node in place of several that are not drawn: their functions, passes and places are left out."""
    blank = {"function": "", "passes": (1,), "num_passes": 1, "parts": (), "exits": (), "role": "", "python_reads": ()}
    return merge_facts(members, **{**blank, "arguments": None, "structure": None, **facts})


def _united_buffers(nodes: Iterable[Node]) -> tuple[BufferUse, ...]:
    """The buffers of several nodes, each once, with all positions where one was read, and whether any wrote to it."""
    uses: dict[str, BufferUse] = {}
    for node in nodes:
        for use in node.buffers:
            known = uses.get(use.buffer.name)
            if known is not None and known != use:
                positions = tuple(dict.fromkeys((*known.positions, *use.positions)))
                use = BufferUse(use.buffer, positions, known.is_written or use.is_written)
            uses[use.buffer.name] = use
    return tuple(uses.values())
