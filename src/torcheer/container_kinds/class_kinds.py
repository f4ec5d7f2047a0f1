"""Dataclasses, objects, mappings and sequences that are not Python's own, and classes registered as pytrees.

Of dataclasses and objects only stored attributes are read, no properties and no `__getattr__`, so that none of the user's code
runs. Other mappings and sequences, and pytrees, list their items themselves, while torch functions are not recorded.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from ..torch_internals import DisableTorchFunction, registered_containers
from .attributes import bare, dictionary, store, stored_attributes
from .kind import Attribute, Kind, Parts, read_by_asking, unordered
from .python_kinds import OWN


def object_kind(names: frozenset[str] | None) -> Kind:
    """Objects, of which these attributes are read; None: all of them."""

    def read(value: Any) -> Parts:
        stored = stored_attributes(value)
        if issubclass(type(value), functools.partial):
            stored = {"func": value.func, "args": value.args, "keywords": value.keywords, **stored}
        found = {name: item for name, item in stored.items() if (name in names if names is not None else name[:2] != "__")}
        return [*map(Attribute, found)], list(found.values())

    def pour(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
        for name, item in zip(steps, items, strict=True):
            store(made, str(name), item)

    return Kind(read, shell=bare, pour=pour, is_object=names is None)


def user_kind(shape: type) -> Kind:
    """Mappings, sequences and sets of classes that are not Python's own: they are asked for their items."""

    read = read_by_asking(shape)

    def build(value: Any, steps: list[Any], items: list[Any]) -> Any:
        plain: Any = dict(zip(steps, items, strict=True)) if shape is dict else list(items)
        made = _with_other_store(value, plain, read)
        if made is None:
            made = _constructed(value, plain, read)
        return made if made is not None else plain

    return Kind(read, build)


def _with_other_store(value: Any, plain: Any, read: Callable[[Any], Parts | None]) -> Any:
    """An object like `value` with `plain` in place of the attribute that holds its items, if there is one."""
    mine = read(value)
    for name, held in stored_attributes(value).items():
        kind = OWN.get(type(held))
        theirs = kind.read(held) if kind is not None else None
        if kind is None or mine is None or theirs is None or not _same_parts(mine, theirs):
            continue
        try:
            made = bare(value)
        except TypeError:  # a class derived from one of C's
            return None
        store(made, name, kind.built(held, theirs[0], list(_values(plain))))
        return made
    return None


def _same_parts(one: Parts, other: Parts) -> bool:
    """Whether two containers hold the very same items under the same steps."""
    if len(one[1]) != len(other[1]) or not all(map(operator.is_, one[1], other[1])):
        return False
    return all(map(operator.is_, one[0], other[0])) or one[0] == other[0] == list(range(len(one[0])))


def _values(plain: Any) -> Any:
    return plain.values() if type(plain) is dict else plain


def _constructed(value: Any, plain: Any, read: Callable[[Any], Parts | None]) -> Any:
    """The container that the constructor makes of `plain`, if it holds exactly those items."""
    try:
        with DisableTorchFunction():
            made = type(value)(type(plain)(plain))  # a constructor may keep what it is given
    except Exception:  # a user-defined constructor may raise anything
        return None
    found = read(made)
    same = found is not None and len(found[1]) == len(plain) and all(map(operator.is_, found[1], _values(plain)))
    return made if same else None


def wrapper_kind(shape: type) -> Kind:
    """UserDict and UserList, whose items are in `data`."""
    other = user_kind(shape)

    def read(value: Any) -> Parts | None:
        kind = OWN.get(type(dictionary(value).get("data")))
        return kind.read(dictionary(value)["data"]) if kind is not None else other.read(value)

    def build(value: Any, steps: list[Any], items: list[Any]) -> Any:
        data = dictionary(value).get("data")
        kind = OWN.get(type(data))
        if kind is None:
            return other.built(value, steps, items)
        made = bare(value)
        dictionary(made)["data"] = kind.built(data, steps, items)
        return made

    return Kind(read, build)


def read_registered(value: Any) -> Parts | None:
    node = registered_containers[type(value)]
    try:
        with DisableTorchFunction():
            return unordered(list(node.flatten_fn(value)[0]))
    except Exception:  # a user-defined function may raise anything
        return None


def build_registered(value: Any, steps: list[Any], items: list[Any]) -> Any:
    node = registered_containers[type(value)]
    try:
        with DisableTorchFunction():
            return node.unflatten_fn(items, node.flatten_fn(value)[1])
    except Exception:  # a user-defined function may raise anything
        return tuple(items)
