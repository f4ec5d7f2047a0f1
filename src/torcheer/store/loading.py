"""Reads a saved history. No code in a file is run; a damaged file raises an error that says what is wrong."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ..capture.restore.gc_pause import no_collections
from ..errors import HistoryNotFound, InvalidArgument, TorcheerError, UnreadableFile
from ..history.keeping.options import Options
from ..records import Log
from ..tensor_files import TensorFile
from ..torch_internals import DisableTorchFunction
from .checking import fields, refuse, text
from .function_names import Functions
from .log_reading import LogReader
from .saved_tensors import SavedTensors
from .saving import DOCUMENT, FORMAT, MOST_SHRUNK, VERSION

_SMALL = 1 << 20  # bytes that a document may have in any case


def load_log(path: Path, functions: Iterable[Any] = ()) -> tuple[Log, Options]:
    """The log and the options of a saved history. No tensor is read yet."""
    known = Functions(functions)
    try:
        with no_collections(), DisableTorchFunction(), torch.inference_mode(False):
            file = TensorFile(path)
            _check_format(file)
            document = _unpacked(file)
            reader = LogReader(document, SavedTensors(file), known)
            return reader.read(), _options(document.get("options"))
    except FileNotFoundError as error:
        raise HistoryNotFound(f"there is no file {str(path)!r}.") from error
    except OSError as error:
        raise HistoryNotFound(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnreadableFile as error:
        raise UnreadableFile(f"{str(path)!r} cannot be read as a saved history: {error}.") from None
    except TorcheerError:
        raise
    except Exception as error:  # a damaged file may lead to any other error
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as a saved history: it is damaged ({type(error).__name__}: {error})."
        ) from error


def is_history(path: Path) -> bool:
    """Whether a file is a saved history, or says that it is one."""
    try:
        return TensorFile(path).metadata.get("format") == FORMAT
    except (OSError, UnreadableFile):
        return False


def _check_format(file: TensorFile) -> None:
    if file.metadata.get("format") != FORMAT:
        refuse("it is a file of tensors, but history.save did not write it")
    version = file.metadata.get("version", "")
    if version != str(VERSION):
        refuse(f"it has version {version[:20]!r} of the format, and this torcheer reads version {VERSION}")
    if DOCUMENT not in file.places:
        refuse("it has no document")


def _unpacked(file: TensorFile) -> dict[str, Any]:
    data = file.bytes(DOCUMENT)
    most = _SMALL + MOST_SHRUNK * len(data)
    unpacking = zlib.decompressobj()
    try:
        document = unpacking.decompress(data, most)
        if unpacking.unconsumed_tail or unpacking.unused_data or not unpacking.eof:
            refuse("its document was cut, or is longer than it may be")
        found = json.loads(document, parse_constant=refuse)
    except (zlib.error, ValueError, RecursionError) as error:
        refuse(f"its document is damaged ({error})")
    return fields(found, "the document")


def _options(written: Any) -> Options:
    """The options of the recording."""
    found = fields(written, "the options")
    names = ("layers_to_save", "save_gradients", "layer_label_format", "unseen")
    options: dict[str, Any] = {name: text(found.get(name), name) for name in names}
    try:
        return Options(**options, time_on_device=found.get("time_on_device"), keep_orphans=found.get("keep_orphans"))  # type: ignore[arg-type]  # Options looks
    except InvalidArgument as error:
        refuse(str(error))
