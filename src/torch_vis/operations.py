"""From a history to the tracked graph: every torch call, every parameter, every module pass, and what connects them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torcheer.graph import Graph, Node
from torcheer.history.param import Param
from torcheer.model_history import ModelHistory
from torcheer.records import ModuleCall, Origin

from .gradients import Gradients
from .passes import ModulePass, add_module_passes, add_state
from .structures import CALLS, DATA_FLOW, PARAMETER, GraphNode, OperationType, TrackedGraph


class Translation:
    """One history's tracked graph. `of` tells which node an operation of the history became."""

    def __init__(self, history: ModelHistory, *, on_device: bool = False) -> None:
        self.history = history
        self._on_device = on_device  # operations were timed where they ran
        self.graph = TrackedGraph()
        self.of: dict[int, str] = {}
        self._log = history._log
        forward = history.graph
        self._add_operations(forward)
        self.passes = self._module_passes()
        self._find_sources()
        self.gradients = Gradients(self.graph, history, self.passes)
        add_module_passes(self.graph, self.passes.values())
        self._connect(forward)
        self.gradients.connect()

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
        record = self._log.operations[first.operations[0]] if first.operations else None
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
            timestamp=record.started / 1e9 if record is not None and record.started else None,
        )

    def _module_passes(self) -> dict[int, ModulePass]:
        """Every module call of the history, by its number."""
        found: dict[int, ModulePass] = {}
        records = self._log.operations
        modules = self.history.modules
        for call in self._log.modules:
            outer = found[call.outer.number] if call.outer is not None else None
            one = ModulePass(call.address, call.class_name, call.call, outer, call.training)
            if outer is not None:
                outer.has_inner = True
            one.input_shapes = [records[n].shape for n in call.inputs if n >= 0]
            one.output_shapes = [records[n].shape for n in call.outputs if n >= 0]
            one.bytes = sum(self.history._index.tensor_bytes(n) for n in dict.fromkeys(call.outputs) if n >= 0)
            one.started, one.ended = call.started, call.started + call.elapsed
            one.parameters = {param.name: param_facts(param) for param in modules[call.address].own_params}
            if self._on_device:
                one.seconds = self._device_seconds(call)
            found[call.number] = one
        return found

    def _device_seconds(self, call: ModuleCall) -> float:
        """What the operations inside a module took, each call once."""
        inside = self._log.operations[call.first : call.end if call.end >= 0 else len(self._log.rows)]
        return sum({record.call: record.elapsed for record in inside}.values()) / 1e9

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
                state = add_state(graph, param.name, param_facts(param), is_buffer=param.is_buffer)
                graph.connect(state, here, PARAMETER, param.shape, level="operation")
            call = self._log.operations[node.operations[0]].module
            if call is not None and node.kind != "input":
                graph.connect(self.passes[call.number].id, here, CALLS)

    def _find_sources(self) -> None:
        """What each layer was given by other layers, directly or through operations between them."""
        for call in self._log.modules:
            one = self.passes[call.number]
            numbers: Iterable[int] = call.inputs
            if one.has_inner:  # stands for its own code: only where that made the result
                numbers = [n for n in call.outputs if n >= 0 and self._log.operations[n].module is call]
            for number in numbers:
                if number >= 0:
                    shape = self._log.operations[number].shape
                    for source in self._sources(number, call):
                        one.sources.setdefault(source, shape)

    def _sources(self, number: int, reader: ModuleCall) -> dict[str, None]:
        """The ids of the nodes that the tensor `number` comes from, as seen from a module call that reads or returns it."""
        found: dict[str, None] = {}
        seen: set[int] = set()
        waiting = [number]
        around = set(reader.stack())
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            record = self._log.operations[here]
            if record.module is not None and record.module not in around:
                found[self.passes[record.module.number].id] = None
            elif record.origin is Origin.INPUT and here in self.of:
                found[self.of[here]] = None
            else:
                waiting += record.dependencies
        return found


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


def param_facts(param: Param) -> dict[str, Any]:
    """What is told of a parameter or buffer."""
    dtype = str(param.dtype).removeprefix("torch.")
    return {"shape": list(param.shape), "dtype": dtype, "trainable": param.is_trainable, "bytes": param.fsize}
