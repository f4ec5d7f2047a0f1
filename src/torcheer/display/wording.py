"""How texts are listed in a sentence."""

from __future__ import annotations

from collections.abc import Iterable


def few(things: Iterable[object], most: int, joint: str = ", ") -> str:
    """The first `most` of some things, and how many more there are: `a, b and 3 more`, or `a; b; and 3 more`."""
    texts = [str(thing) for thing in things]
    shown, left = joint.join(texts[:most]), len(texts) - most
    return f"{shown}{' ' if joint == ', ' else joint}and {left} more" if left > 0 else shown
