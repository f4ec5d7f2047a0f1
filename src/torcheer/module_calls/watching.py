"""Watches modules only: two global hooks for the forward pass, and hooks on autograd's nodes for the backward pass.

No torch function is watched, so a pass costs microseconds per module and not per operation. Which node of autograd belongs to
which module is told by torch's sequence numbers: those a module made while it ran are its own. Neither tensors nor nodes are
kept; hooks go with the graph they are on, and do nothing afterwards.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from threading import get_ident
from time import perf_counter_ns as now
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from ..capture.addresses import addressed, class_name, free_address
from ..capture.autograd.grad_fn_names import node_of
from ..capture.refusals import refuse_inside_compiled_code
from ..cleaning import Cleaning, cleaning
from ..containers import tensors_in
from ..errors import InvalidArgument
from ..history import Param
from ..records import facts_of
from ..shapes import bytes_of
from ..torch_internals import (
    DisableTorchFunction,
    base_of,
    cuda_is_used,
    current_graph_task,
    global_module_hooks,
    next_sequence_number,
    own_parameters,
    run_uncompiled,
    sequence_number,
)
from .calls import ModuleBackward, ModuleCalls, ModuleInput, ModulePass, Shape
from .ownership import Node, Ownership, Sources, last_nodes

_MANY = 8  # nodes of a layer that are looked at one by one


def watch_modules(model: Module, *, timing: bool = True) -> Cleaning[ModuleCalls]:
    """Inside, every call of a module is written down, with its shapes, bytes and times, forward and backward.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with torcheer.watch_modules(model) as calls:
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> [(call.label, call.output_shapes, len(call.backward)) for call in calls]
    [(':1', [(1, 3)], 1), ('0:1', [(1, 3)], 1), ('1:1', [(1, 3)], 1)]

    Args:
        model: the model; other modules that run meanwhile are watched too, and named after their classes.
        timing: where CUDA is in use, time by events on the device, read when the calls are first looked at.

    The code in the block is the user's own, so its effects stay. Tensors are not kept. Compiled models run as they are
    written. Limits: work on other threads is not seen; without gradients a call's `sources` are known only where it was given
    the very tensor that another returned, or a view of it.
    """
    refuse_inside_compiled_code()
    if not isinstance(model, Module):
        raise InvalidArgument(f"watch_modules() takes an nn.Module; got {type(model).__name__}.")
    return _Watcher(model, timing=timing).watching()


class _Running:
    """A module call, and what is needed of it until its backward passes are over."""

    __slots__ = ("entering", "events", "first", "module", "one", "with_grad", "with_grad_out")

    def __init__(self, one: ModulePass, module: Module, first: int) -> None:
        self.one = one
        self.module = module
        self.first = first  # torch's number of the first autograd node it may make
        self.entering: Sources = {}
        self.events: tuple[Any, Any] | None = None  # of the device, to be read at the end
        self.with_grad: list[tuple[Shape, int]] = []  # inputs that require gradients, and their bytes
        self.with_grad_out: list[Shape] = []  # results that do


class _Watcher:
    """Writes down every module call while it is `watching`."""

    def __init__(self, model: Module, *, timing: bool) -> None:
        self._inputs: list[ModuleInput] = []
        self._passes: list[ModulePass] = []
        self._ran: list[_Running] = []
        self._timing = timing
        self._thread = get_ident()
        self._addresses: dict[int, tuple[str | None, Module]] = {}  # by id; None for wrappers, which are looked through
        self._counts: dict[str, int] = {}
        self._stack: list[_Running] = []
        self._ownership = Ownership(self._hook)
        self._unexplained: list[tuple[weakref.ref[Tensor], Sources, Shape]] = []
        self._is_on = False
        self._events: dict[ModuleBackward, list[Any]] = defaultdict(list)  # of the device: begin and end
        self._turns: dict[int, int] = {}  # backward passes of this run, by autograd's own number, which the process counts on
        self._cuda = False
        self._register(model, "")

    def _register(self, root: Module, prefix: str) -> None:
        for address, module in addressed(root, prefix, self._addresses):
            self._addresses[id(module)] = (address, module)

    @cleaning
    def watching(self) -> Iterator[ModuleCalls]:
        """Inside, every module of this thread is watched."""
        calls = ModuleCalls(self._passes, self._inputs, self._settle)
        has_wrappers = any(address is None for address, _ in self._addresses.values())
        with run_uncompiled(has_wrappers=has_wrappers), global_module_hooks(self._enter, self._exit):
            self._ownership.begin(next_sequence_number())
            self._cuda = self._timing and cuda_is_used()
            self._is_on = calls.is_running = True
            calls.started = now()
            yield calls
            calls.ended = now()
        self._is_on = calls.is_running = False
        for container in (self._stack, self._addresses, self._ownership, self._unexplained):
            container.clear()

    def _settle(self) -> None:
        """Work out what can be told only at the end: the backward passes of modules around others, and the device's times."""
        if self._cuda:
            torch.cuda.synchronize()
        params: dict[str, list[Param]] = {}
        for running in reversed(self._ran):  # inner calls come after those around them
            one = running.one
            if running.events is not None and one.ended:
                one.device_seconds = running.events[0].elapsed_time(running.events[1]) / 1e3
            if one.address not in params:
                params[one.address] = _params(one.address, running.module)
            one.params = params[one.address]
            self._widen(one)
            for passed in one.backward.values():
                passed.grad_output_shapes = running.with_grad_out
                passed.grad_input_shapes = [shape for shape, _ in running.with_grad]
                passed.bytes = sum(size for _, size in running.with_grad)
        for passed, events in self._events.items():
            if len(events) == 2:
                passed.device_seconds = events[0].elapsed_time(events[1]) / 1e3
        self._ran.clear()
        self._events.clear()

    def _widen(self, one: ModulePass) -> None:
        """The backward pass of a module begins with the first of those inside it and ends with the last."""
        if one.outer is None:
            return
        for turn, inner in one.backward.items():
            outer = one.outer.backward.get(turn)
            if outer is None:
                outer = one.outer.backward[turn] = ModuleBackward(inner.started, inner.ended)
                self._events[outer] = list(self._events[inner])
            if inner.started < outer.started:
                outer.started = inner.started
                self._events[outer][:1] = self._events[inner][:1]
            if inner.ended > outer.ended:
                outer.ended = inner.ended
                self._events[outer][1:] = self._events[inner][1:]

    # Forward ------------------------------------------------------------------------------------------------------

    def _enter(self, module: Module, args: tuple[Any, ...]) -> None:
        if get_ident() != self._thread:
            return
        with DisableTorchFunction():
            known = self._addresses.get(id(module))
            if known is None:
                around = self._stack[-1].one.address if self._stack else ""
                self._register(module, free_address(module, around, {address for address, _ in self._addresses.values()}))
                known = self._addresses[id(module)]
            address = known[0]
            if address is None:
                return
            self._counts[address] = count = self._counts.get(address, 0) + 1
            stack = self._stack
            outer = stack[-1].one if stack else None
            one = ModulePass(address, class_name(module), count, outer, getattr(module, "training", False))
            if outer is not None:
                outer.has_inner = True
            running = _Running(one, module, next_sequence_number())
            self._passes.append(one)
            self._ran.append(running)
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
        if not any(running.module is module for running in stack):
            return
        while stack[-1].module is not module:  # an interrupt left these without an exit
            stack.pop()
        running = stack.pop()
        running.one.ended = ended
        with DisableTorchFunction():
            if running.events is not None:
                running.events[1].record()
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
                running.with_grad.append((shape, size))
            sources = self._ownership.producers(tensor, self._stack[-1].one if self._stack else None)
            if not sources and not self._stack:
                given_here = ModuleInput(str(len(self._inputs) + 1), shape, tensor.dtype, size)
                self._inputs.append(given_here)
                self._ownership.claim(tensor, given_here)
                sources = {given_here: None}
            for source in sources:
                running.entering[source] = shape
            if not sources:
                base = base_of(tensor)
                base = tensor if base is None else base
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
                running.with_grad_out.append(shape)
            if ownership.known(tensor) is None:
                own.append(tensor)
                node = node_of(tensor)
                if node is not None and sequence_number(node) >= first:
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
            ownership.claim(tensor, one)
        ownership.finish(first, end, one)

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
        if self._turn() in one.backward:  # it may be reached by another way only
            self._backward_ends(one)

    def _backward_ends(self, one: ModulePass, *gradients: object) -> None:
        if not self._is_on:
            return
        passed = self._passed(one)
        passed.ended = now()
        if self._cuda:
            events = self._events[passed]
            if len(events) == 1:
                events.append(_event())
            events[1].record()

    def _turn(self) -> int:
        """Which backward pass of this run it is, from 1."""
        return self._turns.setdefault(current_graph_task(), len(self._turns) + 1)

    def _passed(self, one: ModulePass) -> ModuleBackward:
        turn = self._turn()
        passed = one.backward.get(turn)
        if passed is None:
            time = now()
            passed = one.backward[turn] = ModuleBackward(time, time)
            if self._cuda:
                self._events[passed].append(_recorded())
        return passed


def _params(address: str, module: Module) -> list[Param]:
    start = f"{address}." if address else ""
    own = [(start + name, value) for name, value in own_parameters(module).items() if value is not None]
    shapes = [tuple(value.shape) if not is_lazy(value) else (0,) for _, value in own]
    return [Param(name, shape, one.dtype, one.requires_grad, False) for (name, one), shape in zip(own, shapes, strict=True)]


def _facts(tensor: Tensor) -> tuple[Shape, int]:
    if type(tensor) is Tensor and tensor.layout is torch.strided and not tensor.is_nested:
        return tuple(tensor.shape), tensor.nbytes
    shape, dtype, _ = facts_of(tensor)
    return shape, bytes_of(shape, dtype)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own


def _recorded() -> Any:
    event = _event()
    event.record()
    return event
