"""Notes and warnings about unwatched work: on other threads, or in collectives that no torch function started."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable
from functools import cache
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from .._torch.containers import Path
from .._torch.functions.facts import Origin, TorchFunction
from .._torch.internals import (
    DisableTorchFunction,
    backward_hooks_of,
    hooks_of,
    is_functorch_wrapped,
    is_of_custom_function,
    outside_dispatch_modes,
)
from .._torch.restore_state import StateRestorer
from .._torch.tensor_table import PLAIN_CLASSES, Entry, TensorTable, storage_of, storages_of
from ..errors import UnseenWorkWarning
from ..log.grad_fn_names import NodeNames
from ..log.records import FUNCTION, MODULE, NODE, SITE, UNSAVED, Details, Log, ModuleCall, Row, facts_of
from .gradients import GradientWatcher
from .identity import MARKERS, Arguments, Explainer, OutsideTensors, SharedMemory, view_of
from .keeper import Keeper


class UnseenWatch:
    """What one recording could not see."""

    def __init__(self, log: Log, warns: bool) -> None:
        self.message = ""  # what could not be watched, in words
        self._log = log
        self._warns = warns
        self._threads = list(map(weakref.ref, _threads()))  # those there were at the start
        self._elsewhere: str | None = None  # a module that ran on another thread

    def ran_elsewhere(self, address: str) -> None:
        """A module of this model runs on another thread. Whether it does so for this pass is known when its result is used."""
        self._elsewhere = address

    def is_new(self, thread: threading.Thread) -> bool:
        """Whether a thread was not there when the recording began."""
        return all(known() is not thread for known in self._threads)

    def suspect_threads(self) -> None:
        """A tensor arrived unexplained: if threads were at work, say so, once."""
        if self.message or (self._elsewhere is None and not any(map(self.is_new, _threads()))):
            return
        who = f" (module {self._elsewhere!r} ran on another thread)" if self._elsewhere else ""
        self.message = (
            f"a tensor arrived that no operation on this thread made{who}. Work on other threads cannot be watched, so it is "
            "missing from this history. Run the model on one thread to log all of it."
        )
        self._log.notes.append(self.message)
        if self._warns:
            warnings.warn(self.message, UnseenWorkWarning, stacklevel=2)

    def note_collective(self) -> None:
        """A collective ran that no watched call made: say so, once."""
        message = (
            "a collective ran that could not be seen, such as a method of a process group. The tensors it may have written to "
            "are not served. Call the functions of torch.distributed instead."
        )
        if message not in self._log.notes:
            self._log.notes.append(message)
            warnings.warn(message, UnseenWorkWarning, stacklevel=2)


def _threads() -> list[threading.Thread]:
    """Every thread object Python still knows, running or finished."""
    for _ in range(100):
        try:
            return [*getattr(threading, "_dangling", ()), *threading.enumerate()]
        except RuntimeError:  # another thread started or ended while the set was read
            continue
    return threading.enumerate()


# Marks the gradients that a replay cannot work out again: they went backward through code that is not in the log.
#
# `torch.autograd.grad` inside a forward is an operation: a replay makes the graph anew and calls it again. Where the
# graph holds a `torch.autograd.Function`, TorchScript or another extension, the log has what these returned, and not
# their backward.

_NOWHERE: frozenset[int] = frozenset()


def mark_unseen_backward(log: Log) -> None:
    """Mark results of `torch.autograd.grad` that depend on what a `torch.autograd.Function`, or unwatched code, returned."""
    calls = {number for number, function in enumerate(log.functions) if function.func is torch.autograd.grad}
    if not calls:
        return
    inside = _CustomFunctions(log)
    unseen = {number for number, function in enumerate(log.functions) if _is_unseen(function)}
    behind: set[int] = set()
    for number, row in enumerate(log.rows):
        here = inside.around(row[SITE], row[MODULE])
        parents = log.operations[number].dependencies
        if (
            (row[FUNCTION] in unseen and row[NODE] is not None)
            or not behind.isdisjoint(parents)
            or any(inside.around(log.rows[parent][SITE], log.rows[parent][MODULE]) - here for parent in parents)
        ):
            behind.add(number)
            if row[FUNCTION] in calls:
                log.detail(number).is_through_unseen = True


def _is_unseen(function: TorchFunction) -> bool:
    return function.origin in (Origin.OPAQUE, Origin.SOURCE) or function.is_gradient


class _CustomFunctions:
    """The codes of `torch.autograd.Function.forward` that operations ran in."""

    def __init__(self, log: Log) -> None:
        self._log = log
        codes = (log.codes.code(number) for number in range(len(log.codes)))
        self._custom = frozenset(number for number, code in enumerate(codes) if _is_forward(code))
        self.around = cache(self._around)

    def _around(self, site: int, module: int) -> frozenset[int]:
        if not self._custom:
            return _NOWHERE
        found = self._custom.intersection(self._log.sites[site].codes) if site >= 0 else _NOWHERE
        call: ModuleCall | None = self._log.modules[module] if module >= 0 else None
        while call is not None:
            if call.site is not None:
                found |= self._custom.intersection(call.site.codes)
            call = call.outer
        return found


def _is_forward(code: CodeType | None) -> bool:
    return code is not None and is_of_custom_function(code, "forward")


# Writes records: the part of capture that knows where every tensor came from.
#
# The interceptor reports torch calls, the module watcher reports modules; both ask here which record a tensor stands
# for.

_SCALER = os.path.join("amp", "grad_scaler.py")


class Recorder:
    """The records of one recording, and what is needed to write the next one."""

    def __init__(self, log: Log, keeper: Keeper, warns: bool = True) -> None:
        self.log = log
        self.keeper = keeper
        self.table = TensorTable()
        self.table.shared = keeper.shared
        self.memory = SharedMemory(self)
        self.restorer: StateRestorer | None = None  # where the pass is to leave everything as it was
        self.nodes = NodeNames(log.rows)
        self.gradients = GradientWatcher(log, self._leaf) if log.backward is not None else None
        self.stack: list[ModuleCall] = []
        self.running: list[torch.nn.Module] = []  # the modules of `stack`
        self.modules: list[torch.nn.Module] = []  # all that are known
        self.hooks_gradients = False  # whether a hook was put on a tensor
        self.registered: set[int] = set()  # the ids of parameters and buffers that modules have; the log holds them
        self.outside = OutsideTensors(log, self.table, keeper, self.registered)
        self.unseen = UnseenWatch(log, warns)
        self.transform_met: Callable[[], None] = lambda: None  # called where tensors of a transform of torch.func are met
        self._explainer = Explainer(self)
        self.suspects: dict[int, weakref.ref[Tensor]] = {}  # sources that unwatched code may have made in this pass
        self.has_wrappers = False  # whether a model is compiled or parallel
        self._from_outside_models: dict[int, bool] = {}  # by operation: whether no model and no parameter had a part in it
        self.calls = 0
        self._function_numbers: dict[TorchFunction, int] = {}
        self._state_numbers: dict[int, int] = {}  # of parameters and buffers, by id
        self._backward_roots: tuple[int, ...] = ()

    @property
    def module(self) -> ModuleCall | None:
        return self.stack[-1] if self.stack else None

    # Which record a tensor stands for -----------------------------------------------------------------------------

    def ref(self, tensor: Tensor) -> int:
        """The number of the record `tensor` stands for."""
        return (self.table.find(tensor) or self.explain(tensor)).number

    def explain(self, tensor: Tensor, leaving: ModuleCall | None = None) -> Entry:
        """The entry of a tensor seen for the first time. Must run where torch functions are not watched."""
        if id(tensor) in self.registered:
            return self.state(tensor)
        with DisableTorchFunction(), outside_dispatch_modes():
            hollow = self.table.still_hollow(tensor)
            if hollow is not None:
                self.log.hollow.discard(hollow.number)
                return hollow
            if is_functorch_wrapped(tensor):
                self.transform_met()
            is_foreign = type(tensor) is Tensor and self.memory.meet(tensor)
            entry = self._explainer.explain(tensor, self.table.storage_of(tensor), leaving)
            if is_foreign:
                self.memory.lend(tensor, "outside")
            return entry

    def is_computed(self, tensor: Tensor | None) -> bool:
        """Whether a parameter was worked out from an input."""
        if tensor is None or is_lazy(tensor):
            return False
        with DisableTorchFunction():
            return self._explainer.is_computed(self.table.storage_of(tensor))

    def state(self, tensor: Tensor) -> Entry:
        tensors = self.log.states.tensors
        tensors.append(tensor)
        entry = self.table.entries[id(tensor)] = Entry(tensor)
        entry.number = -len(tensors)
        entry.storage = storage_of(tensor) if not self.table.homes else self.table.storage_of(tensor)
        if type(tensor) is Tensor:  # a buffer
            with DisableTorchFunction():
                if self.memory.meet(tensor):
                    self.memory.lend(tensor, "outside")
        return entry

    def protect(self, storage: int) -> None:
        """This storage may be overwritten from now on: copy the old values for every kept activation and backup."""
        with outside_dispatch_modes():
            self.keeper.before_write(storage)
            if self.restorer is not None:
                living = self.outside.living_in(storage)
                if living:
                    self.restorer.back_up(living)
                    # FSDP makes parameters for the pass and frees them
                    self.outside.keep_states(storage, also_registered=False)
            elif self.keeper.selection is None:
                self.outside.keep_states(storage)

    # Records that are not torch calls -----------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, path: tuple[Any, ...]) -> Entry:
        """`tensor` is given to the model from outside."""
        entry = self.table.find(tensor)
        if entry is not None:
            self.log.input_paths.setdefault(entry.number, []).append(path)
            return entry
        with DisableTorchFunction():
            is_foreign = type(tensor) is Tensor and self.memory.meet(tensor)
            self.log.input_paths[len(self.log.rows)] = [path]
            self.outside.add(tensor)
            storage = self.table.storage_of(tensor)
            state = self._explainer.registered_around(tensor, storage)
            entry = self.write(MARKERS[Origin.INPUT], (), tensor, storage)
            if state is not None:
                (_, _, _, distance), _, _ = view_of(tensor, state)
                self.log.detail(entry.number).home = self.state(state).number, distance
            if is_foreign:
                self.memory.lend(tensor, "outside")
            return entry

    def enters(self, tensor: Tensor) -> None:
        """In a recording, `tensor` is given to a model by the code around it: an input, unless a model had a part in it."""
        if self.memory:
            self.memory.look([tensor])
        entry = self.table.find(tensor)
        if entry is None:
            self.explain(tensor)
            return
        if entry.number < 0 or is_functorch_wrapped(tensor) or self.log.operations[entry.number].origin is Origin.INPUT:
            return
        entry = self.current(tensor, entry)
        if self._is_outside_models(entry.number):
            self.log.input_paths[len(self.log.rows)] = [()]
            self.write(MARKERS[Origin.INPUT], (entry.number,), tensor, entry.storage)

    def _is_outside_models(self, number: int) -> bool:
        """Whether the result of an operation was computed without any module and any parameter."""
        known = self._from_outside_models
        waiting = [number]
        while waiting:
            here = waiting[-1]
            record = self.log.operations[here]
            if record.module is not None or min(record.parents, default=0) < 0:
                known[here] = False
            if here in known:
                waiting.pop()
                continue
            unknown = [parent for parent in record.dependencies if parent not in known]
            if not unknown:
                known[here] = all(known[parent] for parent in record.dependencies)
            waiting += unknown
        return known[number]

    def add_outputs(self, outputs: list[tuple[Path, Tensor]]) -> None:
        """Tensors are handed back by the model. Must run where torch functions are not watched."""
        if self.memory:  # what was written to them unseen is recorded first: outputs come last in a log
            self.memory.look([tensor for _, tensor in outputs])
        known = [self.table.find(tensor) or self.explain(tensor, self._whole_model()) for _, tensor in outputs]
        for (path, tensor), entry in zip(outputs, known, strict=True):
            self._add_output(tensor, path, entry)

    def _add_output(self, tensor: Tensor, path: Path, known: Entry) -> None:
        parent = known.number
        also = self.also([tensor])[0] if self.table.last_write else ()
        log = self.log
        number = self.append(self._row(MARKERS[Origin.OUTPUT], (parent,), tensor))
        log.details[number] = Details(also=also, output_path=path)
        if self.gradients is not None:
            log.values[number] = handed = self._apart(tensor)  # with its autograd graph, for the user to run backward from
            if handed is not tensor:
                self.gradients.note_handed(number, handed)
        elif parent >= 0 and self.keeper.selection is None and not also and self._is_there(parent):
            kept = log.values[parent]  # a copy, where its memory was handed out
            is_alias = isinstance(kept, Tensor) and self.table.storage_of(kept) == known.storage
            self.keeper.share(number, parent, known.storage if is_alias else None)
        else:
            self.keeper.keep_if_wanted(number, tensor)
        if also and log.values[number] is not UNSAVED:
            log.details[number].held = self.keeper.hold_arguments([(0, tensor)])

    def _is_there(self, number: int) -> bool:
        """Whether the tensor of a record is kept, and nothing unseen has written to it."""
        return self.log.values[number] is not UNSAVED and not self.log.is_lost(number)

    def _apart(self, tensor: Tensor) -> Tensor:
        """A tensor, or a copy where its memory is the user's and is going to be restored.

        Of parameters and inputs a view: its node tells a backward pass from the model's output from those of other graphs.
        """
        restored = self.restorer.written_storages() if self.restorer is not None else set()
        with torch.enable_grad():
            if not restored.isdisjoint(storages_of(tensor)):
                return tensor.clone()
            is_given = self.gradients is not None and tensor.requires_grad and self.gradients.is_given(tensor)
            return tensor.view_as(tensor) if is_given and tensor.layout is torch.strided and not tensor.is_nested else tensor

    def _whole_model(self) -> ModuleCall | None:
        inputs = tuple(r.number for r in self.log.operations if r.origin is Origin.INPUT)
        return ModuleCall(-1, "", self.log.title, 1, None, None, False, 0, inputs=inputs) if inputs else None

    def function_number(self, function: TorchFunction) -> int:
        """The number of a function in the log."""
        number = self._function_numbers.get(function)
        if number is None:
            number = self._function_numbers[function] = len(self.log.functions)
            self.log.functions.append(function)
        return number

    def append(self, row: Row) -> int:
        """Write down an operation of which nothing is kept yet. Returns its number."""
        self.keeper.storages.append(None)
        return self.log.append(row)

    def cut_unfinished(self) -> None:
        """Forget the operation that was being written down when an interrupt came; the columns of the log are of one length."""
        log = self.log
        columns: tuple[list[Any], ...] = (log.rows, log.values, log.versions, self.keeper.storages)
        length = min(map(len, columns))
        for column in columns:
            del column[length:]
        for number in [number for number in log.details if number >= length]:
            del log.details[number]
        self.table.cut(length)

    def _row(
        self,
        function: TorchFunction,
        parents: tuple[int, ...],
        tensor: Tensor,
        arguments: Arguments = ((), (), -1),
    ) -> Row:
        template, names, site = arguments
        module = self.stack[-1].number if self.stack else -1
        number = self.function_number(function)
        node = self.nodes.name(tensor, number)
        return (number, template, names, module, site, 0, 0, node, facts_of(tensor), *parents)

    def write(
        self,
        function: TorchFunction,
        parents: tuple[int, ...],
        tensor: Tensor,
        storage: int | None,
        arguments: Arguments = ((), (), -1),
    ) -> Entry:
        """Write down a tensor that no watched call made."""
        number = self.append(self._row(function, parents, tensor, arguments))
        if tensor.requires_grad and not parents:
            self.log.leaves.add(number)
        self.keeper.keep_if_wanted(number, tensor)
        self.table.point_inside(tensor, number, storage)
        if self.gradients is not None:
            self.gradients.note(number, tensor, is_given=not parents)
        return self.table.point(tensor, number, storage)

    def _leaf(self, tensor: Tensor) -> int | None:
        """The number of an input or parameter whose gradient autograd adds up."""
        if isinstance(tensor, Parameter):  # whatever was written to it since
            for state in self.log.states[len(self._state_numbers) :]:
                self._state_numbers.setdefault(id(state.tensor), state.number)
            number = self._state_numbers.get(id(tensor))
            return number if number is not None else self.state(tensor).number
        entry = self.table.find(tensor)
        return entry.number if entry is not None else None

    def unseen_collective(self) -> None:
        """A collective ran that no watched call made: it may have written to any tensor that is alive."""
        if self.has_wrappers and not self.stack:
            return  # a parallel wrapper sends buffers around before the model runs
        living = self.table.live_storages() - {s for state in self.log.states.tensors for s in storages_of(state)}
        for storage in living:
            self.keeper.lose(storage)
        self.unseen.note_collective()

    # Memory ---------------------------------------------------------------------------------------------------------

    def also(self, tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], list[int]]:
        """Writes that reached these tensors through other views since they were recorded, and whose slots they are."""
        last_write = self.table.last_write
        found: dict[int, None] = {}
        slots: list[int] = []
        for slot, tensor in enumerate(tensors):
            entry = self.table.find(tensor)
            if entry is None or (type(tensor) in PLAIN_CLASSES and last_write.get(entry.storage, -1) <= entry.number):
                continue
            since = self.table.writes_since(tensor, entry.number)
            if since:
                slots.append(slot)
                found.update(dict.fromkeys(since))
        return tuple(found), slots

    def current(self, tensor: Tensor, entry: Entry) -> Entry:
        """The entry of a tensor that crosses a module's boundary, with its present values.

        If another view wrote to it since it was recorded, it gets a new record here, so that the values kept for the
        boundary are those that crossed it.
        """
        if type(tensor) in PLAIN_CLASSES and self.table.last_write.get(entry.storage, -1) <= entry.number:
            return entry
        with DisableTorchFunction():
            if self.memory:
                self.memory.look([tensor])
                entry = self.table.find(tensor) or entry
            since = self.table.writes_since(tensor, entry.number)
            if not since:
                return entry
            arguments = view_of(tensor, tensor)
            entry = self.write(MARKERS[Origin.ALIAS], (entry.number,), tensor, entry.storage, arguments)
            details = self.log.detail(entry.number)
            details.also = tuple(since)
            if self.log.values[entry.number] is not UNSAVED:
                details.held = self.keeper.hold_arguments([(0, tensor)])
            return entry

    def gradients_arrived(self, roots: tuple[int, ...]) -> None:
        """A backward pass from these records is about to fill `.grad`s: those that are there may be added to in place."""
        self._backward_roots = roots
        for tensor in self.outside.known():
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None and self.table.find(gradient) is not None:
                for storage in storages_of(gradient):
                    self.protect(storage)
                del self.table.entries[id(gradient)]  # what is read afterwards is another value

    def note_scale(self, roots: tuple[int, ...]) -> None:
        """Note what a gradient scaler multiplied the loss by. Not read here: that would wait for the device."""
        assert self.log.backward is not None
        self.log.backward.scale = None
        for record in (self.log.operations[number] for number in roots if number >= 0):
            if record.site is not None and any(one.file.endswith(_SCALER) for one in record.site.functions):
                factor = self.log.values[record.parents[-1]]  # the loss times the scale
                self.log.backward.scale = factor if isinstance(factor, Tensor) else None

    def may_change_gradients(self, tensors: list[Tensor]) -> bool:
        """Whether there are backward hooks, on tensors or on modules, that may change the gradients of these."""
        if self.hooks_gradients:
            return True
        with DisableTorchFunction():
            hooked = any(hooks_of(tensor) for tensor in (*tensors, *self.log.states.tensors))
        return hooked or any(map(backward_hooks_of, self.modules))

    def backward_roots(self) -> tuple[int, ...]:
        return tuple(n for n in self._backward_roots if n >= 0)

    def _mark_passing(self) -> None:
        """Mark the sources that are gone now that all is put back: they were made in the pass.

        Where gradients are followed autograd may hold them, so those that no module has count as made in the pass.
        """
        if not self.suspects:
            return
        if self.restorer is not None:
            self.restorer.let_go()
        has_graph = self.log.backward is not None
        held = {id(value) for module in self.modules for value in vars(module).values()} if has_graph else set()
        for number, suspect in self.suspects.items():
            tensor = suspect()
            if tensor is None or (has_graph and id(tensor) not in held):
                self.log.detail(number).is_passing = True
        self.suspects.clear()

    def close(self) -> None:
        """Let go of everything but the log."""
        mark_unseen_backward(self.log)
        self.log.states.mark()
        if self.log.backward is not None:
            self.log.backward.scale = None
        self.gradients = None
        self.transform_met = lambda: None  # what was there leads back here
        self.table.clear()
        self.stack.clear()
        self.registered.clear()
        self.memory.clear()
        self.outside.clear()
        self._mark_passing()
        self.running.clear()
        self.modules.clear()
