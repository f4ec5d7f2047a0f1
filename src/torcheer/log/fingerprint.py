"""Hashes the structure of a history: functions, shapes and connections, but no names, weights or values."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from .run import Index

_FORM = re.compile(r"(\d+)-([0-9a-f]{32})(?:-([0-9a-f]{8})([0-9a-f]{8})([0-9a-f]{8}))?")
_PARTS = ("the functions it runs", "the shapes", "what each operation is computed from")


def fingerprint_of(index: Index) -> str:
    """Make a text from the number of operations, a hash of the structure, and hashes of its functions, shapes and wiring."""
    digest = hashlib.sha256()
    parts = [hashlib.sha256() for _ in _PARTS]
    states: dict[int, int] = {}  # parameters are numbered by first use, so that shared parameters change the hash
    for number in index.operations:
        record = index.record(number)
        given: list[Any] = []
        for parent in record.parents:
            if parent < 0:
                state = index.state(parent)
                given.append(("state", states.setdefault(parent, len(states)), tuple(state.tensor.shape)))
            else:
                given.append(index.positions.get(parent, -1))
        shapes = tuple(record.shape), [one[2] for one in given if type(one) is tuple]
        wiring = [one[1] if type(one) is tuple else one for one in given]
        digest.update(repr((record.function.type, tuple(record.shape), given)).encode())
        for part, value in zip(parts, (record.function.type, shapes, wiring), strict=True):
            part.update(repr(value).encode())
    return f"{len(index.operations)}-{digest.hexdigest()[:32]}-{''.join(part.hexdigest()[:8] for part in parts)}"


def is_fingerprint(value: Any) -> bool:
    """True if `value` has the form of a fingerprint."""
    return isinstance(value, str) and _FORM.fullmatch(value) is not None


def is_same(one: str, other: str) -> bool:
    """True if two fingerprints describe the same structure. Does not compare hashes of parts: earlier versions wrote none."""
    return one.split("-")[:2] == other.split("-")[:2]


def what_differs(wanted: str, found: str) -> tuple[list[str], list[str]]:
    """The parts of the structure that differ, and the equal parts. Both are empty if a fingerprint has no hashes of parts."""
    ours, theirs = (_FORM.fullmatch(text) for text in (wanted, found))
    if ours is None or theirs is None or ours[3] is None or theirs[3] is None:
        return [], []
    same = [part for place, part in enumerate(_PARTS, 3) if ours[place] == theirs[place]]
    return [part for part in _PARTS if part not in same], same
