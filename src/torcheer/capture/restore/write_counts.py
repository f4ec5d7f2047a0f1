"""How often torch counted a write to a tensor (`write_count`).

A write that was taken back must not count: earlier histories, and graphs of autograd that saved the tensor, compare the count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ...cleaning import cleaning
from ...containers import Arguments, find_tensors
from ...tensor_memory import has_memory
from ...torch_internals import DisableTorchFunction, count_writes_as, own_buffers, own_parameters
from ..addresses import roots_of
from ..keep.keeper import version_of


def restore_count(tensor: Tensor, count: int) -> None:
    """Make torch count as many writes as before, if it counted (`version_of`). Not of a tensor whose memory is gone."""
    if count >= 0 and version_of(tensor) != count and has_memory(tensor):
        count_writes_as(tensor, count)


@cleaning
def counts_as_found(model: Callable[..., Any], arguments: Arguments) -> Iterator[None]:
    """Inside, passes may run that restore the values of all parameters, buffers and inputs; afterwards no write counts."""
    with DisableTorchFunction():
        modules = [module for root, _ in roots_of(model) for module in root.modules()]
        tensors = [tensor for _, tensor in find_tensors(arguments)]
        for module in modules:
            tensors += [
                one for group in (own_parameters(module), own_buffers(module)) for one in group.values() if one is not None
            ]
        counts = [(tensor, version_of(tensor)) for tensor in tensors]
    yield
    with DisableTorchFunction():
        for tensor, count in counts:
            restore_count(tensor, count)
