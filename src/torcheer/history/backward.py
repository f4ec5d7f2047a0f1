"""`BackwardPass`: one backward pass, with every autograd node that ran (`BackwardOperation`) and the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .._text import plural
from .._torch.shapes import bytes_of
from ..errors import InvalidArgument
from ..log.keys import Lookup
from ..log.records import BackwardLog, BackwardRecord, NodeRecord
from ..log.run import Index
from .attributes import OfRecord
from .operation import Operation


class BackwardOperation(OfRecord[NodeRecord]):
    """One autograd node that ran, with the forward operation it came from."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name that autograd gives the node: `AddmmBackward0`."""
        return self._record.name

    @property
    def role(self) -> str:
        """The node's relation to the forward pass.

        `result`: it receives the gradient of an operation's output; `inside`: it is a further part of an operation, such as the
        transpose inside `linear`; `derivative`: the backward of an operation made it, for gradients of gradients;
        `accumulation`: it accumulates the gradient of a parameter or an input; `other`: it belongs to no logged operation.
        """
        return self._record.role

    @property
    def _number(self) -> int | None:
        """The number of the forward operation; if the node is inside a call that made several tensors, the first of them."""
        number, table = self._record.operation, self._index.table
        if number < 0 or number >= self._index.length:
            return None
        call = self._index.record(number).call
        numbers = (number,) if self.role == "result" or call == number else (*range(call, number), number)
        return next((one for one in numbers if table.shows(one)), None)

    @property
    def operation(self) -> Operation | None:
        """The forward operation; None for parameters and `other`."""
        return Operation(self._index, self._number) if self._number is not None else None

    @property
    def layer_label(self) -> str | None:
        """The label of the forward operation (with its pass, if there are several); None for parameters and `other`."""
        return self._index.label(self._number) if self._number is not None else None

    @property
    def param(self) -> str | None:
        """The name of the parameter whose gradient the node accumulates; None for other nodes."""
        if self._record.role != "accumulation" or self._record.operation >= 0:
            return None
        return self._index.state_name(self._index.state(self._record.operation))

    @property
    def containing_module(self) -> str | None:
        """The address of the module the forward operation ran in; None in the model's own forward."""
        if self._number is None:
            return self.param.rpartition(".")[0] or None if self.param is not None else None
        call = self._index.record(self._number).module
        return (call.address or None) if call is not None else None

    @property
    def started(self) -> float:
        """When the node began to run, in seconds on `time.perf_counter`."""
        return self._record.started / 1e9

    @property
    def time_elapsed(self) -> float:
        """Seconds that the node took, without nodes that ran inside it (with checkpointing, for example)."""
        return self._record.elapsed / 1e9

    @property
    def is_device_time(self) -> bool:
        """True if the time was measured on the GPU (`time_on_device`), not on the CPU."""
        return self._record.is_device_time

    @property
    def grad_output_shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes of the gradients that the node received, for the outputs of the forward operation."""
        return list(self._record.given)

    @property
    def grad_input_shapes(self) -> list[tuple[int, ...] | None]:
        """The shapes of the gradients that the node computed, for the inputs of the forward operation."""
        return list(self._record.made)

    @property
    def grad_input_fsize(self) -> int:
        """The bytes of the gradients that the node computed, in the forward operation's dtype; float32 without an operation."""
        number, log = self._record.operation, self._index.log
        if self.role == "other":
            dtype = torch.float32
        else:
            dtype = log.operations[number].dtype if number >= 0 else self._index.state(number).tensor.dtype
        return sum(bytes_of(shape, dtype) for shape in self._record.made if shape is not None)

    def __repr__(self) -> str:
        what = self.layer_label or self.param or "nothing that was logged"
        shapes = ", ".join(map(str, self.grad_output_shapes)), ", ".join(map(str, self.grad_input_shapes))
        return f"{self.name} ({self.role} of {what}): {shapes[0]} → {shapes[1]}, {self.time_elapsed:.3E}s"


class BackwardPass:
    """One backward pass: the autograd nodes that ran, and the gradients."""

    __slots__ = ("_index", "_record", "number")

    def __init__(self, index: Index, record: BackwardRecord, number: int) -> None:
        self._index = index
        self._record = record
        self.number = number

    @property
    def operations(self) -> list[BackwardOperation]:
        """Every autograd node that ran, in order."""
        return [BackwardOperation(self._index, record) for record in self._record.nodes]

    @property
    def edges(self) -> list[tuple[int, int]]:
        """Pairs (giver, receiver) of positions in `operations`: gradients flow along autograd's `next_functions`.

        Checkpointing runs a backward pass inside a node; an edge leads from that node to the first ones inside.
        """
        nodes = self._record.nodes
        # number of an autograd node -> its positions; with checkpointing a node may run several times
        runs: dict[int, list[int]] = {}
        for place, record in enumerate(nodes):
            runs.setdefault(record.node, []).append(place)
        found = []
        for place, record in enumerate(nodes):
            targets = [[run for run in runs.get(target, ()) if run > place] for target in record.onward]
            found += [(place, later[0]) for later in targets if later]
        led = {target for _, target in found}
        places = {id(record): place for place, record in enumerate(nodes)}
        begun = [(place, places[id(inner)]) for place, record in enumerate(nodes) for inner in record.inner]
        return found + [(place, inner) for place, inner in begun if inner not in led]

    def of(self, key: Any) -> list[BackwardOperation]:
        """The nodes of an operation or layer, by any key that finds it, or of a parameter, by name; in the order they ran.

        >>> import torch, torcheer
        >>> history = torcheer.log_forward_pass(torch.nn.Linear(2, 3), torch.ones(1, 2), save_gradients=True)
        >>> passed = history.log_backward(history["output"].tensor_contents.sum())
        >>> [one.name for one in passed.of("linear_1")], [one.name for one in passed.of("bias")]
        (['AddmmBackward0', 'TBackward0'], ['AccumulateGrad'])
        """
        operations = self.operations
        if any(one.param == key for one in operations):
            return [one for one in operations if one.param == key]
        found = Lookup(self._index).find(key)
        numbers = found.layer.passes if found.number is None else [found.number]
        return [one for one in operations if one._number in numbers]

    @property
    def gradients(self) -> dict[str, Tensor]:
        """The gradients at the outputs of operations, by label, in execution order of the forward pass."""
        shown = filter(self._index.table.shows, sorted({*self._record.gradients, *self._record.summed}))
        return {self._index.label(number): self._gradient(number) for number in shown}

    @property
    def param_grads(self) -> dict[str, Tensor]:
        """The amount that this pass adds to the gradient of each parameter, by name."""
        numbers = sorted({*self._record.gradients, *self._record.summed}, reverse=True)
        return {self._index.state_name(self._index.state(n)): self._gradient(n) for n in numbers if n < 0}

    def _gradient(self, number: int) -> Tensor:
        gradient = self._record.gradient(number)
        assert gradient is not None
        return gradient

    @property
    def scale(self) -> float | None:
        """The factor by which a gradient scaler multiplied the loss and so the gradients; None without a scaler."""
        return float(self._record.scale) if self._record.scale is not None else None

    @property
    def is_complete(self) -> bool:
        """True if the backward pass ran to its end."""
        return self._record.is_complete

    @property
    def time_elapsed(self) -> float:
        """Seconds that all nodes took together."""
        return sum(record.elapsed for record in self._record.nodes) / 1e9

    def __repr__(self) -> str:
        scaled = f", loss scaled by {self.scale:g}" if self.scale is not None else ""
        cut = "" if self.is_complete else ", did not finish"
        return (
            f"Backward pass {self.number}: {plural(len(self._record.nodes), 'node')}, "
            f"{plural(len(self.gradients), 'gradient')} of operations, "
            f"{len(self.param_grads)} of parameters, {self.time_elapsed:.3E}s{scaled}{cut}"
        )


def run_backward(
    log: BackwardLog | None,
    loss: Tensor,
    gradient: Tensor | None,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Tensor | Sequence[Tensor] | None,
) -> None:
    """Run `loss.backward(…)`. Raises if the log cannot record this backward pass."""
    if log is None:
        raise InvalidArgument("this history does not follow gradients: log with save_gradients=True.")
    if log.is_copy:
        raise InvalidArgument(
            "this history is a copy, and the autograd graph belongs to the one it was copied from: "
            "call log_backward on that, and copy it then."
        )
    if not isinstance(loss, Tensor) or loss.grad_fn is None:
        raise InvalidArgument(
            "log_backward takes a tensor computed, with gradients enabled, from history.outputs[…].tensor_contents."
        )
    before = len(log.passes)
    with log.left_behind.until_over() if log.left_behind is not None else nullcontext():
        loss.backward(gradient, retain_graph, create_graph, inputs)  # type: ignore[no-untyped-call]  # torch's own
    if len(log.passes) == before:
        raise InvalidArgument("the loss does not depend on the outputs of this history, so nothing of it ran backward.")
