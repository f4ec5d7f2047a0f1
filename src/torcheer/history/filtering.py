"""`history.filter(…)`: the operations that fit a key, a type, a module and a function of an operation."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch

from ..display import few
from ..errors import InvalidArgument, LayerNotFound
from ..functions.names import label_type
from ..keys import AnyKey, is_torch_function, parse_key
from ..keys.meaning import of_calls
from ..records import FUNCTION, Origin, is_kind_of
from .lookup import Lookup
from .names import IndexNames, layer_type_of

_LayerType = str | type | Callable[..., object]  # its name, a class of modules, a torch function
LayerTypes = _LayerType | Iterable[_LayerType]


def numbers_that_fit(lookup: Lookup, key: AnyKey | None, type_: LayerTypes | None, module: AnyKey | None) -> list[int]:
    """The numbers of the operations that fit all of these that are not None, in execution order."""
    index, names = lookup.index, lookup.names
    numbers = sorted(lookup.meaning(key).numbers) if key is not None else index.operations
    if type_ is not None:
        of_type = _of_type(type_, lookup)
        numbers = [n for n in numbers if n in of_type]
    if module is not None:
        calls = parse_key(module).modules(names)
        inside = {n for call in calls for n in range(call.first, call.end if call.end >= 0 else index.length)}
        numbers = [n for n in numbers if n in inside]
    return numbers


def check_where(where: Any) -> None:
    """Raise if `where` is not a function of an operation."""
    if where is not None and (not callable(where) or isinstance(where, type) or is_torch_function(where)):
        raise InvalidArgument(
            "where is a function of an operation, such as lambda operation: operation.flops > 1e6; got "
            f"{type(where).__name__}: {where!r:.60}. Classes of modules go into module=, torch functions and types into type=."
        )


def _of_type(given: Any, lookup: Lookup) -> set[int]:
    """The operations of a layer type or a torch function, or that modules of a class returned; or those of a list of these."""
    if isinstance(given, type):
        names = lookup.names
        calls = [call for address, cls in names.classes.items() if is_kind_of(cls, given) for call in names.calls(address)]
        return _or_hint({match.number for match in of_calls(calls, names)}, given.__name__, names)
    if isinstance(given, str):
        return _of_name(given, lookup)
    if callable(given) and is_torch_function(given):
        return _of_name(layer_type_of(given), lookup)
    if isinstance(given, Iterable):
        return {number for one in given for number in _of_type(one, lookup)}
    raise InvalidArgument(
        f"type is a layer type such as 'relu', a torch function, a class of modules, or a list of these; got {given!r:.80}."
    )


def _of_name(name: str, lookup: Lookup) -> set[int]:
    kind = name.replace("_", "").lower()
    log = lookup.index.log
    functions = {place for place, function in enumerate(log.functions) if function.type == kind}
    if not functions and kind not in _types_of_torch():
        ran = list(dict.fromkeys(function.type for function in log.functions))
        near = difflib.get_close_matches(kind, ran, n=3) or difflib.get_close_matches(kind, _types_of_torch(), n=3)
        hint = f"The nearest are {', '.join(map(repr, near))}." if near else f"Those that ran are {few(ran, 12)}."
        raise LayerNotFound(f"no type of layers is called {name!r}. {hint}")
    return _or_hint({n for n in lookup.index.operations if log.rows[n][FUNCTION] in functions}, kind, lookup.names)


def _or_hint(numbers: set[int], what: str, names: IndexNames) -> set[int]:
    """The numbers. Raises if there are none because the operations ran inside a fused call; the error says which."""
    if not numbers and (hint := names.hint(what)):
        raise LayerNotFound(f"no operation is a {what}.{hint}")
    return numbers


@cache
def _types_of_torch() -> frozenset[str]:
    """The layer types of torch's functions, and of inputs, outputs and sources."""
    spaces: list[Any] = [torch, torch.Tensor, torch.nn.functional, torch.special, torch.fft, torch.linalg, torch.nn]
    found = [name for space in spaces for name in dir(space)]
    found += [f"{space.__name__.rpartition('.')[2]}_{name}" for space in spaces for name in dir(space)]  # linalg_norm
    return frozenset(map(label_type, found)) | {origin.value for origin in Origin}
