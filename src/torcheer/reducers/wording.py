"""How the results of reducers are put in words."""

from __future__ import annotations

from torch import Tensor


def spread(values: Tensor) -> str:
    """One number, or the smallest and largest of several: `0.1 to 3.2`."""
    sizes = values.abs() if values.is_complex() else values
    known = sizes[~sizes.isnan()] if sizes.is_floating_point() else sizes.reshape(-1)
    if not known.numel():
        return "none"
    low, high = known.min().item(), known.max().item()
    words = f"{low:.4g}" if isinstance(low, float) else f"{low:,}"
    if low != high:
        words += f" to {high:.4g}" if isinstance(high, float) else f" to {high:,}"
    return f"{words} (magnitude)" if values.is_complex() else words


def not_finite_note(nan: Tensor, inf: Tensor) -> list[str]:
    """A note of how many values were left out; empty where there are none."""
    if not (all_nan := int(nan.sum())) + (all_inf := int(inf.sum())):
        return []
    units = int(((nan + inf) > 0).sum())
    return [f"\tNote: left out as not finite, in {units:,} of the units: {all_nan:,} NaN, {all_inf:,} infinite."]
