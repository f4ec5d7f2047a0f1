"""Remembers and restores state beyond a module's own attributes: nested containers, plain objects, NumPy arrays, generators.

Every attribute is followed through containers, plain objects and bound methods. Dictionaries and lists are copied shallowly,
tensors not at all. An object that leads to more than `LIMIT` others (a trainer, a data set) is left alone: restoring a
program's whole state would undo more than the pass did. Modules that are not registered but held in a list or an object are
treated like the others. Of the variables in a function's closure and its global names, only random generators are restored.
"""

from __future__ import annotations

import enum
import functools
import itertools
import math
import random
import sys
import types
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .._cleanup import pass_interrupts_on
from .containers import LEAVES, slots_of

LIMIT = 200  # follow at most this many objects from one attribute
ROOM = 1 << 20  # copy at most this many bytes of NumPy arrays for one pass; of further arrays only a sample is compared

_NOTHING, _MODULE, _DICT, _LIST, _SET, _DEQUE, _TUPLE = range(7)
_RANDOM, _ARRAY, _BYTES, _FUNCTION, _METHOD, _PARTIAL, _OBJECT = range(7, 14)

# Packages whose objects are left alone: torch (optimizers are handled elsewhere), torcheer, and packages that access the
# outside world.
_LEFT_ALONE = frozenset(
    "torch torcheer torch_vis lightning pytorch_lightning lightning_fabric accelerate deepspeed ray wandb mlflow tensorboard "
    "tensorboardX tqdm logging threading _thread socket _socket ssl io _io concurrent asyncio multiprocessing queue _queue "
    "subprocess select selectors tempfile weakref _weakref ctypes _ctypes enum re numpy pandas "
    "pyarrow polars inspect importlib datetime decimal fractions pathlib uuid time operator itertools h5py zarr sqlite3 mmap "
    "array unittest".split()
)
_DEFINITIONS = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)
_HARMLESS_TYPES = (Tensor, type, types.ModuleType, str, bytes, int, float, complex, range, type(None))
# Classes and modules of objects that no pass can change. Iterators, files and torch's own objects are not listed here, but
# are not restored either.
_UNCHANGEABLE = (*LEAVES, slice, enum.Enum)
_UNCHANGEABLE_MODULES = frozenset({"datetime", "decimal", "fractions", "pathlib", "uuid", "re"})

_WITHOUT_ATTRIBUTES = frozenset({dict, list, set, deque, tuple, frozenset})

_kinds: weakref.WeakKeyDictionary[type, int] = weakref.WeakKeyDictionary()
_names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()


def kind_of(cls: type) -> int:
    """A code that says how to follow objects of a class; 0 if a pass cannot change them, or if they are left alone."""
    kind = _kinds.get(cls)
    if kind is None:
        kind = _kinds[cls] = _classify(cls)
    return kind


def _classify(cls: type) -> int:
    numpy = sys.modules.get("numpy")
    for kind, classes in (
        (_NOTHING, _HARMLESS_TYPES),
        (_MODULE, Module),
        (_DICT, dict),
        (_LIST, list),
        (_SET, set),
        (_DEQUE, deque),
        (_TUPLE, (tuple, frozenset)),
        (_BYTES, bytearray),
        (_RANDOM, (torch.Generator, random.Random)),
        (_FUNCTION, types.FunctionType),
        (_METHOD, (types.MethodType, types.BuiltinMethodType)),
        (_PARTIAL, functools.partial),
    ):
        if issubclass(cls, classes):
            return kind
    if numpy is not None:
        if issubclass(cls, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)):
            return _RANDOM
        if issubclass(cls, numpy.ndarray) and not issubclass(cls, numpy.memmap):
            return _ARRAY
    if any(base.__module__.partition(".")[0] in _LEFT_ALONE for base in cls.__mro__ if base is not object):
        return _NOTHING
    return _OBJECT if "__dict__" in dir(cls) or slots_of(cls) else _NOTHING


class Snapshot:
    """The state of `subject` at one moment: `restore` sets it again, `again` takes a snapshot of the present state."""

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.saved = self._read()

    def again(self) -> Snapshot:
        return type(self)(self.subject)

    @property
    def is_changed(self) -> bool:
        return bool(self._read() != self.saved)

    def restore(self) -> None:
        if self.is_changed:
            self._write()

    def _read(self) -> Any:
        raise NotImplementedError

    def _write(self) -> None:
        raise NotImplementedError


class Random(Snapshot):
    """A random generator and its state."""

    def _read(self) -> Any:
        return _access(self.subject)[0]()

    @property
    def is_changed(self) -> bool:
        return not _is_same_state(self._read(), self.saved)

    def restore(self) -> None:
        _access(self.subject)[1](self.saved)


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """The functions that read and set the state of a generator of Python, torch or NumPy."""
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if hasattr(generator, "set_state"):  # torch.Generator, numpy.random.RandomState
        return generator.get_state, generator.set_state
    source = getattr(generator, "bit_generator", generator)
    return lambda: source.state, functools.partial(setattr, source, "state")


def _is_same_state(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same_state(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_is_same_state, one, other))
    return bool(one.tolist() == other.tolist() if hasattr(one, "tolist") else one == other)


class Array(Snapshot):
    """A NumPy array and its values."""

    def _read(self) -> Any:
        array = self.subject
        return array.shape, array.dtype, array.copy() if array.dtype.hasobject else array.tobytes()

    @property
    def is_changed(self) -> bool:
        """True if the values differ, and always for arrays of objects, whose items may have changed."""
        return self.subject.dtype.hasobject or super().is_changed

    def _write(self) -> None:
        array, (shape, dtype, values) = self.subject, self.saved
        if (array.shape, array.dtype) != (shape, dtype):
            raise ValueError(f"the NumPy array had shape {shape} and has {array.shape} now")
        array[...] = values if dtype.hasobject else sys.modules["numpy"].frombuffer(values, dtype).reshape(shape)


class LargeArray(Snapshot):
    """A large NumPy array. A sample of its values is compared; the array is not restored."""

    is_changed = False  # always False, so that a backward pass does not try to swap the array's values

    def _read(self) -> Any:
        array = self.subject
        sample = array[tuple(slice(None, None, max(1, size // 32)) for size in array.shape)][:32]
        return array.shape, array.dtype, sample.tobytes()

    def restore(self) -> None:
        shape, now = self.saved[0], self._read()
        if now[:2] != self.saved[:2]:
            raise ValueError(f"the NumPy array had shape {shape} and has {now[0]} now")
        if now != self.saved:
            raise ValueError(
                f"the pass changed a NumPy array of {self.subject.nbytes:,} bytes, which is too large to be copied"
            )


class Slots(Snapshot):
    """The values in the slots of an object."""

    def _read(self) -> list[tuple[Any, Any]]:
        return [(slot, _get(slot, self.subject)) for _, slot in slots_of(type(self.subject))]

    @property
    def is_changed(self) -> bool:
        return any(_get(slot, self.subject) is not old for slot, old in self.saved)

    def _write(self) -> None:
        for slot, old in self.saved:
            if _get(slot, self.subject) is not old:
                slot.__delete__(self.subject) if old is _UNSET else slot.__set__(self.subject, old)


_UNSET = object()


def _get(slot: Any, value: Any) -> Any:
    try:
        return slot.__get__(value)
    except AttributeError:
        return _UNSET


class Bytes(Snapshot):
    """A bytearray and its contents."""

    def _read(self) -> bytes:
        return bytes(self.subject)

    def _write(self) -> None:
        self.subject[:] = self.saved


class Position(Snapshot):
    """The position of an iterator. For generators, `zip` and the like the position is unknown."""

    def _read(self) -> Any:
        return _position_of(self.subject)

    def _write(self) -> None:
        """Reset the iterator; raises if that is impossible."""
        if isinstance(self.saved, tuple) and len(self.saved) > 2:
            self.subject.__setstate__(self.saved[2])
        if self.is_changed:
            raise ValueError("the pass advanced an iterator, which cannot be rewound")


def _position_of(iterator: Any) -> Any:
    if isinstance(iterator, itertools.count):
        return repr(iterator)
    try:
        found = iterator.__reduce__()
    except Exception as error:  # the iterator is a generator or a file, or its class raises anything
        pass_interrupts_on(error)
        return None
    # (iter, (the container, …), index); the container is compared by id, because `==` of tensors gives a tensor
    of = [one if isinstance(one, range) else id(one) for one in found[1]]
    return (found[0], of, *found[2:]) if found[0] is iter else None


Where = tuple[Module | None, Any]  # (module, value of an attribute) or (None, name), to name an object that is not restored


class ObjectState:
    """The state of objects that attributes of modules lead to.

    Containers and objects' dictionaries are added to `filled`, each with a copy; everything else goes to `pieces`.
    """

    def __init__(self, filled: list[tuple[Any, Any]]) -> None:
        self.pieces: list[tuple[Snapshot, Where]] = []
        self.tensors: list[Tensor] = []  # all tensors met, some of them several times
        self._filled = filled
        self.seen: dict[int, Any] = {}  # id -> object met
        self._left: set[int] = set()  # ids of objects that are left alone, because they lead to too many others
        self._modules: list[Module] = []  # all modules met, registered or not
        self._room = ROOM
        self._holders: dict[int, list[int]] = {}  # for arguments: id of an object -> ids of the objects that hold it
        self._unsure: list[int] = []  # for arguments: ids of the objects that cannot be restored

    def add_argument(self, value: Any) -> bool:
        """Remember an argument and all objects that it leads to. Returns True if all of them can be restored."""
        return self.add(value, (None, f"an argument of class {type(value).__name__}"), math.inf, self._holders)

    def put_back(self) -> dict[int, Any]:
        """Return the objects, by id, that can be restored with all objects they lead to."""
        leading = set(self._unsure)
        waiting = list(leading)
        while waiting:
            new = [holder for holder in self._holders.get(waiting.pop(), ()) if holder not in leading]
            leading.update(new)
            waiting += new
        return {key: value for key, value in self.seen.items() if key not in leading}

    def add(self, value: Any, where: Where, limit: float = LIMIT, holders: dict[int, list[int]] | None = None) -> bool:
        """Remember a value and all objects that it leads to. Returns True if all of them can be restored."""
        unsure: list[int] = []
        filled: list[tuple[Any, Any]] = []
        pieces: list[Snapshot] = []
        modules: list[Module] = []
        tensors: list[Tensor] = []
        waiting = [value]
        met: list[int] = []
        while waiting:
            here = waiting.pop()
            if id(here) in self.seen and (limit <= LIMIT or id(here) not in self._left):
                continue
            kind = kind_of(type(here))
            if kind == _NOTHING:
                if issubclass(type(here), Tensor):
                    tensors.append(here)
                elif not _is_unchangeable(here):
                    unsure.append(id(here))
                    if isinstance(here, Iterator) and holders is None:
                        pieces.append(Position(here))
                continue
            if kind == _MODULE:
                modules.append(here)
                continue
            met.append(id(here))
            self.seen[id(here)] = here
            self._left.discard(id(here))
            if len(met) > limit:
                for key in met[1:]:  # another attribute may lead to these objects without exceeding the limit
                    del self.seen[key]
                self._left.add(id(value))
                first = kind_of(type(value))
                if first in _COPIES:  # a container is restored itself, an object not at all
                    self._filled.append((value, _COPIES[first](value)))
                return False
            try:
                inner = self._look(here, kind, filled, pieces)
            except Exception as error:  # a user-defined class may raise anything when it is looked at
                pass_interrupts_on(error)
                unsure.append(id(here))
                continue
            waiting += inner
            if holders is not None:
                for one in inner:
                    holders.setdefault(id(one), []).append(id(here))
            if kind == _ARRAY and isinstance(pieces[-1], LargeArray):
                unsure.append(id(here))
        self._filled += filled
        self.pieces += [(piece, where) for piece in pieces]
        self._modules += modules
        self.tensors += tensors
        self._unsure += unsure
        return not unsure

    def add_unregistered(self, known: Iterable[Module]) -> None:
        """Remember the modules that were met, and the modules inside them, except `known` ones, which are remembered
        elsewhere.
        """
        seen = set(map(id, known)) if self._modules else set()
        for module in self._modules:  # the list grows during the loop
            for inner in module.modules() if id(module) not in seen else ():
                if id(inner) not in seen:
                    seen.add(id(inner))
                    attributes = vars(inner)
                    self._filled.append((attributes, attributes.copy()))
                    for value in attributes.values():
                        self.add(value, (None, f"an attribute of a {type(inner).__name__} that is not registered"))

    def add_slots(self, module: Module) -> None:
        """Remember the slots of a module, which `vars` does not have."""
        slots = Slots(module)
        self.pieces.append((slots, (None, f"the slots of a {type(module).__name__}")))
        for slot, old in slots.saved:
            self.add(old, (None, f"{type(module).__name__}.{slot.__name__}"))

    def _look(self, value: Any, kind: int, filled: list[tuple[Any, Any]], pieces: list[Snapshot]) -> Iterable[Any]:
        """Copy one object, and return the objects it leads to."""
        if kind in _COPIES:
            copied = _COPIES[kind](value)
            filled.append((value, copied))
            return [*(copied.values() if kind == _DICT else copied), *_attributes(value, filled, pieces)]
        if kind == _TUPLE:
            items = tuple.__iter__(value) if isinstance(value, tuple) else frozenset.__iter__(value)
            return [*items, *_attributes(value, filled, pieces)]
        if kind == _OBJECT:
            return _attributes(value, filled, pieces)
        if kind == _RANDOM:
            pieces.append(Random(value))
        elif kind == _ARRAY:
            is_large = value.nbytes > self._room
            self._room -= 0 if is_large else value.nbytes
            pieces.append(LargeArray(value) if is_large else Array(value))
        elif kind == _BYTES:
            pieces.append(Bytes(value))
        elif kind == _METHOD:
            return (value.__self__,)
        elif kind == _PARTIAL:
            return (value.func, *value.args, *value.keywords.values())
        elif kind == _FUNCTION:
            pieces.extend(map(Random, self.generators_of(value)))
        return ()

    def add_generators(self, function: Any, where: Where) -> None:
        """Remember the random generators in a function's closure or in its global names."""
        try:
            self.pieces += [(Random(generator), where) for generator in self.generators_of(function)]
        except Exception as error:  # a generator without a state, such as random.SystemRandom
            pass_interrupts_on(error)
            return

    def generators_of(self, function: Any) -> list[Any]:
        """Find the random generators among a function's variables, or in containers among its variables."""
        found: list[Any] = []
        for value in _variables(function):
            kind = kind_of(type(value))
            if kind == _RANDOM:
                found.append(value)
            elif kind in (_DICT, _LIST, _TUPLE) and len(value) <= LIMIT:
                items = value.values() if kind == _DICT else value
                found += [item for item in items if kind_of(type(item)) == _RANDOM]
        new = [one for one in found if id(one) not in self.seen]
        self.seen.update((id(one), one) for one in new)
        return new


def _is_unchangeable(value: Any) -> bool:
    cls = type(value)
    return cls is object or isinstance(value, _UNCHANGEABLE) or cls.__module__.partition(".")[0] in _UNCHANGEABLE_MODULES


def _attributes(value: Any, filled: list[tuple[Any, Any]], pieces: list[Snapshot]) -> list[Any]:
    """Copy the attributes of an object or container, and return their values."""
    if type(value) in _WITHOUT_ATTRIBUTES:
        return []
    attributes = getattr(value, "__dict__", None)
    found: list[Any] = []
    if type(attributes) is dict:
        filled.append((attributes, attributes.copy()))
        found += attributes.values()
    if slots_of(type(value)):
        slots = Slots(value)
        pieces.append(slots)
        found += [old for _, old in slots.saved]
    return found


def _variables(function: Any) -> list[Any]:
    """The closure variables and defaults of a function, and the values of the global names it uses."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    found: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # an empty cell
            continue
    names = function.__globals__
    return found + [names[name] for name in _global_names(function) if name in names]


def _global_names(function: Any) -> list[str]:
    """The global names a function uses, except modules, functions and classes."""
    found = _names.get(function)
    if found is None:
        names, used = function.__globals__, function.__code__.co_names
        found = _names[function] = [name for name in used if not isinstance(names.get(name), _DEFINITIONS)]
    return found


def _copied_dict(value: Any) -> dict[Any, Any]:
    return dict(OrderedDict.items(value)) if isinstance(value, OrderedDict) else dict.copy(value)


_COPIES: dict[int, Callable[[Any], Any]] = {
    _DICT: _copied_dict,
    _LIST: list.copy,
    _SET: lambda value: set(set.__iter__(value)),
    _DEQUE: lambda value: list(deque.__iter__(value)),
}


def items_of(container: Any) -> Any:
    """A copy of a container's items, for `refill`."""
    return _COPIES[kind_of(type(container))](container)


def refill(container: Any, saved: Any) -> None:
    """Give a container its saved items, without calling overridden methods."""
    if isinstance(container, OrderedDict):
        OrderedDict.clear(container)
        for key, value in saved.items():
            OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.clear(container)
        dict.update(container, saved)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), saved)
    elif isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, saved)
    else:
        set.clear(container)
        set.update(container, saved)


def same_items(container: Any, saved: Any) -> bool:
    """True if a container holds the same objects as before, in the same order."""
    if isinstance(container, OrderedDict):
        items = list(OrderedDict.items(container))
        return len(items) == len(saved) and all(a is c and b is d for (a, b), (c, d) in zip(items, saved.items(), strict=True))
    if isinstance(container, dict):
        if dict.__len__(container) != len(saved):
            return False
        return all(map(is_, dict.values(container), saved.values())) and all(map(is_, dict.keys(container), saved))
    if isinstance(container, set):
        return len(saved) == set.__len__(container) and all(map(saved.__contains__, set.__iter__(container)))
    base = list if isinstance(container, list) else deque
    return base.__len__(container) == len(saved) and all(map(is_, base.__iter__(container), saved))
