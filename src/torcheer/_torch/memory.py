"""Memory of tensors: whether a storage still holds a tensor's elements, aliases, and copies.

`storage.resize_(0)` frees the memory of every tensor that refers to the storage and leaves their shapes unchanged; FSDP does
this with parameters after every layer. torch does not check this: reading such a tensor ends the process. No torch function
is called for it, so it cannot be intercepted. Call `has_memory` before reading a tensor that was held for a while.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .internals import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    functorch_unwrapped,
    is_functorch_wrapped,
    is_traceable_wrapper_subclass,
    sparse_parts,
    write_count,
)
from .sentinels import Sign
from .tensor_table import PLAIN_CLASSES, inner_tensors, is_wrapper, unwrap

# the number of elements in a byte, for dtypes whose elements have one byte according to torch
_PACKED: Final = {torch.quint4x2: 2, torch.quint2x4: 4}
# maps the size of an element to a dtype of this size that torch can copy and index
OF_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_LARGEST_ITEM: Final = 16  # the largest size of an element in bytes; elements of every type may begin at a multiple of it
FREED: Final = Sign("<freed>")  # replaces an activation whose memory was freed before it could be copied


def is_freed(value: Any) -> bool:
    """True if a kept value can no longer be read because its memory is gone."""
    return value is FREED or (isinstance(value, Tensor) and not has_memory(value))


def has_memory(tensor: Tensor) -> bool:
    """True if the storage of `tensor` is large enough for all of its elements."""
    with DisableTorchFunction():  # a running recording would note the access to the storage
        if type(tensor) is Tensor or type(tensor) is Parameter:
            return _has_memory(tensor)
        wrapper: Any = tensor
        if is_traceable_wrapper_subclass(wrapper):
            names = wrapper.__tensor_flatten__()[0]
            return all(has_memory(part) for name in names if isinstance(part := getattr(wrapper, name), Tensor))
        return _has_memory(tensor)


def _has_memory(tensor: Tensor) -> bool:
    try:
        room = tensor.untyped_storage().nbytes()
    except RuntimeError:  # a tensor without a storage of its own: sparse, wrapped by torch.func
        try:
            parts = list(parts_of_sparse(tensor).values())
            return all(map(_has_memory, parts or ([functorch_unwrapped(tensor)] if is_functorch_wrapped(tensor) else [])))
        except RuntimeError:
            return True
    try:
        if room >= tensor.nbytes and tensor.is_contiguous() and not tensor.storage_offset():
            return True
        return room >= needed_bytes(tensor)
    except RuntimeError:  # the tensor's sizes are symbolic
        return True


def needed_bytes(tensor: Tensor) -> int:
    """The storage size that a strided tensor needs, in bytes."""
    if tensor.is_nested or tensor.numel() == 0:
        return tensor.nbytes if tensor.is_nested else 0
    if tensor.dtype in _PACKED:
        return -(-(int(tensor.storage_offset()) + tensor.numel()) // _PACKED[tensor.dtype])
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + reach + 1) * tensor.element_size())


def cloned(tensor: Tensor) -> Tensor:
    """Like `tensor.clone()`, but works for dtypes that torch only stores (`torch.int4`)."""
    try:
        return tensor.clone()
    except RuntimeError:  # torch 2.6 raises another RuntimeError than NotImplementedError
        if tensor.is_quantized:  # a quantised tensor with floating-point zero points
            with torch.no_grad():
                memory = tensor.untyped_storage().clone()  # type: ignore[no-untyped-call]  # torch's own
                return tensor.detach().set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride())
        return tensor.view(torch.uint8).clone().view(tensor.dtype)


def indexed(tensor: Tensor, index: Any) -> Tensor:
    """Like `tensor[index]`, but works for dtypes that torch cannot index (before 2.7: float8 and unsigned integers)."""
    try:
        return tensor[index]
    except RuntimeError:
        return tensor.view(OF_SIZE[tensor.element_size()])[index].view(tensor.dtype)


def copy_of(tensor: Tensor) -> Tensor:
    """Copy a tensor into memory of its own. The copy has the strides of `tensor` even if `clone` would change them.

    Functions such as batch_norm (of an expanded input) may return slightly different results for other strides.
    """
    copied = cloned(tensor)
    if type(tensor) not in (Tensor, Parameter) or tensor.layout is not torch.strided or tensor.is_nested:
        return copied
    if copied.stride() == tensor.stride() or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return copied
    if tensor.numel() == 0 or tensor.device.type == "meta" or is_functorch_wrapped(tensor):
        return copied
    reach = needed_bytes(tensor) // tensor.element_size() - tensor.storage_offset()
    if reach > 4 * tensor.numel():  # the tensor is a few elements of a large storage
        return copied
    with torch.no_grad():
        memory = cloned(tensor.detach().as_strided((reach,), (1,)))
        return memory.as_strided(tensor.shape, tensor.stride(), 0).detach()  # autograd forbids writes to a view made here


def may_overlap(tensor: Tensor) -> bool:
    """True if several elements of a tensor may share a place in memory, as in an expanded tensor."""
    if tensor.layout is not torch.strided or tensor.is_nested or is_functorch_wrapped(tensor) or tensor.numel() == 0:
        return False
    reach = 1  # the extent of the dimensions so far, in elements
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step < reach:
                return True
            reach += (size - 1) * step
    return False


def storage_part(tensor: Tensor, begin: int, end: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Make a view of the bytes from `begin` to `end` of a tensor's storage, as elements of a dtype."""
    flat, size = torch.empty(0, dtype=dtype, device=tensor.device), dtype.itemsize
    return flat.set_(tensor.untyped_storage(), begin // size, ((end - begin) // size,), (1,))


def is_plain_memory(value: Any) -> bool:
    """True for a plain strided tensor whose values are exactly the numbers in its storage."""
    if type(value) is not Tensor or value.layout is not torch.strided or value.is_nested or value.device.type == "meta":
        return False
    return not (value.is_quantized or value.is_conj() or value.is_neg() or is_functorch_wrapped(value))


class MemoryCopy:
    """A copy of the bytes from `begin` to `end` of a storage. Views of it overlap as the original tensors do."""

    def __init__(self, tensor: Tensor, begin: int, end: int) -> None:
        self._begin = begin - begin % _LARGEST_ITEM
        with torch.no_grad():
            self._storage = storage_part(tensor, self._begin, end).clone().untyped_storage()

    def of(self, tensor: Tensor) -> Tensor:
        """Make a view of this copy for a tensor that lies within the copied bytes."""
        with torch.no_grad():
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            offset = tensor.storage_offset() - self._begin // tensor.element_size()
            return view.set_(self._storage, offset, tensor.shape, tensor.stride())


# maps a compressed sparse layout to the names of the parts of its tensors
COMPRESSED: Final = {
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
SPARSE: Final = {torch.sparse_coo: ("indices", "values"), **COMPRESSED}


def parts_of_sparse(tensor: Tensor) -> dict[str, Tensor]:
    """Maps names to the strided parts of a sparse tensor; empty for a tensor of another layout."""
    if tensor.layout is torch.sparse_coo:
        return dict(zip(SPARSE[tensor.layout], sparse_parts(tensor), strict=True))
    return {name: getattr(tensor, name)() for name in SPARSE.get(tensor.layout, ())}


def sparse_of_parts(
    layout: torch.layout, parts: dict[str, Tensor], shape: tuple[int, ...], is_coalesced: bool | None = None
) -> Tensor:
    """Make a tensor of a sparse layout from these parts. torch raises if the parts do not fit."""
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            parts["indices"], parts["values"], shape, check_invariants=True, is_coalesced=is_coalesced
        )
    compressed, plain, values = (parts[name] for name in SPARSE[layout])
    return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout, check_invariants=True)


def version_of(tensor: Tensor) -> int:
    """torch's count of the writes to `tensor`; -1 for inference tensors and some subclasses, which have no count."""
    try:
        return write_count(tensor)
    except Exception as error:  # a user-defined class may raise anything
        pass_interrupts_on(error)
        return -1


def alias(tensor: Tensor) -> Tensor | None:
    """Make a detached view of the same class (a plain tensor for a Parameter); returns None if the class allows no view."""
    if type(tensor) in PLAIN_CLASSES:
        if is_functorch_wrapped(tensor):
            return unwrap(unwrap(tensor).detach())  # the running transform wraps the result of `detach`
        return tensor.detach()
    return _of_same_class(tensor, torch.Tensor.detach)


def copied(tensor: Tensor) -> Tensor | None:
    """Copy a detached tensor, with its class; returns None if the class allows no copy."""
    if type(tensor) is Tensor:
        return unwrap(copy_of(tensor))  # a running transform wraps the copy
    return _of_same_class(tensor, torch.Tensor.clone)


def _of_same_class(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Call `make` and convert its result to the tensor's subclass; returns None if that is impossible."""
    with DisableTorchFunctionSubclass(), torch.no_grad():
        try:
            made = make(tensor)
        except Exception as error:  # a user-defined class may raise anything
            pass_interrupts_on(error)
            made = None
        if made is not None and (type(made) is type(tensor) or is_lazy(tensor)):
            return made.as_subclass(Tensor) if is_lazy(made) else made
        if is_wrapper(tensor):
            return _rebuilt(tensor, make)
        return of_same_class(made, tensor) if made is not None else None


def of_same_class(tensor: Tensor, like: Any) -> Tensor:
    """Convert `tensor` to an instance of the class of `like`, with the attributes of `like`."""
    if not isinstance(like, Tensor) or type(like) in PLAIN_CLASSES or type(like) is type(tensor) or is_lazy(like):
        return tensor
    with DisableTorchFunctionSubclass():
        made = tensor.as_subclass(type(like))
        vars(made).update(vars(like))
        return made


def _rebuilt(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor | None:
    """Make a wrapper like `tensor`, whose inner tensors are the results of `make`; returns None if that is impossible."""
    try:
        _, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]  # raises for a class without it
        inner = {name: make(one) for name, one in inner_tensors(tensor).items()}
        rebuilt = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]
    except Exception as error:  # a user-defined class may raise anything
        pass_interrupts_on(error)
        return None
    return rebuilt if type(rebuilt) is type(tensor) else None
