"""The parts of a tracked graph: nodes, edges, and operation types."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

Shape = tuple[int, ...]

DATA_FLOW = "data_flow"  # a tensor flowed from source to target
GRADIENT_FLOW = "gradient_flow"  # a gradient flowed from source to target
PARAMETER = "parameter"  # the target read a parameter or buffer
CALLS = "calls"  # the source module called the target module


class OperationType(Enum):
    """The type of a node.

    FORWARD: the forward pass of a module that calls other modules. LAYER_OP: the forward pass of a module that calls none.
    BACKWARD: the backward pass of a module. TENSOR_OP: one call of a torch function. GRADIENT_OP: one autograd node that
    ran. MEMORY_OP: memory that is filled without computing: inputs, parameters, buffers, factories, copies. CUSTOM: code
    unknown to torch, such as the inside of a compiled extension or the backward of a `torch.autograd.Function`.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    TENSOR_OP = "tensor_op"
    LAYER_OP = "layer_op"
    GRADIENT_OP = "gradient_op"
    MEMORY_OP = "memory_op"
    CUSTOM = "custom"


@dataclass
class GraphNode:
    """A node of the tracked graph: one operation, module pass, parameter or gradient."""

    id: str
    name: str
    operation_type: OperationType
    module_name: str | None = None  # the address of its module; None in the model's own forward
    input_shapes: list[Shape] | None = None
    output_shapes: list[Shape] | None = None
    parameters: dict[str, Any] | None = None  # name -> shape, dtype, and whether it is trained
    execution_time: float | None = None  # seconds
    memory_usage: int | None = None  # bytes of the returned tensors
    metadata: dict[str, Any] | None = None
    parent_ids: list[str] | None = None
    child_ids: list[str] | None = None
    timestamp: float | None = None  # seconds since tracking began


@dataclass
class GraphEdge:
    """An edge of the computational graph. Its type is `data_flow`, `gradient_flow`, `parameter` or `calls`."""

    source_id: str
    target_id: str
    edge_type: str
    tensor_shape: Shape | None = None
    metadata: dict[str, Any] | None = None


class TrackedGraph:
    """Nodes by id, in the order they were added, and edges. Each edge occurs once; a gradient edge once for each gradient."""

    def __init__(self) -> None:
        self.nodes: dict[str, GraphNode] = {}
        self._edges: dict[tuple[str, str, str, int], GraphEdge] = {}

    @property
    def edges(self) -> list[GraphEdge]:
        return list(self._edges.values())

    def add(self, node: GraphNode) -> GraphNode:
        """Add a node; if its id exists, the existing node stays."""
        return self.nodes.setdefault(node.id, node)

    def connect(
        self, source: str, target: str, kind: str, shape: Shape | None = None, *, turn: int = 0, **metadata: Any
    ) -> None:
        """Add an edge between two different nodes of the graph. `turn` distinguishes several edges of one kind."""
        if source != target and source in self.nodes and target in self.nodes:
            self._edges.setdefault((source, target, kind, turn), GraphEdge(source, target, kind, shape, metadata or None))

    def finish(self, start: int | None) -> TrackedGraph:
        """Set the neighbours of every node, and sort nodes by time. `start` is the start of tracking, in ns."""
        parents: dict[str, list[str]] = {name: [] for name in self.nodes}
        children: dict[str, list[str]] = {name: [] for name in self.nodes}
        for source, target in dict.fromkeys((source, target) for source, target, _, _ in self._edges):
            children[source].append(target)
            parents[target].append(source)
        for node in self.nodes.values():
            node.parent_ids, node.child_ids = parents[node.id], children[node.id]
            if node.timestamp is not None:
                node.timestamp = max(0.0, node.timestamp - start / 1e9) if start is not None else None
        order = sorted(self.nodes.values(), key=lambda node: -1.0 if node.timestamp is None else node.timestamp)
        self.nodes = {node.id: node for node in order}
        return self
