"""Takes the tensors of watched layers out of a model and a history of it."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module

from ..history import Operation
from .keeping import Measured
from .records import Kind
from .watched import Found, tensor_of


class Measuring:
    """What is taken at one moment. Weights and gradients are copied, since they change; what a history keeps does not."""

    def __init__(self, model: Module, gradients: dict[str, Tensor], loss: str, said: list[str]) -> None:
        self.measured: list[Measured] = []
        self.notes: list[str] = []
        self._model = model
        self._gradients = gradients  # of parameters by name, from a backward pass of the probe
        self._loss = loss  # what it was the backward pass of, in words
        self._said = said  # about the gradients the user's own backward pass left

    def measure(self, found: Found) -> None:
        """Take everything of one layer; what is missing is noted."""
        self.notes += found.notes
        weight = tensor_of(self._model, found.weight) if found.weight is not None else None
        function = found.output.layer_type if found.output is not None else ""
        is_convolution = weight is not None and weight.dim() > 2 and "conv" in function
        form = (weight.dim() - 2 if weight is not None and is_convolution else 0, "transpose" in function)
        if weight is not None and found.weight is not None:
            self._measure_weight(found, weight, found.weight, form)
        self._measure_output(found, "layer", found.output, form)
        self._measure_output(found, "activation", found.activation, form)
        gradient = found.output.grad_contents if found.output is not None and found.watch.wants("grad") else None
        if gradient is not None and found.output is not None:
            said = [f"of {self._loss}", *([] if self._gradients else self._said)]
            self.measured.append(Measured(found.watch.name, "layer_grad", found.output.label, gradient.clone(), *form, said))

    def _measure_weight(self, found: Found, weight: Tensor, name: str, form: tuple[int, bool]) -> None:
        layer = found.watch.name
        if found.watch.wants("weight"):
            self.measured.append(Measured(layer, "weight", name, weight.detach().clone(), *form))
        if not found.watch.wants("grad"):
            return
        if weight.grad is not None:
            self.measured.append(Measured(layer, "grad", name, weight.grad.detach().clone(), *form, list(self._said)))
        elif name in self._gradients:
            self.measured.append(Measured(layer, "grad", name, self._gradients[name], *form, [f"of {self._loss}"]))
        else:
            self.notes.append(f"{layer}: the weight has no gradient yet")

    def _measure_output(self, found: Found, kind: Kind, operation: Operation | None, form: tuple[int, bool]) -> None:
        if operation is None or not found.watch.wants(kind):
            return
        turn = [f"pass {operation.pass_num} of {operation.num_passes}"] if operation.num_passes > 1 else []
        self.measured.append(Measured(found.watch.name, kind, operation.label, operation.tensor_contents, *form, turn))
