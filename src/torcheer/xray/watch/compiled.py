"""Refuses compiled models and compiled callers: while it is recorded, compiled code would run uncompiled."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType

from torch.nn import Module

from ...capture.addresses import wrapped_module
from ...errors import InvalidArgument
from ...torch_internals import compiled_and_disabled_functions, may_be_compiled

_REFUSED = (
    "xray.step() cannot watch {what}: recorded, it would run uncompiled, and the training would not be the same as without it. "
    "Use xray.take_graphs() after backward() instead: it probes the original model and leaves the compiled one alone."
)


def refuse_compiled(model: Module) -> None:
    """Raises where a model, or a part of it, is compiled."""
    for address, module in model.named_modules():
        is_wrapper = wrapped_module(module) is not None and hasattr(module, "_orig_mod")
        if is_wrapper or module._compiled_call_impl is not None or hasattr(module.forward, "_torchdynamo_orig_callable"):
            raise InvalidArgument(_REFUSED.format(what=f"the compiled module {address!r}" if address else "a compiled model"))


def refusal_of_compiled_code() -> Callable[[list[CodeType]], None]:
    """A function that raises when it is given the frames of a call that compiled code makes.

    Ask for it before the recording, which has torch run compiled code uncompiled. Code that `torch.compiler.disable` is around
    runs uncompiled anyway.
    """
    has_compiler, before = may_be_compiled(), compiled_and_disabled_functions()

    def look(codes: list[CodeType]) -> None:
        compiled, disabled = before if has_compiler else compiled_and_disabled_functions()
        if next((id(code) for code in codes if id(code) in compiled or id(code) in disabled), None) in compiled:
            raise InvalidArgument(_REFUSED.format(what="compiled code"))

    return look
