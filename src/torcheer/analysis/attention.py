"""Finds attention in a log: queries, keys, values and the pattern (the weights) of each head, fused or written out.

Written-out attention is `softmax(q @ k.mT) @ v`; its pattern is the result of the softmax. A fused call does not return its
pattern, so the pattern is computed from the call's arguments (`READERS`). `heads_of` and `attention_in` accept both kinds.
`head_axis` finds which elements of other values, such as projections, belong to which head.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._cleanup import pass_interrupts_on
from .._torch.containers import get_path
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction, seen_by
from .._torch.shapes import RaggedShape
from ..changes import HeadAxis
from ..errors import InvalidArgument, LayerNotFound, TorcheerError
from ..log.operation import OperationFacts, children_of, index_of, parents_of, record_of
from ..log.templates import fill_call

# Finds attention that is written out, `softmax(q @ k.mT) @ v`, and its number of heads if batch and heads share a
# dimension.

# Fused functions whose queries, keys and values are already split into heads.
CALLS_WITH_HEADS = frozenset({"scaled_dot_product_attention", "flex_attention"})
_SOFTMAX = frozenset({"softmax", "safe_softmax", "masked_softmax"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm", "addbmm"})
# Functions, besides views, that may be between a product and its softmax, and between the softmax and the next product.
_BETWEEN = groups.BETWEEN_LAYERS | frozenset(
    {"masked_fill", "where", "clamp", "nan_to_num", "tanh", "getitem", "maximum", "max"}
)
_REACH_TO_PRODUCT = 8  # a product is found if at most this many operations are between it and the softmax
_Neighbours = Callable[[OperationFacts], list[OperationFacts]]


def is_written_out(operation: OperationFacts) -> bool:
    """True if an operation is the softmax of a product of two activations, and its result is multiplied with an activation."""
    if not record_of(operation).function.is_in(_SOFTMAX) or len(operation.tensor_shape or ()) < 2:
        return False
    return scoring(operation) is not None and weighing(operation) is not None


def scoring(operation: OperationFacts) -> OperationFacts | None:
    """The matrix product that computed the scores of a softmax."""
    return next((one for one in _around(operation, parents_of) if is_product(one)), None)


def weighing(operation: OperationFacts) -> OperationFacts | None:
    """The matrix product of a pattern with the values."""
    return next((one for one in _around(operation, children_of) if is_product(one)), None)


def is_product(operation: OperationFacts) -> bool:
    """True for a matrix product of two activations, without parameters."""
    return record_of(operation).function.is_in(_PRODUCTS) and not operation.parent_params


def einsum_terms(equation: str) -> list[str] | None:
    """The terms of an einsum equation of two operands, the result last: `bhqd,bhkd->bhqk`; None for other equations."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = [*left.split(","), out]
    return terms if arrow and len(terms) == 3 and "." not in equation else None


def is_rearranging(operation: OperationFacts) -> bool:
    """True for operations that only move elements: views, reshapes, copies."""
    function = record_of(operation).function
    return function.is_view or function.is_in(groups.RESHAPES) or function.is_in(groups.COPIES)


def _around(
    operation: OperationFacts, following: _Neighbours, goes_through: Callable[[OperationFacts], bool] | None = None
) -> list[OperationFacts]:
    """The operations before or after an operation, nearest first. Stops after an operation that computes new elements."""
    found: dict[OperationFacts, None] = {}
    waiting = following(operation)
    for _ in range(_REACH_TO_PRODUCT):
        new = [one for one in dict.fromkeys(waiting) if one not in found]
        found.update(dict.fromkeys(new))
        waiting = [beyond for one in new if (goes_through or _leaves_positions)(one) for beyond in following(one)]
    return list(found)


def _leaves_positions(operation: OperationFacts) -> bool:
    return record_of(operation).function.is_in(_BETWEEN) or is_rearranging(operation)


# How many heads ---------------------------------------------------------------------------------------------------------


def head_count(operation: OperationFacts) -> int:
    """The number of heads of attention, even if batch and heads are one dimension, (batch × heads, queries, keys).

    In that case the number is read from shapes of views before and after: (batch, heads, …), or all heads side by side in the
    last dimension. 1 if there is no such view.
    """
    is_softmax = record_of(operation).function.is_in(_SOFTMAX)
    shape = operation.tensor_shape or ()
    if len(shape) == 4:
        return int(shape[1])
    if len(shape) != 3:
        return 1
    for one in [*_around(operation, children_of), *_around(operation, parents_of)] if is_softmax else []:
        seen = one.tensor_shape or ()
        if len(seen) == 4 and seen[2:] == shape[1:] and seen[0] * seen[1] == shape[0]:
            return int(seen[1])
    made, scored = (weighing(operation), scoring(operation)) if is_softmax else (operation, operation)
    return (made is not None and _count_after(made)) or (scored is not None and _count_before(scored)) or 1


def _count_after(made: OperationFacts) -> int:
    """Count the heads that a view merges after attention. 0 if no view merges heads."""
    after = _around(made, children_of, is_rearranging)
    return next((count for one in after if is_rearranging(one) and (count := _merged(made, one))), 0)


def _count_before(product: OperationFacts) -> int:
    """Count the heads into which a view split the factors of a product. 0 if no view split them."""
    for factor in parents_of(product):
        for one in [factor, *_around(factor, parents_of, is_rearranging)]:
            count = _merged(factor, one)
            if count:
                return count
    return 0


def _merged(apart: OperationFacts, other: OperationFacts) -> int:
    """The number of heads of a tensor (batch × heads, length, size), from a view's shape; 0 if the shape does not show it."""
    shape, seen = apart.tensor_shape or (), other.tensor_shape or ()
    if len(shape) != 3 or not seen or not shape[0]:
        return 0
    if len(seen) == 4 and seen[0] * seen[1] == shape[0] and set(seen[2:]) == set(shape[1:]):
        return int(seen[1])
    size = shape[-1]
    if len(seen) == 2 and seen[0] == shape[0]:  # `flatten(1)` puts positions side by side, not heads
        return 0
    if len(seen) in (2, 3) and size and seen[-1] > size and seen[-1] % size == 0:
        count = int(seen[-1]) // size
        return count if shape[0] % count == 0 and math.prod(seen) == math.prod(shape) else 0
    return 0


# The heads of attention, and which part of them is computed.


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The pattern of attention, and its queries, keys, values and outputs, each (batch, heads, length, size).

    In grouped-query attention, keys and values have fewer heads. Tensors that the log does not have are None.
    """

    pattern: Tensor  # (batch, heads, queries, keys)
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    outputs: Tensor | None = None

    def __repr__(self) -> str:
        named = {name: getattr(self, name) for name in ("pattern", "queries", "keys", "values", "outputs")}
        return f"Heads({', '.join(f'{name} {tuple(value.shape)}' for name, value in named.items() if value is not None)})"


@dataclass(frozen=True, slots=True)
class AttentionPart:
    """The part of attention to compute: everything, or only the first sample of the batch, or only every n-th query."""

    is_first_only: bool = False
    step: int = 1  # distance between the queries that are computed

    def samples(self, value: Tensor) -> Tensor:
        """The part of a tensor whose first dimension is the batch."""
        return value[:1] if self.is_first_only else value

    def queries(self, value: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, queries, size) that belongs to the chosen samples and queries."""
        return self.samples(value)[..., :: self.step, :]

    def mask(self, mask: Tensor) -> Tensor:
        """The part of a mask that broadcasts to (batch, heads, queries, keys)."""
        if mask.dim() == 4:
            mask = self.samples(mask)
        return mask[..., :: self.step, :] if mask.dim() > 1 else mask


WHOLE = AttentionPart()


@contextlib.contextmanager
def _what_does_not_fit() -> Iterator[None]:
    """Raise `InvalidArgument` if arguments do not fit attention: a saved history's file may contain anything."""
    try:
        yield
    except (TorcheerError, torch.cuda.OutOfMemoryError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        pass_interrupts_on(error)
        raise InvalidArgument(f"attention cannot be worked out from what is logged: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a log. Keeps the arguments of its calls; `heads()` computes queries, keys, values and pattern."""

    shape: tuple[int, int, int, int]  # shape of the pattern: samples, heads, queries, keys
    work_out: Callable[[AttentionPart], Heads]

    def heads(self, part: AttentionPart = WHOLE) -> Heads:
        """Compute the heads, or a part of them."""
        with torch.no_grad(), DisableTorchFunction(), _what_does_not_fit():
            return self.work_out(part)


def with_heads(value: Tensor, count: int) -> Tensor | None:
    """View a tensor as (batch, heads, length, size).

    It may have no batch dimension, several, or batch and `count` heads in one dimension. None if that dimension is no
    multiple of `count`.
    """
    if value.dim() < 3:
        return value[(None,) * (4 - value.dim())]
    if value.dim() > 3:
        return value.flatten(0, -4)
    return value.view(-1, count, *value.shape[1:]) if value.shape[0] % count == 0 else None


# Written-out attention: queries, keys and values are the factors of the matrix products around the softmax.


def read_written_out(operation: OperationFacts) -> Attention:
    """The attention whose pattern is the result of this softmax."""
    scored, weighed = scoring(operation), weighing(operation)
    assert scored is not None
    assert weighed is not None
    count = head_count(operation)
    pattern = with_heads(operation.tensor_contents, count)
    assert pattern is not None
    q, k, _ = _factors(scored, count, is_scoring=True)
    _, v, outputs = _factors(weighed, count, is_scoring=False)

    def work_out(part: AttentionPart) -> Heads:
        queries, made = (None if one is None else part.queries(one) for one in (q, outputs))
        keys, values = (None if one is None else part.samples(one) for one in (k, v))
        return Heads(part.queries(pattern), queries, keys, values, made)

    samples, heads, length, keys = pattern.shape
    return Attention((samples, heads, length, keys), work_out)


def _factors(product: OperationFacts, count: int, *, is_scoring: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The two factors of a product and its result, each (batch, heads, length, size); None for unsuitable shapes.

    With `is_scoring`, the second factor is the transposed keys; it is transposed back.
    """
    given = [one for one in (*product.creation_args, *product.creation_kwargs.values()) if isinstance(one, Tensor)]
    equation = next((one for one in product.creation_args if isinstance(one, str)), None)
    if equation is not None:
        return _of_einsum(equation, product, is_scoring=is_scoring)
    if len(given) < 2:
        return None, None, None
    # the first argument of `baddbmm` is added, so it is no factor
    first, second = (with_heads(one, count) for one in given[-2:])
    if second is not None and is_scoring:
        second = second.mT
    return first, second, with_heads(product.tensor_contents, count)


def _of_einsum(
    equation: str, product: OperationFacts, *, is_scoring: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """`_factors` for an einsum: dimensions are identified by the letters of the equation, as in `bqhd,bkhd->bhqk`."""
    tensors = [one for one in _flat(product.creation_args) if isinstance(one, Tensor)]
    *terms, out = einsum_terms(equation) or [""]
    if len(tensors) != 2 or len(out) != 4 or any(len(set(term)) != len(term) for term in (*terms, out)):
        return None, None, None
    summed = next((letter for letter in terms[0] if letter in terms[1] and letter not in out), "")
    if is_scoring:
        batch, head, query, key = list(out)
        size = summed
        orders = (batch + head + query + size, batch + head + key + size, out)
        pairs = sorted(zip(terms, tensors, strict=True), key=lambda pair: key in pair[0])  # the factor with queries comes first
    else:
        key = summed
        pairs = sorted(zip(terms, tensors, strict=True), key=lambda pair: len(set(out) - set(pair[0])) > 1)
        pattern = pairs[0][0]
        size = next((letter for letter in pairs[1][0] if letter not in pattern), "")
        batch, head, query = ([letter for letter in pattern if letter != key] + [""] * 3)[:3]
        orders = (pattern, batch + head + key + size, batch + head + query + size)
    made = [_ordered(tensor, term, order) for (term, tensor), order in zip(pairs, orders, strict=False)]
    return made[0], made[1], _ordered(product.tensor_contents, out, orders[2])


def _ordered(tensor: Tensor, letters: str, order: str) -> Tensor | None:
    """Permute a tensor's dimensions from `letters` to `order`; missing dimensions get size 1."""
    if len(order) != 4 or not set(letters) <= set(order):
        return None
    here = [letter for letter in order if letter in letters]
    moved = tensor.permute([letters.index(letter) for letter in here])
    for dim, letter in enumerate(order):
        if letter not in letters:
            moved = moved.unsqueeze(dim)
    return moved


def _flat(values: Any) -> list[Any]:
    return [inner for one in values for inner in (one if isinstance(one, (list, tuple)) else [one])]


# Fused attention: the pattern is computed from the arguments of the call.
#
# Each reader takes the arguments from the log immediately, but computes heads only when `Attention.heads` is called.

FROM_A_FILE = (
    "the pattern of flex_attention is computed by its functions score_mod and mask_mod, which no file can give back. Ask the "
    "history of the pass for it, before it is saved."
)
NESTED = "attention on a nested tensor has patterns of different sizes: log without padding to see them."


def _arguments(operation: OperationFacts, names: tuple[str, ...]) -> dict[str, Any]:
    given = dict(zip(names, operation.creation_args, strict=False))
    return {**given, **operation.creation_kwargs}


def _scaled_dot_product(operation: OperationFacts) -> Attention:
    given = _arguments(operation, ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"))
    count, dims = head_count(operation), given["query"].dim()
    q, k, v, outputs = (
        _with_heads(one, count) for one in (given["query"], given["key"], given["value"], operation.tensor_contents)
    )
    mask = given.get("attn_mask")
    if mask is not None and mask.dim() > 2 and dims != 4:
        mask = _with_heads(mask.expand(*given["query"].shape[:-1], mask.shape[-1]), count)

    def work_out(part: AttentionPart) -> Heads:
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


def _flex(operation: OperationFacts) -> Attention:
    """Read a call of `flex_attention`: the user's `score_mod` changes scores, `mask_mod` masks scores."""
    given = _arguments(operation, ("query", "key", "value", "score_mod", "block_mask", "scale"))
    q, k, v, outputs = given["query"], given["key"], given["value"], operation.tensor_contents
    mask_mod: Callable[..., Tensor] = given["block_mask"][-1]
    if not (callable(given["score_mod"]) and callable(mask_mod)):
        raise InvalidArgument(FROM_A_FILE)

    def work_out(part: AttentionPart) -> Heads:
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
    """Makes `table[i]` with a tensor `i` work inside `vmap`, as users of `flex_attention` write it in `score_mod`."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__:
            table, index = args
            indices = list(index) if isinstance(index, tuple) else [index]
            if all(isinstance(one, Tensor) for one in indices):
                return torch.ops.aten.index(table, indices)
        return func(*args, **(kwargs or {}))


def _native(operation: OperationFacts) -> Attention:
    """`nn.MultiheadAttention` on its fused path: the call includes the projections."""
    names = ("query", "key", "value", "embed_dim", "num_head", "weight", "bias", "proj_weight", "proj_bias", "mask")
    given = _arguments(operation, (*names, "need_weights", "average_attn_weights", "mask_type"))
    return _projected(given["query"], given["num_head"], given)


def _encoder_layer(operation: OperationFacts) -> Attention:
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

    def work_out(part: AttentionPart) -> Heads:
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
    """The score of each query for each key, in float32 or wider. Repeats keys for grouped-query attention."""
    if k.shape[-3] != q.shape[-3]:
        k = k.repeat_interleave(q.shape[-3] // k.shape[-3], -3)
    dtype = torch.promote_types(q.dtype, torch.float32)
    return q.to(dtype) @ k.to(dtype).mT * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))


def _softmax(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax of scores. As in torch, a query that may attend to no key gets only zeros."""
    blind = (scores == -math.inf).all(-1, keepdim=True)
    return scores.softmax(-1).masked_fill(blind, 0).to(dtype)


def _with_heads(value: Tensor, count: int) -> Tensor:
    """View a tensor as (batch, heads, length, size); with one head if it cannot be split into `count`."""
    found = with_heads(value, count)
    return value[:, None] if found is None else found


READERS: dict[str, Callable[[OperationFacts], Attention]] = {
    "scaled_dot_product_attention": _scaled_dot_product,
    "flex_attention": _flex,
    "native_multi_head_attention": _native,
    "transformer_encoder_layer_fwd": _encoder_layer,
}


# The heads of an operation that is attention, fused or written out.


def is_attention(operation: OperationFacts) -> bool:
    """True if an operation is attention: a fused call, or the softmax of written-out attention."""
    record = record_of(operation)
    if is_fused(operation):
        # if the call made several results, only its first result counts as the attention
        return record.details.output_path in ((), (0,))
    return is_written_out(operation)


def is_fused(operation: OperationFacts) -> bool:
    """True for fused attention, whose pattern has to be computed."""
    return record_of(operation).function.plain_name in READERS


def attention_of(operation: OperationFacts) -> Attention:
    """The attention of an operation for which `is_attention` is true. Raises if its tensors were not saved."""
    if isinstance(operation.tensor_shape, RaggedShape):
        raise InvalidArgument(NESTED)
    read = READERS.get(record_of(operation).function.plain_name, read_written_out)
    with torch.no_grad(), DisableTorchFunction(), _what_does_not_fit():
        return read(operation)


def heads_of(operation: OperationFacts) -> Heads | None:
    """The heads of an operation that is attention; None for any other operation."""
    return attention_of(operation).heads() if is_attention(operation) else None


def attention_in(operations: list[OperationFacts], key: Any) -> Tensor | list[Tensor]:
    """The attention pattern among these operations, which `key` means; a list if several are attention."""
    patterns = [attention_of(one).heads().pattern for one in operations if is_attention(one)]
    if not patterns:
        raise LayerNotFound(
            f"no attention ran in {key!r}: no fused call of torch, and no softmax that weighs values. "
            "history.filter(where=lambda one: one.heads) lists what there is."
        )
    return patterns[0] if len(patterns) == 1 else patterns


# Finds which elements of a value belong to which attention head.
#
# A projection of queries is (batch, length, heads × size), and its shape does not say which elements are head 3. So the
# elements are numbered, and the logged operations (`view`, `transpose`, `chunk`) run on the numbers until these arrive at
# the queries of attention, which have a dimension for heads. For values after attention, head numbers run from attention's
# output to the value.

_SAME_PLACE = groups.CONVERSIONS | groups.NORMALISATIONS | groups.DROPOUTS | frozenset({"add", "sub", "mul", "div"})
_PUTS_TOGETHER = frozenset({"cat", "stack", "repeat", "repeat_interleave", "tile"})
_REACH = 16  # heads are found if at most this many operations are between the value and attention
_MOST = 1 << 26  # values with more elements are not numbered, so their heads stay unknown
_NONE = torch.iinfo(torch.int64).max  # the head number of elements that belong to no head


def head_axis(operation: OperationFacts) -> HeadAxis | None:
    """The dimension of a value along which attention heads lie, and the head at each position; None if unknown."""
    with torch.no_grad(), DisableTorchFunction():
        found = _heads_of_elements(operation)
        return None if found is None else _axis(found)


def _axis(heads: Tensor) -> HeadAxis | None:
    """The only dimension along which elements belong to different heads."""
    varying = [dim for dim, size in enumerate(heads.shape) if size > 1 and bool((heads != heads.narrow(dim, 0, 1)).any())]
    if len(varying) > 1 or not heads.dim():
        return None
    dim = varying[0] if varying else min(1, heads.dim() - 1)
    line = heads.movedim(dim, -1).reshape(-1, heads.shape[dim])[0]
    known = sorted(
        set(line.tolist()) - {_NONE}
    )  # numbers the heads that occur from 0: shared heads of keys have their own numbers
    return HeadAxis(dim, tuple(known.index(head) if head != _NONE else -1 for head in line.tolist()), heads.dim())


def _heads_of_elements(operation: OperationFacts) -> Tensor | None:
    """The head that each element of a value belongs to."""
    layouts, shape = _layouts(operation), operation.tensor_shape
    if shape is None or math.prod(shape) > _MOST:
        return None
    if operation._number in layouts:
        return layouts[operation._number].expand(shape)
    after = _from_what_follows(operation, layouts)
    return after if after is not None else _from_what_was_before(operation, layouts, _REACH)


# Values next to attention -----------------------------------------------------------------------------------------------


def _layouts(operation: OperationFacts) -> dict[int, Tensor]:
    """Maps each operation that attention reads or makes to its elements' heads, as a tensor that broadcasts to its shape."""
    index = index_of(operation)
    found: dict[int, Tensor] | None = index.kept.get("attention heads")
    if found is None:
        found = {}
        for number in index.operations:
            one = OperationFacts(index, number)
            for known, heads in _values_of(one):
                found.setdefault(known, heads)
        index.kept["attention heads"] = found
    return found


def _values_of(one: OperationFacts) -> Iterator[tuple[int, Tensor]]:
    record = record_of(one)
    if record.function.is_in(CALLS_WITH_HEADS):
        args, kwargs = fill_call(record.template, record.names, iter(record.parents))
        given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
        numbers = [one._number, *(given[name] for name in ("query", "key", "value") if isinstance(given.get(name), int))]
        for number in numbers:
            if number >= 0 and (heads := _of_shape(OperationFacts(index_of(one), number), head_count(one))) is not None:
                yield number, heads
    elif is_written_out(one):
        count = head_count(one)
        products = [product for product in (scoring(one), weighing(one)) if product is not None]
        around = [(one, "")]
        for product in products:
            letters = _letters(product)
            numbers = [*(parent for parent in record_of(product).parents if parent >= 0)][-2:]
            around += [(OperationFacts(index_of(one), number), term) for number, term in zip(numbers, letters, strict=False)]
            around.append((product, letters[-1]))
        head = next((term[1] for product in products[:1] if len(term := _letters(product)[-1]) == 4), "")
        for value, term in around:
            heads = _of_shape(value, count, term.find(head) if term and head else None)
            if heads is not None:
                yield value._number, heads


def _letters(product: OperationFacts) -> list[str]:
    """The terms of an einsum, the result last; three empty texts for other products."""
    equation = next((one for one in record_of(product).template if isinstance(one, str) and "->" in one), "")
    return einsum_terms(equation) or ["", "", ""]


def _of_shape(value: OperationFacts, count: int, dim: int | None = None) -> Tensor | None:
    """Head numbers along the heads' dimension: `dim`, else the third from last (of three: the first, batch × heads)."""
    shape = value.tensor_shape or ()
    if dim is None:
        dim = len(shape) - 3 if len(shape) >= 4 else 0
    if len(shape) < 3 or not 0 <= dim < len(shape) or (len(shape) == 3 and shape[0] % count):
        return None
    line = torch.arange(shape[dim], device="cpu")
    line = line % count if len(shape) == 3 else line
    return line.view([-1 if one == dim else 1 for one in range(len(shape))])


# Other values -----------------------------------------------------------------------------------------------------------


def _from_what_follows(operation: OperationFacts, layouts: dict[int, Tensor]) -> Tensor | None:
    """Number the elements, run later logged operations on the numbers, and read at which head each number arrives."""
    shape = operation.tensor_shape
    numbers = torch.arange(math.prod(shape), device="cpu").view(shape)
    heads = torch.full((numbers.numel() + 1,), _NONE, device="cpu")  # the last item collects elements of other values
    waiting, seen, is_found = [(operation, numbers)], {operation}, False
    for _ in range(_REACH):
        beyond: list[tuple[OperationFacts, Tensor]] = []
        for one, moved in waiting:
            for child in children_of(one):
                after = None if child in seen else _moved(child, one, moved)
                if after is None:
                    continue
                seen.add(child)
                if child._number in layouts:
                    is_found = True
                    places = after.flatten().where(after.flatten() >= 0, numbers.numel())
                    heads.scatter_reduce_(0, places, layouts[child._number].expand(after.shape).flatten(), "amin")
                beyond.append((child, after))
        waiting = beyond
    return heads[:-1].view(shape) if is_found else None


def _from_what_was_before(one: OperationFacts, layouts: dict[int, Tensor], reach: int) -> Tensor | None:
    """Run logged operations on the head numbers of attention's output, up to this operation."""
    if one._number in layouts:
        return layouts[one._number].expand(one.tensor_shape)
    for parent in parents_of(one) if reach else ():
        if _can_move(one, parent):
            heads = _from_what_was_before(parent, layouts, reach - 1)
            moved = None if heads is None else _moved(one, parent, heads, _NONE)
            if moved is not None:
                return moved
    return None


def _can_move(one: OperationFacts, parent: OperationFacts) -> bool:
    function = record_of(one).function
    if function.plain_name == "as_strided":  # the elements of its result depend on the memory, not on positions
        return False
    if function.plain_name == "getitem":
        return len(record_of(one).parents) == 1  # with more parents, the index is a tensor
    return _is_in_place(one, parent) or is_rearranging(one) or function.is_in(_PUTS_TOGETHER)


def _is_in_place(one: OperationFacts, parent: OperationFacts) -> bool:
    """True if each element of the result is computed from the argument's element at the same position."""
    function, origin = record_of(one).function, record_of(one).origin
    if one.tensor_shape != parent.tensor_shape:
        return False
    return origin is Origin.OUTPUT or function.is_elementwise or function.is_in(_SAME_PLACE)


def _moved(one: OperationFacts, parent: OperationFacts, values: Tensor, missing: int = -1) -> Tensor | None:
    """Run an operation with `values` in place of one argument; None if it does more than move elements."""
    record = record_of(one)
    if _is_in_place(one, parent):
        return values
    if not _can_move(one, parent) or record.origin is not Origin.OPERATION or record.function.func is None:
        return None
    slots = [values.contiguous() if number == parent._number else _elsewhere(one, number, missing) for number in record.parents]
    args, kwargs = fill_call(record.template, record.names, iter(slots))
    try:
        result: Any = get_path(record.function.func(*args, **kwargs), record.details.output_path)
    except Exception as error:  # fails if an index is a tensor, or for a view as another dtype
        pass_interrupts_on(error)
        return None
    return result if isinstance(result, Tensor) and tuple(result.shape) == tuple(one.tensor_shape or ()) else None


def _elsewhere(one: OperationFacts, number: int, missing: int) -> Tensor:
    shape = OperationFacts(index_of(one), number).tensor_shape if number >= 0 else index_of(one).state(number).value.shape
    return torch.full(tuple(shape or ()), missing, device="cpu")
