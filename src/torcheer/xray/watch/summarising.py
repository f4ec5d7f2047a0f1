"""Summaries: a few numbers of every layer with parameters, watched or not, which cost little.

Norms are read where the tensors are; nothing is copied but a sample of each parameter, which tells how far steps move it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from ...history import History, Operation
from ...measure import dense, norm, real
from ..snapshots.sampling import Measured
from .layer_finder import activation_after, can_die, core_of, dimensions_of

_SAMPLE = 1 << 14  # values of a parameter that are compared before and after a step
_PARAMETRIZATIONS = ".parametrizations."


@dataclass(slots=True)
class Reading:
    """What was read of one layer at one moment."""

    layer: str
    parameters: int
    norm: float
    nonfinite: int
    sample: Tensor  # values of its parameters, always the same ones
    activation: Measured | None
    grad_norm: float | None = None
    grad_nonfinite: int = 0


def layers_with_parameters(model: Module) -> dict[str, list[str]]:
    """By layer the names of its own parameters. A parameter of the model itself is a layer of its own name; a model that is one
    of torch's layers has the name of its class.
    """
    found: dict[str, list[str]] = {}
    is_layer = type(model).__module__.startswith("torch.nn.")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not is_lazy(parameter):
            address = name.partition(_PARAMETRIZATIONS)[0] if _PARAMETRIZATIONS in name else name.rpartition(".")[0]
            found.setdefault(address or (type(model).__name__ if is_layer else name), []).append(name)
    return found


class Summariser:
    """Reads every layer with parameters of one model."""

    def __init__(self, model: Module, looked: History) -> None:
        self._model = model
        self._layers = layers_with_parameters(model)
        self._activations = _activations(looked, self._layers)

    def samples(self, moved: Collection[str] | None = None) -> dict[str, Tensor]:
        """By layer, a copy of some values of its parameters; of small ones all. Only of layers whose parameters are all moved,
        where those are given.
        """
        known, layers = self._now()
        return {
            layer: _sample([known[name] for name in names])
            for layer, names in layers.items()
            if moved is None or (names and all(name in moved or not known[name].requires_grad for name in names))
        }

    def read(self, history: History, gradients: dict[str, Tensor]) -> list[Reading]:
        """Every layer as it is now. Gradients that were worked out stand in for those that are missing."""
        known, layers = self._now()
        found_grads = {name: one.grad if one.grad is not None else gradients.get(name) for name, one in known.items()}
        grads = {name: grad for name, grad in found_grads.items() if grad is not None}
        norms, grad_norms, samples = _norms(known), _norms(grads), self.samples()
        found = []
        for layer, names in layers.items():
            if not names:
                continue
            reading = Reading(
                layer,
                sum(known[name].numel() for name in names),
                math.hypot(*(norms[name][0] for name in names)),
                sum(norms[name][1] for name in names),
                samples[layer],
                self._activation(layer, history),
            )
            with_gradient = [name for name in names if name in grads]
            if with_gradient:
                reading.grad_norm = math.hypot(*(grad_norms[name][0] for name in with_gradient))
                reading.grad_nonfinite = sum(grad_norms[name][1] for name in with_gradient)
            found.append(reading)
        return found

    def _now(self) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
        """The parameters by name, and by layer the names of those it still has."""
        named = self._model.named_parameters(remove_duplicate=False)
        known: dict[str, Tensor] = {name: one for name, one in named if not is_lazy(one)}
        return known, {layer: [name for name in names if name in known] for layer, names in self._layers.items()}

    def _activation(self, layer: str, history: History) -> Measured | None:
        """What the activation function behind a layer returned, if it ran as it did when the model was first looked at."""
        label, layer_type = self._activations.get(layer, ("", ""))
        if not label:
            return None
        try:
            found = history[label]
        except KeyError:
            return None
        operation = found if isinstance(found, Operation) else found.passes[0]
        if operation.layer_type != layer_type:
            return None
        core = core_of(operation)
        return Measured(layer, "activation", operation.label, operation.tensor_contents, dimensions_of(core, operation))


def _activations(looked: History, layers: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By layer the label and the type of the activation function that consumes what it multiplies."""
    found = {}
    for layer in layers:
        module = looked.modules.get(layer)
        if module is None or not module.num_calls or not module.calls[0].outputs:
            continue
        output = module.calls[0].outputs[0]
        core = core_of(output)
        if core is None or core.containing_module != layer:
            continue
        after = activation_after(output)
        if after is not None and can_die(after):
            found[layer] = after.label, after.layer_type
    return found


def _norms(tensors: dict[str, Tensor]) -> dict[str, tuple[float, int]]:
    """By name: the norm of the finite values (NaN where there are none), and how many are not finite. Waits once per device."""
    by_device: dict[torch.device, dict[str, Tensor]] = {}
    with torch.no_grad():
        for name, tensor in tensors.items():
            by_device.setdefault(tensor.device, {})[name] = norm(_values(tensor)).float()
        found: dict[str, tuple[float, int]] = {}
        for norms in by_device.values():
            for name, one in zip(norms, torch.stack(list(norms.values())).tolist(), strict=True):
                found[name] = (one, 0) if math.isfinite(one) else _norm_of_finite(tensors[name])
    return found


def _norm_of_finite(tensor: Tensor) -> tuple[float, int]:
    values = _values(tensor)
    known = values[values.isfinite()]
    its_norm = float(norm(known.double())) if known.numel() else math.nan
    return its_norm, values.numel() - known.numel()


def _values(tensor: Tensor) -> Tensor:
    """The values of a tensor as real numbers; of a sparse one those that are stored."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    values = dense(tensor)
    if values is None:
        return torch.empty(0)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else real(values)


def _sample(parameters: list[Tensor]) -> Tensor:
    """Values that are spread over parameters, the same every time."""
    parts = []
    for one in parameters:
        flat = _values(one).reshape(-1) if one.numel() <= _SAMPLE or one.is_complex() else one.detach().reshape(-1)
        parts.append(flat[:: _stride(one)].float())
    device = parts[0].device if parts else torch.device("cpu")
    return torch.cat([part.to(device) for part in parts]) if parts else torch.zeros(0, device="cpu")


def _stride(parameter: Tensor) -> int:
    """How far apart sampled values are: so that they do not all come from the same columns."""
    stride = -(-parameter.numel() // _SAMPLE) or 1
    while stride > 1 and math.gcd(stride, parameter.shape[-1]) > 1:
        stride += 1
    return stride
