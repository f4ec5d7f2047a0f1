"""The heads of an operation that is attention, fused or written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...errors import InvalidArgument, LayerNotFound
from ...shapes import RaggedShape
from ...torch_internals import DisableTorchFunction
from .finding import is_written_out
from .fused import NESTED, READERS
from .heads import Attention, Heads
from .written_out import read_written_out

if TYPE_CHECKING:
    from ..operation import Operation


def is_attention(operation: Operation) -> bool:
    """Whether an operation is attention: a fused call, or a softmax that weighs values."""
    record = operation._record
    if is_fused(operation):
        return record.details.output_path in ((), (0,))  # the first of several results
    return is_written_out(operation)


def is_fused(operation: Operation) -> bool:
    """Whether attention ran as one call, whose pattern has to be computed."""
    return operation._record.function.plain_name in READERS


def attention_of(operation: Operation) -> Attention:
    """The attention that an operation is; raises where its tensors were not saved."""
    if isinstance(operation.tensor_shape, RaggedShape):
        raise InvalidArgument(NESTED)
    read = READERS.get(operation._record.function.plain_name, read_written_out)
    with torch.no_grad(), DisableTorchFunction():
        return read(operation)


def heads_of(operation: Operation) -> Heads | None:
    """The heads of an operation that is attention; None for any other."""
    return attention_of(operation).heads() if is_attention(operation) else None


def attention_in(operations: list[Operation], key: Any) -> Tensor | list[Tensor]:
    """The pattern of the attention among the operations that a key means; a list where there are several."""
    patterns = [attention_of(one).heads().pattern for one in operations if is_attention(one)]
    if not patterns:
        raise LayerNotFound(
            f"no attention ran in {key!r}: no fused call of torch, and no softmax that weighs values. "
            "history.filter(where=lambda one: one.heads) lists what there is."
        )
    return patterns[0] if len(patterns) == 1 else patterns
