"""Writes records: the part of capture that knows where every tensor came from.

The interceptor reports torch calls, the module watcher reports modules; both ask here which record a tensor stands for.
A tensor that no record explains is explained in this order: a parameter or buffer; memory shared with a recorded tensor;
what left a module nobody could look into; autograd's own account of it; otherwise a source born inside the model.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..errors import UnseenWorkWarning
from ..functions import label_type
from ..records import TENSOR, UNSAVED, Details, Kind, Log, ModuleCall, Origin, Row, TorchFunction, facts_of, marks_of
from ..tensor_memory import has_memory
from .autograd.grad_fn_names import NodeNames
from .autograd.gradients import GradientWatcher
from .identity.shared_memory import SharedMemory, has_bytes
from .identity.tensor_table import (
    PLAIN_CLASSES,
    Entry,
    TensorTable,
    extent,
    is_same_view,
    is_wrapped,
    is_wrapper,
    memory_of,
    storage_of,
    storages_of,
    unwrap,
)
from .keep.keeper import Keeper, alias, copied
from .restore.restore_state import StateRestorer

_MARKERS = {
    origin: TorchFunction(None, origin.value, origin.value, Kind.OPERATION, origin=origin)
    for origin in (Origin.INPUT, Origin.OUTPUT, Origin.ALIAS, Origin.SOURCE)
}
_AUTOGRAD_LIMIT = 2000
_SCALER = os.path.join("amp", "grad_scaler.py")

# Of a record that is no torch call: a template of its arguments, the names of the last of them, its site.
Arguments = tuple[tuple[Any, ...], tuple[str, ...], int]


class Recorder:
    """The records of one recording, and what is needed to write the next one."""

    def __init__(self, log: Log, keeper: Keeper, warns: bool = True) -> None:
        self.log = log
        self.unseen = ""  # what could not be watched, in words
        self._warns = warns
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
        self._outside: dict[int, list[Tensor]] = {}  # by storage: tensors that were there before, and will be after
        self._filed_states = 0  # how many parameters and buffers are in `_outside`
        self.has_wrappers = False  # whether a model is compiled or parallel
        self._from_outside_models: dict[int, bool] = {}  # by operation: whether no model and no parameter had a part in it
        self.calls = 0
        self._function_numbers: dict[TorchFunction, int] = {}
        self._state_numbers: dict[int, int] = {}  # of parameters and buffers, by id
        self._backward_roots: tuple[int, ...] = ()
        self._threads = list(map(weakref.ref, _threads()))  # those there were at the start
        self._wrapped: tuple[int, dict[int, Tensor]] = (0, {})  # of how many modules, and what `_wrapped_states` gives
        self._elsewhere: str | None = None

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
            return self._state(tensor)
        with torch._C.DisableTorchFunction():
            hollow = self.table.still_hollow(tensor)
            if hollow is not None:
                self.log.hollow.discard(hollow.number)
                return hollow
            is_foreign = type(tensor) is Tensor and self.memory.meet(tensor)
            entry = self._explained(tensor, self.table.storage_of(tensor), leaving)
            if is_foreign:
                self.memory.lend(tensor, "outside")
            return entry

    def _explained(self, tensor: Tensor, storage: int | None, leaving: ModuleCall | None) -> Entry:
        if isinstance(tensor, Parameter) and not self._is_computed(storage):
            return self._state(tensor)
        known = self._alias(tensor, storage) or (self._wrapper(tensor) if type(tensor) not in PLAIN_CLASSES else None)
        if known is not None:
            return known
        if leaving is not None and leaving.first == len(self.log.rows):
            return self._opaque(tensor, storage, leaving)  # nothing inside could be watched
        return (
            self._by_autograd(tensor, storage)
            or (self._opaque(tensor, storage, leaving) if leaving is not None else None)
            or self._source(tensor, storage)
        )

    def _state(self, tensor: Tensor) -> Entry:
        tensors = self.log.states.tensors
        tensors.append(tensor)
        entry = self.table.entries[id(tensor)] = Entry(tensor)
        entry.number = -len(tensors)
        entry.storage = storage_of(tensor) if not self.table.homes else self.table.storage_of(tensor)
        if type(tensor) is Tensor:  # a buffer
            with torch._C.DisableTorchFunction():
                if self.memory.meet(tensor):
                    self.memory.lend(tensor, "outside")
        return entry

    def _wrapper(self, tensor: Tensor) -> Entry | None:
        """A wrapper (DTensor, a quantised weight) that was made around tensors that are known depends on them."""
        if not is_wrapper(tensor):
            return None
        inner = [self.table.find(part) or self._alias(part, self.table.storage_of(part)) for part in memory_of(tensor)]
        parents = tuple(dict.fromkeys(entry.number for entry in inner if entry is not None))
        if not parents:
            return None
        name = type(tensor).__name__
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        entry = self.write(function, parents, tensor, None)
        if self.table.last_write:
            self.log.detail(entry.number).also = self._writes_inside(tensor, inner)
        return entry

    def _writes_inside(self, tensor: Tensor, inner: list[Entry | None]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for part, entry in zip(memory_of(tensor), inner, strict=True):
            found.update(dict.fromkeys(self.table.writes_since(part, entry.number) if entry is not None else ()))
        return tuple(found)

    def outside(self, storage: int) -> list[Tensor]:
        """The tensors in this storage that were there before the pass, and will be after."""
        for tensor in self.log.states.tensors[self._filed_states :]:
            self._from_outside(tensor)
        self._filed_states = len(self.log.states)
        return self._outside.get(storage, [])

    def keep_states(self, storage: int, *, also_registered: bool = True) -> None:
        """Parameters and buffers in this storage are about to be overwritten for good: keep what they were."""
        tensors = set(map(id, self.outside(storage)))
        states = self.log.states
        for state in states:
            if (
                state.before is None
                and id(state.tensor) in tensors
                and (also_registered or id(state.tensor) not in self.registered)
                and has_memory(state.tensor)
            ):
                with torch.no_grad():
                    before = alias(state.tensor)
                    before = copied(before) if before is not None else None
                if before is not None:
                    states.before[state.number] = before

    def keep_passing_states(self) -> None:
        """Keep the parameters that exist only for the time of the pass, and what is kept in their memory."""
        for state in list(self.log.states.tensors):
            for storage in storages_of(state) if id(state) not in self.registered else ():
                self.keeper.before_write(storage)
                self.keep_states(storage, also_registered=False)

    def _from_outside(self, tensor: Tensor) -> None:
        if not has_memory(tensor):
            return  # FSDP gives it memory for the time of the pass
        for part in memory_of(tensor):
            storage = self.table.storage_of(part)
            if storage is not None:
                self._outside.setdefault(storage, []).append(tensor)

    def protect(self, storage: int) -> None:
        """Something may write to this storage from now on: keep the old values wherever somebody may want them."""
        self.keeper.before_write(storage)
        if self.restorer is not None:
            self.restorer.back_up(self.outside(storage))
            self.keep_states(storage, also_registered=False)  # FSDP makes parameters for the time of a pass, and frees them
        elif self.keeper.selection is None:
            self.keep_states(storage)

    def _relatives(self, storage: int | None) -> list[tuple[int, Tensor]]:
        """Known tensors that live in this storage, with the records they stand for."""
        if storage is None:
            return []
        if storage in self.table.shared:
            return self.table.living_in(storage) + self.memory.lent_in(storage)
        kept = self.keeper.kept_in(storage)
        if kept or not self.keeper.is_plain:
            return kept or self.table.living_in(storage)
        outside = [(self.table.find(tensor), tensor) for tensor in self.outside(storage)]  # the rest of what is known
        return [(entry.number, tensor) for entry, tensor in outside if entry is not None]

    def _is_computed(self, storage: int | None) -> bool:
        """Whether what is in this storage was worked out from an input: such a parameter was made, not met, by the model."""
        waiting = [number for number, _ in self._relatives(storage)]
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number >= 0 and number not in seen:
                seen.add(number)
                record = self.log.operations[number]
                if record.origin is Origin.INPUT:
                    return True
                waiting += record.dependencies
        return False

    def _alias(self, tensor: Tensor, storage: int | None) -> Entry | None:
        relatives = [(n, other) for n, other in self._relatives(storage) if storage in self._storages_of(other)]
        if not relatives:
            return self._inside_state(tensor, storage)
        if is_wrapped(tensor):
            twins = relatives
        else:
            twins = [(n, other) for n, other in relatives if is_wrapped(other) or is_same_view(tensor, other)]
        if twins:
            return self.table.point(tensor, max(n for n, _ in twins), storage)
        number, relative = max(relatives, key=lambda pair: (is_inside(tensor, pair[1]), pair[0]))
        return self.write(_MARKERS[Origin.ALIAS], (number,), tensor, storage, view_of(tensor, relative))

    def _storages_of(self, tensor: Tensor) -> set[int | None]:
        """Where `tensor` lives now: it may have been given other memory since it was recorded."""
        return {self.table.storage_of(part) for part in memory_of(unwrap(tensor))}

    def _inside_state(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """What is inside a parameter that is a wrapper (the whole numbers of a quantised weight) comes from that parameter."""
        if storage is None or (around := self._wrapped_states().get(storage)) is None:
            return None
        state = self.table.find(around) or self._state(around)
        return self.write(_MARKERS[Origin.ALIAS], (state.number,), tensor, storage)

    def _wrapped_states(self) -> dict[int, Tensor]:
        """The registered parameters and buffers that are wrappers, by the storages inside them."""
        modules = self.log.registered
        if self._wrapped[0] != len(modules):
            found: dict[int, Tensor] = {}
            for module in modules.values():
                for state in (*module.parameters.values(), *module.buffers.values()):
                    if state is not None and type(state) not in PLAIN_CLASSES:
                        found.update(dict.fromkeys(storages_of(state) if is_wrapper(state) else (), state))
            self._wrapped = (len(modules), found)
        return self._wrapped[1]

    def _by_autograd(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """Work that was not watched may still have been followed by autograd, back to tensors that are known."""
        if tensor.grad_fn is None or is_wrapped(tensor):
            return None
        parents = self._autograd_parents(tensor)
        if not parents:
            return None
        self._suspect_threads()
        name = type(tensor.grad_fn).__name__.removesuffix("0").removesuffix("Backward")
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        return self.write(function, parents, tensor, storage)

    def _autograd_parents(self, tensor: Tensor) -> tuple[int, ...]:
        known: dict[Any, int] = {}
        for recorded in list(self.table.entries.values()):
            live = recorded()
            if live is not None and live.grad_fn is not None and not is_wrapped(live):
                known[live.grad_fn] = recorded.number
        parents: dict[int, None] = {}
        waiting: list[Any] = [tensor.grad_fn]
        seen: set[Any] = set()
        while waiting and len(seen) < _AUTOGRAD_LIMIT:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if node in known:
                parents[known[node]] = None
            elif leaf is not None and (entry := self.table.find(leaf)) is not None:
                parents[entry.number] = None
            elif isinstance(leaf, Parameter):
                parents[self._state(leaf).number] = None
            else:
                waiting.extend(next_node for next_node, _ in node.next_functions)
        return tuple(sorted(parents, key=lambda number: (number < 0, number)))

    def _opaque(self, tensor: Tensor, storage: int | None, call: ModuleCall) -> Entry:
        kind = label_type(call.class_name)
        function = TorchFunction(None, call.class_name, kind, Kind.OPERATION, origin=Origin.OPAQUE)
        site = call.site.number if call.site is not None else -1
        return self.write(function, call.inputs, tensor, storage, (call.args, call.names, site))

    def _source(self, tensor: Tensor, storage: int | None) -> Entry:
        if self.log.is_recording and not self.stack:
            return self.add_input(tensor, ())
        number = len(self.log.rows)
        name = self._attribute_name(tensor)
        if name is not None:
            self.log.source_names[number] = name
        else:
            self._suspect_threads()
        self._from_outside(tensor)
        self.log.source_tensors.append(weakref.ref(tensor))
        return self.write(_MARKERS[Origin.SOURCE], (), tensor, storage)

    def _attribute_name(self, tensor: Tensor) -> str | None:
        """The module attribute that holds `tensor`, looked for in the modules that are running."""
        for call, module in zip(reversed(self.stack), reversed(self.running), strict=True):
            for name, value in vars(module).items():
                if value is tensor:
                    return f"{call.address}.{name}" if call.address else name
        return None

    def ran_elsewhere(self, address: str) -> None:
        """A module of this model runs on another thread; whether for this pass shows when its result arrives."""
        self._elsewhere = address

    def _suspect_threads(self) -> None:
        """A tensor arrived unexplained: if threads were at work, say so, once."""
        before = [thread() for thread in self._threads]
        threads = self._elsewhere is not None or any(thread not in before for thread in _threads())
        if not threads or self.unseen:
            return
        who = f" (module {self._elsewhere!r} ran on another thread)" if self._elsewhere else ""
        message = (
            f"a tensor arrived that no operation on this thread made{who}. Work on other threads cannot be watched, so it is "
            "missing from this history. Run the model on one thread to log all of it."
        )
        self.unseen = message
        self.log.notes.append(message)
        if self._warns:
            warnings.warn(message, UnseenWorkWarning, stacklevel=2)

    # Records that are not torch calls -----------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, path: tuple[Any, ...]) -> Entry:
        """`tensor` is given to the model from outside."""
        entry = self.table.find(tensor)
        if entry is not None:
            self.log.input_paths.setdefault(entry.number, []).append(path)
            return entry
        with torch._C.DisableTorchFunction():
            is_foreign = type(tensor) is Tensor and self.memory.meet(tensor)
            self.log.input_paths[len(self.log.rows)] = [path]
            self._from_outside(tensor)
            entry = self.write(_MARKERS[Origin.INPUT], (), tensor, self.table.storage_of(tensor))
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
        if entry.number < 0 or is_wrapped(tensor) or self.log.operations[entry.number].origin is Origin.INPUT:
            return
        entry = self.current(tensor, entry)
        if self._is_outside_models(entry.number):
            self.log.input_paths[len(self.log.rows)] = [()]
            self.write(_MARKERS[Origin.INPUT], (entry.number,), tensor, entry.storage)

    def _is_outside_models(self, number: int) -> bool:
        """Whether neither a module nor a parameter had a part in the result of an operation."""
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

    def add_output(self, tensor: Tensor, path: tuple[Any, ...]) -> None:
        """`tensor` is handed back by the model. Must run where torch functions are not watched."""
        if self.memory:
            self.memory.look([tensor])
        known = self.table.find(tensor) or self.explain(tensor, self._whole_model())
        parent = known.number
        also = self.also([tensor])[0] if self.table.last_write else ()
        log = self.log
        number = self.append(self._row(_MARKERS[Origin.OUTPUT], (parent,), tensor))
        log.details[number] = Details(also=also, output_path=path)
        if self.gradients is not None:
            log.values[number] = tensor  # with its autograd graph, for the user to run backward from
        elif parent >= 0 and log.values[parent] is not UNSAVED and not also and self.keeper.selection is None:
            self.keeper.share(number, parent, known.storage)
        else:
            self.keeper.keep_if_wanted(number, tensor)

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
            return number if number is not None else self._state(tensor).number
        entry = self.table.find(tensor)
        return entry.number if entry is not None else None

    def unseen_collective(self) -> None:
        """A collective ran that no watched call made: it may have written to any tensor that is alive."""
        if self.has_wrappers and not self.stack:
            return  # a parallel wrapper sends buffers around before the model runs
        living = self.table.live_storages() - {s for state in self.log.states.tensors for s in storages_of(state)}
        for storage in living:
            self.keeper.lose(storage)
        message = (
            "a collective ran that could not be seen, such as a method of a process group. The tensors it may have written to "
            "are not served. Call the functions of torch.distributed instead."
        )
        if message not in self.log.notes:
            self.log.notes.append(message)
            warnings.warn(message, UnseenWorkWarning, stacklevel=2)

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
        """The entry of a tensor that crosses a module's boundary, as it is now.

        What was written to it through another view since it was recorded makes it a record of its own, so that what is
        kept for the boundary is what crossed it.
        """
        if type(tensor) in PLAIN_CLASSES and self.table.last_write.get(entry.storage, -1) <= entry.number:
            return entry
        with torch._C.DisableTorchFunction():
            if self.memory:
                self.memory.look([tensor])
                entry = self.table.find(tensor) or entry
            since = self.table.writes_since(tensor, entry.number)
            if not since:
                return entry
            arguments = view_of(tensor, tensor)
            entry = self.write(_MARKERS[Origin.ALIAS], (entry.number,), tensor, entry.storage, arguments)
            self.log.detail(entry.number).also = tuple(since)
            return entry

    def gradients_arrived(self, roots: tuple[int, ...]) -> None:
        """A backward pass from these records is about to fill `.grad`s."""
        self._backward_roots = roots

    def note_scale(self, roots: tuple[int, ...]) -> None:
        """Note what a gradient scaler multiplied the loss by. Not read here: that would wait for the device."""
        assert self.log.backward is not None
        self.log.backward.scale = None
        for record in (self.log.operations[number] for number in roots if number >= 0):
            if record.site is not None and any(code.co_filename.endswith(_SCALER) for code in record.site.codes):
                factor = self.log.values[record.parents[-1]]  # the loss times the scale
                self.log.backward.scale = factor if isinstance(factor, Tensor) else None

    def may_change_gradients(self, tensors: list[Tensor]) -> bool:
        """Whether there are backward hooks, on tensors or on modules, that may change the gradients of these."""
        if self.hooks_gradients:
            return True
        with torch._C.DisableTorchFunction():
            hooked = any(tensor._backward_hooks for tensor in (*tensors, *self.log.states.tensors))
        return hooked or any(module._backward_hooks or module._backward_pre_hooks for module in self.modules)

    def backward_roots(self) -> tuple[int, ...]:
        return tuple(n for n in self._backward_roots if n >= 0)

    def close(self) -> None:
        """Let go of everything but the log."""
        states = self.log.states
        states.marks = marks_of(states.tensors)
        if self.log.backward is not None:
            self.log.backward.scale = None
        self.gradients = None
        self.table.clear()
        self.stack.clear()
        self.registered.clear()
        self.memory.clear()
        self._outside.clear()
        self.running.clear()
        self.modules.clear()
        self._threads.clear()


def view_of(tensor: Tensor, other: Tensor) -> Arguments:
    """The arguments from which `tensor` can be made as a view of `other`: shape, strides and distance in elements.

    Nothing where it cannot: `tensor` reaches memory that `other` does not, or one of them has no memory of its own.
    """
    if tensor.dtype != other.dtype or not is_inside(tensor, other):
        return (), (), -1
    distance, rest = divmod(tensor.data_ptr() - other.data_ptr(), tensor.element_size())
    if rest:
        return (), (), -1
    return (TENSOR, tuple(tensor.shape), tensor.stride(), distance), (), -1


def is_inside(tensor: Tensor, other: Tensor) -> bool:
    """Whether `other` reaches all the memory that `tensor` does."""
    if not (has_bytes(tensor) and has_bytes(other)):
        return False
    start, stop, _ = extent(tensor)
    low, high, _ = extent(other)
    first, lowest = tensor.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
    return lowest + low <= first + start and first + stop <= lowest + high


def _threads() -> list[threading.Thread]:
    """Every thread object Python still knows, running or finished."""
    return [*getattr(threading, "_dangling", ()), *threading.enumerate()]
