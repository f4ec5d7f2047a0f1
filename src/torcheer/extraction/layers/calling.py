"""How a batch goes into a model, and which items are left over: the labels.

- A tensor is the argument.
- Of a tuple or list, `forward` gets as many items as it requires; the others are labels.
- Of a mapping (a dictionary, a tokenizer's `BatchEncoding`), `forward` gets the items that are named as its parameters; the
  others are labels.
- With a function `call`, `call(model, batch)` runs the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn import DataParallel, Module

from ...capture.addresses import without_parallelism
from ...containers import Arguments, is_tensor, replace_tensors, tensors_in
from ...errors import InvalidArgument
from ...inputs import Taken, described, taken_by

Call = Callable[[Module, Any], Any]
MASK = "attention_mask"
_LABELS = ("label", "labels", "target", "targets")  # kept as labels also where forward takes them


class Calling:
    """Calls one model with batches."""

    def __init__(self, model: Module, call: Call | None = None) -> None:
        if not isinstance(model, Module):
            raise InvalidArgument(
                f"extract() reads layers by hooks on modules, so model is an nn.Module; got {described(model)}."
            )
        if isinstance(model, DataParallel) and len(model.device_ids) > 1:
            raise InvalidArgument(
                f"a DataParallel model runs on {len(model.device_ids)} threads, whose layers cannot be read in order. Give the "
                "model inside, model.module; for several GPUs start one process for each with torchrun."
            )
        if call is not None and not callable(call):
            raise InvalidArgument(f"call is a function call(model, batch) that runs the model; got {described(call)}.")
        self.model: Module = without_parallelism(model)  # a parallel wrapper may wait for other processes
        self._call = call

    @cached_property
    def device(self) -> torch.device:
        """Where the model is: batches are moved there."""
        devices = {one.device for one in (*self.model.parameters(), *self.model.buffers())}
        return devices.pop() if len(devices) == 1 else torch.device("cpu")

    @cached_property
    def _taken(self) -> Taken:
        return taken_by(self.model)

    @cached_property
    def _arguments_of_sequence(self) -> int:
        """How many items of a sequence are arguments; 0 where that is not clear."""
        return 1 if self._taken.takes_one else self._taken.required

    # Running --------------------------------------------------------------------------------------------------------

    def on_device(self, batch: Any) -> Any:
        """The batch with its tensors where the model is."""
        if self.device.type == "cpu" or all(one.device == self.device for one in tensors_in(batch)):
            return batch
        return replace_tensors(batch, lambda tensor: tensor.to(self.device, non_blocking=True))

    def run(self, batch: Any) -> None:
        """Run the model on a batch."""
        if self._call is not None:
            self._call(self.model, batch)
        else:
            args, kwargs = self.arguments(batch)
            self.model(*args, **kwargs)

    def as_function(self, batch: Any) -> tuple[Callable[..., Any], Arguments]:
        """What is called for a batch, and with which arguments. Its modules keep their addresses."""
        if self._call is not None:
            return MethodType(self._call, self.model), ((batch,), {})
        return self.model, self.arguments(batch)

    def arguments(self, batch: Any) -> Arguments:
        """What `forward` is given of a batch."""
        if isinstance(batch, Mapping):
            named = self._named(batch)
            return ((), {name: batch[name] for name in named}) if named is not None else ((batch,), {})
        if isinstance(batch, (tuple, list)):
            return tuple(batch[: self._count(batch)]), {}
        return (batch,), {}

    def _named(self, batch: Mapping[Any, Any]) -> list[Any] | None:
        """Which items of a mapping are arguments; None where the mapping is one argument."""
        found = [name for name in batch if name in self._taken.names]
        if found:
            return found
        if self._taken.takes_any_name and not self._taken.required and all(isinstance(name, str) for name in batch):
            return list(batch)
        if self._taken.takes_one or self._taken.required == 1:
            return None
        raise InvalidArgument(
            f"no item of the batch is named as a parameter of {type(self.model).__name__}.forward "
            f"({', '.join(self._taken.names) or 'it has none'}); got {described(batch)}. Say how it goes into the model: "
            f"call=lambda model, batch: model(batch[{next(iter(batch), 'name')!r}])."
        )

    def _count(self, batch: tuple[Any, ...] | list[Any]) -> int:
        """How many items of a sequence are arguments."""
        if len(batch) < 2:
            return 1
        if self._arguments_of_sequence:
            return self._arguments_of_sequence
        raise InvalidArgument(
            f"{type(self.model).__name__}.forward requires no argument, so which of the {len(batch)} items of a batch are "
            "arguments and which are labels is not clear. Say it: call=lambda model, batch: model(batch[0])."
        )

    # What a batch is ------------------------------------------------------------------------------------------------

    def labels(self, batch: Any, ids: str | int | None = None) -> dict[str, Any]:
        """The items of a batch that are neither arguments nor the item `ids`, by name.

        With a `call`, which takes the whole batch, those that have a usual name of labels.
        """
        if isinstance(batch, Mapping):
            taken = set(batch) if self._call is not None else set(self.arguments(batch)[1] or batch)
            kept = [name for name in batch if (name not in taken or name in _LABELS) and name != ids]
            return {str(name): batch[name] for name in kept}
        if self._call is not None or not isinstance(batch, (tuple, list)):
            return {}
        rest = [batch[at] for at in range(self._count(batch), len(batch)) if ids not in (at, at - len(batch))]
        return {"labels" if len(rest) == 1 else f"labels_{place}": value for place, value in enumerate(rest, 1)}

    def mask(self, batch: Any) -> Tensor | None:
        """The attention mask of a batch, [samples, positions]: by its name, or by that of the parameter it is for."""
        if isinstance(batch, Mapping):
            found = batch.get(MASK)
        elif self._call is None and isinstance(batch, (tuple, list)) and MASK in self._taken.names:
            at = self._taken.names.index(MASK)
            found = batch[at] if at < self._count(batch) else None
        else:
            found = None
        return found if isinstance(found, Tensor) and found.dim() == 2 else None

    def samples(self, batch: Any) -> int:
        """How many samples are in a batch: the first dimension of the first tensor that has one, or the length of a list."""
        if self._call is None:
            args, kwargs = self.arguments(batch)
            values = [*args, *kwargs.values()]
        else:
            values = list(batch) if isinstance(batch, (tuple, list)) and any(is_tensor(one) for one in batch) else [batch]
        for value in values:
            count = _length(value)
            if count is not None:
                return count
        raise InvalidArgument(
            f"how many samples are in {described(batch)} cannot be told: no tensor in it has a dimension. "
            "A batch is a tensor, a tuple or a mapping of tensors, whose first dimension is samples."
        )


def _length(value: Any) -> int | None:
    if is_tensor(value):
        return value.size(0) if value.dim() else None
    if isinstance(value, Mapping):
        return next((count for one in value.values() if (count := _length(one)) is not None), None)
    if isinstance(value, (tuple, list)):  # pictures of different sizes, texts
        return len(value)
    return next((one.size(0) for one in tensors_in(value) if one.dim()), None)
