"""Module calls as a part of the graph: a node for each forward and backward pass, and the edges between them."""

from __future__ import annotations

from typing import Any

from torcheer.module_calls import ModuleBackward, ModuleCalls, ModuleInput, ModulePass

from .structures import CALLS, DATA_FLOW, GRADIENT_FLOW, PARAMETER, GraphNode, OperationType, Shape, TrackedGraph


def node_id(one: ModulePass | ModuleInput) -> str:
    """The id of a module call, or of what was given to one from outside."""
    return f"input:{one.label}" if isinstance(one, ModuleInput) else f"module:{one.label}"


def backward_id(one: ModulePass, task: int) -> str:
    """The id of a module call's backward pass; the second pass through the same call ends in `#2`."""
    number = sorted(one.backward).index(task) + 1
    return f"backward:{one.label}" + (f"#{number}" if number > 1 else "")


def param_facts(param: Any) -> dict[str, Any]:
    return {"shape": list(param.shape), "dtype": _dtype(param.dtype), "trainable": param.is_trainable, "bytes": param.fsize}


def add_state(graph: TrackedGraph, param: Any) -> str:
    """A node for a parameter or buffer. Returns its id."""
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
    """A node for everything that modules were given from outside."""
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
    """A node for every module's forward and backward passes, with the edges between them."""
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
    """The calls that gradients for `source` reach: itself or, where it has no autograd nodes, those it was given tensors by.

    A dropout in evaluation returns its argument, so no gradient stops at it.
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
