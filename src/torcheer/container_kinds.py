"""The kinds of containers: of each class, how to read what it holds and how to build another one.

Python's own containers are read past the methods of subclasses, and dataclasses and objects past properties and `__getattr__`,
so that none of the user's code runs. Only what has no other way in is asked to list its items: mappings and sequences that are
not Python's own, and classes registered as pytrees. They are asked where torch functions are not recorded.
"""

from __future__ import annotations

import array
import dataclasses
import functools
import operator
import types
import weakref
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from .torch_internals import DisableTorchFunction, pytree

LEAVES: tuple[type, ...] = (
    *(str, bytes, bytearray, memoryview, array.array, int, float, complex, bool, type(None), range, type),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout, torch.memory_format, torch.UntypedStorage),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(torch.nn.Module, torch.autograd.graph.Node),
)

Parts = tuple[list[Any], list[Any]]  # the steps to what a container holds, and what it holds


class Attribute(str):
    """A step of a path that is an attribute's name."""

    __slots__ = ()


class Nth(int):
    """A step of a path to what has no key, index or name: a set's member, by its place in the order they are read in."""

    __slots__ = ()


class Kind:
    """How containers of one kind are read and built.

    Those that can be changed are made in two steps, `shell` and `pour`, so that a container can be built that holds itself.
    """

    __slots__ = ("_build", "is_object", "pour", "read", "shell", "template")

    def __init__(
        self,
        read: Callable[[Any], Parts | None],
        build: Callable[[Any, list[Any], list[Any]], Any] | None = None,
        shell: Callable[[Any], Any] | None = None,
        pour: Callable[[Any, Any, list[Any], list[Any]], None] | None = None,
        template: Callable[[Any, list[Any]], Any] | None = None,
        is_object: bool = False,
    ) -> None:
        self.read = read  # None: it cannot be read
        self._build = build
        self.shell = shell
        self.pour = pour
        self.template = template  # makes what stands for such a container in a template, where that is something else
        self.is_object = is_object

    def built(self, value: Any, steps: list[Any], items: list[Any]) -> Any:
        """A container like `value` that holds `items`."""
        if self._build is not None:
            return self._build(value, steps, items)
        assert self.shell is not None
        assert self.pour is not None
        made = self.shell(value)
        self.pour(made, value, steps, items)
        return made


# Attributes ---------------------------------------------------------------------------------------------------------


def stored_attributes(value: Any) -> dict[str, Any]:
    """The attributes an object stores, by name, without running any code of its class."""
    found: dict[str, Any] = {}
    for name, slot in _slots(type(value)):
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # not set
            continue
    found.update(_dictionary(value))
    return found


def _slots(cls: type) -> list[tuple[str, Any]]:
    return [
        (name, slot)
        for base in reversed(cls.__mro__)
        for name, slot in base.__dict__.items()
        if type(slot) is types.MemberDescriptorType and "__slots__" in base.__dict__
    ]


def _dictionary(value: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found if type(found) is dict else {}


def _carry(made: Any, value: Any) -> Any:
    """Give `made` the attributes of `value`, which is of the same class."""
    for _, slot in _slots(type(value)):
        try:
            slot.__set__(made, slot.__get__(value))
        except AttributeError:  # not set
            continue
    _dictionary(made).update(_dictionary(value))
    return made


def _store(made: Any, name: str, item: Any) -> None:
    for other, slot in _slots(type(made)):
        if other == name:
            slot.__set__(made, item)
            return
    _dictionary(made)[name] = item


def _bare(value: Any) -> Any:
    """Another object of the same class with the same attributes, made without running its constructor."""
    return _carry(object.__new__(type(value)), value)


# Python's own containers, and classes derived from them ----------------------------------------------------------------


def _read_sequence(iterate: Callable[[Any], Any]) -> Callable[[Any], Parts]:
    def read(value: Any) -> Parts:
        items = list(iterate(value))
        return list(range(len(items))), items

    return read


def _build_tuple(value: Any, steps: list[Any], items: list[Any]) -> Any:
    if type(value) is tuple:
        return tuple(items)
    if hasattr(type(value), "n_sequence_fields"):  # what torch.max returns; it takes nothing but all of its items
        return type(value)(items)
    return _carry(tuple.__new__(type(value), items), value)


def _read_named(value: Any) -> Parts:
    items = list(tuple.__iter__(value))
    names = [*map(Attribute, type(value)._fields)]
    return (names, items) if len(names) == len(items) else (list(range(len(items))), items)


def _list_shell(value: Any) -> Any:
    return [] if type(value) is list else _carry(list.__new__(type(value)), value)


def _pour_list(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
    list.extend(made, items)


def _deque_shell(value: Any) -> Any:
    made = deque.__new__(type(value))
    deque.__init__(made, (), value.maxlen)
    return _carry(made, value)


def _pour_deque(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
    deque.extend(made, items)


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
    return _carry(made, value)


def _pour_dict(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
    if type(made) is dict:
        made.update(zip(steps, items, strict=True))
        return
    put = OrderedDict.__setitem__ if isinstance(made, OrderedDict) else dict.__setitem__
    attributes = _dictionary(made)
    for key, item in zip(steps, items, strict=True):
        put(made, key, item)
        if type(key) is str and key in attributes and attributes[key] is dict.get(value, key):
            attributes[key] = item  # transformers' model outputs have each item as an attribute too


def _read_slice(value: slice) -> Parts:
    return [Attribute("start"), Attribute("stop"), Attribute("step")], [value.start, value.stop, value.step]


def _read_view(value: Any) -> Parts:
    items = list(value)
    return [*map(Nth, range(len(items)))], items


_VIEWS: dict[type, Callable[[list[Any]], Any]] = {
    type({}.values()): lambda items: dict(enumerate(items)).values(),
    type(OrderedDict().values()): lambda items: OrderedDict(enumerate(items)).values(),
}


# Sets ---------------------------------------------------------------------------------------------------------------


class Members:
    """Stands for a set in a template, where two tensors would be one member."""

    __slots__ = ("items", "like")

    def __init__(self, like: Any, items: list[Any]) -> None:
        self.like = like  # an empty set of the same class
        self.items = items

    def __repr__(self) -> str:
        return f"{{{', '.join(map(repr, self.items))}}}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Members) and type(self.like) is type(other.like) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]  # compared by its items, which are in a list


class SavedObject:
    """Stands in a template that was read from a file for an object that no file can give back.

    It is printed as the object was, and holds the tensors that were found in it.
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


def _read_saved(value: SavedObject) -> Parts:
    return list(value.steps), list(value.items)


def _build_saved(value: SavedObject, steps: list[Any], items: list[Any]) -> SavedObject:
    return SavedObject(value.type_name, value.printed, steps, items)


def _read_set(value: Any) -> Parts:
    base = set if isinstance(value, set) else frozenset
    items = sorted(base.__iter__(value), key=_rank)
    return [*map(Nth, range(len(items)))], items


def _rank(member: Any) -> tuple[str, ...]:
    """By what members of a set are ordered: not by their hashes, which differ from one run to the next."""
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
    return made if type(value) is base else _carry(made, value)


def _read_members(value: Members) -> Parts:
    return [*map(Nth, range(len(value.items)))], list(value.items)


def _build_members(value: Members, steps: list[Any], items: list[Any]) -> Any:
    made = _build_set(value.like, steps, items)
    return made if len(made) == len(items) else Members(value.like, items)


# Dataclasses, objects and whatever is registered ---------------------------------------------------------------------------


def _object_kind(names: frozenset[str] | None) -> Kind:
    """Objects with these attributes; None: with all of them."""

    def read(value: Any) -> Parts:
        stored = stored_attributes(value)
        if issubclass(type(value), functools.partial):
            stored = {"func": value.func, "args": value.args, "keywords": value.keywords, **stored}
        found = {name: item for name, item in stored.items() if (name in names if names is not None else name[:2] != "__")}
        return [*map(Attribute, found)], list(found.values())

    def pour(made: Any, value: Any, steps: list[Any], items: list[Any]) -> None:
        for name, item in zip(steps, items, strict=True):
            _store(made, str(name), item)

    return Kind(read, shell=_bare, pour=pour, is_object=names is None)


def _user_kind(shape: type) -> Kind:
    """Mappings, sequences and sets of classes that are not Python's own: they are asked for their items."""

    def read(value: Any) -> Parts | None:
        try:
            with DisableTorchFunction():
                items: Any = list(value.items()) if shape is dict else list(value)
                if shape is dict:
                    return [key for key, _ in items], [item for _, item in items]
        except Exception:  # a user-defined method may raise anything
            return None
        steps = [*map(Nth, range(len(items)))] if shape is set else list(range(len(items)))
        return steps, items

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
        kind = _OWN.get(type(held))
        theirs = kind.read(held) if kind is not None else None
        if kind is None or mine is None or theirs is None or not _same_parts(mine, theirs):
            continue
        try:
            made = _bare(value)
        except TypeError:  # a class derived from one of C's
            return None
        _store(made, name, kind.built(held, theirs[0], list(_values(plain))))
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
    """What the constructor makes of `plain`, if it holds just that."""
    try:
        with DisableTorchFunction():
            made = type(value)(type(plain)(plain))  # a constructor may keep what it is given
    except Exception:  # a user-defined constructor may raise anything
        return None
    found = read(made)
    same = found is not None and len(found[1]) == len(plain) and all(map(operator.is_, found[1], _values(plain)))
    return made if same else None


def _wrapper_kind(shape: type) -> Kind:
    """UserDict and UserList, whose items are in `data`."""
    other = _user_kind(shape)

    def read(value: Any) -> Parts | None:
        kind = _OWN.get(type(_dictionary(value).get("data")))
        return kind.read(_dictionary(value)["data"]) if kind is not None else other.read(value)

    def build(value: Any, steps: list[Any], items: list[Any]) -> Any:
        data = _dictionary(value).get("data")
        kind = _OWN.get(type(data))
        if kind is None:
            return other.built(value, steps, items)
        made = _bare(value)
        _dictionary(made)["data"] = kind.built(data, steps, items)
        return made

    return Kind(read, build)


def _read_registered(value: Any) -> Parts | None:
    node = pytree.SUPPORTED_NODES[type(value)]
    try:
        with DisableTorchFunction():
            items = list(node.flatten_fn(value)[0])
    except Exception:  # a user-defined function may raise anything
        return None
    return [*map(Nth, range(len(items)))], items


def _build_registered(value: Any, steps: list[Any], items: list[Any]) -> Any:
    node = pytree.SUPPORTED_NODES[type(value)]
    try:
        with DisableTorchFunction():
            return node.unflatten_fn(items, node.flatten_fn(value)[1])
    except Exception:  # a user-defined function may raise anything
        return tuple(items)


# Which kind a class is -----------------------------------------------------------------------------------------------------

_TUPLE = Kind(_read_sequence(tuple.__iter__), _build_tuple)
_NAMED = Kind(_read_named, _build_tuple)
_LIST = Kind(_read_sequence(list.__iter__), shell=_list_shell, pour=_pour_list)
_DEQUE = Kind(_read_sequence(deque.__iter__), shell=_deque_shell, pour=_pour_deque)
DICT = Kind(_read_dict, shell=_dict_shell, pour=_pour_dict)
_SET = Kind(_read_set, _build_set, template=lambda value, items: Members(_build_set(value, [], []), items))
_OBJECT = _object_kind(None)
_REGISTERED = Kind(_read_registered, _build_registered)
_OWN: dict[Any, Kind] = {
    list: _LIST,
    tuple: _TUPLE,
    deque: _DEQUE,
    set: _SET,
    frozenset: _SET,
    dict: DICT,
    OrderedDict: DICT,
    defaultdict: DICT,
    slice: Kind(_read_slice, lambda value, steps, items: slice(*items)),
    types.MappingProxyType: Kind(
        _user_kind(dict).read, lambda value, steps, items: types.MappingProxyType(dict(zip(steps, items, strict=True)))
    ),
    Members: Kind(_read_members, _build_members),
    SavedObject: Kind(_read_saved, _build_saved),
    **{cls: Kind(_read_view, lambda value, steps, items: _VIEWS[type(value)](items)) for cls in _VIEWS},
}
# By base class, in this order.
_DERIVED = (
    *((dict, DICT), (list, _LIST), (deque, _DEQUE), (set, _SET), (frozenset, _SET)),
    *((UserDict, _wrapper_kind(dict)), (UserList, _wrapper_kind(list))),
)
_ABSTRACT = ((Mapping, _user_kind(dict)), (Sequence, _user_kind(list)), (Set, _user_kind(set)))
_LEAF = Kind(lambda value: None)
_LEAF_CLASSES = frozenset({*LEAVES, Tensor, torch.nn.Parameter})
_known: weakref.WeakKeyDictionary[type, Kind | None] = weakref.WeakKeyDictionary()


def kind_of(value: Any, into_objects: bool = False) -> Kind | None:
    """The kind of container a value is; None when it is none."""
    cls = type(value)
    kind = _OWN.get(cls)
    if kind is not None:
        return kind
    if cls in _LEAF_CLASSES:
        return None
    try:
        kind = _known[cls]
    except KeyError:
        kind = _known[cls] = _kind_of_class(cls)
    if kind is _LEAF:
        return None
    if kind is None and cls in pytree.SUPPORTED_NODES:  # not remembered: a class may be registered at any time
        return _REGISTERED
    return _OBJECT if kind is None and into_objects else kind


def _kind_of_class(cls: type) -> Kind | None:
    if issubclass(cls, (Tensor, *LEAVES)):
        return _LEAF
    if issubclass(cls, tuple):
        return _NAMED if hasattr(cls, "_fields") else _TUPLE
    for base, kind in _DERIVED:
        if issubclass(cls, base):
            return kind
    if dataclasses.is_dataclass(cls):
        return _object_kind(frozenset(field.name for field in dataclasses.fields(cls)))
    if hasattr(cls, "__attrs_attrs__"):
        return _object_kind(frozenset(field.name for field in cls.__attrs_attrs__))
    return next((kind for interface, kind in _ABSTRACT if issubclass(cls, interface)), None)
