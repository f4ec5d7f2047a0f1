"""Backward passes in the tracked graph: every autograd node that ran, with autograd's own edges between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torcheer import ModelHistory

from .module_nodes import backward_id
from .structures import CALLS, GRADIENT_FLOW, GraphNode, OperationType, TrackedGraph

_OF_OPERATIONS = ("result", "inside", "derivative")  # roles of nodes that came from an operation
_TORCH_OWN = frozenset({"AccumulateGrad", "CopySlices", "GraphRoot", "UndefinedGrad", "NotImplemented", "Error"})


class Gradients:
    """All backward passes of a history: their nodes are added now, and connected when the modules are there too."""

    def __init__(self, graph: TrackedGraph, history: ModelHistory) -> None:
        self._graph = graph
        self._ran = [(passed, passed.operations) for passed in history.backward_passes]
        self.by_operation: dict[int, list[str]] = {}  # the ids of the nodes that belong to each forward operation, in order
        self.count = 0  # of all nodes that belong to something that was logged
        self._ids: list[list[str]] = []  # by pass, of every node that ran
        for passed, ran in self._ran:
            self._ids.append([graph.add(_node(one, passed.number, place)).id for place, one in enumerate(ran)])
            for one, here in zip(ran, self._ids[-1], strict=True):
                self.count += one.role != "other"
                if one.operation is not None:
                    self.by_operation.setdefault(one.operation.number, []).append(here)

    def connect(self, calls: dict[str, Any]) -> None:
        """Add the edges. `calls` are the module calls, by label."""
        for (passed, ran), ids in zip(self._ran, self._ids, strict=True):
            turns: Counter[tuple[int, int]] = Counter()  # in `y * y` both gradients go to one node
            for source, target in passed.edges:
                shape = next((shape for shape in ran[target].grad_output_shapes if shape is not None), None)
                turn = turns[source, target]
                self._graph.connect(ids[source], ids[target], GRADIENT_FLOW, shape, turn=turn, level="operation")
                turns[source, target] += 1
            for one, here in zip(ran, ids, strict=True):
                call = one.operation.module_call if one.operation is not None and one.role in _OF_OPERATIONS else None
                if call is not None:
                    self._graph.connect(backward_id(calls[call.label], passed.number), here, CALLS)


def _node(one: Any, number: int, place: int) -> GraphNode:
    is_custom = not one.name[-1:].isdigit() and one.name not in _TORCH_OWN
    facts = {"pass": number, "role": one.role, "operation": one.layer_label, "parameter": one.param}
    facts["timed_by"] = "cuda" if one.is_device_time else None
    return GraphNode(
        id=f"grad:{number}:{place}:{one.name}",
        name=one.name,
        operation_type=OperationType.CUSTOM if is_custom else OperationType.GRADIENT_OP,
        module_name=one.containing_module,
        input_shapes=[shape for shape in one.grad_output_shapes if shape is not None],
        output_shapes=[shape for shape in one.grad_input_shapes if shape is not None],
        execution_time=one.time_elapsed,
        memory_usage=one.grad_input_fsize,
        metadata={name: value for name, value in facts.items() if value is not None},
        timestamp=one.started,
    )
