"""A history as a graph of Google's Model Explorer: the JSON it opens, with modules as layers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..graph import Edge, Graph, ModuleBox, Node
from ..history.printing.text import human_size
from .contents import cut, words_of
from .payload import Recorded
from .writing import write

Plain = dict[str, Any]


def to_model_explorer(history: Recorded, path: str | os.PathLike[str] | None = None) -> Plain:
    """A history's graph as Model Explorer reads it, also written to a file if there is a path.

    >>> import torch, torcheer
    >>> from torcheer.viewer import to_model_explorer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> found = to_model_explorer(torcheer.log_forward_pass(model, torch.ones(1, 2)))
    >>> [(node["id"], node["namespace"]) for node in found["graphs"][0]["nodes"]]
    [('input_1_0:1', ''), ('linear_1_1:1', '0'), ('relu_1_2:1', '1'), ('output_1_3:1', '')]

    A node is in the namespace of the innermost module it ran in: `features.6` is `features/6`. A module that ran several times
    has one for each call: `fc:2`.
    """
    graph = history.graph
    found = {"graphs": [{"id": graph.title, "nodes": _nodes(graph)}]}
    if path is not None:
        write(Path(path), json.dumps(found, allow_nan=False), "graph")
    return found


def _nodes(graph: Graph) -> list[Plain]:
    namespaces = {box.key: _namespace(box) for box in graph.all_boxes}
    return [
        {
            "id": node.key,
            "label": node.type,
            "namespace": namespaces[node.modules[-1]] if node.modules else "",
            "attrs": _pairs(_facts(node)),
            **_ends(graph, node),
        }
        for node in graph.nodes
    ]


def _ends(graph: Graph, node: Node) -> Plain:
    """The edges that enter a node, one for each argument, and what is known of what enters and leaves."""
    edges = [(edge, position) for edge in graph.edges_in.get(node.key, ()) for position in _positions(edge)]
    return {
        "incomingEdges": [
            {"sourceNodeId": edge.source, "sourceNodeOutputId": "0", "targetNodeInputId": str(number)}
            for number, (edge, _) in enumerate(edges)
        ],
        "inputsMetadata": [
            {"id": str(number), "attrs": _pairs({"__tensor_tag": position, "tensor_shape": _shape(graph.by_key[edge.source])})}
            for number, (edge, position) in enumerate(edges)
        ],
        "outputsMetadata": [{"id": "0", "attrs": _pairs({"__tensor_tag": node.label, "tensor_shape": _shape(node)})}],
    }


def _positions(edge: Edge) -> tuple[str, ...]:
    return edge.positions or ("through memory" if edge.is_memory else "",)


def _namespace(box: ModuleBox) -> str:
    parts = box.address.replace("/", "∕").split(".")
    if box.num_calls > 1:
        parts[-1] = f"{parts[-1]}:{box.calls[0]}"
    return "/".join(parts)


def _facts(node: Node) -> dict[str, str]:
    return {
        "layer": node.label,
        "function": node.function,
        "kind": node.kind,
        "pass": f"{node.passes[0]} of {node.num_passes}" if node.num_passes > 1 else "",
        "size": human_size(node.bytes) if node.bytes else "",
        "device": node.device or "",
        "parameters": ", ".join(f"{param.name} {'×'.join(map(str, param.shape))}" for param in node.params),
        "buffers": ", ".join(use.buffer.name for use in node.buffers),
        "arguments": cut(words_of(node)),
        "returned by": ", ".join(node.exits),
        "source": node.source,
        "error": node.error,
    }


def _shape(node: Node) -> str:
    return f"{node.dtype}[{','.join(map(str, node.shape))}]" if node.shape is not None else ""


def _pairs(facts: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in facts.items() if value]
