"""Converts a tracked graph to plain values: the summary, and the whole exported document. All numbers in it are finite."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from torcheer import __version__ as torcheer_version

from .structures import GraphEdge, GraphNode, OperationType

if TYPE_CHECKING:
    from .tracker import ComputationalGraphTracker


SCHEMA = "torch_vis.graph"
VERSION = 1
_WORK = (OperationType.TENSOR_OP, OperationType.GRADIENT_OP, OperationType.CUSTOM)


def summarize(tracker: ComputationalGraphTracker) -> dict[str, Any]:
    """The totals of a tracked graph: counts by type, time and memory."""
    nodes = tracker.nodes.values()
    forward = [node for node in nodes if node.id.startswith("module:")]
    backward = [node for node in nodes if node.operation_type is OperationType.BACKWARD]
    called = {edge.target_id for edge in tracker.edges if edge.edge_type == "calls"}
    classes = Counter(str((node.metadata or {}).get("class")) for node in forward)
    return {
        "model": type(tracker.model).__name__,
        "total_nodes": len(tracker.nodes),
        "total_edges": len(tracker.edges),
        "operation_types": _counted(node.operation_type.value for node in nodes),
        "edge_types": _counted(edge.edge_type for edge in tracker.edges),
        "module_types": dict(sorted(classes.items())),
        "execution_time": tracker.execution_time,
        "forward_time": _seconds([node for node in forward if node.id not in called]),
        "backward_time": _seconds([node for node in backward if node.id not in called]),
        "memory_usage": memory_usage(tracker),
        "parameters": _parameters(tracker),
        "notes": tracker.notes,
    }


def _counted(names: Any) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def _seconds(nodes: list[GraphNode]) -> float | None:
    """Add up the seconds of the outermost module passes. None if time was not tracked."""
    known = [node.execution_time for node in nodes if node.execution_time is not None]
    return sum(known) if known or not nodes else None


def memory_usage(tracker: ComputationalGraphTracker) -> dict[str, Any] | None:
    """Maps purposes to bytes; None if memory was not tracked."""
    if not tracker.track_memory:
        return None
    nodes = tracker.nodes.values()
    made = _WORK if tracker.track_tensor_ops else (OperationType.LAYER_OP,)
    layers = set() if tracker.track_tensor_ops else {node.id for node in nodes if node.operation_type is OperationType.LAYER_OP}
    roles = {"parameter": "parameter_bytes", "buffer": "buffer_bytes", "input": "input_bytes"}
    found: dict[str, Any] = dict.fromkeys([*roles.values(), "activation_bytes", "gradient_bytes"], 0)
    for node in nodes:
        role = roles.get(str((node.metadata or {}).get("role")))
        size = node.memory_usage or 0
        if role is not None:
            found[role] += size
        elif node.id.startswith("grad:") or (node.metadata or {}).get("forward_id") in layers:
            found["gradient_bytes"] += size
        elif node.operation_type in made or node.operation_type is OperationType.MEMORY_OP:
            found["activation_bytes"] += size
    if tracker.history is not None and tracker.history.is_complete:
        timeline = tracker.history.memory
        found |= {"peak_bytes": timeline.peak, "peak_operation": timeline.peak_operation}
        found["saved_for_backward_bytes"] = timeline.saved_for_backward
    held = tracker.memory
    for name in dict.fromkeys(name for when in held.values() for name in when):
        found[name] = held.get("after", {}).get(name, 0)
        found[f"{name}_before"] = held.get("before", {}).get(name, 0)
    return found


def _parameters(tracker: ComputationalGraphTracker) -> dict[str, int]:
    known = {id(parameter): parameter for parameter in tracker.model.parameters()}.values()
    sizes = [(p.numel(), p.requires_grad) for p in known if not torch.nn.parameter.is_lazy(p)]
    return {"total": sum(size for size, _ in sizes), "trainable": sum(size for size, trained in sizes if trained)}


def as_document(tracker: ComputationalGraphTracker) -> dict[str, Any]:
    """The whole graph, in the form of an exported document."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "torch_version": str(torch.__version__),
        "torcheer_version": torcheer_version,
        "options": {
            "track_memory": tracker.track_memory,
            "track_timing": tracker.track_timing,
            "track_tensor_ops": tracker.track_tensor_ops,
        },
        "summary": summarize(tracker),
        "nodes": [as_row(node) for node in tracker.nodes.values()],
        "edges": [as_row(edge) for edge in tracker.edges],
    }
    found: dict[str, Any] = plain(document)
    return found


def as_row(item: GraphNode | GraphEdge) -> dict[str, Any]:
    """A node or edge as a dictionary of its fields."""
    return {field.name: plain(getattr(item, field.name)) for field in fields(item)}


def plain(value: Any) -> Any:
    """Convert a value for JSON: sequences become lists, numbers that are not finite become None, other objects become text."""
    if value is None or isinstance(value, (bool, int, str)):
        return _text(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {_text(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return _text(str(value))


def _text(text: str) -> str:
    """The text with unpaired surrogates replaced by question marks, so that it can be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")
