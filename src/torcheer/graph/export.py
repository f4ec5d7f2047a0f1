"""A graph in other forms: plain values, networkx, text."""

from __future__ import annotations

import math
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..history.param import Param
from ..history.printing.text import human_size, listed, plural
from .node_details import BufferUse, PythonRead

if TYPE_CHECKING:
    from .model import Edge, Graph, ModuleBox, Node

_LINES_SHOWN = 40
_LEFT_OUT = {"is_hidden", "structure", "facts"}


def as_dict(graph: Graph) -> dict[str, Any]:
    """The visible part of a graph as values that JSON can hold."""
    return {
        "title": graph.title,
        "is_rolled": graph.is_rolled,
        "nodes": [node_dict(node) for node in graph.nodes],
        "edges": [_plain_fields(edge) for edge in graph.edges],
        "modules": [box_dict(box) for box in graph.modules.values()],
    }


def node_dict(node: Node) -> dict[str, Any]:
    """A node's fields and some of its properties, as plain values."""
    derived = {"title": node.title, "trainable": node.trainable, "num_params": node.num_params}
    return {**_plain_fields(node), **derived, "num_operations": node.num_operations}


def box_dict(box: ModuleBox) -> dict[str, Any]:
    """A box's fields and some of its properties, as plain values."""
    return {"key": box.key, "parent": box.parent, "depth": box.depth, **_plain_fields(box)}


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(cls) if f.name not in _LEFT_OUT)


def _plain_fields(record: Any) -> dict[str, Any]:
    cls: Any = type(record)
    return {name: _plain(getattr(record, name)) for name in _names(cls)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, Param):
        return {**_plain_fields(value), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, (BufferUse, PythonRead)):
        return _plain_fields(value)
    return str(value)


def as_networkx(graph: Graph) -> Any:
    """The visible part of a graph for networkx."""
    try:
        networkx = import_module("networkx")
    except ImportError as error:
        raise ImportError("to_networkx() needs networkx: pip install networkx") from error
    made = networkx.DiGraph(title=graph.title)
    made.add_nodes_from((node.key, _fields(node)) for node in graph.nodes)
    made.add_edges_from((edge.source, edge.target, _fields(edge)) for edge in graph.edges)
    return made


def _fields(record: Node | Edge) -> dict[str, Any]:
    ends = ("key", "source", "target") if hasattr(record, "target") else ("key",)
    cls: Any = type(record)
    return {name: getattr(record, name) for name in _names(cls) if name not in ends}


def listing(graph: Graph) -> str:
    """A graph as text: a line with the counts, then a line for each node; the middle is left out if there are many."""
    rolled = "rolled graph" if graph.is_rolled else "graph"
    counts = ", ".join(
        plural(count, noun)
        for count, noun in ((len(graph.nodes), "node"), (len(graph.edges), "edge"), (len(graph.modules), "module"))
    )
    keys: dict[str, list[str]] = {}
    for edge in graph.edges:
        note = f" [{edge.pass_note}]" if edge.pass_note else ""
        keys.setdefault(edge.target, []).append(edge.source + note)
    nodes, head = graph.nodes, _LINES_SHOWN * 3 // 4
    left_out = max(0, len(nodes) - _LINES_SHOWN)
    lines = [_line(node, keys) for node in (*nodes[:head], *nodes[head + left_out :])]
    if left_out:
        lines.insert(head, f"… {plural(left_out, 'node')} more …")
    return "\n".join([f"{rolled} of {graph.title}: {counts}:", *(f"    {line}" for line in lines)])


def _line(node: Node, sources: dict[str, list[str]]) -> str:
    times = f" ×{node.num_passes}" if len(node.passes) > 1 else ""
    times += f" ×{node.repeats}" + (f" ({node.sharing} parameters)" if node.sharing else "") if node.repeats > 1 else ""
    what = f" {node.title}" if node.kind in ("module", "chain") else ""
    shape = f" {'×'.join(map(str, node.shape)) or 'scalar'}" if node.shape is not None else ""
    size = f" {human_size(node.bytes)}" if node.bytes else ""
    used = sources.get(node.key, [])
    parents = f" ← {listed(used, 6)}" if used else ""
    return f"{node.key}{times}{what}{shape}{size}{parents}"
