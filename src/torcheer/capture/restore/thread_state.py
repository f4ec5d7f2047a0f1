"""What torch keeps for each thread, put back where an interrupt came between two lines that change it."""

from __future__ import annotations

from types import TracebackType

import torch

from ...cleaning import Managed
from ...torch_internals import DisableTorchFunction, function_modes, pop_function_mode, push_function_mode


class thread_as_found(Managed[None]):  # noqa: N801 - used as a function: `with thread_as_found():`
    """Where an interrupt ends the block: the function modes, whether functions are handed to them, and the gradient mode."""

    def _begin(self) -> None:
        self._handing_on = DisableTorchFunction()
        self._handing_on.__enter__()
        self._handing_on.__exit__(None, None, None)  # which `_end` calls again
        self._modes = function_modes()
        self._follows_gradients = torch.is_grad_enabled()

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Put all back. When an interrupt ends a program's mode, that may take off ours instead of itself."""
        if error is None or isinstance(error, Exception):
            return
        self._handing_on.__exit__(None, None, None)
        now = function_modes()
        if list(map(id, now)) != list(map(id, self._modes)):
            for _ in now:
                pop_function_mode()
            for mode in self._modes:
                push_function_mode(mode)
        torch.set_grad_enabled(self._follows_gradients)
