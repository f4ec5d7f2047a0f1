"""The TorchFunctionMode: one intercepted call becomes one record.

It reads the arguments, runs the call, and writes down what came out; everything that can be worked out later is left for
later. While the mode handles a call it is off, so torch may be used freely here. Another recording may be watching from below:
our own torch calls are hidden from it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode

from ...containers import PLAIN, tensors_in
from ...functions import facts, groups
from ...records import LOST, TENSOR, Composite, Details, Failure, Kind, PythonReadRecord, TorchFunction
from ...templates import template
from ...torch_internals import (
    DisableTorchFunction,
    count_function_modes,
    pop_function_mode,
    push_function_mode,
    storage_address,
    take_off_function_mode,
    write_count,
)
from ..identity.tensor_table import Entry, storages_of
from ..recorder import Recorder
from ..restore.restore_state import StateRestorer
from .arguments import ArgumentReader, leaves_gradients_alone
from .call_sites import CallSites, is_in_custom_function
from .collectives import CollectiveWatch
from .device_time import DeviceTimer
from .draws import DrawWatch
from .fused import NOTE
from .writing import CallWriter

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
