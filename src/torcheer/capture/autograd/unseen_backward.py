"""Marks the gradients that a replay cannot work out again: they went backward through code that is not in the log.

`torch.autograd.grad` inside a forward is an operation: a replay makes the graph anew and calls it again. Where the graph holds
a `torch.autograd.Function`, TorchScript or another extension, the log has what these returned, and not their backward.
"""

from __future__ import annotations

from functools import cache
from types import CodeType

import torch

from ...module_records import ModuleCall
from ...records import FUNCTION, MODULE, NODE, SITE, Log, Origin, TorchFunction
from ...torch_internals import is_of_custom_function

_NOWHERE: frozenset[int] = frozenset()


def mark_unseen_backward(log: Log) -> None:
    """Mark results of `torch.autograd.grad` that depend on what a `torch.autograd.Function`, or unwatched code, returned."""
    calls = {number for number, function in enumerate(log.functions) if function.func is torch.autograd.grad}
    if not calls:
        return
    inside = _CustomFunctions(log)
    unseen = {number for number, function in enumerate(log.functions) if _is_unseen(function)}
    behind: set[int] = set()
    for number, row in enumerate(log.rows):
        here = inside.around(row[SITE], row[MODULE])
        parents = log.operations[number].dependencies
        if (
            (row[FUNCTION] in unseen and row[NODE] is not None)
            or not behind.isdisjoint(parents)
            or any(inside.around(log.rows[parent][SITE], log.rows[parent][MODULE]) - here for parent in parents)
        ):
            behind.add(number)
            if row[FUNCTION] in calls:
                log.detail(number).is_through_unseen = True


def _is_unseen(function: TorchFunction) -> bool:
    return function.origin in (Origin.OPAQUE, Origin.SOURCE) or function.is_gradient


class _CustomFunctions:
    """The codes of `torch.autograd.Function.forward` that operations ran in."""

    def __init__(self, log: Log) -> None:
        self._log = log
        codes = (log.codes.code(number) for number in range(len(log.codes)))
        self._custom = frozenset(number for number, code in enumerate(codes) if _is_forward(code))
        self.around = cache(self._around)

    def _around(self, site: int, module: int) -> frozenset[int]:
        if not self._custom:
            return _NOWHERE
        found = self._custom.intersection(self._log.sites[site].codes) if site >= 0 else _NOWHERE
        call: ModuleCall | None = self._log.modules[module] if module >= 0 else None
        while call is not None:
            if call.site is not None:
                found |= self._custom.intersection(call.site.codes)
            call = call.outer
        return found


def _is_forward(code: CodeType | None) -> bool:
    return code is not None and is_of_custom_function(code, "forward")
