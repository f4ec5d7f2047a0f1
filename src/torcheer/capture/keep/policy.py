"""Which values of a recording are kept, and in which form: the tensor, a postprocessed value, or a place in a file.

Capture asks a policy and knows nothing of labels, devices or files. `Policy()` keeps everything by reference.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...containers import replace_tensors, tensors_in
from ...errors import TorcheerError
from ...records import ModuleCall, OperationRecord, TorchFunction
from ..identity.tensor_table import storage_of


class Selection(Protocol):
    """Decides which operations to keep. The implementations know labels (`history/keeping`)."""

    def before(self, function: TorchFunction, module: ModuleCall | None) -> bool | None:
        """Whether the operation about to run is to be kept; None when that is known only afterwards."""

    def after(self, record: OperationRecord) -> bool:
        """Whether an operation that ran is to be kept."""

    def entering(self, call: ModuleCall) -> bool:
        """Whether to keep what is given to this module call."""

    def leaving(self, call: ModuleCall) -> bool:
        """Whether to keep what leaves this module call."""


# What is held in place of a tensor that an operation made: a tensor elsewhere, a number, where in a file it was written.
Take = Callable[[Tensor, OperationRecord], Any]


class Sink(Protocol):
    """Takes tensors as they are made, such as a file they are written to."""

    def write(self, tensor: Tensor, what: str) -> Any:
        """Take a tensor in; `what` it is, for errors. Returns what is held in its place."""

    def overwritten(self, storage: int) -> None:
        """Something is about to write to the memory of tensors that were taken in."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What one recording keeps."""

    selection: Selection | None = None  # which operations; None: all
    take: Take | None = None  # what is held of their tensors; None: the tensor, by reference, copied before it is overwritten
    sink: Sink | None = None  # where tensors go, instead of being held

    @property
    def is_plain(self) -> bool:
        """Whether everything is kept by reference."""
        return self.selection is None and self.take is None and self.sink is None


def taking(device: torch.device | str | None, postfunc: Callable[[Tensor], Any] | None) -> Take | None:
    """Moves tensors to a device, and holds what a function makes of them; None where nothing is to be done."""
    if device is None and postfunc is None:
        return None
    place = torch.device(device) if device is not None else None

    def take(tensor: Tensor, record: OperationRecord) -> Any:
        if place is not None and tensor.device != place:
            tensor = tensor.to(place)
        return _applied(postfunc, tensor, record) if postfunc is not None else tensor

    return take


def _applied(postfunc: Callable[[Tensor], Any], tensor: Tensor, record: OperationRecord) -> Any:
    try:
        with torch.no_grad():
            result = postfunc(tensor)
    except Exception as error:
        raise TorcheerError(
            f"activation_postfunc raised {type(error).__name__}: {error}\n"
            f"while keeping the output of {record.function.name!r}, shape {tuple(tensor.shape)}. "
            "It is called with one tensor and keeps what it returns."
        ) from error
    return result if isinstance(result, Tensor) else _without_sharing(result, tensor)


def _without_sharing(result: Any, value: Tensor) -> Any:
    """What a postfunc returned, with copies of the tensors in it that share memory with the activation."""
    memory = storage_of(value)
    if not any(storage_of(tensor) == memory for tensor in tensors_in(result)):
        return result
    return replace_tensors(result, lambda tensor: tensor.clone() if storage_of(tensor) == memory else tensor)
