"""Names of a call's positional arguments: in `conv2d(x, w, b, (4, 4))`, `(4, 4)` is `stride`.

Functions written in C have no signature in Python. Their names come from the operator schema that the values fit, or else
from the signatures that torch keeps for `__torch_function__`.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from .facts import TorchFunction
from .schemas import OPERATORS, has_out, schemas_of

_NUMBERS: dict[str, type | tuple[type, ...]] = {
    "int": int,
    "SymInt": int,
    "float": (int, float),
    "number": (int, float, complex),
    "str": str,
}
_ENUMERATIONS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}  # integers, in a schema


def positional_names(function: TorchFunction, values: Sequence[Any], is_tensor: Sequence[bool]) -> list[str]:
    """The names of a call's positional arguments; "" for unknown names.

    >>> from torcheer._torch.functions import facts
    >>> positional_names(facts(torch.Tensor.transpose), [None, 1, 2], [True, False, False])
    ['self', 'dim0', 'dim1']
    """
    func = function.func
    unknown = [""] * len(values)
    if func is None or function.name.startswith("__"):
        return unknown
    written = _written_names(function)
    if written is not None:
        return _padded(written, len(values))
    forms = _forms_of(func, function.name) if isinstance(func, OPERATORS) else ()
    for names, types_ in forms:
        if len(values) <= len(names) and all(map(_fits, names, types_, values, is_tensor)):
            return list(names[: len(values)])
    return _padded(_overridable_names().get(func, ()), len(values)) if not forms else unknown


def names_of(function: TorchFunction) -> tuple[str, ...]:
    """The names of the positional arguments of a function's first overload; empty if unknown."""
    written = _written_names(function)
    if written is not None:
        return written
    if isinstance(function.func, types.FunctionType):  # the Python function takes *args
        return ()
    schema = next((one for one in schemas_of(function.func, function.name) if not has_out(one)), None)
    return tuple(one.name for one in schema.arguments if not one.kwarg_only) if schema is not None else ()


def _written_names(function: TorchFunction) -> tuple[str, ...] | None:
    """The argument names of a Python function, or the names that a saved history stores for a function; None if there are
    none.
    """
    func = function.func
    if function.argument_names is None and isinstance(func, types.FunctionType):
        code = func.__code__
        return None if code.co_flags & inspect.CO_VARARGS else code.co_varnames[: code.co_argcount]
    return function.argument_names


def _padded(names: Sequence[str], count: int) -> list[str]:
    """Return the first `count` names; `count` empty strings if there are fewer names, as for the sizes in `view(2, 3, 4)`."""
    return list(names[:count]) if len(names) >= count else [""] * count


@cache
def _forms_of(func: Any, name: str) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """List, for each schema, the names and the types of its positional arguments. Both are empty for a schema with `out=`."""
    found = []
    for schema in schemas_of(func, name):
        given = [argument for argument in schema.arguments if not argument.kwarg_only] if not has_out(schema) else []
        found.append((tuple(argument.name for argument in given), tuple(str(argument.type) for argument in given)))
    return tuple(found)


def _fits(name: str, written: str, value: Any, is_tensor: bool) -> bool:
    if is_tensor:
        return "Tensor" in written or written in ("number", "Optional[number]")
    if value is None:
        return written.startswith("Optional")
    kind = written.removeprefix("Optional[").removesuffix("]") if written.startswith("Optional[") else written
    if name in _ENUMERATIONS:
        return isinstance(value, _ENUMERATIONS[name])
    if kind == "bool":
        return isinstance(value, bool)
    if kind.startswith("List["):
        return isinstance(value, (list, tuple)) or (isinstance(value, (int, float)) and "Tensor" not in kind)
    if kind == "Device":
        return isinstance(value, (str, torch.device, int)) and not isinstance(value, bool)
    if kind in _NUMBERS:
        return isinstance(value, _NUMBERS[kind]) and not isinstance(value, bool)
    return "Tensor" not in kind


@cache
def _overridable_names() -> dict[Any, tuple[str, ...]]:
    found = {}
    for func, stand_in in torch.overrides.get_testing_overrides().items():
        try:
            parameters = inspect.signature(stand_in).parameters.values()
        except (TypeError, ValueError):
            continue
        if all(one.kind is not inspect.Parameter.VAR_POSITIONAL for one in parameters):
            found[func] = tuple(one.name for one in parameters if one.kind is not inspect.Parameter.KEYWORD_ONLY)
    return found
