"""Inputs and constants that overlap in memory: their copies overlap as well, so that a write to one reaches the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..capture.identity.tensor_table import extent, storage_of
from ..tensor_memory import has_memory, storage_part

_Bytes = tuple[int, int, int]  # a storage, and a range of its bytes
_LARGEST_ITEM = 16  # bytes of an element, at most: where a copy begins, elements of every type may begin
_MOST_GROWTH = 4  # times the bytes of the tensors: a few columns of a large matrix are copied one by one


class SharedInputs:
    """Copies tensors; those that overlap are copied together."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._ranges: dict[_Bytes, _Bytes] = {}  # of tensors that overlap with others: the bytes that are copied with theirs
        self._copies: dict[_Bytes, Any] = {}
        by_storage: dict[int, list[tuple[int, int, int]]] = {}
        plain = [tensor for tensor in tensors if _is_plain_memory(tensor)]
        for tensor in plain:
            storage, begin, end = _bytes_of(tensor)
            by_storage.setdefault(storage, []).append((begin, end, tensor.nbytes))
        for storage, together in by_storage.items():
            if len(together) > 1:
                self._find(storage, sorted(together))
        # Of a loaded history, what nobody holds is read again, into other memory.
        self._held = [tensor for tensor in plain if _bytes_of(tensor) in self._ranges]

    def copy(self, tensor: Tensor) -> Tensor | None:
        """A copy of a tensor that overlaps with others; None for one that does not."""
        found = self._ranges.get(_bytes_of(tensor)) if self._ranges and _is_plain_memory(tensor) else None
        if found is None:
            return None
        _, begin, end = found
        with torch.no_grad():
            if found not in self._copies:
                self._copies[found] = storage_part(tensor, begin, end).clone().untyped_storage()
            offset = tensor.storage_offset() - begin // tensor.element_size()
            return tensor.new_empty(0).set_(self._copies[found], offset, tensor.shape, tensor.stride())

    def _find(self, storage: int, ranges: list[tuple[int, int, int]]) -> None:
        """Find those of one storage that overlap; they are in order of where they begin."""
        group: list[tuple[int, int, int]] = []
        stop = 0  # where the last of a group ends
        for one in ranges:
            if one[0] >= stop:
                self._add(storage, group, stop)
                group = []
            group.append(one)
            stop = max(stop, one[1])
        self._add(storage, group, stop)

    def _add(self, storage: int, group: list[tuple[int, int, int]], end: int) -> None:
        begin = group[0][0] if group else end
        if len(group) > 1 and end - begin <= _MOST_GROWTH * sum(size for _, _, size in group):
            whole = (storage, begin - begin % _LARGEST_ITEM, end)
            self._ranges.update({(storage, first, last): whole for first, last, _ in group})


def _bytes_of(tensor: Tensor) -> _Bytes:
    begin, end, _ = extent(tensor)
    return storage_of(tensor) or 0, begin, end


def _is_plain_memory(value: Any) -> bool:
    """Whether a value is a tensor that is nothing but a view of the numbers in its storage."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.is_nested or value.device.type == "meta":
        return False
    is_other = value.is_quantized or value.is_conj() or value.is_neg() or storage_of(value) is None
    return not is_other and value.numel() > 0 and has_memory(value)
