"""Tensors that exist before and after a pass: parameters, buffers, inputs, tensors that modules hold."""

from __future__ import annotations

import torch
from torch import Tensor

from ...records import Log
from ...tensor_memory import has_memory
from ..keep.keeper import Keeper, alias, copied
from .tensor_table import TensorTable, memory_of, storages_of


class OutsideTensors:
    """The tensors from outside one recording, by storage; `registered` are the ids of parameters and buffers."""

    def __init__(self, log: Log, table: TensorTable, keeper: Keeper, registered: set[int]) -> None:
        self._log = log
        self._table = table
        self._keeper = keeper
        self._registered = registered
        self._by_storage: dict[int, list[Tensor]] = {}
        self._filed_states = 0  # how many parameters and buffers are in `_by_storage`

    def living_in(self, storage: int) -> list[Tensor]:
        """The tensors in this storage that exist before and after the pass."""
        self._file_states()
        return self._by_storage.get(storage, [])

    def known(self) -> list[Tensor]:
        """Every tensor that is known to exist before and after the pass."""
        self._file_states()
        return [tensor for tensors in self._by_storage.values() for tensor in tensors]

    def _file_states(self) -> None:
        for tensor in self._log.states.tensors[self._filed_states :]:
            self.add(tensor)
        self._filed_states = len(self._log.states)

    def keep_states(self, storage: int, *, also_registered: bool = True) -> None:
        """Parameters and buffers in this storage are about to be overwritten and will not be restored: keep copies."""
        living = set(map(id, self.living_in(storage)))
        if not also_registered:
            living -= self._registered
        states = self._log.states
        for place, tensor in enumerate(states.tensors) if living else ():
            number = -1 - place
            if id(tensor) in living and number not in states.before and has_memory(tensor):
                with torch.no_grad():
                    before = alias(tensor)
                    before = copied(before) if before is not None else None
                if before is not None:
                    states.before[number] = before

    def keep_passing_states(self) -> None:
        """Copy parameters that exist only during the pass (FSDP), and whatever is kept in their memory."""
        for state in list(self._log.states.tensors):
            for storage in storages_of(state) if id(state) not in self._registered else ():
                self._keeper.before_write(storage)
                self.keep_states(storage, also_registered=False)

    def add(self, tensor: Tensor) -> None:
        """Add a tensor that existed before the pass."""
        if not has_memory(tensor):
            return  # FSDP gives it memory for the time of the pass
        for part in memory_of(tensor):
            storage = self._table.storage_of(part)
            if storage is not None:
                self._by_storage.setdefault(storage, []).append(tensor)

    def clear(self) -> None:
        self._by_storage.clear()
