"""Tells whether a model, or the code that calls it, is compiled: what is recorded runs uncompiled, which is not the same."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook

from ..capture.modules import wrapped_module
from ..errors import InvalidArgument
from ..torch_internals import hooks_on_wrappers, may_be_compiled

_COMPILED_CALLS = os.path.join("_dynamo", "eval_frame.py")  # where compiled code is called from
_REFUSED = (
    "xray.step() cannot watch {what}: recorded, it would run uncompiled, and the training would not be the same as without it. "
    "Use xray.take_graphs() after backward() instead: it probes the original model and leaves the compiled one alone."
)


def refuse_compiled(model: Module) -> None:
    """Raises where a model, or a part of it, is compiled."""
    for address, module in model.named_modules():
        if module._compiled_call_impl is not None or (wrapped_module(module) is not None and hasattr(module, "_orig_mod")):
            raise InvalidArgument(_REFUSED.format(what=f"the compiled module {address!r}" if address else "a compiled model"))


@contextlib.contextmanager
def refusing_compiled_calls() -> Iterator[None]:
    """Inside, a module that compiled code calls raises before it runs."""
    if not may_be_compiled():  # nothing was compiled
        yield
        return
    thread, outside = threading.get_ident(), sys._getframe()

    def look(module: Module, args: Any) -> None:
        if threading.get_ident() == thread and _is_called_by_compiled(sys._getframe(1), outside):
            raise InvalidArgument(_REFUSED.format(what=f"compiled code, which calls a {type(module).__name__}"))

    hook = register_module_forward_pre_hook(look)
    try:
        with hooks_on_wrappers():  # which is what this hook is for
            yield
    finally:
        hook.remove()


def _is_called_by_compiled(frame: FrameType | None, outside: FrameType) -> bool:
    while frame is not None and frame is not outside:
        if frame.f_code.co_filename.endswith(_COMPILED_CALLS):
            return True
        frame = frame.f_back
    return False
