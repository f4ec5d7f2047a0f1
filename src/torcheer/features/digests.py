"""Computes digests of models, batches and functions, which decide whether an extraction may be resumed.

Digests are the same in every process, so they must not depend on memory addresses or on the order of a set.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sysconfig
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from .._torch.containers import PLAIN, children, find_tensors
from .._torch.internals import DisableTorchFunction

_SIZE = 12  # number of bytes of a digest
_CHUNK = 1 << 24  # at most this many elements are hashed at once
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
_OF_PROCESS = re.compile(r"(.*_)?(rank|device|gpu|world_size)")  # names whose values differ between processes of one extraction


def tensor_digest(tensor: Tensor) -> str:
    """A digest of a tensor's values, dtype and shape."""
    found = blake2b(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), digest_size=_SIZE)
    with DisableTorchFunction(), torch.no_grad():
        plain = tensor.detach()
        if plain.is_nested or plain.layout is not torch.strided or plain.device.type == "meta":
            return found.hexdigest()
        if plain.is_quantized:
            plain = plain.int_repr()
        plain = plain.resolve_conj().resolve_neg()
        for part in torch.split(plain.reshape(-1), _CHUNK) if plain.numel() else ():
            data: Any = part.contiguous().view(torch.uint8).cpu().numpy()
            found.update(data)
    return found.hexdigest()


def state_digests(model: Module) -> dict[str, str]:
    """A digest of every parameter and buffer of a model, by name."""
    named = (*model.named_parameters(), *model.named_buffers())
    tensors = {name: one for name, one in named if not is_lazy(one)}
    with ThreadPoolExecutor(4, "torcheer-hashes") as pool:  # hashing does not hold Python's lock
        return dict(zip(tensors, pool.map(tensor_digest, tensors.values()), strict=True))


def value_digest(value: Any) -> str:
    """A digest of a value, such as a batch: tensors, arrays and plain values in any nesting, and tensors in objects."""
    found = _Digest()
    found.add(value)
    return found.text


def described_function(function: Any) -> Any:
    """A JSON description of a function: its name, and a digest of its code and of everything the code uses."""
    if function is None or isinstance(function, str):
        return function
    return [getattr(function, "__qualname__", type(function).__qualname__), value_digest(function)]


class _Digest:
    """A digest of values, and of functions with everything they use: closures, defaults, globals, attributes of objects.

    Of an object that a function uses, only the attributes named in the function's code count: others, such as its creation
    time, may differ. Objects of libraries count by name only. The device and the rank, recognised by their usual names, are
    ignored: they differ between the processes of one extraction.
    """

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=_SIZE)
        self._seen: dict[Any, Any] = {}  # id of a function or object, or (id, name) of an attribute -> the object, kept alive

    @property
    def text(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any, names: tuple[str, ...] = ()) -> None:
        """Add a value. `names` are the names in a function's code, if the function uses the value."""
        if isinstance(value, torch.device):
            self._say(value.type)
        elif _is_plain(value):
            self._say(type(value).__name__, repr(value))
        elif isinstance(value, Tensor):
            self._say("Tensor", tensor_digest(value))
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            self._say("array", value.dtype.str, str(value.shape))
            self._hash.update(np.ascontiguousarray(value).view(np.uint8).data if value.size else b"")
        elif isinstance(value, (set, frozenset)):
            self._say("set", *sorted(map(value_digest, value)))
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif self._is_new(id(value), value):
            self._add_composed(value, names)
        else:
            self._add_attributes(value, names)

    def _add_composed(self, value: Any, names: tuple[str, ...]) -> None:
        if isinstance(value, functools.partial):
            self._add_all("partial", [value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            self._add_function(value.__func__)
            self.add(value.__self__, _names(getattr(value.__func__, "__code__", None)))
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, np.ndarray):
            self._add_all(f"array {value.shape}", value.ravel().tolist())
        elif not isinstance(value, (Module, ModuleType, type)) and (inside := children(value)) is not None:
            self._add_all(type(value).__qualname__, [one for pair in inside for one in pair])
            del self._seen[id(value)]  # an equal container elsewhere must have the same digest
        else:
            self._add_object(value, names)

    def _add_all(self, kind: str, values: Iterable[Any]) -> None:
        values = list(values)
        self._say(kind, str(len(values)))
        for one in values:
            self.add(one)

    def _add_object(self, value: Any, names: tuple[str, ...]) -> None:
        cls = type(value)
        self._say(cls.__qualname__, getattr(value, "__qualname__", getattr(value, "__name__", "")))
        if isinstance(value, Module):
            self._say(_ADDRESS.sub("", repr(value)), *(f"{name} {one}" for name, one in state_digests(value).items()))
        elif not names and not isinstance(value, (type, ModuleType)) and not callable(value):
            for path, tensor in find_tensors(value):  # a batch of a class of the user's
                self._say(str(path), tensor_digest(tensor))
        called = inspect.getattr_static(cls, "__call__", None)
        if isinstance(called, FunctionType) and not isinstance(value, Module):
            self._add_function(called)
            self._add_attributes(value, _names(called.__code__))
        self._add_attributes(value, names)

    def _add_attributes(self, value: Any, names: tuple[str, ...]) -> None:
        """Add the attributes of an object, class or module that a function may use."""
        is_library = isinstance(value, ModuleType) and (getattr(value, "__file__", None) or _LIBRARIES[0]).startswith(
            _LIBRARIES
        )
        for name in names:
            if _OF_PROCESS.fullmatch(name) or not self._is_new((id(value), name), value):
                continue
            try:
                found = inspect.getattr_static(value, name)
            except AttributeError:
                continue
            if isinstance(found, (staticmethod, classmethod)):
                found = found.__func__
            elif isinstance(found, property):
                found = found.fget
            self._say(name)
            if is_library and not (isinstance(found, ModuleType) or type(found) in PLAIN):
                continue
            self.add(found, names)
            if isinstance(found, FunctionType) and not _is_of_library(found.__code__):
                self._add_attributes(value, _names(found.__code__))  # a method: the attributes that it uses

    def _add_function(self, function: Any) -> None:
        code = getattr(function, "__code__", None)
        self._say("function", getattr(function, "__qualname__", ""))
        if code is None or _is_of_library(code):
            return
        names = _names(code)
        self._add_code(code)
        self._add_all("defaults", [function.__defaults__, function.__kwdefaults__])
        used = {name: function.__globals__[name] for name in names if name in function.__globals__}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                used[name] = cell.cell_contents
        for name, value in used.items():
            if not _OF_PROCESS.fullmatch(name):
                self._say(name)
                self.add(value, names)

    def _add_code(self, code: CodeType) -> None:
        self._hash.update(code.co_code)
        self._say(repr((code.co_names, code.co_varnames[: code.co_argcount])))
        for one in code.co_consts:
            self.add(one)

    def _is_new(self, key: Any, value: Any) -> bool:
        if key in self._seen:
            return False
        self._seen[key] = value
        return True

    def _say(self, *words: str) -> None:
        self._hash.update("\0".join((*words, "\n")).encode())


def _is_plain(value: Any) -> bool:
    """True if `repr` shows the whole value: numbers, texts, and lists of them."""
    if isinstance(value, (list, tuple)):
        return PLAIN.issuperset(map(type, value))
    return type(value) in PLAIN or isinstance(value, np.generic)


def _names(code: CodeType | None) -> tuple[str, ...]:
    """The names of globals and attributes in code, including inner functions."""
    if code is None:
        return ()
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _names(one)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


def _is_of_library(code: CodeType) -> bool:
    return code.co_filename.startswith(_LIBRARIES)
