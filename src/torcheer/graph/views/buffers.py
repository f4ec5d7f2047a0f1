"""Draws buffers as nodes. Without this view a buffer is only named by the operations that use it."""

from __future__ import annotations

from dataclasses import replace

from ..model import Edge, Graph, Node
from ..node_details import BufferUse
from .regrouping import common_path, restrict
from .rolling import pass_by_pass


@pass_by_pass
def add_buffer_nodes(graph: Graph) -> Graph:
    """Draw every buffer as a node, with edges to what reads it and, as feedback, from what overwrites it.

    A buffer that only one collapsed module uses is part of that module, and is not drawn.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(torch.nn.BatchNorm1d(2).eval(), torch.ones(1, 2)))
    >>> [node.key for node in add_buffer_nodes(graph).nodes]
    ['input_1_0:1', 'buffer running_mean', 'buffer running_var', 'batchnorm_1_1:1', 'output_1_2:1']
    """
    users: dict[str, list[tuple[Node, BufferUse]]] = {}
    for node in graph.all_nodes:
        for use in node.buffers:
            users.setdefault(use.buffer.name, []).append((node, use))
    before: dict[str, list[Node]] = {}  # by the key of the first node that uses them
    edges: dict[str, list[Edge]] = {}  # by target
    for uses in users.values():
        node = _buffer_node(uses)
        is_inside = len(uses) == 1 and uses[0][0].kind == "module"
        if node.key in graph.by_key or is_inside:
            continue
        before.setdefault(uses[0][0].key, []).append(node)
        for user, use in uses:
            if use.positions or user.kind == "module":
                edges.setdefault(user.key, []).append(_read(node, user, use))
            if use.is_written:
                edges.setdefault(node.key, []).append(_write(node, user))
    nodes = [one for node in graph.all_nodes for one in (*before.get(node.key, ()), node)]
    every = [edge for node in nodes for edge in (*graph.edges_in.get(node.key, ()), *edges.get(node.key, ()))]
    return replace(graph, all_nodes=tuple(nodes), all_edges=tuple(every))


@pass_by_pass
def drop_buffer_nodes(graph: Graph) -> Graph:
    """Remove the nodes of buffers."""
    return restrict(graph, {node.key for node in graph.all_nodes if node.kind != "buffer"})


def _buffer_node(uses: list[tuple[Node, BufferUse]]) -> Node:
    buffer = uses[0][1].buffer
    return Node(
        key=f"buffer {buffer.name}",
        label=f"buffer {buffer.name}",
        kind="buffer",
        type="buffer",
        function="buffer",
        modules=common_path([user.modules for user, _ in uses]),
        shape=buffer.shape,
        dtype=str(buffer.dtype).removeprefix("torch."),
        bytes=buffer.fsize,
        from_input=False,
        to_output=any(user.to_output for user, _ in uses),
        is_hidden=all(user.is_hidden for user, _ in uses),
        role=buffer.name,
    )


def _read(buffer: Node, user: Node, use: BufferUse) -> Edge:
    positions = () if user.kind in ("module", "chain") else use.positions
    return Edge(buffer.key, user.key, positions, passes=((1, user.passes[0]),), shape=buffer.shape, bytes=buffer.bytes)


def _write(buffer: Node, user: Node) -> Edge:
    passes = ((user.passes[0], 1),)
    return Edge(user.key, buffer.key, is_feedback=True, passes=passes, shape=buffer.shape, bytes=buffer.bytes)
