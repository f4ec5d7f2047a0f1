"""Exports a history to Google's Model Explorer: its graph as JSON with modules as namespaces, and figures of nodes."""

from __future__ import annotations

import json
import os

import torch

from .._files.files import output_path, write_whole
from .._text import human_size
from .._text.colors import COST_RAMPS
from .._torch.internals import DisableTorchFunction
from ..graph import Edge, Graph, ModuleBox, Node
from ..log.run import run_of
from .contents import cut, ports_in, words_of
from .payload import Recorded
from .schema import Plain
from .values import Values


def to_model_explorer(history: Recorded, path: str | os.PathLike[str] | None = None, *, node_data: bool = True) -> Plain:
    """A history's graph for Model Explorer; with a path it is also written to a file.

    With `node_data`, files with figures of every node are written beside it: for `net.json`, `net.time.json`,
    `net.flops.json`, `net.memory.json`, `net.norm.json` and, after a backward pass, `net.gradient.json`. A figure without
    any known value has no file. `model-explorer net.json --node_data_paths=net.time.json,net.flops.json` opens them.

    >>> import torch, torcheer
    >>> from torcheer.page import to_model_explorer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> found = to_model_explorer(torcheer.log_forward_pass(model, torch.ones(1, 2)))
    >>> [(node["id"], node["namespace"]) for node in found["graphs"][0]["nodes"]]
    [('input_1_0:1', ''), ('linear_1_1:1', '0'), ('relu_1_2:1', '1'), ('output_1_3:1', '')]

    A node is in the namespace of its innermost module: `features.6` is `features/6`. A module that ran several times has one
    namespace for each call: `fc:2`. Equal outputs, such as a cache, are in a namespace of their container:
    `past_key_values`.
    """
    graph = history.graph
    found = {"label": graph.title, "graphs": [{"id": graph.title, "nodes": _nodes(graph)}]}
    if path is None:
        return found
    place = write_whole(output_path(path, "graph", "model.json", "json"), json.dumps(found, allow_nan=False).encode(), "graph")
    for name, data in node_data_of(history).items() if node_data else ():
        beside = place.with_name(f"{place.stem}.{name}.json")
        write_whole(beside, json.dumps(data, allow_nan=False).encode(), "node data")
    return found


def node_data_of(history: Recorded) -> dict[str, Plain]:
    """Figures of a history's nodes, by name, each in Model Explorer's format for node data.

    >>> import torch, torcheer
    >>> from torcheer.page import node_data_of
    >>> found = node_data_of(torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2)))
    >>> found["flops"]["Linear"]["results"]["linear_1_1:1"]
    {'value': 12}
    """
    with DisableTorchFunction(), torch.no_grad():
        index, nodes = run_of(history).index, history.graph.nodes
        plains: list[Plain] = [{} for _ in nodes]
        Values(index, nodes).add_statistics(plains)
        costs = [history.cost.of_operation(node.operations[0]) if node.operations else None for node in nodes]
    norms = [plain.get("stats", {}).get("norm") for plain in plains]
    gradients = [plain.get("grad", {}).get("stats", {}).get("norm") for plain in plains]
    figures: dict[str, tuple[str, list[float | None]]] = {
        "time": ("time, ms", [cost.seconds * 1e3 if cost is not None and not cost.untimed else None for cost in costs]),
        "flops": ("FLOPs", [cost.flops if cost is not None and not cost.unknown else None for cost in costs]),
        "memory": ("memory, KB", [node.bytes / 1e3 for node in nodes]),
        "norm": ("activation norm", norms),
        "gradient": ("gradient norm", gradients),
    }
    title = history.graph.title
    return {
        name: {title: _node_data(words, dict(zip((node.key for node in nodes), values, strict=True)))}
        for name, (words, values) in figures.items()
        if any(value is not None for value in values)
    }


def _node_data(name: str, values: dict[str, float | None]) -> Plain:
    ramp = COST_RAMPS["light"]
    return {
        "name": name,
        "results": {key: {"value": value} for key, value in values.items() if value is not None},
        "gradient": [{"stop": number / (len(ramp) - 1), "bgColor": color} for number, color in enumerate(ramp)],
    }


def _nodes(graph: Graph) -> list[Plain]:
    namespaces = {box.key: _namespace(box) for box in graph.all_boxes}
    ports = {number: port["name"] for port in ports_in(graph) for number in port["nodes"]}
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    return [
        {
            "id": node.key,
            "label": node.type,
            "namespace": namespaces[node.modules[-1]] if node.modules else ports.get(numbers[node.key], "").replace("/", "∕"),
            "attrs": _pairs(_facts(node)),
            **_ends(graph, node),
        }
        for node in graph.nodes
    ]


def _ends(graph: Graph, node: Node) -> Plain:
    """Make the edges into a node, one for each argument, and the metadata of the node's inputs and outputs."""
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
