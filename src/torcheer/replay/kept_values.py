"""Values that a replay takes as they were kept, because the call that made them cannot be made again."""

from __future__ import annotations

import torch

from ..functions import groups
from ..records import OperationRecord, Origin

COLLECTIVE = "of a collective, which is not run again"  # the other processes would have to take part


def given_because(record: OperationRecord) -> str | None:
    """Why an operation's value is taken as it was kept, in words; None if the call can be made again."""
    function, details = record.function, record.details
    if record.origin is Origin.SOURCE:
        return "a constant"
    if function.is_collective or details.is_collective:
        return COLLECTIVE
    if record.origin is Origin.OPAQUE or (record.origin is Origin.OPERATION and function.func is None):
        return "computed in code torcheer cannot trace"
    if details.is_transformed or (function.func is torch.autograd.grad and _is_of_transform(record)):
        return "inside a torch.func transform"
    if details.is_through_unseen:
        return "a gradient through a torch.autograd.Function or other code whose backward is not in the log"
    if details.is_hooked:
        return "a gradient that backward hooks may have changed"
    if function.is_gradient:
        return "a gradient"
    if function.plain_name == "as_strided" and _reaches_out(record):
        return "memory beyond an input"
    if record.origin is Origin.ALIAS and not record.template:
        return "computed in code torcheer cannot trace"
    return None


def _reaches_out(record: OperationRecord) -> bool:
    """Whether `as_strided` may read the storage of an input outside of the input, which the log did not keep."""
    args, kwargs = record.args, record.kwargs
    offset = kwargs.get("storage_offset", args[3] if len(args) > 3 else None)
    if offset is None or not record.parents or record.parents[0] < 0:
        return False
    base = record.log.operations[record.parents[0]]
    while base.function.is_view and base.parents and base.parents[0] >= 0:
        base = base.log.operations[base.parents[0]]
    return base.origin is Origin.INPUT


def is_uninitialised(record: OperationRecord) -> bool:
    """Whether a tensor is uninitialised memory: the result of `torch.empty`, or a view of it."""
    while True:
        if record.function.is_uninitialised or _is_unused_seed(record):
            return True
        is_view = record.origin in (Origin.OUTPUT, Origin.ALIAS) or record.function.is_view
        if not is_view or record.details.also or not record.parents or record.parents[0] < 0:
            return False
        record = record.log.operations[record.parents[0]]


def _is_unused_seed(record: OperationRecord) -> bool:
    """Whether a tensor is the random seed of a fused attention kernel, which stays uninitialised without dropout."""
    return record.function.is_in(groups.ATTENTION) and record.dtype in (torch.int64, torch.uint64)


def _is_of_transform(record: OperationRecord) -> bool:
    """Whether an argument existed only inside a transform, as those of the function that `torch.func.vjp` returns."""
    return any(record.log.operations[parent].details.is_transformed for parent in record.parents if parent >= 0)
