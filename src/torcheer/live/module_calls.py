"""`ModuleCalls`: the calls of modules, forward and backward, with times and shapes, and the data flow between them.

Two functions make it: `watch_modules` watches a running model with module hooks alone; `module_calls_of` reads a history.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import get_ident
from time import perf_counter_ns as now
from types import TracebackType
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from .._cleanup import Managed
from .._torch.addresses import addressed, class_name, free_address
from .._torch.containers import tensors_in
from .._torch.functions.facts import Origin
from .._torch.internals import (
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
from .._torch.memory import version_of
from .._torch.shapes import bytes_of
from .._torch.thread_state import thread_as_found
from ..capture import device_event, refuse_inside_compiled_code
from ..errors import InvalidArgument
from ..log.grad_fn_names import node_of
from ..log.param import Param, own_params
from ..log.records import BackwardRecord, ModuleCall, NodeRecord, facts_of
from ..log.run import LoggedRun

# One call of a module: its inputs and results, its time and caller, and its backward passes.

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class ModuleInput:
    """A tensor that code outside all modules gave to a module."""

    label: str  # the label of the input in a history, with the pass (`input_1_0:1`); without a history, a number
    shape: Shape
    dtype: torch.dtype
    bytes: int


@dataclass(slots=True, eq=False)
class ModuleBackward:
    """One backward pass through a module call. Times are in nanoseconds, on `time.perf_counter_ns`."""

    started: int
    ended: int
    grad_output_shapes: list[Shape] = field(default_factory=list)  # shapes of the gradients of what the module returned
    grad_input_shapes: list[Shape] = field(default_factory=list)  # shapes of the gradients of what the module received
    bytes: int = 0  # number of bytes of the gradients of what the module received
    device_seconds: float | None = None  # None if no GPU timed the work

    @property
    def time_elapsed(self) -> float:
        """Seconds that the backward pass took, measured by the GPU if `device_seconds` is known."""
        return self.device_seconds if self.device_seconds is not None else (self.ended - self.started) / 1e9


@dataclass(slots=True, eq=False)
class ModulePass:
    """One call of a module. Times are in nanoseconds, on `time.perf_counter_ns`."""

    address: str  # empty for the model itself
    class_name: str
    call_num: int  # which call of the module this is, from 1
    outer: ModulePass | None  # the call around it
    training: bool = False
    input_shapes: list[Shape] = field(default_factory=list)
    output_shapes: list[Shape] = field(default_factory=list)
    bytes: int = 0  # number of bytes of what the module returned
    started: int = 0
    ended: int = 0  # at most `started` if the call did not return
    device_seconds: float | None = None  # None if no GPU timed the work
    has_inner: bool = False  # True if the module called other modules
    # The calls and inputs whose tensors this call received, directly or through operations between modules, with their shapes.
    # For a call with inner calls: the calls and inputs from which its own code computed the result.
    sources: dict[ModulePass | ModuleInput, Shape | None] = field(default_factory=dict)
    params: list[Param] = field(default_factory=list)  # the parameters that the module registers itself
    # number of the backward pass in this run, from 1 -> the gradients
    backward: dict[int, ModuleBackward] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The address with the number of the call: `features.6:1`."""
        return f"{self.address}:{self.call_num}"

    @property
    def time_elapsed(self) -> float:
        """Seconds from entry to exit, measured by the GPU if `device_seconds` is known; 0 if the call did not return."""
        return self.device_seconds if self.device_seconds is not None else max(0, self.ended - self.started) / 1e9

    def __repr__(self) -> str:
        shapes = ", ".join(map(str, self.input_shapes)), ", ".join(map(str, self.output_shapes))
        return f"<ModulePass {self.label} of {self.class_name}: {shapes[0]} → {shapes[1]}, {self.time_elapsed:.3E}s>"


class ModuleCalls(Sequence[ModulePass]):
    """The module calls of a run, in the order they began.

    `inputs` are the tensors from outside all modules; `started` and `ended` are the times of the run, in nanoseconds.
    """

    def __init__(self, calls: list[ModulePass], inputs: list[ModuleInput], settle: Callable[[], object] | None = None) -> None:
        self.inputs = inputs
        self.started = self.ended = 0
        self.is_running = False
        self._calls = calls
        self._settle = settle  # called when the calls are first read: computes the data that is known only at the end

    @cached_property
    def _settled(self) -> list[ModulePass]:
        if self.is_running:
            raise InvalidArgument("the modules are still being watched: leave the `with` block before you look at their calls.")
        if self._settle is not None:
            self._settle()
        return self._calls

    @overload
    def __getitem__(self, place: int) -> ModulePass: ...
    @overload
    def __getitem__(self, place: slice) -> list[ModulePass]: ...
    def __getitem__(self, place: int | slice) -> ModulePass | list[ModulePass]:
        return self._settled[place]

    def __len__(self) -> int:
        return len(self._settled)

    def __repr__(self) -> str:
        return "<ModuleCalls, running>" if self.is_running else "\n".join(map(repr, self._settled))


# Finds the module call that made a tensor or an autograd node, without keeping either alive.
#
# Torch numbers autograd nodes in the order of creation. So a call owns the nodes created while it ran, except those created
# in inner calls.

Node = Any  # an autograd node
Source = ModulePass | ModuleInput
Sources = dict[Source, Shape | None]
LEAF = 2**62  # a node with a greater number accumulates a gradient: torch gives all such nodes the greatest number


class Ownership:
    """Maps tensors and nodes to the calls that made them. Calls `hook` with each node that an outer call's own code made."""

    def __init__(self, hook: Callable[[Node, ModulePass], None], first: int) -> None:
        self._hook = hook
        # Maps the id of a tensor to the tensor, its source, and its version when it was claimed.
        self._made: dict[int, tuple[weakref.ref[Tensor], Source, int]] = {}
        self._owners: list[ModulePass | None] = []  # item n: the call that made autograd node `_first + n`
        self._behind: dict[int, Sources] = {}  # number of an autograd node -> what `_walk` found
        self._first = first  # the number of the first node that a call may own

    def clear(self) -> None:
        del self._hook  # the hook refers to the object that watches
        self._made.clear()
        self._owners.clear()
        self._behind.clear()

    def claim(self, tensor: Tensor, source: Source) -> None:
        """Note that `source` is the input `tensor`, or the call that returned `tensor`."""
        self._made[id(tensor)] = (weakref.ref(tensor), source, version_of(tensor))

    def known(self, tensor: Tensor, *, as_it_was: bool = True) -> Source | None:
        """Return the source of a tensor if it was claimed and, with `as_it_was`, not written to since; else None."""
        found = self._made.get(id(tensor))
        if found is None or found[0]() is not tensor or (as_it_was and found[2] != version_of(tensor)):
            return None
        return found[1]

    def finish(self, first: int, end: int, one: ModulePass) -> None:
        """Called when a call has returned: it owns the nodes made since `first`, except the nodes that calls inside it own."""
        owners = self._owners
        first, end = first - self._first, end - self._first
        if not one.has_inner and len(owners) <= first:
            owners += [None] * (first - len(owners)) + [one] * (end - first)
            return
        owners += [None] * (end - len(owners))
        for number in range(first, end):
            if owners[number] is None:
                owners[number] = one
        if self._behind:
            self._behind = {number: found for number, found in self._behind.items() if number < first}

    def producers(self, tensor: Tensor, around: ModulePass | None) -> Sources:
        """Find the calls and inputs that a tensor comes from: by the tensor itself, autograd's graph, or the base of a view.

        The own code of the call `around` may have made the tensor.
        """
        known = self.known(tensor)
        node = node_of(tensor) if known is None else None
        if node is None:
            known = known or self.known(tensor, as_it_was=False)
            base = base_of(tensor) if known is None else None
            if base is not None:
                known = self.known(base, as_it_was=False)
            return {known: None} if known is not None else {}
        number = sequence_number(node) - self._first
        found = self._behind.get(number)
        if found is None:
            found = self._behind[number] = self._walk(node, around)
        return found

    def _walk(self, node: Node, around: ModulePass | None) -> Sources:
        """Follow autograd's graph from a node to finished calls. Nodes on the way belong to the call around them."""
        found: Sources = {}
        seen: set[Node] = set()
        waiting = [node]
        while waiting:
            here = waiting.pop()
            if here is None or here in seen:
                continue
            seen.add(here)
            number = sequence_number(here) - self._first
            if number > LEAF - self._first:
                known = self.known(here.variable)
                if known is not None:
                    found[known] = None
            elif number >= 0:
                owner = self._owners[number] if number < len(self._owners) else None
                if owner is not None and owner is not around and owner.ended:
                    found[owner] = None
                    continue
                if owner is None and around is not None:
                    self._owners += [None] * (number + 1 - len(self._owners))
                    self._owners[number] = around
                    self._hook(here, around)
                waiting += [following for following, _ in here.next_functions]
        return found


def last_nodes(first: int, results: list[Node]) -> list[Node]:
    """Find the nodes since `first` whose gradients leave the call; if there are none, the nodes that lead to parameters."""
    seen = set(results)
    waiting = list(seen)
    leaving: list[Node] = []
    ending: list[Node] = []
    while waiting:
        node = waiting.pop()
        is_leaving = is_ending = False
        for following, _ in node.next_functions:
            if following is None or following in seen:
                continue
            number = sequence_number(following)
            if number > LEAF:
                is_ending = True
            elif number < first:
                is_leaving = True
            else:
                seen.add(following)
                waiting.append(following)
        if is_leaving:
            leaving.append(node)
        elif is_ending:
            ending.append(node)
    return leaving or ending or results


# Watches modules only: two global hooks for the forward pass, and hooks on autograd nodes for the backward pass.
#
# No torch function is watched, so the cost is microseconds per module call, not per operation. Torch's sequence numbers show
# which module created an autograd node. Neither tensors nor nodes are kept alive; a hook is freed with the graph it is on.

_MANY = 8  # if a layer made more nodes than this, hook the nodes of its arguments instead of searching its nodes


def watch_modules(model: Module, *, timing: bool = True) -> Managed[ModuleCalls]:
    """Record every module call in a `with` block: its shapes, bytes and times, forward and backward.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
    >>> with torcheer.watch_modules(model) as calls:
    ...     model(torch.ones(1, 2)).sum().backward()
    >>> [(call.label, call.output_shapes, len(call.backward)) for call in calls]
    [(':1', [(1, 3)], 1), ('0:1', [(1, 3)], 1), ('1:1', [(1, 3)], 1)]

    Args:
        model: the model; other modules that run in the block are watched too, and named after their classes.
        timing: if CUDA is in use, measure times by events on the device, which are read on first access to the calls.

    Nothing is restored after the block, and no tensors are kept. Compiled models run uncompiled. Limits: work on other
    threads is not seen; without gradients, a call's `sources` are known only if it received the same tensor that another
    call returned, or a view of it.
    """
    refuse_inside_compiled_code()
    if not isinstance(model, Module):
        raise InvalidArgument(f"watch_modules() takes an nn.Module; got {type(model).__name__}.")
    return _Watcher(model, timing=timing)


class _Running:
    """A module call with the data that its backward passes need."""

    __slots__ = ("entering", "events", "first", "module", "one", "with_grad", "with_grad_out")

    def __init__(self, one: ModulePass, module: Module, first: int) -> None:
        self.one = one
        self.module = module
        self.first = first  # torch's number of the first autograd node that the call may have made
        self.entering: Sources = {}
        self.events: tuple[Any, Any] | None = None  # events of the device, to be read at the end
        self.with_grad: list[tuple[Shape, int]] = []  # the shapes and bytes of the inputs that require gradients
        self.with_grad_out: list[Shape] = []  # the shapes of the results that require gradients


class _Watcher(Managed[ModuleCalls]):
    """The block of `watch_modules`: writes down every module call of this thread."""

    def __init__(self, model: Module, *, timing: bool) -> None:
        self._inputs: list[ModuleInput] = []
        self._passes: list[ModulePass] = []
        self._ran: list[_Running] = []
        self._timing = timing
        self._thread = get_ident()
        # id of a module -> its address and the module; the address is None for wrappers
        self._addresses: dict[int, tuple[str | None, Module]] = {}
        self._counts: dict[str, int] = {}
        self._stack: list[_Running] = []
        self._calls = ModuleCalls(self._passes, self._inputs, self._settle)
        self._unexplained: list[tuple[weakref.ref[Tensor], Sources, Shape]] = []
        self._is_on = False
        self._events: dict[ModuleBackward, list[Any]] = defaultdict(list)  # backward pass -> its device events: begin and end
        # torch's number of a backward pass, counted in the whole process -> its number in this run
        self._turns: dict[int, int] = {}
        self._cuda = False
        self._register(model, "")

    def _register(self, root: Module, prefix: str) -> None:
        for address, module in addressed(root, prefix, self._addresses):
            self._addresses[id(module)] = (address, module)

    def _begin(self) -> ModuleCalls:
        has_wrappers = any(address is None for address, _ in self._addresses.values())
        with ExitStack() as undo:
            undo.enter_context(thread_as_found())
            undo.enter_context(run_uncompiled(has_wrappers=has_wrappers))
            undo.enter_context(global_module_hooks(self._enter, self._exit))
            self._ownership = Ownership(self._hook, next_sequence_number())
            self._cuda = self._timing and cuda_is_used()
            self._is_on = self._calls.is_running = True
            self._undo = undo.pop_all()
        self._calls.started = now()
        return self._calls

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        calls = self._calls
        del self._calls  # the callback refers to this object
        calls.ended = now()
        self._undo.__exit__(kind, error, trace)
        self._is_on = calls.is_running = False
        for container in (self._stack, self._addresses, self._ownership, self._unexplained):
            container.clear()

    def _settle(self) -> None:
        """Compute backward passes of modules with inner calls, and times of the device, which are known only at the end."""
        if self._cuda:
            torch.cuda.synchronize()
        params: dict[str, list[Param]] = {}
        for running in reversed(self._ran):  # inner calls come after the calls around them
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
        """Extend the backward passes of the call around `one`: each must last from the first to the last pass inside it."""
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
                running.events = device_event(), _event()
            one.started = now()

    def _exit(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any = None) -> None:
        ended = now()
        stack = self._stack
        if get_ident() != self._thread or not stack:
            return
        if not any(running.module is module for running in stack):
            return
        while stack[-1].module is not module:  # an interrupt left these calls without an end
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
        """Called when the outermost call ends, because its keyword arguments are known only then: note which calls got them."""
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
        """Hook the nodes where gradients leave a layer: its last nodes or, if it made many nodes, those of its arguments."""
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
        """Hook a node that was made by the own code of a call that has inner calls."""
        node.register_hook(partial(self._backward_ends, one))

    def _backward_begins(self, one: ModulePass, gradients: object) -> None:
        if self._is_on:
            self._passed(one)

    def _backward_ended(self, one: ModulePass, gradients: object) -> None:
        if self._turn() in one.backward:  # otherwise the gradient did not come through this layer
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
        """The number of the running backward pass among the backward passes of this run, from 1."""
        return self._turns.setdefault(current_graph_task(), len(self._turns) + 1)

    def _passed(self, one: ModulePass) -> ModuleBackward:
        turn = self._turn()
        passed = one.backward.get(turn)
        if passed is None:
            time = now()
            passed = one.backward[turn] = ModuleBackward(time, time)
            if self._cuda:
                self._events[passed].append(device_event())
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


# The module calls of a history, and the data that flowed between them, forward and backward.

_OF_OPERATIONS = ("result", "inside", "derivative")  # roles of nodes that belong to an operation


def module_calls_of(run: LoggedRun) -> ModuleCalls:
    """Every module call of a history."""
    return _Logged(run).calls()


class _Logged:
    def __init__(self, run: LoggedRun) -> None:
        self._run = run
        self._index, self._log = run.index, run.log
        self._on_device = run.options.time_on_device and torch.cuda.is_available()
        self._passes: list[ModulePass] = []  # in the order in which the log numbers the calls
        self._inputs: dict[int, ModuleInput] = {}  # number of an input's operation -> the input

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
        one.params = own_params(self._index, call.address)
        if self._on_device:  # the time of a call is the sum over the operations inside, each torch call once
            inside = records[call.first : call.end if call.end >= 0 else len(records)]
            one.device_seconds = sum({record.call: record.elapsed for record in inside}.values()) / 1e9
        return one

    def _find_sources(self, call: ModuleCall) -> None:
        """Find the calls and inputs whose tensors a call received, directly or through operations between modules."""
        one = self._passes[call.number]
        numbers: Iterable[int] = call.inputs
        if one.has_inner:  # if a call has inner calls, only the results that its own code made count
            numbers = [n for n in call.outputs if n >= 0 and self._log.operations[n].module is call]
        for number in numbers:
            if number >= 0:
                shape = self._log.operations[number].shape
                for source in self._sources(number, call):
                    one.sources.setdefault(source, shape)

    def _sources(self, number: int, reader: ModuleCall) -> dict[ModulePass | ModuleInput, None]:
        """The calls and inputs that tensor `number` was computed from, except `reader` and the calls around it."""
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
        reached: set[int] = set()  # the operations whose tensors received a gradient
        for node in record.nodes:
            if node.role != "other":
                reached.update((node.operation, *node.tensors))
            if node.role in _OF_OPERATIONS:
                self._extend(number, node)
        operations = self._log.operations
        for call in self._log.modules:
            passed = self._passes[call.number].backward.get(number)
            if passed is not None:  # results and inputs that have a gradient
                passed.grad_output_shapes = [operations[n].shape for n in dict.fromkeys(call.outputs) if n in reached]
                made = [operations[n] for n in dict.fromkeys(call.inputs) if n >= 0 and n in reached]
                passed.grad_input_shapes = [one.shape for one in made]
                passed.bytes = sum(bytes_of(one.shape, one.dtype) for one in made)

    def _extend(self, number: int, node: NodeRecord) -> None:
        """Add an operation's node to the backward pass of every module call that the operation ran in."""
        call = self._log.operations[node.operation].module
        ended = node.started + node.span
        for around in call.stack() if call is not None else ():
            passed = self._passes[around.number].backward.setdefault(number, ModuleBackward(node.started, ended))
            passed.started, passed.ended = min(passed.started, node.started), max(passed.ended, ended)
            if node.is_device_time:
                passed.device_seconds = (passed.device_seconds or 0.0) + node.elapsed / 1e9
