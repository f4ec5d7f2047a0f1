"""Converts parsed JSON to typed records, and raises for a file that was damaged or edited."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_MOST = 2**63  # a count must be below this, the limit of NumPy's int64
_NOT_FINITE = (math.inf, -math.inf)


@cache
def reader(kind: Any) -> Callable[[Any], Any]:
    """Make a function that converts a value to this type (lists to tuples), or raises ValueError.

    Integers are counts, so they must not be negative; other numbers must be finite, or None if the type allows it. Unknown
    fields of a record are ignored.

    >>> reader(tuple[int, ...])([1, 2])
    (1, 2)
    >>> reader(int | None)("2")
    Traceback (most recent call last):
    ValueError: expected int, got '2'
    """
    if is_dataclass(kind):
        return _record_reader(kind)
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple and inner[1:] != (...,):
        parts = [reader(one) for one in inner]
        return _checked(
            kind,
            lambda value: len(value) == len(parts),
            list,
            lambda value: tuple(part(one) for part, one in zip(parts, value, strict=True)),
        )
    if origin in (tuple, list):
        each = reader(inner[0])
        if inner[0] is int:  # quick check for long lists of integers, as in the histograms of a long run
            return _checked(kind, None, list, lambda value: origin(value if _are_counts(value) else map(each, value)))
        return _checked(kind, None, list, lambda value: origin(map(each, value)))
    if origin is dict:
        each = reader(inner[1])
        return _checked(kind, None, dict, lambda value: {name: each(one) for name, one in value.items()})
    if origin is Literal:
        return _checked(kind, lambda value: value in inner, str)
    if origin in (Union, types.UnionType):
        (some,) = (one for one in inner if one is not types.NoneType)
        read = reader(some)
        return lambda value: None if value is None or value in _NOT_FINITE or value != value else read(value)
    if kind is int:
        return _checked(kind, lambda value: 0 <= value < _MOST, int)
    if kind is float:
        return _checked(kind, lambda value: abs(value) <= sys.float_info.max, (int, float), float)
    return (lambda value: value) if kind is Any else _checked(kind, None, kind)


def _are_counts(values: list[Any]) -> bool:
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < _MOST


def _checked(
    kind: Any, holds: Callable[[Any], bool] | None, classes: Any, convert: Callable[[Any], Any] | None = None
) -> Callable[[Any], Any]:
    """Make a function that converts a value of these classes that satisfies `holds`, and raises for any other value."""

    def read(value: Any) -> Any:
        is_right = isinstance(value, classes) and (classes is bool or not isinstance(value, bool))
        if not is_right or (holds is not None and not holds(value)):
            raise ValueError(f"expected {getattr(kind, '__name__', kind)}, got {value!r:.60}")
        return value if convert is None else convert(value)

    return read


def _record_reader(cls: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(cls)
    readers = {one.name: reader(hints[one.name]) for one in fields(cls)}

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError(f"expected a {cls.__name__}, got {value!r:.60}")
        given = {}
        for name, one in value.items():
            if name in readers:
                try:
                    given[name] = readers[name](one)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
        try:
            return cls(**given)
        except TypeError:
            missing = [one.name for one in fields(cls) if one.name not in given]
            raise ValueError(f"a {cls.__name__} without {', '.join(missing)}") from None

    return read
