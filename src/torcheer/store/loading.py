"""Loads a saved history (`load_run`), and gives it the parameters of a model (`bind`).

No code in a file is run; a damaged file raises an error that says what is wrong. `bind` first checks that the model is the
logged one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy

from .._cleanup import pass_interrupts_on
from .._files.tensor_files import TensorFile
from .._text import few
from .._torch.addresses import addressed, innermost, roots_of
from .._torch.gc_pause import no_collections
from .._torch.internals import DisableTorchFunction, own_buffers, own_parameters
from .._torch.shapes import shape_of
from ..errors import HistoryNotFound, InvalidArgument, ModelMismatch, TorcheerError, UnreadableFile
from ..log.options import Options
from ..log.records import AbsentTensor, Log, RegisteredModule, is_parameter
from ..log.run import LoggedRun
from .checking import fields, refuse, text
from .function_names import Functions
from .log_parts import fingerprint
from .log_reading import LogReader
from .saving import DOCUMENT, FORMAT, MOST_SHRUNK, VERSION
from .tensors import SavedTensors

_NAMED = 3  # an error names at most this many differences


def bind(log: Log, model: Any) -> None:
    """Use a model's parameters and buffers where a saved history has none. Raises `ModelMismatch` if they differ."""
    modules = _modules_of(model)
    used = {id(tensor) for tensor in log.states.tensors}
    found: dict[int, Any] = {}
    differences: list[str] = []
    for address, registered in log.registered.items():
        module = modules.get(address)
        if module is None:
            root = log.root_of(address)
            if root is None or not root.is_made_running:  # a module that the pass itself made is not in the user's model
                differences.append(f"it has no module {address!r}")
            continue
        for absent, name, tensor in _pairs(registered, module):
            found[id(absent)] = tensor
            difference = _difference(absent, tensor, id(absent) in used)
            if difference:
                differences.append(f"{registered.full_name(name)!r} {difference}")
    if differences:
        raise ModelMismatch(
            f"the model is not the one that {log.title!r} was logged with: {few(differences, _NAMED, '; ')}. Load its "
            "weights of then first, or load without model=; a history saved with params=True needs no model."
        )
    for registered in log.registered.values():
        registered.parameters = {name: found.get(id(one), one) for name, one in registered.parameters.items()}
        registered.buffers = {name: found.get(id(one), one) for name, one in registered.buffers.items()}
    log.states.tensors = [found.get(id(one), one) for one in log.states.tensors]
    if not any(state.is_absent for state in log.states):
        log.states.mark()


def _modules_of(model: Any) -> dict[str, Module]:
    roots = roots_of(innermost(model)) if callable(model) else []
    if not roots:
        raise InvalidArgument(f"model is the model that was logged, an nn.Module; got {type(model).__name__}: {model!r:.60}.")
    known: set[int] = set()
    found: dict[str, Module] = {}
    for root, prefix in roots:
        for address, module in addressed(root, prefix, known):
            known.add(id(module))
            if address is not None:
                found[address] = module
    return found


def _pairs(registered: RegisteredModule, module: Module) -> list[tuple[AbsentTensor, str, Any]]:
    """List (absent tensor, name, tensor of the model) for each absent parameter and buffer of a module."""
    # TorchScript's dictionaries have no `get`
    parameters, buffers = dict(own_parameters(module).items()), dict(own_buffers(module).items())
    groups: Any = ((registered.parameters, parameters), (registered.buffers, buffers))
    return [
        (absent, name, there.get(name))
        for group, there in groups
        for name, absent in group.items()
        if isinstance(absent, AbsentTensor)
    ]


def _difference(absent: AbsentTensor, tensor: Any, is_used: bool) -> str:
    """A text that says how a tensor of the model differs from the absent tensor; empty if it does not differ."""
    if tensor is None:
        return "is missing"
    if is_lazy(tensor):
        return "is uninitialised"
    if shape_of(tensor) != absent.shape and absent.shape != (0,):
        return f"has the shape {shape_of(tensor)}, not {absent.shape}"
    if tensor.dtype != absent.dtype or is_parameter(tensor) != absent.is_parameter:
        return f"is {tensor.dtype}, not {absent.dtype}"
    if not is_used:
        return ""
    if not absent.fingerprint:
        return "was changed before the history was saved, or cannot be read, so the values it had are not known"
    return "" if fingerprint(tensor) == absent.fingerprint else "has other values"


# Reads a saved history.

_SMALL = 1 << 20  # a document may always have this many bytes, however small its compressed form is


def load_run(path: Path, functions: Iterable[Any] = ()) -> LoggedRun:
    """Read a saved run. Its tensors are not read yet."""
    known = Functions(functions)
    try:
        with no_collections(), DisableTorchFunction(), torch.inference_mode(False):
            file = TensorFile(path)
            _check_format(file)
            document = _unpacked(file)
            reader = LogReader(document, SavedTensors(file), known)
            return LoggedRun(reader.read(), _options(document.get("options")))
    except FileNotFoundError as error:
        raise HistoryNotFound(f"there is no file {str(path)!r}.") from error
    except OSError as error:
        raise HistoryNotFound(f"{str(path)!r} cannot be read: {error.strerror or error}.") from error
    except UnreadableFile as error:
        raise UnreadableFile(f"{str(path)!r} cannot be read as a saved history: {error}.") from None
    except TorcheerError:
        raise
    except Exception as error:  # a damaged file may lead to any other error
        pass_interrupts_on(error)
        raise UnreadableFile(
            f"{str(path)!r} cannot be read as a saved history: it is damaged ({type(error).__name__}: {error})."
        ) from error


def is_history(path: Path) -> bool:
    """True if a file is a saved history, or its header says that it is."""
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
