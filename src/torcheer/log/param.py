"""What a user holds of a parameter or buffer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .._torch.internals import DisableTorchFunction
from .index import Index
from .records import AbsentTensor, RegisteredModule, is_parameter


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter or buffer: its name, and facts that need no reading of its values."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_trainable: bool
    is_buffer: bool
    other_names: tuple[str, ...] = ()
    is_uninitialized: bool = False  # of a lazy module that did not run: the shape is not known yet, and (0,) stands for it

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def fsize(self) -> int:
        """Its size in bytes."""
        return self.numel * self.dtype.itemsize

    @property
    def is_shared(self) -> bool:
        """Whether the model has it under several names."""
        return bool(self.other_names)


def describe_param(index: Index, name: str, tensor: Tensor) -> Param:
    """The parameter or buffer `tensor`, known first as `name`."""
    with DisableTorchFunction():
        others = tuple(other for other in index.state_names.get(id(tensor), ()) if other != name)
        is_buffer = not is_parameter(tensor)
        value: Any = tensor  # of a loaded history an `AbsentTensor`
        is_unknown = value.is_uninitialized if type(value) is AbsentTensor else is_lazy(tensor)
        shape = tuple(tensor.shape) if not is_unknown else (0,)
        return Param(name, shape, tensor.dtype, tensor.requires_grad, is_buffer, others, is_unknown)


def own_params(index: Index, address: str) -> list[Param]:
    """The parameters that a module registers itself."""
    module = index.log.registered[address]
    return _named(index, module, module.parameters)


def own_buffers(index: Index, address: str) -> list[Param]:
    """The buffers that a module registers itself."""
    module = index.log.registered[address]
    return _named(index, module, module.buffers)


def _named(index: Index, module: RegisteredModule, states: Mapping[str, Tensor | None]) -> list[Param]:
    return [describe_param(index, module.full_name(name), tensor) for name, tensor in states.items() if tensor is not None]


def not_counted(params: Iterable[Param], counted: set[str]) -> list[Param]:
    """Those of `params` that are not in `counted` under any of their names; they are added to it."""
    new = []
    for param in params:
        names = {param.name, *param.other_names}
        if not names & counted:
            new.append(param)
        counted |= names
    return new
