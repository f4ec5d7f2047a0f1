"""A hash of the structure of a history: functions, shapes and wiring; not names, weights or values."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .history import History

_FORM = re.compile(r"\d+-[0-9a-f]{32}")


def fingerprint_of(history: History) -> str:
    """The number of operations and a hash of what they are: `"23-…"`."""
    index = history._index
    digest = hashlib.sha256()
    states: dict[int, int] = {}  # parameters are known by their order of use, so that sharing one counts
    for number in index.operations:
        record = index.record(number)
        given: list[Any] = []
        for parent in record.parents:
            if parent < 0:
                state = index.state(parent)
                given.append(("state", states.setdefault(parent, len(states)), tuple(state.tensor.shape)))
            else:
                given.append(index.positions.get(parent, -1))
        digest.update(repr((record.function.type, tuple(record.shape), given)).encode())
    return f"{len(index.operations)}-{digest.hexdigest()[:32]}"


def is_fingerprint(value: Any) -> bool:
    """Whether something is what `fingerprint()` returns."""
    return isinstance(value, str) and _FORM.fullmatch(value) is not None
