"""Takes nested values apart and builds others like them: containers, paths to tensors, and copies.

`children` lists the items of a container, `rebuild` makes a container of the same class with other items; for each class of
containers, a `Kind` says how to do both.
"""

from __future__ import annotations

import array
import copy
import dataclasses
import functools
import operator
import types
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .internals import DisableTorchFunction, registered_containers
from .sentinels import TENSOR

# Says how containers of one class are read and built, and defines the steps of a path to their items.

Parts = tuple[list[Any], list[Any]]  # the steps to the items of a container, and the items


class Attribute(str):
    """A step of a path: the name of an attribute."""

    __slots__ = ()


class Nth(int):
    """A step of a path to an item that has no key, index or name, such as a set's member: its position in iteration order."""

    __slots__ = ()


@dataclasses.dataclass(slots=True, eq=False)
class Kind:
    """Says how to read and build containers of one class.

    Mutable containers are built in two steps, an empty `shell` and `pour`, so that a container can contain itself.
    """

    read: Callable[[Any], Parts | None]  # returns None if the container cannot be read
    build: Callable[[Any, list[Any], list[Any]], Any] | None = None
    shell: Callable[[Any], Any] | None = None
    pour: Callable[[Any, Any, list[Any], list[Any]], None] | None = None
    template: Callable[[Any, list[Any]], Any] | None = None  # makes the container in a template; None: it is of the same class
    is_object: bool = False

    def built(self, value: Any, steps: list[Any], items: list[Any]) -> Any:
        """Build a container like `value` that holds `items`."""
        if self.build is not None:
            return self.build(value, steps, items)
        assert self.shell is not None
        assert self.pour is not None
        made = self.shell(value)
        self.pour(made, value, steps, items)
        return made


def read_by_asking(shape: type) -> Callable[[Any], Parts | None]:
    """Make a reader that iterates over foreign containers: mappings (`shape` is dict), sequences (list) or sets (set)."""

    def read(value: Any) -> Parts | None:
        try:
            with DisableTorchFunction():
                items: Any = list(value.items()) if shape is dict else list(value)
                if shape is dict:
                    return [key for key, _ in items], [item for _, item in items]
        except Exception as error:  # a user-defined method may raise anything
            pass_interrupts_on(error)
            return None
        return unordered(items) if shape is set else (list(range(len(items))), items)

    return read


def unordered(items: list[Any]) -> Parts:
    """The steps and items of a container without keys, indices or names: each step is an `Nth`."""
    return [*map(Nth, range(len(items)))], items


# Attributes stored in an object, read and written without running code of its class.

_attributes_of_classes: weakref.WeakKeyDictionary[type, list[tuple[str, Any]]] = weakref.WeakKeyDictionary()


def stored_attributes(value: Any) -> dict[str, Any]:
    """The attributes that an object stores, by name."""
    found: dict[str, Any] = {}
    for name, slot in slots_of(type(value)):
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # the slot is not set
            continue
    found.update(dictionary(value))
    return found


def slots_of(cls: type) -> list[tuple[str, Any]]:
    """The slots of a class: (name, descriptor)."""
    found = _attributes_of_classes.get(cls)
    if found is None:
        found = _attributes_of_classes[cls] = [
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
    """Give `made` the attributes of `value`, an object of the same class. Returns `made`."""
    for _, slot in slots_of(type(value)):
        try:
            slot.__set__(made, slot.__get__(value))
        except AttributeError:  # the slot is not set
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


# Stand-ins in a template: for a set, and for an object that cannot be read from a file.


class Members:
    """Stands for a set in a template. In a real set, two tensors would become one member, because both are the same
    placeholder.
    """

    __slots__ = ("items", "like")

    def __init__(self, like: Any, items: list[Any]) -> None:
        self.like = like  # an empty set of the class of the set
        self.items = items

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self.items))}}}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and type(self.like) is type(other.like) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]  # compared by its items, which are in a list


class SavedObject:
    """Stands for an object of any class in a template that was read from a file.

    It prints like the object, and holds the object's tensors.
    """

    __slots__ = ("items", "printed", "steps", "type_name")

    def __init__(self, type_name: str, printed: str, steps: list[Any], items: list[Any]) -> None:
        self.type_name, self.printed, self.steps, self.items = type_name, printed, steps, items

    def __repr__(self) -> str:
        return self.printed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SavedObject) and (self.type_name, self.printed) == (other.type_name, other.printed)

    def __hash__(self) -> int:
        return hash((self.type_name, self.printed))


# Python's own containers. Derived classes are built without calling their methods.


def _read_sequence(iterate: Callable[[Any], Any]) -> Callable[[Any], Parts]:
    def read(value: Any) -> Parts:
        items = list(iterate(value))
        return list(range(len(items))), items

    return read


def _pour_by(extend: Callable[[Any, list[Any]], None]) -> Callable[[Any, Any, list[Any], list[Any]], None]:
    return lambda made, value, steps, items: extend(made, items)


def _build_tuple(value: Any, steps: list[Any], items: list[Any]) -> Any:
    if type(value) is tuple:
        return tuple(items)
    if hasattr(type(value), "n_sequence_fields"):  # the result of torch.max: its constructor takes all items
        return type(value)(items)
    return carry(tuple.__new__(type(value), items), value)


def _read_named(value: Any) -> Parts:
    items = list(tuple.__iter__(value))
    names = [*map(Attribute, type(value)._fields)]
    return (names, items) if len(names) == len(items) else (list(range(len(items))), items)


def _list_shell(value: Any) -> Any:
    return [] if type(value) is list else carry(list.__new__(type(value)), value)


def _deque_shell(value: Any) -> Any:
    made = deque.__new__(type(value))
    deque.__init__(made, (), value.maxlen)
    return carry(made, value)


def _read_dict(value: Any) -> Parts:
    items = OrderedDict.items if isinstance(value, OrderedDict) else dict.items
    pairs = list(items(value))
    return [key for key, _ in pairs], [item for _, item in pairs]


def _dict_shell(value: Any) -> Any:
    cls = type(value)
    if cls is dict:
        return {}
    base = OrderedDict if issubclass(cls, OrderedDict) else defaultdict if issubclass(cls, defaultdict) else dict
    made = base.__new__(cls)
    if base is defaultdict:
        made.default_factory = value.default_factory
    return carry(made, value)


def _pour_dict(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
    if type(made) is dict:
        made.update(zip(steps, items, strict=True))
        return
    put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
    attributes = dictionary(made)
    for key, item in zip(steps, items, strict=True):
        put(made, key, item)
        if type(key) is str and key in attributes and attributes[key] is dict.get(value, key):
            attributes[key] = item  # transformers' model outputs also have each item as an attribute


def _read_slice(value: slice) -> Parts:
    return [Attribute("start"), Attribute("stop"), Attribute("step")], [value.start, value.stop, value.step]


_VIEWS: dict[type, Callable[[list[Any]], Any]] = {
    type({}.values()): lambda items: dict(enumerate(items)).values(),
    type(OrderedDict().values()): lambda items: OrderedDict(enumerate(items)).values(),
}


# Sets ---------------------------------------------------------------------------------------------------------------


def _read_set(value: Any) -> Parts:
    base = set if isinstance(value, set) else frozenset
    return unordered(sorted(base.__iter__(value), key=_rank))


def _rank(member: Any) -> tuple[str, ...]:
    """A key by which a set's members are sorted, because their hashes differ from run to run."""
    cls = type(member)
    if issubclass(cls, Tensor):
        with DisableTorchFunction():
            return (cls.__name__, str(member.dtype), "" if member.is_nested else str(tuple(member.shape)))
    if cls in (str, bytes, int, float, complex, bool):
        return (cls.__name__, repr(member))
    if cls is tuple:
        return (cls.__name__, *(part for item in member if type(item) is not tuple for part in _rank(item)))
    return (cls.__name__,)


def _build_set(value: Any, steps: list[Any], items: list[Any]) -> Any:
    base: Any = set if isinstance(value, set) else frozenset
    made = base.__new__(type(value)) if base is set else base.__new__(type(value), items)
    if base is set:
        set.update(made, items)
    return made if type(value) is base else carry(made, value)


def _build_members(value: Members, steps: list[Any], items: list[Any]) -> Any:
    made = _build_set(value.like, steps, items)
    return made if len(made) == len(items) else Members(value.like, items)


# Kinds of Python's own classes ---------------------------------------------------------------------------------------------

TUPLE = Kind(_read_sequence(tuple.__iter__), _build_tuple)
NAMED = Kind(_read_named, _build_tuple)
LIST = Kind(_read_sequence(list.__iter__), shell=_list_shell, pour=_pour_by(list.extend))
DEQUE = Kind(_read_sequence(deque.__iter__), shell=_deque_shell, pour=_pour_by(deque.extend))
DICT = Kind(_read_dict, shell=_dict_shell, pour=_pour_dict)
SET = Kind(_read_set, _build_set, template=lambda value, items: Members(_build_set(value, [], []), items))
OWN: dict[Any, Kind] = {
    list: LIST,
    tuple: TUPLE,
    deque: DEQUE,
    set: SET,
    frozenset: SET,
    dict: DICT,
    OrderedDict: DICT,
    defaultdict: DICT,
    slice: Kind(_read_slice, lambda value, steps, items: slice(*items)),
    types.MappingProxyType: Kind(
        read_by_asking(dict), lambda value, steps, items: types.MappingProxyType(dict(zip(steps, items, strict=True)))
    ),
    Members: Kind(lambda value: unordered(list(value.items)), _build_members),
    SavedObject: Kind(
        lambda value: (list(value.steps), list(value.items)),
        lambda value, steps, items: SavedObject(value.type_name, value.printed, steps, items),
    ),
    **dict.fromkeys(_VIEWS, Kind(lambda value: unordered(list(value)), lambda value, steps, items: _VIEWS[type(value)](items))),
}


# Dataclasses, other objects, foreign mappings and sequences, and classes registered as pytrees.
#
# For dataclasses and objects only stored attributes are read, no properties and no `__getattr__`, so none of the user's code
# runs. Foreign mappings, sequences and pytrees list their items themselves, while torch functions are not recorded.


def object_kind(names: frozenset[str] | None) -> Kind:
    """The `Kind` that reads these attributes of an object; None: all attributes."""

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
    """The `Kind` of foreign mappings, sequences and sets, which are read by iterating."""

    read = read_by_asking(shape)

    def build(value: Any, steps: list[Any], items: list[Any]) -> Any:
        plain: Any = dict(zip(steps, items, strict=True)) if shape is dict else list(items)
        made = _with_other_store(value, plain, read)
        if made is None:
            made = _constructed(value, plain, read)
        return made if made is not None else plain

    return Kind(read, build)


def _with_other_store(value: Any, plain: Any, read: Callable[[Any], Parts | None]) -> Any:
    """Copy `value` with `plain` in place of the attribute that stores its items; None if there is no such attribute."""
    mine = read(value)
    for name, held in stored_attributes(value).items():
        kind = OWN.get(type(held))
        theirs = kind.read(held) if kind is not None else None
        if kind is None or mine is None or theirs is None or not _same_parts(mine, theirs):
            continue
        try:
            made = bare(value)
        except TypeError:  # the class is derived from a class that is written in C
            return None
        store(made, name, kind.built(held, theirs[0], list(_values(plain))))
        return made
    return None


def _same_parts(one: Parts, other: Parts) -> bool:
    """True if two containers hold identical objects under equal steps."""
    if len(one[1]) != len(other[1]) or not all(map(operator.is_, one[1], other[1])):
        return False
    return all(map(operator.is_, one[0], other[0])) or one[0] == other[0] == list(range(len(one[0])))


def _values(plain: Any) -> Any:
    return plain.values() if type(plain) is dict else plain


def _constructed(value: Any, plain: Any, read: Callable[[Any], Parts | None]) -> Any:
    """Call the class of `value` with `plain`. Returns the new container if it holds exactly these items; else None."""
    try:
        with DisableTorchFunction():
            made = type(value)(type(plain)(plain))  # the constructor gets a copy, because it may keep its argument
    except Exception as error:  # a user-defined constructor may raise anything
        pass_interrupts_on(error)
        return None
    found = read(made)
    same = found is not None and len(found[1]) == len(plain) and all(map(operator.is_, found[1], _values(plain)))
    return made if same else None


def wrapper_kind(shape: type) -> Kind:
    """The `Kind` of UserDict and UserList, whose items are in `data`."""
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
    except Exception as error:  # a user-defined function may raise anything
        pass_interrupts_on(error)
        return None


def build_registered(value: Any, steps: list[Any], items: list[Any]) -> Any:
    node = registered_containers[type(value)]
    try:
        with DisableTorchFunction():
            return node.unflatten_fn(items, node.flatten_fn(value)[1])
    except Exception as error:  # a user-defined function may raise anything
        pass_interrupts_on(error)
        return tuple(items)


# The kind of each class.

LEAVES: tuple[type, ...] = (
    *(str, bytes, bytearray, memoryview, array.array, int, float, complex, bool, type(None), range, type),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout, torch.memory_format, torch.UntypedStorage),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(torch.nn.Module, torch.autograd.graph.Node),
)

_OBJECT = object_kind(None)
_REGISTERED = Kind(read_registered, build_registered)
# pairs of a base class and its `Kind`; the first pair that fits a class counts
_DERIVED = (
    *((dict, DICT), (list, LIST), (deque, DEQUE), (set, SET), (frozenset, SET)),
    *((UserDict, wrapper_kind(dict)), (UserList, wrapper_kind(list))),
)
_ABSTRACT = ((Mapping, user_kind(dict)), (Sequence, user_kind(list)), (Set, user_kind(set)))
_LEAF = Kind(lambda value: None)
_LEAF_CLASSES = frozenset({*LEAVES, Tensor, torch.nn.Parameter})
_kinds_of_classes: weakref.WeakKeyDictionary[type, Kind | None] = weakref.WeakKeyDictionary()


def kind_of(value: Any, into_objects: bool = False) -> Kind | None:
    """The `Kind` of a container, which says how to read and build it; None if the value is not a container."""
    cls = type(value)
    kind = OWN.get(cls)
    if kind is not None:
        return kind
    if cls in _LEAF_CLASSES:
        return None
    try:
        kind = _kinds_of_classes[cls]
    except KeyError:
        kind = _kinds_of_classes[cls] = _kind_of_class(cls)
    if kind is _LEAF:
        return None
    if kind is None and cls in registered_containers:  # not cached: a class may be registered at any time
        return _REGISTERED
    return _OBJECT if kind is None and into_objects else kind


def _kind_of_class(cls: type) -> Kind | None:
    if issubclass(cls, (Tensor, *LEAVES)):
        return _LEAF
    if issubclass(cls, tuple):
        return NAMED if hasattr(cls, "_fields") else TUPLE
    for base, kind in _DERIVED:
        if issubclass(cls, base):
            return kind
    if dataclasses.is_dataclass(cls):
        return object_kind(frozenset(field.name for field in dataclasses.fields(cls)))
    if hasattr(cls, "__attrs_attrs__"):
        return object_kind(frozenset(field.name for field in cls.__attrs_attrs__))
    return next((kind for interface, kind in _ABSTRACT if issubclass(cls, interface)), None)


# Reading and rebuilding nested values.
#
# `children(value)` lists the items of a container, each with the step that leads to it; `rebuild(value, children)` makes a
# container of the same kind with other items. Finding tensors, paths, and templates (`templates.py`) are short uses of these
# two.
#
# Reading never changes a value: constructors, properties and `__getattr__` of dataclasses and objects are not run, iterators
# are not consumed, and torch calls that a mapping or sequence makes while it is read are not recorded. A container that
# contains itself is read once. A container that occurs in many places is read in each of them, but at most `MOST_REPEATS`
# times in all, because the number of places can grow exponentially.

Path = tuple[Any, ...]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Children = list[tuple[Any, Any]]

MOST_REPEATS = 10_000
LATER = object()  # returned if an item cannot be built yet, or if the quick way cannot build it
PLAIN = frozenset({str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, torch.Size})
_SIMPLE_RESULTS = PLAIN | {Tensor}


def children(value: Any, *, into_objects: bool = False) -> Children | None:
    """The items of a container, in order, each with the step that leads to it. None if the value is not a container.

    >>> children({"a": 1, "b": [2]})
    [('a', 1), ('b', [2])]

    A step is a key, an index, an `Attribute`, or an `Nth` for an item without any of these (a set's member). With
    `into_objects`, any other object is a container of its attributes.
    """
    kind = kind_of(value, into_objects)
    found = kind.read(value) if kind is not None else None
    return list(zip(*found, strict=True)) if found is not None else None


def rebuild(value: Any, children: Children) -> Any:
    """Make a container that holds `children`, with the class and the other attributes of `value`."""
    kind = kind_of(value, True)
    assert kind is not None, f"{type(value).__name__} is no container"
    return kind.built(value, [step for step, _ in children], [item for _, item in children])


# Finding ------------------------------------------------------------------------------------------------------------


def find_tensors(value: Any, path: Path = (), *, into_objects: bool = True) -> Iterator[tuple[Path, Tensor]]:
    """Yield every tensor in `value` with its path, in order; a tensor in several places comes once for each place.

    With `into_objects`, attributes of other objects are searched too, once for each object.
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
    """Yield every wanted item in `value` with its path. Repeated containers are searched again, `repeats` times in all."""
    if is_wanted(value):
        yield path, value
        return
    found = children(value, into_objects=into_objects)
    if found is None:
        return
    stack: list[tuple[Any, Iterator[tuple[Any, Any]]]] = [(value, iter(found))]  # the containers being searched
    steps: list[Any] = []  # the step from each container in `stack` to the next
    open_ids = {id(value)}
    seen = {id(value): value}  # kept alive, because their ids are keys
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
    """The item of `value` at `path`."""
    for step in path:
        value = value[step] if type(value) in (tuple, list, dict) else _child(value, step)
    return value


def _child(value: Any, step: Any) -> Any:
    for other, item in children(value, into_objects=True) or ():
        if type(other) is type(step) and (other is step or other == step):
            return item
    return getattr(value, step) if isinstance(step, Attribute) else value[step]


def format_path(path: Path, name: str = "") -> str:
    """Write a path in Python's syntax: `args[0]['mask'].values`; the second member of a set is `{1}`."""
    return name + "".join(
        f".{step}" if isinstance(step, Attribute) else f"{{{int(step)}}}" if isinstance(step, Nth) else f"[{step!r}]"
        for step in path
    )


# Building containers ------------------------------------------------------------------------------------------------


class Other:
    """Stands in a template for an object that must not be kept alive."""

    __slots__ = ("type_name",)

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<{self.type_name}>"


class _ContainerInWork:
    """A container that is being built: the original container, and the items built so far."""

    __slots__ = ("built", "items", "kind", "rest", "shell", "steps", "value")

    def __init__(self, value: Any, kind: Kind, steps: list[Any], items: list[Any]) -> None:
        self.value, self.kind, self.steps, self.items = value, kind, steps, items
        self.rest = iter(items)
        self.built: list[Any] = []
        try:
            self.shell = kind.shell(value) if kind.shell is not None else None  # exists before its items, to close cycles
        except TypeError:  # a class derived from a class written in C: its fields are put into a dictionary
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
    """Copy `value`, with `change(item)` in place of every item that is not a container.

    A repeated container is built again up to `repeats` times in all, and otherwise once: `made` maps ids of containers to the
    containers built for them.
    """
    made = {} if made is None else made
    stack: list[_ContainerInWork] = []
    held: list[Any] = []  # kept alive, because their ids are keys
    open_ids: set[int] = set()

    def begin(item: Any) -> Any:
        """Start to build an item: returns the new item, or `LATER` if its own items must be built first."""
        nonlocal repeats
        if type(item) in PLAIN and item is not TENSOR:
            return item
        kind = kind_of(item)
        if kind is None:
            return change(item)
        key = id(item)
        if key in made and (key in open_ids or repeats <= 0):
            return made[key]
        if key in open_ids:  # a tuple that contains itself through a list
            return Other(type(item).__name__) if as_template else change(item)
        found = kind.read(item)
        if found is None:
            return change(item)
        repeats -= key in made
        here = _ContainerInWork(item, kind, *found)
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
    """Copy `value`, with `change(tensor)` in place of every tensor."""
    return rebuilt(value, lambda item: change(item) if is_tensor(item) else item)


def shares_no_container(arguments: Arguments, replaced: dict[int, Any] | None = None) -> Arguments:
    """Copy the containers in arguments, with the same tensors, modules and functions in them.

    A model may change the lists, dictionaries and caches that it gets, so it gets copies. Objects that cannot be copied are
    passed as they are. `replaced` maps ids of objects to values that replace them.
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
    """The tensors in the result of a function or module. Containers are searched, other objects are not."""
    cls = type(value)
    if cls is Tensor:
        return [value]
    if cls is tuple and _SIMPLE_RESULTS.issuperset(map(type, value)):
        return [item for item in value if type(item) is Tensor]
    return [tensor for _, tensor in find_tensors(value, into_objects=False)]
