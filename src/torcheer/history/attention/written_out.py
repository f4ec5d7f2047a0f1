"""Attention that is written out: queries, keys and values are the factors of the products around its softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from .finding import einsum_terms, head_count, scoring, weighing
from .heads import Attention, Heads, Part, with_heads

if TYPE_CHECKING:
    from ..operation import Operation


def read_written_out(operation: Operation) -> Attention:
    """The attention whose pattern is the result of this softmax."""
    scored, weighed = scoring(operation), weighing(operation)
    assert scored is not None
    assert weighed is not None
    count = head_count(operation)
    pattern = with_heads(operation.tensor_contents, count)
    assert pattern is not None
    q, k, _ = _factors(scored, count, is_scoring=True)
    _, v, outputs = _factors(weighed, count, is_scoring=False)

    def work_out(part: Part) -> Heads:
        queries, made = (None if one is None else part.queries(one) for one in (q, outputs))
        keys, values = (None if one is None else part.samples(one) for one in (k, v))
        return Heads(part.queries(pattern), queries, keys, values, made)

    samples, heads, length, keys = pattern.shape
    return Attention((samples, heads, length, keys), work_out)


def _factors(product: Operation, count: int, *, is_scoring: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The two factors of a product and its result, each (batch, heads, length, size), where their shapes tell.

    The second factor of scores is the keys, transposed.
    """
    given = [one for one in (*product.creation_args, *product.creation_kwargs.values()) if isinstance(one, Tensor)]
    equation = next((one for one in product.creation_args if isinstance(one, str)), None)
    if equation is not None:
        return _of_einsum(equation, product, is_scoring=is_scoring)
    if len(given) < 2:
        return None, None, None
    first, second = (with_heads(one, count) for one in given[-2:])  # the first argument of `baddbmm` is only added
    if second is not None and is_scoring:
        second = second.mT
    return first, second, with_heads(product.tensor_contents, count)


def _of_einsum(equation: str, product: Operation, *, is_scoring: bool) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The same, by the letters of an equation such as `bqhd,bkhd->bhqk`."""
    tensors = [one for one in _flat(product.creation_args) if isinstance(one, Tensor)]
    *terms, out = einsum_terms(equation) or [""]
    if len(tensors) != 2 or len(out) != 4 or any(len(set(term)) != len(term) for term in (*terms, out)):
        return None, None, None
    summed = next((letter for letter in terms[0] if letter in terms[1] and letter not in out), "")
    if is_scoring:
        batch, head, query, key = list(out)
        size = summed
        orders = (batch + head + query + size, batch + head + key + size, out)
        pairs = sorted(zip(terms, tensors, strict=True), key=lambda pair: key in pair[0])  # queries first
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
    """A tensor with its dimensions in another order; a dimension that it does not have gets size 1."""
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
