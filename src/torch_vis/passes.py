"""Module passes: one call of a module, forward and backward, and the part of the graph that such calls make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torcheer.records import bytes_of, facts_of

from .structures import CALLS, DATA_FLOW, GRADIENT_FLOW, PARAMETER, GraphNode, OperationType, Shape, TrackedGraph


@dataclass(slots=True, eq=False)
class BackwardPass:
    """One time the gradients went back through a module call. Times are in nanoseconds."""

    started: int
    ended: int
    given: list[Shape] = field(default_factory=list)  # gradients of what the module returned
    made: list[Shape] = field(default_factory=list)  # gradients of what it was given
    bytes: int = 0  # of those
    events: list[Any] = field(default_factory=list)  # of the device, until they are read: begin and end
    seconds: float | None = None  # where the device was asked


@dataclass(slots=True, eq=False)
class ModulePass:
    """One call of a module: what came in, what left, when, and the same for its backward passes."""

    address: str
    class_name: str
    call: int
    outer: ModulePass | None
    training: bool = False
    input_shapes: list[Shape] = field(default_factory=list)
    output_shapes: list[Shape] = field(default_factory=list)
    bytes: int = 0  # of what it returned
    started: int = 0
    ended: int = 0
    seconds: float | None = None  # where the device was asked
    has_inner: bool = False
    sources: dict[str, Shape | None] = field(default_factory=dict)  # ids of the nodes whose tensors it was given
    parameters: Mapping[str, dict[str, Any]] = field(default_factory=dict)  # its own, by full name
    backward: dict[int, BackwardPass] = field(default_factory=dict)  # by the number torch gives the pass
    grown: list[tuple[Shape, int]] = field(default_factory=list)  # inputs that require gradients, and their bytes
    returned: list[Shape] = field(default_factory=list)  # results that do

    @property
    def id(self) -> str:
        return f"module:{self.address}:{self.call}"

    @property
    def name(self) -> str:
        plain = f"{self.address} ({self.class_name})" if self.address else self.class_name
        return plain if self.call == 1 else f"{plain}, call {self.call}"


def tensor_facts(tensor: Tensor) -> dict[str, Any]:
    """What is told of a tensor without reading it."""
    shape, dtype, _ = facts_of(tensor)
    name, size = str(dtype).removeprefix("torch."), bytes_of(shape, dtype)
    return {"shape": list(shape), "dtype": name, "trainable": tensor.requires_grad, "bytes": size}


def add_state(graph: TrackedGraph, name: str, facts: Mapping[str, Any], *, is_buffer: bool = False) -> str:
    """A node for a parameter or buffer. Returns its id."""
    node = GraphNode(
        id=f"{'buffer' if is_buffer else 'param'}:{name}",
        name=name,
        operation_type=OperationType.MEMORY_OP,
        module_name=name.rpartition(".")[0] or None,
        output_shapes=[tuple(facts["shape"])],
        memory_usage=facts["bytes"],
        metadata={"role": "buffer" if is_buffer else "parameter", "dtype": facts["dtype"], "trainable": facts["trainable"]},
    )
    return graph.add(node).id


def add_module_passes(graph: TrackedGraph, passes: Iterable[ModulePass]) -> None:
    """A node for every module's forward and backward passes, with the edges between them."""
    known = list(passes)
    for one in known:
        graph.add(_forward_node(one))
        for name, facts in one.parameters.items():
            graph.connect(add_state(graph, name, facts), one.id, PARAMETER, tuple(facts["shape"]), level="layer")
    for one in known:
        if one.outer is not None:
            graph.connect(one.outer.id, one.id, CALLS)
        for source, shape in one.sources.items():
            graph.connect(source, one.id, DATA_FLOW, shape, level="layer")
    for one in known:
        for number, task in enumerate(sorted(one.backward), 1):
            graph.add(_backward_node(one, task, number))
    by_id = {one.id: one for one in known}
    for one in known:
        for task in one.backward:
            here = backward_id(one, task)
            if one.outer is not None and task in one.outer.backward:
                graph.connect(backward_id(one.outer, task), here, CALLS)
            for source, shape in one.sources.items():
                for before in _with_backward(source, task, by_id):
                    graph.connect(here, backward_id(before, task), GRADIENT_FLOW, shape, level="layer")


def _with_backward(source: str, task: int, by_id: Mapping[str, ModulePass]) -> list[ModulePass]:
    """The calls that gradients for `source` reach: itself or, where it has no autograd nodes, those it was given tensors by.

    A dropout in evaluation returns its argument, so no gradient stops at it.
    """
    found: dict[str, ModulePass] = {}
    seen: set[str] = set()
    waiting = [source]
    while waiting:
        here = waiting.pop()
        one = by_id.get(here)
        if one is None or here in seen:
            continue
        seen.add(here)
        if task in one.backward:
            found[here] = one
        else:
            waiting += one.sources
    return list(found.values())


def backward_id(one: ModulePass, task: int) -> str:
    """The id of a module call's backward pass; the second pass through the same call ends in `#2`."""
    number = sorted(one.backward).index(task) + 1
    return f"backward:{one.address}:{one.call}" + (f"#{number}" if number > 1 else "")


def _forward_node(one: ModulePass) -> GraphNode:
    elapsed = one.seconds if one.seconds is not None else (one.ended - one.started) / 1e9
    return GraphNode(
        id=one.id,
        name=one.name,
        operation_type=OperationType.FORWARD if one.has_inner else OperationType.LAYER_OP,
        module_name=one.address or None,
        input_shapes=one.input_shapes,
        output_shapes=one.output_shapes,
        parameters=dict(one.parameters) or None,
        execution_time=elapsed,
        memory_usage=one.bytes,
        metadata={
            "class": one.class_name,
            "call": one.call,
            "training": one.training,
            "timed_by": "cuda" if one.seconds is not None else "cpu",
        },
        timestamp=one.started / 1e9,
    )


def _backward_node(one: ModulePass, task: int, number: int) -> GraphNode:
    passed = one.backward[task]
    elapsed = passed.seconds if passed.seconds is not None else (passed.ended - passed.started) / 1e9
    return GraphNode(
        id=backward_id(one, task),
        name=f"backward of {one.name}",
        operation_type=OperationType.BACKWARD,
        module_name=one.address or None,
        input_shapes=passed.given,
        output_shapes=passed.made,
        execution_time=elapsed,
        memory_usage=passed.bytes,
        metadata={
            "class": one.class_name,
            "call": one.call,
            "pass": number,
            "forward_id": one.id,
            "timed_by": "cuda" if passed.seconds is not None else "cpu",
        },
        timestamp=passed.started / 1e9,
    )
