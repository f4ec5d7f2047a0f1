"""Gives a saved history the parameters of a model, after a check that it is the model that was logged."""

from __future__ import annotations

from typing import Any

from torch.nn import Module
from torch.nn.parameter import is_lazy

from ..capture.addresses import addressed, innermost, roots_of
from ..display import few
from ..errors import InvalidArgument, ModelMismatch
from ..records import Log, RegisteredModule
from ..shapes import shape_of
from ..state_records import AbsentTensor, is_parameter
from ..torch_internals import own_buffers, own_parameters
from .fingerprints import fingerprint

_NAMED = 3  # differences that an error names


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
            if root is None or not root.is_made_running:  # a module that the pass itself made is in no model
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
    """The parameters and buffers that are absent, with their names, and those that the model has there."""
    parameters, buffers = dict(own_parameters(module).items()), dict(own_buffers(module).items())  # TorchScript's have no `get`
    groups: Any = ((registered.parameters, parameters), (registered.buffers, buffers))
    return [
        (absent, name, there.get(name))
        for group, there in groups
        for name, absent in group.items()
        if isinstance(absent, AbsentTensor)
    ]


def _difference(absent: AbsentTensor, tensor: Any, is_used: bool) -> str:
    """How a tensor differs from the one that is absent, in words; empty where it does not."""
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
