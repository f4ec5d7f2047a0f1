"""Builds the graph of a history: one node per visible operation, one edge per use of its tensor, one box per module call.

`steps_of_calls` groups the calls of a module into steps, as layers group operations; a rolled picture draws each step as one
box. All calls of a module with parameters are one step. A module without parameters is treated as a function: its calls are
one step if the same layer ran in them. A U-Net that uses one pooling module at every level has one step per level.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .._torch.containers import PLAIN, format_path
from .._torch.gc_pause import fewer_collections
from .._torch.internals import DisableTorchFunction
from .._torch.sentinels import TENSOR
from ..log.keys import Names
from ..log.operation import DECLARED, OperationFacts
from ..log.param import Param, describe_param
from ..log.records import (
    FACTS,
    FUNCTION,
    MODULE,
    NAMES,
    PARENTS,
    SITE,
    TEMPLATE,
    Facts,
    Failure,
    ModuleCall,
    OperationRecord,
    Row,
    number_of,
)
from ..log.run import HoldsRun, Index, LayerEntry, run_of
from ..log.templates import slot_paths
from .model import Arguments, BufferUse, Edge, Graph, ModuleBox, Node, PythonRead, SourcePlace


@dataclass(slots=True)
class ModuleStep:
    """Calls of one module that are the same step of the computation."""

    name: str  # the module's address; if the module has several steps, with the number of this step's first call
    turns: dict[int, int] = field(default_factory=dict)  # number of a module call -> its position in this step, from 1


def steps_of_calls(index: Index) -> dict[int, ModuleStep]:
    """Maps the number of every module call to its step."""
    made = list(index.operations)
    found: dict[int, ModuleStep] = {}
    for address, calls in index.calls.items():
        groups: dict[object, list[ModuleCall]] = {}
        for call in calls:
            groups.setdefault(address in index.holders or _layers(index, made, call), []).append(call)
        for group in groups.values():
            step = ModuleStep(address if len(groups) == 1 else f"{address}:{group[0].call}")
            step.turns = {call.number: turn for turn, call in enumerate(group, 1)}
            found.update(dict.fromkeys(step.turns, step))
    return found


def _layers(index: Index, made: list[int], call: ModuleCall) -> object:
    """Return the layer of the first operation that ran in a call. If no operation ran, the layers of the call's inputs."""
    place = bisect_left(made, call.first)
    if place < len(made) and (call.end < 0 or made[place] < call.end):
        return index.layer(made[place]).number
    return tuple([index.layer(number).number for number in call.inputs if index.table.shows(number)])


# Builds nodes and edges in one walk along the rows of the log.

_ONCE = ((1, 1),)
_FIELDS = [(fact.node, fact.plain) for fact in DECLARED if fact.node is not None]


def build_graph(history: HoldsRun) -> Graph:
    """The graph of a history, with a separate node for every pass of a layer.

    >>> import torch, torcheer
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: x.relu() + x, torch.ones(2)))
    >>> [(edge.source, edge.positions) for edge in graph.edges if edge.target == "add_1_2:1"]
    [('relu_1_1:1', ('args[0]',)), ('input_1_0:1', ('args[1]',))]
    """
    return _built(run_of(history).index)


def graph_of(index: Index) -> Graph:
    """The graph of a history, made when it is first asked for, and again after another backward pass."""
    backward = index.log.backward
    made_of = len(backward.passes) if backward is not None else 0
    made = index.kept.get("graph")
    if made is None or made[0] != made_of:
        made = index.kept["graph"] = (made_of, _built(index))
    graph: Graph = made[1]
    return graph


def _built(index: Index) -> Graph:
    with DisableTorchFunction(), fewer_collections():
        return _Builder(index).graph()


class _ReadOnce(OperationFacts):
    """The facts of an operation whose record, layer and tensor are looked up once."""

    __slots__ = ("_layer", "_record", "_tensor")
    _record: OperationRecord
    _layer: LayerEntry
    _tensor: Facts

    def __init__(self, index: Index, number: int) -> None:
        super().__init__(index, number)
        self._record = index.record(number)
        self._layer = index.layer(number)
        self._tensor = self._record.facts


class _Builder:
    """Builds the graph of one history. Caches places, positions and parameters that several operations share."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.log = index.log
        self.made: dict[int, Node] = {}  # number of an operation -> its node
        self._places: dict[tuple[int, int], SourcePlace] = {}
        self._positions: dict[Any, list[str]] = {}
        self._params: dict[int, Param] = {}
        passes = self.log.backward.passes if self.log.backward is not None else []
        self._reached = {n for one in passes for n in (*one.gradients, *one.summed)}
        self._reached.update(n for one in passes for record in one.nodes for n in (record.operation, *record.tensors))
        self._steps = steps_of_calls(index)  # number of a module call -> its step

    def graph(self) -> Graph:
        made = self.made
        edges: list[Edge] = []
        for number in self.index.operations:
            row = self.log.rows[number]
            node = made[number] = self._node(number, row)
            edges += self._edges(number, node, row)
        nodes = list(made.values())
        if self.log.failure is not None:
            nodes.append(self._failed(self.log.failure))
            sources = dict.fromkeys(n for n in self.log.failure.parents if n in made)
            edges += [_edge(made[n], nodes[-1], (), is_memory=False) for n in sources]
        boxes = tuple(self._box(call) for call in self.log.modules if call.address)
        names = Names(self.index).without_tensors()
        return Graph(self.log.title, tuple(nodes), tuple(edges), boxes, names=names)

    # Nodes --------------------------------------------------------------------------------------------------------

    def _node(self, number: int, row: Row) -> Node:
        one = _ReadOnce(self.index, number)
        declared: dict[str, Any] = {field: read(one) for field, read in _FIELDS}
        details = self.log.details.get(number)
        params, buffers = self._states(number, row)
        exits = self.index.exits.get(number, ())
        function = self.log.functions[row[FUNCTION]]
        return Node(
            **declared,
            passes=(one.pass_num,),
            operations=(number,),
            modules=self.paths[row[MODULE]],
            exits=tuple([f"{call.address}:{call.call}" for call in exits if call.address]) if exits else (),
            params=params,
            buffers=buffers,
            to_output=bool(self.to_output[number]),
            has_gradient=number in self._reached,
            python_reads=self.python_reads.get(number, ()),
            call=details.call if details is not None and details.call >= 0 else number,
            output_path=one.output_path if details is not None and not one.is_output_layer else "",
            place=self._place(row[SITE], row[MODULE]),
            arguments=Arguments(row[TEMPLATE], row[NAMES], function) if row[TEMPLATE] else None,
            facts=function,
        )

    def _failed(self, failure: Failure) -> Node:
        known = [n for n in failure.parents if n >= 0]
        states = dict.fromkeys(self._param(n) for n in failure.parents if n < 0)
        site, module = number_of(failure.site), number_of(failure.module)
        label = f"{failure.function.type}_failed"
        return Node(
            key=f"{label}:1",
            label=label,
            kind="failed",
            type=failure.function.type,
            function=failure.function.name,
            modules=self.paths[module],
            input_shapes=failure.shapes,
            params=tuple(param for param in states if not param.is_buffer),
            buffers=tuple(BufferUse(param) for param in states if param.is_buffer),
            from_input=any(self.index.from_input[n] for n in known),
            error=failure.error,
            facts=failure.function,
            place=self._place(site, module),
        )

    @cached_property
    def to_output(self) -> bytearray:
        """For each operation: 1 if it leads to an output or to the operation that raised, else 0."""
        failure = self.log.failure
        if failure is None:
            return self.index.to_output
        found = bytearray(self.index.to_output)
        for parent in failure.parents:
            if parent >= 0:
                found[parent] = 1
        for number in range(len(found) - 1, -1, -1):
            if found[number]:
                for parent in self.index.record(number).dependencies:
                    found[parent] = 1
        return found

    @cached_property
    def python_reads(self) -> dict[int, tuple[PythonRead, ...]]:
        """Maps each operation to the reads of its tensor's value by Python code."""
        found: dict[int, list[PythonRead]] = defaultdict(list)
        for record in self.log.python_reads:
            read = PythonRead(record.function.name, record.value, SourcePlace(record.site, record.module))
            for parent in dict.fromkeys(record.parents):
                found[parent].append(read)
        return {number: tuple(some) for number, some in found.items()}

    # Tensors ------------------------------------------------------------------------------------------------------

    def _tensor(self, number: int) -> Facts:
        facts: Facts | None = self.log.rows[number][FACTS]
        if facts is None:
            facts = self.log.operations[number].facts
        return facts

    def _place(self, site: int, module: int) -> SourcePlace | None:
        if site < 0 and module < 0:
            return None
        place = self._places.get((site, module))
        if place is None:
            where = self.log.sites[site] if site >= 0 else None
            place = self._places[site, module] = SourcePlace(where, self.log.modules[module] if module >= 0 else None)
        return place

    # Parameters and buffers ---------------------------------------------------------------------------------------

    def _param(self, reference: int) -> Param:
        param = self._params.get(reference)
        if param is None:
            state = self.index.state(reference)
            param = self._params[reference] = describe_param(self.index, self.index.state_name(state), state.tensor)
        return param

    def _states(self, number: int, row: Row) -> tuple[tuple[Param, ...], tuple[BufferUse, ...]]:
        """The parameters and buffers that an operation used, including those that were overwritten earlier in the pass."""
        parents = row[PARENTS:]
        states = map(self.index.state_behind, parents)
        used = {slot: state.number for slot, state in enumerate(states) if state is not None}
        if not used:
            return (), ()
        details = self.log.details.get(number)
        slots = details.mutated if details is not None else ()
        written = {used[slot] for slot in slots if slot in used}
        params = dict.fromkeys(param for param in map(self._param, used.values()) if not param.is_buffer)
        buffers: dict[int, list[str]] = {}
        for slot, reference in used.items():
            if self._param(reference).is_buffer:
                positions, paths = buffers.setdefault(reference, []), self._paths_of(row)
                if parents[slot] < 0 and slot < len(paths):
                    positions.append(paths[slot])
        uses = [BufferUse(self._param(n), tuple(found), n in written) for n, found in buffers.items()]
        return tuple(params), tuple(uses)

    # Edges --------------------------------------------------------------------------------------------------------

    def _edges(self, number: int, node: Node, row: Row) -> list[Edge]:
        made = self.made
        found: dict[int, list[str]] = {}
        paths = self._paths_of(row)
        known = len(paths)
        for slot, parent in enumerate(row[PARENTS:]):
            if parent in made:
                positions = found.setdefault(parent, [])
                if slot < known:
                    positions.append(paths[slot])
        edges = [_edge(made[parent], node, tuple(positions), is_memory=False) for parent, positions in found.items()]
        details = self.log.details.get(number)
        if details is not None and details.also:
            unseen = dict.fromkeys(parent for parent in details.also if parent in made and parent not in found)
            edges += [_edge(made[parent], node, (), is_memory=True) for parent in unseen]
        return edges

    def _paths_of(self, row: Row) -> list[str]:
        """The positions of a call's tensors, in order."""
        template, names = row[TEMPLATE], row[NAMES]
        count = len(template) - len(names)
        pattern = []
        for value in template:
            if value is TENSOR:
                pattern.append(True)
            elif type(value) in PLAIN:
                pattern.append(False)
            else:
                return _positions(template, names, count)
        key = (tuple(pattern), names)
        found = self._positions.get(key)
        if found is None:
            found = self._positions[key] = _positions(template, names, count)
        return found

    # Modules ------------------------------------------------------------------------------------------------------

    @cached_property
    def paths(self) -> dict[int, tuple[str, ...]]:
        """Maps each module call to the keys of the boxes around its operations."""
        found: dict[int, tuple[str, ...]] = {-1: ()}
        for call in self.log.modules:  # outer calls come before inner calls
            around = found[call.outer.number] if call.outer is not None else ()
            found[call.number] = (*around, f"{call.address}:{call.call}") if call.address else around
        return found

    def _box(self, call: ModuleCall) -> ModuleBox:
        shown, step = self.made, self._steps[call.number]
        return ModuleBox(
            path=self.paths[call.number],
            address=call.address,
            class_name=call.class_name,
            calls=(call.call,),
            num_calls=len(self.index.calls[call.address]),
            step=step.name,
            turns=(step.turns[call.number],),
            num_turns=len(step.turns),
            training=call.training,
            seconds=call.elapsed / 1e9,
            inputs=tuple([n for n in call.inputs if n in shown]),
            outputs=tuple([n for n in call.outputs if n in shown]),
            input_shapes=tuple([self._tensor(n)[0] for n in call.inputs if n >= 0]),
            output_shapes=tuple([self._tensor(n)[0] for n in call.outputs if n >= 0]),
            span=(call.first, call.end if call.end >= 0 else self.index.length),
            place=self._place(number_of(call.site), number_of(call.outer)),
        )


def _edge(source: Node, target: Node, positions: tuple[str, ...], *, is_memory: bool) -> Edge:
    passes = _ONCE if source.passes == target.passes == (1,) else ((source.passes[0], target.passes[0]),)
    carried = source.operations, source.shape, source.bytes
    return Edge(source.key, target.key, positions, is_memory, False, False, False, passes, "", *carried)


def _positions(template: tuple[Any, ...], names: tuple[str, ...], count: int) -> list[str]:
    paths = slot_paths(template[:count], dict(zip(names, template[count:], strict=True)))
    return [format_path(path, "kwargs" if isinstance(path[0], str) else "args") for path in paths]
