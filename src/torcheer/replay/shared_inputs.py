"""Inputs and constants that overlap in memory: their copies overlap as well, so that a write to one reaches the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ..capture.identity.shared_memory import has_bytes
from ..capture.identity.tensor_table import extent, storage_of
from ..tensor_memory import MemoryCopy, is_plain_memory

_Bytes = tuple[int, int, int]  # a storage, and a range of its bytes
_MOST_GROWTH = 4  # times the bytes of the tensors: a few columns of a large matrix are copied one by one


class SharedInputs:
    """Copies tensors; those that overlap are copied together."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        self._ranges: dict[_Bytes, _Bytes] = {}  # of tensors that overlap with others: the bytes that are copied with theirs
        self._copies: dict[_Bytes, MemoryCopy] = {}
        by_storage: dict[int, list[tuple[int, int, int]]] = {}
        plain = list(filter(_is_readable, tensors))
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
        found = self._ranges.get(_bytes_of(tensor)) if self._ranges and _is_readable(tensor) else None
        if found is None:
            return None
        if found not in self._copies:
            self._copies[found] = MemoryCopy(tensor, *found[1:])
        return self._copies[found].of(tensor)

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
            whole = (storage, begin, end)
            self._ranges.update({(storage, first, last): whole for first, last, _ in group})


def _bytes_of(tensor: Tensor) -> _Bytes:
    begin, end, _ = extent(tensor)
    return storage_of(tensor) or 0, begin, end


def _is_readable(value: Any) -> bool:
    return is_plain_memory(value) and has_bytes(value)
