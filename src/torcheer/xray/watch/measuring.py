"""Takes the tensors of watched layers out of a model and a history of it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import Module

from ...history import Operation
from ..snapshots.records import Kind
from ..snapshots.sampling import Measured
from .attention import pattern_of
from .layer_finder import Found, can_die, dimensions_of, has_inputs_first, tensor_of


def input_channels(core: Operation | None) -> int:
    """How many channels the input of a convolution of pictures has; 0 for everything else."""
    if core is None or not dimensions_of(core, core):
        return 0
    shape = Operation(core._index, next(iter(core._index.parents(core._number)))).tensor_shape
    return int(shape[-3]) if len(shape) in (3, 4) else 0


class Measuring:
    """What is taken at one moment. Weights and gradients are copied, since they change; what a history keeps does not."""

    def __init__(
        self, model: Module, gradients: dict[str, Tensor], loss: str, said: list[str], said_of_outputs: Sequence[str]
    ) -> None:
        self.measured: list[Measured] = []
        self.notes: list[str] = []
        self._model = model
        self._gradients = gradients  # of parameters by name, from a backward pass of the probe
        self._loss = loss  # what it was the backward pass of, in words
        self._said = said  # about the gradients the user's own backward pass left
        self._said_of_outputs = said_of_outputs

    def measure(self, found: Found) -> None:
        """Take everything of one layer; what is missing is noted."""
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
        """The pattern is worked out behind the training; what it is made of is held until then."""
        make, said = pattern_of(operation)
        empty = operation.tensor_contents.new_empty(0)
        self.measured.append(Measured(found.watch.name, "attention", operation.label, empty, notes=said, make=make))

    def _measure_output(self, found: Found, kind: Kind, operation: Operation, tensor: Tensor, said: Sequence[str] = ()) -> None:
        turn = [f"pass {operation.pass_num} of {operation.num_passes}"] if operation.num_passes > 1 else []
        dimensions = dimensions_of(found.core, operation)
        measured = Measured(found.watch.name, kind, operation.label, tensor, dimensions, notes=[*said, *turn])
        measured.can_die = can_die(operation)
        self.measured.append(measured)
