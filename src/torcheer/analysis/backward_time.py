"""Backward time: what autograd's nodes took, counted where they belong.

A node belongs to the operation it came from, and with it to the module that ran it; one that adds up the gradient of a
parameter belongs to the module that has the parameter. All backward passes are summed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from ..backward_records import BackwardRecord, NodeRecord
from ..history.index import Index
from ..records import MODULE

NONE = -1


def backward_passes(index: Index) -> list[BackwardRecord]:
    """Those that ran so far."""
    return index.log.backward.passes if index.log.backward is not None else []


class BackwardTime:
    """Nanoseconds of all nodes that ran so far, once by operation and once by module."""

    def __init__(self, index: Index, payers: Mapping[int, int]) -> None:
        self._index = index
        self._payers = payers  # the operation that pays for the call which made an operation, where one is shown
        self.by_operation: Counter[int] = Counter()  # NONE: of parameters, and what no shown operation pays for
        self.by_call: Counter[int] = Counter()  # by number of the module call; NONE: in none
        self.by_address: Counter[str] = Counter()  # of modules that have a parameter and were not called
        for one in backward_passes(index):
            for record in one.nodes:
                self._count(record)

    def _count(self, record: NodeRecord) -> None:
        number, elapsed = record.operation, record.elapsed
        index = self._index
        if number < 0 and record.role == "accumulation":
            self.by_operation[NONE] += elapsed
            self._count_parameter(number, elapsed)
        elif 0 <= number < index.length:
            call = index.log.rows[number][MODULE]
            self.by_operation[self._payers.get(number, NONE)] += elapsed
            self.by_call[call if call < index.module_count else NONE] += elapsed
        else:
            self.by_operation[NONE] += elapsed
            self.by_call[NONE] += elapsed

    def _count_parameter(self, number: int, elapsed: int) -> None:
        index = self._index
        names = index.state_names.get(id(index.state(number).tensor), ())
        address = names[0].rpartition(".")[0] if names else None
        if address is not None and address not in index.calls:
            self.by_address[address] += elapsed
        else:
            self.by_call[index.calls[address][0].number if address is not None else NONE] += elapsed
