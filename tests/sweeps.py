"""What a sweep tries: one of each kind with the other tests, everything with `make sweeps`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TypeVar

EVERYTHING = bool(os.environ.get("SWEEPS"))
T = TypeVar("T")


def one_of_each(items: Iterable[T], kind: Callable[[T], object]) -> list[T]:
    """The first of each kind, in order."""
    found = list(items)
    return found if EVERYTHING else list({kind(item): item for item in reversed(found)}.values())[::-1]
