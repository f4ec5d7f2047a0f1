"""Writes a history into one file: tensors by name, and one compressed JSON document of everything else.

`save_history` writes a finished history; `Streaming` writes kept tensors while the model runs, so that a history may be larger
than memory.
"""

from __future__ import annotations

import json
import platform
import weakref
import zlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .._files.files import WholeFile
from .._files.tensor_files import Place, TensorWriter, write_tensors
from .._text import BytesProgress
from .._torch.gc_pause import no_collections
from .._torch.internals import DisableTorchFunction, storage_address, untraced, without_transforms
from .._torch.memory import may_overlap, needed_bytes, storage_part, version_of
from ..errors import CannotBeSaved, InvalidArgument
from ..log.keys import Key, Text
from ..log.options import LayersToSave, parse_layers_to_save
from ..log.records import FACTS, UNSAVED, Log
from ..log.run import LoggedRun
from .log_writing import HIDDEN, LogWriter
from .tensors import Layout, TensorNames, Written, facts_of_written, is_spread, refuse_class, view_of
from .values import parts_of

FORMAT = "torcheer history"
VERSION = 1
DOCUMENT = "history/document"
_LEVEL = 1  # compress at this level: higher levels make columns of numbers hardly smaller
MOST_SHRUNK = 50  # a document may be at most this many times longer than its compressed form; a reader refuses more


def save_history(
    run: LoggedRun,
    path: Path,
    *,
    activations: LayersToSave = "all",
    params: bool = False,
    gradients: bool = True,
    sources: bool = True,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a history to a file; the docstring of `ModelHistory.save` explains the options."""
    for name, value in (("params", params), ("gradients", gradients), ("sources", sources)):
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is True or False; got {value!r}.")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgument(f"dtype is a floating-point type such as torch.float16, or None; got {dtype!r}.")
    with no_collections(), DisableTorchFunction():
        layout = Layout()
        kept = _chosen(run, activations)
        document = document_of(run, layout, kept, params=params, gradients=gradients, sources=sources)
        layout.settle()
        if dtype is not None:
            note = f"activations were saved as {str(dtype)[6:]}, which is not what they were"
            document |= {"holds_tensors": False, "notes": [*document["notes"], note]}
            _convert(layout, dtype)
        tensors = {**layout.stored, DOCUMENT: packed(document)}
        with BytesProgress(str(path), sum(tensor.nbytes for tensor in tensors.values())) as progress:
            write_tensors(path, tensors, metadata(run.log, layout.facts()), "history", progress.reached)


def _convert(layout: Layout, dtype: torch.dtype) -> None:
    """Write floating-point activations and gradients as another dtype. Their views get this dtype, too."""
    fixed = {part for form in layout.forms.values() for part in form["parts"].values()}
    # memory that views read as several dtypes keeps its dtype
    fixed |= {view["of"] for view in layout.views.values() if "dtype" in view}
    for name, tensor in layout.stored.items():
        if tensor.is_floating_point() and tensor.dtype != dtype and name not in fixed and not name.startswith("params/"):
            layout.stored[name] = tensor.to(dtype)
            layout.types.pop(name, None)


def _chosen(run: LoggedRun, activations: LayersToSave) -> set[int]:
    """The operations whose activations are to be saved."""
    wanted = parse_layers_to_save(activations, "activations")
    if wanted == "none":
        return set()
    log = run.log
    if wanted == "modules":
        return {number for call in log.modules for number in call.outputs if number >= 0}
    if isinstance(wanted, Key):
        return {number for number in run.lookup.meaning(wanted).numbers if number >= 0}
    return set(range(len(log.rows)))


def document_of(
    run: LoggedRun, tensors: TensorNames, kept: set[int], *, params: bool, gradients: bool, sources: bool
) -> dict[str, Any]:
    """Write the document of a history. Passes its tensors to `tensors`, which names them."""
    log, index = run.log, run.index
    names = _names_of(run)

    def label_of(number: int) -> str:
        if number < 0:
            return index.state_name(index.state(number))
        return names.get(number) or f"{HIDDEN}{number}"

    writer = LogWriter(log, tensors, label_of, has_sources=sources)
    every = {number: label_of(number) for number in range(len(log.rows))} if len(names) < len(log.rows) else names
    document: dict[str, Any] = writer.document(kept, every, gradients=gradients, params=params)
    if len(kept) < len(log.rows):
        document["details"] = [
            [number, {key: value for key, value in details.items() if key != "held" or number in kept}]
            for number, details in document["details"]
        ]
    document["first_passes"] = index.table.first_passes
    document["options"] = _written_options(run)
    return document


def _names_of(run: LoggedRun) -> dict[int, str]:
    """Maps each operation except orphans to its label with the pass number, `conv2d_3_7:1`."""
    table = run.index.table
    names: dict[int, str] = {}
    for layer in table.layers:
        label = table.label(layer)
        for turn, number in enumerate(layer.passes, 1):
            names[number] = f"{label}:{turn}"
    return names


def _written_options(run: LoggedRun) -> dict[str, Any]:
    options = run.options
    wanted = {}
    for name in ("layers_to_save", "save_gradients"):
        value = getattr(options, name)
        wanted[name] = value.text if isinstance(value, Text) else value if isinstance(value, str) else "all"
    names = ("time_on_device", "keep_orphans", "layer_label_format", "unseen")
    return {**wanted, **{name: getattr(options, name) for name in names}}


def packed(document: dict[str, Any]) -> Tensor:
    """Convert a document to the form it has in the file: the bytes of compressed JSON."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    data = zlib.compress(text, _LEVEL)
    if len(text) > MOST_SHRUNK * len(data):
        data = zlib.compress(text, 0)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def metadata(log: Log, layout: dict[str, Any]) -> dict[str, str]:
    """The metadata in the header: what the file is, which versions made it, and which tensors are views of which."""
    devices = sorted({str(row[FACTS][2]) for row in log.rows if row[FACTS] is not None})
    about = {"format": FORMAT, "version": str(VERSION), "document": DOCUMENT, "title": log.title, "torcheer": _version()}
    about |= {"torch": torch.__version__, "python": platform.python_version(), "platform": platform.platform()}
    about |= {"devices": ", ".join(devices or _device_of_values(log))}
    return about | {"layout": json.dumps(layout, separators=(",", ":"))}


@cache
def _version() -> str:
    try:
        return version("torcheer")
    except PackageNotFoundError:  # torcheer is run from a source tree that was never installed
        return ""


def _device_of_values(log: Log) -> list[str]:
    return sorted({str(value.device) for value in log.values[:64] if value is not UNSAVED and isinstance(value, Tensor)})


# Writes the tensors that a recording keeps into a file as they are made.
#
# The recording holds a `Written`, a number, in place of each tensor. Names are assigned at the end, when labels are known. If
# a tensor's memory is in the file already, and was not overwritten since, the tensor is described as a view.

_ROOM = 1 << 22  # leave this many bytes for the header: enough for some ten thousand tensors

Json = dict[str, Any]


@dataclass(slots=True)
class _Memory:
    """A part of a storage that is in the file, from byte `begin` to `end`. The file has each byte of it once."""

    storage: weakref.ref[Any]
    version: int
    begin: int
    end: int
    number: int
    tensor: Tensor  # has the dtype of the memory, but no memory


class Streaming:
    """The file of one recording. Tensors are written as the model makes them. If the block raises, no file is left."""

    def __init__(self, path: Path) -> None:
        self._file = WholeFile(path, "history")
        self._progress = BytesProgress(str(path))
        # by number of a tensor: its `place` in the file, or what the header will say of it; other tensors are given by number
        self._pieces: list[Json] = []
        self._memories: dict[int, list[_Memory]] = {}  # storage -> its memory that is in the file
        self._names: dict[int, str] = {}  # number of a tensor -> its name
        self._same: dict[str, str] = {}  # other name of a tensor -> the name that it stands for
        self._writer: TensorWriter | None = None
        self.refused: CannotBeSaved | None = None  # the error for a tensor that no file can give back

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
        """Write a tensor. Returns the `Written` that stands for it."""
        try:
            return self._write(tensor, what)
        except CannotBeSaved as error:
            self.refused = error
            raise

    def _write(self, tensor: Tensor, what: str) -> Written:
        with untraced(), DisableTorchFunction(), without_transforms(), torch.no_grad():
            refuse_class(tensor, what)
            plain = tensor.detach()
            form = parts_of(plain, what)
            if form is None:
                return Written(self._strided(plain))
            facts, parts = form
            numbers = {key: self._write(part, what).number for key, part in parts.items()}
            return Written(self._add({"forms": {**facts, "parts": numbers}}))

    def overwritten(self, storage: int) -> None:
        """Called before a call writes to a storage: from then on, the bytes in the file are not those of the storage."""
        self._memories.pop(storage, None)

    def _add(self, piece: Json) -> int:
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
                    return self._add({"views": view_of(known.number, known.tensor, tensor, offset)})
        if is_spread(tensor, end - begin):
            return self._spread(tensor, begin, end)
        number = self._stored(tensor)
        if end - begin == tensor.nbytes and not may_overlap(tensor):
            self._remember(tensor, begin, end, number)
        return number

    def _spread(self, tensor: Tensor, begin: int, end: int) -> int:
        """Write the memory of a tensor instead of its values, because its elements overlap or have large gaps between them."""
        memory = storage_part(tensor, begin, end, tensor.dtype)
        number = self._stored(memory)
        self._remember(memory, begin, end, number)
        return self._add({"views": view_of(number, memory, tensor, 0)})

    def _stored(self, tensor: Tensor) -> int:
        assert self._writer is not None
        return self._add({"place": self._writer.add(tensor), **facts_of_written(tensor)})

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

    def finish(self, run: LoggedRun) -> None:
        """Write everything else of a history, and the header."""
        assert self._writer is not None
        kept = set(range(len(run.log.rows)))
        with no_collections(), DisableTorchFunction():
            document = document_of(run, self, kept, params=False, gradients=False, sources=True)
            written = self._writer.add(packed(document))
            named, layout = self._layout()
            self._writer.finish({**named, DOCUMENT: written}, metadata(run.log, layout))

    def _layout(self) -> tuple[dict[str, Place], Json]:
        """Return the places of tensors by name, and the part of the header about views, strides, forms and dtypes."""
        self._name_what_is_used()
        layout: dict[str, Json] = {"views": {name: {"of": known} for name, known in self._same.items()}}
        layout |= {"strides": {}, "forms": {}, "types": {}}
        places: dict[str, Place] = {}
        for number, name in self._names.items():
            for key, fact in self._pieces[number].items():
                if key == "place":
                    places[name] = fact
                elif key == "views":
                    layout[key][name] = {**fact, "of": self._names[fact["of"]]}
                elif key == "forms":
                    layout[key][name] = {**fact, "parts": {part: self._names[one] for part, one in fact["parts"].items()}}
                else:
                    layout[key][name] = fact
        return places, {key: value for key, value in layout.items() if value}

    def _name_what_is_used(self) -> None:
        """Give names to unnamed tensors that other tensors are views of or made of."""
        waiting = list(self._names)
        while waiting:
            number = waiting.pop()
            piece, name = self._pieces[number], self._names[number]
            used = {f"memory/{name}": piece["views"]["of"]} if "views" in piece else {}
            used |= {f"{name}.{key}": part for key, part in piece.get("forms", {}).get("parts", {}).items()}
            for other, part in used.items():
                if part not in self._names:
                    self._names[part] = other
                    waiting.append(part)
