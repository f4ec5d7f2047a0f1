"""Keeps activations without copying them.

A kept activation is a detached alias of the model's own tensor. Before anything writes to its memory, and at the end
of the pass for memory that lives on outside, the alias is replaced by a copy: copy on write. So what is kept never
changes afterwards, and keeping everything costs no copies where nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..errors import TorcheerError
from ..records import UNSAVED, Held, Log, ModuleCall, OperationRecord, TorchFunction
from .identity import is_wrapped, storage_of, unwrap


class Selection(Protocol):
    """Says which operations to keep. Given by whoever knows labels."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        """Whether the operation about to run is to be kept; None when that is known only afterwards."""

    def after(self, record: OperationRecord) -> bool:
        """Whether an operation that ran is to be kept."""

    def leaving(self, call: ModuleCall) -> bool:
        """Whether to keep what leaves this module call."""


Holder = OperationRecord | Held


class Keeper:
    """Holds what one recording keeps, by the memory it lives in."""

    def __init__(
        self,
        log: Log,
        selection: Selection | None,
        output_device: torch.device | str | None,
        postfunc: Callable[[Tensor], Any] | None,
    ) -> None:
        self.log = log
        self.selection = selection  # None: everything
        self._device = torch.device(output_device) if output_device is not None else None
        self._postfunc = postfunc
        self.is_plain = selection is None and output_device is None and postfunc is None
        self.by_storage: dict[int, Holder | list[Holder]] = {}
        self._latest: tuple[int, OperationRecord] | None = None

    def keep_if_wanted(self, record: OperationRecord, tensor: Tensor) -> None:
        """Keep `tensor` as the activation of `record`, if the selection says so."""
        selection = self.selection
        if selection is not None:
            wanted = selection.before(record.function, record.module)
            if not (selection.after(record) if wanted is None else wanted):
                return
        self.keep(record, tensor)

    def file(self, holder: Holder, storage: int) -> None:
        """From now on `holder` holds a tensor of this storage."""
        held = self.by_storage.get(storage)
        if held is None:
            self.by_storage[storage] = holder
        elif isinstance(held, list):
            held.append(holder)
        else:
            self.by_storage[storage] = [held, holder]

    def keep(self, record: OperationRecord, tensor: Tensor) -> None:
        """Keep `tensor` as the activation of `record`."""
        value: Any = alias(tensor)
        if self._device is not None and value.device != self._device:
            value = value.to(self._device)
        if self._postfunc is not None:
            value = self._post(record, value)
        self._hold(record, value, storage_of(tensor))

    def _post(self, record: OperationRecord, value: Tensor) -> Any:
        assert self._postfunc is not None
        try:
            with torch.no_grad():
                return self._postfunc(value)
        except Exception as error:
            raise TorcheerError(
                f"activation_postfunc raised {type(error).__name__}: {error}\n"
                f"while keeping the output of {record.function.name!r}, shape {tuple(record.shape)}. "
                "It is called with one tensor and keeps what it returns."
            ) from error

    def _hold(self, holder: Holder, value: Any, storage: int | None) -> None:
        holder.value = value
        if not isinstance(value, Tensor):
            return
        holder.version = -1 if value.is_inference() else value._version
        if storage is not None:
            self.file(holder, storage)

    def share(self, record: OperationRecord, source: OperationRecord, storage: int | None) -> None:
        """Keep as `record` what `source` keeps."""
        record.value, record.version = source.value, source.version
        if storage is not None and storage in self.by_storage:
            self.file(record, storage)

    def hold_arguments(self, slots: list[tuple[int, Tensor]]) -> dict[int, Held]:
        """Keep arguments on their own, by slot."""
        found: dict[int, Held] = {}
        for slot, tensor in slots:
            held = Held(UNSAVED, -1)
            self._hold(held, alias(tensor), storage_of(tensor))
            found[slot] = held
        return found

    def remember_arguments(self, call: int, record: OperationRecord) -> None:
        """The latest call holds its arguments, in case its output turns out to leave a module that is wanted."""
        self.forget_arguments()
        self._latest = (call, record)

    def keep_late(self, record: OperationRecord, tensor: Tensor) -> None:
        """Keep an operation that turned out, after it ran, to be wanted."""
        self.keep(record, tensor)
        if self._latest is not None and self._latest[0] == record.call:
            self._latest = None

    def forget_arguments(self) -> None:
        if self._latest is not None:
            self.release([self._latest[1]])
            self._latest = None

    def release(self, holders: list[OperationRecord]) -> None:
        """Stop keeping these, and their arguments."""
        gone: set[int] = set()
        for record in holders:
            gone.add(id(record))
            gone.update(map(id, (record.more.held or {}).values()))
            record.forget()
        for storage, held in list(self.by_storage.items()):
            left = [h for h in _several(held) if id(h) not in gone]
            if left:
                self.by_storage[storage] = left
            else:
                del self.by_storage[storage]

    def before_write(self, storage: int | None) -> None:
        """Something is about to write to `storage`: copy what is kept in it."""
        if storage is None:
            return
        found = self.by_storage.pop(storage, None)
        if found is None:
            return
        holders = _several(found)
        values = [h.value for h in holders if isinstance(h.value, Tensor)]
        rebuilt = _copied_together(values)
        for holder in holders:
            if isinstance(holder.value, Tensor):
                holder.value = rebuilt(holder.value)
                holder.version = -1 if holder.value.is_inference() else holder.value._version

    def settle(self, living: set[int]) -> None:
        """The pass is over: copy what shares memory with anything that lives on."""
        self.forget_arguments()
        for storage in living & self.by_storage.keys():
            self.before_write(storage)
        self.by_storage.clear()


def _several(held: Holder | list[Holder]) -> list[Holder]:
    return held if isinstance(held, list) else [held]


def alias(tensor: Tensor) -> Tensor:
    """A detached view of the same memory that is a plain tensor of its own."""
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.detach()
    if is_wrapped(tensor):
        return unwrap(tensor).detach()
    return tensor.detach()


def _copied_together(values: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """A way to copy tensors of one storage: the storage once, when that is less than one by one."""
    first = values[0] if values else None
    plain = first is not None and all(
        type(v) is Tensor
        and v.layout is torch.strided
        and v.device.type != "meta"
        and not (v.is_quantized or v.is_nested or v.is_conj() or v.is_neg())
        for v in values
    )
    if not plain or len(values) < 2:
        return _copy
    assert first is not None
    memory = first.untyped_storage()
    if sum(v.numel() * v.element_size() for v in values) <= memory.nbytes():
        return _copy
    fresh = memory.clone()  # type: ignore[no-untyped-call]  # torch's own

    def in_fresh_memory(value: Tensor) -> Tensor:
        with torch.no_grad():
            view = torch.empty(0, dtype=value.dtype, device=value.device)
            view.set_(fresh, value.storage_offset(), value.shape, value.stride())
        return view

    return in_fresh_memory


def _copy(value: Tensor) -> Tensor:
    with torch.no_grad():
        return value.detach().clone()
