"""What a call computes, in FLOPs, by plain name: the one place that knows all formulas."""

from . import algebra, einsum, elementwise, products, reducing, without_arithmetic
from .work import FORMULAS as FORMULAS
from .work import NOTHING as NOTHING
from .work import Formula as Formula
from .work import Work as Work

_TABLES = (algebra, einsum, elementwise, products, reducing, without_arithmetic)  # imported for what they write into FORMULAS
