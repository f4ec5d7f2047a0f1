"""Reads the state of autocast, and puts an earlier one back."""

from __future__ import annotations

import contextlib

import torch

_DEVICES = ("cpu", "cuda", "mps", "xpu")

# The devices autocast is enabled for, each with the type it casts to.
Autocast = tuple[tuple[str, torch.dtype], ...]


def autocast_state() -> Autocast:
    """What autocast does now."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in _DEVICES if torch.is_autocast_enabled(d))


def autocast_as(state: Autocast) -> contextlib.ExitStack:
    """Returns a block inside of which autocast has this state. It has begun: no time is to pass before it is entered."""
    recorded = dict(state)
    with contextlib.ExitStack() as context:
        for device in _DEVICES:
            if device in recorded:
                context.enter_context(torch.autocast(device, dtype=recorded[device], cache_enabled=False))
            elif torch.is_autocast_enabled(device):
                context.enter_context(torch.autocast(device, enabled=False))
        return context.pop_all()
