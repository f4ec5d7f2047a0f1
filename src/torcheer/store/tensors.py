"""Writes and reads the tensors of a saved history: `Layout` decides which are written, `SavedTensors` reads them by name.

Memory that several tensors share is written once, and the others are saved as views of it. A loaded history reads each tensor
when it is first used: `SavedValues` and `SavedGradients` hold `Stored` names until then.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, SupportsIndex

import torch
from torch import Tensor

from .._files.tensor_files import NAMES, Memories, TensorFile
from .._torch.internals import DisableTorchFunction, is_functorch_wrapped, negated_view, storage_address
from .._torch.memory import OF_SIZE, may_overlap, needed_bytes, storage_part
from .._torch.shapes import contiguous_strides, shape_of
from ..errors import UnreadableFile
from ..log.records import FACTS, FUNCTION, Held, Log
from .checking import fields, flag, number, refuse, sizes, text
from .values import not_in_a_file, parts_of, put_together, read_dtype


class TensorNames(Protocol):
    """Takes the tensors of a history and names them."""

    def add(self, name: str, tensor: Any, what: str) -> str:
        """Give a tensor a name in the file; `what` describes it in errors. Returns the name by which the tensor is known."""
        ...


class Written:
    """Stands for a tensor that a recording has written into its file already."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


# Decides which tensors of a history are written, and which are views of these: shared memory is written once.
#
# An example: `y = x.reshape(4, 2).t()`, both kept. Their memory is that of `x`, which is contiguous and covers it:
# `x` is written under its name, and `y` is described as a view of `x` by offset, shape and strides. If no kept tensor
# covers the memory (two slices are kept, but not the tensor they are slices of), the memory is written under a name of its
# own, and both tensors are described as views of it.

MOST_GAPS = 16  # restore a tensor's strides only if its memory is at most this many times larger than its values

Json = dict[str, Any]


@dataclass(slots=True)
class _Window:
    """A tensor, and the range of bytes in its storage from its first to its last element."""

    name: str
    tensor: Tensor
    begin: int
    end: int

    @property
    def is_dense(self) -> bool:
        """True if the tensor's elements cover every byte from `begin` to `end` exactly once."""
        tensor = self.tensor
        if tensor.is_conj() or tensor.is_neg() or self.end - self.begin != tensor.nbytes:
            return False
        return tensor.is_contiguous() or not may_overlap(tensor)


@dataclass
class Layout:
    """Decides which tensors are written, by name, and describes how all other tensors are made from the written ones."""

    stored: dict[str, Tensor] = field(default_factory=dict)
    views: dict[str, Json] = field(default_factory=dict)  # name of a view -> the tensor that is viewed, and the place in it
    # name -> strides, for tensors that are laid out differently than they are written
    strides: dict[str, list[int]] = field(default_factory=dict)
    # name -> form, for tensors that are made of others: sparse, quantised, nested
    forms: dict[str, Json] = field(default_factory=dict)
    types: dict[str, Json] = field(default_factory=dict)  # name -> dtype and shape, for dtypes that safetensors has no name for

    def __post_init__(self) -> None:
        self._named: dict[int, str] = {}  # id of a tensor -> its name
        self._alive: list[Tensor] = []  # kept alive, because their ids are keys
        self._windows: dict[int, list[_Window]] = {}  # storage -> the windows in it

    def add(self, name: str, tensor: Tensor, what: str) -> str:
        """Give a tensor a name in the file; `what` describes it in errors. Returns the first name of the same tensor.

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
        """The part of the header about views, strides, forms and dtypes."""
        found = {"views": self.views, "strides": self.strides, "forms": self.forms, "types": self.types}
        return {key: value for key, value in found.items() if value}

    def settle(self) -> None:
        """Called when all tensors are known: decide which of them are written."""
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
        for key, fact in facts_of_written(tensor).items():
            getattr(self, key)[name] = fact

    def _add_view(self, one: _Window, base: _Window) -> None:
        tensor, size = one.tensor, one.tensor.element_size()
        offset, rest = divmod(one.begin - base.begin, size)
        if rest or (base.end - base.begin) % size:
            self._store(one.name, tensor)  # torch has no such view: offset or size is not a multiple of the element size
            return
        self.views[one.name] = view_of(base.name, base.tensor, tensor, offset)


def refuse_class(tensor: Tensor, what: str) -> None:
    """Raise for a tensor of a class that is not torch's own, and for a tensor that exists only inside a transform."""
    is_own = type(tensor) is Tensor or type(tensor) is torch.nn.Parameter or tensor.is_nested
    if not is_own or is_functorch_wrapped(tensor):
        raise not_in_a_file(what, type(tensor).__name__)


def view_of(name: str | int, base: Tensor, tensor: Tensor, offset: int) -> Json:
    """Describe a view of `base` for the header. The first element of the view is at `offset` in `base`."""
    view: Json = {"of": name, "offset": offset, "shape": list(tensor.shape), "strides": list(tensor.stride())}
    if tensor.dtype != base.dtype:
        view["dtype"] = str(tensor.dtype)[6:]
    if tensor.is_conj():
        view["conj"] = True
    if tensor.is_neg():
        view["neg"] = True
    return view


def facts_of_written(tensor: Tensor) -> Json:
    """Describe a written tensor for the header: its strides, dtype and shape, as far as the file has others."""
    found: Json = {}
    if tensor.stride() != contiguous_strides(tensor.shape):
        found["strides"] = list(tensor.stride())
    if tensor.dtype not in NAMES:
        found["types"] = {"dtype": str(tensor.dtype)[6:], "shape": list(tensor.shape)}
    return found


def _overlapping(windows: list[_Window]) -> list[list[_Window]]:
    """Group the windows of one storage so that windows in different groups do not overlap."""
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
    """True if a tensor's memory is written, not its values: it is conjugated lazily, overlaps itself or has large gaps."""
    if tensor.is_conj() or tensor.is_neg():
        return True
    return reach < tensor.nbytes or reach > MOST_GAPS * tensor.nbytes or may_overlap(tensor)


# Reads each tensor of a saved history when it is first used. Views become views again, with the strides they had.


class SavedTensors:
    """Reads the tensors of one file by name. Tensors that shared memory share it again, as long as one of them is in use."""

    def __init__(self, file: TensorFile) -> None:
        self.file = file
        try:
            layout = fields(json.loads(file.metadata.get("layout", "{}")), "the layout")
        except (ValueError, RecursionError):
            refuse("what its header says of the tensors is no JSON")
        self._views = fields(layout.get("views", {}), "the views")
        self._strides = fields(layout.get("strides", {}), "the strides")
        self._forms = fields(layout.get("forms", {}), "the forms")
        self._types = fields(layout.get("types", {}), "the types")
        self._laid_out = Memories()
        self._read: weakref.WeakValueDictionary[str, Tensor] = weakref.WeakValueDictionary()

    def __contains__(self, name: str) -> bool:
        return name in self.file.places or name in self._views or name in self._forms

    def read(self, name: str) -> Tensor:
        """Read a tensor by its name. Raises `UnreadableFile` if the file is damaged there."""
        found = self._read.get(name)
        if found is None:
            try:
                with DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
                    found = self._made(name)
            except UnreadableFile as error:
                self.refuse(name, str(error))
            except (RuntimeError, ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
                raise UnreadableFile(f"{str(self.file.path)!r} is damaged at {name[:80]!r}: {error}") from error
            self._read[name] = found
        return found

    def refuse(self, name: str, what: str) -> NoReturn:
        """Raise an error that says what is wrong with a tensor."""
        raise UnreadableFile(f"{str(self.file.path)!r} is damaged at {name[:80]!r}: {what}.") from None

    def _made(self, name: str) -> Tensor:
        if name in self._views:
            view = fields(self._views[name], "a view")
            base = text(view.get("of"), "the base of a view")
            if len(view) > 1:
                return self._view(base, view)
            if base in self._views and len(fields(self._views[base], "a view")) == 1:
                refuse("a name stands for another one that stands for another one")
            return self.read(base)
        if name in self._forms:
            return put_together(fields(self._forms[name], "the form of a tensor"), self._part)
        return self._stored(name)

    def _part(self, name: str) -> Tensor:
        if name in self._forms and fields(self._forms[name], "the form of a tensor").get("form") != "meta":
            refuse("a tensor is made of itself")
        return self.read(name)

    def _stored(self, name: str) -> Tensor:
        dtype, shape = self._type(name)
        memory = self._memory(name)
        if name in self._strides:
            return memory.view(dtype).as_strided(shape, sizes(self._strides[name], "strides"))
        return memory.view(dtype).view(shape)

    def _type(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """The dtype and shape of the tensor that has this name."""
        if name in self._types:
            found = fields(self._types[name], "a type")
            return read_dtype(found.get("dtype")), sizes(found.get("shape"), "a shape")
        return self.file.type_of(name)

    def _memory(self, name: str) -> Tensor:
        """The bytes of a tensor as they were in memory. The file has the elements in logical order, whatever the strides."""
        written = self.file.memory(name)
        if name not in self._strides:
            return written
        found = self._laid_out.get(name)
        if found is None:
            dtype, shape = self._type(name)
            strides = sizes(self._strides[name], "strides")
            reach = _reach(shape, strides) * dtype.itemsize
            if len(strides) != len(shape) or reach > max(MOST_GAPS * written.numel(), 64):
                refuse("its strides do not fit it")
            if all(
                size == 1 or one == other for size, one, other in zip(shape, strides, contiguous_strides(shape), strict=True)
            ):
                return written
            found = torch.empty(reach, dtype=torch.uint8, device="cpu")
            copied = OF_SIZE[dtype.itemsize]
            found.view(copied).as_strided(shape, strides).copy_(written.view(copied).view(shape))
            self._laid_out.keep(name, found)
        return found

    def _view(self, base: str, view: dict[str, Any]) -> Tensor:
        if base not in self.file.places:
            refuse("it is a view of something that is not written")
        dtype = read_dtype(view["dtype"]) if "dtype" in view else self._type(base)[0]
        shape, strides = sizes(view.get("shape"), "a shape"), sizes(view.get("strides"), "strides")
        offset, memory = number(view.get("offset"), "an offset"), self._memory(base)
        room = memory.numel() // dtype.itemsize
        if len(shape) != len(strides) or offset + _reach(shape, strides) > room:
            refuse("it is a view of more than there is")
        made = memory[: room * dtype.itemsize].view(dtype).as_strided(shape, strides, offset)
        if "conj" in view and flag(view["conj"], "whether a view is conjugated"):
            made = made.conj()
        return negated_view(made) if "neg" in view and flag(view["neg"], "whether a view is negated") else made


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """The number of elements of memory that a tensor of this shape and these strides needs."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=False))


# Containers of a loaded log whose tensors are read from the file when they are used.

# these functions may get a lazy parameter or buffer before it has a shape, so they are recorded without a shape
_OF_LAZY = ("set_data", "data")


class Stored:
    """Stands for a tensor in a file, and has its name there."""

    __slots__ = ("_name", "_tensors")

    def __init__(self, name: str, tensors: SavedTensors) -> None:
        self._name = name
        self._tensors = tensors

    def read(self, shape: tuple[int, ...] | None = None) -> Tensor:
        """Read the tensor. If `shape`, the recorded shape, is given and differs, raises `UnreadableFile`."""
        found = self._tensors.read(self._name)
        if shape is not None and shape_of(found) != shape:
            self._tensors.refuse(self._name, f"its shape is {shape_of(found)}, and {tuple(shape)} is recorded of the operation")
        return found


class SavedHeld(Held):
    """A `Held` argument whose value is read from the file when it is used."""

    __slots__ = ("_stored",)

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self.version = -1

    @property
    def value(self) -> Any:
        return self._stored.read()


class SavedValues(list[Any]):
    """The values of operations, as `Log.values` has them. An item that is a `Stored` is read when it is taken out.

    A value has the shape that is recorded in the log, unless the function of the user (`activation_postfunc`) made the value.
    """

    def __init__(self, values: Iterable[Any], log: Log, *, are_tensors: bool) -> None:
        super().__init__(values)
        # The log itself is not stored, because it has these values: a cycle would keep a history alive until the collector
        # runs.
        self._rows, self._details, self._functions = log.rows, log.details, log.functions
        self._are_tensors = are_tensors

    def __getitem__(self, place: SupportsIndex | slice) -> Any:
        found = list.__getitem__(self, place)
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        return self._fitting(place.__index__() % len(self), found) if type(found) is Stored else found

    def __iter__(self) -> Iterator[Any]:
        return (self[place] for place in range(len(self)))

    def _fitting(self, place: int, stored: Stored) -> Tensor:
        row, details = self._rows[place], self._details.get(place)
        shape = row[FACTS][0]
        is_unmade = not shape and self._functions[row[FUNCTION]].name in _OF_LAZY
        is_batched = details is not None and details.is_transformed  # the dimension that `vmap` adds is in the value alone
        return stored.read(shape if self._are_tensors and not is_unmade and not is_batched else None)


class SavedGradients(dict[int, Any]):
    """The gradients of a backward pass, by operation or by the (negative) number of a parameter. Each is read on access."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._rows, self._states = log.rows, log.states  # the log itself is not stored, because it has these gradients

    def __getitem__(self, key: int) -> Any:
        shape = self._rows[key][FACTS][0] if key >= 0 else shape_of(self._states.tensors[-1 - key])
        return dict.__getitem__(self, key).read(shape)

    def get(self, key: int, default: Any = None) -> Any:
        return self[key] if dict.__contains__(self, key) else default

    def values(self) -> Any:
        return [self[key] for key in self]

    def items(self) -> Any:
        return [(key, self[key]) for key in self]
