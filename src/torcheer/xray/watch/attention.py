"""Attention patterns: which positions each position looks at, for each head, written out or inside a fused kernel.

Written out, the pattern is what softmax returns: `softmax(q @ k.T) @ v`. A fused kernel never makes it, so it is worked out
here from what the kernel was given: queries, keys, mask and scale, for the first sample of the batch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...functions import groups
from ...history import Operation

_FUSED = frozenset({"scaled_dot_product_attention"})
_SOFTMAX = frozenset({"softmax", "safe_softmax", "masked_softmax"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm", "addbmm"})
# What may stand between a product and its softmax, and between the softmax and the next product, besides views.
_BETWEEN = groups.BETWEEN_LAYERS | frozenset({"masked_fill", "where", "clamp", "nan_to_num", "tanh", "getitem"})
_REACH = 8  # operations looked through


def attentions(operations: Iterable[Operation]) -> list[Operation]:
    """The operations that make an attention pattern: fused kernels, and softmax between two products."""
    return [one for one in operations if _is_in(one, _FUSED) or _is_written_out(one)]


def pattern_of(operation: Operation) -> tuple[Callable[[], Tensor], list[str]]:
    """A function that gives the pattern, 1 × heads × queries × keys, and what must be said of it."""
    if _is_in(operation, _FUSED):
        given = inspect.signature(_arguments).bind(*operation.creation_args, **operation.creation_kwargs)
        query, mask, is_causal, scale, key = _arguments(*given.args, **given.kwargs)
        samples = math.prod(query.shape[:-3])
        first_query, first_key, first_mask = _first_sample(query), _first_sample(key), _first_sample(mask)
        said = [f"the first of {samples} samples"] if samples > 1 else []
        return lambda: _worked_out(first_query, first_key, first_mask, is_causal, scale), [
            *said,
            "worked out from queries and keys",
        ]
    tensor = operation.tensor_contents
    heads = tensor.shape[-3] if tensor.dim() > 3 else _heads(operation)
    shown = tensor.reshape(-1, heads, *tensor.shape[-2:])
    said = [f"the first of {shown.shape[0]} samples"] if shown.shape[0] > 1 else []
    return lambda: shown[:1], said


def _heads(operation: Operation) -> int:
    """How many of the patterns in a tensor of three dimensions are of one sample: what it is viewed as later may tell.

    `nn.MultiheadAttention` multiplies samples × heads at once, and returns them apart.
    """
    index, shape = operation._index, operation.tensor_shape
    following = [child for child in index.children.get(operation._number, ()) if child >= 0]
    for number in [*following, *(child for one in following for child in index.children.get(one, ()) if child >= 0)]:
        seen = Operation(index, number).tensor_shape
        if len(shape) == 3 and len(seen) == 4 and seen[2:] == shape[1:] and seen[0] * seen[1] == shape[0]:
            return int(seen[1])
    return math.prod(shape[:-2])


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor | None, bool, float, Tensor]:
    """The arguments of `F.scaled_dot_product_attention` that make the pattern."""
    return query, attn_mask, is_causal, scale if scale is not None else 1 / math.sqrt(query.shape[-1]), key


def _first_sample(given: Any) -> Any:
    """What belongs to the first sample: the last three dimensions, which are heads, positions and features."""
    if not isinstance(given, Tensor) or given.dim() <= 3:
        return given
    return given.reshape(-1, *given.shape[-3:])[0]


def _worked_out(query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float) -> Tensor:
    """The pattern a fused kernel makes inside, as its documentation defines it."""
    query, key = (one.float() if one.dim() == 3 else one.float().unsqueeze(0) for one in (query, key))
    if key.shape[0] not in (1, query.shape[0]):  # several heads of queries share one of keys
        key = key.repeat_interleave(query.shape[0] // key.shape[0], dim=0)
    scores = query @ key.transpose(-2, -1) * scale
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    return F.softmax(scores, dim=-1).unsqueeze(0)


def _is_written_out(operation: Operation) -> bool:
    """Whether it is the softmax of a product of two activations, and is itself multiplied by one."""
    if not _is_in(operation, _SOFTMAX) or len(operation.tensor_shape) < 2:
        return False
    index = operation._index
    return _meets_product(operation, index.parents) and _meets_product(operation, lambda at: index.children.get(at, ()))


def _meets_product(operation: Operation, following: Callable[[int], Iterable[int]]) -> bool:
    """Whether a product of two activations is reached, in one direction, through what does not mix positions."""
    index = operation._index
    waiting, seen = list(following(operation._number)), set[int]()
    for _ in range(_REACH):
        beyond: list[int] = []
        for number in waiting:
            if number in seen or number < 0:
                continue
            seen.add(number)
            one = Operation(index, number)
            if _is_in(one, _PRODUCTS) and not one.parent_params:
                return True
            if _is_in(one, _BETWEEN) or one._record.function.is_view:
                beyond += following(number)
        waiting = beyond
    return False


def _is_in(operation: Operation, group: frozenset[str]) -> bool:
    return operation._record.function.is_in(group)
