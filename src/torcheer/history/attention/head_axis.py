"""Which elements of a value belong to which attention head, found by following them to or from attention.

A projection of queries is (batch, length, heads × size), and its shape does not say which elements are head 3. The log does:
the elements are numbered, and the numbers go through the same operations as the elements did (`view`, `transpose`, `chunk`),
until they are the queries of attention, whose heads are a dimension. For values after attention, heads are followed from its
output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...changes import HeadAxis
from ...containers import get_path
from ...functions import groups
from ...records import Origin
from ...templates import fill_call
from ...torch_internals import DisableTorchFunction
from .finding import CALLS_WITH_HEADS, einsum_terms, head_count, is_rearranging, is_written_out, scoring, weighing

if TYPE_CHECKING:
    from ..operation import Operation

_SAME_PLACE = groups.CONVERSIONS | groups.NORMALISATIONS | groups.DROPOUTS | frozenset({"add", "sub", "mul", "div"})
_PUTS_TOGETHER = frozenset({"cat", "stack", "repeat", "repeat_interleave", "tile"})
_REACH = 16  # the most operations between a value and attention
_MOST = 1 << 26  # the most elements that are numbered
_NONE = torch.iinfo(torch.int64).max  # stands for an element of no head


def head_axis(operation: Operation) -> HeadAxis | None:
    """The dimension of a value along which its attention heads lie, and the head at each position; None if it is not known."""
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
    known = sorted(set(line.tolist()) - {_NONE})  # heads of keys that queries share are numbered by themselves
    return HeadAxis(dim, tuple(known.index(head) if head != _NONE else -1 for head in line.tolist()), heads.dim())


def _heads_of_elements(operation: Operation) -> Tensor | None:
    """The head that each element of a value belongs to."""
    layouts, shape = _layouts(operation), operation.tensor_shape
    if shape is None or math.prod(shape) > _MOST:
        return None
    if operation._number in layouts:
        return layouts[operation._number].expand(shape)
    after = _from_what_follows(operation, layouts)
    return after if after is not None else _from_what_was_before(operation, layouts, _REACH)


# Values next to attention -----------------------------------------------------------------------------------------------


def _layouts(operation: Operation) -> dict[int, Tensor]:
    """By operation that attention reads or makes: the head of each element, as a tensor that broadcasts to its shape."""
    index = operation._index
    found: dict[int, Tensor] | None = index.kept.get("attention heads")
    if found is None:
        found = {}
        for number in index.operations:
            one = type(operation)(index, number)
            for known, heads in _values_of(one):
                found.setdefault(known, heads)
        index.kept["attention heads"] = found
    return found


def _values_of(one: Operation) -> Iterator[tuple[int, Tensor]]:
    record = one._record
    if record.function.is_in(CALLS_WITH_HEADS):
        args, kwargs = fill_call(record.template, record.names, iter(record.parents))
        given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
        numbers = [one._number, *(given[name] for name in ("query", "key", "value") if isinstance(given.get(name), int))]
        for number in numbers:
            if number >= 0 and (heads := _of_shape(type(one)(one._index, number), head_count(one))) is not None:
                yield number, heads
    elif is_written_out(one):
        count = head_count(one)
        products = [product for product in (scoring(one), weighing(one)) if product is not None]
        around = [(one, "")]
        for product in products:
            letters = _letters(product)
            numbers = [*(parent for parent in product._record.parents if parent >= 0)][-2:]
            around += [(type(one)(one._index, number), term) for number, term in zip(numbers, letters, strict=False)]
            around.append((product, letters[-1]))
        head = next((term[1] for product in products[:1] if len(term := _letters(product)[-1]) == 4), "")
        for value, term in around:
            heads = _of_shape(value, count, term.find(head) if term and head else None)
            if heads is not None:
                yield value._number, heads


def _letters(product: Operation) -> list[str]:
    """The terms of an einsum, its result last; empty ones for other products."""
    equation = next((one for one in product._record.template if isinstance(one, str) and "->" in one), "")
    return einsum_terms(equation) or ["", "", ""]


def _of_shape(value: Operation, count: int, dim: int | None = None) -> Tensor | None:
    """Heads by position: the second of four dimensions (or `dim`), or the first of three, in which they are counted fastest."""
    shape = value.tensor_shape or ()
    if dim is None:
        dim = len(shape) - 3 if len(shape) >= 4 else 0
    if len(shape) < 3 or not 0 <= dim < len(shape) or (len(shape) == 3 and shape[0] % count):
        return None
    line = torch.arange(shape[dim], device="cpu")
    line = line % count if len(shape) == 3 else line
    return line.view([-1 if one == dim else 1 for one in range(len(shape))])


# Other values -----------------------------------------------------------------------------------------------------------


def _from_what_follows(operation: Operation, layouts: dict[int, Tensor]) -> Tensor | None:
    """Number the elements, run the numbers through the logged operations, and see at which head each arrives."""
    shape = operation.tensor_shape
    numbers = torch.arange(math.prod(shape), device="cpu").view(shape)
    heads = torch.full((numbers.numel() + 1,), _NONE, device="cpu")  # the last stands for elements of other values
    waiting, seen, is_found = [(operation, numbers)], {operation}, False
    for _ in range(_REACH):
        beyond: list[tuple[Operation, Tensor]] = []
        for one, moved in waiting:
            for child in one.children:
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


def _from_what_was_before(one: Operation, layouts: dict[int, Tensor], reach: int) -> Tensor | None:
    """Run the heads of attention's output through the logged operations, up to this one."""
    if one._number in layouts:
        return layouts[one._number].expand(one.tensor_shape)
    for parent in one.parents if reach else ():
        if _can_move(one, parent):
            heads = _from_what_was_before(parent, layouts, reach - 1)
            moved = None if heads is None else _moved(one, parent, heads, _NONE)
            if moved is not None:
                return moved
    return None


def _can_move(one: Operation, parent: Operation) -> bool:
    function = one._record.function
    if function.plain_name == "as_strided":  # its elements depend on the memory, not on positions
        return False
    if function.plain_name == "getitem":
        return len(one._record.parents) == 1  # not where an index is a tensor
    return _is_in_place(one, parent) or is_rearranging(one) or function.is_in(_PUTS_TOGETHER)


def _is_in_place(one: Operation, parent: Operation) -> bool:
    """Whether each element of the result is computed from the element of the argument at the same position."""
    function, origin = one._record.function, one._record.origin
    if one.tensor_shape != parent.tensor_shape:
        return False
    return origin is Origin.OUTPUT or function.is_elementwise or function.is_in(_SAME_PLACE)


def _moved(one: Operation, parent: Operation, values: Tensor, missing: int = -1) -> Tensor | None:
    """The result of an operation on `values` in place of an argument; None where it does more than move elements."""
    record = one._record
    if _is_in_place(one, parent):
        return values
    if not _can_move(one, parent) or record.origin is not Origin.OPERATION or record.function.func is None:
        return None
    slots = [values.contiguous() if number == parent._number else _elsewhere(one, number, missing) for number in record.parents]
    args, kwargs = fill_call(record.template, record.names, iter(slots))
    try:
        result: Any = get_path(record.function.func(*args, **kwargs), record.details.output_path)
    except Exception:  # an index that is a tensor, a view as another dtype
        return None
    return result if isinstance(result, Tensor) and tuple(result.shape) == tuple(one.tensor_shape or ()) else None


def _elsewhere(one: Operation, number: int, missing: int) -> Tensor:
    shape = type(one)(one._index, number).tensor_shape if number >= 0 else one._index.state(number).value.shape
    return torch.full(tuple(shape or ()), missing, device="cpu")
