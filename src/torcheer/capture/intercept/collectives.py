"""Counts the collectives that a process takes part in, and writes their arguments down.

Python functions of `torch.distributed` are seen as any torch function is. Collectives that are made elsewhere (by a process
group's own methods, inside DTensor) are noticed by the number of collectives that each process group counts.
"""

from __future__ import annotations

from typing import Any

import torch.distributed


def in_words(value: Any) -> Any:
    """A template of a collective's arguments that does not keep its process group alive."""
    if isinstance(value, (list, tuple)):
        return type(value)(in_words(item) for item in value)
    if hasattr(value, "group_name"):  # a process group
        return value.group_name
    return str(value) if type(value).__module__.startswith("torch._C") else value


class CollectiveCounter:
    """Counts the collectives this process has taken part in."""

    def count(self) -> int:
        """How many there were, over all process groups that count them."""
        total = 0
        for group in list(torch.distributed.distributed_c10d._world.pg_map):
            try:
                total += group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # not in torch's stubs
            except RuntimeError:  # a backend that does not count
                continue
        return total


def counter() -> CollectiveCounter | None:
    """What counts collectives; None where there are no other processes."""
    is_possible = torch.distributed.is_available() and torch.distributed.is_initialized()
    return CollectiveCounter() if is_possible else None
