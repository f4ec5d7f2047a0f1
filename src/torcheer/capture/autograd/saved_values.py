"""What autograd saved for a backward pass that runs later, kept where the memory it lies in is restored before.

An example: `relu_(x)` writes to the user's input, and `linear(x)` saves it for the gradient of its weight. The log ends,
and `x` gets its old values back. Without a copy, the gradient would be that of the old values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from ...torch_internals import copy_saved
from ..identity.tensor_table import storages_of


def keep_saved(outputs: Iterable[Tensor], restored: set[int]) -> None:
    """Copy what the graph behind the outputs saved in storages that are about to be restored.

    Must run where torch functions are not watched.
    """
    waiting: list[Any] = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        copy_saved(node, lambda tensor: not restored.isdisjoint(storages_of(tensor)))
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
