"""Follows modules only: two global hooks for the forward pass, and hooks on autograd's nodes for the backward pass.

This is `track_tensor_ops=False`: no torch function is watched, so a pass costs microseconds per module and not per operation.
Which node of autograd belongs to which module is told by torch's sequence numbers: those a module made while it ran are its
own. Neither tensors nor nodes are kept; hooks go with the graph they are on, and do nothing after `stop`.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import cached_property, partial
from threading import get_ident
from time import perf_counter_ns as now
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from torcheer.capture.modules import wrapped_module
from torcheer.containers import tensors_in
from torcheer.torch_internals import DisableTorchFunction, current_graph_task, global_module_hooks, next_sequence_number

from .memory import cuda_is_used
from .ownership import Node, Ownership, Sources, last_nodes, node_of
from .passes import BackwardPass, ModulePass, tensor_facts
from .structures import Shape

_MANY = 8  # nodes of a layer that are looked at one by one


class _Running:
    """A module call that has not returned."""

    __slots__ = ("entering", "events", "first", "module", "one")

    def __init__(self, one: ModulePass, module: Module, first: int) -> None:
        self.one = one
        self.module = module
        self.first = first  # torch's number of the first autograd node it may make
        self.entering: Sources = {}
        self.events: tuple[Any, Any] | None = None


class LayerWatcher:
    """Writes down every module call between `start` and `stop`."""

    def __init__(self, model: Module, *, timing: bool) -> None:
        self.passes: list[ModulePass] = []
        self.inputs: dict[str, dict[str, Any]] = {}  # facts of what was given to a module from outside
        self._timing = timing
        self._thread = get_ident()
        self._addresses: dict[int, tuple[str | None, Module]] = {}  # by id; None for wrappers, which are looked through
        self._modules: dict[str, Module] = {}  # those that were called
        self._calls: dict[str, int] = {}
        self._stack: list[_Running] = []
        self._hooks = ExitStack()
        self._ownership = Ownership(self._hook)
        self._unexplained: list[tuple[weakref.ref[Tensor], Sources, Shape]] = []
        self._is_on = False
        self._pending: list[tuple[ModulePass, Any, Any]] = []  # events of the device, to be read at the end
        self._cuda = False
        self._register(model, "")

    def _register(self, root: Module, prefix: str) -> None:
        waiting = [(prefix, root)]
        while waiting:
            address, module = waiting.pop()
            if id(module) in self._addresses:
                continue
            inner = wrapped_module(module)
            self._addresses[id(module)] = (address if inner is None else None, module)
            if inner is not None:
                waiting.append((address, inner))
                continue
            start = f"{address}." if address else ""
            waiting += [(start + name, child) for name, child in reversed(module._modules.items()) if child is not None]

    def start(self) -> None:
        """Begin to watch."""
        self._ownership.begin(next_sequence_number())
        self._cuda = self._timing and cuda_is_used()
        self._is_on = True
        self._hooks.enter_context(global_module_hooks(self._enter, self._exit))

    def stop(self) -> None:
        """End it, and read what the device measured."""
        self._is_on = False
        self._hooks.close()
        for container in (self._stack, self._addresses, self._ownership, self._unexplained):
            container.clear()

    @cached_property
    def finished(self) -> list[ModulePass]:
        """Every module call, with what can be told only at the end: the backward passes of modules around others, and times."""
        if self._cuda:
            torch.cuda.synchronize()
        for one, began, ended in self._pending:
            one.seconds = began.elapsed_time(ended) / 1e3
        self._pending.clear()
        parameters = {address: _parameters(address, module) for address, module in self._modules.items()}
        self._modules.clear()
        for one in reversed(self.passes):  # inner calls come after those around them
            _widen(one)
            one.parameters = parameters[one.address]
            for passed in one.backward.values():
                passed.given, passed.made = one.returned, [shape for shape, _ in one.grown]
                passed.bytes = sum(size for _, size in one.grown)
        for passed in [passed for one in self.passes for passed in one.backward.values() if len(passed.events) == 2]:
            passed.seconds = passed.events[0].elapsed_time(passed.events[1]) / 1e3
            passed.events.clear()
        return self.passes

    # Forward ------------------------------------------------------------------------------------------------------

    def _enter(self, module: Module, args: tuple[Any, ...]) -> None:
        if get_ident() != self._thread:
            return
        with DisableTorchFunction():
            known = self._addresses.get(id(module))
            if known is None:
                self._register(module, self._free_name(type(module).__name__))
                known = self._addresses[id(module)]
            address = known[0]
            if address is None:
                return
            self._calls[address] = call = self._calls.get(address, 0) + 1
            self._modules[address] = module
            stack = self._stack
            outer = stack[-1].one if stack else None
            one = ModulePass(address, type(module).__name__, call, outer, module.training)
            if outer is not None:
                outer.has_inner = True
            self.passes.append(one)
            running = _Running(one, module, next_sequence_number())
            self._read(running, args)
            stack.append(running)
            if self._cuda:
                running.events = _recorded(), _event()
            one.started = now()

    def _exit(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any = None) -> None:
        ended = now()
        stack = self._stack
        if get_ident() != self._thread or not stack:
            return
        if stack[-1].module is not module:
            if not any(running.module is module for running in stack):
                return
            while stack[-1].module is not module:  # an interrupt left these without an exit
                stack.pop()
        running = stack.pop()
        running.one.ended = ended
        with DisableTorchFunction():
            if running.events is not None:
                running.events[1].record()
                self._pending.append((running.one, *running.events))
            if kwargs:
                self._read(running, kwargs)
            self._leave(running, tensors_in(result), (args, kwargs))
            if not stack:
                self._explain()

    def _read(self, running: _Running, given: Any) -> None:
        one = running.one
        for tensor in tensors_in(given[0] if type(given) is tuple and len(given) == 1 else given):
            shape, size = _facts(tensor)
            one.input_shapes.append(shape)
            if tensor.requires_grad:
                one.grown.append((shape, size))
            sources = self._ownership.producers(tensor, self._stack[-1].one if self._stack else None)
            if not sources and not self._stack:
                name = f"input:{len(self.inputs) + 1}"
                self.inputs[name] = tensor_facts(tensor)
                self._ownership.claim(tensor, name)
                sources = {name: None}
            for source in sources:
                running.entering[source] = shape
            if not sources:
                base = tensor if tensor._base is None else tensor._base
                self._unexplained.append((weakref.ref(base), running.entering, shape))

    def _explain(self) -> None:
        """The outermost call's named arguments are known only now; inner calls may have been given them."""
        for reference, entering, shape in self._unexplained:
            tensor = reference()
            known = self._ownership.known(tensor) if tensor is not None else None
            if known is not None:
                entering[known] = shape
        self._unexplained.clear()

    def _leave(self, running: _Running, results: list[Tensor], given: Any) -> None:
        one, first, ownership = running.one, running.first, self._ownership
        end = next_sequence_number()
        own: list[Tensor] = []
        nodes: list[Node] = []
        for tensor in results:
            shape, size = _facts(tensor)
            one.output_shapes.append(shape)
            one.bytes += size
            if tensor.requires_grad:
                one.returned.append(shape)
            if ownership.known(tensor) is None:
                own.append(tensor)
                node = node_of(tensor)
                if node is not None and node._sequence_nr() >= first:
                    nodes.append(node)
                if one.has_inner:
                    one.sources |= dict.fromkeys(ownership.producers(tensor, one), shape)
        if not one.has_inner:
            one.sources = running.entering
            if nodes:
                self._follow(one, first, end, nodes, given)
        for node in nodes:
            node.register_prehook(partial(self._backward_begins, one))
        for tensor in own:
            ownership.claim(tensor, one.id)
        ownership.finish(first, end, one)

    def _free_name(self, name: str) -> str:
        prefix = f"{self._stack[-1].one.address}." if self._stack and self._stack[-1].one.address else ""
        taken = {address for address, _ in self._addresses.values()}
        unique, count = prefix + name, 1
        while unique in taken:
            count += 1
            unique = f"{prefix}{name}_{count}"
        return unique

    # Backward -----------------------------------------------------------------------------------------------------

    def _follow(self, one: ModulePass, first: int, end: int, results: list[Node], given: Any) -> None:
        """Hook where gradients leave a layer: its own last nodes or, when it made very many, those of what it was given."""
        if end - first == 1:
            results[0].register_hook(partial(self._backward_ends, one))
            return
        if end - first > _MANY:
            hook = partial(self._backward_ended, one)
            before = {node for tensor in tensors_in(given) if (node := node_of(tensor)) is not None}
            for node in before:
                node.register_prehook(hook)
            if before:
                return
        hook = partial(self._backward_ends, one)
        for node in last_nodes(first, results):
            node.register_hook(hook)

    def _hook(self, node: Node, one: ModulePass) -> None:
        """A node that belongs to a module around others."""
        node.register_hook(partial(self._backward_ends, one))

    def _backward_begins(self, one: ModulePass, gradients: object) -> None:
        if self._is_on:
            self._passed(one)

    def _backward_ended(self, one: ModulePass, gradients: object) -> None:
        if current_graph_task() in one.backward:  # it may be reached by another way only
            self._backward_ends(one)

    def _backward_ends(self, one: ModulePass, *gradients: object) -> None:
        if not self._is_on:
            return
        passed = self._passed(one)
        passed.ended = now()
        if self._cuda:
            if len(passed.events) == 1:
                passed.events.append(_event())
            passed.events[1].record()

    def _passed(self, one: ModulePass) -> BackwardPass:
        task = current_graph_task()
        passed = one.backward.get(task)
        if passed is None:
            time = now()
            passed = one.backward[task] = BackwardPass(time, time)
            if self._cuda:
                passed.events.append(_recorded())
        return passed


def _parameters(address: str, module: Module) -> dict[str, dict[str, Any]]:
    """What is told of a module's own parameters, by full name."""
    start = f"{address}." if address else ""
    return {start + name: tensor_facts(value) for name, value in module._parameters.items() if value is not None}


def _facts(tensor: Tensor) -> tuple[Shape, int]:
    """Shape and bytes."""
    if type(tensor) is Tensor and tensor.layout is torch.strided:
        return tuple(tensor.shape), tensor.nbytes
    facts = tensor_facts(tensor)
    return tuple(facts["shape"]), facts["bytes"]


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def _recorded() -> Any:
    event = _event()
    event.record()
    return event


def _widen(one: ModulePass) -> None:
    """The backward pass of a module begins with the first of those inside it and ends with the last."""
    if one.outer is None:
        return
    for task, inner in one.backward.items():
        outer = one.outer.backward.setdefault(task, BackwardPass(inner.started, inner.ended, events=list(inner.events)))
        if inner.started < outer.started:
            outer.started = inner.started
            outer.events[:1] = inner.events[:1]
        if inner.ended > outer.ended:
            outer.ended = inner.ended
            outer.events[1:] = inner.events[1:]
