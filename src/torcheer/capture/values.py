"""Finds tensors in nested values, and says where they were.

A path is a tuple of steps: an `Attribute` is read with a dot, anything else with square brackets.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from ..records import TENSOR

Path = tuple[Any, ...]

_LEAVES: tuple[type, ...] = (
    *(str, bytes, bytearray, int, float, complex, bool, type(None), range, type),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout, torch.memory_format, torch.UntypedStorage),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(torch.nn.Module, torch.autograd.graph.Node),
)
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size})


class Attribute(str):
    """A step of a path that is an attribute's name."""

    __slots__ = ()


def find_tensors(value: Any, path: Path = (), *, into_objects: bool = True) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in `value` with its path, in order; one held in several places comes once for each.

    Looks into sequences, mappings, sets, dataclasses and (with `into_objects`) the attributes of any other object.
    """
    return _find(value, path, into_objects, set())


def _find(value: Any, path: Path, into_objects: bool, inside: set[int]) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
        return
    if type(value) in PLAIN or isinstance(value, _LEAVES) or id(value) in inside:
        return
    inside.add(id(value))
    for step, item in _items(value, into_objects):
        yield from _find(item, (*path, step), into_objects, inside)
    inside.discard(id(value))


def _items(value: Any, into_objects: bool) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        yield from value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((Attribute(name), getattr(value, name)) for name in value._fields)
    elif isinstance(value, (Sequence, Set)):
        yield from enumerate(value)
    elif dataclasses.is_dataclass(value):
        yield from ((Attribute(f.name), getattr(value, f.name, None)) for f in dataclasses.fields(value))
    elif isinstance(value, slice):
        yield from ((Attribute(name), getattr(value, name)) for name in ("start", "stop", "step"))
    elif into_objects:
        for name, item in _attributes(value).items():
            if not name.startswith("__"):
                yield Attribute(name), item


def _attributes(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for cls in reversed(type(value).__mro__):
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    found.update(getattr(value, "__dict__", {}))
    return found


def get_path(value: Any, path: Path) -> Any:
    """What is found in `value` at `path`."""
    for step in path:
        value = getattr(value, step) if isinstance(step, Attribute) else value[step]
    return value


def format_path(path: Path, name: str = "") -> str:
    """A path as Python would write it: `args[0]['mask'].values`."""
    return name + "".join(f".{step}" if isinstance(step, Attribute) else f"[{step!r}]" for step in path)


def template(value: Any, see: Callable[[Tensor], object]) -> Any:
    """`value` with every tensor replaced by `TENSOR`, each shown to `see` in order. Containers are copied."""
    cls = type(value)
    if cls in PLAIN:
        return value
    if isinstance(value, Tensor):
        see(value)
        return TENSOR
    if cls is tuple:
        return tuple([template(item, see) for item in value])
    if cls is list:
        return [template(item, see) for item in value]
    if isinstance(value, Mapping):
        items = {key: template(item, see) for key, item in value.items()}
        return items if cls is dict else _rebuilt(value, items)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _remade(value, [template(item, see) for item in value])
    if isinstance(value, (tuple, list)):
        return _rebuilt(value, [template(item, see) for item in value])
    if cls is slice:
        return slice(*(template(part, see) for part in (value.start, value.stop, value.step)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: template(getattr(value, f.name), see) for f in dataclasses.fields(value) if f.init}
        try:
            return dataclasses.replace(value, **fields)
        except (TypeError, ValueError):
            return fields
    if cls is torch.Generator:
        return value.clone_state()  # the call is about to move it on
    return value


def _remade(value: Any, items: list[Any]) -> Any:
    """A named tuple with other items, past any check its class makes."""
    return value._make(items)


def _rebuilt(value: Any, items: Any) -> Any:
    try:
        return type(value)(items)
    except (TypeError, ValueError):
        return items


def slot_paths(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Path]:
    """The path of every `TENSOR` in a call's templates, in order: `(0,)`, `('mask',)`, `(0, 2)`."""
    found: list[Path] = []

    def look(value: Any, path: Path) -> None:
        if value is TENSOR:
            found.append(path)
        elif type(value) not in PLAIN and not isinstance(value, _LEAVES):
            for step, item in _items(value, False):
                look(item, (*path, step))

    look(args, ())
    look(kwargs or {}, ())
    return found


def fill(value: Any, tensors: Iterator[Any]) -> Any:
    """A template with its `TENSOR`s replaced, in order, by what `tensors` yields."""
    if value is TENSOR:
        return next(tensors)
    cls = type(value)
    if cls in PLAIN:
        return value
    if cls is torch.Generator:
        return value.clone_state()  # whoever uses it moves it on
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _remade(value, [fill(item, tensors) for item in value])
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return cls(fill(item, tensors) for item in value)
    if isinstance(value, Mapping):
        items = {key: fill(item, tensors) for key, item in value.items()}
        return items if cls is dict else _rebuilt(value, items)
    if cls is slice:
        return slice(*(fill(part, tensors) for part in (value.start, value.stop, value.step)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: fill(getattr(value, f.name), tensors) for f in dataclasses.fields(value) if f.init}
        return dataclasses.replace(value, **fields)
    return value


def fill_call(whole: tuple[Any, ...], names: tuple[str, ...], tensors: Iterator[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and the named arguments of a call, from the template of all of them and the names of the last."""
    filled = fill(whole, tensors)
    count = len(filled) - len(names)
    return filled[:count], dict(zip(names, filled[count:], strict=True))


def shares_no_container(value: Any) -> Any:
    """A copy of `value` whose containers are its own and whose tensors, modules and functions are the same.

    A model may change the lists, dictionaries and caches it is given; with this it changes ours. What cannot be
    copied is passed as it is.
    """
    if all(isinstance(item, (Tensor, *_LEAVES)) for item in _top_items(value)):
        return value
    memo: dict[int, Any] = {}
    for _, tensor in find_tensors(value):
        memo[id(tensor)] = tensor
    _remember_leaves(value, memo, set())
    try:
        return copy.deepcopy(value, memo)
    except Exception:  # whatever a stranger's __deepcopy__ may raise
        return value


def _top_items(value: Any) -> Iterator[Any]:
    args, kwargs = value
    yield from args
    yield from kwargs.values()


def _remember_leaves(value: Any, memo: dict[int, Any], seen: set[int]) -> None:
    if id(value) in seen or isinstance(value, Tensor) or type(value) in PLAIN:
        return
    seen.add(id(value))
    if isinstance(value, _LEAVES) and not isinstance(value, torch.Generator):
        memo[id(value)] = value
        return
    for _, item in _items(value, True):
        _remember_leaves(item, memo, seen)
