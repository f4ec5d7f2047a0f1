"""What a model is made of, to tell whether a run that is resumed is of the same one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.nn import Module
from torch.nn.parameter import is_lazy

_SHOWN = 5  # differences that are told


def architecture_of(model: Module, watched: Iterable[str]) -> dict[str, Any]:
    """The classes of modules that have parameters or are watched, and the shapes of all parameters, by name."""
    names = {name.partition(":")[0] for name in watched}
    modules = {
        address: type(module).__qualname__
        for address, module in model.named_modules()
        if address in names or next(module.parameters(recurse=False), None) is not None
    }
    parameters = {name: None if is_lazy(parameter) else list(parameter.shape) for name, parameter in model.named_parameters()}
    return {"modules": modules, "parameters": parameters}


def differences(recorded: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """How a model differs from the recorded one, in words; nothing where it does not."""
    found = []
    before, after = recorded.get("parameters", {}), now["parameters"]
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            found.append(f"the run has a parameter {name!r} {_shape(before[name])}, the model has none")
        elif name not in before:
            found.append(f"the model has a parameter {name!r} {_shape(after[name])}, the run has none")
        elif None not in (before[name], after[name]) and before[name] != after[name]:
            found.append(f"parameter {name!r} is {_shape(after[name])} in the model and {_shape(before[name])} in the run")
    before, after = recorded.get("modules", {}), now["modules"]
    found += [
        f"module {address!r} is a {after[address]} in the model and a {before[address]} in the run"
        for address in before
        if address in after and before[address] != after[address]
    ]
    return found[:_SHOWN] + ([f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else [])


def _shape(shape: list[int] | None) -> str:
    return "of unknown shape" if shape is None else "×".join(map(str, shape)) or "of one value"
