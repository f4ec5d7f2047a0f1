"""Explains tensors that no watched call made.

The explanations are tried in this order: a parameter; a tensor in memory of a recorded one; a wrapper around recorded tensors;
the result of a module that cannot be traced (TorchScript); a result that autograd's graph leads back to recorded tensors.
Otherwise the tensor is a source, created inside the model.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Parameter

from ...functions import label_type
from ...records import Kind, ModuleCall, Origin, TorchFunction
from ...torch_internals import is_functorch_wrapped
from .markers import MARKERS, is_inside, view_of
from .tensor_table import PLAIN_CLASSES, Entry, is_same_view, is_wrapper, memory_of, storage_of, storages_of, unwrap

if TYPE_CHECKING:
    from ..recorder import Recorder

_AUTOGRAD_LIMIT = 2000


class Explainer:
    """Finds out where the unexplained tensors of one recording come from."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder: Recorder = weakref.proxy(recorder)  # which holds this
        self._log = recorder.log
        self._table = recorder.table
        self._registered: tuple[int, dict[int | None, list[Tensor]]] = (0, {})  # of how many modules, and states by storage
        self._wrapped: tuple[int, dict[int, Tensor]] = (0, {})  # of how many modules, and what `_wrapped_states` gives

    def explain(self, tensor: Tensor, storage: int | None, leaving: ModuleCall | None) -> Entry:
        """The entry of a tensor that has no record yet; `leaving` is the module call that returned it, if one did."""
        if isinstance(tensor, Parameter) and not self.is_computed(storage):
            return self._recorder.state(tensor)
        known = self._alias(tensor, storage) or (self._wrapper(tensor) if type(tensor) not in PLAIN_CLASSES else None)
        if known is not None:
            return known
        if leaving is not None and leaving.first == len(self._log.rows):
            return self._opaque(tensor, storage, leaving)  # nothing inside could be watched
        return (
            self._by_autograd(tensor, storage)
            or (self._opaque(tensor, storage, leaving) if leaving is not None else None)
            or self._inside_registered(tensor, storage)
            or self._source(tensor, storage)
        )

    def _wrapper(self, tensor: Tensor) -> Entry | None:
        """A wrapper (DTensor, a quantised weight) depends on the recorded tensors inside it."""
        if not is_wrapper(tensor):
            return None
        inner = [self._table.find(part) or self._alias(part, self._table.storage_of(part)) for part in memory_of(tensor)]
        parents = tuple(dict.fromkeys(entry.number for entry in inner if entry is not None))
        if not parents:
            return None
        name = type(tensor).__name__
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        entry = self._recorder.write(function, parents, tensor, None)
        if self._table.last_write:
            self._log.detail(entry.number).also = self._writes_inside(tensor, inner)
        return entry

    def _writes_inside(self, tensor: Tensor, inner: list[Entry | None]) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for part, entry in zip(memory_of(tensor), inner, strict=True):
            found.update(dict.fromkeys(self._table.writes_since(part, entry.number) if entry is not None else ()))
        return tuple(found)

    def _relatives(self, storage: int | None) -> list[tuple[int, Tensor]]:
        """Known tensors that live in this storage, with the records they stand for."""
        if storage is None:
            return []
        if storage in self._table.shared:
            return self._table.living_in(storage) + self._recorder.memory.lent_in(storage)
        kept = self._recorder.keeper.kept_in(storage)
        if not self._recorder.keeper.is_plain:  # what is kept is not all that was recorded
            return kept + self._table.living_in(storage)
        outside = [(self._table.find(tensor), tensor) for tensor in self._recorder.outside.living_in(storage)]
        return kept + [(entry.number, tensor) for entry, tensor in outside if entry is not None]

    def is_computed(self, storage: int | None) -> bool:
        """Whether the values in this storage were computed from an input: a parameter there was made by the model itself."""
        waiting = [number for number, _ in self._relatives(storage)]
        seen: set[int] = set()
        while waiting:
            number = waiting.pop()
            if number >= 0 and number not in seen:
                seen.add(number)
                record = self._log.operations[number]
                if record.origin is Origin.INPUT:
                    return True
                waiting += record.dependencies
        return False

    def _alias(self, tensor: Tensor, storage: int | None) -> Entry | None:
        relatives = [(n, other) for n, other in self._relatives(storage) if storage in self._storages_of(other)]
        if not relatives:
            return self._inside_state(tensor, storage)
        inner = unwrap(tensor)
        twins = [(n, other) for n, other in relatives if is_same_view(inner, unwrap(other))]
        if not twins and (inner is not tensor or any(is_functorch_wrapped(other) for _, other in relatives)):
            twins = relatives  # a transform made a view of it
        if twins:
            return self._table.point(tensor, max(n for n, _ in twins), storage)
        number, relative = max(relatives, key=lambda pair: (is_inside(tensor, pair[1]), pair[0]))
        if storage not in self._table.last_write and not is_inside(tensor, relative) and all(map(self._is_given, relatives)):
            return None  # a tensor from outside, of which the model was given a part
        return self._view(tensor, storage, number, relative)

    def _is_given(self, relative: tuple[int, Tensor]) -> bool:
        """True for an ordinary tensor from outside the pass, which no call made."""
        number, tensor = relative
        return type(tensor) in PLAIN_CLASSES and (
            number < 0 or self._log.operations[number].origin in (Origin.INPUT, Origin.SOURCE)
        )

    def _view(self, tensor: Tensor, storage: int | None, number: int, relative: Tensor) -> Entry:
        """A tensor in memory of one that has a record, with what was written there since."""
        since = self._table.writes_since(tensor, number) if self._table.last_write else ()
        entry = self._recorder.write(MARKERS[Origin.ALIAS], (number,), tensor, storage, view_of(tensor, relative))
        if since:
            self._log.detail(entry.number).also = tuple(since)
        return entry

    def _inside_registered(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """A tensor in memory of a parameter or buffer that was not read yet, such as an attribute that is a row of a buffer."""
        state = self.registered_around(tensor, storage)
        return self._view(tensor, storage, self._recorder.state(state).number, state) if state is not None else None

    def registered_around(self, tensor: Tensor, storage: int | None) -> Tensor | None:
        """The parameter or buffer in whose memory a tensor is; None where there is none, or it has a record."""
        if storage is None or type(tensor) not in PLAIN_CLASSES:
            return None
        modules = self._log.registered
        if self._registered[0] != len(modules):
            found: dict[int | None, list[Tensor]] = {}
            for module in modules.values():
                for state in (*module.parameters.values(), *module.buffers.values()):
                    if state is not None and type(state) in PLAIN_CLASSES:
                        found.setdefault(storage_of(state), []).append(state)
            self._registered = (len(modules), found)
        states = self._registered[1].get(storage, ())
        return next((one for one in states if self._table.find(one) is None and view_of(tensor, one)[0]), None)

    def _storages_of(self, tensor: Tensor) -> set[int | None]:
        """Where `tensor` lives now: it may have been given other memory since it was recorded."""
        return {self._table.storage_of(part) for part in memory_of(unwrap(tensor))}

    def _inside_state(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """A tensor inside a wrapped parameter (the integers of a quantised weight) comes from that parameter."""
        if storage is None or (around := self._wrapped_states().get(storage)) is None:
            return None
        state = self._table.find(around) or self._recorder.state(around)
        return self._recorder.write(MARKERS[Origin.ALIAS], (state.number,), tensor, storage)

    def _wrapped_states(self) -> dict[int, Tensor]:
        """The registered parameters and buffers that are wrappers, by the storages inside them."""
        modules = self._log.registered
        if self._wrapped[0] != len(modules):
            found: dict[int, Tensor] = {}
            for module in modules.values():
                for state in (*module.parameters.values(), *module.buffers.values()):
                    if state is not None and type(state) not in PLAIN_CLASSES:
                        found.update(dict.fromkeys(storages_of(state) if is_wrapper(state) else (), state))
            self._wrapped = (len(modules), found)
        return self._wrapped[1]

    def _by_autograd(self, tensor: Tensor, storage: int | None) -> Entry | None:
        """Follow autograd's graph from the tensor of an unwatched call back to recorded tensors."""
        if tensor.grad_fn is None or is_functorch_wrapped(tensor):
            return None
        parents = self._autograd_parents(tensor)
        if not parents:
            return None
        self._recorder.unseen.suspect_threads()
        name = type(tensor.grad_fn).__name__.removesuffix("0").removesuffix("Backward")
        function = TorchFunction(None, name, label_type(name), Kind.OPERATION, origin=Origin.OPAQUE)
        return self._recorder.write(function, parents, tensor, storage)

    def _autograd_parents(self, tensor: Tensor) -> tuple[int, ...]:
        known: dict[Any, int] = {}
        for recorded in list(self._table.entries.values()):
            live = recorded()
            if live is not None and live.grad_fn is not None and not is_functorch_wrapped(live):
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
            elif leaf is not None and (entry := self._table.find(leaf)) is not None:
                parents[entry.number] = None
            elif isinstance(leaf, Parameter):
                parents[self._recorder.state(leaf).number] = None
            else:
                waiting.extend(next_node for next_node, _ in node.next_functions)
        return tuple(sorted(parents, key=lambda number: (number < 0, number)))

    def _opaque(self, tensor: Tensor, storage: int | None, call: ModuleCall) -> Entry:
        kind = label_type(call.class_name)
        function = TorchFunction(None, call.class_name, kind, Kind.OPERATION, origin=Origin.OPAQUE)
        site = call.site.number if call.site is not None else -1
        return self._recorder.write(function, call.inputs, tensor, storage, (call.args, call.names, site))

    def _source(self, tensor: Tensor, storage: int | None) -> Entry:
        if self._log.is_recording and not self._recorder.stack:
            return self._recorder.add_input(tensor, ())
        number = len(self._log.rows)
        name = self._attribute_name(tensor)
        if name is not None:
            self._log.source_names[number] = name
        else:
            self._recorder.unseen.suspect_threads()
        self._recorder.outside.add(tensor)
        self._log.source_tensors.append(weakref.ref(tensor))
        if not _is_foreign(tensor):
            self._recorder.suspects[number] = self._log.source_tensors[-1]
        return self._recorder.write(MARKERS[Origin.SOURCE], (), tensor, storage)

    def _attribute_name(self, tensor: Tensor) -> str | None:
        """The module attribute that holds `tensor`, looked for in the modules that are running."""
        for call, module in zip(reversed(self._recorder.stack), reversed(self._recorder.running), strict=True):
            for name, value in vars(module).items():
                if value is tensor:
                    return f"{call.address}.{name}" if call.address else name
        return None


def _is_foreign(tensor: Tensor) -> bool:
    """Whether its memory is not torch's own: what is in it came from Python, as that of `torch.from_numpy` does."""
    try:
        return not tensor.untyped_storage().resizable()
    except RuntimeError:  # it has no storage of its own
        return False
