"""Copies of torch's Python functions that run their own body, so that the calls inside are seen."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from .kinds import GUARDS

_OPEN_GLOBALS: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}


def opened_copy(func: types.FunctionType) -> Callable[..., Any]:
    """A copy of `func` that runs its own body instead of handing the call to the mode.

    In its globals, `has_torch_function` and its variants return False. The copy shares code, defaults and closure with the
    original; nothing of torch is changed.
    """
    source = func.__globals__
    kept = _OPEN_GLOBALS.get(id(source))
    if kept is None:
        kept = _OPEN_GLOBALS[id(source)] = (source, {**source, **dict.fromkeys(GUARDS, lambda *_: False)})
    copy = types.FunctionType(func.__code__, kept[1], func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
