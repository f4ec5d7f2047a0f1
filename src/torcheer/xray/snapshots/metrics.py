"""Metrics: numbers of the training, such as its loss, that are written down with a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

from torch import Tensor

from ...errors import InvalidArgument


def checked_metrics(metrics: Any) -> dict[str, Any]:
    """Metrics as they are handed over. Tensors are not waited for: they become numbers behind the training."""
    if not isinstance(metrics, Mapping):
        raise InvalidArgument(f"metrics are a dictionary such as {{'loss': loss}}; got {type(metrics).__name__}.")
    found: dict[str, Any] = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name.strip():
            raise InvalidArgument(f"metrics are named by texts, such as 'loss'; got {name!r}.")
        if isinstance(value, Tensor):
            if value.numel() != 1 or value.is_complex():
                raise InvalidArgument(
                    f"metric {name!r} must be one number; got a tensor of shape {tuple(value.shape)}. Give its mean."
                )
            found[name] = value.detach().clone()
        elif isinstance(value, Real) or (hasattr(value, "item") and getattr(value, "size", 0) == 1):  # also NumPy's
            found[name] = float(value)
        else:
            raise InvalidArgument(f"metric {name!r} must be a number or a tensor of one value; got {value!r:.80}.")
    return found
