"""Begins and ends one recording, and restores everything the pass changed."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from types import CodeType, TracebackType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import Managed
from .._torch.addresses import roots_of, without_parallelism
from .._torch.containers import Path, find_tensors
from .._torch.functions.facts import Origin
from .._torch.gc_pause import fewer_collections
from .._torch.inputs import taken_by
from .._torch.internals import DisableTorchFunction, forget_custom_functions, may_be_compiled, missing_notes, run_uncompiled
from .._torch.left_as_found import deeper_calls, left_as_found, told_before_restoring
from .._torch.randomness import RandomState
from .._torch.restore_state import StateRestorer
from .._torch.source_code import CallSites, Site
from .._torch.thread_state import thread_as_found
from ..errors import RecordingsOverlap
from ..log.records import Log
from ..log.templates import result_items
from .fused import leave_all
from .gradients import DeviceTimer
from .interceptor import Interceptor
from .keeper import Keeper, Policy
from .modules import ModuleWatcher
from .recorder import Recorder
from .refusals import refuse_inside_vmap, refuse_unrun

_OPTIMIZERS = os.path.dirname(inspect.getfile(torch.optim.Optimizer))

_running: list[Session] = []  # the sessions that are recording now, the latest last
_around: ContextVar[tuple[object, ...]] = ContextVar("recordings", default=())  # a mark for each recording around this code
Start = int | RandomState | None  # a seed, or the random state to start from; None: the present state


class Session(Managed["Session"]):
    """One recording. Use it once: either `run` a model, or enter it as a context manager."""

    def __init__(
        self,
        log: Log,
        policy: Policy,
        outermost: CodeType | None = None,
        *,
        time_on_device: bool = False,
        warns: bool = True,
        backs_up_everything: bool = False,
    ) -> None:
        self.log = log
        log.notes += missing_notes()
        forget_custom_functions()
        self.sites = CallSites(log.sites, log.codes, outermost)
        self.keeper = Keeper(log, policy)
        self.recorder = Recorder(log, self.keeper, warns)
        timer = DeviceTimer() if time_on_device and torch.cuda.is_available() else None
        if timer is not None and log.backward is not None:
            log.backward.on_device = True
        self.interceptor = Interceptor(self.recorder, self.sites, None, timer)
        self.watcher = ModuleWatcher(self.recorder, self.sites, self.interceptor)
        self.began = 0.0  # when watching began (`time.perf_counter`)
        self.mark = object()
        self.task = _current_task()
        self._undo = contextlib.ExitStack()
        # True: copy all tensors before the pass, so that writes that nobody sees are undone as well
        self._backs_up_everything = backs_up_everything

    def _begin(self) -> Session:
        refuse_inside_vmap()
        with contextlib.ExitStack() as undo:
            undo.enter_context(thread_as_found())
            undo.enter_context(fewer_collections())
            undo.enter_context(deeper_calls())
            self.log.is_recording = True
            self.log.random_state = RandomState.now()
            undo.enter_context(_Watching(self))
            self._undo = undo.pop_all()
        return self

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.__exit__(kind, error, trace)
        with DisableTorchFunction():
            if error is None:
                self._find_outputs()
            self._close(error)

    def run(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], start: Start) -> None:
        """Run `model` once and record it. Afterwards nothing outside the log has changed.

        Call this inside `thread_as_found`.
        """
        refuse_inside_vmap()
        with fewer_collections():
            self._run(without_parallelism(model), args, kwargs, start)

    def _run(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], start: Start) -> None:
        entered = perf_counter()
        self.sites.stop_before(Session._call.__code__)
        with DisableTorchFunction():
            inputs = [*find_tensors(args, ("args",)), *find_tensors(kwargs, ("kwargs",))]
            modules = self._register(model)
        self.log.argument_names = taken_by(model).positional_names
        tensors = [tensor for _, tensor in inputs]
        with left_as_found(model, modules, tensors, (args, kwargs), self.log.notes) as undone:
            self._leave_as_found(undone, entered)
            self._prepare(undone.restorer, inputs)
            self.log.random_seed = start if isinstance(start, int) else None
            undone.random.draws = self.interceptor.draws
            if start is not None:
                undone.random.start_from(start)
            self.log.random_state = RandomState.now() if start is not None else undone.random.before
            result = self._call(model, undone.args, undone.kwargs)
            refuse_unrun(result, self.log)
            with DisableTorchFunction():
                self._note_outputs(result)
            del result

    def _prepare(self, restorer: StateRestorer, inputs: list[tuple[Path, Tensor]]) -> None:
        with DisableTorchFunction():
            if restorer.lazy:
                self.log.replace_states(restorer.lazy)
                self.recorder.registered.update(id(twin) for _, twin in restorer.lazy)
            if self._backs_up_everything:
                restorer.back_up_everything()
            self.interceptor.restorer = self.recorder.restorer = restorer
            for path, tensor in inputs:
                self.recorder.add_input(tensor, path)

    def _note_outputs(self, result: Any) -> None:
        outputs = list(find_tensors(result))
        self.log.result = result_items(result)
        self.recorder.add_outputs(outputs)
        if self.recorder.gradients is not None:
            self.recorder.gradients.outputs = [tensor for _, tensor in outputs]
            self.recorder.gradients.watch(self.recorder.gradients.outputs)

    def _leave_as_found(self, undone: left_as_found, entered: float) -> None:
        """Arrange the end of the pass: copy kept tensors before anything is restored, then close the log."""
        restorer = undone.restorer
        undone.first.callback(self._look_for_moves, undone)
        undone.first.callback(lambda: list(map(self.keeper.before_write, restorer.written_storages())))
        undone.first.callback(self._keep_left_behind, undone)
        if restorer.sharded_modules():
            undone.first.callback(self.recorder.outside.keep_passing_states)
        undone.last.callback(self._note_times, entered)
        undone.last.callback(lambda: self._close(undone.error))
        undone.last.callback(self._note_lazy_states, restorer)

    def expect_restoring(self, restorer: StateRestorer) -> None:
        """Called when a pass inside this recording ends: no watched call undoes its writes, so look for changes later."""
        if self.watcher.is_here():
            self.watcher.cut_short(sys._getframe())
            for storage in restorer.written_storages():
                self.keeper.before_write(storage)
            for tensor in restorer.backed_up:
                if self.recorder.table.find(tensor) is not None:
                    self.recorder.memory.lend(tensor, "outside")

    def _look_for_moves(self, undone: left_as_found) -> None:
        """Note new version counts of kept aliases: restoring a tensor whose memory was replaced (`t.data = …`) changes them."""
        if any(function.name == "set_data" for function in self.log.functions):
            undone.last.callback(self.keeper.count_again, self.keeper.intact())

    def _keep_left_behind(self, undone: left_as_found) -> None:
        """If gradients are followed, remember what the pass changed, because backward passes need that state."""
        if self.recorder.gradients is not None and undone.error is None:
            self.recorder.gradients.keep_left_behind(undone.restorer, undone.random.before)

    def _note_times(self, entered: float) -> None:
        now = perf_counter()
        started, forward = self.began or now, self.log.seconds.get("forward", 0.0)
        self.log.seconds.update(setup=started - entered, forward=forward, cleanup=now - started - forward)

    def _note_lazy_states(self, restorer: StateRestorer) -> None:
        """Mark parameters of lazy modules: until their first use they had no elements."""
        twins = {id(twin) for _, twin in restorer.lazy}
        if twins:
            states = self.log.states
            states.before.update({state.number: state.tensor.new_empty(0) for state in states if id(state.tensor) in twins})

    def _register(self, model: Callable[..., Any]) -> list[Module]:
        return [module for root, prefix in roots_of(model) for module in self.watcher.register(root, prefix)]

    def _call(self, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with _Watching(self):
            return model(*args, **kwargs)

    def _find_outputs(self) -> None:
        """In `recording()`, record the results that no operation used and that the program still holds as outputs.

        Tensors that an optimizer made are its state and do not count.
        """
        operations = self.log.operations
        consumed = {parent for record in operations for parent in record.parents}
        state = set(map(id, self.log.states.tensors))
        held = []
        for entry in list(self.recorder.table.entries.values()):
            tensor = entry()
            if tensor is None or id(tensor) in state or entry.number < 0 or entry.number in consumed:
                continue
            record = operations[entry.number]
            if record.origin in (Origin.OPERATION, Origin.OPAQUE, Origin.ALIAS) and not _ran_in_optimizer(record.site):
                held.append((entry.number, tensor))
        self.recorder.add_outputs([((), tensor) for _, tensor in sorted(held, key=lambda pair: pair[0])])

    def _close(self, error: BaseException | None) -> None:
        if error is not None:
            self.recorder.cut_unfinished()
        if self.interceptor.timer is not None:
            self.interceptor.timer.settle(self.log)
        self.keeper.settle(self.recorder.table.live_storages())
        self.recorder.close()
        self.log.is_complete = error is None


class _Watching(Managed[None]):
    """A block that records every operation this thread runs."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._undo = contextlib.ExitStack()

    def _begin(self) -> None:
        session = self._session
        interceptor, restorer = session.interceptor, session.interceptor.restorer
        _refuse_overlap(session)
        session.began = perf_counter()
        with contextlib.ExitStack() as undo:
            if may_be_compiled():
                # Our hooks ignore the wrapper of a compiled module, so torch's warning about global hooks on it is silenced.
                undo.enter_context(run_uncompiled(has_wrappers=session.recorder.has_wrappers))
            undo.enter_context(session.watcher.watching())
            if restorer is not None:
                restorer.hooks_start_here()
            undo.enter_context(interceptor)
            undo.callback(leave_all, interceptor)  # undoes the switches of modules that an interrupt left without an exit
            _running.append(session)
            undo.callback(_running.remove, session)
            told_before_restoring.append(session.expect_restoring)
            undo.callback(told_before_restoring.remove, session.expect_restoring)
            _around.set((*_around.get(), session.mark))
            undo.callback(lambda: _around.set(tuple(one for one in _around.get() if one is not session.mark)))
            self._undo = undo.pop_all()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()
        log, interceptor = self._session.log, self._session.interceptor
        if error is not None:
            self._session.recorder.cut_unfinished()
        log.seconds["forward"] = perf_counter() - self._session.began
        noted = interceptor.failure
        if error is not None and noted is not None and noted[0] in _causes(error):
            log.failure = noted[1]
        interceptor.failure = None


def _refuse_overlap(session: Session) -> None:
    """Raise if another asyncio task is recording: calls of the two tasks cannot be told apart."""
    for other in _running if session.log.is_recording else ():
        is_another_task = other.task is not None and other.task is not session.task
        if other.log.is_recording and is_another_task and other.watcher.is_here() and other.mark not in _around.get():
            raise RecordingsOverlap(
                "a recording of another asyncio task of this thread is running, and each would hold what both tasks run. Let "
                "the tasks take turns, by an asyncio.Lock around the recordings, or record without an await in the block."
            )


def _current_task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no event loop runs
        return None


def _ran_in_optimizer(site: Site | None) -> bool:
    """True if an optimizer of torch, or the `step` of another optimizer, ran this site itself, not in a closure."""
    if site is None:
        return False
    functions = site.functions
    if functions and functions[0].function.rpartition(".")[2] == "step":
        functions = functions[1:]
    return bool(functions) and functions[0].file.startswith(_OPTIMIZERS)


def note_change(
    tensor: Tensor, what: object, where: object, module: Module | None, kind: Literal["output", "input", "function"], part: int
) -> None:
    """Note in all recordings that an intervention replaced a value by `tensor`.

    Args:
        tensor: the value that the model continues with.
        what, where: the change and its place, made into text only if something is recording.
        module: the module in which the value was replaced.
        kind: what the value was: an output of `module`, an input, or an output of a function.
        part: the number of the tensor among the outputs or inputs.
    """
    for session in _running:
        if session.watcher.is_here():
            with DisableTorchFunction():
                note = f"an intervention changed {where}, by {what}"
                if note not in session.log.notes:
                    session.log.notes.append(note)
                number = session.recorder.ref(tensor)
                if number >= 0:
                    session.log.detail(number).changed = str(what)
                if kind != "function":
                    session.watcher.exchange(module, part, number, is_input=kind == "input")


def _causes(error: BaseException) -> list[BaseException]:
    """The error and all its causes and contexts."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        here = waiting.pop()
        if here is not None and here not in found:
            found.append(here)
            waiting += [here.__cause__, here.__context__]
    return found
