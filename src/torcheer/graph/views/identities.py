"""Adds nodes for module calls that return their input, such as those of `nn.Identity`."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from ..model import Edge, Graph, ModuleBox, Node
from .rolling import pass_by_pass


@pass_by_pass
def expand_identities(graph: Graph) -> Graph:
    """Add a node for each tensor that a module call returned as it was given; operations that ran later use that node.

    The input and the output are one tensor, so an operation that ran after the call may have used either; it is drawn as using
    the output.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
    >>> [node.label for node in expand_identities(build_graph(torcheer.log_forward_pass(model, torch.ones(2)))).nodes]
    ['input_1_0', 'relu_1_1', 'identity 1', 'output_1_2']
    """
    maker = {number: node for node in graph.all_nodes if node.kind != "output" for number in node.operations}
    steps: dict[int, list[tuple[ModuleBox, Node]]] = {}  # by operation: the calls its tensor went through, in order
    for box, number in _passed(graph):
        if number in maker:
            node = _identity_node(box, number, maker[number])
            if node.key not in graph.by_key:
                steps.setdefault(number, []).append((box, node))
    if not steps:
        return graph
    edges = [_rerouted(graph, edge, steps) for edge in graph.all_edges]
    for number, passed in steps.items():
        source = maker[number]
        size = source.bytes if len(source.operations) == 1 else 0
        for _, node in passed:
            passes = ((source.passes[0], node.passes[0]),)
            edges.append(Edge(source.key, node.key, passes=passes, tensors=(number,), shape=node.shape, bytes=size))
            source = node
    return _in_order(graph, steps, edges)


def _passed(graph: Graph) -> list[tuple[ModuleBox, int]]:
    """Which calls returned which of their inputs, in the order they ended; of nested calls only the innermost."""
    out_of_sight = {node.key[1:] for node in graph.all_nodes if node.kind == "module"}
    out_of_sight |= {key for box in graph.all_boxes for key in box.folded}
    found: list[tuple[ModuleBox, int]] = []
    explained: set[tuple[str, int]] = set()
    for box in sorted(graph.all_boxes, key=lambda box: (box.span[1], -box.depth)):  # inner calls before outer ones
        if not out_of_sight.isdisjoint(box.path):
            continue
        for number in dict.fromkeys(box.outputs):
            if number in box.inputs and (box.key, number) not in explained:
                found.append((box, number))
                explained.update((key, number) for key in box.path)
    return found


def _identity_node(box: ModuleBox, number: int, source: Node) -> Node:
    which = dict.fromkeys(n for n in box.outputs if n in box.inputs)
    part = f"[{list(which).index(number)}]" if len(which) > 1 else ""
    shape = box.output_shapes[box.outputs.index(number)] if len(box.output_shapes) == len(box.outputs) else source.shape
    return Node(
        key=f"identity {box.key}{part}",
        label=f"identity {box.step}{part}",
        kind="identity",
        type="identity",
        function=box.class_name,
        passes=box.turns,
        num_passes=box.num_turns,
        modules=box.path,
        exits=(box.key,),
        shape=shape,
        dtype=source.dtype,
        device=source.device,
        from_input=source.from_input,
        to_output=source.to_output,
        is_hidden=source.is_hidden and source.kind != "input",
        output_path=part,
        place=box.place,
    )


def _rerouted(graph: Graph, edge: Edge, steps: dict[int, list[tuple[ModuleBox, Node]]]) -> Edge:
    """The edge, from the last call its one tensor went through before it was used."""
    if len(edge.tensors) != 1 or edge.tensors[0] not in steps:
        return edge
    when = _when(graph.by_key[edge.target])
    through = [node for box, node in steps[edge.tensors[0]] if box.span[1] <= when]
    return replace(edge, source=through[-1].key) if through else edge


def _when(node: Node) -> float:
    """The number of the operation at which a node ran; a node without operations ran first, or last if it raised."""
    if node.operations:
        return node.operations[max(len(node.parts), 1) - 1]
    return inf if node.kind == "failed" else -1


def _in_order(graph: Graph, steps: dict[int, list[tuple[ModuleBox, Node]]], edges: list[Edge]) -> Graph:
    """The graph with each new node right before the first node that ran after its call."""
    added = [pair for passed in steps.values() for pair in passed]
    added.sort(key=lambda pair: (pair[0].span[1], -pair[0].depth))
    nodes: list[Node] = []
    waiting = 0
    for node in graph.all_nodes:
        while waiting < len(added) and _when(node) >= added[waiting][0].span[1]:
            nodes.append(added[waiting][1])
            waiting += 1
        nodes.append(node)
    nodes += [node for _, node in added[waiting:]]
    order = {node.key: position for position, node in enumerate(nodes)}
    edges.sort(key=lambda edge: order[edge.target])
    return replace(graph, all_nodes=tuple(nodes), all_edges=tuple(edges))
