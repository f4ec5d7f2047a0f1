"""The architecture of a model, to check that a run is resumed with the model it was made with.

It is the classes of all modules, the shapes of all parameters, and the settings of modules: numbers, texts and functions (such
as an activation) that `__init__` assigns and no other method does. An attribute that another method assigns is a counter or is
learned; one that `__init__` does not assign was set by the training.
"""

from __future__ import annotations

import dis
import math
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, cast

from torch.nn import Module
from torch.nn.parameter import is_lazy


def architecture_of(model: Module) -> dict[str, Any]:
    """The classes and settings of modules, and the shapes of parameters, by name, as JSON can hold them."""
    modules = dict(model.named_modules())
    settings = {address: _settings(module) for address, module in modules.items()}
    return {
        "modules": {address: _class_of(module).__qualname__ for address, module in modules.items()},
        "settings": {address: found for address, found in settings.items() if found},
        "parameters": {name: None if is_lazy(one) else list(one.shape) for name, one in model.named_parameters()},
    }


def _class_of(module: Module) -> type:
    """The class of a module; of a lazy one, the class that it becomes when its shapes are known."""
    return getattr(module, "cls_to_become", None) or type(module)


def _settings(module: Module) -> dict[str, Any]:
    if _class_of(module) is not type(module):
        return {}
    names = _setting_names(cast(Any, type(module)))
    return {name: _plain(value) for name, value in vars(module).items() if name in names and _is_plain(value)}


@cache
def _setting_names(cls: Any) -> frozenset[str]:
    """The attributes that only `__init__` assigns; `__setstate__`, which makes old pickles complete, does not count."""
    initial, others = set[str](), {"training"}
    for base in cls.__mro__[: cls.__mro__.index(Module)]:
        for name, member in vars(base).items():
            if isinstance(member, FunctionType) and name != "__setstate__":
                (initial if name == "__init__" else others).update(
                    one.argval for one in dis.get_instructions(member) if one.opname == "STORE_ATTR"
                )
    return frozenset(name for name in initial - others if not name.startswith("_"))


def _is_plain(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str, FunctionType, BuiltinFunctionType))


def _plain(value: Any) -> Any:
    """A setting as JSON holds it."""
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    if isinstance(value, (FunctionType, BuiltinFunctionType)):
        return {"function": value.__name__}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# Comparing ----------------------------------------------------------------------------------------------------------


def differences(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """How a model differs from the recorded one, a sentence each; empty where it does not.

    Runs of older versions recorded no settings, and only the modules that have parameters.
    """
    found = _of_parameters(recorded.get("parameters", {}), now["parameters"])
    found += _of_modules(recorded.get("modules", {}), now["modules"], is_complete="settings" in recorded)
    if "settings" in recorded:
        found += _of_settings(recorded["settings"], now["settings"])
    return found


def _of_parameters(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    found = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            found.append(f"the run has a parameter {name!r} {_shape(before[name])}, the model has none")
        elif name not in before:
            found.append(f"the model has a parameter {name!r} {_shape(after[name])}, the run has none")
        elif None not in (before[name], after[name]) and before[name] != after[name]:
            found.append(f"parameter {name!r} is {_shape(after[name])} in the model and {_shape(before[name])} in the run")
    return found


def _of_modules(before: dict[str, str], after: dict[str, str], *, is_complete: bool) -> list[str]:
    found = [
        f"{_module(address)} is a {after[address]} in the model and a {before[address]} in the run"
        for address in before
        if address in after and before[address] != after[address]
    ]
    if is_complete:
        missing, more = (sorted(one.keys() - other.keys()) for one, other in ((before, after), (after, before)))
        found += [f"the run has a {_module(address)}, a {before[address]}, the model has none" for address in missing]
        found += [f"the model has a {_module(address)}, a {after[address]}, the run has none" for address in more]
    return found


def _of_settings(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{name} of {_module(address)} is {_value(settings[name])} in the model and {_value(before[address][name])} in the run"
        for address, settings in after.items()
        for name in settings
        if name in before.get(address, ()) and before[address][name] != settings[name]
    ]


def _module(address: str) -> str:
    return f"module {address!r}" if address else "the model"


def _value(value: Any) -> str:
    """A setting in words, as Python writes it."""
    if isinstance(value, dict):
        return str(value.get("function"))
    if isinstance(value, list):
        return f"({', '.join(map(_value, value))}{',' if len(value) == 1 else ''})"
    return repr(value)


def _shape(shape: list[int] | None) -> str:
    return "of unknown shape" if shape is None else "×".join(map(str, shape)) or "of one value"
