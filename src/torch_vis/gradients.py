"""Backward passes in the tracked graph: every autograd node that ran, and the backward pass of every module.

The edges are autograd's own, as torcheer wrote them down when it hooked the nodes. In `relu(fc(x))` followed by a dropout in
evaluation, which returns its argument, `linear` and `relu` have a node each and `dropout` has none: one edge leads from
`ReluBackward0` to `AddmmBackward0`, and whatever used the result of the dropout leads to `ReluBackward0`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from torcheer.backward_records import NodeRecord
from torcheer.history.backward import BackwardOperation
from torcheer.model_history import ModelHistory

from .passes import BackwardPass, ModulePass, backward_id
from .structures import CALLS, GRADIENT_FLOW, GraphNode, OperationType, TrackedGraph

_OF_OPERATIONS = ("result", "inside", "derivative")  # roles of nodes that came from an operation
_TORCH_OWN = frozenset({"AccumulateGrad", "CopySlices", "GraphRoot", "UndefinedGrad", "NotImplemented", "Error"})


class Gradients:
    """All backward passes of a history: `add` their nodes, and `connect` them when the modules are there too."""

    def __init__(self, graph: TrackedGraph, history: ModelHistory, passes: Mapping[int, ModulePass]) -> None:
        self._all = [_Pass(graph, history, number, passes) for number in range(len(history.backward_passes))]
        for one, passed in zip(self._all, history.backward_passes, strict=True):
            one.add(passed.operations)

    def connect(self) -> None:
        """Add the edges."""
        for one in self._all:
            one.connect()

    @property
    def by_operation(self) -> dict[int, list[str]]:
        """The ids of the nodes that belong to each forward operation, or (negative) to each parameter, in order."""
        found: dict[int, list[str]] = {}
        for one in self._all:
            for operation, places in one.by_operation.items():
                found.setdefault(operation, []).extend(one.ran[place][0] for place in places)
        return found


class _Pass:
    """One backward pass."""

    def __init__(self, graph: TrackedGraph, history: ModelHistory, position: int, passes: Mapping[int, ModulePass]) -> None:
        self.graph = graph
        self.passes = passes
        self.log = history._log
        self.number = position + 1
        assert self.log.backward is not None
        self.task = self.log.backward.passes[position].task
        self.ran: list[tuple[str, NodeRecord]] = []
        self.by_operation: dict[int, list[int]] = {}  # places in `ran`
        self.reached: set[int] = set()  # the operations whose tensors got a gradient

    def add(self, operations: list[BackwardOperation]) -> None:
        for one in operations:
            record = one._record
            if record.role != "other":
                self.by_operation.setdefault(record.operation, []).append(len(self.ran))
                self.reached.update((record.operation, *record.tensors))
            self.ran.append((self.graph.add(self._node(one, record)).id, record))
            if record.role in _OF_OPERATIONS:
                self._extend_modules(record)
        self._tell_shapes()

    def _node(self, one: BackwardOperation, record: NodeRecord) -> GraphNode:
        made = [shape for shape in record.made if shape is not None]
        is_custom = not record.name[-1:].isdigit() and record.name not in _TORCH_OWN
        facts = {"pass": self.number, "role": record.role, "operation": one.layer_label, "parameter": one.param}
        facts["timed_by"] = "cuda" if record.is_device_time else None
        return GraphNode(
            id=f"grad:{self.number}:{len(self.ran)}:{record.name}",
            name=record.name,
            operation_type=OperationType.CUSTOM if is_custom else OperationType.GRADIENT_OP,
            module_name=one.containing_module,
            input_shapes=[shape for shape in record.given if shape is not None],
            output_shapes=made,
            execution_time=record.elapsed / 1e9,
            memory_usage=sum(map(math.prod, made)) * self._item_size(record),
            metadata={name: value for name, value in facts.items() if value is not None},
            timestamp=record.started / 1e9,
        )

    def _item_size(self, record: NodeRecord) -> int:
        if record.role == "other":
            return 4
        operation = record.operation
        dtype = self.log.operations[operation].dtype if operation >= 0 else self.log.states[-1 - operation].tensor.dtype
        return dtype.itemsize

    # Modules ------------------------------------------------------------------------------------------------------

    def _extend_modules(self, record: NodeRecord) -> None:
        """A node that ran is part of the backward pass of every module its operation ran in."""
        call = self.log.operations[record.operation].module
        ended = record.started + record.span
        for around in call.stack() if call is not None else ():
            passed = self.passes[around.number].backward.setdefault(self.task, BackwardPass(record.started, ended))
            passed.started, passed.ended = min(passed.started, record.started), max(passed.ended, ended)
            if record.is_device_time:
                passed.seconds = (passed.seconds or 0.0) + record.elapsed / 1e9

    def _tell_shapes(self) -> None:
        """Gradients come in where a module's results have some, and leave where its inputs have."""
        for call in self.log.modules:
            passed = self.passes[call.number].backward.get(self.task)
            if passed is not None:
                records = self.log.operations
                passed.given = [records[n].shape for n in dict.fromkeys(call.outputs) if n in self.reached]
                made = [n for n in dict.fromkeys(call.inputs) if n >= 0 and n in self.reached]
                passed.made = [records[n].shape for n in made]
                passed.bytes = sum(math.prod(records[n].shape) * records[n].dtype.itemsize for n in made)

    # Edges --------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        runs: dict[int, list[int]] = {}  # by autograd node: the places in `ran`; checkpointing may run one several times
        for place, (_, record) in enumerate(self.ran):
            runs.setdefault(record.node, []).append(place)
        led: set[int] = set()
        for place, (here, record) in enumerate(self.ran):
            for target, count in Counter(record.onward).items():  # in `y * y` both gradients go to one node
                later = next((one for one in runs.get(target, ()) if one > place), None)
                if later is not None:
                    for turn in range(count):
                        self._flow(here, later, turn)
                    led.add(later)
            call = self.log.operations[record.operation].module if record.role in _OF_OPERATIONS else None
            if call is not None:
                self.graph.connect(backward_id(self.passes[call.number], self.task), here, CALLS)
        places = {id(record): place for place, (_, record) in enumerate(self.ran)}
        for here, record in self.ran:
            for inner in record.inner:  # a backward pass inside a node begins with what that node was given
                if places[id(inner)] not in led:
                    self._flow(here, places[id(inner)])

    def _flow(self, source: str, place: int, turn: int = 0) -> None:
        here, record = self.ran[place]
        shape = next((shape for shape in record.given if shape is not None), None)
        self.graph.connect(source, here, GRADIENT_FLOW, shape, turn=turn, level="operation")
