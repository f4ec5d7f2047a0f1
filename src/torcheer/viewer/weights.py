"""Statistics, a small picture and a digest of the values of each parameter and buffer that operations read."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from ..history.index import Index
from ..history.printing.text import plural
from ..measure import dense
from ..tensor_memory import is_freed
from ..web.schema import Plain, lean
from .values import shown_statistics

MOST_VALUES = 200_000_000  # that are read of all together: about a second
_PIECE = 1 << 24  # bytes that are hashed at once


class Weights:
    """The parameters and buffers of one history, by name, and what could not be told of them."""

    def __init__(self, index: Index) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.notes: list[str] = []
        absent = changed = large = left = 0
        for state in index.log.states:
            if state.is_absent:
                absent += 1
                continue
            if not _is_plain(state.value) or is_freed(state.value):
                continue
            if state.is_changed or state.may_be_changed:
                changed += 1
            elif left + state.value.numel() > MOST_VALUES:
                large += 1
            else:
                left += state.value.numel()
                self.tensors[index.state_name(state)] = state.value
        if absent:
            self.notes.append(f"The values of {plural(absent, 'parameter')} are not in the file of this history.")
        if changed:
            self.notes.append(f"{plural(changed, 'parameter')} changed since the pass; their values are not shown.")
        if large:
            self.notes.append(
                f"The values of {plural(large, 'parameter')} are not shown: the model is too large to read them all."
            )

    def plain(self) -> list[Plain]:
        """All of them, with their statistics and the digests of their values."""
        return [
            lean("weight", {"name": name, "values_id": digest_of(tensor), "stats": shown_statistics(tensor)})
            for name, tensor in self.tensors.items()
        ]


def _is_plain(value: Any) -> bool:
    """Whether the values can be read as they are: not those of a wrapper, nor of a saved history without its parameters."""
    if type(value) is not Tensor and type(value) is not Parameter:
        return False
    return value.layout is torch.strided and value.device.type != "meta" and not value.is_nested and not value.is_quantized


def digest_of(tensor: Tensor) -> str:
    """Twelve characters that are equal for equal values of one dtype and shape; empty where they cannot be read."""
    values = dense(tensor)
    if values is None:
        return ""
    try:
        data: Any = values.detach().resolve_conj().resolve_neg().cpu().contiguous().flatten().view(torch.uint8).numpy()
    except (RuntimeError, TypeError):  # of a class that only wraps other tensors
        return ""
    found = blake2b(f"{values.dtype} {tuple(values.shape)}".encode(), digest_size=6)
    for start in range(0, len(data), _PIECE):
        found.update(data[start : start + _PIECE].data)
    return found.hexdigest()
