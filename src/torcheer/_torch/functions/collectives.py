"""Collectives: calls in which other processes take part (`torch.distributed.all_reduce`), and the tensors they write to.

A collective writes to its arguments without a new version of the tensor, and one process alone cannot repeat it. So a
collective is recorded as an in-place operation, with the value that its argument had afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..internals import OpOverload, OpOverloadPacket, qualified_name_of, schema_of

# Collectives of `torch.distributed`, by the name of the argument that they write to.
_WRITERS = {
    "tensor": "all_reduce broadcast reduce scatter recv irecv",
    "tensors": "all_reduce_coalesced",
    "tensor_list": "all_gather",
    "output_tensor": "all_gather_single all_gather_into_tensor _all_gather_base",
    "output_tensor_lists": "all_gather_coalesced",
    "gather_list": "gather",
    "output": "reduce_scatter reduce_scatter_single reduce_scatter_tensor _reduce_scatter_base all_to_all_single",
    "output_tensor_list": "all_to_all",
}
_WRITTEN = {name: argument for argument, names in _WRITERS.items() for name in names.split()}
_SENT = frozenset({"send", "isend"})
_NAMESPACES = frozenset({"c10d", "c10d_functional", "_c10d_functional", "_c10d_functional_autograd"})
LOCAL = frozenset({"wait_tensor", "_wrap_tensor_autograd"})  # functions in these namespaces that involve no other process
_MODULE = "torch.distributed.distributed_c10d"


def is_collective(func: Any) -> bool:
    """True if other processes take part in a call of this function."""
    if isinstance(func, OpOverload):
        func = func.overloadpacket
    if isinstance(func, OpOverloadPacket):
        namespace, _, name = qualified_name_of(func).partition("::")
        return namespace in _NAMESPACES and name not in LOCAL
    return getattr(func, "__module__", None) == _MODULE and func.__name__ in (_WRITTEN.keys() | _SENT)


def only_sends(func: Any) -> bool:
    """True if a collective only sends: it writes to no tensor."""
    return getattr(func, "__name__", None) in _SENT


def written_by_collective(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], list[Any]] | None:
    """Make a function from a collective's arguments to the tensors that it writes to; None if the collective makes new ones."""
    name = getattr(func, "__name__", "")
    if name in _WRITTEN:
        written, signature = _WRITTEN[name], inspect.signature(func)
        return lambda args, kwargs: _flat(signature.bind(*args, **kwargs).arguments.get(written))
    if isinstance(func, OpOverload):
        name = func.overloadpacket.__name__
    if name.endswith("_") and name not in ("send_", "barrier_"):  # operators such as torch.ops.c10d.allreduce_
        return lambda args, kwargs: _flat((*args, *kwargs.values())[0])
    return None


def written_unmarked(func: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], list[Any]] | None:
    """Like `written_by_collective`, for an operator of FSDP that writes to an argument which its schema does not mark."""
    if not _copies_in(func):
        return None
    return lambda args, kwargs: _flat(kwargs["all_gather_output"] if "all_gather_output" in kwargs else args[1])


def is_partly_filled(func: Any) -> bool:
    """True for an operator of FSDP, up to torch 2.8, that allocates memory for all ranks and fills only the part of this
    rank.
    """
    if not _copies_in(func):
        return False
    overload = func.default if isinstance(func, OpOverloadPacket) else func
    return all(argument.name != "all_gather_output" for argument in schema_of(overload).arguments)


def _copies_in(func: Any) -> bool:
    return isinstance(func, (OpOverload, OpOverloadPacket)) and qualified_name_of(func) == "fsdp::all_gather_copy_in"


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flat(item)]
    return [value] if isinstance(value, Tensor) else []
