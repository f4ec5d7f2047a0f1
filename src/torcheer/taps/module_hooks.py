"""Hooks around chosen modules: on the module itself, or global hooks for modules that must not have any."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn import Module

from ..capture.intercept.fused import decision_of, named_arguments
from ..torch_internals import forward_hooks_of, forward_pre_hooks_of, global_module_hooks

Before = Callable[[Module, tuple[Any, ...], dict[str, Any]], Any]  # returns None, or the new positional and named arguments
After = Callable[[Module, Any, Any], Any]  # gets the result, None where forward raised; returns None, or the new result


class _Hook(partial):  # type: ignore[type-arg]  # of a hook before or after
    """A hook of one model: copies of the model, made by `deepcopy` or pickle in the block, get a hook that does nothing.

    That hook is `nullcontext().__exit__`, so that a copy can be loaded without torcheer.
    """

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


class ModuleHooks:
    """Hooks that are put on modules one by one, and taken off together."""

    def __init__(self) -> None:
        self._leave = ExitStack()
        self._global: dict[int, tuple[list[Before], list[After]]] = {}  # by the id of a module

    def before(self, module: Module, hook: Before) -> None:
        """Call a hook before a module's forward."""
        if _takes_hooks(module):
            self._leave.callback(module.register_forward_pre_hook(_Hook(hook), with_kwargs=True).remove)
            _go_first(forward_pre_hooks_of(module))
        else:
            self._globally(module)[0].append(hook)

    def after(self, module: Module, hook: After, *, always: bool) -> None:
        """Call a hook after a module's forward; `always` also where it raised."""
        if _takes_hooks(module):
            self._leave.callback(module.register_forward_hook(_Hook(hook), always_call=always).remove)
            _go_first(forward_hooks_of(module))
        else:
            self._globally(module)[1].append(hook)

    def remove(self) -> None:
        """Take all of them off."""
        self._leave.close()
        self._global.clear()

    def _globally(self, module: Module) -> tuple[list[Before], list[After]]:
        if not self._global:
            self._leave.enter_context(global_module_hooks(self._enter, self._exit))
        return self._global.setdefault(id(module), ([], []))

    def _enter(self, module: Module, args: tuple[Any, ...]) -> Any:
        new = None
        for hook in self._global.get(id(module), ((), ()))[0]:
            named: dict[Any, Any] = named_arguments(sys._getframe(1))  # the dictionary that forward is called with
            given = hook(module, args, named)
            if given is not None:
                new = args = given[0]
                named.update(given[1])
        return new

    def _exit(self, module: Module, args: tuple[Any, ...], *rest: Any) -> Any:
        new, result = None, rest[-1]
        for hook in self._global.get(id(module), ((), ()))[1]:
            changed = hook(module, args, result)
            if changed is not None:
                new = result = changed
        return new


def _go_first(hooks: dict[int, Any]) -> None:
    """Run our hooks before the model's own: a log, too, has what a module gets and gives without the model's hooks."""
    for key in [key for key, hook in hooks.items() if not isinstance(hook, _Hook)]:
        hooks[key] = hooks.pop(key)


def _takes_hooks(module: Module) -> bool:
    """Whether a module may have hooks: with hooks, modules with a fused path do not take it, and TorchScript refuses them."""
    return decision_of(type(module)) is None and not isinstance(module, torch.jit.ScriptModule)
