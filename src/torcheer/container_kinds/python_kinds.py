"""Python's own containers, and how classes derived from them are built: past their methods, so that none of them runs."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..torch_internals import DisableTorchFunction
from .attributes import carry, dictionary
from .kind import Attribute, Kind, Parts, read_by_asking, unordered
from .stand_ins import Members, SavedObject


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
            attributes[key] = item  # transformers' model outputs have each item as an attribute too


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
    """The sort key of a set's member: not its hash, which differs from run to run."""
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


# The kinds of these classes ---------------------------------------------------------------------------------------------

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
