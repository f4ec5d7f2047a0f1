"""Checks parts of JSON that anybody may have written. If a part has another type or range than expected, refuses the file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import numpy as np

from ..errors import UnreadableFile

Item = TypeVar("Item")
LARGEST = 2**62  # every number that means a size, a place or a time is below this


def refuse(what: str) -> NoReturn:
    """Raise an error that says what is wrong with a file; the caller adds the file's name."""
    raise UnreadableFile(what)


def fields(value: Any, what: str) -> dict[str, Any]:
    if type(value) is not dict:
        refuse(f"{what} is no JSON object")
    return value


def items(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        refuse(f"{what} is no JSON array")
    return value


def lists(value: Any, what: str, each: str) -> list[list[Any]]:
    """Return `value` if it is a JSON array of JSON arrays; else refuse the file."""
    return [items(one, each) for one in items(value, what)]


def text(value: Any, what: str) -> str:
    if type(value) is not str:
        refuse(f"{what} is no text")
    return value


def text_or_none(value: Any, what: str) -> str | None:
    return None if value is None else text(value, what)


def flag(value: Any, what: str) -> bool:
    if type(value) is not bool:
        refuse(f"{what} is neither true nor false")
    return value


def number(value: Any, what: str, low: int = 0, high: int = LARGEST) -> int:
    """Return `value` if it is a whole number from `low` to below `high`; else refuse the file."""
    if type(value) is not int or not low <= value < high:
        refuse(f"{what} is no whole number from {low} to {high - 1}")
    return value


def real(value: Any, what: str) -> float:
    if type(value) not in (int, float):
        refuse(f"{what} is no number")
    return float(value)


def numbers(value: Any, what: str, low: int = 0, high: int = LARGEST) -> list[int]:
    """Return `value` if it is a list of whole numbers from `low` to below `high`, else refuse it. NumPy checks long lists."""
    found = items(value, what)
    if not found:
        return []
    if len(found) < 16:
        return [number(one, what, low, high) for one in found]
    try:
        column = np.array(found)
    except (ValueError, OverflowError):
        refuse(f"{what} are not whole numbers")
    if column.ndim != 1 or column.dtype.kind != "i" or int(column.min()) < low or int(column.max()) >= high:
        refuse(f"{what} are not all whole numbers from {low} to {high - 1}")
    whole: list[int] = column.tolist()
    return whole


def column(value: Any, what: str, length: int, low: int = 0, high: int = LARGEST) -> list[int]:
    """Like `numbers`, for a column of a table: the list must have `length` items, one for each row."""
    found = numbers(value, what, low, high)
    if len(found) != length:
        refuse(f"there are {len(found)} of {what}, not {length}")
    return found


def each(value: Any, what: str, read: Callable[[Any, str], Item]) -> list[Item]:
    return [read(one, what) for one in items(value, what)]


def sizes(value: Any, what: str, low: int = 0) -> tuple[int, ...]:
    """Return `value` as a tuple if it is a shape or strides of at most 64 numbers; else refuse the file."""
    found = items(value, what)
    if len(found) > 64:
        refuse(f"{what} has {len(found)} dimensions")
    return tuple([number(one, what, low) for one in found])


def split(flat: list[Item], counts: list[int], what: str) -> list[tuple[Item, ...]]:
    """Split a flat column into tuples of the lengths in `counts`."""
    if sum(counts) != len(flat):
        refuse(f"{what} do not add up")
    found, at = [], 0
    for count in counts:
        found.append(tuple(flat[at : at + count]))
        at += count
    return found
