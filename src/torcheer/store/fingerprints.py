"""Fingerprints of parameters, by which `load(path, model=…)` checks that the model is the logged one.

A fingerprint covers up to a thousand elements that are spread over a tensor, because to read all parameters would make saving
slow. An optimizer's step changes all elements of a parameter, or nearly all.
"""

from __future__ import annotations

from hashlib import blake2b

import torch
from torch import Tensor

from ..torch_internals import DisableTorchFunction

_ELEMENTS = 1024


def fingerprint(tensor: Tensor) -> str:
    """A text that is the same for tensors of equal values; empty where a tensor cannot be read."""
    try:
        with DisableTorchFunction(), torch.no_grad():
            plain = tensor.detach()
            if plain.is_nested or plain.layout is not torch.strided or type(plain) is not Tensor or plain.device.type == "meta":
                return ""
            flat = plain.reshape(-1)
            step = max(1, flat.numel() // _ELEMENTS)
            chosen = flat[::step][: _ELEMENTS + 1]
            sample = torch.empty(chosen.shape, dtype=chosen.dtype, device="cpu").copy_(chosen)
            data = sample.view(torch.uint8).numpy().tobytes() if sample.numel() else b""
    except RuntimeError:  # quantised, and others that cannot be indexed
        return ""
    return blake2b(data, digest_size=12, person=str(plain.dtype)[6:22].encode()).hexdigest()
