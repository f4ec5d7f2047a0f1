"""Stored attributes of an object, read and written without running any code of its class."""

from __future__ import annotations

import types
import weakref
from typing import Any

_known: weakref.WeakKeyDictionary[type, list[tuple[str, Any]]] = weakref.WeakKeyDictionary()


def stored_attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object stores, by name."""
    found: dict[str, Any] = {}
    for name, slot in slots_of(type(value)):
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # not set
            continue
    found.update(dictionary(value))
    return found


def slots_of(cls: type) -> list[tuple[str, Any]]:
    """The slots of a class: their names, and the descriptors that read and write them."""
    found = _known.get(cls)
    if found is None:
        found = _known[cls] = [
            (name, slot)
            for base in reversed(cls.__mro__)
            for name, slot in base.__dict__.items()
            if type(slot) is types.MemberDescriptorType and "__slots__" in base.__dict__
        ]
    return found


def dictionary(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def carry(made: Any, value: Any) -> Any:
    """Give `made` the attributes of `value`, which is of the same class."""
    for _, slot in slots_of(type(value)):
        try:
            slot.__set__(made, slot.__get__(value))
        except AttributeError:  # not set
            continue
    dictionary(made).update(dictionary(value))
    return made


def store(made: Any, name: str, item: Any) -> None:
    for other, slot in slots_of(type(made)):
        if other == name:
            slot.__set__(made, item)
            return
    dictionary(made)[name] = item


def bare(value: Any) -> Any:
    """Another object of the same class with the same attributes, made without running its constructor."""
    return carry(object.__new__(type(value)), value)
