"""Writes the records of one recording, and knows the record of every tensor.

The interceptor reports torch calls and the module watcher reports modules; both ask `Recorder` for the record of a tensor.
`UnseenWatch` warns about work that could not be watched: on other threads, or in unwatched collectives.
"""

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
    """Warns once about work that this recording could not see."""

    def __init__(self, log: Log, warns: bool) -> None:
        self.message = ""  # the warning's text
        self._log = log
        self._warns = warns
        self._threads = list(map(weakref.ref, _threads()))  # threads that existed at the start
        self._elsewhere: str | None = None  # a module that ran on another thread

    def ran_elsewhere(self, address: str) -> None:
        """Called when a module of this model ran on another thread. The warning comes only if this pass uses the result."""
        self._elsewhere = address

    def is_new(self, thread: threading.Thread) -> bool:
        """True if the thread started after the recording began."""
        return all(known() is not thread for known in self._threads)

    def suspect_threads(self) -> None:
        """Called when a tensor of unknown origin is used: if other threads were running, warn once."""
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
        """Warn once about a collective that no watched call started."""
        message = (
            "a collective ran that could not be seen, such as a method of a process group. The tensors it may have written to "
            "are marked as lost. Call the functions of torch.distributed instead."
        )
        if message not in self._log.notes:
            self._log.notes.append(message)
            warnings.warn(message, UnseenWorkWarning, stacklevel=2)


def _threads() -> list[threading.Thread]:
    """All thread objects Python still knows, running or finished."""
    for _ in range(100):
        try:
            return [*getattr(threading, "_dangling", ()), *threading.enumerate()]
        except RuntimeError:  # another thread started or ended while the set was read
            continue
    return threading.enumerate()


# Marks gradients that a replay cannot recompute, because they went backward through code that is not in the log.
#
# `torch.autograd.grad` inside a forward is an operation: a replay rebuilds the graph and calls it again. If the graph
# contains a `torch.autograd.Function`, TorchScript or another extension, the log has their results, but not their backward.

_NOWHERE: frozenset[int] = frozenset()


def mark_unseen_backward(log: Log) -> None:
    """Mark results of `torch.autograd.grad` that depend on a `torch.autograd.Function` or on unwatched code."""
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
    """The code objects of `torch.autograd.Function.forward` in which operations ran."""

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


# Writes records.
#
# The interceptor reports torch calls, the module watcher reports modules; both ask here for the record of a tensor.

_SCALER = os.path.join("amp", "grad_scaler.py")


class Recorder:
    """The records of one recording, and the state needed to write the next record."""

    def __init__(self, log: Log, keeper: Keeper, warns: bool = True) -> None:
        self.log = log
        self.keeper = keeper
        self.table = TensorTable()
        self.table.shared = keeper.shared
        self.memory = SharedMemory(self)
        self.restorer: StateRestorer | None = None  # set if the pass is undone at its end
        self.nodes = NodeNames(log.rows)
        self.gradients = GradientWatcher(log, self._leaf) if log.backward is not None else None
        self.stack: list[ModuleCall] = []
        self.running: list[torch.nn.Module] = []  # the modules of `stack`
        self.modules: list[torch.nn.Module] = []  # all known modules
        self.hooks_gradients = False  # True if a hook was registered on a tensor
        self.registered: set[int] = set()  # ids of all registered parameters and buffers, which the log keeps alive
        self.outside = OutsideTensors(log, self.table, keeper, self.registered)
        self.unseen = UnseenWatch(log, warns)
        self.transform_met: Callable[[], None] = lambda: None  # called when a tensor of a torch.func transform appears
        self._explainer = Explainer(self)
        self.suspects: dict[int, weakref.ref[Tensor]] = {}  # sources that unwatched code may have made in this pass
        self.has_wrappers = False  # True if a model is compiled or parallel
        self._from_outside_models: dict[int, bool] = {}  # operation -> True if it depends on no module and no parameter
        self.calls = 0
        self._function_numbers: dict[TorchFunction, int] = {}
        self._state_numbers: dict[int, int] = {}  # id of a parameter or buffer -> its number
        self._backward_roots: tuple[int, ...] = ()

    @property
    def module(self) -> ModuleCall | None:
        return self.stack[-1] if self.stack else None

    # Finding the record of a tensor -------------------------------------------------------------------------------

    def ref(self, tensor: Tensor) -> int:
        """The number of the record of `tensor`."""
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
        """True if a parameter was computed from an input."""
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
        """Called before this storage is written to: copy its values for all kept activations and backups."""
        with outside_dispatch_modes():
            self.keeper.before_write(storage)
            if self.restorer is not None:
                living = self.outside.living_in(storage)
                if living:
                    self.restorer.back_up(living)
                    # FSDP allocates parameters for the pass and frees them
                    self.outside.keep_states(storage, also_registered=False)
            elif self.keeper.selection is None:
                self.outside.keep_states(storage)

    # Records that are not torch calls -----------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, path: tuple[Any, ...]) -> Entry:
        """Record `tensor` as an input of the model."""
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
        """In `recording()`, the user's code passes `tensor` to a model: it is an input if no model computed it."""
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
        """True if an operation depends on no module and no parameter."""
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
        """Record the model's outputs. Must run where torch functions are not watched."""
        if self.memory:  # writes to shared memory that nobody saw are recorded first, because outputs come last in a log
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
            # kept with its autograd graph, so that the user can call backward
            log.values[number] = handed = self._apart(tensor)
            if handed is not tensor:
                self.gradients.follow(number, handed)  # gradients of the output arrive through this tensor
        elif parent >= 0 and self.keeper.selection is None and not also and self._is_there(parent):
            kept = log.values[parent]  # the parent holds a copy if its memory was handed out
            is_alias = isinstance(kept, Tensor) and self.table.storage_of(kept) == known.storage
            self.keeper.share(number, parent, known.storage if is_alias else None)
        else:
            self.keeper.keep_if_wanted(number, tensor)
        if also and log.values[number] is not UNSAVED:
            log.details[number].held = self.keeper.hold_arguments([(0, tensor)])

    def _is_there(self, number: int) -> bool:
        """True if the activation of a record is kept, and no unwatched code wrote to it."""
        return self.log.values[number] is not UNSAVED and not self.log.is_lost(number)

    def _apart(self, tensor: Tensor) -> Tensor:
        """Return the tensor itself; or a copy, if it is in memory of the user that will be restored.

        For a parameter or input, returns a view: by the view's node, a backward pass from the model's output differs from
        backward passes of other graphs.
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
        """Append an operation without a kept value. Returns its number."""
        self.keeper.storages.append(None)
        return self.log.append(row)

    def cut_unfinished(self) -> None:
        """Remove the operation that an interrupt left half written, so that all columns of the log have the same length."""
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
        """Write a record for a tensor that no watched call made."""
        number = self.append(self._row(function, parents, tensor, arguments))
        if tensor.requires_grad and not parents:
            self.log.leaves.add(number)
        self.keeper.keep_if_wanted(number, tensor)
        self.table.point_inside(tensor, number, storage)
        if self.gradients is not None:
            self.gradients.note(number, tensor, is_given=not parents)
        return self.table.point(tensor, number, storage)

    def _leaf(self, tensor: Tensor) -> int | None:
        """If autograd accumulates the gradient of `tensor`, an input or parameter, return its number; else None."""
        if isinstance(tensor, Parameter):  # a parameter counts even if it was written to since
            for state in self.log.states[len(self._state_numbers) :]:
                self._state_numbers.setdefault(id(state.tensor), state.number)
            number = self._state_numbers.get(id(tensor))
            return number if number is not None else self.state(tensor).number
        entry = self.table.find(tensor)
        return entry.number if entry is not None else None

    def unseen_collective(self) -> None:
        """Called when a collective ran that no watched call started: it may have written to any live tensor."""
        if self.has_wrappers and not self.stack:
            return  # a parallel wrapper broadcasts buffers before the model runs
        living = self.table.live_storages() - {s for state in self.log.states.tensors for s in storages_of(state)}
        for storage in living:
            self.keeper.lose(storage)
        self.unseen.note_collective()

    # Memory ---------------------------------------------------------------------------------------------------------

    def also(self, tensors: Iterable[Tensor]) -> tuple[tuple[int, ...], list[int]]:
        """Find writes that reached these tensors through other views since they were recorded, and the tensors' slots."""
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
        """Return the entry of a tensor that enters or leaves a module, for the values it has now.

        If another view wrote to the tensor since it was recorded, the tensor gets a new record, so that the log keeps the
        values that entered or left the module.
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
        """Called before a backward pass from these records: protect existing `.grad`s, which may be added to in place."""
        self._backward_roots = roots
        for tensor in self.outside.known():
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None and self.table.find(gradient) is not None:
                for storage in storages_of(gradient):
                    self.protect(storage)
                del self.table.entries[id(gradient)]  # a later read of the gradient is a different value

    def note_scale(self, roots: tuple[int, ...]) -> None:
        """Note the factor by which a gradient scaler multiplied the loss. Reading its value here would wait for the device."""
        assert self.log.backward is not None
        self.log.backward.scale = None
        for record in (self.log.operations[number] for number in roots if number >= 0):
            if record.site is not None and any(one.file.endswith(_SCALER) for one in record.site.functions):
                factor = self.log.values[record.parents[-1]]  # the loss times the scale
                self.log.backward.scale = factor if isinstance(factor, Tensor) else None

    def may_change_gradients(self, tensors: list[Tensor]) -> bool:
        """True if backward hooks, on tensors or modules, may change the gradients of these tensors."""
        if self.hooks_gradients:
            return True
        with DisableTorchFunction():
            hooked = any(hooks_of(tensor) for tensor in (*tensors, *self.log.states.tensors))
        return hooked or any(map(backward_hooks_of, self.modules))

    def backward_roots(self) -> tuple[int, ...]:
        return tuple(n for n in self._backward_roots if n >= 0)

    def _mark_passing(self) -> None:
        """Mark sources whose tensors do not exist any more after everything was restored: they were made in the pass.

        If gradients are followed, autograd may keep such tensors alive; then all sources that no module holds are marked.
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
        """Release all data except the log."""
        mark_unseen_backward(self.log)
        self.log.states.mark()
        if self.log.backward is not None:
            self.log.backward.scale = None
        self.gradients = None
        self.transform_met = lambda: None  # the old callback refers back to this object
        self.table.clear()
        self.stack.clear()
        self.registered.clear()
        self.memory.clear()
        self.outside.clear()
        self._mark_passing()
        self.running.clear()
        self.modules.clear()
