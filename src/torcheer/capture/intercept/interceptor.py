"""The TorchFunctionMode: one intercepted call becomes one record.

It reads the arguments, runs the call, and writes down what came out; everything that can be worked out later is left for
later. While the mode handles a call it is off, so torch may be used freely here, except
that another recording may be watching from below: then our own torch calls are hidden from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ...containers import PLAIN, find_tensors, template, tensors_in
from ...functions import facts
from ...records import LOST, TENSOR, UNSAVED, Composite, Details, EscapeRecord, Failure, Held, Kind, TorchFunction, facts_of
from ..identity.tensor_table import Entry, is_wrapped, memory_of, storage_address, storages_of
from ..recorder import Recorder
from ..restore.randomness import DrawWatch
from ..restore.restore_state import StateRestorer
from .autocast import autocast_state
from .call_sites import CallSites
from .collectives import CollectiveCounter, counter, in_words
from .device_time import DeviceTimer
from .fused import FUSED, NOTE

_NOTHING = contextlib.nullcontext()
_LOOKED_AT: tuple[Any, ...] = (torch.empty, torch.autograd.grad)  # operations that are never ordinary
_NO_KWARGS: dict[str, Any] = {}
_ONLY_TENSORS = frozenset({Tensor})
# What becomes of a call: it is not noted; it is handed on; it is asked whether it draws random numbers, or writes to its
# arguments; it is ordinary.
_QUESTION, _SPECIAL, _MAY_DRAW, _MAY_WRITE, _ORDINARY = range(5)
_TENSORS = tuple((TENSOR,) * count for count in range(8))  # the templates of calls with nothing but tensors
_FLOAT16, _BFLOAT16 = torch.float16, torch.bfloat16
_any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack


# What is known before a call runs: a template of all arguments, the names of the last of them, the records they came from, the
# tensors themselves, what is out of the ordinary, and the tensors that are about to be overwritten.
Before = tuple[tuple[Any, ...], tuple[str, ...], tuple[int, ...], list[Tensor], Details | None, list[Tensor]]


# The first part of a row: what is known of a call before its result.
CallPart = tuple[int, tuple[Any, ...], tuple[str, ...], int, int, int, int]


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
        self._composite: Composite | None = None
        self._open: list[TorchFunction] = []
        self._nodes = recorder.nodes
        self._is_selective = self.keeper.selection is not None
        # whether no operation of this recording is ordinary
        self._is_special = not self.keeper.is_plain or recorder.gradients is not None or timer is not None
        self.timer = timer
        self._is_nested = False
        self._counter: CollectiveCounter | None = None  # where there are other processes
        self._collectives = 0  # how many collectives there were, as far as they are known
        self.draws = DrawWatch()
        # what the hot path reaches for
        self._table = recorder.table
        self._stack = recorder.stack
        self._rows, self._values, self._versions = self.log.rows, self.log.values, self.log.versions
        self._storages = recorder.keeper.storages
        for name in ("__torch_function__", "_run", "_run_open"):
            sites.skip(getattr(Interceptor, name).__code__)

    def __enter__(self) -> Interceptor:
        if torch._C._len_torch_function_stack() > 0:
            self._is_special = self._is_nested = True  # another mode watches below us
        self._counter = counter()
        if self._counter is not None:
            self._is_special = True  # every call is asked whether a collective ran inside it
            self._collectives = self._counter.count()
            self.log.collectives -= self._collectives
        self.draws.end()
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's own
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # torch's own
        if self._counter is not None:
            self.log.collectives += self._counter.count()

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
            if not self._begins_draw(function, args, kwargs):
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
            if table.shared:
                return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(1))
            plain = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
            mutated = self._protect_all(written, plain)
            details = Details(mutated=mutated) if mutated else None
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
                version = value._version
            except RuntimeError:
                pass  # one without memory or versions
            else:
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
                        self._note_write(tensor, number)
                if self._composite is not None or (dtype := result.dtype) is _FLOAT16 or dtype is _BFLOAT16:
                    self._note_context(number)
                key = id(result)
                entry = entries.get(key)
                if entry is None or entry() is not result:
                    entry = entries[key] = Entry(result)
                entry.number = number
                entry.storage = storage
                if way == _MAY_DRAW:
                    self._note_draw(number)
                return result
        call = (function_number, whole, names, module, site, started, elapsed)
        number = len(self._rows)
        self._write_down(function, call, parents, result, written, details)
        if way == _MAY_DRAW:
            self._note_draw(number)
        return result

    def _meet(self, func: Any) -> tuple[int, int, TorchFunction]:
        function = facts(func)
        if function.kind is Kind.QUERY and not (function.concerns_gradients or function.exports_memory):
            met = _QUESTION, -1, function
        else:
            is_ordinary = function.kind is Kind.OPERATION and not (function.is_attribute or function.is_collective)
            if self._is_special or not is_ordinary or function.takes_memory or func in _LOOKED_AT:
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
        if kind is Kind.QUERY:
            if function.hooks_gradients:
                self.recorder.hooks_gradients = True
            elif function.switches_gradients and all((*args[1:], *kwargs.values())):
                self._note_leaf(args[0])
            result = func(*args, **kwargs)
            if function.exports_memory:
                self._lend(tensors_in((args, kwargs)), function, sys._getframe(2))
            return result
        if kind is Kind.ESCAPE:
            return self._run_escape(function, func, args, kwargs, sys._getframe(2))
        if kind is Kind.BACKWARD:
            return self._run_backward(func, args, kwargs)
        if kind is Kind.COMPOSITE and function not in self._open:
            return self._run_open(function, args, kwargs)
        # an operation, or a C method under the name of the Python function around it
        return self._run_operation(function_number, function, func, args, kwargs, sys._getframe(2))

    def _lend(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """The memory of these tensors was handed out."""
        with torch._C.DisableTorchFunction():
            for tensor in tensors:
                self.recorder.memory.lend(tensor, function.name, self.sites.at(frame))

    def _lend_foreign(self, tensors: list[Tensor], function: TorchFunction, frame: FrameType | None) -> None:
        """These tensors were made; some may lie in memory of others."""
        with torch._C.DisableTorchFunction():
            self._lend([tensor for tensor in tensors if self.recorder.memory.meet(tensor)], function, frame)

    def _note_leaf(self, tensor: Tensor) -> None:
        """A tensor is told to require gradients. It counts as a leaf even if it is told otherwise later.

        A replay that lets it require gradients all along follows with autograd only the calls that were followed.
        """
        with torch._C.DisableTorchFunction():
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
        with torch._C.DisableTorchFunction() if self._is_nested else _NOTHING:
            if self._counter is not None:
                self._note_collectives()
            outline, names, parents, tensors, details, written = self._before(function, func, args, kwargs)
        first = len(self._rows)
        draws = function.draws is not None and self._begins_draw(function, args, kwargs)
        mark = self.timer.mark() if self.timer is not None else None
        started = now()
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._note_failure(error, function, parents, tensors, frame)
            raise
        elapsed = now() - started
        if self._counter is not None and self._counted() and not function.is_collective:
            details = details or Details()
            details.is_collective = True
        module = self._stack[-1].number if self._stack else -1
        call = (function_number, outline, names, module, self.sites.at(frame), started, elapsed)
        with torch._C.DisableTorchFunction() if self._is_nested else _NOTHING:
            self._write_down(function, call, parents, result, written, details)
        if function.takes_memory:
            self._lend_foreign(tensors_in(result), function, frame)
        if function.is_collective and result is not None and self._table.shared:
            self._refuse_unfinished(first, written)
        if draws:
            self._note_draw(first)
        elif function.func is torch.empty and type(result) is Tensor and not result.numel():
            self._table.set_aside(result)
            self.log.hollow.add(first)
        if self.timer is not None:
            self.timer.note(first, len(self._rows), mark)
        return result

    def _counted(self) -> bool:
        """Whether collectives ran since they were last counted."""
        assert self._counter is not None
        before, self._collectives = self._collectives, self._counter.count()
        return self._collectives != before

    def _note_collectives(self) -> None:
        """Collectives that ran between two calls were made by something that is not watched."""
        if self._counted():
            with torch._C.DisableTorchFunction():
                self.recorder.unseen_collective()

    def _refuse_unfinished(self, first: int, written: Sequence[Tensor]) -> None:
        """What a collective that is still running left in memory that is copied at once is not its value."""
        for number, tensor in zip(range(first, len(self._rows)), written, strict=False):
            if not self._table.shared.isdisjoint(storages_of(tensor)):
                self._versions[number] = LOST

    def _begins_draw(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is about to draw random numbers."""
        if function.draws is None or not function.draws(args, kwargs):
            return False
        self.draws.begin()
        return True

    def _note_draw(self, number: int) -> None:
        """A call drew, for operation `number`; note the state it drew from, if something else had moved it.

        A draw that a replay does not make again (of no operation, in a transform, around a collective) moves the state as
        seeding does.
        """
        if number == len(self._rows):
            return
        if self.draws.moved is not None:
            self.log.random_states[number] = self.draws.moved
        details = self.log.details.get(number)
        if details is None or not (details.is_transformed or details.is_collective):
            self.draws.end()

    def _before(self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Before:
        """Read the arguments of a call, and prepare for what it is about to do to them."""
        tensors: list[Tensor] = []
        outline = template((*args, *kwargs.values()), tensors.append)
        if function.is_collective:
            outline = in_words(outline)
        if self.recorder.memory:
            with torch._C.DisableTorchFunction():
                self.recorder.memory.forget_moved(tensors)
                self.recorder.memory.look(tensors)
        parents = tuple([self.recorder.ref(tensor) for tensor in tensors])
        written = function.writes(args, kwargs)
        details = self._prepare(function, parents, tensors, written)
        if func is torch.autograd.grad and self.recorder.may_change_gradients(tensors):
            details = details or Details()
            details.is_hooked = True
        if self.recorder.gradients is not None:
            self.recorder.gradients.meet(parents, tensors)
            if func is torch.autograd.grad:
                self.recorder.gradients.watch(tensors)
        return outline, tuple(kwargs), parents, tensors, details, written

    def _prepare(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], written: list[Tensor]
    ) -> Details | None:
        """Find what the arguments depend on through shared memory, and protect what is about to be overwritten."""
        also: tuple[int, ...] = ()
        stale: list[int] = []
        held: dict[int, Held] | None = None
        mutated: tuple[int, ...] = ()
        if self._table.last_write:
            also, stale = self.recorder.also(tensors)
        if stale or self._is_selective:
            held = self._hold_arguments(function, parents, tensors, stale)
        if written:
            mutated = self._protect_all(written, tensors)
        return Details(also=also, mutated=mutated, held=held) if also or held or mutated else None

    def _hold_arguments(
        self, function: TorchFunction, parents: tuple[int, ...], tensors: list[Tensor], stale: list[int]
    ) -> dict[int, Held] | None:
        """Keep the arguments whose records do not hold them, if the operation may be kept."""
        selection = self.keeper.selection
        if selection is not None and selection.before(function, self.recorder.module) is False:
            return None
        slots = [
            (slot, tensors[slot])
            for slot, number in enumerate(parents)
            if number >= 0 and (slot in stale or self._values[number] is UNSAVED)
        ]
        return self.keeper.hold_arguments(slots) if slots else None

    def _protect_all(self, written: Sequence[Tensor], tensors: list[Tensor]) -> tuple[int, ...]:
        """Keep the old values of what is about to be overwritten. Returns which of the arguments' tensors that are."""
        for tensor in written:
            self._protect(tensor)
        ids = [id(tensor) for tensor in written]
        return tuple([slot for slot, tensor in enumerate(tensors) if id(tensor) in ids])

    def _protect(self, tensor: Tensor) -> None:
        """Keep the old value of what is about to be overwritten, wherever somebody may want it."""
        with torch._C.DisableTorchFunction():
            for part in memory_of(tensor):
                storage = self._table.storage_of(part)
                if storage is not None:
                    self.recorder.protect(storage)

    def _write_down(
        self,
        function: TorchFunction,
        call: CallPart,
        parents: Sequence[int],
        result: Any,
        written: Sequence[Tensor],
        details: Details | None,
    ) -> None:
        """Write down whatever came out; a call that made several tensors becomes several records."""
        recorder, log = self.recorder, self.log
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
        if self._is_special or not self._write_plain(call, parents, made, details):
            self._write_any(call, parents, made, details)
        if details is not None and details.held and all(value is UNSAVED for value in log.values[first:]):
            self.keeper.remember_arguments(first)
        for tensor in written:
            self._note_write(tensor, first)

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
                facts.append((storage_address(tensor), tensor.detach(), tensor._version))
            except RuntimeError:
                return False
        first = number = len(self._rows)
        for (path, tensor), (storage, value, version) in zip(made, facts, strict=True):
            node = self._nodes.name(tensor, call[0]) if tensor.requires_grad else None
            self._rows.append((*call, node, None, *parents))
            self._values.append(value)
            self._versions.append(version)
            self._storages.append(storage)
            self._note_details(number, first, path, details)
            self._table.point(tensor, number, storage)
            number += 1
        if self._composite is not None or _any_autocast():
            for each in range(first, number):
                self._note_context(each)
        return True

    def _write_any(
        self, call: CallPart, parents: Sequence[int], made: list[tuple[Any, Tensor]], details: Details | None
    ) -> None:
        recorder, log = self.recorder, self.log
        first = len(log.rows)
        with torch._C.DisableTorchFunctionSubclass():
            for path, tensor in made:
                number = recorder.append((*call, self._nodes.name(tensor, call[0]), facts_of(tensor), *parents))
                self._note_details(number, first, path, details)
                self._note_context(number)
                if is_wrapped(tensor):
                    log.detail(number).is_transformed = True
                self.keeper.keep_if_wanted(number, tensor)
                storage = self._table.storage_of(tensor)
                recorder.table.point(tensor, number, storage)
                recorder.table.point_inside(tensor, number, storage)
                if recorder.gradients is not None:
                    recorder.gradients.note(number, tensor)

    def _note_details(self, number: int, call: int, path: tuple[Any, ...], details: Details | None) -> None:
        """Note what is out of the ordinary about one of the tensors that a call made, given what all of them have in common."""
        if not path:
            if details is not None:
                self.log.details[number] = details
        elif details is None:
            self.log.details[number] = Details(call, path)
        else:
            self.log.details[number] = dataclasses.replace(details, call=call, output_path=path)

    def _note_context(self, number: int) -> None:
        """Note the composite an operation is inside of, and autocast, which shows first as reduced precision."""
        if _any_autocast():
            self._is_special = True  # from now on every operation is asked
            self._met.clear()
            self.log.detail(number).autocast = autocast_state()
        if self._composite is not None:
            self.log.detail(number).composite = self._composite

    def _note_write(self, tensor: Tensor, number: int) -> None:
        if type(tensor) is Tensor:
            self._table.wrote(tensor, number)
        else:
            with torch._C.DisableTorchFunctionSubclass():
                self._table.wrote(tensor, number)
        if self.recorder.memory:
            for part in memory_of(tensor):
                self.recorder.memory.wrote(self._table.storage_of(part))

    def watch_aten(self, func: Any, run: Callable[..., Any], frame: FrameType | None, *args: Any, **kwargs: Any) -> Any:
        """Watch a call of an ATen operator `func`, made by `run`, while this mode steps aside for a fused path."""
        way, function_number, function = self._met.get(func) or self._meet(func)
        if way == _QUESTION:
            return run(*args, **kwargs)
        if function.kind is Kind.ESCAPE:
            return self._run_escape(function, run, args, kwargs, frame)
        if function.name in FUSED and NOTE not in self.log.notes:
            self.log.notes.append(NOTE)
        return self._run_operation(function_number, function, run, args, kwargs, frame)

    # Composites, escapes, backward, failures --------------------------------------------------------------------------

    def _run_open(self, function: TorchFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a composite's own body with the mode on, so that the operations inside are the log."""
        assert function.opened is not None
        outer = self._composite
        self.recorder.calls += 1
        self._composite = Composite(function.name, self.recorder.calls, outer)
        self._open.append(function)
        _push(self)
        try:
            return function.opened(*args, **kwargs)
        finally:
            _pop()
            self._open.pop()
            self._composite = outer

    def _run_escape(
        self, function: TorchFunction, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> Any:
        with torch._C.DisableTorchFunction():
            tensors = list(tensors_in((args, kwargs)))
            if self.recorder.memory:
                self.recorder.memory.look(tensors)
            parents = tuple(self.recorder.ref(tensor) for tensor in tensors)
        try:
            result = func(*args, **kwargs)
        except BaseException as error:
            self._note_failure(error, function, parents, tensors, frame)
            raise
        if function.exports_memory:
            self._lend(tensors, function, frame)
        if self._counter is not None:
            self._counted()
        value = result if type(result) in (bool, int, float, complex) else None
        site = self.sites.site(frame)
        before = len(self.log.rows)
        self.log.escapes.append(EscapeRecord(function, parents, value, self.recorder.module, site, before))
        return result

    def _run_backward(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch._C.DisableTorchFunction():
            roots = tuple(self.recorder.ref(tensor) for tensor in tensors_in((args, kwargs)))
            self.recorder.gradients_arrived(roots)
            if self.recorder.gradients is not None:
                self.recorder.gradients.watch(tensors_in((args, kwargs)))
                self.recorder.note_scale(roots)
            if self.restorer is not None:
                self.restorer.before_backward()
        try:
            return func(*args, **kwargs)
        finally:
            if self._counter is not None:
                self._counted()

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
        with torch._C.DisableTorchFunction():
            shapes = tuple(tuple(t.shape) if not t.is_nested else () for t in tensors)
        site = self.sites.site(frame)
        text = f"{type(error).__name__}: {error}"
        before = len(self.log.rows)
        self.failure = (error, Failure(function, parents, shapes, self.recorder.module, site, text, before))
