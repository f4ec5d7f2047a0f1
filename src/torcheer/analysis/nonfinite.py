"""Finds NaN and infinity in kept tensors, for the warnings that `print(history)` shows."""

from __future__ import annotations

import torch
from torch import Tensor

from .._text import plural
from .._torch.internals import DisableTorchFunction
from ..log.run import Index

_MOST = 1 << 30  # at most this many bytes of kept tensors are searched


def nonfinite_of(index: Index) -> list[str]:
    """Sentences that say which kept tensors hold NaN or infinity. Searches the first gigabyte of kept tensors."""
    nan: list[str] = []
    infinite: list[str] = []
    read = 0
    with DisableTorchFunction(), torch.no_grad():
        for number in index.operations:
            value = index.log.values[number]
            if not isinstance(value, Tensor) or value.layout is not torch.strided or value.is_nested or value.is_meta:
                continue
            if not (value.is_floating_point() or value.is_complex()):
                continue
            read += value.nbytes
            if read > _MOST:
                break
            try:
                if bool(torch.isfinite(value).all()):
                    continue
                (nan if bool(torch.isnan(value).any()) else infinite).append(index.label(number))
            except RuntimeError:  # `isfinite` is not implemented for this dtype
                continue
    return [
        f"{plural(len(labels), 'tensor')} {'holds' if len(labels) == 1 else 'hold'} {what}; the first is {labels[0]}."
        for labels, what in ((nan, "NaN"), (infinite, "infinity"))
        if labels
    ]
