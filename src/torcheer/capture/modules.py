"""Watches modules begin and end, by two global hooks. `_torch/addresses.py` says how modules get their addresses."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, filterfalse
from threading import current_thread, get_ident
from time import perf_counter_ns as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import cleaning
from .._torch.addresses import addressed, class_name, free_address
from .._torch.containers import PLAIN, Other, find_tensors, tensors_in
from .._torch.internals import (
    DisableTorchFunction,
    global_module_hooks,
    is_functorch_wrapped,
    is_replica,
    is_transforming,
    outside_dispatch_modes,
    own_buffers,
    own_parameters,
    writes_in_place,
)
from .._torch.sentinels import TENSOR
from .._torch.source_code import MODULE_CALL, CallSites, Forward
from .._torch.tensor_table import storage_of
from ..log.records import UNSAVED, ModuleCall, RegisteredModule
from ..log.templates import outline
from .fused import decision_of, is_about_to_fuse, leave, named_arguments, switches_here, watch_functions, watch_fused
from .interceptor import Interceptor
from .recorder import Recorder

_ONE_TENSOR = (TENSOR,)
_NONE: dict[str, Any] = {}


class ModuleWatcher:
    """Keeps the stack of running modules, by hooks that are called when a module begins and ends."""

    def __init__(self, recorder: Recorder, sites: CallSites, interceptor: Interceptor) -> None:
        self.recorder = recorder
        self.log = recorder.log
        self.sites = sites
        self.interceptor = interceptor
        self._thread = get_ident()
        self._registered: dict[int, RegisteredModule | None] = {}  # id of a module -> its registration; None for wrappers
        self._known = recorder.modules  # all registered modules, kept alive because their ids are keys
        self._forwards: dict[type, Forward] = {}
        self._others: dict[type, Other] = {}  # class -> placeholder for arguments that are not tensors
        self._running = [sites.forward]  # the forwards of the running modules
        self._frames: list[FrameType] = []  # for each running call: the frame of torch that runs it
        self._exits = 0
        self._switches = switches_here()

    def register(self, root: Module, prefix: str, *, is_made_running: bool = False) -> list[Module]:
        """Give every module in `root` its address, in registration order. Returns the new modules."""
        new: list[Module] = []
        known, registered = self._registered, self.log.registered
        in_transform = is_transforming()
        for address, module in addressed(root, prefix, known, self._note_other_address):
            new.append(module)
            if address is None:
                known[id(module)] = None
                self.recorder.has_wrappers = True
                continue
            parameters, buffers = own_parameters(module), own_buffers(module)
            if in_transform:
                parameters, buffers = _outside_transforms(parameters), _outside_transforms(buffers)
            if parameters:
                met = filterfalse(self.recorder.is_computed, parameters.values()) if is_made_running else parameters.values()
                self.recorder.registered.update(map(id, met))
            if buffers:
                self.recorder.registered.update(map(id, buffers.values()))
            known[id(module)] = registered[address] = RegisteredModule(
                address,
                class_name(module),
                _copied(parameters) if parameters else _NONE,
                _copied(buffers) if buffers else _NONE,
                address == prefix,
                type(module),
                (),
                0,
                is_made_running and address == prefix,
            )
        self._known += new
        return new

    def _note_other_address(self, module: Module, other: str) -> None:
        """Note that a registered module has another address, too."""
        known = self._registered.get(id(module))
        if known is not None and known.address != other and other not in known.other_addresses:
            known.other_addresses += (other,)

    @cleaning
    def watching(self) -> Iterator[None]:
        """Inside this block, every module call of this thread is watched."""
        self.sites.when_elsewhere = self.cut_short
        with global_module_hooks(self._enter, self._exit):
            yield
        self._registered.clear()
        self._known.clear()
        self._frames.clear()
        self.sites.call = self.sites.when_elsewhere = None  # they refer back to this object, and to tensors

    def _enter(self, module: Module, args: tuple[Any, ...]) -> None:
        if get_ident() != self._thread:
            self._note_other_thread(module)
            return
        if self._switches:
            watch_functions(module)
        try:
            registered = self._registered[id(module)]
        except KeyError:
            self.register(module, self.free_name(module), is_made_running=True)
            registered = self._registered[id(module)]
        if registered is None:
            return
        recorder, log, sites = self.recorder, self.log, self.sites
        if log.is_recording and not recorder.stack:
            self._take_inputs(args, sys._getframe(1))
        registered.calls = count = registered.calls + 1
        address, name = registered.address, registered.class_name
        own = frame = sys._getframe(1)
        while id(frame.f_code) in MODULE_CALL and (caller := frame.f_back) is not None:
            own, frame = frame, caller
        known = sites.forward.direct.get(frame.f_lasti) if frame.f_code is sites.forward.code else None
        site = log.sites[known] if known is not None else sites.around(frame)
        stack = recorder.stack  # after the site, whose search may end calls
        outer = stack[-1] if stack else None
        try:
            training = module.training
        except AttributeError:  # frozen TorchScript
            training = False
        call = ModuleCall(len(log.modules), address, name, count, outer, site, training, len(log.rows))
        log.modules.append(call)
        given: Sequence[Tensor] = args
        if len(args) == 1 and type(args[0]) is Tensor:
            entry = recorder.table.entries.get(id(args[0]))
            if entry is None or entry() is not args[0]:
                entry = recorder.explain(args[0])
            if entry.storage in recorder.table.last_write:
                entry = recorder.current(args[0], entry)
            call.args = _ONE_TENSOR
            call.inputs = (entry.number,)
        elif args:
            given = self._read(call, args, {})
        selection = recorder.keeper.selection
        if selection is not None and call.inputs and selection.entering(call):
            self._keep_late(call.inputs, given)
        cls = type(module)
        if name != cls.__name__ and isinstance(module, torch.jit.ScriptModule):
            self._back_up_script(module, args)
        stack.append(call)
        recorder.running.append(module)
        forward = self._forwards.get(cls) or self._forward_code(cls)
        if forward in self._running:  # the module calls itself: its code does not show which of the two calls runs
            forward = Forward(None, forward.decides)
        self._running.append(forward)
        self._frames.append(own)
        sites.forward, sites.call = forward, own
        if forward.decides is not None and is_about_to_fuse(module, forward.decides, args, sys._getframe(1)):
            watch_fused(module, self.interceptor)
        call.started = now()

    def is_here(self) -> bool:
        """True if the current thread is the watched thread."""
        return get_ident() == self._thread

    def exchange(self, module: Module | None, part: int, number: int, *, is_input: bool) -> None:
        """Called when an intervention replaced tensor `part` among a module's inputs or outputs by operation `number`."""
        stack = self.recorder.stack
        left = next((call for call in reversed(self.log.modules) if call.exit == self._exits), None) if not is_input else None
        call = (stack[-1] if stack else None) if is_input else left
        registered = self._registered.get(id(module))
        if call is None or registered is None or registered.address != call.address:
            return
        tensors = list(call.inputs if is_input else call.outputs)
        if part < len(tensors):  # keyword arguments are read when the call ends
            tensors[part] = number
        if is_input:
            call.inputs = tuple(tensors)
        else:
            call.outputs = tuple(tensors)

    def _note_other_thread(self, module: Module) -> None:
        """Report a module on another thread if it is in this model or is a replica, or if this pass started the thread."""
        here = self._registered.get(id(module))
        is_ours = id(module) in self._registered or is_replica(module)
        if is_ours or self.recorder.unseen.is_new(current_thread()):
            self.recorder.unseen.ran_elsewhere(here.address if here is not None and here.address else type(module).__name__)

    def _exit(self, module: Module, args: tuple[Any, ...], *rest: Any) -> None:
        ended = now()
        recorder = self.recorder
        running = recorder.running
        if get_ident() != self._thread or not running:
            return
        if self._switches:
            leave(module)
        times = sum([module is one for one in running])
        if not times:
            return
        if times > 1:
            self.cut_short(sys._getframe(1))
        while running[-1] is not module:
            self._cut_short()
        running.pop()
        call = recorder.stack.pop()
        self._leave()
        call.elapsed = ended - call.started
        self._exits = call.exit = self._exits + 1
        selection = recorder.keeper.selection
        if len(rest) == 2 and rest[0]:
            known = len(call.inputs)
            named = self._read(call, (), rest[0])
            if selection is not None and selection.entering(call):
                self._keep_late(call.inputs[known:], named)
        result = rest[-1]
        find = recorder.table.find
        if type(result) is Tensor:
            entry = recorder.table.entries.get(id(result))
            if entry is None or entry() is not result:
                entry = recorder.explain(result, call)
            if entry.storage in recorder.table.last_write:
                entry = recorder.current(result, entry)
            call.outputs = (entry.number,)
        elif result is not None:
            call.outputs = tuple([recorder.current(t, find(t) or recorder.explain(t, call)).number for t in tensors_in(result)])
        call.end = len(self.log.rows)
        handed_back = recorder.table.handed_back
        if handed_back and handed_back[-1][2] >= call.first:
            recorder.table.leave(call.first, call.outputs)
        if selection is not None and call.outputs and selection.leaving(call):
            self._keep_late(call.outputs, tensors_in(result))

    def _leave(self) -> None:
        self._running.pop()
        self._frames.pop()
        self.sites.forward, self.sites.call = self._running[-1], self._frames[-1] if self._frames else None

    def _cut_short(self) -> None:
        """End the latest call, which an interrupt left without an exit: torch runs hooks after an `Exception` only."""
        self.recorder.running.pop()
        self._leave()
        call = self.recorder.stack.pop()
        self._exits = call.exit = self._exits + 1
        call.elapsed, call.end = now() - call.started, len(self.log.rows)

    def cut_short(self, frame: FrameType | None) -> None:
        """End the latest calls that are not among the callers of `frame`.

        An interrupt left them: the model caught it, or `activation` raised it as soon as it had its values.
        """
        active = set()
        while frame is not None:
            active.add(id(frame))
            frame = frame.f_back
        while self._frames and id(self._frames[-1]) not in active:
            self._cut_short()

    def _take_inputs(self, args: tuple[Any, ...], frame: FrameType) -> None:
        """In `recording()`, log the tensor arguments of an outermost module call as inputs."""
        with DisableTorchFunction():
            for _, tensor in find_tensors((args, named_arguments(frame)), into_objects=False):
                self.recorder.enters(tensor)

    def _forward_code(self, cls: type) -> Forward:
        code = getattr(getattr(cls, "forward", None), "__code__", None)
        forward = self._forwards[cls] = Forward(code, decision_of(cls))
        return forward

    def _keep_late(self, numbers: Iterable[int], tensors: Iterable[Tensor]) -> None:
        """Keep operations that had run when their results entered or left a selected module."""
        keeper = self.recorder.keeper
        with DisableTorchFunction(), outside_dispatch_modes():
            for number, tensor in zip(numbers, tensors, strict=True):
                if number >= 0 and self.log.values[number] is UNSAVED:
                    keeper.keep_late(number, tensor)

    def _read(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """Add templates and record numbers of the arguments to `call`: positional first, then keyword arguments.

        Returns the tensors among them.
        """
        tensors: list[Tensor] = []
        outlines: list[Any] = []
        for value in (*args, *kwargs.values()):
            cls = type(value)
            if cls in PLAIN:
                outlines.append(value)
            elif cls is Tensor:
                tensors.append(value)
                outlines.append(TENSOR)
            elif cls in self._others:
                outlines.append(self._others[cls])
            else:
                outlines.append(outline(value, tensors.append))
                if type(outlines[-1]) is Other:
                    self._others[cls] = outlines[-1]
        call.args += tuple(outlines)
        call.names += tuple(kwargs)
        if tensors:
            recorder = self.recorder
            find = recorder.table.find
            call.inputs += tuple([recorder.current(t, find(t) or recorder.explain(t)).number for t in tensors])
        return tensors

    def free_name(self, module: Module) -> str:
        """An unused address for a new root."""
        stack = self.recorder.stack
        return free_address(module, stack[-1].address if stack else "", self.log.registered)

    def _back_up_script(self, module: Module, args: tuple[Any, ...]) -> None:
        """Copy everything that TorchScript may write to, because writes inside it are not seen."""
        restorer = self.recorder.restorer
        if restorer is None:
            return
        with DisableTorchFunction():
            restorer.back_up_script(module.modules())
            given = filter(None, map(storage_of, tensors_in(args)))
            restorer.back_up(chain.from_iterable(map(self.recorder.outside.living_in, given)), is_suspected=True)
            if writes_in_place(module):
                for tensor in tensors_in(args):
                    self.recorder.memory.lend(tensor, "script")


def _outside_transforms(registered: dict[str, Any]) -> dict[str, Any]:
    """Remove tensors that `torch.func` wraps from parameters or buffers: `functional_call` puts them there for one call."""
    return {name: tensor for name, tensor in registered.items() if tensor is None or not is_functorch_wrapped(tensor)}


def _copied(registered: Any) -> dict[str, Any]:
    return registered.copy() if type(registered) is dict else dict(registered.items())
