"""The first operation in which two passes of a model differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..records import OperationRecord
from .operation import Operation

if TYPE_CHECKING:
    from .history import History


def first_difference(old: History, new: History) -> str | None:
    """The first operation in which two passes differ, in words; None when they ran the same graph."""
    before, after = old._index, new._index
    for position, (a, b) in enumerate(zip(before.operations, after.operations, strict=False)):
        one, two = before.record(a), after.record(b)
        label = before.label(a)
        where = Operation(after, b).source
        at = f" ({where})" if where is not None else ""
        if one.function.type != two.function.type:
            return f"operation {position + 1} was {label}, now {two.function.name!r} ran{at}"
        ours = [before.positions[p] for p in before.parents(a)]
        theirs = [after.positions[p] for p in after.parents(b)]
        if ours != theirs:
            return f"{label} has other parents than before{at}"
        if _address(one) != _address(two):
            return f"{label} ran in module {_address(two)!r}, before it was {_address(one)!r}{at}"
    count, now = len(before.operations), len(after.operations)
    if count != now:
        longer, numbers = (before, before.operations) if count > now else (after, after.operations)
        first = longer.label(numbers[min(count, now)])
        return f"it has {now} operations instead of {count}; {first} is the first that only one of them has"
    return None


def _address(record: OperationRecord) -> str | None:
    return record.module.address if record.module is not None else None
