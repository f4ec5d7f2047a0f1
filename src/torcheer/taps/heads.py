"""How many attention heads a module has, as its attributes or those of its configuration say."""

from __future__ import annotations

from typing import Any

from torch.nn import Module

_QUERIES = ("num_heads", "n_head", "n_heads", "num_attention_heads", "nhead", "heads", "encoder_attention_heads")
_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")  # where queries share heads of keys and values


def heads_of(module: Module | None) -> list[int]:
    """How many attention heads a module has: of queries, then of keys and values where these differ; empty where unknown."""
    holders = (module, getattr(module, "config", None))
    found = [_first(holders, names) for names in (_QUERIES, _KEYS)]
    return [count for count in found if count is not None]


def _first(holders: tuple[Any, ...], names: tuple[str, ...]) -> int | None:
    for holder in holders:
        for name in names:
            count = getattr(holder, name, None)
            if isinstance(count, int) and not isinstance(count, bool) and count > 0:
                return count
    return None
