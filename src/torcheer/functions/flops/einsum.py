"""Einsum: what an equation costs when its operands are contracted from left to right, as torch does.

With the optional package opt_einsum torch may choose a cheaper order for three and more operands; it is not counted here.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

from ..calls import Call, Operand
from .work import Work, formula, product

Labels = list[Hashable]


@formula("einsum")
def _einsum(call: Call) -> Work:
    operands, terms, output = _parse(call.args)
    sizes: dict[Hashable, int] = {}
    for operand, term in zip(operands, terms, strict=True):
        for label, size in zip(term, operand.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1)) if size else 0
    macs, flops = contraction([set(term) for term in terms], set(output), sizes)
    return product(call, macs, operands, flops)


def contraction(terms: Sequence[set[Hashable]], output: set[Hashable], sizes: dict[Hashable, int]) -> tuple[int, int]:
    """The MACs, and the other FLOPs, of contracting the terms from left to right."""

    def volume(labels: set[Hashable]) -> int:
        return math.prod(sizes[label] for label in labels)

    macs = flops = 0
    left = terms[0]
    for number, right in enumerate(terms[1:], 1):
        later = output.union(*terms[number + 1 :])
        for side, other in ((left, right), (right, left)):
            kept = side & (other | later)
            flops += volume(side) - volume(kept)  # what only one of them has is summed first
        left, right = left & (right | later), right & (left | later)
        contracted = (left & right) - later
        if contracted:
            macs += volume(left | right)
        else:
            flops += volume(left | right)  # only multiplied
        left = (left | right) - contracted
    flops += volume(left) - volume(left & output)
    return macs, flops


def _parse(args: tuple[Any, ...]) -> tuple[list[Operand], list[Labels], Labels]:
    given = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) and not isinstance(args[1], Operand) else args[1:]
    operands = list(given)
    left, arrow, right = args[0].replace(" ", "").partition("->")  # torch makes an equation of lists of dimensions
    parts = [_split(term) for term in left.split(",")]
    target = _split(right) if arrow else None
    terms = [_spread(part, len(operand.shape)) for part, operand in zip(parts, operands, strict=True)]
    hidden = [len(operand.shape) - len(part) + 1 for part, operand in zip(parts, operands, strict=True) if ... in part]
    widest = max(hidden, default=0)
    if target is None:
        everything = [label for term in terms for label in term if not isinstance(label, tuple)]
        output: Labels = [(..., place) for place in range(widest)]
        output += [label for label in dict.fromkeys(everything) if everything.count(label) == 1]
    else:
        output = _spread(target, len(target) - 1 + widest)
    return operands, terms, output


def _split(term: str) -> Labels:
    before, dots, after = term.partition("...")
    return [*before, ..., *after] if dots else list(before)


def _spread(part: Labels, dims: int) -> Labels:
    """The labels with an ellipsis written out, its dimensions counted from the right."""
    if ... not in part:
        return part
    at, hidden = part.index(...), dims - len(part) + 1
    return [*part[:at], *((..., place) for place in reversed(range(hidden))), *part[at + 1 :]]
