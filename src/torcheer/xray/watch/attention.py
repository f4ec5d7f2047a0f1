"""Attention patterns of a probe: which positions each position of the first sample looks at, for each head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ...history import Operation
from ...history.attention import arguments_of, heads_of, is_attention, pattern_from


def attentions(operations: Iterable[Operation]) -> list[Operation]:
    """The operations that make an attention pattern: fused kernels, and each softmax that values are weighed by."""
    return [one for one in operations if is_attention(one)]


def pattern_of(operation: Operation) -> tuple[Callable[[], Tensor], list[str]]:
    """A function that gives the pattern, 1 × heads × queries × keys, and what must be said of it.

    `F.scaled_dot_product_attention` is worked out when the function is called, from the queries and keys of the first sample.
    """
    if operation._record.function.plain_name == "scaled_dot_product_attention":
        given = arguments_of(operation)
        samples = math.prod(given["query"].shape[:-3])
        first = {name: _first_sample(value) for name, value in given.items()}
        return lambda: _of_one_sample(pattern_from(first)), [*_said(samples), "worked out from queries and keys"]
    heads = heads_of(operation)
    assert heads is not None  # it is one of `attentions`
    pattern = heads.pattern
    return lambda: pattern[:1], _said(pattern.shape[0])


def _said(samples: int) -> list[str]:
    return [f"the first of {samples} samples"] if samples > 1 else []


def _of_one_sample(pattern: Tensor) -> Tensor:
    """Heads without a batch, as in queries of three dimensions, are heads of one sample."""
    return pattern.float().reshape(1, -1, *pattern.shape[-2:])


def _first_sample(given: Any) -> Any:
    """The first sample of a tensor, as a batch of one: the last three dimensions are heads, positions and features."""
    if not isinstance(given, Tensor) or given.dim() <= 3:
        return given
    return given.reshape(-1, *given.shape[-3:])[:1]
