"""Writes sizes, times, counts and lists of names as text."""

from __future__ import annotations

from collections.abc import Iterable

_NAMES_SHOWN = 12
_SHAPES_SHOWN = 2


def human_size(count: float) -> str:
    """A number of bytes as text, in units of 1024: `253.5 KB`."""
    if count < 1024:
        return f"{int(count)} B"
    for unit in ("KB", "MB", "GB", "TB"):
        count /= 1024
        if count < 1024 or unit == "TB":
            break
    return f"{count:.1f} {unit}"


def human_time(seconds: float) -> str:
    """A number of seconds as short text.

    >>> human_time(0.0000021), human_time(0.35)
    ('2.1 µs', '350 ms')
    """
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1 or unit == "µs":
            break
    return f"{seconds * factor:.3g} {unit}"


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 tensor`, `1,219 tensors`."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def listed(names: Iterable[object], limit: int = _NAMES_SHOWN) -> str:
    """The first names, and the number of further names; `none` if there are no names."""
    texts = list(map(str, names))
    more = f", … ({len(texts) - limit} more)" if len(texts) > limit else ""
    return ", ".join(texts[:limit]) + more or "none"


def describe_shapes(shapes: list[list[tuple[int, ...]]]) -> str:
    """Write the shapes of the first call. Adds `…` if there are more shapes, or if other calls have other shapes."""
    if not shapes:
        return ""
    text = ", ".join(str(shape) for shape in shapes[0][:_SHAPES_SHOWN])
    if len(shapes[0]) > _SHAPES_SHOWN:
        text += f", … ({len(shapes[0])})"
    return text if all(other == shapes[0] for other in shapes[1:]) else f"{text} …"
