"""Values that are read while a model runs: held by reference, or copied where the model overwrites them later."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from ..capture.keep.keeper import version_of
from ..tensor_memory import cloned
from ..torch_internals import (
    DisableTorchFunction,
    base_of,
    functorch_unwrapped,
    is_functorch_wrapped,
    without_transforms,
    write_count,
)
from .spots import Act, Spot


class TakenValue:
    """A value that was read: the tensor, and a copy of it where it may be overwritten in place later.

    A parameter, or a view of one, outlives the pass, and programs write to parameters in ways that torch does not count
    (`p.data`, fused optimizers, `swap_tensors`). So the copy of a parameter is kept, and compared when the value is asked for.
    """

    __slots__ = ("_copy", "_is_parameter", "_version", "tensor")

    def __init__(self, tensor: Tensor, *, copies: bool) -> None:
        while is_functorch_wrapped(tensor):  # wrappers of torch.func are invalid later: hold the whole batch
            tensor = functorch_unwrapped(tensor)
        self.tensor = tensor
        self._copy: Tensor | None = None
        self._is_parameter = any(isinstance(one, Parameter) for one in (tensor, base_of(tensor)))
        if copies or self._is_parameter:
            with DisableTorchFunction(), without_transforms():
                self._copy = cloned(tensor)
        self._version = version_of(tensor)

    @property
    def may_be_overwritten(self) -> bool:
        """Whether the tensor was written to since it was read; True for inference tensors, whose writes torch does not count.

        Nor does it count writes through `.data`, so the tensor is compared with the copy, if there is one.
        """
        if self._version < 0 or write_count(self.tensor) != self._version:
            return True
        if self._copy is None or type(self.tensor) not in (Tensor, Parameter):
            return False
        with DisableTorchFunction():
            try:
                return not torch.equal(self._copy, self.tensor)
            except RuntimeError:  # torch does not compare sparse, nested and meta tensors, nor some dtypes
                return True

    def settle(self) -> None:
        """Hold one tensor only, but for parameters: the copy if the tensor was overwritten."""
        if self._is_parameter:
            return
        if not self.may_be_overwritten:
            self._copy = None
        elif self._copy is not None:
            self.tensor = self._copy

    def get(self) -> Tensor | None:
        """The value as it was read; None if it was overwritten and there is no copy."""
        return self._copy if self.may_be_overwritten else self.tensor


class Take(Act):
    """Holds the values at places in the last call of the model.

    In the first call every value is copied. Where that call overwrote nothing, later values are held by reference.
    """

    def __init__(self) -> None:
        self.values: dict[Spot, list[TakenValue]] = {}
        self._is_safe: set[Spot] = set()  # places where the last call of the model overwrote nothing

    def __call__(self, spot: Spot, tensor: Tensor) -> None:
        value = TakenValue(tensor, copies=spot not in self._is_safe)
        if spot.here == 1:
            self.values[spot] = [value]
        else:
            self.values[spot].append(value)

    def begin(self) -> None:
        """Let go of the values of the last call, and remember which of them it overwrote.

        What a module returned that was called by itself stays: `generate` calls an encoder before it calls the model.
        """
        self._is_safe -= self.values.keys()
        self._is_safe |= {s for s, values in self.values.items() if not any(value.may_be_overwritten for value in values)}
        self.values = {spot: values for spot, values in self.values.items() if spot.is_alone}

    def end(self) -> None:
        """The block is over."""
        for values in self.values.values():
            for value in values:
                value.settle()

    def lost(self, spot: Spot) -> None:
        """Copy the values at a place from now on: one was overwritten, and there is no copy."""
        self._is_safe.discard(spot)
