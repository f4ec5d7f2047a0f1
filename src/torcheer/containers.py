"""What a value contains: the one place that knows how to take nested values apart and how to build others like them.

`children(value)` lists what a container holds, each item with the step that leads to it; `rebuild(value, children)` makes a
container of the same kind with other items. Finding tensors, templates, paths and outlines are short uses of these two.

Looking into a value never changes it: constructors, properties and `__getattr__` of dataclasses and objects are not run,
iterators are not consumed, and torch calls that a mapping or sequence makes while it is read are not recorded. A container
that holds itself is looked into once. One that is held in many places is looked into in each of them, but no more than
`MOST_REPEATS` times in all, because the number of places can grow exponentially.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import Enum
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from .container_kinds import DICT, LEAVES, Attribute, Kind, Nth, kind_of
from .records import TENSOR

Path = tuple[Any, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Children = list[tuple[Any, Any]]

MOST_REPEATS = 10_000
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size})
_FLAT = PLAIN | {Tensor, Parameter, slice, type(...)}  # what most arguments hold: they are read without looking further
_SIMPLE_RESULTS = PLAIN | {Tensor}
_NESTING = frozenset({tuple, list, dict})
_FEW = 1_000
_MUTABLE = (np.ndarray, bytearray, array)  # numbers that are an argument's value and may change later
_SIMPLE: tuple[Any, ...] = (*PLAIN, torch.layout, torch.memory_format, range, type, Enum)


def children(value: Any, *, into_objects: bool = False) -> Children | None:
    """What a container holds, in order, each item with the step that leads to it. None for a value that is not a container.

    >>> children({"a": 1, "b": [2]})
    [('a', 1), ('b', [2])]

    A step is a key or an index, an `Attribute`, or for what can be reached by neither (a set's members) an `Nth`.
    With `into_objects` an object of any other class is a container of its attributes.
    """
    kind = kind_of(value, into_objects)
    found = kind.read(value) if kind is not None else None
    return list(zip(*found, strict=True)) if found is not None else None


def rebuild(value: Any, children: Children) -> Any:
    """A container like `value` that holds `children`. Its class and its other attributes are those of `value`."""
    kind = kind_of(value, True)
    assert kind is not None, f"{type(value).__name__} is no container"
    return kind.built(value, [step for step, _ in children], [item for _, item in children])


# Finding ------------------------------------------------------------------------------------------------------------


def find_tensors(value: Any, path: Path = (), *, into_objects: bool = True) -> Iterator[tuple[Path, Tensor]]:
    """Every tensor in `value` with its path, in order; one held in several places comes once for each.

    With `into_objects`, the attributes of objects that are no containers are looked at too, once for each object.
    """
    return _find(value, path, is_tensor, into_objects, MOST_REPEATS)


def find_leaves(value: Any, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """The items in `value`, in any nesting of containers, for which `is_wanted` is true."""
    return [item for _, item in _find(value, (), is_wanted, False, 0)]


def is_tensor(value: Any) -> bool:
    return issubclass(type(value), Tensor)  # isinstance() would ask the object for its __class__


def _find(
    value: Any, path: Path, is_wanted: Callable[[Any], bool], into_objects: bool, repeats: int
) -> Iterator[tuple[Path, Any]]:
    if is_wanted(value):
        yield path, value
        return
    found = children(value, into_objects=into_objects)
    if found is None:
        return
    stack: list[tuple[Any, Iterator[tuple[Any, Any]]]] = [(value, iter(found))]  # the containers that are being looked into
    steps: list[Any] = []  # from each of them to the next
    open_ids = {id(value)}
    seen = {id(value): value}  # alive while their ids are keys
    while stack:
        for step, item in stack[-1][1]:
            if is_wanted(item):
                yield (*path, *steps, step), item
                continue
            if type(item) in PLAIN or id(item) in open_ids:
                continue
            kind = kind_of(item, into_objects)
            if kind is None:
                continue
            if id(item) in seen:
                if kind.is_object or repeats <= 0:
                    continue
                repeats -= 1
            found = children(item, into_objects=into_objects)
            if found:
                seen[id(item)] = item
                open_ids.add(id(item))
                steps.append(step)
                stack.append((item, iter(found)))
                break
        else:
            open_ids.discard(id(stack.pop()[0]))
            if steps:
                steps.pop()


def get_path(value: Any, path: Path) -> Any:
    """What is found in `value` at `path`."""
    for step in path:
        value = value[step] if type(value) in (tuple, list, dict) else _child(value, step)
    return value


def _child(value: Any, step: Any) -> Any:
    for other, item in children(value, into_objects=True) or ():
        if type(other) is type(step) and (other is step or other == step):
            return item
    return getattr(value, step) if isinstance(step, Attribute) else value[step]


def format_path(path: Path, name: str = "") -> str:
    """A path as Python would write it: `args[0]['mask'].values`; the second member of a set is `{1}`."""
    return name + "".join(
        f".{step}" if isinstance(step, Attribute) else f"{{{int(step)}}}" if isinstance(step, Nth) else f"[{step!r}]"
        for step in path
    )


# Building others ----------------------------------------------------------------------------------------------------


class Other:
    """Stands in an outline for an object, which must not be kept alive."""

    __slots__ = ("type_name",)

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name}>"


class _Open:
    """A container that is being built: what it is built like, and what has been built for it so far."""

    __slots__ = ("built", "items", "kind", "rest", "shell", "steps", "value")

    def __init__(self, value: Any, kind: Kind, steps: list[Any], items: list[Any]) -> None:
        self.value, self.kind, self.steps, self.items = value, kind, steps, items
        self.rest = iter(items)
        self.built: list[Any] = []
        try:
            self.shell = kind.shell(value) if kind.shell is not None else None  # is there before its items, to close cycles
        except TypeError:  # a class derived from one of C's: its fields are put into a dictionary
            self.kind, self.shell = DICT, {}

    def finish(self, as_template: bool) -> Any:
        if as_template and self.kind.template is not None:
            return self.kind.template(self.value, self.built)
        if self.shell is not None and self.kind.pour is not None:
            self.kind.pour(self.shell, self.value, self.steps, self.built)
            return self.shell
        return self.kind.built(self.value, self.steps, self.built)


def _rebuilt(
    value: Any,
    change: Callable[[Any], Any],
    made: dict[int, Any] | None = None,
    *,
    repeats: int = 0,
    as_template: bool = False,
) -> Any:
    """`value` with containers of its own, in which every item that is not a container is replaced by `change(item)`.

    A container met again is the one built before (which `made` has by id), except for so many `repeats`.
    """
    made = {} if made is None else made
    stack: list[_Open] = []
    held: list[Any] = []  # alive while their ids are keys
    open_ids: set[int] = set()

    def begin(item: Any) -> Any:
        """What to put for an item now, or `_LATER` when its own items have to be built first."""
        nonlocal repeats
        if type(item) in PLAIN and item is not TENSOR:
            return item
        kind = kind_of(item)
        if kind is None:
            return change(item)
        key = id(item)
        if key in made and (key in open_ids or repeats <= 0):
            return made[key]
        if key in open_ids:  # a tuple that holds itself, by way of a list
            return Other(type(item).__name__) if as_template else change(item)
        found = kind.read(item)
        if found is None:
            return change(item)
        repeats -= key in made
        here = _Open(item, kind, *found)
        if here.shell is not None:
            made[key] = here.shell
        held.append(item)
        open_ids.add(key)
        stack.append(here)
        return _LATER

    result = begin(value)
    while stack:
        here = stack[-1]
        for item in here.rest:
            result = begin(item)
            if result is _LATER:
                break
            here.built.append(result)
        else:
            stack.pop()
            open_ids.discard(id(here.value))
            key = id(here.value)
            if as_template or key not in made or here.shell is not None:
                made[key] = here.finish(as_template)
            result = made[key]
            if stack:
                stack[-1].built.append(result)
    return result


_LATER = object()


def replace_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """`value` with containers of its own, in which `change(tensor)` is in place of every tensor."""
    return _rebuilt(value, lambda item: change(item) if is_tensor(item) else item)


def _own(item: Any) -> Any:
    """A copy of what is an argument's value and may change later: a generator, an array."""
    if type(item) is torch.Generator:
        return item.clone_state()
    return copy.copy(item) if issubclass(type(item), _MUTABLE) else item


def template(value: Any, see: Callable[[Tensor], object]) -> Any:
    """`value` with every tensor replaced by `TENSOR`, each shown to `see` in order. Containers are copied."""
    made = _quick_template(value, see)
    return made if made is not _LATER else _any_template(value, see, _own)


def outline(value: Any, see: Callable[[Tensor], object]) -> Any:
    """A template that keeps no object alive: `Other` stands for objects that are not containers."""
    made = _quick_template(value, see)
    return made if made is not _LATER else _any_template(value, see, _stand_in)


def _stand_in(item: Any) -> Any:
    return item if issubclass(type(item), _SIMPLE) else Other(type(item).__name__)


def _any_template(value: Any, see: Callable[[Tensor], object], instead: Callable[[Any], Any]) -> Any:
    """The template of any nesting, with `instead(item)` in place of what is neither a tensor nor a container."""

    def change(item: Any) -> Any:
        if is_tensor(item):
            see(item)
            return TENSOR
        return instead(item)

    return _rebuilt(value, change, repeats=MOST_REPEATS, as_template=True)


def _quick_template(value: Any, see: Callable[[Tensor], object]) -> Any:
    """The template of what nearly all arguments are: lists, tuples and dictionaries at most two deep. Otherwise `_LATER`.

    This is on the hot path of capture, where `_rebuilt` would take ten times as long.
    """
    cls = type(value)
    if cls in PLAIN:
        return value
    if cls is slice:
        return _sliced(value, see)
    if cls not in _NESTING:
        return _LATER
    items = value.values() if cls is dict else value
    if _FLAT.issuperset(map(type, items)):
        return _flat_template(value, cls, see)
    if len(value) > _FEW or not all(map(_is_shallow, items)):
        return _LATER
    made: list[Any] = []
    for item in items:
        cls_of_item = type(item)
        if cls_of_item in _NESTING:
            made.append(_flat_template(item, cls_of_item, see))
        elif cls_of_item is Tensor or cls_of_item is Parameter:
            see(item)
            made.append(TENSOR)
        else:
            made.append(item if cls_of_item is not slice else _sliced(item, see))
    return made if cls is list else tuple(made) if cls is tuple else dict(zip(value, made, strict=True))


def _is_shallow(item: Any) -> bool:
    cls = type(item)
    return cls in _FLAT or (cls in _NESTING and _FLAT.issuperset(map(type, item.values() if cls is dict else item)))


def _flat_template(value: Any, cls: type, see: Callable[[Tensor], object]) -> Any:
    flat: list[Any] = []
    for item in value.values() if cls is dict else value:
        cls_of_item = type(item)
        if cls_of_item is Tensor or cls_of_item is Parameter:
            see(item)
            flat.append(TENSOR)
        else:
            flat.append(item if cls_of_item is not slice else _sliced(item, see))
    return flat if cls is list else tuple(flat) if cls is tuple else dict(zip(value, flat, strict=True))


def _sliced(value: slice, see: Callable[[Tensor], object]) -> slice:
    start, stop, step = value.start, value.stop, value.step
    if type(start) in PLAIN and type(stop) in PLAIN and type(step) in PLAIN:
        return value
    return slice(template(start, see), template(stop, see), template(step, see))


def slot_paths(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Path]:
    """The path of every `TENSOR` in a call's templates, in order: `(0,)`, `('mask',)`, `(0, 2)`."""
    if not kwargs and PLAIN.issuperset(map(type, args)):
        return [(index,) for index, item in enumerate(args) if item is TENSOR]
    return [path[1:] for path, _ in _find((args, kwargs or {}), (), _is_slot, False, 0)]


def _is_slot(value: Any) -> bool:
    return value is TENSOR


def fill(value: Any, tensors: Iterator[Any]) -> Any:
    """A template with its `TENSOR`s replaced, in order, by what `tensors` yields."""
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

    return _rebuilt(value, change)


def _is_quickly_filled(item: Any) -> bool:
    """Whether an argument is what nearly all are in templates: a plain value, a slice of plain values, or a list of these."""
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
    """The positional and the named arguments of a call, from the template of all of them and the names of the last."""
    filled = fill(whole, tensors)
    count = len(filled) - len(names)
    return filled[:count], dict(zip(names, filled[count:], strict=True))


class _Blank:
    """Printed in place of a tensor."""

    def __repr__(self) -> str:
        return "·"


BLANK = _Blank()


def blank(value: Any, sign: Any = BLANK) -> Any:
    """A template with `sign` in place of every `TENSOR`."""
    return fill(value, repeat(sign))


def shares_no_container(arguments: Arguments, replaced: dict[int, Tensor] | None = None) -> Arguments:
    """Arguments whose containers are their own and whose tensors, modules and functions are the same.

    A model may change the lists, dictionaries and caches it is given; with this it changes ours. Objects that cannot be
    copied are passed as they are. Tensors whose id is in `replaced` are passed as the tensor it has for them.
    """
    args, kwargs = arguments
    if not replaced and all(issubclass(type(item), (Tensor, *LEAVES)) for item in (*args, *kwargs.values())):
        return arguments
    made: dict[int, Any] = {id(item): item for _, item in _find(arguments, (), _is_kept, True, 0)}
    made.update(replaced or {})

    def copied(item: Any) -> Any:
        if id(item) in made:
            return made[id(item)]
        with suppress(Exception):  # a user-defined __deepcopy__ may raise anything
            return copy.deepcopy(item, made)
        return item

    whole: Arguments = _rebuilt(arguments, copied, made)
    return whole


def _is_kept(value: Any) -> bool:
    cls = type(value)
    return cls not in PLAIN and issubclass(cls, (Tensor, *LEAVES)) and cls is not torch.Generator


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in a function's or module's result: containers are looked into, other objects are not."""
    cls = type(value)
    if cls is Tensor:
        return [value]
    if cls is tuple and _SIMPLE_RESULTS.issuperset(map(type, value)):
        return [item for item in value if type(item) is Tensor]
    return [tensor for _, tensor in find_tensors(value, into_objects=False)]
