"""The random states of a log: the one the pass started from, and those that something else set on the way."""

from __future__ import annotations

import base64
import random
from typing import Any

import torch
from torch import Tensor

from ..capture.restore.randomness import RandomState
from ..records import Log
from .checking import each, fields, items, lists, number, numbers, real, refuse, text

Json = Any


def write_random_states(log: Log) -> Json:
    """The random states of a log, each once: one object may be the state of several operations."""
    known: dict[int, int] = {}
    states: list[Json] = []

    def place(state: RandomState) -> int:
        if known.setdefault(id(state), len(states)) == len(states):
            states.append(_written(state))
        return known[id(state)]

    first = place(log.random_state) if log.random_state is not None else -1
    return {"first": first, "drawn": [[number, place(state)] for number, state in log.random_states.items()], "states": states}


def _written(state: RandomState) -> Json:
    numpy = None
    if isinstance(state.numpy, tuple) and len(state.numpy) == 5:  # not the state of a bit generator that the program exchanged
        kind, keys, place, has_gauss, cached = state.numpy
        numpy = [str(kind), [int(one) for one in keys], int(place), int(has_gauss), float(cached)]
    return {
        "python": [state.python[0], list(state.python[1]), state.python[2]],
        "numpy": numpy,
        "torch": _bytes_of(state.torch),
        "devices": [[kind, [_bytes_of(one) for one in states]] for kind, states in state.devices],
    }


def _bytes_of(tensor: Tensor) -> str:
    return base64.b64encode(tensor.cpu().numpy().tobytes()).decode()


def read_random_states(written: Any, log: Log) -> None:
    """Give a log its random states."""
    found = fields(written, "the random states")
    states = [_read(fields(one, "a random state")) for one in items(found.get("states"), "the random states")]
    first = number(found.get("first"), "the random state", -1, len(states))
    log.random_state = states[first] if first >= 0 else None
    for place, state in lists(found.get("drawn"), "the random states", "a random state"):
        place = number(place, "a draw", 0, len(log.rows))
        log.random_states[place] = states[number(state, "a random state", 0, len(states))]


def _read(written: dict[str, Any]) -> RandomState:
    """A random state, after a check that generators accept it."""
    version, state, gauss = items(written.get("python"), "Python's random state")
    python = (number(version, "a version"), tuple(numbers(state, "Python's random state", 0, 1 << 33)), gauss)
    if gauss is not None:
        real(gauss, "a random number")
    random.Random().setstate(python)
    numpy = written.get("numpy")
    if numpy is not None:
        kind, keys, place, has_gauss, cached = items(numpy, "NumPy's random state")
        keys = numbers(keys, "NumPy's random state", 0, 1 << 32)
        if kind != "MT19937" or len(keys) != 624:
            refuse("NumPy's random state is of an unknown kind")
        place, has_gauss = number(place, "a place", 0, 625), number(has_gauss, "a flag", 0, 2)
        numpy = (kind, keys, place, has_gauss, real(cached, "a random number"))
    ours = _tensor(written.get("torch"))
    torch.Generator().set_state(ours)
    devices = tuple(
        [
            (text(kind, "a device"), tuple(each(states, "a random state", lambda one, what: _tensor(one))))
            for kind, states in lists(written.get("devices"), "the devices", "a device")
        ]
    )
    if not {kind for kind, _ in devices} <= {"cuda", "xpu"}:
        refuse("a random state is of an unknown device")
    return RandomState(python, numpy, ours, devices)


def _tensor(written: Any) -> Tensor:
    data = base64.b64decode(text(written, "a random state"), validate=True)
    if not 0 < len(data) <= 1 << 16:
        refuse("a random state is too long")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
