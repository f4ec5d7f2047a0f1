"""The random states of Python, NumPy and torch on every device: reads, restores and seeds them."""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from .._cleanup import Managed
from .internals import DisableTorchFunction


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of every random generator a model may draw from."""

    python: Any
    numpy: Any  # None if NumPy is not imported
    torch: Tensor
    devices: tuple[tuple[str, tuple[Tensor, ...]], ...]  # states of the accelerators in use

    @classmethod
    def now(cls) -> RandomState:
        """Read the present state of all random generators."""
        numpy = sys.modules.get("numpy")
        with DisableTorchFunction():
            return cls(
                random.getstate(),
                numpy.random.get_state() if numpy is not None else None,
                torch.default_generator.get_state(),
                tuple((kind, tuple(states)) for kind, states in _device_states()),
            )

    def moved(self) -> dict[str, Callable[[], object]]:
        """Map the name of each generator that now has another state to a function that restores this state."""
        now, found = RandomState.now(), dict[str, Callable[[], object]]()
        if now.python != self.python:
            found["Python"] = partial(random.setstate, self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None and _as_lists(now.numpy) != _as_lists(self.numpy):
            found["NumPy"] = partial(numpy.random.set_state, self.numpy)
        with DisableTorchFunction():
            if not torch.equal(now.torch, self.torch):
                found["torch"] = partial(torch.default_generator.set_state, self.torch)
            present = {(kind, index): state for kind, states in now.devices for index, state in enumerate(states)}
            for kind, states in self.devices:
                for index, state in enumerate(states):
                    if not torch.equal(present[kind, index], state):
                        found[f"torch on {kind}:{index}"] = partial(getattr(torch, kind).set_rng_state, state, index)
        return found

    def restore(self) -> None:
        """Restore every generator. Unchanged generators are not touched, because another thread may be drawing from them."""
        for put_back in self.moved().values():
            with DisableTorchFunction():
                put_back()


class OwnDraws(Protocol):
    """Says which random numbers the pass of a recording drew from torch."""

    drew: bool  # True if a watched call drew

    def are_all(self, before: Tensor) -> bool:
        """True if watched calls account for every change of torch's state since `before`."""


class random_as_found(Managed["random_as_found"]):  # noqa: N801 - used as a function: `with random_as_found() as random:`
    """At the end of this block, restore the state of every generator, unless another thread changed it meanwhile.

    Generators belong to the whole process. Only a recording knows which thread drew, and only from torch's generators. So if
    another thread is busy with random numbers or torch, a generator is restored only if a recording knows every draw, or if
    the state was set for the block. If others draw from a generator, restoring it would repeat their numbers.
    """

    def __init__(self) -> None:
        self.draws: OwnDraws | None = None
        self.left: list[str] = []  # after the block: the names of generators that were not restored
        self._is_set = False

    def _begin(self) -> random_as_found:
        self.before = RandomState.now()
        self._were_busy = _are_others_busy()
        return self

    def _end(self, *error: object) -> None:
        with DisableTorchFunction():
            for name, put_back in self.before.moved().items():
                if self._changed_by_this_thread(name):
                    put_back()
                else:
                    self.left.append(name)

    def start_from(self, state: RandomState | int, *, draws: bool = True) -> None:
        """Set the state, or seed all generators. Does nothing if `draws` is False and other threads are busy."""
        if not draws and (self._were_busy or _are_others_busy()):
            return
        self._is_set = True
        if isinstance(state, RandomState):
            state.restore()
        else:
            seed_everything(state)

    def is_moved(self) -> bool:
        """True if this thread changed a generator in the block, as far as is known."""
        return any(map(self._changed_by_this_thread, self.before.moved()))

    def _changed_by_this_thread(self, name: str) -> bool:
        if self._is_set or (name.startswith("torch") and self.draws is not None and self.draws.are_all(self.before.torch)):
            return True
        return not (self._were_busy or _are_others_busy())


def _are_others_busy() -> bool:
    """True if another thread runs code that uses torch or random numbers, and is not waiting."""
    frames = sys._current_frames()
    del frames[threading.get_ident()]  # which holds `frames`
    for thread in threading.enumerate():
        if thread.name.startswith(OWN_THREADS) and thread.ident is not None:
            frames.pop(thread.ident, None)  # threads of torcheer draw no random numbers
    return any(map(_is_busy, frames.values()))


def _is_busy(innermost: FrameType) -> bool:
    file = innermost.f_code.co_filename
    if file.startswith(_STANDARD) and "-packages" not in file and file != random.__file__:
        return False  # the thread waits for a lock, a queue or a socket
    if file.startswith(_COMPILE_WORKERS):
        return False  # the thread waits for a compiler process
    drawing = {id(module) for name in ("random", "numpy", "torch") if (module := sys.modules.get(name)) is not None}
    frame: FrameType | None = innermost
    while frame is not None:
        if not drawing.isdisjoint(map(id, list(frame.f_globals.values()))):
            return True
        frame = frame.f_back
    return False


OWN_THREADS: Final = "torcheer-"  # the names of this library's threads begin with this
_STANDARD: Final = sysconfig.get_path("stdlib")
_COMPILE_WORKERS: Final = os.path.join(os.path.dirname(torch.__file__), "_inductor", "compile_worker")


def _as_lists(value: Any) -> Any:
    """Convert a random state to plain values that can be compared."""
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
