"""Finds tensors in nested values for the checks of this folder.

It shares no code with `torcheer._torch.containers`, with which capture finds tensors, so that a fault there is noticed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence, Set, ValuesView
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._torch.internals import DisableTorchFunction, registered_containers

_MOST_REPEATS = 10_000  # enter repeated containers at most this many times; docs/validation.md states the limit
_CLOSED: tuple[type, ...] = (
    *(str, bytes, bytearray, memoryview, range, type, torch.Size, torch.nn.Module, torch.autograd.graph.Node),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)
_TENSORS = frozenset({Tensor, torch.nn.Parameter})
_PLAIN = frozenset({int, float, bool, str, complex, type(None), torch.dtype, torch.device})
_OWN: tuple[Any, ...] = (tuple, list, set, frozenset)


def tensors_of(value: Any, *, into_objects: bool = False) -> list[Tensor]:
    """Every tensor in a value, in order, with repetitions. Members of a set come in any order."""
    if type(value) is tuple and not into_objects and (flat := _flat(value)) is not None:
        return flat
    with DisableTorchFunction():
        return [item for item in _walk(value, into_objects) if issubclass(type(item), Tensor)]


def _flat(value: tuple[Any, ...]) -> list[Tensor] | None:
    """The tensors of the arguments of an ordinary call: positional and named ones, nothing nested. None for any other value."""
    found: list[Tensor] = []
    for part in value:
        kind = type(part)
        if kind is not tuple and kind is not dict:
            return None
        for item in part.values() if kind is dict else part:
            if type(item) in _TENSORS:
                found.append(item)
            elif type(item) not in _PLAIN:
                return None
    return found


def holds_set(value: Any) -> bool:
    """True if a value contains a set, whose tensors come in any order."""
    return any(issubclass(type(item), Set) for item in _walk(value, False))


def _walk(value: Any, into_objects: bool) -> Iterator[Any]:
    """Yields a value and all values nested in it, depth first. A container inside itself is not entered again."""
    waiting: list[tuple[Any, bool]] = [(value, True)]  # (value, True if it is entered now, False if it is left)
    inside: set[int] = set()
    met: dict[int, Any] = {}
    repeats = 0
    while waiting:
        here, is_entered = waiting.pop()
        if not is_entered:
            inside.discard(id(here))
            continue
        yield here
        if issubclass(type(here), (Tensor, *_CLOSED)) or id(here) in inside:
            continue
        parts = _parts(here)
        is_object = parts is None
        if parts is None:
            parts = _attributes(here) if into_objects else []
        if not parts:
            continue
        if id(here) in met:
            repeats += 1
            if is_object or repeats > _MOST_REPEATS:
                continue
        met[id(here)] = here
        inside.add(id(here))
        waiting.append((here, False))
        waiting.extend((part, True) for part in reversed(parts))


def _parts(value: Any) -> list[Any] | None:
    """The items of a container; None for any other value."""
    try:
        if isinstance(value, OrderedDict):
            return list(OrderedDict.values(value))
        if isinstance(value, dict):
            return list(dict.values(value))
        if isinstance(value, slice):
            return [value.start, value.stop, value.step]
        for own in _OWN:
            if isinstance(value, own):
                return list(own.__iter__(value))
        if dataclasses.is_dataclass(value):
            return [item for field in dataclasses.fields(value) for item in _field(value, field.name)]
        if hasattr(type(value), "__attrs_attrs__"):
            return [item for field in type(value).__attrs_attrs__ for item in _field(value, field.name)]
        if isinstance(value, Mapping):
            return list(value.values())
        if isinstance(value, (Sequence, Set, ValuesView)):
            return list(value)
        if type(value) in registered_containers:
            return list(registered_containers[type(value)].flatten_fn(value)[0])
    except Exception as error:  # a user-defined method may raise anything
        pass_interrupts_on(error)
        return []
    return None


def _field(value: Any, name: str) -> list[Any]:
    """Return a list with the stored value of a field; an empty list if nothing is stored. Does not call properties."""
    stored = getattr(value, "__dict__", {})
    if name in stored:
        return [stored[name]]
    is_slot = any(name in vars(cls).get("__slots__", ()) for cls in type(value).__mro__)
    return [getattr(value, name)] if is_slot and hasattr(value, name) else []


def _attributes(value: Any) -> list[Any]:
    found: list[Any] = [value.func, value.args, value.keywords] if issubclass(type(value), functools.partial) else []
    for cls in reversed(type(value).__mro__):
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            full = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
            if full not in ("__dict__", "__weakref__") and full in vars(cls):
                try:
                    found.append(vars(cls)[full].__get__(value))
                except AttributeError:  # the field is not set
                    continue
    try:
        stored = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return found
    return [*found, *(item for name, item in stored.items() if not name.startswith("__"))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """The part of a value at a path of attribute names, keys and indices; None if the path leads nowhere."""
    for step in path:
        try:
            value = getattr(value, step) if type(step).__name__ == "Attribute" else value[step]
        except Exception as error:  # a user-defined method may raise anything
            pass_interrupts_on(error)
            return None
    return value
