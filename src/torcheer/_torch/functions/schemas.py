"""Schemas and tags of the operators behind torch's functions.

TorchScript has functions of the same names for lists, strings and dictionaries (`aten::sort.int(int[](a!) self)`), which no
tensor program can call. So only schemas that the dispatcher knows are used.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Any

import torch

from ..internals import OpOverload, OpOverloadPacket, operator_names, schema_of, schemas_for

C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
OPERATORS = (*C_FUNCTIONS, OpOverload, OpOverloadPacket)  # functions that may have schemas


@cache
def _dispatched() -> frozenset[str]:
    return frozenset(operator_names())


def is_dispatched(schema: Any) -> bool:
    """True if the dispatcher knows a schema; it does not know TorchScript's functions of strings, lists and files."""
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return full in _dispatched()


@cache
def aten_schemas(name: str) -> tuple[Any, ...]:
    """The schemas of the operator `aten::name`, including those with `out=`."""
    return tuple(filter(is_dispatched, schemas_for(f"aten::{name}")))


def schemas_of(func: Any, name: str) -> tuple[Any, ...]:
    """Return the schemas of a torch function that is one operator; empty for Python functions and Python operators."""
    if isinstance(func, OpOverload):
        return (schema_of(func),)
    if isinstance(func, OpOverloadPacket):
        overloads = list(func.overloads())
        return tuple(schema_of(getattr(func, overload)) for overload in overloads)
    if name.startswith("__"):
        return ()
    return aten_schemas(name) if isinstance(func, C_FUNCTIONS) else ()


def has_out(schema: Any) -> bool:
    """True if a schema has an `out=` argument."""
    return any(argument.is_out for argument in schema.arguments)


def writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


@cache
def has_tag(name: str, tag: Any) -> bool:
    """True if every form of `aten::name`, except in-place and `out=` forms, has this tag of torch."""
    found = []
    for schema in aten_schemas(name):
        if has_out(schema):
            continue
        packet = getattr(torch.ops.aten, name, None)
        overload = getattr(packet, schema.overload_name or "default", None)
        found.append(overload is not None and tag in overload.tags)
    return bool(found) and all(found)


def argument_names(func: Any, name: str) -> tuple[str, ...]:
    """The names of the arguments of a function's first overload, in order; empty if unknown."""
    if isinstance(func, types.FunctionType):
        return func.__code__.co_varnames[: func.__code__.co_argcount]
    schema = next(iter(schemas_of(func, name)), None)
    return tuple(argument.name for argument in schema.arguments) if schema is not None else ()
