"""Writes a history into one file: tensors by name, and one compressed JSON document of everything else."""

from __future__ import annotations

import json
import platform
import zlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..capture.restore.gc_pause import no_collections
from ..display import BytesProgress
from ..errors import InvalidArgument
from ..history import History
from ..history.keeping.selection import LayersToSave, parse_layers_to_save
from ..keys import Key, Text
from ..records import FACTS, UNSAVED, Log
from ..tensor_files import write_tensors
from ..torch_internals import DisableTorchFunction
from .log_writing import HIDDEN, LogWriter
from .tensor_layout import Layout
from .tensor_names import TensorNames

FORMAT = "torcheer history"
VERSION = 1
DOCUMENT = "history/document"
_LEVEL = 1  # of compression: higher ones make columns of numbers hardly smaller
MOST_SHRUNK = 50  # the most times that a document is longer than its compressed form; a reader refuses more


def save_history(
    history: History,
    path: Path,
    *,
    activations: LayersToSave = "all",
    params: bool = False,
    gradients: bool = True,
    sources: bool = True,
    dtype: torch.dtype | None = None,
) -> None:
    """Write a history to a file; `ModelHistory.save` says what the options mean."""
    for name, value in (("params", params), ("gradients", gradients), ("sources", sources)):
        if not isinstance(value, bool):
            raise InvalidArgument(f"{name} is True or False; got {value!r}.")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise InvalidArgument(f"dtype is a floating-point type such as torch.float16, or None; got {dtype!r}.")
    with no_collections(), DisableTorchFunction():
        layout = Layout()
        kept = _chosen(history, activations)
        document = document_of(history, layout, kept, params=params, gradients=gradients, sources=sources)
        layout.settle()
        if dtype is not None:
            note = f"activations were saved as {str(dtype)[6:]}, which is not what they were"
            document |= {"holds_tensors": False, "notes": [*document["notes"], note]}
            _convert(layout, dtype)
        tensors = {**layout.stored, DOCUMENT: packed(document)}
        with BytesProgress(str(path), sum(tensor.nbytes for tensor in tensors.values())) as progress:
            write_tensors(path, tensors, metadata(history._log, layout.facts()), "history", progress.reached)


def _convert(layout: Layout, dtype: torch.dtype) -> None:
    """Write floating-point activations and gradients as another type. Their views are then of that type, too."""
    fixed = {part for form in layout.forms.values() for part in form["parts"].values()}
    fixed |= {view["of"] for view in layout.views.values() if "dtype" in view}  # memory that is seen as several types
    for name, tensor in layout.stored.items():
        if tensor.is_floating_point() and tensor.dtype != dtype and name not in fixed and not name.startswith("params/"):
            layout.stored[name] = tensor.to(dtype)
            layout.types.pop(name, None)


def _chosen(history: History, activations: LayersToSave) -> set[int]:
    """The operations whose activations are to be saved."""
    wanted = parse_layers_to_save(activations, "activations")
    if wanted == "none":
        return set()
    log = history._log
    if wanted == "modules":
        return {number for call in log.modules for number in call.outputs if number >= 0}
    if isinstance(wanted, Key):
        return {number for number in history._lookup.meaning(wanted).numbers if number >= 0}
    return set(range(len(log.rows)))


def document_of(
    history: History, tensors: TensorNames, kept: set[int], *, params: bool, gradients: bool, sources: bool
) -> dict[str, Any]:
    """The document of a history. Its tensors are given to `tensors`, which names them."""
    log, index = history._log, history._index
    names = _names_of(history)

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
    document["options"] = _written_options(history)
    return document


def _names_of(history: History) -> dict[int, str]:
    """By operation: its label with its pass, `conv2d_3_7:1`. Orphans have none."""
    table = history._index.table
    names: dict[int, str] = {}
    for layer in table.layers:
        label = table.label(layer)
        for turn, number in enumerate(layer.passes, 1):
            names[number] = f"{label}:{turn}"
    return names


def _written_options(history: History) -> dict[str, Any]:
    options = history._options
    wanted = {}
    for name in ("layers_to_save", "save_gradients"):
        value = getattr(options, name)
        wanted[name] = value.text if isinstance(value, Text) else value if isinstance(value, str) else "all"
    names = ("time_on_device", "keep_orphans", "layer_label_format", "unseen")
    return {**wanted, **{name: getattr(options, name) for name in names}}


def packed(document: dict[str, Any]) -> Tensor:
    """A document as it is in the file: the bytes of compressed JSON."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    data = zlib.compress(text, _LEVEL)
    if len(text) > MOST_SHRUNK * len(data):
        data = zlib.compress(text, 0)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def metadata(log: Log, layout: dict[str, Any]) -> dict[str, str]:
    """The metadata in the header of the file: what it is, where it was made, and which tensors are views of which."""
    devices = sorted({str(row[FACTS][2]) for row in log.rows if row[FACTS] is not None})
    about = {"format": FORMAT, "version": str(VERSION), "document": DOCUMENT, "title": log.title, "torcheer": _version()}
    about |= {"torch": torch.__version__, "python": platform.python_version(), "platform": platform.platform()}
    about |= {"devices": ", ".join(devices or _device_of_values(log))}
    return about | {"layout": json.dumps(layout, separators=(",", ":"))}


@cache
def _version() -> str:
    try:
        return version("torcheer")
    except PackageNotFoundError:  # a source tree that was never installed
        return ""


def _device_of_values(log: Log) -> list[str]:
    return sorted({str(value.device) for value in log.values[:64] if value is not UNSAVED and isinstance(value, Tensor)})
