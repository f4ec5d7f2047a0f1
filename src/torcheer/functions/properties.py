"""What kind of result a function has, by plain name: a view, an element-wise result, random numbers, a constant.

An element-wise function makes each value of its result from the values at the same place of its arguments (after
broadcasting), and from nothing else.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from . import groups
from .schemas import aten_schemas, has_out, has_tag

# Functions that return the memory of an argument where nothing has to be computed.
_SOMETIMES = groups.CONVERSIONS | groups.RESHAPES | groups.ONE_FOR_EACH | groups.DROPOUTS | groups.HAND_BACK


@cache
def is_view(name: str) -> bool:
    """Whether every overload of a function returns the memory of an argument."""
    if name in groups.UNSCHEMED_VIEWS:
        return True
    if name in _SOMETIMES:
        return False
    schemas = [schema for schema in aten_schemas(name) if _takes_a_tensor(schema) and not has_out(schema)]
    return bool(schemas) and all(any(_is_alias(result) for result in schema.returns) for schema in schemas)


def may_be_view(name: str) -> bool:
    """Whether a function returns the memory of an argument at least sometimes."""
    return is_view(name) or name in _SOMETIMES


def _takes_a_tensor(schema: Any) -> bool:
    return bool(schema.arguments) and "Tensor" in str(schema.arguments[0].type)


def _is_alias(result: Any) -> bool:
    return result.alias_info is not None and not result.alias_info.is_write


@cache
def is_elementwise(name: str) -> bool:
    if name in groups.NOT_ELEMENTWISE or name.endswith("_backward"):
        return False
    if name in groups.ELEMENTWISE or name in groups.CONVERSIONS:
        return True
    return any(has_tag(spelled, torch.Tag.pointwise) for spelled in (name, f"special_{name}"))


@cache
def is_random(name: str) -> bool:
    """Whether a function may draw random numbers: for some of its arguments, or always."""
    if name in groups.SAMPLING | groups.DROPOUTS | groups.RANDOM_BESIDES:
        return True
    return any(has_tag(spelled, torch.Tag.nondeterministic_seeded) for spelled in (name, f"_{name}", f"{name}_"))


@cache
def makes_constants(name: str) -> bool:
    """Whether a function makes a tensor out of no other."""
    if name in groups.CONSTRUCTORS:
        return True
    schemas = [schema for schema in aten_schemas(name) if not has_out(schema)]
    return bool(schemas) and not any("Tensor" in str(argument.type) for schema in schemas for argument in schema.arguments)


@cache
def allocates(name: str) -> bool:
    """Whether a function is called to get memory: it makes, copies or converts a tensor."""
    makers = groups.CONSTRUCTORS | groups.CONVERSIONS | {"clone", "contiguous", "copy", "complex", "pin_memory"}
    return name in makers or (name in groups.SAMPLING and name.startswith("rand"))
