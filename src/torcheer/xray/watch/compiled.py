"""Refuses compiled models and compiled callers: while it is recorded, compiled code would run uncompiled."""

from __future__ import annotations

from types import CodeType

from torch.nn import Module

from ...errors import InvalidArgument
from ...torch_internals import compiled_and_disabled_functions, is_compiled, is_of_compiler, may_be_compiled

_REFUSED = (
    "xray.step() cannot watch {what}: recorded, it would run uncompiled, and the training would not be the same as without it. "
    "Use xray.take_graphs() after backward() instead: it probes the original model and leaves the compiled one alone."
)


def refuse_compiled(model: Module) -> None:
    """Raises where a model, or a part of it, is compiled."""
    for address, module in model.named_modules():
        if is_compiled(module):
            raise InvalidArgument(_REFUSED.format(what=f"the compiled module {address!r}" if address else "a compiled model"))


class CompiledCodeRefusal:
    """Raises `InvalidArgument` when it is called with the frames of a call that compiled code makes.

    Make it before the recording, which has torch run compiled code uncompiled. Code that `torch.compiler.disable` is around
    runs uncompiled anyway.
    """

    def __init__(self) -> None:
        self._has_compiler, self._before = may_be_compiled(), compiled_and_disabled_functions()
        self._raised: InvalidArgument | None = None

    def __call__(self, codes: list[CodeType]) -> None:
        compiled, disabled = self._before if self._has_compiler else compiled_and_disabled_functions()
        if next((id(code) for code in codes if id(code) in compiled or id(code) in disabled), None) in compiled:
            self._raised = InvalidArgument(_REFUSED.format(what="compiled code"))
            raise self._raised

    def raise_again(self, error: BaseException | None) -> None:
        """Raise the refusal where torch's compiler turned it into an error of its own, as torch up to 2.6 does."""
        if error is not None and self._raised is not None and is_of_compiler(error):
            raise self._raised from None
