"""The backward passes of a log: the nodes that ran, and the gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..backward_records import BackwardLog, BackwardRecord, NodeRecord
from ..records import Log
from ..tensor_memory import is_freed
from .checking import fields, flag, items, lists, number, numbers, real, refuse, sizes, text
from .saved_tensors import SavedTensors
from .saved_values import SavedGradients, Stored
from .tensor_names import TensorNames

_ROLES = ("result", "inside", "derivative", "accumulation", "other")

Json = Any


def write_backward(log: Log, tensors: TensorNames, label_of: Callable[[int], str], gradients: bool) -> Json:
    """The backward passes that were followed; None where none are."""
    if log.backward is None:
        return None
    wanted = log.backward.wanted
    passes = [_written_pass(one, turn, tensors, label_of, gradients) for turn, one in enumerate(log.backward.passes, 1)]
    return {"wanted": None if wanted is None else sorted(wanted), "passes": passes}


def _written_pass(
    one: BackwardRecord, turn: int, tensors: TensorNames, label_of: Callable[[int], str], gradients: bool
) -> Json:
    places = {id(node): place for place, node in enumerate(one.nodes)}
    found: dict[str, Any] = {"nodes": [_written_node(node, places) for node in one.nodes]}
    for key, group in (("gradients", one.gradients), ("summed", one.summed)):
        found[key] = []
        for reference, gradient in group.items() if gradients else ():
            if is_freed(gradient):
                continue
            label = label_of(reference) if reference >= 0 else f"params/{label_of(reference)}"
            name = f"grad/{label}" + (f"/{turn}" if turn > 1 else "") + ("/summed" if key == "summed" else "")
            tensors.add(name, gradient, f"the gradient of {label}")
            found[key].append([reference, name])
    scale = None if one.scale is None else float(one.scale)
    return {**found, "accumulated": sorted(one.accumulated), "scale": scale, "is_complete": one.is_complete}


def _written_node(node: NodeRecord, places: dict[int, int]) -> Json:
    inner = [places[id(one)] for one in node.inner if id(one) in places]
    return [
        *(node.name, node.role, node.operation, node.started, node.given, node.made),
        *(node.span, inner, node.node, node.onward, node.tensors, node.is_device_time),
    ]


def read_backward(written: Any, log: Log, tensors: SavedTensors) -> BackwardLog | None:
    """The backward passes of a saved history; None where gradients were not followed."""
    if written is None:
        return None
    found = fields(written, "the backward passes")
    wanted, reader = found.get("wanted"), _Reader(log, tensors)
    passes = [reader.read(fields(one, "a backward pass")) for one in items(found.get("passes"), "the backward passes")]
    return BackwardLog.of(passes, None if wanted is None else reader.references(wanted, "gradients"))


class _Reader:
    """Reads backward passes, in which numbers are those of operations or, negative, of parameters."""

    def __init__(self, log: Log, tensors: SavedTensors) -> None:
        self._low, self._high = -len(log.states), len(log.rows)
        self._log, self._tensors = log, tensors

    def references(self, written: Any, what: str) -> set[int]:
        return set(numbers(written, what, self._low, self._high))

    def read(self, written: dict[str, Any]) -> BackwardRecord:
        rows = lists(written.get("nodes"), "the nodes", "a node")
        nodes = [self._node(row) for row in rows]
        for node, row in zip(nodes, rows, strict=True):
            node.inner = tuple([nodes[place] for place in numbers(row[7], "inner nodes", 0, len(nodes))])
        scale = written.get("scale")
        return BackwardRecord(
            -1,
            nodes,
            self._gradients(written.get("gradients")),
            self._gradients(written.get("summed")),
            self.references(written.get("accumulated"), "leaves"),
            None if scale is None else torch.tensor(real(scale, "a scale")),
            flag(written.get("is_complete"), "whether a pass is complete"),
        )

    def _gradients(self, written: Any) -> SavedGradients:
        found = SavedGradients(self._log)
        for place, name in lists(written, "the gradients", "a gradient"):
            found[number(place, "a gradient", self._low, self._high)] = Stored(text(name, "a gradient"), self._tensors)
        return found

    def _node(self, row: list[Any]) -> NodeRecord:
        name, role, operation, started, given, made, span, _, node, onward, tensors, is_device_time = row
        if role not in _ROLES:
            refuse("a node has an unknown role")
        operation = number(operation, "the operation of a node", min(-1, self._low), self._high)
        found = NodeRecord(text(name, "a node"), role, operation, number(started, "a time"), _shapes(given), _shapes(made))
        found._span = number(span, "a time")
        found.node = number(node, "a node", -1)
        found.onward = tuple(numbers(onward, "nodes", -1))
        found.tensors = tuple(numbers(tensors, "the operations of a node", self._low, self._high))
        found.is_device_time = flag(is_device_time, "whether a time is a device's")
        return found


def _shapes(written: Any) -> tuple[tuple[int, ...] | None, ...]:
    return tuple([None if one is None else sizes(one, "a shape", -1) for one in items(written, "the shapes of gradients")])
