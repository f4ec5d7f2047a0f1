"""The random states of Python, NumPy and torch on every device: read, put back, seeded."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...torch_internals import DisableTorchFunction


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of every random generator a model may draw from."""

    python: Any
    numpy: Any  # None where NumPy is not in use
    torch: Tensor
    devices: tuple[tuple[str, tuple[Tensor, ...]], ...]  # of accelerators in use

    @classmethod
    def now(cls) -> RandomState:
        """The state as it is."""
        numpy = sys.modules.get("numpy")
        with DisableTorchFunction():
            return cls(
                random.getstate(),
                numpy.random.get_state() if numpy is not None else None,
                torch.default_generator.get_state(),
                tuple((kind, tuple(states)) for kind, states in _device_states()),
            )

    def restore(self) -> None:
        """Put every generator back to this state."""
        random.setstate(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None:
            numpy.random.set_state(self.numpy)
        with DisableTorchFunction():
            torch.default_generator.set_state(self.torch)
            for kind, states in self.devices:
                for index, state in enumerate(states):
                    getattr(torch, kind).set_rng_state(state, index)

    def is_now(self) -> bool:
        """Whether every generator is in this state."""
        now = RandomState.now()
        mine, theirs = ([one.python, one.torch, one.devices, *(one.numpy or ())] for one in (self, now))
        return bool(_as_lists(mine) == _as_lists(theirs))


def _as_lists(value: Any) -> Any:
    """A state as plain values, which can be compared."""
    if isinstance(value, (list, tuple)):
        return [_as_lists(one) for one in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _device_states() -> list[tuple[str, list[Tensor]]]:
    found = []
    for kind in ("cuda", "xpu"):
        backend = getattr(torch, kind, None)
        if backend is not None and backend.is_initialized():
            found.append((kind, backend.get_rng_state_all()))
    return found


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on all devices."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
