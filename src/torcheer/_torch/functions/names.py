"""The plain name of a function, common to all its spellings, and its spelling in labels."""

from __future__ import annotations

import types
from typing import Any

from torch import Tensor

from ..internals import OpOverload, OpOverloadPacket, qualified_name_of

# Python operators whose name differs from the torch function's.
_OPERATORS = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "pos": "positive",
    "and": "bitwise_and",
    "or": "bitwise_or",
    "xor": "bitwise_xor",
    "invert": "bitwise_not",
    "lshift": "bitwise_left_shift",
    "rshift": "bitwise_right_shift",
}
_REFLECTED = frozenset("radd rsub rmul rdiv rtruediv rfloordiv rmod rpow rand ror rxor rlshift rrshift rmatmul".split())
_COMMUTATIVE = {"radd": "add", "rmul": "mul", "rand": "and", "ror": "or", "rxor": "xor"}
_OF_TORCH = ("aten", "prims", "torch")
_PREFIXES = ("special_", "foreach_")
_FUNCTIONAL = {"unfold": "im2col", "fold": "col2im"}  # F.unfold copies patches, Tensor.unfold is a view

# Functions with several names in torch; the last of each group is the plain name.
_ALIASES = """
    absolute abs | arccos acos | arccosh acosh | arcsin asin | arcsinh asinh | arctan atan | arctanh atanh | arctan2 atan2 |
    multiply mul | subtract sub | divide true_divide div | negative neg | clip clamp | fix trunc |
    greater gt | greater_equal ge | less lt | less_equal le | not_equal ne |
    concat concatenate cat | row_stack vstack | moveaxis movedim | swapdims swapaxes transpose | ger outer |
    expit sigmoid | psi digamma | gammaln lgamma | gammainc igamma | gammaincc igammac | multigammaln mvlgamma |
    det linalg_det | slogdet linalg_slogdet | inverse linalg_inv | matrix_power linalg_matrix_power | orgqr
    linalg_householder_product | pinverse linalg_pinv | linalg_matmul matmul | matrix_exp linalg_matrix_exp |
    log_sigmoid logsigmoid | dsmm mm | hsmm hspmm | saddmm addmm
"""
_NAMES = {other: group.split()[-1] for group in _ALIASES.split("|") for other in group.split()[:-1]}


def function_name(func: Any) -> str:
    """torch's spelling of a function: `max_pool2d`, `add_`, `__iadd__`; for a property, `T` or `set_data`."""
    name = getattr(func, "__name__", None) or type(func).__name__
    if name in ("__get__", "__set__", "__delete__"):
        owner = getattr(func, "__self__", None)
        attribute = str(getattr(owner, "__name__", None) or getattr(getattr(owner, "fget", None), "__name__", "property"))
        return attribute if name == "__get__" else f"set_{attribute}"
    if isinstance(func, OpOverload):
        return str(func.overloadpacket.__name__)
    return str(name)


def label_type(name: str) -> str:
    """The spelling of a function in labels: `max_pool2d` becomes `maxpool2d`; `__add__`, `add_` and `__iadd__` become `add`."""
    bare = name.strip("_")
    if is_operator(name):
        bare = _out_of_place(bare)
        bare = {"truediv": "div", "rtruediv": "rdiv", "floordiv": "floordivide"}.get(bare, bare)
        bare = _COMMUTATIVE.get(bare, bare)
    return bare.replace("_", "").lower() or "function"


def is_operator(name: str) -> bool:
    """True for Python operators: `__add__`."""
    return name.startswith("__") and name.endswith("__")


def is_inplace_operator(name: str) -> bool:
    """True for in-place Python operators: `__iadd__`."""
    return is_operator(name) and _out_of_place(name[2:-2]) != name[2:-2]


def is_reflected(name: str) -> bool:
    """True if the operands are swapped: `__rsub__(x, 1)` is `1 - x`."""
    return is_operator(name) and name[2:-2] in _REFLECTED


def _out_of_place(bare: str) -> str:
    return bare[1:] if bare.startswith("i") and bare[1:] and hasattr(Tensor, f"__{bare[1:]}__") else bare


def plain_name(func: Any, name: str, *, is_attribute: bool = False) -> str:
    """One name for all spellings of a function: `add` for `add_`, `__iadd__`, `__radd__` and `aten.add_.Tensor`.

    A function of another library keeps its qualified name, `library::add`, to differ from torch's `add`.
    """
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        qualified = qualified_name_of(func)
        if qualified.split("::")[0] not in _OF_TORCH:
            return qualified
    elif isinstance(func, types.FunctionType) and not (func.__module__ or "").startswith("torch."):
        return name if func.__module__ == "torch" else f"{func.__module__}.{name}"
    if is_attribute:
        return f".{name}"
    if is_operator(name):
        bare = _out_of_place(name[2:-2])
        bare = bare[1:] if bare in _REFLECTED else bare
        return _OPERATORS.get(bare, bare)
    if isinstance(func, types.FunctionType) and func.__module__ == "torch.nn.functional":
        name = _FUNCTIONAL.get(name, name)
    bare = name.strip("_")
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    return _NAMES.get(bare, bare)
