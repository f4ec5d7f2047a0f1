"""Writes functions by name, and finds them again by name when a history is loaded.

Only two groups are found: torch's own functions that a file may name (`functions.allowed_calls`), and functions that the user
passes to `load`. Nothing is imported or called. A function that is not found becomes a `MissingFunction`, which has the name
and raises when a replay calls it.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import Any, NoReturn

import torch

from .._torch.functions import facts
from .._torch.functions.allowed_calls import LIBRARIES, is_harmless
from .._torch.functions.facts import Kind, Origin, TorchFunction
from .._torch.functions.schemas import C_FUNCTIONS
from .._torch.functions.signatures import names_of
from .._torch.internals import (
    FUNCTION_MODULES,
    FUNCTION_NAMESPACES,
    OpNamespace,
    OpOverload,
    OpOverloadPacket,
    overload_name,
    qualified_name_of,
)
from ..errors import FunctionNotFound, InvalidArgument
from .checking import fields, items, number, refuse, text, text_or_none

_ACCESS = ("__get__", "__set__", "__delete__")
_RUNS = (Kind.OPERATION, Kind.COMPOSITE)
_FLAGS = ("is_attribute", "is_collective", "writes_aside", "touches_gradients", "switches_gradients")


class MissingFunction:
    """Stands for a function that was not found again. Calling it raises `FunctionNotFound`."""

    def __init__(self, name: str, module: str) -> None:
        self.__name__ = self.__qualname__ = name
        self.__module__ = module

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise FunctionNotFound(
            f"{self.__name__!r} is not one of torch's own functions that a file may name, and a saved history imports nothing. "
            "If you trust the file, pass the function, or the module it is in, to torcheer.load as functions=[…]."
        )

    def __repr__(self) -> str:
        return f"<function {self.__name__}, which was not found>"


# Writing ----------------------------------------------------------------------------------------------------------------


def write_function(function: TorchFunction) -> dict[str, Any]:
    """Write a function as plain values: its name, its path, and the facts that a reader needs."""
    func = function.func
    written: dict[str, Any] = {"name": function.name, "type": function.type, "kind": int(function.kind)}
    written["origin"] = function.origin.value
    if func is None:
        return written
    written |= {"found": qualified_name(func), "plain": function.plain_name, "module": getattr(func, "__module__", None) or ""}
    if Functions()._find(written["found"]) is None:  # a reader will not find the function, so its argument names are written
        written["arguments"] = list(names_of(function))
    return written | {"is": [name for name in _FLAGS if getattr(function, name)]}


def qualified_name(func: Any) -> str:
    """The path of a function: `torch.nn.functional.relu`, `torch.Tensor.T.__get__`, `torch.ops.aten.add.Tensor`."""
    if isinstance(func, MissingFunction):
        return func.__name__
    if isinstance(func, OpOverload):
        return f"torch.ops.{func.namespace}.{func.overloadpacket.__name__}.{overload_name(func)}"
    if isinstance(func, OpOverloadPacket):
        return f"torch.ops.{qualified_name_of(func).replace('::', '.')}"
    name = str(getattr(func, "__name__", ""))
    if name in _ACCESS:
        owner = getattr(func, "__self__", None)
        attribute = next((key for key, known in vars(torch.Tensor).items() if known is owner), None)
        attribute = attribute or str(getattr(owner, "__name__", "property"))
        return f"torch.Tensor.{attribute}.{name}"
    for space in FUNCTION_NAMESPACES:
        path = f"{space}.{name}"
        if name and _same(_torch_function(path), func):
            return path
    # the attribute has another name than the function: `__pow__`
    other = next((key for key, known in vars(torch.Tensor).items() if known is func), None)
    if other is not None:
        return f"torch.Tensor.{other}"
    return f"{getattr(func, '__module__', None) or ''}.{getattr(func, '__qualname__', None) or type(func).__qualname__}"


def _same(one: Any, other: Any) -> bool:
    """True if two objects are the same function. C functions may be equal without being the same object."""
    return one is other or (isinstance(one, C_FUNCTIONS) and type(one) is type(other) and one == other)


# Reading ----------------------------------------------------------------------------------------------------------------


class Functions:
    """Finds functions by their written form. `passed` are functions of the user: functions, modules, `torch.ops.…`."""

    def __init__(self, passed: Iterable[Any] = ()) -> None:
        self._own: dict[str, Any] = {}
        self._libraries: dict[str, Any] = {}
        for one in [passed] if callable(passed) or isinstance(passed, types.ModuleType) else passed:
            self._add(one)

    def _add(self, one: Any) -> None:
        if isinstance(one, OpNamespace):
            self._libraries[one.name] = one
        elif isinstance(one, types.ModuleType):
            self._own.update(
                {qualified_name(each): each for each in vars(one).values() if isinstance(each, types.FunctionType)}
            )
        elif callable(one):
            self._own[qualified_name(one)] = one
        else:
            raise InvalidArgument(
                f"functions= takes functions, modules and torch.ops.…; got {type(one).__name__}: {one!r:.60}."
            )

    def read(self, written: Any, *, runs: bool = True) -> TorchFunction:
        """Find the function of a written form. `runs`: True if it belongs to an operation, so that a replay calls it."""
        found = fields(written, "a function")
        name, kind = text(found.get("name"), "a function"), text(found.get("type"), "a function")
        try:
            what, origin = Kind(number(found.get("kind"), "a function")), Origin(found.get("origin"))
        except ValueError:
            refuse("a function is of an unknown kind")
        path = text_or_none(found.get("found"), "a function")
        if path is None:
            return TorchFunction(None, name, kind, what, origin=origin)
        func = self._find(path)
        if func is not None:
            known = facts(func)
            if known.name == name and (not runs or known.kind in _RUNS):
                is_same = (known.type, known.origin) == (kind, origin)
                return known if is_same else dataclasses.replace(known, type=kind, origin=origin)
        return self._missing(path, found, TorchFunction(None, name, kind, what, origin=origin))

    def _missing(self, path: str, written: dict[str, Any], function: TorchFunction) -> TorchFunction:
        function.func = MissingFunction(path, text(written.get("module"), "a module"))
        function.__dict__["plain_name"] = text(written.get("plain"), "a function")
        names = items(written.get("arguments", []), "the arguments of a function")
        function.argument_names = tuple([text(one, "an argument") for one in names])
        for name in written.get("is") or ():
            if name in _FLAGS:
                setattr(function, name, True)
        return function

    def _find(self, path: str) -> Any:
        if path in self._own:
            return self._own[path]
        parts = path.split(".")
        is_operator = parts[:2] == ["torch", "ops"]
        if is_operator and parts[2:3] and parts[2] in self._libraries:
            return self._operator(parts[2:])
        found = self._operator(parts[2:]) if is_operator else _torch_function(path)
        if found is None or is_harmless(found):
            return found
        return found if facts(found).kind not in _RUNS else None  # queries and the like are never called by a replay

    def _operator(self, parts: list[str]) -> Any:
        if not 2 <= len(parts) <= 3 or not all(part.isidentifier() for part in parts):
            return None
        library = self._libraries.get(parts[0]) or (getattr(torch.ops, parts[0]) if parts[0] in LIBRARIES else None)
        packet = getattr(library, parts[1], None) if library is not None else None
        if not isinstance(packet, OpOverloadPacket) or len(parts) == 2:
            return packet if isinstance(packet, OpOverloadPacket) else None
        overload = getattr(packet, parts[2], None)
        return overload if isinstance(overload, OpOverload) else None


def _torch_function(path: str) -> Any:
    """Find one of torch's own functions by its path; None if there is no function of torch at the path."""
    if path == "torch.autograd.grad":
        return torch.autograd.grad
    space, _, name = path.rpartition(".")
    if name in _ACCESS and space.startswith("torch.Tensor."):
        attribute = space.removeprefix("torch.Tensor.")
        owner = vars(torch.Tensor).get(attribute) or vars(torch.Tensor.__base__).get(attribute)
        if type(owner) not in (types.GetSetDescriptorType, property):
            return None
        return getattr(owner, name)
    owner = FUNCTION_NAMESPACES.get(space)
    if owner is None or owner is torch.autograd:
        return None
    if owner is torch.Tensor:
        found = next((vars(cls)[name] for cls in torch.Tensor.__mro__[:-1] if name in vars(cls)), None)
    else:
        found = vars(owner).get(name) if isinstance(owner, types.ModuleType) else getattr(owner, name, None)
    if isinstance(found, types.FunctionType):
        return found if found.__module__ in FUNCTION_MODULES else None
    return found if isinstance(found, C_FUNCTIONS) else None
