"""Attention in a log: queries, keys, values and patterns of each head, also where attention ran as one fused call.

A fused call does not return its pattern, so it is worked out from what the call was given: queries, keys, mask, scale and
grouping of heads. Where attention is written out, the pattern is what its softmax returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InvalidArgument, LayerNotFound
from ..torch_internals import DisableTorchFunction, index_by_tensors

if TYPE_CHECKING:
    from .operation import Operation

_SOFTMAX = frozenset({"softmax", "_softmax", "_safe_softmax", "_masked_softmax"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "__matmul__"})
_BETWEEN = frozenset(
    {"dropout", "to", "type_as", "float", "type", "half", "contiguous", "nan_to_num", "masked_fill", "add", "div"}
)
_SCORES = _BETWEEN | {"mul", "sub", "where", "clamp", "clamp_min", "max", "maximum", "tanh", "view", "reshape", "masked_fill_"}


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """Queries, keys, values and outputs of attention, each (batch, heads, length, size), and the pattern that weighs values.

    Where queries share heads of keys and values, those have fewer heads. What cannot be told is None.
    """

    pattern: Tensor  # (batch, heads, queries, keys)
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    outputs: Tensor | None = None

    def __repr__(self) -> str:
        named = {name: getattr(self, name) for name in ("pattern", "queries", "keys", "values", "outputs")}
        return f"Heads({', '.join(f'{name} {tuple(value.shape)}' for name, value in named.items() if value is not None)})"


def heads_of(operation: Operation) -> Heads | None:
    """The heads of an operation that is attention; None for any other."""
    read = _READERS.get(_name(operation))
    if read is None:
        return None
    with torch.no_grad(), DisableTorchFunction():
        return read(operation)


def attention_in(operations: list[Operation], key: Any) -> Tensor | list[Tensor]:
    """The pattern of the only attention among operations that a key means, or a list of those of several."""
    patterns = [heads.pattern for one in operations if is_attention(one) and (heads := one.heads) is not None]
    if not patterns:
        raise LayerNotFound(
            f"no attention ran in {key!r}: no fused call of torch, and no softmax that values are weighed by. "
            "history.filter(where=lambda one: one.heads) lists what there is."
        )
    return patterns[0] if len(patterns) == 1 else patterns


def _name(operation: Operation) -> str:
    return operation._record.function.plain_name.strip("_")


def is_attention(operation: Operation) -> bool:
    """Whether an operation is attention: a fused call, or a softmax that values are weighed by."""
    name = _name(operation)
    if name in _SOFTMAX:
        return operation.tensor_shape is not None and len(operation.tensor_shape) in (3, 4) and _weighing(operation) is not None
    return name in _READERS and operation._record.details.output_path in ((), (0,))  # the first of several results


# Fused calls ------------------------------------------------------------------------------------------------------------


def arguments_of(operation: Operation) -> dict[str, Any]:
    """The arguments of a call of `F.scaled_dot_product_attention`, by name."""
    return _arguments(operation, ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"))


def pattern_from(given: dict[str, Any]) -> Tensor:
    """The pattern that `F.scaled_dot_product_attention` has inside when it is called with these arguments."""
    q, mask = _with_heads(given["query"]), given.get("attn_mask")
    scores = _scores(q, _with_heads(given["key"]), given.get("scale"))
    if given.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None and mask.dtype is torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    return _softmax(scores, q.dtype)


def _arguments(operation: Operation, names: tuple[str, ...]) -> dict[str, Any]:
    given = dict(zip(names, operation.creation_args, strict=False))
    return {**given, **operation.creation_kwargs}


def _scaled_dot_product(operation: Operation) -> Heads:
    given = arguments_of(operation)
    q, k, v = (_with_heads(given[name]) for name in ("query", "key", "value"))
    return Heads(pattern_from(given), q, k, v, _with_heads(operation.tensor_contents))


def _flex(operation: Operation) -> Heads:
    """`flex_attention`: a function changes each score, another one says which are seen."""
    given = _arguments(operation, ("query", "key", "value", "score_mod", "block_mask", "scale"))
    q, k, v = given["query"], given["key"], given["value"]
    scores = _scores(q, k, given["scale"])
    places = [one.flatten() for one in torch.meshgrid(*[torch.arange(n, device=q.device) for n in scores.shape], indexing="ij")]
    mask_mod: Callable[..., Tensor] = given["block_mask"][-1]
    with index_by_tensors():
        changed = torch.func.vmap(given["score_mod"])(scores.flatten(), *places)
        seen = torch.func.vmap(mask_mod)(*places)
    scores = torch.where(seen, changed, -math.inf).view(scores.shape)
    return Heads(_softmax(scores, q.dtype), q, k, v, operation.tensor_contents)


def _native(operation: Operation) -> Heads:
    """`nn.MultiheadAttention` on its fused path: the projections are inside."""
    names = ("query", "key", "value", "embed_dim", "num_head", "weight", "bias", "proj_weight", "proj_bias", "mask")
    given = _arguments(operation, (*names, "need_weights", "average_attn_weights", "mask_type"))
    return _projected(given["query"], given["num_head"], given["weight"], given["bias"], given)


def _encoder_layer(operation: Operation) -> Heads:
    """`nn.TransformerEncoderLayer` on its fused path: the whole layer is one call."""
    names = ("src", "embed_dim", "num_heads", "weight", "bias", "proj_weight", "proj_bias", "use_gelu", "norm_first", "eps")
    more = (
        *(f"{kind}_{n}" for n in (1, 2) for kind in ("norm_weight", "norm_bias")),
        "w1",
        "b1",
        "w2",
        "b2",
        "mask",
        "mask_type",
    )
    given = _arguments(operation, (*names, *more))
    x = given["src"]
    if given["norm_first"]:
        x = F.layer_norm(x, x.shape[-1:], given["norm_weight_1"], given["norm_bias_1"], given["eps"])
    return _projected(x, given["num_heads"], given["weight"], given["bias"], given)


def _projected(x: Tensor, count: int, weight: Tensor, bias: Tensor, given: dict[str, Any]) -> Heads:
    if x.is_nested:
        raise InvalidArgument("attention on a nested tensor has patterns of different sizes: log without padding to see them.")
    batch, length, size = x.shape
    q, k, v = F.linear(x, weight, bias).view(batch, length, 3, count, size // count).permute(2, 0, 3, 1, 4)
    scores, mask = _scores(q, k, None), given.get("mask")
    if mask is not None:
        hidden = mask if mask.dtype is torch.bool else mask != 0
        scores = scores.masked_fill(hidden[:, None, None] if given.get("mask_type") == 1 else hidden, -math.inf)
    pattern = _softmax(scores, x.dtype)
    return Heads(pattern, q, k, v, pattern @ v)


def _scores(q: Tensor, k: Tensor, scale: float | None) -> Tensor:
    """How much each query looks at each key, in single precision at least. Queries may share heads of keys."""
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) @ k.to(dtype).mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))


def _softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The pattern. A query that sees nothing looks at nothing, as in torch."""
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0).to(dtype)


def _with_heads(value: Tensor) -> Tensor:
    """(batch, heads, length, size) of a tensor that may have no heads, nor a batch."""
    return value if value.dim() >= 4 else value[(None,) * (3 - value.dim())][:, None]


# Attention that is written out ------------------------------------------------------------------------------------------


def _written_out(operation: Operation) -> Heads | None:
    """A softmax that values are weighed by."""
    weighing = _weighing(operation)
    if weighing is None:
        return None
    pattern = operation.tensor_contents
    if pattern.dim() == 4:
        scoring = _upstream(operation)
        q, k = _factors(scoring, pattern.shape, transposed=True) if scoring is not None else (None, None)
        _, v = _factors(weighing, weighing.tensor_shape or ())
        outputs = weighing.tensor_contents if len(weighing.tensor_shape or ()) == 4 else None
        return Heads(pattern, q, k, v, outputs)
    return Heads(pattern.view(_split_shape(operation)))


def _split_shape(operation: Operation) -> tuple[int, ...]:
    """The shape with heads of a pattern whose heads and batch are one dimension: that of a view of it; else with one head."""
    shape = operation.tensor_shape or ()
    for child in _children(operation, _BETWEEN | {"view", "reshape"}):
        found = child.tensor_shape or ()
        if len(found) == 4 and found[2:] == shape[1:] and found[0] * found[1] == shape[0]:
            return found
    return (shape[0], 1, *shape[1:])


def _weighing(operation: Operation) -> Operation | None:
    """The product in which a pattern weighs values."""
    found = _children(operation, _BETWEEN)
    return next((one for one in found if _name(one) in _PRODUCTS), None)


def _children(operation: Operation, through: frozenset[str] | set[str]) -> list[Operation]:
    """What follows an operation: its children, and the children of those that are certain functions."""
    index, seen = operation._index, [operation]
    for one in seen:
        for number in index.children.get(one._number, ()):
            child = type(operation)(index, number)
            if child not in seen and (one is operation or _name(one) in through):
                seen.append(child)
    return seen[1:]


def _upstream(operation: Operation) -> Operation | None:
    """The product that a softmax got its scores from."""
    index, number = operation._index, operation._number
    for _ in range(12):
        parents = [parent for parent in index.record(number).parents if parent >= 0]
        if not parents:
            return None
        number = parents[0]
        one = type(operation)(index, number)
        name = _name(one)
        if name in _PRODUCTS:
            return one
        if name not in _SCORES:
            return None
    return None


def _factors(product: Operation, shape: tuple[int, ...], *, transposed: bool = False) -> tuple[Tensor | None, Tensor | None]:
    """The two factors of a product, if their shapes tell that they have heads."""
    tensors = [one for one in product.creation_args if isinstance(one, Tensor)]
    if len(tensors) != 2 or any(one.dim() != 4 for one in tensors) or len(shape) != 4:
        return None, None
    first, second = tensors
    return first, second.mT if transposed else second


_READERS: dict[str, Callable[[Operation], Heads | None]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "flex_attention": _flex,
    "native_multi_head_attention": _native,
    "transformer_encoder_layer_fwd": _encoder_layer,
    **dict.fromkeys(_SOFTMAX, _written_out),
}
