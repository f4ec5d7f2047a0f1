"""Counts the collectives that a process takes part in, and writes their arguments down.

Python functions of `torch.distributed` are seen as any torch function is. Collectives that are made elsewhere (by a process
group's own methods, inside DTensor) are noticed by the number of collectives that each process group counts.
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
from .gradients import DeviceTimer
from .recorder import Recorder


def in_words(value: Any) -> Any:
    """A template of a collective's arguments that does not keep its process group alive."""
    if isinstance(value, (list, tuple)):
        return type(value)(in_words(item) for item in value)
    if hasattr(value, "group_name"):  # a process group
        return value.group_name
    return str(value) if type(value).__module__.startswith(C_MODULE) else value


class CollectiveWatch:
    """Counts the collectives that this process takes part in during a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = self._known = count_collectives()

    @classmethod
    def where_possible(cls, recorder: Recorder) -> CollectiveWatch | None:
        """A watch; None where there are no other processes."""
        is_possible = torch.distributed.is_available() and torch.distributed.is_initialized()
        return cls(recorder) if is_possible else None

    def ran(self) -> bool:
        """Whether collectives ran since the last call of this method."""
        before, self._known = self._known, count_collectives()
        return self._known != before

    def note_unseen(self) -> None:
        """A call is about to run: collectives that ran since the last one were made by something that is not watched."""
        if self.ran():
            with DisableTorchFunction():
                self._recorder.unseen_collective()

    def finish(self) -> None:
        """The recording is over."""
        self._recorder.log.collectives += count_collectives() - self._first


# Reads the arguments of a call before it runs, and protects the memory it is about to write to.


class Before(NamedTuple):
    """What is known of a call before it runs."""

    outline: tuple[Any, ...]  # a template of all arguments
    names: tuple[str, ...]  # of the last of them, which were given by name
    parents: tuple[int, ...]  # the records that the tensors among them stand for
    tensors: list[Tensor]
    details: Details | None  # facts that few calls have
    written: list[Tensor]  # the tensors that are about to be overwritten


def leaves_gradients_alone(written: Sequence[Tensor]) -> bool:
    """True for a write to what requires gradients, while gradients are switched off."""
    return not torch.is_grad_enabled() and any(tensor.requires_grad for tensor in written)


class ArgumentReader:
    """Reads the arguments of the calls of one recording."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._table = recorder.table
        self._keeper = recorder.keeper

    def read(self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Before:
        """Read the arguments of a call, and prepare for what it is about to do to them."""
        tensors: list[Tensor] = []
        outline = template((*args, *kwargs.values()), tensors.append)
        if function.is_collective:
            outline = in_words(outline)
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
        return Before(outline, tuple(kwargs), parents, tensors, details, written)

    def _prepare(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], written: list[Tensor]
    ) -> Details | None:
        """Find what the arguments depend on through shared memory, and protect what is about to be overwritten."""
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
        """Keep the arguments whose records do not hold them, if the operation may be kept."""
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
        """Keep the old values of what is about to be overwritten. Returns which of the arguments' tensors that are."""
        for tensor in written:
            self._protect_one(tensor)
        ids = [id(tensor) for tensor in written]
        return tuple([slot for slot, tensor in enumerate(tensors) if id(tensor) in ids])

    def _protect_one(self, tensor: Tensor) -> None:
        """Copy a tensor that is about to be overwritten, for every kept activation and backup that needs the old values."""
        with DisableTorchFunction():
            for part in memory_of(tensor):
                storage = self._table.storage_of(part)
                if storage is not None:
                    self._recorder.protect(storage)


# Notices where a pass moves torch's random state other than by the calls that are watched.


class DrawWatch:
    """Checks at every watched random call whether torch's random state was changed since the one before.

    A model changes it by seeding, forking or setting the state, or by drawing in code that is not watched.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._moved: RandomState | None = None  # the state the latest call draws from, if the one before did not leave it
        self._left: Any = None  # what the last call that drew left behind
        self._first = b""  # the state of the processor's generator when the recording began
        self._is_alone = True  # whether nothing else moved the state by now
        self.drew = False

    def begins(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is about to draw random numbers."""
        if function.draws is None or not function.draws(args, kwargs):
            return False
        self.drew, self._moved = True, None
        if _fingerprint() != self._left:
            self._moved, self._is_alone = RandomState.now(), False
        return True

    def are_all(self, before: Tensor) -> bool:
        """Whether watched calls explain all that torch's state moved since it was `before`."""
        return self._is_alone and self._first == _bytes_of(before) and _fingerprint() == self._left

    def note(self, number: int) -> None:
        """A call drew, for operation `number`; note the state it drew from, if something else had moved it.

        A draw that a replay does not make again (of no operation, in a transform, around a collective) moves the state as
        seeding does.
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
        """A recording starts."""
        self.end()
        self._first = _bytes_of(torch.default_generator.get_state())

    def end(self) -> None:
        """A call drew."""
        self._left = _fingerprint()


def _bytes_of(state: Tensor) -> bytes:
    with DisableTorchFunction():
        return string_at(state.data_ptr(), state.nbytes)


def _fingerprint() -> Any:
    """Something that is equal where torch's random states are."""
    with DisableTorchFunction():
        state = torch.default_generator.get_state()
        ours = string_at(state.data_ptr(), state.nbytes)
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's own
            return ours
        return ours, [(one.initial_seed(), one.get_offset()) for one in torch.cuda.default_generators]


# Writes down what a call made; the hot path of the interceptor does so itself for one plain tensor.

_ONLY_TENSORS = frozenset({Tensor})

# The first part of a row: the number of the function, a template of the arguments, the names of the last of them, the numbers
# of the module call and the call site, when the call started, and how long it took.
CallPart = tuple[int, tuple[Any, ...], tuple[str, ...], int, int, int, int]


class CallWriter:
    """Writes the rows of the calls of one recording.

    `is_plain` says that every tensor is kept as it is and nothing else is asked of a row. `when_not_plain` is called when that
    is no longer so.
    """

    def __init__(self, recorder: Recorder, *, is_plain: bool, when_not_plain: Callable[[], None]) -> None:
        self.composite: Composite | None = None  # the Python function of torch that is running, if its inside is the log
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
        """Write down whatever came out; a call that made several tensors becomes several records."""
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
            return  # nothing, or a tensor already known that an attribute handed out
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
        """Write down several plain tensors at once, as the hot path does one. Returns False if one is not plain."""
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
        """Note what is out of the ordinary about one of the tensors that a call made, given what all of them have in common."""
        if not path:
            if details is not None:
                self._log.details[number] = details
        elif details is None:
            self._log.details[number] = Details(call, path)
        else:
            self._log.details[number] = dataclasses.replace(details, call=call, output_path=path)

    def leave_plain_path(self) -> None:
        """From now on no operation is ordinary."""
        if self.is_plain:
            self.is_plain = False
            self._when_not_plain()

    def note_context(self, number: int) -> None:
        """Note the composite an operation is inside of, and autocast, which shows first as reduced precision."""
        if is_any_autocast_enabled():
            self.leave_plain_path()  # it has to be noted for every operation from now on
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
# It reads the arguments, runs the call, and writes down what came out; everything that can be worked out later is
# left for later. While the mode handles a call it is off, so torch may be used freely here. Another recording may be
# watching from below: our own torch calls are hidden from it.

_NOTHING = contextlib.nullcontext()
is_grad_enabled = torch.is_grad_enabled
_LOOKED_AT: tuple[Any, ...] = (torch.empty, torch.autograd.grad)  # operations that are never ordinary
_NO_KWARGS: dict[str, Any] = {}
# What becomes of a call: it is not noted; it is handed on; it is asked whether it draws random numbers, or writes to its
# arguments; it is ordinary.
_QUESTION, _SPECIAL, _MAY_DRAW, _MAY_WRITE, _ORDINARY = range(5)
_TENSORS = tuple((TENSOR,) * count for count in range(8))  # the templates of calls with nothing but tensors
_FLOAT16, _BFLOAT16 = torch.float16, torch.bfloat16


class _Over(dict[Any, tuple[int, int, TorchFunction]]):
    """What a recording that is over knows of functions: their calls are not noted, should torch put its mode back."""

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
        # torch function -> what becomes of its calls, its number in the log, what it is
        self._met: dict[Any, tuple[int, int, TorchFunction]] = {}
        self._open: list[TorchFunction] = []
        self._nodes = recorder.nodes
        self._arguments = ArgumentReader(recorder)
        is_plain = self.keeper.is_plain and recorder.gradients is None and timer is None
        self._writer = CallWriter(recorder, is_plain=is_plain, when_not_plain=self._met.clear)
        recorder.transform_met = self._writer.leave_plain_path  # tensors of `functionalize` look plain and are not
        self.timer = timer
        self._is_nested = False
        self.is_over_recording = False
        self._collectives: CollectiveWatch | None = None  # where there are other processes
        self._draws = self.draws = DrawWatch(self.log)
        # what the hot path reaches for
        self._table = recorder.table
        self._stack = recorder.stack
        self._rows, self._values, self._versions = self.log.rows, self.log.values, self.log.versions
        self._storages = recorder.keeper.storages
        for name in ("__torch_function__", "_run", "_run_open"):
            sites.skip(getattr(Interceptor, name).__code__)

    def __enter__(self) -> Interceptor:
        if count_function_modes() > 0:
            self._is_nested = True  # another mode watches below us
            self._writer.is_plain = False
        self._collectives = CollectiveWatch.where_possible(self.recorder)
        if self._collectives is not None:
            self._writer.is_plain = False  # every call is asked whether a collective ran inside it
        self._draws.start()
        push_function_mode(self)
        return self

    def __exit__(self, *error: Any) -> None:
        take_off_function_mode(self)  # which another recording that goes on may lie on
        self.is_over_recording = True
        self._met = _Over()
        if self._collectives is not None:
            self._collectives.finish()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Watch one call.

        This is the hot path: an ordinary operation (one plain tensor comes out, everything is kept) is read, run and written
        down right here. Anything else is handed to a method of its own.
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
                    if not self._writer.is_plain:  # it is a tensor of a transform
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
                pass  # one without memory or versions
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
        """Run a call that is no ordinary operation."""
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
        # an operation, or a C method under the name of the Python function around it
        return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(2))

    def _lend(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """The memory of these tensors was handed out."""
        with DisableTorchFunction():
            for tensor in tensors:
                self.recorder.memory.lend(tensor, function.name, self.sites.at(frame))

    def _lend_foreign(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """These tensors were made; some may lie in memory of others."""
        with DisableTorchFunction():
            self._lend([tensor for tensor in tensors if self.recorder.memory.meet(tensor)], function, frame)

    def _note_leaf(self, tensor: Tensor) -> None:
        """A tensor is told to require gradients. It counts as a leaf even if it is told otherwise later.

        A replay that lets it require gradients all along follows with autograd only the calls that were followed.
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
        """Any operation: one whose arguments were overwritten since, or of a recording that is out of the ordinary.

        Another recording may be watching from below; it is to see the call, not our bookkeeping.
        """
        with DisableTorchFunction() if self._is_nested else _NOTHING:
            if self._collectives is not None:
                self._collectives.note_unseen()
            outline, names, parents, tensors, details, written = self._arguments.read(function, func, args, kwargs)
        first = len(self._rows)
        draws = self._draws.begins(function, args, kwargs)
        mark = self.timer.mark() if self.timer is not None else None
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
        module = self._stack[-1].number if self._stack else -1
        call = (function_number, outline, names, module, self.sites.at(frame), started, elapsed)
        with DisableTorchFunction() if self._is_nested else _NOTHING:
            self._writer.write(function, call, parents, result, written, details)
        if function.takes_memory:
            self._lend_foreign(tensors_in(result), function, frame)
        if written and not is_grad_enabled() and is_in_custom_function(frame):
            with DisableTorchFunction():  # mark_dirty counts a write that nobody made: the bytes tell
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
        """Mark as lost what an asynchronous collective wrote, if it is kept as a copy made before the collective finished."""
        for number, tensor in zip(range(first, len(self._rows)), written, strict=False):
            if not self._table.shared.isdisjoint(storages_of(tensor)):
                self._versions[number] = LOST

    def watch_aten(self, func: Any, run: Callable[..., Any], frame: FrameType | None, *args: Any, **kwargs: Any) -> Any:
        """Watch a call of an ATen operator `func`, made by `run`, while this mode steps aside for a fused path."""
        way, function_number, function = self._met.get(func) or self._meet(func)
        if way == _QUESTION:
            return run(*args, **kwargs)
        if function.kind is Kind.PYTHON_READ:
            return self._run_python_read(function, run, args, kwargs, frame)
        if function.is_in(groups.FUSED_LAYERS) and NOTE not in self.log.notes:
            self.log.notes.append(NOTE)
        return self._run_operation(function_number, function, run, args, kwargs, frame)

    # Composites, reads by Python, backward, failures --------------------------------------------------------------------------

    def _run_open(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite's own body with the mode on, so that the operations inside are the log."""
        assert function.opened is not None
        outer = self._writer.composite
        self.recorder.calls += 1
        self._writer.composite = Composite(function.name, self.recorder.calls, outer)
        self._open.append(function)
        push_function_mode(self)
        try:
            return function.opened(*args, **kwargs)
        finally:
            if count_function_modes():  # an interrupt inside torch may have taken the mode off
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
            return  # already noted further in
        with DisableTorchFunction():
            shapes = tuple(tuple(t.shape) if not t.is_nested else () for t in tensors)
        site = self.sites.site(frame)
        text = f"{type(error).__name__}: {error}"
        before = len(self.log.rows)
        self.failure = (error, Failure(function, parents, shapes, self.recorder.module, site, text, before))
