"""All that a pass could change of a value and of what it holds, as plain facts: what "as it was" means in every test."""

from __future__ import annotations

import collections
import functools
import operator
import random
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def numpy_state(state: Any) -> tuple[Any, ...]:
    kind, keys, *rest = state
    return kind, keys.tobytes(), *rest


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, range, slice)
_ALONE = (type, types.ModuleType, types.BuiltinFunctionType, threading.Thread, type(threading.Lock()), BaseException)
_HELD_BY_A_FUNCTION = (nn.Module, Tensor, torch.Generator, random.Random, np.random.Generator)  # other variables are its own
_RANDOM = {
    torch.Generator: lambda one: one.get_state().numpy().tobytes(),
    random.Random: lambda one: one.getstate(),
    np.random.Generator: lambda one: str(one.bit_generator.state),
    np.random.BitGenerator: lambda one: str(one.state),
    np.random.RandomState: lambda one: numpy_state(one.get_state()),
}


class Snapshot(dict[str, Any]):
    """Facts by path. What they are about is kept alive, so that an identity means one object."""

    def __init__(self, *values: Any, counts: bool = True) -> None:
        """With `counts`, how often torch counted a write is a fact, too."""
        super().__init__()
        self["random states"] = random.getstate(), numpy_state(np.random.get_state()), torch.get_rng_state().numpy().tobytes()
        self._seen: dict[int, Any] = {}
        with torch._C.DisableTorchFunctionSubclass():
            waiting = [(f"[{place}]", value) for place, value in enumerate(values)]
            while waiting:
                path, value = waiting.pop()
                if isinstance(value, _PLAIN):
                    self[path] = type(value), repr(value)
                    continue
                self[f"{path} is"] = type(value), id(value)
                if id(value) not in self._seen:
                    self._seen[id(value)] = value
                    self[path], parts = _look(value)
                    if counts and isinstance(value, Tensor) and not is_lazy(value):
                        self[f"{path} writes"] = _asked(lambda value=value: value._version)
                    waiting += [(f"{path}{step}", part) for step, part in parts]

    def differences(self, other: Snapshot) -> list[str]:
        return [path for path in {**self, **other} if self.get(path, self) != other.get(path, self)]


def _look(value: Any) -> tuple[Any, list[tuple[str, Any]]]:
    """The facts of one value, and what it holds."""
    if isinstance(value, Tensor):
        return _look_at_tensor(value)
    if isinstance(value, np.ndarray):
        held = value.ravel().tolist() if value.dtype == object else []
        return (value.dtype, value.shape, value.tobytes()), list(zip(map("[{}]".format, range(len(held))), held, strict=True))
    for kind, state in _RANDOM.items():
        if isinstance(value, kind):
            return state(value), []
    if isinstance(value, torch.jit.ScriptModule):
        names = [*value._concrete_type.get_attributes(), *dict(value.state_dict())]
        held = {name: operator.attrgetter(name)(value) for name in names if not name.startswith("__")}
        return {name: repr(one) for name, one in held.items()}, []
    if isinstance(value, functools.partial):
        return None, [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    if isinstance(value, types.MethodType):
        return None, [(".__self__", value.__self__)]
    if isinstance(value, types.FunctionType):
        return None, [(f".{name}", one) for name, one in _variables(value) if isinstance(one, _HELD_BY_A_FUNCTION)]
    if isinstance(value, (*_ALONE, torch.jit.ScriptFunction)) or type(value).__module__.partition(".")[0] in (
        "torcheer",
        "logging",
    ):
        return None, []
    facts: list[Any] = []
    parts: list[tuple[str, Any]] = []
    if isinstance(value, bytearray):
        facts.append(bytes(value))
    elif isinstance(value, (set, frozenset)):
        facts.append(collections.Counter(one if isinstance(one, _PLAIN) else id(one) for one in value))
        parts += [(f"{{{id(one)}}}", one) for one in value]
    elif isinstance(value, dict):
        facts.append([key if isinstance(key, _PLAIN) else id(key) for key in dict.keys(value)])
        parts += [(f"[{key if isinstance(key, _PLAIN) else id(key)!r}]", one) for key, one in dict.items(value)]
    elif isinstance(value, (list, tuple, collections.deque)):
        facts.append((len(value), getattr(value, "maxlen", None)))
        parts += [(f"[{place}]", one) for place, one in enumerate(value)]
    elif type(value).__name__.endswith("iterator"):
        facts.append(operator.length_hint(value))
    stored = _stored(value)
    return (*facts, [name for name, _ in stored]), parts + [(f".{name}", one) for name, one in stored]


def _look_at_tensor(value: Tensor) -> tuple[Any, list[tuple[str, Any]]]:
    facts: list[Any] = [value.requires_grad, value.is_leaf, value.grad_fn and id(value.grad_fn), value.layout]
    facts += [list(value._backward_hooks or ()), list(getattr(value, "_post_accumulate_grad_hooks", None) or ())]
    if not is_lazy(value):
        asked = (lambda: (value.shape, value.dtype, value.stride()), lambda: _bits(value), lambda: _memory(value))
        facts += map(_asked, asked)
    gradient = [(".grad", value.grad)] if value.is_leaf or value.retains_grad else []
    return facts, gradient + [(f".{name}", one) for name, one in vars(value).items() if not value.is_nested]


def _asked(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (RuntimeError, NotImplementedError):  # a nested tensor has no strides, one of inference mode no versions
        return None


def _memory(value: Tensor) -> Any:
    return value.untyped_storage()._cdata, value.storage_offset()


def _bits(value: Tensor) -> Any:
    if value.device.type == "meta":
        return None
    if value.is_nested or value.is_quantized or value.layout is not torch.strided or type(value) not in (Tensor, nn.Parameter):
        return repr(value)
    flat = value.detach().resolve_conj().resolve_neg()
    flat = flat.view(torch.uint8) if flat.dtype in (torch.int4, torch.uint4) else flat
    flat = torch.empty(flat.shape, dtype=flat.dtype).copy_(flat).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function closes over, what its arguments are by default, and what it knows by a global name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not set yet
            pass
    yield from zip(map("default {}".format, range(99)), function.__defaults__ or (), strict=False)
    yield from ((name, function.__globals__[name]) for name in function.__code__.co_names if name in function.__globals__)


def _stored(value: Any) -> list[tuple[str, Any]]:
    """The attributes of an object, also those in slots."""
    try:
        found = list(object.__getattribute__(value, "__dict__").items())
    except (AttributeError, RuntimeError):
        found = []
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found.append((name, getattr(value, name)))
    return found
