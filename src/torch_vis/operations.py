"""Translates a history to a tracked graph: nodes for operations, modules, parameters and gradients, and their edges."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torcheer import ModelHistory
from torcheer.graph import Graph, Node
from torcheer.live.module_calls import ModuleBackward, ModuleCalls, ModuleInput, ModulePass

from .structures import CALLS, DATA_FLOW, GRADIENT_FLOW, PARAMETER, GraphNode, OperationType, Shape, TrackedGraph


def node_id(one: ModulePass | ModuleInput) -> str:
    """The id of a module call, or of an input from outside."""
    return f"input:{one.label}" if isinstance(one, ModuleInput) else f"module:{one.label}"


def backward_id(one: ModulePass, task: int) -> str:
    """The id of a backward pass through a module call. The id of the second backward pass through this call ends in `#2`."""
    number = sorted(one.backward).index(task) + 1
    return f"backward:{one.label}" + (f"#{number}" if number > 1 else "")


def param_facts(param: Any) -> dict[str, Any]:
    return {"shape": list(param.shape), "dtype": _dtype(param.dtype), "trainable": param.is_trainable, "bytes": param.fsize}


def add_state(graph: TrackedGraph, param: Any) -> str:
    """Add a node for a parameter or buffer. Returns its id."""
    role = "buffer" if param.is_buffer else "parameter"
    node = GraphNode(
        id=f"{'buffer' if param.is_buffer else 'param'}:{param.name}",
        name=param.name,
        operation_type=OperationType.MEMORY_OP,
        module_name=param.name.rpartition(".")[0] or None,
        output_shapes=[param.shape],
        memory_usage=param.fsize,
        metadata={"role": role, "dtype": _dtype(param.dtype), "trainable": param.is_trainable},
    )
    return graph.add(node).id


def add_inputs(graph: TrackedGraph, calls: ModuleCalls) -> None:
    """Add a node for each input that modules got from outside."""
    for one in calls.inputs:
        graph.add(
            GraphNode(
                id=node_id(one),
                name=f"input_{one.label}",
                operation_type=OperationType.MEMORY_OP,
                output_shapes=[one.shape],
                memory_usage=one.bytes,
                metadata={"role": "input", "dtype": _dtype(one.dtype)},
            )
        )


def add_module_calls(graph: TrackedGraph, calls: ModuleCalls) -> None:
    """Add a node for every module's forward and backward passes, with the edges between them."""
    for one in calls:
        graph.add(_forward_node(one))
        for param in one.params:
            graph.connect(add_state(graph, param), node_id(one), PARAMETER, param.shape, level="layer")
    for one in calls:
        if one.outer is not None:
            graph.connect(node_id(one.outer), node_id(one), CALLS)
        for source, shape in one.sources.items():
            graph.connect(node_id(source), node_id(one), DATA_FLOW, shape, level="layer")
    for one in calls:
        for number, task in enumerate(sorted(one.backward), 1):
            graph.add(_backward_node(one, task, number))
    for one in calls:
        for task in one.backward:
            here = backward_id(one, task)
            if one.outer is not None and task in one.outer.backward:
                graph.connect(backward_id(one.outer, task), here, CALLS)
            for source, shape in one.sources.items():
                for before in _with_backward(source, task):
                    graph.connect(here, backward_id(before, task), GRADIENT_FLOW, shape, level="layer")


def _with_backward(source: ModulePass | ModuleInput, task: int) -> list[ModulePass]:
    """Return the calls that gradients for `source` reach: `source`; without autograd nodes, the calls that gave it tensors.

    For example, dropout in evaluation returns its argument, so no gradient stops at it.
    """
    found: dict[ModulePass, None] = {}
    seen: set[ModulePass] = set()
    waiting = [source]
    while waiting:
        here = waiting.pop()
        if isinstance(here, ModuleInput) or here in seen:
            continue
        seen.add(here)
        if task in here.backward:
            found[here] = None
        else:
            waiting += here.sources
    return list(found)


def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _forward_node(one: ModulePass) -> GraphNode:
    node = _node(one, one, one.input_shapes, one.output_shapes, {"training": one.training})
    node.operation_type = OperationType.FORWARD if one.has_inner else OperationType.LAYER_OP
    node.parameters = {param.name: param_facts(param) for param in one.params} or None
    return node


def _backward_node(one: ModulePass, task: int, number: int) -> GraphNode:
    passed = one.backward[task]
    about = {"pass": number, "forward_id": node_id(one)}
    node = _node(one, passed, passed.grad_output_shapes, passed.grad_input_shapes, about)
    node.id, node.name = backward_id(one, task), f"backward of {node.name}"
    return node


def _node(
    one: ModulePass, ran: ModulePass | ModuleBackward, given: list[Shape], made: list[Shape], about: dict[str, Any]
) -> GraphNode:
    plain = f"{one.address} ({one.class_name})" if one.address else one.class_name
    timed_by = "cuda" if ran.device_seconds is not None else "cpu"
    return GraphNode(
        id=node_id(one),
        name=plain if one.call_num == 1 else f"{plain}, call {one.call_num}",
        operation_type=OperationType.BACKWARD,
        module_name=one.address or None,
        input_shapes=given,
        output_shapes=made,
        execution_time=ran.time_elapsed,
        memory_usage=ran.bytes,
        metadata={"class": one.class_name, "call": one.call_num, **about, "timed_by": timed_by},
        timestamp=ran.started / 1e9,
    )


# Backward passes in the tracked graph: every autograd node that ran, with autograd's own edges.

_OF_OPERATIONS = ("result", "inside", "derivative")  # roles of nodes that belong to an operation
_TORCH_OWN = frozenset({"AccumulateGrad", "CopySlices", "GraphRoot", "UndefinedGrad", "NotImplemented", "Error"})


class Gradients:
    """All backward passes of a history. Their nodes are added first, and connected when the modules' nodes exist too."""

    def __init__(self, graph: TrackedGraph, history: ModelHistory) -> None:
        self._graph = graph
        self._ran = [(passed, passed.operations) for passed in history.backward_passes]
        self.by_operation: dict[int, list[str]] = {}  # forward operation -> ids of its autograd nodes, in order
        self.count = 0  # number of nodes that belong to a logged operation, parameter or input
        self._ids: list[list[str]] = []  # for each backward pass: the ids of all its nodes
        for passed, ran in self._ran:
            self._ids.append([graph.add(_gradient_node(one, passed.number, place)).id for place, one in enumerate(ran)])
            for one, here in zip(ran, self._ids[-1], strict=True):
                self.count += one.role != "other"
                if one.operation is not None:
                    self.by_operation.setdefault(one.operation.number, []).append(here)

    def connect(self, calls: dict[str, Any]) -> None:
        """Add the edges. `calls` are the module calls, by label."""
        for (passed, ran), ids in zip(self._ran, self._ids, strict=True):
            turns: Counter[tuple[int, int]] = Counter()  # (source, target) -> edges so far: `y * y` has two
            for source, target in passed.edges:
                shape = next((shape for shape in ran[target].grad_output_shapes if shape is not None), None)
                turn = turns[source, target]
                self._graph.connect(ids[source], ids[target], GRADIENT_FLOW, shape, turn=turn, level="operation")
                turns[source, target] += 1
            for one, here in zip(ran, ids, strict=True):
                call = one.operation.module_call if one.operation is not None and one.role in _OF_OPERATIONS else None
                if call is not None:
                    self._graph.connect(backward_id(calls[call.label], passed.number), here, CALLS)


def _gradient_node(one: Any, number: int, place: int) -> GraphNode:
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


# Translates a history to a tracked graph: every torch call, parameter and module pass, with their edges.


class Translation:
    """The tracked graph of one history. `of` maps operations of the history to nodes."""

    def __init__(self, history: ModelHistory, *, on_device: bool = False) -> None:
        self.history = history
        self._on_device = on_device  # True if operations were timed on their device
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
        """Add one node for each call, however many tensors it returned; an output is a tensor of the call that made it."""
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
