"""Backward passes in the tracked graph: every autograd node that ran, and the backward pass of every module.

Autograd's edges are not recorded; they follow from the forward pass: a gradient flows from the nodes of an operation to those
of the operations and parameters it used.
"""

from __future__ import annotations

import math
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
        readers: dict[int, list[int]] = {}
        for number, record in enumerate(history._log.operations):
            for parent in record.parents:
                if parent < 0:
                    readers.setdefault(parent, []).append(number)
        self._all = [_Pass(graph, history, number, passes, readers) for number in range(len(history.backward_passes))]
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

    def __init__(
        self,
        graph: TrackedGraph,
        history: ModelHistory,
        position: int,
        passes: Mapping[int, ModulePass],
        readers: Mapping[int, list[int]],
    ) -> None:
        self.graph = graph
        self.passes = passes
        self.readers = readers
        self.log = history._log
        self.children = history._index.children
        self.number = position + 1
        assert self.log.backward is not None
        self.task = self.log.backward.passes[position].task
        self.ran: list[tuple[str, NodeRecord]] = []
        self.by_operation: dict[int, list[int]] = {}  # places in `ran`

    def add(self, operations: list[BackwardOperation]) -> None:
        for one in operations:
            record = one._record
            if record.role != "other":
                self.by_operation.setdefault(record.operation, []).append(len(self.ran))
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
                passed.given = [records[n].shape for n in dict.fromkeys(call.outputs) if n in self.by_operation]
                made = [n for n in dict.fromkeys(call.inputs) if n >= 0 and n in self.by_operation]
                passed.made = [records[n].shape for n in made]
                passed.bytes = sum(math.prod(records[n].shape) * records[n].dtype.itemsize for n in made)

    # Edges --------------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        unexplained: str | None = None  # the last node that belongs to nothing that was logged
        for place, (here, record) in enumerate(self.ran):
            sources = [self._source(candidates, place) for candidates in self._before(record)]
            for source in dict.fromkeys(filter(None, sources)):
                self._flow(source, here, record)
            if unexplained is not None and not any(sources):
                self._flow(unexplained, here, record)
            if record.role == "other":
                unexplained = here
            call = self.log.operations[record.operation].module if record.role in _OF_OPERATIONS else None
            if call is not None:
                self.graph.connect(backward_id(self.passes[call.number], self.task), here, CALLS)

    def _flow(self, source: str, here: str, record: NodeRecord) -> None:
        shape = next((shape for shape in record.given if shape is not None), None)
        self.graph.connect(source, here, GRADIENT_FLOW, shape, level="operation")

    def _before(self, record: NodeRecord) -> list[list[int]]:
        """The nodes that a node's gradient may come from, by operation."""
        if record.role == "inside":
            return [self.by_operation[record.operation]]
        if record.role == "other":
            return []
        number = record.operation
        if record.role == "derivative":  # gradients of gradients go the way of the data
            own = (number, *(parent for parent in self.log.operations[number].parents if parent >= 0))
            return [self.by_operation[one] for one in own if one in self.by_operation]
        users = self.children.get(number, []) if number >= 0 else self.readers.get(number, [])
        found = []
        while users:  # what autograd knows nothing of, such as another view of the same memory, is passed over
            found += [self.by_operation[user] for user in users if user in self.by_operation]
            users = [n for user in users if user not in self.by_operation for n in self._aliases(user)]
        return found

    def _aliases(self, number: int) -> list[int]:
        return list(self.children.get(number, [])) if self.log.operations[number].origin.value == "alias" else []

    def _source(self, candidates: list[int], place: int) -> str | None:
        """Of the nodes of one operation that ran before, the one that made such a gradient.

        A parameter's comes from the innermost node that fits, such as the transpose in `linear`; any other from the first.
        """
        earlier = [one for one in candidates if one < place]
        if not earlier:
            return None
        record = self.ran[place][1]
        wanted = {shape for shape in record.given if shape is not None}
        fits = [one for one in earlier if not wanted.isdisjoint(self.ran[one][1].made)] or earlier[:1]
        return self.ran[fits[-1 if record.operation < 0 else 0]][0]
