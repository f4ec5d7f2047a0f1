"""Attention that ran as one call of torch: its pattern is computed from the arguments of the call.

Each reader takes the arguments from the log at once; the heads are computed from them when they are asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...errors import InvalidArgument
from ...torch_internals import seen_by
from .finding import head_count
from .heads import Attention, Heads, Part, with_heads

if TYPE_CHECKING:
    from ..operation import Operation

FROM_A_FILE = (
    "the pattern of flex_attention is computed by its functions score_mod and mask_mod, which no file can give back. Ask the "
    "history of the pass for it, before it is saved."
)
NESTED = "attention on a nested tensor has patterns of different sizes: log without padding to see them."


def _arguments(operation: Operation, names: tuple[str, ...]) -> dict[str, Any]:
    given = dict(zip(names, operation.creation_args, strict=False))
    return {**given, **operation.creation_kwargs}


def _scaled_dot_product(operation: Operation) -> Attention:
    given = _arguments(operation, ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"))
    count, dims = head_count(operation), given["query"].dim()
    q, k, v, outputs = (
        _with_heads(one, count) for one in (given["query"], given["key"], given["value"], operation.tensor_contents)
    )
    mask = given.get("attn_mask")
    if mask is not None and mask.dim() > 2 and dims != 4:
        mask = _with_heads(mask.expand(*given["query"].shape[:-1], mask.shape[-1]), count)

    def work_out(part: Part) -> Heads:
        scores = _scores(part.queries(q), part.samples(k), given.get("scale"))
        seen = part.mask(mask) if mask is not None else None
        if given.get("is_causal"):
            seen = part.mask(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril())
        if seen is not None and seen.dtype is torch.bool:
            scores = scores.masked_fill(~seen, -math.inf)
        elif seen is not None:
            scores = scores + seen
        pattern = _softmax(scores, q.dtype)
        return Heads(pattern, part.queries(q), part.samples(k), part.samples(v), part.queries(outputs))

    return Attention(_shape(q, k), work_out)


def _flex(operation: Operation) -> Attention:
    """`flex_attention`: one function changes each score, another one masks scores."""
    given = _arguments(operation, ("query", "key", "value", "score_mod", "block_mask", "scale"))
    q, k, v, outputs = given["query"], given["key"], given["value"], operation.tensor_contents
    mask_mod: Callable[..., Tensor] = given["block_mask"][-1]
    if not (callable(given["score_mod"]) and callable(mask_mod)):
        raise InvalidArgument(FROM_A_FILE)

    def work_out(part: Part) -> Heads:
        scores = _scores(part.queries(q), part.samples(k), given["scale"])
        steps = (1, 1, part.step, 1)
        ranges = [torch.arange(n, device=q.device) * step for n, step in zip(scores.shape, steps, strict=True)]
        places = [one.flatten() for one in torch.meshgrid(*ranges, indexing="ij")]
        with seen_by(_IndexByTensors()):
            changed = torch.func.vmap(given["score_mod"])(scores.flatten(), *places)
            seen = torch.func.vmap(mask_mod)(*places)
        scores = torch.where(seen, changed, -math.inf).view(scores.shape)
        return Heads(_softmax(scores, q.dtype), part.queries(q), part.samples(k), part.samples(v), part.queries(outputs))

    return Attention(_shape(q, k), work_out)


class _IndexByTensors(TorchFunctionMode):
    """Makes `table[i]` work inside `vmap` where `i` is a tensor, as functions given to `flex_attention` may write it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            table, index = args
            indices = list(index) if isinstance(index, tuple) else [index]
            if all(isinstance(one, Tensor) for one in indices):
                return torch.ops.aten.index(table, indices)
        return func(*args, **(kwargs or {}))


def _native(operation: Operation) -> Attention:
    """`nn.MultiheadAttention` on its fused path: the projections are inside."""
    names = ("query", "key", "value", "embed_dim", "num_head", "weight", "bias", "proj_weight", "proj_bias", "mask")
    given = _arguments(operation, (*names, "need_weights", "average_attn_weights", "mask_type"))
    return _projected(given["query"], given["num_head"], given)


def _encoder_layer(operation: Operation) -> Attention:
    """`nn.TransformerEncoderLayer` on its fused path: the whole layer is one call."""
    names = ("src", "embed_dim", "num_heads", "weight", "bias", "proj_weight", "proj_bias", "use_gelu", "norm_first", "eps")
    norms = ("norm_weight_1", "norm_bias_1", "norm_weight_2", "norm_bias_2")
    given = _arguments(operation, (*names, *norms, "w1", "b1", "w2", "b2", "mask", "mask_type"))
    x = given["src"]
    if given["norm_first"]:
        x = F.layer_norm(x, x.shape[-1:], given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    return _projected(x, given["num_heads"], given)


def _projected(x: Tensor, count: int, given: dict[str, Any]) -> Attention:
    if x.is_nested:
        raise InvalidArgument(NESTED)
    mask = given.get("mask")
    if mask is not None:
        mask = mask if mask.dtype is torch.bool else mask != 0
        mask = mask[:, None, None] if given.get("mask_type") == 1 else mask

    def work_out(part: Part) -> Heads:
        some = part.samples(x)
        batch, length, size = some.shape
        mixed = F.linear(some, given["weight"], given["bias"])
        q, k, v = mixed.view(batch, length, 3, count, size // count).permute(2, 0, 3, 1, 4)
        q = q[..., :: part.step, :]
        scores = _scores(q, k, None)
        if mask is not None:
            scores = scores.masked_fill(part.mask(mask), -math.inf)
        pattern = _softmax(scores, x.dtype)
        return Heads(pattern, q, k, v, pattern @ v)

    return Attention((x.shape[0], count, x.shape[1], x.shape[1]), work_out)


def _shape(q: Tensor, k: Tensor) -> tuple[int, int, int, int]:
    return q.shape[0], q.shape[1], q.shape[2], k.shape[2]


def _scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """The score of each query for each key, in float32 at least. Queries may share heads of keys."""
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) @ k.to(dtype).mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))


def _softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The pattern. All weights of a query that is masked from every key are zero, as in torch."""
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0).to(dtype)


def _with_heads(value: Tensor, count: int) -> Tensor:
    """A tensor as (batch, heads, length, size); of one head where it cannot have `count`."""
    found = with_heads(value, count)
    return value[:, None] if found is None else found


READERS: dict[str, Callable[[Operation], Attention]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "flex_attention": _flex,
    "native_multi_head_attention": _native,
    "transformer_encoder_layer_fwd": _encoder_layer,
}
