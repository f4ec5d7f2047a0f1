"""Copies of tensors that existed before a pass, to be written back after it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from ...tensor_marks import Marks
from ...tensor_memory import has_memory, needed_bytes, storage_part
from ...torch_internals import address_of, base_of, is_functorch_wrapped, like_class_of, script_parts, write_count
from ..identity.tensor_table import extent, storage_of
from ..keep.keeper import version_of
from .write_counts import restore_count


class AutogradState:
    """What autograd knows of a tensor: whether it requires gradients, and the node it came from."""

    __slots__ = ("_is_required", "_node", "_root", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self._is_required = tensor.requires_grad
        base = base_of(tensor)
        self._root = base if base is not None else tensor  # torch makes the nodes of views anew when their memory is written
        self._node = self._root.grad_fn

    @property
    def is_changed(self) -> bool:
        return self._root.grad_fn is not self._node or self.tensor.requires_grad is not self._is_required

    @property
    def can_be_restored(self) -> bool:
        """False where torch has no way back: the tensor had a node, or is a view of a tensor that was written to."""
        return self._root.grad_fn is self._node or (self._node is None and self._root is self.tensor)

    def restore(self) -> None:
        """Make the tensor what it was. Raises where torch has no way back."""
        tensor = self.tensor
        if self._root.grad_fn is not self._node:
            if not self.can_be_restored:
                raise RuntimeError("the pass wrote to it in place, and what autograd knows of it cannot be put back")
            tensor.detach_()
        if tensor.requires_grad is not self._is_required:
            tensor.requires_grad_(self._is_required)


class TensorBackup:
    """What one tensor referred to (its storage, shape and strides), the values in it, and how often torch had counted a write.

    Where torch would refuse to write through the tensor (its elements overlap, as those of an expanded tensor do), the bytes
    of the storage are copied instead. With `is_suspected` nothing is known to write to the tensor, so it is compared first and
    only written if it changed: its memory may be read-only.
    """

    __slots__ = ("_copy", "_in_bytes", "_writes", "is_suspected", "tensor", "view")

    def __init__(self, tensor: Tensor, *, is_suspected: bool) -> None:
        self.tensor = tensor
        self.view = view = tensor.data
        self.is_suspected = is_suspected
        self._writes = version_of(tensor)
        self._in_bytes = False
        self._copy: Tensor | None = None
        if has_memory(view):
            # copy_ can write to every contiguous tensor, and to those that are not strided
            self._in_bytes = (is_suspected or not (view.layout is torch.strided and view.is_contiguous())) and _is_strided(view)
            self._copy = _bytes_of(view).clone() if self._in_bytes else tensor.detach().clone()

    def restore(self) -> None:
        """Make the tensor refer to the same memory as before, and write the old values into it."""
        tensor, view = self.tensor, self.view
        if not _is_same(tensor, view):
            tensor.data = view
        if self._copy is None:
            return
        if not has_memory(view):
            view.untyped_storage().resize_(needed_bytes(view))
        if self._in_bytes:
            memory = _bytes_of(view)
            if not self.is_suspected or not torch.equal(memory, self._copy):
                memory.copy_(self._copy)
        elif tensor.is_inference():
            with torch.inference_mode():
                view.copy_(self._copy)
        else:
            view.copy_(self._copy)

    def again(self) -> TensorBackup:
        return TensorBackup(self.tensor, is_suspected=False)

    @property
    def subject(self) -> Tensor:
        return self.tensor

    @property
    def is_changed(self) -> bool:
        """True where the tensor was written to, or refers to other memory. With `is_suspected` values are compared."""
        if not self.is_suspected or version_of(self.tensor) != self._writes or not _is_same(self.tensor, self.view):
            return True
        if self._copy is None or not has_memory(self.view):
            return self._copy is not None
        now = _bytes_of(self.view) if self._in_bytes else self.view
        try:
            return not torch.equal(now, self._copy)
        except RuntimeError:  # torch does not compare some layouts
            return True

    def restore_count(self) -> None:
        """Make torch count no write since the copy was made."""
        restore_count(self.tensor, self._writes)


class UncopiedTensors:
    """What tensors referred to, and marks of the values: other memory is taken back, other values are only noticed."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        self._views = [tensor.data for tensor in tensors]
        self._marks = Marks(self._views, range(len(tensors)))

    def restore(self) -> list[Tensor]:
        """Make the tensors refer to the same memory as before. Returns the tensors with other values in that memory."""
        for tensor, view in zip(self._tensors, self._views, strict=True):
            if not _is_same(tensor, view):
                tensor.data = view
        now = Marks(self._views, range(len(self._views)))
        return [tensor for at, tensor in enumerate(self._tensors) if not self._marks.is_same_sample(at, now, at)]


def _is_same(tensor: Tensor, view: Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory."""
    try:
        return tensor.is_set_to(view) and tensor.dtype is view.dtype
    except RuntimeError:  # not strided; nested tensors have no shape to ask for
        return storage_of(tensor) == storage_of(view) and (tensor.is_nested or tensor.shape == view.shape)


def _is_strided(tensor: Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and type(tensor) in (Tensor, Parameter)
        and not (tensor.is_nested or is_functorch_wrapped(tensor) or storage_of(tensor) is None)
    )


def _bytes_of(tensor: Tensor) -> Tensor:
    """The bytes of the storage from the first to the last element of a strided tensor, as a tensor on the same memory."""
    start, stop, _ = extent(tensor)
    return storage_part(tensor, start, stop)


def lazy_twin(tensor: Tensor) -> Tensor:
    """Another uninitialised parameter or buffer like this one."""
    twin = like_class_of(tensor, tensor.data.clone())
    twin.__dict__.update(tensor.__dict__)
    return twin


class StorageSizes:
    """How large storages were and how often torch had counted a write to them, of parameters, buffers and inputs.

    Frees and writes that no torch function announced show here when the pass is over.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors
        try:
            self._storages: list[Any] = [tensor.untyped_storage() for tensor in tensors]
            self._versions: list[int] = list(map(write_count, tensors))
        except Exception:  # sparse ones have no storage, inference tensors no version, subclasses may raise anything
            self._tensors = [tensor for tensor in tensors if _has_storage_and_version(tensor)]
            self._storages = [tensor.untyped_storage() for tensor in self._tensors]
            self._versions = list(map(write_count, self._tensors))
        self._sizes: list[int] = [storage.nbytes() for storage in self._storages]

    def without_memory(self) -> Iterable[Tensor]:
        """The tensors whose memory was freed before the pass began; FSDP leaves parameters like this."""
        pairs = zip(self._tensors, self._sizes, strict=True)
        return [tensor for tensor, size in pairs if size < tensor.nbytes and size < needed_bytes(tensor)]

    def freed(self) -> list[tuple[Tensor, str]]:
        """The tensors whose memory is gone, and what happened to it."""
        sizes = [storage.nbytes() for storage in self._storages]
        if sizes == self._sizes:
            return []
        found = []
        for tensor, storage, size, now in zip(self._tensors, self._storages, self._sizes, sizes, strict=True):
            if now < size and storage_of(tensor) == address_of(storage) and not has_memory(tensor):
                found.append((tensor, f"its storage was resized from {size:,} to {now:,} bytes, so its values are gone"))
        return found

    def written(self) -> list[Tensor]:
        """The tensors that torch counted a write to."""
        versions = list(map(write_count, self._tensors))
        if versions == self._versions:
            return []
        rows = zip(self._tensors, self._versions, versions, strict=True)
        return [tensor for tensor, before, now in rows if now != before]


def _has_storage_and_version(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
        return write_count(tensor) >= 0
    except Exception:
        return False


class ScriptAttributes:
    """The attributes of a TorchScript module, which live in C++: numbers, lists, dictionaries, tensors."""

    def __init__(self, module: Module) -> None:
        script: Any = vars(module)
        self.subject = module
        self._script, kind = script_parts(script)  # a hand-written torch.jit.ScriptModule may have none
        names = kind.get_attributes() if kind is not None and self._script is not None else {}
        values = {name: self._script.getattr(name) for name in names if self._script.hasattr(name)}
        self.values = {name: value for name, value in values.items() if _is_plain(value)}

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in self.values.values() if isinstance(value, Tensor)]

    def again(self) -> ScriptAttributes:
        return ScriptAttributes(self.subject)

    @property
    def is_changed(self) -> bool:
        """True where an attribute differs. Lists and dictionaries of tensors are new each time they are read."""
        return any(not self._is_now(name, value) for name, value in self.values.items())

    def _is_now(self, name: str, value: Any) -> bool:
        now = self._script.getattr(name)
        return now is value or (not _holds_tensors(value) and type(now) is type(value) and bool(now == value))

    def restore(self) -> None:
        """Set the attributes that differ."""
        for name, value in self.values.items():
            if not self._is_now(name, value):
                self._script.setattr(name, value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return value is None or isinstance(value, (bool, int, float, complex, str, Tensor))


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensors, value))
    return any(map(_holds_tensors, value.values())) if isinstance(value, dict) else isinstance(value, Tensor)
