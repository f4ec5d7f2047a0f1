"""Checks what a log says about memory: which calls write to which arguments, and which tensors these writes reach.

In the replay, each recorded write must happen, and no other write. Each recorded dependency through memory must be a write
that reached an argument, and each such write must be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._text import few
from .._torch.functions import groups
from .._torch.internals import DisableTorchFunction
from .._torch.memory import has_memory, needed_bytes, version_of
from .._torch.source_code import source_of
from .._torch.tensor_table import TensorTable, storage_of
from ..log.records import OperationRecord
from .comparison import same_bits
from .edges import is_plain, writes_another
from .report import Check

_OUT_OF_SIGHT = "through memory that the replay does not have"
_LARGEST = 1 << 24  # a tensor of more values is not copied and compared

# These functions may write nothing: if nothing is dropped, the size is right, the momentum is zero, or for `p.data = p.data`.
_WRITE_SOMETIMES = (
    groups.DROPOUTS | groups.RESIZING | groups.NORMALISATIONS | groups.LOOK_UPS | {"set", "set_data", "resize_as_sparse"}
)


@dataclass(slots=True)
class _Argument:
    """A tensor argument of a call, with its version, storage and values before the call."""

    tensor: Tensor
    version: int
    storage: int | None
    before: Tensor | None  # a copy, if the log says that the call writes to the tensor


class MemoryProof:
    """Watches the calls of a replay."""

    def __init__(self, check: Check, label: Callable[[OperationRecord], str]) -> None:
        self._check = check
        self._label = label
        self._table = TensorTable()
        # maps an operation to the storages and ranges of bytes that it wrote to
        self._written: dict[int, list[tuple[int | None, int, int]]] = {}
        self._arguments: list[_Argument] = []

    def before(self, record: OperationRecord, tensors: list[Tensor]) -> None:
        """Called before each call."""
        self._check_missing(record, tensors)
        self._check_extra(record, tensors)
        mutated = set(record.details.mutated)
        self._arguments = [
            _Argument(tensor, version_of(tensor), storage_of(tensor), _copy(tensor) if slot in mutated else None)
            for slot, tensor in enumerate(tensors)
        ]

    def after(self, record: OperationRecord, value: Any) -> None:
        """Called with the value of each operation."""
        self._check_writes(record)
        if isinstance(value, Tensor):
            with DisableTorchFunction():
                self._table.point(value, record.number, storage_of(value))
        if record.call == record.number:
            for slot in record.details.mutated:
                if slot < len(self._arguments):
                    self._note_write(record.number, self._arguments[slot].tensor)
        self._arguments = []

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Called before the kept results of a call that cannot run again are written into its arguments."""
        for tensor in written:
            self._note_write(record.number, tensor)

    def _note_write(self, number: int, tensor: Tensor) -> None:
        with DisableTorchFunction():
            self._table.wrote(tensor, number)
            self._written.setdefault(number, []).append((storage_of(tensor), *_reach(tensor)))

    def _disagree(self, record: OperationRecord, what: str) -> None:
        self._check.disagree(self._label(record), what, source_of(record.site, record.module))

    # Writes ---------------------------------------------------------------------------------------------------------

    def _check_writes(self, record: OperationRecord) -> None:
        """Check that the call wrote to exactly the arguments that the log names."""
        mutated = [slot for slot in record.details.mutated if slot < len(self._arguments)]
        written = {self._arguments[slot].storage for slot in mutated}
        for slot, one in enumerate(self._arguments):
            if version_of(one.tensor) != one.version and one.storage not in written:
                self._disagree(record, f"it writes to its argument {slot}, which the log does not say")
        function = record.function
        if function.is_in(_WRITE_SOMETIMES) or function.structure.is_foreign:
            return
        for slot in mutated:
            one = self._arguments[slot]
            self._check.count += 1
            if _is_untouched(one) and not writes_another(record, [argument.tensor for argument in self._arguments], slot):
                self._disagree(record, f"it does not write to its argument {slot}, which the log says")

    # Dependencies ---------------------------------------------------------------------------------------------------

    def _check_missing(self, record: OperationRecord, tensors: list[Tensor]) -> None:
        if not self._table.last_write:
            return
        known = {*record.dependencies}
        for tensor, parent in zip(tensors, record.parents, strict=True):
            storage = storage_of(tensor)
            if parent < 0 or storage is None or storage not in self._table.last_write:
                continue
            self._check.count += 1
            missing = [n for n in self._table.writes_since(tensor, parent) if n not in known and n != parent]
            if missing:
                writers = few((self._label(record.log.operations[n]) for n in missing), 3)
                self._disagree(record, f"its argument was overwritten by {writers}, which it does not depend on")

    def _check_extra(self, record: OperationRecord, tensors: list[Tensor]) -> None:
        """Check that each dependency through memory wrote to bytes of an argument after the argument was made."""
        also = record.details.also
        reaches = [(parent, storage_of(one), *_reach(one)) for one, parent in zip(tensors, record.parents, strict=True) if also]
        for number in also:
            if self._is_out_of_sight(record, number):
                self._check.exempt[_OUT_OF_SIGHT] += 1
                continue
            self._check.count += 1
            if not any(self._reached(number, *reach) for reach in reaches):
                writer = self._label(record.log.operations[number])
                self._disagree(record, f"it depends on {writer} through memory, which wrote to none of its arguments")

    def _is_out_of_sight(self, record: OperationRecord, number: int) -> bool:
        """True if two operations depend on each other through memory that a replay does not have.

        The replay reads the model's own parameters. If they are sharded (FSDP), a pass fills their memory before each use.
        And `a.data = b` gives a tensor other memory, even if the tensor is an input of the replay.
        """
        is_sharded = record.log.collectives > 0 and any(parent < 0 for parent in record.parents)
        return is_sharded or record.log.operations[number].function.name == "set_data"

    def _reached(self, number: int, parent: int, storage: int | None, start: int, stop: int) -> bool:
        """True if an operation wrote to these bytes after operation `parent` made the tensor."""
        return number > parent and any(
            where == storage and low < stop and start < high for where, low, high in self._written.get(number, ())
        )


def _is_untouched(one: _Argument) -> bool:
    """True if a tensor was certainly not written to: its version, memory and bits are unchanged."""
    if one.before is None or one.version < 0 or version_of(one.tensor) != one.version or storage_of(one.tensor) != one.storage:
        return False
    return one.tensor.shape == one.before.shape and same_bits(one.tensor.detach(), one.before)


def _copy(tensor: Tensor) -> Tensor | None:
    """Copy a tensor to compare it later; returns None if it cannot be copied or is too large."""
    if not is_plain(tensor) or tensor.numel() > _LARGEST or not has_memory(tensor):
        return None
    with DisableTorchFunction(), torch.no_grad():
        return tensor.detach().clone()


def _reach(tensor: Tensor) -> tuple[int, int]:
    """Return the bytes that a tensor reaches in its storage, as the first byte and the byte after the last."""
    if tensor.layout is not torch.strided or tensor.is_nested or storage_of(tensor) is None:
        return 0, 1 << 62
    try:
        return int(tensor.storage_offset()) * tensor.element_size(), needed_bytes(tensor)
    except RuntimeError:  # a tensor inside a torch.func transform
        return 0, 1 << 62
