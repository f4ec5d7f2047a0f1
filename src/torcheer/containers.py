"""What a value contains: the one place that knows how to take nested values apart and how to build others like them.

`children(value)` lists what a container holds, each item with the step that leads to it; `rebuild(value, children)` makes a
container of the same kind with other items. Finding tensors, paths, and templates (`templates.py`) are short uses of these two.

Looking into a value never changes it: constructors, properties and `__getattr__` of dataclasses and objects are not run,
iterators are not consumed, and torch calls that a mapping or sequence makes while it is read are not recorded. A container
that holds itself is looked into once. One that is held in many places is looked into in each of them, but no more than
`MOST_REPEATS` times in all, because the number of places can grow exponentially.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .container_kinds import DICT, LEAVES, Attribute, Kind, Nth, kind_of
from .records import TENSOR

Path = tuple[Any, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Children = list[tuple[Any, Any]]

MOST_REPEATS = 10_000
LATER = object()  # is returned for what cannot be built yet, or not in this way
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size})
_SIMPLE_RESULTS = PLAIN | {Tensor}


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
    return find(value, path, is_tensor, into_objects, MOST_REPEATS)


def find_leaves(value: Any, is_wanted: Callable[[Any], bool]) -> list[Any]:
    """The items in `value`, in any nesting of containers, for which `is_wanted` is true."""
    return [item for _, item in find(value, (), is_wanted, False, 0)]


def is_tensor(value: Any) -> bool:
    return issubclass(type(value), Tensor)  # isinstance() would ask the object for its __class__


def find(
    value: Any, path: Path, is_wanted: Callable[[Any], bool], into_objects: bool, repeats: int
) -> Iterator[tuple[Path, Any]]:
    """Every wanted item in `value`, with its path. Containers met again are looked into again, `repeats` times in all."""
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


def rebuilt(
    value: Any,
    change: Callable[[Any], Any],
    made: dict[int, Any] | None = None,
    *,
    repeats: int = 0,
    as_template: bool = False,
) -> Any:
    """`value` with containers of its own, in which every item that is not a container is replaced by `change(item)`.

    A container met again is the one built before, which `made` has by id; `repeats` is how often one is built again instead.
    """
    made = {} if made is None else made
    stack: list[_Open] = []
    held: list[Any] = []  # alive while their ids are keys
    open_ids: set[int] = set()

    def begin(item: Any) -> Any:
        """What to put for an item now, or `LATER` when its own items have to be built first."""
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
        return LATER

    result = begin(value)
    while stack:
        here = stack[-1]
        for item in here.rest:
            result = begin(item)
            if result is LATER:
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


def replace_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """`value` with containers of its own, in which `change(tensor)` is in place of every tensor."""
    return rebuilt(value, lambda item: change(item) if is_tensor(item) else item)


def shares_no_container(arguments: Arguments, replaced: dict[int, Any] | None = None) -> Arguments:
    """Arguments whose containers are their own and whose tensors, modules and functions are the same.

    A model may change the lists, dictionaries and caches it is given; with this it changes ours. Objects that cannot be
    copied are passed as they are. What has its id in `replaced` is passed as what is there for it.
    """
    args, kwargs = arguments
    if not replaced and all(issubclass(type(item), (Tensor, *LEAVES)) for item in (*args, *kwargs.values())):
        return arguments
    made: dict[int, Any] = {id(item): item for _, item in find(arguments, (), _is_kept, True, 0)}
    made.update(replaced or {})

    def copied(item: Any) -> Any:
        if id(item) in made:
            return made[id(item)]
        with suppress(Exception):  # a user-defined __deepcopy__ may raise anything
            return copy.deepcopy(item, made)
        return item

    whole: Arguments = rebuilt(arguments, copied, made)
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
