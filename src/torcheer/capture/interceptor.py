"""The `TorchFunctionMode` that turns torch calls into records.

`ArgumentReader` reads the arguments and protects memory about to be overwritten, `CallWriter` writes the rows, `DrawWatch`
notices changes of the random state, `CollectiveWatch` counts collectives. The hot path in `Interceptor` does all of it at
once for an ordinary operation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from ctypes import string_at
from time import perf_counter_ns as now
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from .._torch.containers import PLAIN, find_tensors, tensors_in
from .._torch.functions import facts, groups
from .._torch.functions.facts import Kind, TorchFunction
from .._torch.internals import (
    C_MODULE,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    count_collectives,
    count_function_modes,
    is_any_autocast_enabled,
    is_functorch_wrapped,
    pop_function_mode,
    push_function_mode,
    storage_address,
    take_off_function_mode,
    write_count,
)
from .._torch.randomness import RandomState
from .._torch.restore_state import StateRestorer
from .._torch.sentinels import TENSOR
from .._torch.source_code import CallSites, is_in_custom_function
from .._torch.tensor_table import Entry, memory_of, storages_of
from .._torch.thread_state import autocast_state
from ..log.records import LOST, UNSAVED, Composite, Details, Failure, Held, Log, PythonReadRecord, facts_of
from ..log.templates import template
from .fused import NOTE
from .gradients import DeviceTimer, device_event
from .recorder import Recorder


def without_process_groups(value: Any) -> Any:
    """Replace live objects in a collective's argument: process groups by their names, torch's C++ objects by text."""
    if isinstance(value, (list, tuple)):
        return type(value)(without_process_groups(item) for item in value)
    if hasattr(value, "group_name"):  # a process group
        return value.group_name
    return str(value) if type(value).__module__.startswith(C_MODULE) else value


class CollectiveWatch:
    """Counts the collectives in which this process takes part during a recording.

    Python functions of `torch.distributed` are watched like any torch function. Collectives started elsewhere (methods of a
    process group, DTensor) show in the sequence numbers of the process groups.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = self._known = count_collectives()

    @classmethod
    def where_possible(cls, recorder: Recorder) -> CollectiveWatch | None:
        """A `CollectiveWatch`; None if `torch.distributed` is not in use."""
        is_possible = torch.distributed.is_available() and torch.distributed.is_initialized()
        return cls(recorder) if is_possible else None

    def ran(self) -> bool:
        """True if collectives ran since the last call of this method."""
        before, self._known = self._known, count_collectives()
        return self._known != before

    def note_unseen(self) -> None:
        """Called before a call runs: report collectives since the previous call, which unwatched code started."""
        if self.ran():
            with DisableTorchFunction():
                self._recorder.unseen_collective()

    def finish(self) -> None:
        self._recorder.log.collectives += count_collectives() - self._first


# Reads the arguments of a call before it runs, and protects the memory the call will write to.


class CallArguments(NamedTuple):
    """The arguments of a call, read before it runs."""

    outline: tuple[Any, ...]  # a template of all arguments
    names: tuple[str, ...]  # the keyword names: the last arguments in `outline`
    parents: tuple[int, ...]  # the records of `tensors`
    tensors: list[Tensor]
    details: Details | None  # rare facts; None for most calls
    written: list[Tensor]  # the tensors that the call is about to overwrite


def leaves_gradients_alone(written: Sequence[Tensor]) -> bool:
    """True if a call writes, under `no_grad`, to a tensor that requires gradients."""
    return not torch.is_grad_enabled() and any(tensor.requires_grad for tensor in written)


class ArgumentReader:
    """Reads the arguments of the calls of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._table = recorder.table
        self._keeper = recorder.keeper

    def read(self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallArguments:
        """Read the arguments of a call, and protect the tensors it will write to."""
        tensors: list[Tensor] = []
        outline = template((*args, *kwargs.values()), tensors.append)
        if function.is_collective:
            outline = without_process_groups(outline)
        if self._recorder.memory:
            with DisableTorchFunction():
                self._recorder.memory.forget_moved(tensors)
                self._recorder.memory.look(tensors)
        parents = tuple([self._recorder.ref(tensor) for tensor in tensors])
        written = function.writes(args, kwargs)
        details = self._prepare(function, parents, tensors, written)
        if func is torch.autograd.grad and self._recorder.may_change_gradients(tensors):
            details = details or Details()
            details.is_hooked = True
        if self._recorder.gradients is not None:
            self._recorder.gradients.meet(parents, tensors)
            if func is torch.autograd.grad:
                self._recorder.gradients.watch(tensors)
        return CallArguments(outline, tuple(kwargs), parents, tensors, details, written)

    def _prepare(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], written: list[Tensor]
    ) -> Details | None:
        """Find writes that reached the arguments through shared memory, and protect the tensors about to be overwritten."""
        also: tuple[int, ...] = ()
        stale: list[int] = []
        held: dict[int, Held] | None = None
        mutated: tuple[int, ...] = ()
        if self._table.last_write:
            also, stale = self._recorder.also(tensors)
        if stale or self._keeper.selection is not None:
            held = self._hold_arguments(function, parents, tensors, stale)
        is_no_grad = False
        if written:
            mutated = self.protect(written, tensors)
            is_no_grad = leaves_gradients_alone(written)
        return Details(also=also, mutated=mutated, held=held, is_no_grad=is_no_grad) if also or held or mutated else None

    def _hold_arguments(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], stale: list[int]
    ) -> dict[int, Held] | None:
        """If the operation may be kept, also keep the arguments whose values their own records do not hold."""
        selection = self._keeper.selection
        if selection is not None and selection.before(function, self._recorder.module) is False:
            return None
        slots = [
            (slot, tensors[slot])
            for slot, number in enumerate(parents)
            if slot in stale or (number >= 0 and self._recorder.log.values[number] is UNSAVED)
        ]
        return self._keeper.hold_arguments(slots) if slots else None

    def protect(self, written: Sequence[Tensor], tensors: list[Tensor]) -> tuple[int, ...]:
        """Keep the old values of `written`. Returns the positions of these tensors among `tensors`."""
        for tensor in written:
            self._protect_one(tensor)
        ids = [id(tensor) for tensor in written]
        return tuple([slot for slot, tensor in enumerate(tensors) if id(tensor) in ids])

    def _protect_one(self, tensor: Tensor) -> None:
        """Copy a tensor that is about to be overwritten, for all kept activations and backups that need its old values."""
        with DisableTorchFunction():
            for part in memory_of(tensor):
                storage = self._table.storage_of(part)
                if storage is not None:
                    self._recorder.protect(storage)


# Notices changes of torch's random state by anything but watched calls.


class DrawWatch:
    """Checks at each watched random call whether torch's random state changed since the previous watched random call.

    A model changes it by seeding, forking or setting the state, or by drawing in unwatched code.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        # the state before the latest call, if it differs from the state after the previous call
        self._moved: RandomState | None = None
        self._left: Any = None  # the state after the latest call that drew
        self._first = b""  # the state of the CPU generator at the start of the recording
        self._is_alone = True  # True while only watched calls have changed the state
        self.drew = False

    def begins(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True if a call is about to draw random numbers."""
        if function.draws is None or not function.draws(args, kwargs):
            return False
        self.drew, self._moved = True, None
        if _fingerprint() != self._left:
            self._moved, self._is_alone = RandomState.now(), False
        return True

    def are_all(self, before: Tensor) -> bool:
        """True if watched calls account for every change of the random state since `before`."""
        return self._is_alone and self._first == _bytes_of(before) and _fingerprint() == self._left

    def note(self, number: int) -> None:
        """Note that operation `number` drew; if the state had changed since the previous watched draw, also note the state.

        A draw that a replay does not repeat (a draw without an operation, in a transform, or around a collective) counts as
        such a change.
        """
        log = self._log
        if number == len(log.rows):
            return
        if self._moved is not None:
            log.random_states[number] = self._moved
        details = log.details.get(number)
        if details is None or not (details.is_transformed or details.is_collective):
            self.end()

    def start(self) -> None:
        self.end()
        self._first = _bytes_of(torch.default_generator.get_state())

    def end(self) -> None:
        """Note the state after a call that drew."""
        self._left = _fingerprint()


def _bytes_of(state: Tensor) -> bytes:
    with DisableTorchFunction():
        return string_at(state.data_ptr(), state.nbytes)


def _fingerprint() -> Any:
    """A value that is equal for two moments if and only if torch's random states are equal."""
    with DisableTorchFunction():
        state = torch.default_generator.get_state()
        ours = string_at(state.data_ptr(), state.nbytes)
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            return ours
        return ours, [(one.initial_seed(), one.get_offset()) for one in torch.cuda.default_generators]


# Writes the rows of calls. The interceptor's hot path does so itself for a call that returns one plain tensor.

_ONLY_TENSORS = frozenset({Tensor})

# The first part of a row: the function number, a template of the arguments, the keyword names, the numbers of the module
# call and the call site, when the call started, and how long it took.
CallPart = tuple[int, tuple[Any, ...], tuple[str, ...], int, int, int, int]


class CallWriter:
    """Writes the rows of the calls of one recording.

    `is_plain`: True as long as every tensor is kept by reference and no row has details. Then `when_not_plain` is called.
    """

    def __init__(self, recorder: Recorder, *, is_plain: bool, when_not_plain: Callable[[], None]) -> None:
        self.composite: Composite | None = None  # the composite that is running, if the operations inside it are recorded
        self.is_plain = is_plain
        self._when_not_plain = when_not_plain
        self._recorder = recorder
        self._log = recorder.log
        self._keeper = recorder.keeper
        self._table = recorder.table
        self._nodes = recorder.nodes

    def write(
        self,
        function: TorchFunction,
        call: CallPart,
        parents: Sequence[int],
        result: Any,
        written: Sequence[Tensor],
        details: Details | None,
    ) -> None:
        """Write the results of a call: each tensor becomes a record of its own."""
        recorder, log = self._recorder, self._log
        made: list[tuple[Any, Tensor]]
        if type(result) is Tensor:
            made = [((), result)]
        elif type(result) is tuple and _ONLY_TENSORS.issuperset(map(type, result)):
            made = [((index,), tensor) for index, tensor in enumerate(result)]
        else:
            made = list(find_tensors(result, into_objects=False))
        if not made and written and (result is None or function.is_collective):
            several = len(written) > 1
            made = [((index,) if several else (), tensor) for index, tensor in enumerate(written)]
        if not made or (function.is_attribute and recorder.table.find(made[0][1])):
            return  # no tensor, or an attribute that returned a tensor with a record
        if function.is_attribute and function.name == "grad":
            details = Details(also=recorder.backward_roots())
        first = len(log.rows)
        if not written:
            for at, (_, tensor) in enumerate(made):
                self._table.note_handed_back(tensor, first + at)
        try:
            if not self.is_plain or not self._write_plain(call, parents, made, details):
                self._write_any(call, parents, made, details)
        except BaseException:
            recorder.cut_unfinished()
            raise
        if details is not None and details.held and all(value is UNSAVED for value in log.values[first:]):
            self._keeper.remember_arguments(first)
        for tensor in written:
            self.note_write(tensor, first)

    def _write_plain(
        self, call: CallPart, parents: Sequence[int], made: list[tuple[Any, Tensor]], details: Details | None
    ) -> bool:
        """Write several plain tensors at once. If a tensor is not plain, returns False and writes nothing."""
        facts = []
        if self._table.shared:
            return False
        for _, tensor in made:
            if type(tensor) is not Tensor:
                return False
            try:
                facts.append((storage_address(tensor), tensor.detach(), write_count(tensor)))
            except RuntimeError:
                return False
        first = number = len(self._log.rows)
        for (path, tensor), (storage, value, version) in zip(made, facts, strict=True):
            node = self._nodes.name(tensor, call[0]) if tensor.requires_grad else None
            self._log.rows.append((*call, node, None, *parents))
            self._log.values.append(value)
            self._log.versions.append(version)
            self._keeper.storages.append(storage)
            self._note_details(number, first, path, details)
            self._table.point(tensor, number, storage)
            number += 1
        if self.composite is not None or is_any_autocast_enabled():
            for each in range(first, number):
                self.note_context(each)
        return True

    def _write_any(
        self, call: CallPart, parents: Sequence[int], made: list[tuple[Any, Tensor]], details: Details | None
    ) -> None:
        recorder, log = self._recorder, self._log
        first = len(log.rows)
        with DisableTorchFunctionSubclass():
            for path, tensor in made:
                number = recorder.append((*call, self._nodes.name(tensor, call[0]), facts_of(tensor), *parents))
                self._note_details(number, first, path, details)
                self.note_context(number)
                if is_functorch_wrapped(tensor):
                    log.detail(number).is_transformed = True
                self._keeper.keep_if_wanted(number, tensor)
                storage = self._table.storage_of(tensor)
                recorder.table.point(tensor, number, storage)
                recorder.table.point_inside(tensor, number, storage)
                if recorder.gradients is not None:
                    recorder.gradients.note(number, tensor)

    def _note_details(self, number: int, call: int, path: tuple[Any, ...], details: Details | None) -> None:
        """Note rare facts about one result of a call; `details` are the facts that all its results share."""
        if not path:
            if details is not None:
                self._log.details[number] = details
        elif details is None:
            self._log.details[number] = Details(call, path)
        else:
            self._log.details[number] = dataclasses.replace(details, call=call, output_path=path)

    def leave_plain_path(self) -> None:
        """Called when a call is not ordinary any more: from now on, no operation takes the hot path."""
        if self.is_plain:
            self.is_plain = False
            self._when_not_plain()

    def note_context(self, number: int) -> None:
        """Note the composite around an operation. Also note autocast, which a result of reduced precision reveals."""
        if is_any_autocast_enabled():
            self.leave_plain_path()  # from now on autocast is noted for every operation
            self._log.detail(number).autocast = autocast_state()
        if self.composite is not None:
            self._log.detail(number).composite = self.composite

    def note_write(self, tensor: Tensor, number: int) -> None:
        if type(tensor) is Tensor:
            self._table.wrote(tensor, number)
        else:
            with DisableTorchFunctionSubclass():
                self._table.wrote(tensor, number)
        if self._recorder.memory:
            for part in memory_of(tensor):
                self._recorder.memory.wrote(self._table.storage_of(part))


# The TorchFunctionMode: one intercepted call becomes one record.
#
# It reads the arguments, runs the call, and writes the results; everything that can be computed later is left for later. The
# mode is off while it handles a call, so torch may be used freely here. Another recording may be watching from below: our
# own torch calls are hidden from it.

_NOTHING = contextlib.nullcontext()
is_grad_enabled = torch.is_grad_enabled
_LOOKED_AT: tuple[Any, ...] = (torch.empty, torch.autograd.grad)  # operations that never take the hot path
_NO_KWARGS: dict[str, Any] = {}
# How a call is handled: it is not recorded, or has a method of its own, or might draw random numbers, or might write to its
# arguments, or is ordinary.
_QUESTION, _SPECIAL, _MAY_DRAW, _MAY_WRITE, _ORDINARY = range(5)
_TENSORS = tuple((TENSOR,) * count for count in range(8))  # templates of calls whose arguments are all tensors
_FLOAT16, _BFLOAT16 = torch.float16, torch.bfloat16


class _AfterRecording(dict[Any, tuple[int, int, TorchFunction]]):
    """Replaces `_met` after the recording, so that no call is recorded even if torch puts the mode back."""

    def __missing__(self, func: Any) -> tuple[int, int, TorchFunction]:
        return _QUESTION, -1, facts(torch.is_tensor)


class Interceptor(TorchFunctionMode):
    """Watches every torch function this thread calls."""

    def __init__(
        self, recorder: Recorder, sites: CallSites, restorer: StateRestorer | None, timer: DeviceTimer | None = None
    ) -> None:
        super().__init__()
        self.recorder = recorder
        self.log = recorder.log
        self.keeper = recorder.keeper
        self.sites = sites
        self.restorer = restorer
        self.failure: tuple[BaseException, Failure] | None = None
        # maps a torch function to how its calls are handled, its number in the log, and its facts
        self._met: dict[Any, tuple[int, int, TorchFunction]] = {}
        self._open: list[TorchFunction] = []
        self._nodes = recorder.nodes
        self._arguments = ArgumentReader(recorder)
        is_plain = self.keeper.is_plain and recorder.gradients is None and timer is None
        self._writer = CallWriter(recorder, is_plain=is_plain, when_not_plain=self._met.clear)
        recorder.transform_met = self._writer.leave_plain_path  # tensors of `functionalize` look plain but are not
        self.timer = timer
        self._is_nested = False
        self.is_over_recording = False
        self._collectives: CollectiveWatch | None = None  # None if `torch.distributed` is not in use
        self._draws = self.draws = DrawWatch(self.log)
        # local copies of names that the hot path uses
        self._table = recorder.table
        self._stack = recorder.stack
        self._rows, self._values, self._versions = self.log.rows, self.log.values, self.log.versions
        self._storages = recorder.keeper.storages
        for name in ("__torch_function__", "_run", "_run_open"):
            sites.skip(getattr(Interceptor, name).__code__)

    def __enter__(self) -> Interceptor:
        if count_function_modes() > 0:
            self._is_nested = True  # another mode watches below this mode
            self._writer.is_plain = False
        self._collectives = CollectiveWatch.where_possible(self.recorder)
        if self._collectives is not None:
            self._writer.is_plain = False  # after every call, check whether a collective ran inside it
        self._draws.start()
        push_function_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        take_off_function_mode(self)  # another recording that goes on may have its mode on top of this one
        self.is_over_recording = True
        self._met = _AfterRecording()
        if self._collectives is not None:
            self._collectives.finish()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Called by torch for each function call: watch one call.

        This is the hot path: an ordinary operation (returns one plain tensor; everything is kept) is read, run and written
        right here. Any other call goes to a method of its own.
        """
        try:
            way, function_number, function = self._met[func]
        except (KeyError, TypeError):
            way, function_number, function = self._meet(func)
        if way == _QUESTION:
            return func(*args, **kwargs) if kwargs else func(*args)
        if kwargs is None:
            kwargs = _NO_KWARGS
        if way <= _MAY_DRAW:
            if way == _SPECIAL:
                return self._run(function_number, function, func, args, kwargs)
            if not self._draws.begins(function, args, kwargs):
                way = _ORDINARY
        written: Sequence[Tensor] = ()
        if way == _MAY_WRITE or (kwargs and ("out" in kwargs or kwargs.get("inplace"))):
            written = function.writes(args, kwargs)
        table = self._table
        entries, last_write = table.entries, table.last_write
        outline: list[Any] = []
        parents: list[int] = []
        only_tensors = True
        for value in (*args, *kwargs.values()) if kwargs else args:
            cls = type(value)
            if cls is Tensor or cls is Parameter:
                entry = entries.get(id(value))
                if entry is None or entry() is not value:
                    entry = self.recorder.explain(value)
                    if not self._writer.is_plain:  # the tensor belongs to a transform
                        return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(1))
                if last_write and entry.storage in last_write and last_write[entry.storage] > entry.number:
                    return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(1))
                parents.append(entry.number)
                outline.append(TENSOR)
            else:
                only_tensors = False
                if cls in PLAIN or (cls is tuple and PLAIN.issuperset(map(type, value))):
                    outline.append(value)
                else:
                    nested: list[Tensor] = []
                    outline.append(template(value, nested.append))
                    if nested and (last_write or written):
                        return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(1))
                    parents += [self.recorder.ref(tensor) for tensor in nested]
        details: Details | None = None
        if written:
            if table.shared or (not is_grad_enabled() and is_in_custom_function(sys._getframe(1))):
                return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(1))
            plain = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            mutated = self._arguments.protect(written, plain)
            details = Details(mutated=mutated, is_no_grad=leaves_gradients_alone(written)) if mutated else None
        started = now()
        try:
            result = func(*args, **kwargs) if kwargs else func(*args)
        except BaseException as error:
            self._note_failure(error, function, tuple(parents), tensors_in((args, kwargs)), sys._getframe(1))
            raise
        elapsed = now() - started
        frame = sys._getframe(1)
        forward = self.sites.forward
        site = forward.direct.get(frame.f_lasti) if frame.f_code is forward.code else None
        if site is None:
            site = self.sites.at(frame)
        whole = _TENSORS[len(outline)] if only_tensors and len(outline) < len(_TENSORS) else tuple(outline)
        names = tuple(kwargs) if kwargs else ()
        module = self._stack[-1].number if self._stack else -1
        if type(result) is Tensor:
            try:
                storage = storage_address(result)
                value = result.detach()
                version = write_count(value)
            except RuntimeError:
                pass  # a tensor without memory or versions
            else:
                try:
                    name = self._nodes.name(result, function_number) if result.requires_grad else None
                    number = len(self._rows)
                    self._rows.append((function_number, whole, names, module, site, started, elapsed, name, None, *parents))
                    self._values.append(value)
                    self._versions.append(version)
                    self._storages.append(storage)
                    if written:
                        if details is not None:
                            self.log.details[number] = details
                        for tensor in written:
                            self._writer.note_write(tensor, number)
                    if self._writer.composite is not None or (dtype := result.dtype) is _FLOAT16 or dtype is _BFLOAT16:
                        self._writer.note_context(number)
                    key = id(result)
                    entry = entries.get(key)
                    if entry is None or entry() is not result:
                        entry = entries[key] = Entry(result)
                    elif not written:
                        table.handed_back.append((entry, entry.number, number))
                    entry.number = number
                    entry.storage = storage
                except BaseException:
                    self.recorder.cut_unfinished()
                    raise
                if way == _MAY_DRAW:
                    self._draws.note(number)
                return result
        call = (function_number, whole, names, module, site, started, elapsed)
        number = len(self._rows)
        self._writer.write(function, call, parents, result, written, details)
        if way == _MAY_DRAW:
            self._draws.note(number)
        return result

    def _meet(self, func: Any) -> tuple[int, int, TorchFunction]:
        function = facts(func)
        if function.kind is Kind.QUERY and not (function.concerns_gradients or function.exports_memory):
            met = _QUESTION, -1, function
        else:
            is_ordinary = function.kind is Kind.OPERATION and not (
                function.is_attribute or function.is_collective or function.takes_memory or function.switches_gradients
            )
            if not self._writer.is_plain or not is_ordinary or func in _LOOKED_AT:
                way = _SPECIAL
            elif function.draws is not None:
                way = _MAY_DRAW if function.written is None else _SPECIAL
            else:
                way = _ORDINARY if function.written is None else _MAY_WRITE
            met = way, self.recorder.function_number(function), function
        with contextlib.suppress(TypeError):  # an unhashable callable
            self._met[func] = met
        return met

    def _run(
        self, function_number: int, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a call that is not an ordinary operation."""
        kind = function.kind
        if function.touches_gradients and self.restorer is not None:
            self.restorer.before_backward()
        if function.switches_gradients and self.restorer is not None:
            self.restorer.before_switch()
        if kind is Kind.QUERY:
            if function.hooks_gradients:
                self.recorder.hooks_gradients = True
            elif function.switches_gradients and all((*args[1:], *kwargs.values())):
                self._note_leaf(args[0])
            result = func(*args, **kwargs)
            if function.exports_memory:
                self._lend(tensors_in((args, kwargs)), function, sys._getframe(2))
            return result
        if kind is Kind.PYTHON_READ:
            return self._run_python_read(function, func, args, kwargs, sys._getframe(2))
        if kind is Kind.BACKWARD:
            return self._run_backward(func, args, kwargs)
        if kind is Kind.COMPOSITE and function not in self._open:
            return self._run_open(function, args, kwargs)
        # an operation, or a C method with the name of its Python composite
        return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(2))

    def _lend(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """Note that a call handed out the memory of these tensors."""
        with DisableTorchFunction():
            for tensor in tensors:
                self.recorder.memory.lend(tensor, function.name, self.sites.at(frame))

    def _lend_foreign(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """Called for new tensors: lend tensors that lie in memory torch did not allocate."""
        with DisableTorchFunction():
            self._lend([tensor for tensor in tensors if self.recorder.memory.meet(tensor)], function, frame)

    def _note_leaf(self, tensor: Tensor) -> None:
        """`requires_grad_()` was called on a tensor: count it as a leaf, even if it is switched off later.

        A replay lets the tensor require gradients throughout, and still follows only the calls that were followed.
        """
        with DisableTorchFunction():
            self.log.leaves.add(self.recorder.ref(tensor))

    # Operations -------------------------------------------------------------------------------------------------------

    def _run_operation(
        self,
        function_number: int,
        function: TorchFunction,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType | None,
    ) -> Any:
        """Run and record an operation that cannot take the hot path.

        Another recording below this one sees the call itself, but not our own torch calls.
        """
        with DisableTorchFunction() if self._is_nested else _NOTHING:
            if self._collectives is not None:
                self._collectives.note_unseen()
            outline, names, parents, tensors, details, written = self._arguments.read(function, func, args, kwargs)
        first = len(self._rows)
        draws = self._draws.begins(function, args, kwargs)
        mark = device_event() if self.timer is not None else None
        started = now()
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._note_failure(error, function, parents, tensors, frame)
            raise
        elapsed = now() - started
        if self._collectives is not None and self._collectives.ran() and not function.is_collective:
            details = details or Details()
            details.is_collective = True
        site = self.sites.at(frame)  # before the module: the search may end calls
        module = self._stack[-1].number if self._stack else -1
        call = (function_number, outline, names, module, site, started, elapsed)
        with DisableTorchFunction() if self._is_nested else _NOTHING:
            self._writer.write(function, call, parents, result, written, details)
        if function.takes_memory:
            self._lend_foreign(tensors_in(result), function, frame)
        if written and not is_grad_enabled() and is_in_custom_function(frame):
            with DisableTorchFunction():  # mark_dirty counts writes that may not have happened: compare the bytes
                for tensor in written:
                    self.recorder.memory.lend(tensor, "outside", self.sites.at(frame))
        if function.is_collective and result is not None and self._table.shared:
            self._refuse_unfinished(first, written)
        if draws:
            self._draws.note(first)
        elif function.func is torch.empty and type(result) is Tensor and not result.numel():
            self._table.set_aside(result)
            self.log.hollow.add(first)
        if self.timer is not None:
            self.timer.note(first, len(self._rows), mark)
        return result

    def _refuse_unfinished(self, first: int, written: Sequence[Tensor]) -> None:
        """Mark the results of an asynchronous collective as lost if they were copied before the collective finished."""
        for number, tensor in zip(range(first, len(self._rows)), written, strict=False):
            if not self._table.shared.isdisjoint(storages_of(tensor)):
                self._versions[number] = LOST

    def watch_aten(self, func: Any, run: Callable[..., Any], frame: FrameType | None, *args: Any, **kwargs: Any) -> Any:
        """Watch a call of an ATen operator `func`, made by `run`, while this mode is off the stack for a fused path."""
        way, function_number, function = self._met.get(func) or self._meet(func)
        if way == _QUESTION:
            return run(*args, **kwargs)
        if function.kind is Kind.PYTHON_READ:
            return self._run_python_read(function, run, args, kwargs, frame)
        if function.is_in(groups.FUSED_LAYERS) and NOTE not in self.log.notes:
            self.log.notes.append(NOTE)
        return self._run_operation(function_number, function, run, args, kwargs, frame)

    # Composites, Python reads, backward, failures
    # -----------------------------------------------------------------------------

    def _run_open(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite's own body with the mode on, so that the operations inside are recorded."""
        assert function.opened is not None
        outer = self._writer.composite
        self.recorder.calls += 1
        self._writer.composite = Composite(function.name, self.recorder.calls, outer)
        self._open.append(function)
        push_function_mode(self)
        try:
            return function.opened(*args, **kwargs)
        finally:
            if count_function_modes():  # an interrupt inside torch may have removed the mode
                pop_function_mode()
            self._open.pop()
            self._writer.composite = outer

    def _run_python_read(
        self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> Any:
        with DisableTorchFunction():
            tensors = list(tensors_in((args, kwargs)))
            if self.recorder.memory:
                self.recorder.memory.look(tensors)
            find, recorder = self._table.find, self.recorder
            parents = tuple([recorder.current(one, find(one) or recorder.explain(one)).number for one in tensors])
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._note_failure(error, function, parents, tensors, frame)
            raise
        if function.exports_memory:
            self._lend(tensors, function, frame)
        if self._collectives is not None:
            self._collectives.ran()
        value = result if type(result) in (bool, int, float, complex) else None
        site = self.sites.site(frame)
        before = len(self.log.rows)
        self.log.python_reads.append(PythonReadRecord(function, parents, value, self.recorder.module, site, before))
        return result

    def _run_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with DisableTorchFunction():
            roots = tuple(self.recorder.ref(tensor) for tensor in tensors_in((args, kwargs)))
            self.recorder.gradients_arrived(roots)
            if self.recorder.gradients is not None:
                self.recorder.gradients.watch(tensors_in((args, kwargs)))
                self.recorder.gradients.expect(tensors_in(args[:1] if func is Tensor.backward else args))
                self.recorder.note_scale(roots)
            if self.restorer is not None:
                self.restorer.before_backward()
        try:
            return func(*args, **kwargs)
        finally:
            if self.log.backward is not None:
                self.log.backward.begins_outside = False
            if self._collectives is not None:
                self._collectives.ran()

    def _note_failure(
        self,
        error: BaseException,
        function: TorchFunction,
        parents: tuple[int, ...],
        tensors: list[Tensor],
        frame: FrameType | None,
    ) -> None:
        if self.failure is not None and self.failure[0] is error:
            return  # already noted by an inner call
        with DisableTorchFunction():
            shapes = tuple(tuple(t.shape) if not t.is_nested else () for t in tensors)
        site = self.sites.site(frame)
        text = f"{type(error).__name__}: {error}"
        before = len(self.log.rows)
        self.failure = (error, Failure(function, parents, shapes, self.recorder.module, site, text, before))
