"""Makes templates of arguments, nested values with `TENSOR` in place of every tensor, and fills them with tensors again."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from .._torch.containers import LATER, MOST_REPEATS, PLAIN, Attribute, Other, Path, find, is_tensor, kind_of, rebuilt
from .._torch.sentinels import TENSOR, Sign

_FLAT = PLAIN | {Tensor, Parameter, slice, type(...)}  # types of most arguments; values of these types contain no others
_NESTING = frozenset({tuple, list, dict})
_FEW = 1_000
_MUTABLE = (np.ndarray, bytearray, array)  # arrays of numbers, which are copied because they may change later
_NUMERIC, _AS_TEXT = "biufc", "USmM"  # kinds of NumPy arrays: numbers; strings and dates, which are kept as text
_GATHERED = frozenset({tuple, list, set, frozenset})
_SIMPLE: tuple[Any, ...] = (*PLAIN, torch.layout, torch.memory_format, range, type, Enum)


def template(value: Any, see: Callable[[Tensor], object]) -> Any:
    """Copy `value` with every tensor replaced by `TENSOR`. Calls `see` with each tensor, in order."""
    made = _quick_template(value, see)
    return made if made is not LATER else _any_template(value, see, _own)


def outline(value: Any, see: Callable[[Tensor], object]) -> Any:
    """Make a template that keeps no object alive: objects other than tensors, containers and simple values become `Other`."""
    made = _quick_template(value, see)
    return made if made is not LATER else _any_template(value, see, _stand_in)


def _stand_in(item: Any) -> Any:
    return item if issubclass(type(item), _SIMPLE) else Other(type(item).__name__)


def result_items(result: Any) -> list[tuple[Path, Any]]:
    """List the items of a model's result with their paths: `TENSOR` for tensors, copies of numbers, strings and arrays.

    A list, tuple or set of plain values is one item, a tuple. Private attributes of objects are left out.
    """
    found = find(result, (), _is_item, True, MOST_REPEATS)
    return [(path, _item(item)) for path, item in found if not any(map(_is_private, path))]


def _is_item(value: Any) -> bool:
    cls = type(value)
    if cls in PLAIN or is_tensor(value) or issubclass(cls, (np.ndarray, np.generic, *_SIMPLE)):
        return True
    if cls in _GATHERED:
        return bool(value) and PLAIN.issuperset(map(type, value))
    return kind_of(value, into_objects=True) is None


def _item(value: Any) -> Any:
    if is_tensor(value):
        return TENSOR
    cls = type(value)
    if cls in _GATHERED:
        return tuple(sorted(value, key=repr) if cls is set or cls is frozenset else value)
    if cls is np.ndarray and value.dtype.kind not in _NUMERIC:
        return tuple(map(str, value.reshape(-1))) if value.dtype.kind in _AS_TEXT else Other(f"array of {value.dtype}")
    return _own(value) if issubclass(cls, _MUTABLE) else value if issubclass(cls, np.generic) else _stand_in(value)


def _is_private(step: Any) -> bool:
    return isinstance(step, Attribute) and step.startswith("_")


def _any_template(value: Any, see: Callable[[Tensor], object], instead: Callable[[Any], Any]) -> Any:
    """Make the template of nested containers; items that are neither tensors nor containers become `instead(item)`."""

    def change(item: Any) -> Any:
        if is_tensor(item):
            see(item)
            return TENSOR
        return instead(item)

    return rebuilt(value, change, repeats=MOST_REPEATS, as_template=True)


def _quick_template(value: Any, see: Callable[[Tensor], object]) -> Any:
    """Make the template of lists, tuples and dictionaries nested at most two deep, as nearly all are; else return `LATER`.

    This is on the hot path of capture; `rebuilt` would take ten times as long.
    """
    cls = type(value)
    if cls in PLAIN:
        return value
    if cls is slice:
        return _sliced(value, see)
    if cls not in _NESTING:
        return LATER
    items = value.values() if cls is dict else value
    if _FLAT.issuperset(map(type, items)) or (len(value) <= _FEW and all(map(_is_shallow, items))):
        return _filled(value, cls, see)
    return LATER


def _is_shallow(item: Any) -> bool:
    cls = type(item)
    return cls in _FLAT or (cls in _NESTING and _FLAT.issuperset(map(type, item.values() if cls is dict else item)))


def _filled(value: Any, cls: type, see: Callable[[Tensor], object]) -> Any:
    """Copy a list, tuple or dict with TENSOR in place of tensors, in nested containers too."""
    made: list[Any] = []
    for item in value.values() if cls is dict else value:
        cls_of_item = type(item)
        if cls_of_item is Tensor or cls_of_item is Parameter:
            see(item)
            made.append(TENSOR)
        elif cls_of_item in _NESTING:
            made.append(_filled(item, cls_of_item, see))
        else:
            made.append(item if cls_of_item is not slice else _sliced(item, see))
    return made if cls is list else tuple(made) if cls is tuple else dict(zip(value, made, strict=True))


def _sliced(value: slice, see: Callable[[Tensor], object]) -> slice:
    start, stop, step = value.start, value.stop, value.step
    if type(start) in PLAIN and type(stop) in PLAIN and type(step) in PLAIN:
        return value
    return slice(template(start, see), template(stop, see), template(step, see))


def slot_paths(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Path]:
    """The path of every `TENSOR` in a call's templates, in order: `(0,)`, `('mask',)`, `(0, 2)`."""
    if not kwargs and PLAIN.issuperset(map(type, args)):
        return [(index,) for index, item in enumerate(args) if item is TENSOR]
    return [path[1:] for path, _ in find((args, kwargs or {}), (), _is_slot, False, 0)]


def _is_slot(value: Any) -> bool:
    return value is TENSOR


def _own(item: Any) -> Any:
    """Copy a generator or array, because its value may change later; return any other item itself."""
    if type(item) is torch.Generator:
        return item.clone_state()
    return copy.copy(item) if issubclass(type(item), _MUTABLE) else item


def fill(value: Any, tensors: Iterator[Any]) -> Any:
    """Replace each `TENSOR` in a template by the next item of `tensors`."""
    cls = type(value)
    if value is TENSOR:
        return next(tensors)
    if cls in PLAIN:
        return value
    if (cls is tuple or cls is list) and all(map(_is_quickly_filled, value)):
        return cls([_filled_quickly(item, tensors) for item in value])

    def change(item: Any) -> Any:
        if item is TENSOR:
            return next(tensors)
        return _own(item)  # a fresh copy, because the caller may change it

    return rebuilt(value, change)


def _is_quickly_filled(item: Any) -> bool:
    """True for the usual items of a template: a plain value, a slice of plain values, or a list or tuple of plain values."""
    cls = type(item)
    if cls is slice:
        return all(type(bound) in PLAIN and bound is not TENSOR for bound in (item.start, item.stop, item.step))
    if cls in PLAIN or cls is type(...):
        return True
    return (cls is tuple or cls is list) and PLAIN.issuperset(map(type, item))


def _filled_quickly(item: Any, tensors: Iterator[Any]) -> Any:
    if item is TENSOR:
        return next(tensors)
    cls = type(item)
    return cls([next(tensors) if part is TENSOR else part for part in item]) if cls is tuple or cls is list else item


def fill_call(whole: tuple[Any, ...], names: tuple[str, ...], tensors: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Fill the template of all arguments. Returns positional and keyword arguments; `names` are the keyword names."""
    filled = fill(whole, tensors)
    count = len(filled) - len(names)
    return filled[:count], dict(zip(names, filled[count:], strict=True))


BLANK = Sign("·")  # printed in place of a tensor


def blank(value: Any, sign: Any = BLANK) -> Any:
    """Replace every `TENSOR` in a template by `sign`."""
    return fill(value, repeat(sign))
