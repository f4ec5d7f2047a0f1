"""Attention patterns: which positions each position looks at, for each head, of the first sample of the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from ...history import Operation
from ...history.attention import Part, attention_of, is_attention, is_fused


def attentions(operations: Iterable[Operation]) -> list[Operation]:
    """The operations that make an attention pattern: fused kernels, and softmax between two products."""
    return [one for one in operations if is_attention(one)]


def pattern_of(operation: Operation) -> tuple[Callable[[], Tensor], list[str]]:
    """A function that gives the pattern, 1 × heads × queries × keys, and what must be said of it."""
    found = attention_of(operation)
    samples = found.shape[0]
    said = [f"the first of {samples} samples"] if samples > 1 else []
    return lambda: found.heads(Part(is_first_only=True)).pattern, [
        *said,
        *(["worked out from queries and keys"] if is_fused(operation) else []),
    ]
