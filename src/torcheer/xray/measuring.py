"""Takes the content of a snapshot: updates of weights, tensors of watched layers, and a summary of every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.parameter import is_lazy

from .._torch.measure import dense, finite, norm, real
from ..errors import InvalidArgument
from ..history import ModelHistory, Operation
from ..log.operation import parents_of
from .layers import Found, activation_after, can_die, core_of, dimensions_of, has_inputs_first, pattern_of, tensor_of
from .records import Kind, Summary
from .sampling import Measured

Pairs = dict[str, tuple[Tensor, Tensor]]  # layer -> its values before and after one step


class UpdateWatcher:
    """Copies the watched weights, and samples of all weights, before and after an optimizer step that a snapshot may follow.

    The number of completed steps between the last two snapshots says which step the next one is likely to follow. A snapshot
    may be taken inside a step: Lightning runs the backward pass there. Weights that this optimizer does not move are left out.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: Module,
        weights: dict[str, str],
        samples: Callable[[Collection[str]], dict[str, Tensor]],
        every: int,
    ) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InvalidArgument(f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}.")
        self.optimizer = optimizer
        moved = {id(one) for group in optimizer.param_groups for one in group["params"]}
        names = {name for name, one in model.named_parameters(remove_duplicate=False) if id(one) in moved}
        self._model = model
        self._weights = {layer: name for layer, name in weights.items() if name in names}
        self._take_samples, self._moved = samples, names
        self._before: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
        self._measured: tuple[Pairs, Pairs] = {}, {}
        # steps between the last two snapshots, and steps completed since the last snapshot
        self._distance, self._since = every, 0
        self._handles = [
            optimizer.register_step_pre_hook(lambda *_: self._pre()),
            optimizer.register_step_post_hook(lambda *_: self._post()),
        ]

    def take(self) -> tuple[Pairs, Pairs]:
        """Return watched weights, and samples, before and after the last completed step. Empty if the step was not measured."""
        found, self._measured = self._measured, ({}, {})
        if self._since:
            self._distance, self._since = self._since, 0
        return found

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._before, self._measured = None, ({}, {})

    def _pre(self) -> None:
        self._before = (self._weights_now(), self._take_samples(self._moved)) if self._since + 1 >= self._distance else None

    def _post(self) -> None:
        self._since += 1
        before, self._before = self._before, None
        self._measured = {}, {}
        if before is not None:
            self._measured = _pairs(before[0], self._weights_now()), _pairs(before[1], self._take_samples(self._moved))

    def _weights_now(self) -> dict[str, Tensor]:
        found = {layer: tensor_of(self._model, name) for layer, name in self._weights.items()}
        return {layer: weight.detach().clone() for layer, weight in found.items() if weight is not None}


def _pairs(before: dict[str, Tensor], after: dict[str, Tensor]) -> Pairs:
    return {name: (old, after[name]) for name, old in before.items() if name in after and after[name].shape == old.shape}


# Watched layers -------------------------------------------------------------------------------------------------------


def input_channels(core: Operation | None) -> int:
    """The number of channels of the input of a convolution of pictures; 0 for any other operation."""
    if core is None or not dimensions_of(core, core):
        return 0
    shape = parents_of(core)[0].tensor_shape
    return int(shape[-3]) if len(shape) in (3, 4) else 0


class Measuring:
    """The tensors of one snapshot. Weights and gradients are copied, since they change; a history keeps its tensors."""

    def __init__(
        self, model: Module, gradients: dict[str, Tensor], loss: str, said: list[str], said_of_outputs: Sequence[str]
    ) -> None:
        self.measured: list[Measured] = []
        self.notes: list[str] = []
        self._model = model
        self._gradients = gradients  # parameter name -> its gradient, from a backward pass of the probe
        self._loss = loss  # the text for the loss of the probe's backward pass
        self._said = said  # notes that describe the gradients of the user's own backward pass
        self._said_of_outputs = said_of_outputs

    def measure(self, found: Found) -> None:
        """Take all kinds of one layer. Notes say which kinds are missing."""
        self.notes += found.notes
        weight = tensor_of(self._model, found.weight) if found.weight is not None else None
        if weight is not None and found.weight is not None:
            self._measure_weight(found, weight, found.weight)
        if found.output is not None and found.watch.wants("layer"):
            self._measure_output(found, "layer", found.output, found.output.tensor_contents)
        if found.activation is not None and found.watch.wants("activation"):
            self._measure_output(found, "activation", found.activation, found.activation.tensor_contents)
        if found.attention is not None:
            self._measure_attention(found, found.attention)
        if found.output is not None and found.watch.wants("grad") and (gradient := found.output.grad_contents) is not None:
            said = [f"of {self._loss}", *self._said_of_outputs]
            self._measure_output(found, "layer_grad", found.output, gradient.clone(), said)

    def _measure_weight(self, found: Found, weight: Tensor, name: str) -> None:
        layer = found.watch.name
        form = dimensions_of(found.core, found.core), has_inputs_first(found.core, name)
        if found.watch.wants("weight"):
            channels = input_channels(found.core)
            self.measured.append(Measured(layer, "weight", name, weight.detach().clone(), *form, input_channels=channels))
        if not found.watch.wants("grad"):
            return
        if weight.grad is not None:
            self.measured.append(Measured(layer, "grad", name, weight.grad.detach().clone(), *form, list(self._said)))
        elif name in self._gradients:
            self.measured.append(Measured(layer, "grad", name, self._gradients[name], *form, [f"of {self._loss}"]))
        else:
            self.notes.append(
                f"{layer}: the weight {'has no gradient yet' if weight.requires_grad else 'is frozen, so it has no gradient'}"
            )

    def _measure_attention(self, found: Found, operation: Operation) -> None:
        """Hold queries and keys, and note how the thread that writes can compute the pattern from them."""
        make, said = pattern_of(operation)
        empty = operation.tensor_contents.new_empty(0)
        self.measured.append(Measured(found.watch.name, "attention", operation.label, empty, notes=said, make=make))

    def _measure_output(self, found: Found, kind: Kind, operation: Operation, tensor: Tensor, said: Sequence[str] = ()) -> None:
        turn = [f"pass {operation.pass_num} of {operation.num_passes}"] if operation.num_passes > 1 else []
        dimensions = dimensions_of(found.core, operation)
        measured = Measured(found.watch.name, kind, operation.label, tensor, dimensions, notes=[*said, *turn])
        measured.can_die = can_die(operation)
        self.measured.append(measured)


# Summaries ------------------------------------------------------------------------------------------------------------
#
# A summary is a few numbers of a layer with parameters, watched or not, which cost little. Norms are computed where the tensors
# are; only a sample of each parameter is copied, which shows how far steps move it.

_SAMPLE = 1 << 14  # number of values of a parameter that are compared before and after a step
_PARAMETRIZATIONS = ".parametrizations."


@dataclass(slots=True)
class Reading:
    """The summary of one layer at one moment, and a sample of its parameters."""

    summary: Summary  # the summary, without numbers that need earlier snapshots
    sample: Tensor  # some values of its parameters, always at the same positions
    activation: Measured | None


def layers_with_parameters(model: Module) -> dict[str, list[str]]:
    """Maps each layer to the names of its own parameters. A parameter of the model itself is a layer with the parameter's name;
    a model that is one of torch's layers has the name of its class.
    """
    found: dict[str, list[str]] = {}
    is_layer = type(model).__module__.startswith("torch.nn.")
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not is_lazy(parameter):
            address = name.partition(_PARAMETRIZATIONS)[0] if _PARAMETRIZATIONS in name else name.rpartition(".")[0]
            found.setdefault(address or (type(model).__name__ if is_layer else name), []).append(name)
    return found


class Summariser:
    """Makes the readings of every layer with parameters of one model."""

    def __init__(self, model: Module, looked: ModelHistory) -> None:
        self._model = model
        self._layers = layers_with_parameters(model)
        self._activations = _activations(looked, self._layers)

    def samples(self, moved: Collection[str] | None = None) -> dict[str, Tensor]:
        """Maps each layer to a copy of some values of its parameters; of small parameters all values. With `moved`, only layers
        whose trainable parameters are all in it.
        """
        known, layers = self._now()
        return {
            layer: _sample([known[name] for name in names])
            for layer, names in layers.items()
            if moved is None or (names and all(name in moved or not known[name].requires_grad for name in names))
        }

    def read(self, history: ModelHistory, gradients: dict[str, Tensor]) -> list[Reading]:
        """Read every layer. If a parameter has no `.grad`, the gradient in `gradients` is read."""
        known, layers = self._now()
        found_grads = {name: one.grad if one.grad is not None else gradients.get(name) for name, one in known.items()}
        grads = {name: grad for name, grad in found_grads.items() if grad is not None}
        norms, grad_norms, samples = _norms(known), _norms(grads), self.samples()
        found = []
        for layer, names in layers.items():
            if not names:
                continue
            graded = [name for name in names if name in grads]
            summary = Summary(
                layer=layer,
                parameters=sum(known[name].numel() for name in names),
                norm=finite(math.hypot(*(norms[name][0] for name in names))),
                grad_norm=finite(math.hypot(*(grad_norms[name][0] for name in graded))) if graded else None,
                nonfinite=sum(norms[name][1] for name in names),
                grad_nonfinite=sum(grad_norms[name][1] for name in graded),
            )
            found.append(Reading(summary, samples[layer], self._activation(layer, history)))
        return found

    def _now(self) -> tuple[dict[str, Tensor], dict[str, list[str]]]:
        """Return the parameters by name, and for each layer the names of those parameters that the model still has."""
        named = self._model.named_parameters(remove_duplicate=False)
        known: dict[str, Tensor] = {name: one for name, one in named if not is_lazy(one)}
        return known, {layer: [name for name in names if name in known] for layer, names in self._layers.items()}

    def _activation(self, layer: str, history: ModelHistory) -> Measured | None:
        """Find the result of the activation function after a layer. None if it is another function than in the first pass."""
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


def _activations(looked: ModelHistory, layers: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Maps each layer to the label and the type of the activation function behind its convolution or matrix product."""
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
    """Map names to the norm of finite values (NaN without any) and the number of nonfinite values. Waits once per device."""
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
    """The values of a tensor as real numbers; for a sparse tensor, the stored values."""
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce().values()
    values = dense(tensor)
    if values is None:
        return torch.empty(0)
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else real(values)


def _sample(parameters: list[Tensor]) -> Tensor:
    """Copy the values at positions spread over the parameters. The positions are the same in every call."""
    parts = []
    for one in parameters:
        flat = _values(one).reshape(-1) if one.numel() <= _SAMPLE or one.is_complex() else one.detach().reshape(-1)
        parts.append(flat[:: _stride(one)].float())
    device = parts[0].device if parts else torch.device("cpu")
    return torch.cat([part.to(device) for part in parts]) if parts else torch.zeros(0, device="cpu")


def _stride(parameter: Tensor) -> int:
    """Choose the distance between sampled values, so that the values do not all come from the same columns."""
    stride = -(-parameter.numel() // _SAMPLE) or 1
    while stride > 1 and math.gcd(stride, parameter.shape[-1]) > 1:
        stride += 1
    return stride
