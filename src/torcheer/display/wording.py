"""How texts are listed in a sentence, and which known names are like an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def few(things: Iterable[object], most: int, joint: str = ", ") -> str:
    """The first `most` of some things, and how many more there are: `a, b and 3 more`, or `a; b; and 3 more`."""
    texts = [str(thing) for thing in things]
    shown, left = joint.join(texts[:most]), len(texts) - most
    return f"{shown}{' ' if joint == ', ' else joint}and {left} more" if left > 0 else shown


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message: the known name that is most like an unknown one. Empty where none is."""
    near = get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""


def nearest(name: object, known: Iterable[str], what: str = "") -> str:
    """The end of a message: the five known names that are most like an unknown one. Empty where none is."""
    near = get_close_matches(str(name), list(known), n=5, cutoff=0.5)
    return f" The nearest {what}{' ' if what else ''}are {', '.join(map(repr, near))}." if near else ""
