"""Fingerprints of parameters, by which `load(path, model=…)` checks that the model is the logged one.

A fingerprint covers up to a thousand elements that are spread over a tensor, because to read all parameters would make saving
slow. An optimizer's step changes all elements of a parameter, or nearly all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b

import torch
from torch import Tensor

from ..capture.identity.tensor_table import inner_tensors, is_wrapper
from ..torch_internals import DisableTorchFunction
from .tensor_forms import parts_of

_ELEMENTS = 1024


def fingerprint(tensor: Tensor) -> str:
    """A text that is the same for tensors of equal values; empty where a tensor cannot be read."""
    digest = blake2b(digest_size=12, person=str(tensor.dtype)[6:22].encode())
    try:
        with DisableTorchFunction(), torch.no_grad():
            for piece in _pieces(tensor):
                digest.update(piece)
    except Exception:  # a user-defined class may raise anything
        return ""
    return digest.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[bytes]:
    """Bytes of a strided tensor, and of all strided tensors that another one is made of."""
    if is_wrapper(tensor):
        for inner in inner_tensors(tensor).values():
            yield from _pieces(inner)
        return
    tensor = tensor.detach()
    form = parts_of(tensor, "a parameter")
    if form is not None:
        facts, parts = form
        yield json.dumps(facts, default=str).encode()
        for part in parts.values():
            yield from _pieces(part)
        return
    flat = tensor.reshape(-1)
    step = max(1, flat.numel() // _ELEMENTS)
    chosen = flat[::step][: _ELEMENTS + 1]
    sample = torch.empty(chosen.shape, dtype=chosen.dtype, device="cpu").copy_(chosen)
    yield sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b""
