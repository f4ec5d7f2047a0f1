"""The modules inside a model, and their addresses.

Addresses are the names of `named_modules` without wrappers: users see neither `_orig_mod.` of a compiled model nor `module.`
of a parallel model. A module with several names has one address, its first name. A module outside every known model becomes
a root of its own, named after its class.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch.nn import Module

from .internals import WRAPPED_AS, own_modules

_PARALLEL = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)


def wrapped_module(module: Any) -> Module | None:
    """The module inside a compiled or parallel wrapper; None if the module is not a wrapper."""
    cls = type(module)
    attribute = WRAPPED_AS.get(cls.__name__)
    if attribute is None or not cls.__module__.startswith("torch."):
        return None
    inner = getattr(module, attribute, None)
    return inner if isinstance(inner, Module) else None


def without_parallelism(model: Any) -> Any:
    """Return the model inside parallel wrappers. Without them it runs on this thread, without replicas."""
    while isinstance(model, _PARALLEL):
        model = model.module
    return model


def innermost(model: Any) -> Any:
    """The model inside any number of compiled and parallel wrappers."""
    model = without_parallelism(model)
    while (inner := wrapped_module(model)) is not None:
        model = without_parallelism(inner)
    return model


def class_name(module: Module) -> str:
    """The name of a module's class; for TorchScript, of the class before compilation."""
    cls = type(module)
    return str(getattr(module, "original_name", cls.__name__)) if issubclass(cls, torch.jit.ScriptModule) else cls.__name__


def addressed(
    root: Module, prefix: str, known: Container[int], met_again: Callable[[Module, str], None] | None = None
) -> Iterator[tuple[str | None, Module]]:
    """Yield (address, module) for every module in `root` whose id is not `known`, in registration order. A wrapper's address
    is None.

    The caller must add each module to `known` before it asks for the next. If a `known` module is met again, `met_again` is
    called with it and with each module inside it, and with the address that the module has at this place.
    """
    waiting = [(prefix, root)]
    while waiting:
        address, module = waiting.pop()
        if id(module) in known:
            if met_again is not None:
                for name, inner in module.named_modules():
                    met_again(inner, ".".join(part for part in (address, name) if part))
            continue
        inner = wrapped_module(module) if type(module).__name__ in WRAPPED_AS else None
        if inner is not None:
            yield None, module
            waiting.append((address, inner))
            continue
        yield address, module
        children = own_modules(module)
        if children:
            start = f"{address}." if address else ""
            below = [(start + name, child) for name, child in children.items() if child is not None]
            below.reverse()
            waiting += below


def free_address(module: Module, around: str, taken: Container[str | None]) -> str:
    """Make an unused address for a new root from its class name, below the address `around` if a module is running."""
    name = unique = (f"{around}." if around else "") + class_name(wrapped_module(module) or module)
    count = 1
    while unique in taken:
        count += 1
        unique = f"{name}_{count}"
    return unique


def roots_of(model: Any) -> list[tuple[Module, str]]:
    """Find the modules in a callable: the callable, the owner of a method, or modules in a closure, attributes or `partial`."""
    if isinstance(model, Module):
        return [(model, "")]
    owner = getattr(model, "__self__", None)
    if isinstance(owner, Module):
        return [(owner, "")]
    held = {name: value for name, value in _held(model).items() if isinstance(value, Module)}
    return [(module, name) for name, module in held.items()]


def _held(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    code, cells = getattr(model, "__code__", None), getattr(model, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell
            found[name] = cell.cell_contents
    if hasattr(model, "__dict__") and not isinstance(model, type):
        found.update(vars(model))
    if hasattr(model, "func") and hasattr(model, "args"):  # functools.partial
        found.update(_held(model.func))
        found.update({f"args_{i}": v for i, v in enumerate(model.args)})
        if isinstance(model.func, Module):
            found[type(model.func).__name__] = model.func
    return found
