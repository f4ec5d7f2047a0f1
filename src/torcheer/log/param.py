"""`Param`, a parameter or buffer as users see it, and functions that make it from an index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._torch.internals import DisableTorchFunction
from .records import AbsentTensor, is_parameter
from .run import Index


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or buffer: its name, shape, dtype and size, without its values."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_trainable: bool
    is_buffer: bool
    other_names: tuple[str, ...] = ()
    is_uninitialized: bool = False  # True if a lazy module did not run: the shape is unknown, and `shape` is (0,)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def fsize(self) -> int:
        """The size of the parameter or buffer in bytes."""
        return self.numel * self.dtype.itemsize

    @property
    def is_shared(self) -> bool:
        """True if the model has the parameter or buffer under several names."""
        return bool(self.other_names)


def describe_param(index: Index, name: str, tensor: Tensor) -> Param:
    """Describe a parameter or buffer whose first name is `name`."""
    with DisableTorchFunction():
        others = tuple(other for other in index.state_names.get(id(tensor), ()) if other != name)
        is_buffer = not is_parameter(tensor)
        value: Any = tensor  # in a loaded history it may be an `AbsentTensor`
        is_unknown = value.is_uninitialized if type(value) is AbsentTensor else is_lazy(tensor)
        shape = tuple(tensor.shape) if not is_unknown else (0,)
        return Param(name, shape, tensor.dtype, tensor.requires_grad, is_buffer, others, is_unknown)


def own_params(index: Index, address: str, kind: Literal["parameters", "buffers"] = "parameters") -> list[Param]:
    """The parameters (or buffers) that a module registers itself."""
    module = index.log.registered[address]
    states: Mapping[str, Tensor | None] = getattr(module, kind)
    return [describe_param(index, module.full_name(name), tensor) for name, tensor in states.items() if tensor is not None]


def not_counted(params: Iterable[Param], counted: set[str]) -> list[Param]:
    """Return those of `params` that have no name in `counted`, and add their names to `counted`."""
    new = []
    for param in params:
        names = {param.name, *param.other_names}
        if not names & counted:
            new.append(param)
        counted |= names
    return new
