"""Work: the cost of one call; and `FORMULAS`, the table of formulas for it.

A formula is a function of a `Call` that returns `Work`, or None where it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..calls import Call, Operand


class Work(NamedTuple):
    """Floating-point operations and multiply-accumulates of one call, and the FLOPs of its backward."""

    flops: int
    macs: int = 0
    backward: int = 0


NOTHING = Work(0)
Formula = Callable[[Call], Work | None]
FORMULAS: dict[str, Formula] = {}  # by plain name


def formula(names: str) -> Callable[[Formula], Formula]:
    """Enter the decorated formula into `FORMULAS` for these functions."""

    def enter(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(names.split(), function))
        return function

    return enter


def product(call: Call, macs: int, factors: Iterable[Operand], also: int = 0) -> Work:
    """The work of a matrix product or a convolution: two FLOPs for each multiply-accumulate.

    Backward is one more such product for each factor that needs a gradient. `also` are other FLOPs, in forward and in backward.
    """
    if call.is_complex:
        macs *= 4
    flops = 2 * macs
    return Work(flops + also, macs, flops * sum(factor.needs_grad for factor in factors) + also)


def simple(call: Call, flops: float, backward: float = 1) -> Work:
    """Work other than products; the backward is a multiple of the forward."""
    if call.is_complex:
        flops *= 2
    return Work(round(flops), 0, round(flops * backward))
