"""Which tensors of a history are written, and which are views of those: memory that several share is written once.

An example: `y = x.reshape(4, 2).t()`, both kept. Their memory is that of `x`, which is contiguous and covers it: `x` is written
under its name, and `y` is described as a view of it by offset, shape and strides. Where no tensor that is kept covers the
memory (two windows of one that is not), the memory is written under a name of its own, and both are views.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..shapes import contiguous_strides
from ..tensor_files import NAMES
from ..tensor_memory import needed_bytes, storage_part
from ..torch_internals import DisableTorchFunction, is_functorch_wrapped, storage_address
from .tensor_forms import not_in_a_file, parts_of

MOST_GAPS = 16  # the most times that a tensor's memory may be larger than its values, for its strides to be restored

Json = dict[str, Any]


@dataclass(slots=True)
class _Window:
    """A tensor, and the bytes of its storage that it reaches."""

    name: str
    tensor: Tensor
    begin: int
    end: int

    @property
    def is_dense(self) -> bool:
        """Whether it has every byte from `begin` to `end`, each once."""
        tensor = self.tensor
        if tensor.is_conj() or tensor.is_neg() or self.end - self.begin != tensor.nbytes:
            return False
        return tensor.is_contiguous() or touches_each_once(tensor)


@dataclass
class Layout:
    """The tensors that are written, by name, and how all others are made of them."""

    stored: dict[str, Tensor] = field(default_factory=dict)
    views: dict[str, Json] = field(default_factory=dict)  # by name: of which tensor, and where in it
    strides: dict[str, list[int]] = field(default_factory=dict)  # of those that are not laid out as they are written
    forms: dict[str, Json] = field(default_factory=dict)  # of tensors that are made of others: sparse, quantised, nested
    types: dict[str, Json] = field(default_factory=dict)  # and shapes of those that safetensors has no name for

    def __post_init__(self) -> None:
        self._named: dict[int, str] = {}  # by id of the tensor
        self._alive: list[Tensor] = []  # while their ids are keys
        self._windows: dict[int, list[_Window]] = {}  # by storage

    def add(self, name: str, tensor: Tensor, what: str) -> str:
        """Give a tensor a name in the file; `what` it is, for errors. Returns the first name of the same tensor.

        Call it where torch functions are not watched and gradients not followed.
        """
        known = self._named.get(id(tensor))
        if known is not None:
            if known != name:
                self.views[name] = {"of": known}
            return known
        self._named[id(tensor)] = name
        self._alive.append(tensor)
        refuse_class(tensor, what)
        plain = tensor.detach()
        form = parts_of(plain, what)
        if form is None:
            self._add_strided(name, plain)
        else:
            facts, parts = form
            self.forms[name] = facts | {"parts": {key: f"{name}.{key}" for key in parts}}
            for key, part in parts.items():
                self.add(f"{name}.{key}", part, what)
        return name

    def _add_strided(self, name: str, tensor: Tensor) -> None:
        begin, count = int(tensor.storage_offset()) * tensor.element_size(), tensor.nbytes
        if not count:
            self._store(name, tensor)
            return
        end = begin + count if tensor.is_contiguous() else needed_bytes(tensor)
        address = storage_address(tensor)
        self._windows.setdefault(address, []).append(_Window(name, tensor, begin, end))

    def facts(self) -> Json:
        """What the header says of views, strides, forms and types."""
        found = {"views": self.views, "strides": self.strides, "forms": self.forms, "types": self.types}
        return {key: value for key, value in found.items() if value}

    def settle(self) -> None:
        """All tensors are known: decide what is written."""
        with DisableTorchFunction(), torch.no_grad():
            for windows in self._windows.values():
                for group in _overlapping(windows):
                    self._settle_group(group)
        self._windows.clear()

    def _settle_group(self, group: list[_Window]) -> None:
        if len(group) == 1 and group[0].is_dense:
            self._store(group[0].name, group[0].tensor)
            return
        begin, end = min(one.begin for one in group), max(one.end for one in group)
        whole = [one for one in group if one.begin == begin and one.end == end and one.is_dense]
        base = next((one for one in whole if one.tensor.is_contiguous()), whole[0] if whole else None)
        if base is None and len(group) == 1 and not is_spread(group[0].tensor, end - begin):
            base = group[0]
        if base is None:
            first, dtypes = group[0], {one.tensor.dtype for one in group}
            memory = storage_part(first.tensor, begin, end, dtypes.pop() if len(dtypes) == 1 else torch.uint8)
            base = _Window(f"memory/{first.name}", memory, begin, end)
        self._store(base.name, base.tensor)
        for one in group:
            if one is not base:
                self._add_view(one, base)

    def _store(self, name: str, tensor: Tensor) -> None:
        self.stored[name] = tensor
        if tensor.stride() != contiguous_strides(tensor.shape):
            self.strides[name] = list(tensor.stride())
        if tensor.dtype not in NAMES:
            self.types[name] = written_type(tensor)

    def _add_view(self, one: _Window, base: _Window) -> None:
        tensor, size = one.tensor, one.tensor.element_size()
        offset, rest = divmod(one.begin - base.begin, size)
        if rest or (base.end - base.begin) % size:
            self._store(one.name, tensor)  # torch has no such view: offset or size are no multiple of the element size
            return
        self.views[one.name] = view_of(base.name, base.tensor, tensor, offset)


def refuse_class(tensor: Tensor, what: str) -> None:
    """Refuse a tensor of a class that is not torch's own, and one that exists only inside a transform."""
    is_own = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter or tensor.is_nested
    if not is_own or is_functorch_wrapped(tensor):
        raise not_in_a_file(what, type(tensor).__name__)


def view_of(name: str, base: Tensor, tensor: Tensor, offset: int) -> Json:
    """How a tensor is a view of another one, whose first element is at `offset`."""
    view: Json = {"of": name, "offset": offset, "shape": list(tensor.shape), "strides": list(tensor.stride())}
    if tensor.dtype != base.dtype:
        view["dtype"] = str(tensor.dtype)[6:]
    if tensor.is_conj():
        view["conj"] = True
    if tensor.is_neg():
        view["neg"] = True
    return view


def written_type(tensor: Tensor) -> Json:
    """The type and shape of a tensor that is written as another type."""
    return {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape)}


def _overlapping(windows: list[_Window]) -> list[list[_Window]]:
    """The windows of one storage in groups that overlap."""
    if len(windows) == 1:
        return [windows]
    found: list[list[_Window]] = []
    end = -1
    for window in sorted(windows, key=lambda one: (one.begin, -one.end)):
        if not found or window.begin >= end:
            found.append([])
        found[-1].append(window)
        end = max(end, window.end)
    return found


def is_spread(tensor: Tensor, reach: int) -> bool:
    """Whether the memory of a tensor is written, not its values: it is conjugated lazily, overlaps itself or has large gaps."""
    if tensor.is_conj() or tensor.is_neg():
        return True
    return reach < tensor.nbytes or reach > MOST_GAPS * tensor.nbytes or not touches_each_once(tensor)


def touches_each_once(tensor: Tensor) -> bool:
    """Whether sizes and strides prove that no two elements of a strided tensor lie at one place."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if step <= reach:
                return False
            reach += step * (size - 1)
    return True
