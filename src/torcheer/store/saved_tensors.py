"""The tensors of a saved history, each read when it is first used: views as views, with the strides they had."""

from __future__ import annotations

import json
import weakref
from typing import Any, NoReturn

import torch
from torch import Tensor

from ..errors import UnreadableFile
from ..shapes import contiguous_strides
from ..tensor_files import Memories, TensorFile
from ..torch_internals import DisableTorchFunction, negated_view
from .checking import fields, flag, number, refuse, sizes, text
from .tensor_forms import put_together
from .tensor_layout import MOST_GAPS
from .values import read_dtype

_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}  # all can be copied


class SavedTensors:
    """Reads the tensors of one file by name. Tensors that share memory in the file share it here, while any is in use."""

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
        """A tensor by its name. Raises `UnreadableFile` if the file is damaged there."""
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
        """The dtype and shape of the tensor under a name."""
        if name in self._types:
            found = fields(self._types[name], "a type")
            return read_dtype(found.get("dtype")), sizes(found.get("shape"), "a shape")
        return self.file.type_of(name)

    def _memory(self, name: str) -> Tensor:
        """The bytes of a tensor as they lay in memory; in the file, elements are in logical order, whatever the strides."""
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
            copied = _OF_SIZE[dtype.itemsize]
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
    """How many elements of memory a tensor of this shape and these strides needs."""
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=False))
