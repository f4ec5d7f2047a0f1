"""Finds attention that is written out, `softmax(q @ k.mT) @ v`, and how many heads it has where they share a dimension."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from ...functions import groups

if TYPE_CHECKING:
    from ..operation import Operation

CALLS_WITH_HEADS = frozenset({"scaled_dot_product_attention", "flex_attention"})  # fused, of queries that are heads already
_SOFTMAX = frozenset({"softmax", "safe_softmax", "masked_softmax"})
_PRODUCTS = frozenset({"matmul", "bmm", "baddbmm", "einsum", "mm", "addbmm"})
# Functions, besides views, that may be between a product and its softmax, and between the softmax and the next product.
_BETWEEN = groups.BETWEEN_LAYERS | frozenset(
    {"masked_fill", "where", "clamp", "nan_to_num", "tanh", "getitem", "maximum", "max"}
)
_REACH = 8  # the most operations between softmax and product
_Neighbours = Callable[["Operation"], "list[Operation]"]
_PARENTS: _Neighbours = attrgetter("parents")
_CHILDREN: _Neighbours = attrgetter("children")


def is_written_out(operation: Operation) -> bool:
    """Whether it is the softmax of a product of two activations, and is itself multiplied with an activation."""
    if not operation._record.function.is_in(_SOFTMAX) or len(operation.tensor_shape or ()) < 2:
        return False
    return scoring(operation) is not None and weighing(operation) is not None


def scoring(operation: Operation) -> Operation | None:
    """The product that a softmax got its scores from."""
    return next((one for one in _around(operation, _PARENTS) if is_product(one)), None)


def weighing(operation: Operation) -> Operation | None:
    """The product in which a pattern weighs values."""
    return next((one for one in _around(operation, _CHILDREN) if is_product(one)), None)


def is_product(operation: Operation) -> bool:
    """Whether two activations are multiplied as matrices."""
    return operation._record.function.is_in(_PRODUCTS) and not operation.parent_params


def einsum_terms(equation: str) -> list[str] | None:
    """The terms of an equation of two operands, its result last: `bhqd,bhkd->bhqk`; None for any other equation."""
    left, arrow, out = equation.replace(" ", "").partition("->")
    terms = [*left.split(","), out]
    return terms if arrow and len(terms) == 3 and "." not in equation else None


def is_rearranging(operation: Operation) -> bool:
    """Whether it only moves elements: views, reshapes, copies."""
    function = operation._record.function
    return function.is_view or function.is_in(groups.RESHAPES) or function.is_in(groups.COPIES)


def _around(
    operation: Operation, following: _Neighbours, goes_through: Callable[[Operation], bool] | None = None
) -> list[Operation]:
    """The operations before or after one, nearest first, up to those that do more than to move or scale elements."""
    found: dict[Operation, None] = {}
    waiting = following(operation)
    for _ in range(_REACH):
        new = [one for one in dict.fromkeys(waiting) if one not in found]
        found.update(dict.fromkeys(new))
        waiting = [beyond for one in new if (goes_through or _leaves_positions)(one) for beyond in following(one)]
    return list(found)


def _leaves_positions(operation: Operation) -> bool:
    return operation._record.function.is_in(_BETWEEN) or is_rearranging(operation)


# How many heads ---------------------------------------------------------------------------------------------------------


def head_count(operation: Operation) -> int:
    """How many heads attention has, also where batch and heads are one dimension, (batch × heads, queries, keys).

    Views of these tensors, or the tensors they are views of, tell: one is (batch, heads, …), or has all heads side by side in
    its last dimension. 1 where there is no such view.
    """
    is_softmax = operation._record.function.is_in(_SOFTMAX)
    shape = operation.tensor_shape or ()
    if len(shape) == 4:
        return int(shape[1])
    if len(shape) != 3:
        return 1
    for one in [*_around(operation, _CHILDREN), *_around(operation, _PARENTS)] if is_softmax else []:
        seen = one.tensor_shape or ()
        if len(seen) == 4 and seen[2:] == shape[1:] and seen[0] * seen[1] == shape[0]:
            return int(seen[1])
    made, scored = (weighing(operation), scoring(operation)) if is_softmax else (operation, operation)
    return (made is not None and _count_after(made)) or (scored is not None and _count_before(scored)) or 1


def _count_after(made: Operation) -> int:
    """How many heads of attention's output are put side by side afterwards; 0 where none are."""
    after = _around(made, _CHILDREN, is_rearranging)
    return next((count for one in after if is_rearranging(one) and (count := _merged(made, one))), 0)


def _count_before(product: Operation) -> int:
    """How many heads the factors of a product were split into; 0 where they were not."""
    for factor in product.parents:
        for one in [factor, *_around(factor, _PARENTS, is_rearranging)]:
            count = _merged(factor, one)
            if count:
                return count
    return 0


def _merged(apart: Operation, other: Operation) -> int:
    """How many heads a tensor (batch × heads, length, size) has, by the shape of a view of it; 0 where that does not tell."""
    shape, seen = apart.tensor_shape or (), other.tensor_shape or ()
    if len(shape) != 3 or not seen or not shape[0]:
        return 0
    if len(seen) == 4 and seen[0] * seen[1] == shape[0] and set(seen[2:]) == set(shape[1:]):
        return int(seen[1])
    size = shape[-1]
    if len(seen) == 2 and seen[0] == shape[0]:  # `flatten(1)`: positions side by side, not heads
        return 0
    if len(seen) in (2, 3) and size and seen[-1] > size and seen[-1] % size == 0:
        count = int(seen[-1]) // size
        return count if shape[0] % count == 0 and math.prod(seen) == math.prod(shape) else 0
    return 0
