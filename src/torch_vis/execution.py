"""The calls that run a model once and return, export or draw its graph."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch.nn import Module

from torcheer import InvalidArgument, write_whole

from .document import as_row, memory_usage, plain
from .matplotlib_picture import draw_with_matplotlib
from .plotly_picture import draw_with_plotly
from .scene import make_scene
from .structures import GraphNode, OperationType
from .tracker import ComputationalGraphTracker

_RAN = frozenset(OperationType) - {OperationType.FORWARD, OperationType.BACKWARD}
_SHOWN = 10


def track_computational_graph_execution(
    model: Module,
    input_tensor: Any,
    track_memory: bool = True,
    track_timing: bool = True,
    track_tensor_ops: bool = True,
    *,
    include_loss: bool = False,
) -> ComputationalGraphTracker:
    """Run a model once, forward and (if its result requires gradients) backward, and return its tracked graph.

    >>> import torch
    >>> tracker = track_computational_graph_execution(torch.nn.Linear(2, 3), torch.ones(1, 2))
    >>> tracker.get_graph_summary()["edge_types"]["parameter"]
    4

    Args:
        model: the module. It, its gradients, the inputs and the random states are restored afterwards.
        input_tensor: a tensor, a tuple of positional arguments, or a mapping of keyword arguments, as in `log_forward_pass`.
        track_memory: record the bytes of every node, and the memory of CUDA and of the process.
        track_timing: record the seconds of every node.
        track_tensor_ops: follow every torch function and autograd node; otherwise only modules.
        include_loss: compute the sum of the float outputs, and show it and its gradients as part of the graph.

    The backward pass starts from the sum of the float outputs. This sum is not part of the model, so no total and no picture
    has it unless `include_loss` is set. Under `torch.no_grad()` only the forward pass runs. If the model raises, the
    exception has the graph up to that point: `error.tracker`.
    """
    tracker = ComputationalGraphTracker(model, track_memory, track_timing, track_tensor_ops)
    return tracker.run(input_tensor, include_loss=include_loss, called="track_computational_graph_execution")


def analyze_computational_graph_execution(
    model: Module, input_tensor: Any, detailed: bool = True, *, include_loss: bool = False
) -> dict[str, Any]:
    """Run a model once, forward and backward, and return its totals: `summary`, and with details `performance` and
    `layer_analysis`.

    >>> import torch
    >>> analysis = analyze_computational_graph_execution(torch.nn.Sequential(torch.nn.ReLU()), torch.ones(2))
    >>> [operation["operation_type"] for operation in analysis["layer_analysis"]["0"]]
    ['layer_op', 'tensor_op']

    Args:
        model, input_tensor, include_loss: as in `track_computational_graph_execution`.
        detailed: also list the slowest and largest operations, and the operations in every layer.
    """
    called = "analyze_computational_graph_execution"
    tracker = ComputationalGraphTracker(model).run(input_tensor, include_loss=include_loss, called=called)
    analysis: dict[str, Any] = {"summary": plain(tracker.get_graph_summary())}
    if detailed:
        analysis["performance"] = plain(_performance(tracker))
        analysis["layer_analysis"] = _by_layer(tracker)
    return analysis


def _performance(tracker: ComputationalGraphTracker) -> dict[str, Any]:
    ran = [node for node in tracker.nodes.values() if node.operation_type in _RAN and node.timestamp is not None]
    calls = [node for node in ran if node.operation_type is not OperationType.LAYER_OP]
    busy = sum(node.execution_time or 0.0 for node in calls)
    seconds = tracker.execution_time
    summary = tracker.get_graph_summary()
    return {
        "operations": len(calls),
        "operations_per_second": len(calls) / seconds if seconds > 0 else 0.0,
        "execution_time": seconds,
        "forward_time": summary["forward_time"],
        "backward_time": summary["backward_time"],
        "operation_time": busy,
        "average_operation_time": busy / len(calls) if calls else 0.0,
        "slowest_operations": _first(calls, "execution_time"),
        "largest_operations": _first(calls, "memory_usage"),
        "memory_usage": memory_usage(tracker),
        **_work(tracker),
    }


def _first(nodes: list[GraphNode], figure: str) -> list[dict[str, Any]]:
    """Find the nodes with the largest values of a figure, and return them in descending order."""
    order = sorted(nodes, key=lambda node: -(getattr(node, figure) or 0))[:_SHOWN]
    return [{name: getattr(node, name) for name in ("id", "name", "module_name", figure)} for node in order]


def _work(tracker: ComputationalGraphTracker) -> dict[str, Any]:
    """Floating-point operations; functions without a formula are counted by name."""
    assert tracker.history is not None
    cost = tracker.history.cost
    found = {"flops": cost.flops, "macs": cost.macs, "backward_flops": cost.backward_flops}
    return {**found, "without_flops": dict(cost.unknown)}


def _by_layer(tracker: ComputationalGraphTracker) -> dict[str, list[dict[str, Any]]]:
    """The nodes of each module, in order; the model's own forward has the name of its class."""
    found: dict[str, list[dict[str, Any]]] = {}
    for node in tracker.nodes.values():
        if (node.metadata or {}).get("role") not in ("parameter", "buffer", "input"):
            found.setdefault(node.module_name or type(tracker.model).__name__, []).append(as_row(node))
    return found


# Drawing ----------------------------------------------------------------------------------------------------------

_RENDERERS = {"plotly": draw_with_plotly, "matplotlib": draw_with_matplotlib}


def visualize_computational_graph(
    model: Module, input_tensor: Any, renderer: str = "plotly", *, include_loss: bool = False
) -> Any:
    """Run a model once, forward and backward, and draw its graph.

    >>> import torch
    >>> figure = visualize_computational_graph(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
    >>> figure.layout.title.text.partition("<")[0]
    'Computational graph of Sequential'

    Args:
        model, input_tensor, include_loss: as in `track_computational_graph_execution`.
        renderer: `"plotly"` returns an interactive `plotly.graph_objects.Figure`; `"matplotlib"` a
            `matplotlib.figure.Figure`, which also becomes the current figure of `pyplot`.

    A graph that is too large is drawn with its modules collapsed, and the title says so.
    """
    if renderer not in _RENDERERS:
        raise InvalidArgument(f"renderer is one of {', '.join(map(repr, _RENDERERS))}; got {renderer!r}.")
    if find_spec(renderer) is None:  # raise before the model runs
        raise ImportError(f"{renderer.capitalize()} not available: renderer={renderer!r} needs it. Run: pip install {renderer}")
    tracker = track_computational_graph_execution(model, input_tensor, include_loss=include_loss)
    return _RENDERERS[renderer](make_scene(tracker))


# Exporting --------------------------------------------------------------------------------------------------------

FORMATS = ("json",)
_OTHERS = frozenset(".csv .dot .gv .htm .html .pdf .png .py .svg .tex .txt .xml".split())  # refused endings: not JSON


def export_computational_graph(
    model: Module,
    input_tensor: Any,
    filepath: str | os.PathLike[str],
    format: str = "json",
    *,
    include_loss: bool = False,
) -> str:
    """Run a model once, forward and backward, and write its graph to a file, whole or not at all.

    >>> import json, pathlib, tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = export_computational_graph(torch.nn.ReLU(), torch.ones(2), folder + "/graph.json")
    ...     len(json.loads(pathlib.Path(path).read_text())["nodes"])
    3

    Args:
        model, input_tensor, include_loss: as in `track_computational_graph_execution`.
        filepath: the path of the file; an existing file is replaced.
        format: `"json"`. The schema is in `docs/torch_vis.md`.

    Returns the path as text.
    """
    if format not in FORMATS:
        raise InvalidArgument(f"a graph is exported as {' or '.join(map(repr, FORMATS))}; got {format!r}.")
    path = _checked(filepath)  # errors in the path come before the model runs
    data = track_computational_graph_execution(model, input_tensor, include_loss=include_loss).get_graph_data()
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1)
    return str(write_whole(path, text.encode(), "graph"))


def _checked(filepath: Any) -> Path:
    if not isinstance(filepath, (str, os.PathLike)) or not str(filepath):
        raise InvalidArgument(f"filepath is the path of a file to write; got {filepath!r:.80}.")
    path = Path(filepath)
    if path.suffix.lower() in _OTHERS:
        raise InvalidArgument(f"the graph is written as .json, and {str(path)!r} has the ending of another kind of file.")
    if path.is_dir():
        raise InvalidArgument(f"{str(path)!r} is a folder; give the path of a file, such as {str(path / 'graph.json')!r}.")
    if not path.parent.is_dir():
        raise InvalidArgument(f"there is no folder {str(path.parent)!r} to write {path.name!r} into.")
    if not os.access(path.parent, os.W_OK):
        raise InvalidArgument(f"the folder {str(path.parent)!r} cannot be written to.")
    return path
