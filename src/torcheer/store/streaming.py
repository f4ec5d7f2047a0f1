"""Writes the tensors that a recording keeps into a file as they are made, so that a history may be larger than memory.

In place of a tensor the recording holds a `Written`, which is its number here. Names are given last, when labels are known. A
tensor whose memory is in the file already, and was not overwritten since, is described as a view of that.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from ..capture.keep.keeper import version_of
from ..capture.restore.gc_pause import no_collections
from ..display import BytesProgress
from ..errors import CannotBeSaved
from ..files import WholeFile
from ..history import History
from ..shapes import contiguous_strides
from ..tensor_files import NAMES, Place, TensorWriter
from ..tensor_memory import needed_bytes, storage_part
from ..torch_internals import DisableTorchFunction, storage_address, without_transforms
from .saving import DOCUMENT, document_of, metadata, packed
from .tensor_forms import parts_of
from .tensor_layout import is_spread, refuse_class, touches_each_once, view_of, written_type
from .tensor_names import Written

_ROOM = 1 << 22  # bytes that are left for the header: enough for some ten thousand tensors

Json = dict[str, Any]


@dataclass(slots=True)
class _Memory:
    """Memory that is in the file: bytes `begin` to `end` of a storage, as a tensor that has each of them once."""

    storage: weakref.ref[Any]
    version: int
    begin: int
    end: int
    number: int
    tensor: Tensor  # of the same dtype, without memory


@dataclass(slots=True)
class _Piece:
    """One written tensor: its place in the file, the tensor it is a view of, or the tensors it is made of."""

    place: Place | None = None
    base: int | None = None
    view: Json | None = None  # without the name of its base
    form: Json | None = None
    parts: dict[str, int] | None = None
    strides: list[int] | None = None
    kind: Json | None = None  # type and shape, where it is written as another type


class Streaming:
    """The file of one recording, which takes its tensors as they are made. If the block raises, there is no file."""

    def __init__(self, path: Path) -> None:
        self._file = WholeFile(path, "history")
        self._progress = BytesProgress(str(path))
        self._pieces: list[_Piece] = []
        self._memories: dict[int, list[_Memory]] = {}  # by storage
        self._names: dict[int, str] = {}  # by number of a piece
        self._same: dict[str, str] = {}  # other names, and the name each stands for
        self._writer: TensorWriter | None = None
        self.refused: CannotBeSaved | None = None  # a tensor that no file can give back

    def __enter__(self) -> Streaming:
        self._file.__enter__()
        self._writer = TensorWriter(self._file, _ROOM, self._progress.reached)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is not None and self._writer is not None:
                self._writer.abandon()
        finally:
            self._file.__exit__(kind, error, trace)
            self._progress.__exit__(kind, error, trace)

    # As the model runs ------------------------------------------------------------------------------------------------

    def write(self, tensor: Tensor, what: str) -> Written:
        """Write a tensor. Returns the object that stands for it."""
        try:
            return self._write(tensor, what)
        except CannotBeSaved as error:
            self.refused = error
            raise

    def _write(self, tensor: Tensor, what: str) -> Written:
        with DisableTorchFunction(), without_transforms(), torch.no_grad():
            refuse_class(tensor, what)
            plain = tensor.detach()
            form = parts_of(plain, what)
            if form is None:
                return Written(self._strided(plain))
            facts, parts = form
            numbers = {key: self._write(part, what).number for key, part in parts.items()}
            return Written(self._add(_Piece(form=facts, parts=numbers)))

    def overwritten(self, storage: int) -> None:
        """Something is about to write to a storage: from now on the file does not have its values."""
        self._memories.pop(storage, None)

    def _add(self, piece: _Piece) -> int:
        self._pieces.append(piece)
        return len(self._pieces) - 1

    def _strided(self, tensor: Tensor) -> int:
        if not tensor.numel():
            return self._stored(tensor)
        begin, end = int(tensor.storage_offset()) * tensor.element_size(), needed_bytes(tensor)
        for known in self._memories.get(storage_address(tensor), ()):
            is_there = known.storage() is tensor.untyped_storage() and known.version == version_of(tensor)
            if known.begin <= begin and end <= known.end and is_there:
                offset, rest = divmod(begin - known.begin, tensor.element_size())
                if not rest and not (known.end - known.begin) % tensor.element_size():
                    return self._add(_Piece(base=known.number, view=view_of("", known.tensor, tensor, offset)))
        if is_spread(tensor, end - begin):
            return self._spread(tensor, begin, end)
        number = self._stored(tensor)
        if end - begin == tensor.nbytes and touches_each_once(tensor):
            self._remember(tensor, begin, end, number)
        return number

    def _spread(self, tensor: Tensor, begin: int, end: int) -> int:
        """Write the memory of a tensor instead of its values: elements of it overlap, or there are large gaps between them."""
        memory = storage_part(tensor, begin, end, tensor.dtype)
        number = self._stored(memory)
        self._remember(memory, begin, end, number)
        return self._add(_Piece(base=number, view=view_of("", memory, tensor, 0)))

    def _stored(self, tensor: Tensor) -> int:
        assert self._writer is not None
        piece = _Piece(place=self._writer.add(tensor))
        if tensor.stride() != contiguous_strides(tensor.shape):
            piece.strides = list(tensor.stride())
        if tensor.dtype not in NAMES:
            piece.kind = written_type(tensor)
        return self._add(piece)

    def _remember(self, tensor: Tensor, begin: int, end: int, number: int) -> None:
        there = self._memories.setdefault(storage_address(tensor), [])
        there[:] = [one for one in there if one.storage() is not None]
        storage, looks = weakref.ref(tensor.untyped_storage()), torch.empty(0, dtype=tensor.dtype, device="meta")
        there.append(_Memory(storage, version_of(tensor), begin, end, number, looks))

    # When it is over --------------------------------------------------------------------------------------------------

    def add(self, name: str, tensor: Any, what: str) -> str:
        """Give a tensor a name in the file. It is written if it is not in the file yet."""
        number = tensor.number if isinstance(tensor, Written) else self.write(tensor, what).number
        known = self._names.setdefault(number, name)
        if known != name:
            self._same[name] = known
        return known

    def finish(self, history: History) -> None:
        """Write everything else of a history, and the header."""
        assert self._writer is not None
        kept = set(range(len(history._log.rows)))
        with no_collections(), DisableTorchFunction():
            document = document_of(history, self, kept, params=False, gradients=False, sources=True)
            written = self._writer.add(packed(document))
            named, layout = self._layout()
            self._writer.finish({**named, DOCUMENT: written}, metadata(history._log, layout))

    def _layout(self) -> tuple[dict[str, Place], Json]:
        """The places by name, and what the header says of views, strides, forms and types."""
        self._name_what_is_used()
        layout: dict[str, Json] = {"views": {name: {"of": known} for name, known in self._same.items()}}
        layout |= {"strides": {}, "forms": {}, "types": {}}
        places: dict[str, Place] = {}
        for number, name in self._names.items():
            piece = self._pieces[number]
            if piece.place is not None:
                places[name] = piece.place
            if piece.view is not None and piece.base is not None:
                layout["views"][name] = {**piece.view, "of": self._names[piece.base]}
            if piece.form is not None:
                parts = {key: self._names[part] for key, part in (piece.parts or {}).items()}
                layout["forms"][name] = {**piece.form, "parts": parts}
            if piece.strides is not None:
                layout["strides"][name] = piece.strides
            if piece.kind is not None:
                layout["types"][name] = piece.kind
        return places, {key: value for key, value in layout.items() if value}

    def _name_what_is_used(self) -> None:
        """Name tensors without a name that others are views of or made of."""
        waiting = list(self._names)
        while waiting:
            number = waiting.pop()
            piece, name = self._pieces[number], self._names[number]
            used = {f"memory/{name}": piece.base} if piece.base is not None else {}
            used |= {f"{name}.{key}": part for key, part in (piece.parts or {}).items()}
            for other, part in used.items():
                if part is not None and part not in self._names:
                    self._names[part] = other
                    waiting.append(part)
