"""The module calls of a history, with what flowed between them, forward and backward."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..backward_records import BackwardRecord, NodeRecord
from ..history import History
from ..records import ModuleCall, Origin
from ..shapes import bytes_of
from .calls import ModuleBackward, ModuleCalls, ModuleInput, ModulePass

_OF_OPERATIONS = ("result", "inside", "derivative")  # roles of nodes that came from an operation


def module_calls_of(history: History) -> ModuleCalls:
    """Every module call of a history."""
    return _Logged(history).calls()


class _Logged:
    def __init__(self, history: History) -> None:
        self._history = history
        self._index, self._log = history._index, history._log
        self._on_device = history._options.time_on_device and torch.cuda.is_available()
        self._passes: list[ModulePass] = []  # as the log numbers the calls
        self._inputs: dict[int, ModuleInput] = {}  # by operation

    def calls(self) -> ModuleCalls:
        for call in self._log.modules:
            self._passes.append(self._forward(call))
        for call in self._log.modules:
            self._find_sources(call)
        for number, record in enumerate(self._log.backward.passes if self._log.backward is not None else (), 1):
            self._add_backward(number, record)
        return ModuleCalls(self._passes, list(self._inputs.values()))

    def _forward(self, call: ModuleCall) -> ModulePass:
        records = self._log.operations
        outer = self._passes[call.outer.number] if call.outer is not None else None
        one = ModulePass(call.address, call.class_name, call.call, outer, call.training)
        if outer is not None:
            outer.has_inner = True
        one.input_shapes = [records[n].shape for n in call.inputs if n >= 0]
        one.output_shapes = [records[n].shape for n in call.outputs if n >= 0]
        one.bytes = sum(self._index.tensor_bytes(n) for n in dict.fromkeys(call.outputs) if n >= 0)
        one.started, one.ended = call.started, call.started + call.elapsed
        one.params = self._history.modules[call.address].own_params
        if self._on_device:  # what the operations inside took, each call once
            inside = records[call.first : call.end if call.end >= 0 else len(records)]
            one.device_seconds = sum({record.call: record.elapsed for record in inside}.values()) / 1e9
        return one

    def _find_sources(self, call: ModuleCall) -> None:
        """What each layer was given by other layers, directly or through operations between them."""
        one = self._passes[call.number]
        numbers: Iterable[int] = call.inputs
        if one.has_inner:  # of a call around others only the results that its own code made count
            numbers = [n for n in call.outputs if n >= 0 and self._log.operations[n].module is call]
        for number in numbers:
            if number >= 0:
                shape = self._log.operations[number].shape
                for source in self._sources(number, call):
                    one.sources.setdefault(source, shape)

    def _sources(self, number: int, reader: ModuleCall) -> dict[ModulePass | ModuleInput, None]:
        """What the tensor `number` comes from, as seen from a module call that reads or returns it."""
        found: dict[ModulePass | ModuleInput, None] = {}
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
                found[self._passes[record.module.number]] = None
            elif record.origin is Origin.INPUT and self._index.table.shows(here):
                found[self._input(here)] = None
            else:
                waiting += record.dependencies
        return found

    def _input(self, number: int) -> ModuleInput:
        known = self._inputs.get(number)
        if known is None:
            shape, dtype, _ = self._log.operations[number].facts
            label = f"{self._index.layer_label(number)}:{self._index.table.pass_number(number)}"
            known = self._inputs[number] = ModuleInput(label, shape, dtype, self._index.tensor_bytes(number))
        return known

    # Backward -----------------------------------------------------------------------------------------------------

    def _add_backward(self, number: int, record: BackwardRecord) -> None:
        reached: set[int] = set()  # the operations whose tensors got a gradient
        for node in record.nodes:
            if node.role != "other":
                reached.update((node.operation, *node.tensors))
            if node.role in _OF_OPERATIONS:
                self._extend(number, node)
        operations = self._log.operations
        for call in self._log.modules:
            passed = self._passes[call.number].backward.get(number)
            if passed is not None:  # gradients come in where its results have some, and leave where its inputs have
                passed.grad_output_shapes = [operations[n].shape for n in dict.fromkeys(call.outputs) if n in reached]
                made = [operations[n] for n in dict.fromkeys(call.inputs) if n >= 0 and n in reached]
                passed.grad_input_shapes = [one.shape for one in made]
                passed.bytes = sum(bytes_of(one.shape, one.dtype) for one in made)

    def _extend(self, number: int, node: NodeRecord) -> None:
        """Extend the backward pass of every module that an operation ran in by its node."""
        call = self._log.operations[node.operation].module
        ended = node.started + node.span
        for around in call.stack() if call is not None else ():
            passed = self._passes[around.number].backward.setdefault(number, ModuleBackward(node.started, ended))
            passed.started, passed.ended = min(passed.started, node.started), max(passed.ended, ended)
            if node.is_device_time:
                passed.device_seconds = (passed.device_seconds or 0.0) + node.elapsed / 1e9
