"""From a history to the tracked graph: every torch call, every parameter, every module pass, and what connects them."""

from __future__ import annotations

from typing import Any

from torcheer import ModelHistory
from torcheer.graph import Graph, Node

from .gradients import Gradients
from .module_nodes import add_module_calls, add_state, node_id, param_facts
from .structures import CALLS, DATA_FLOW, PARAMETER, GraphNode, OperationType, TrackedGraph


class Translation:
    """One history's tracked graph. `of` tells which node an operation of the history became."""

    def __init__(self, history: ModelHistory, *, on_device: bool = False) -> None:
        self.history = history
        self._on_device = on_device  # operations were timed where they ran
        self.graph = TrackedGraph()
        self.of: dict[int, str] = {}
        self._operations = {one.number: one for one in history.operations}
        calls = history.module_calls
        self.calls = {one.label: one for one in calls}
        forward = history.graph
        self._add_operations(forward)
        self.gradients = Gradients(self.graph, history)
        add_module_calls(self.graph, calls)
        self._connect(forward)
        self.gradients.connect(self.calls)

    # Nodes --------------------------------------------------------------------------------------------------------

    def _add_operations(self, forward: Graph) -> None:
        """A node for every call, whatever number of tensors it returned; an output is the tensor of the call that made it."""
        calls: dict[object, list[Node]] = {}
        for node in forward.all_nodes:
            if node.kind != "output":
                calls.setdefault(node.key if node.call is None else node.call, []).append(node)
        for nodes in calls.values():
            made = self.graph.add(self._operation(nodes, forward))
            self.of.update({number: made.id for node in nodes for number in node.operations})
        for node in forward.all_nodes:
            if node.kind == "output":
                for edge in forward.edges_in.get(node.key, ()):
                    for number in edge.tensors:
                        metadata = self.graph.nodes[self.of[number]].metadata if number in self.of else None
                        if metadata is not None:
                            metadata.setdefault("outputs", []).append(node.role or "output")
                            self.of[node.operations[0]] = self.of[number]

    def _operation(self, nodes: list[Node], forward: Graph) -> GraphNode:
        first = nodes[0]
        entering = {edge for node in nodes for edge in forward.edges_in.get(node.key, ()) if not edge.is_memory}
        shapes = [edge.shape for edge in sorted(entering, key=lambda edge: edge.positions) if edge.shape is not None]
        return GraphNode(
            id=f"{'input' if first.kind == 'input' else 'op'}:{first.key}",
            name=first.label,
            operation_type=_type_of(first),
            module_name=_address(first.modules),
            input_shapes=shapes,
            output_shapes=[node.shape for node in nodes if node.shape is not None],
            parameters={param.name: param_facts(param) for node in nodes for param in node.params} or None,
            execution_time=first.seconds if first.kind not in ("input", "source", "buffer") else None,
            memory_usage=sum(node.bytes for node in nodes),
            metadata={**_metadata(first), **({"timed_by": "cuda"} if self._on_device else {})},
            timestamp=self._operations[first.operations[0]].started if first.operations else None,
        )

    # Edges --------------------------------------------------------------------------------------------------------

    def _connect(self, forward: Graph) -> None:
        graph = self.graph
        for edge in forward.all_edges:
            source, target = forward.by_key[edge.source], forward.by_key[edge.target]
            if target.kind != "output" and source.operations and target.operations:
                metadata: dict[str, Any] = {"arguments": list(edge.positions)} if edge.positions else {}
                if edge.is_memory:
                    metadata["through"] = "memory"
                ends = self.of[source.operations[0]], self.of[target.operations[0]]
                graph.connect(*ends, DATA_FLOW, edge.shape, level="operation", **metadata)
        for node in forward.all_nodes:
            here = self.of.get(node.operations[0]) if node.operations else None
            if here is None or node.kind == "output":
                continue
            for param in (*node.params, *(use.buffer for use in node.buffers)):
                graph.connect(add_state(graph, param), here, PARAMETER, param.shape, level="operation")
            call = self._operations[node.operations[0]].module_call
            if call is not None and node.kind != "input":
                graph.connect(node_id(self.calls[call.label]), here, CALLS)


def _type_of(node: Node) -> OperationType:
    if node.kind in ("input", "source", "buffer") or (node.facts is not None and node.facts.allocates):
        return OperationType.MEMORY_OP
    return OperationType.CUSTOM if node.kind in ("opaque", "failed") else OperationType.TENSOR_OP


def _address(modules: tuple[str, ...]) -> str | None:
    return modules[-1].rpartition(":")[0] if modules else None


def _metadata(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = {
        "function": node.function,
        "role": node.kind if node.kind != "operation" else None,
        "dtype": node.dtype,
        "device": node.device,
        "pass": node.passes[0] if node.num_passes > 1 else None,
        "passes": node.num_passes if node.num_passes > 1 else None,
        "in_place": node.is_inplace or None,
        "composite": node.composite,
        "layer": node.bottom_level_module,
        "given_as": node.role or None,
        "arguments": str(node.arguments)[:200] if node.arguments is not None else None,
        "error": node.error or None,
        "source": node.source or None,
    }
    return {name: value for name, value in found.items() if value is not None}
