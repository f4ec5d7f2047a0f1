"""Which kind a class is."""

from __future__ import annotations

import array
import dataclasses
import types
import weakref
from collections import UserDict, UserList, deque
from collections.abc import Mapping, Sequence, Set
from typing import Any

import torch
from torch import Tensor

from ..torch_internals import registered_containers
from .class_kinds import build_registered, object_kind, read_registered, user_kind, wrapper_kind
from .kind import Kind
from .python_kinds import DEQUE, DICT, LIST, NAMED, OWN, SET, TUPLE

LEAVES: tuple[type, ...] = (
    *(str, bytes, bytearray, memoryview, array.array, int, float, complex, bool, type(None), range, type),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, torch.layout, torch.memory_format, torch.UntypedStorage),
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(torch.nn.Module, torch.autograd.graph.Node),
)

_OBJECT = object_kind(None)
_REGISTERED = Kind(read_registered, build_registered)
# By base class, in this order.
_DERIVED = (
    *((dict, DICT), (list, LIST), (deque, DEQUE), (set, SET), (frozenset, SET)),
    *((UserDict, wrapper_kind(dict)), (UserList, wrapper_kind(list))),
)
_ABSTRACT = ((Mapping, user_kind(dict)), (Sequence, user_kind(list)), (Set, user_kind(set)))
_LEAF = Kind(lambda value: None)
_LEAF_CLASSES = frozenset({*LEAVES, Tensor, torch.nn.Parameter})
_known: weakref.WeakKeyDictionary[type, Kind | None] = weakref.WeakKeyDictionary()


def kind_of(value: Any, into_objects: bool = False) -> Kind | None:
    """The kind of container that a value is; None for a value that is no container."""
    cls = type(value)
    kind = OWN.get(cls)
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
    if kind is None and cls in registered_containers:  # not remembered: a class may be registered at any time
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
