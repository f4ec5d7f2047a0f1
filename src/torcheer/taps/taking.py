"""Values that are taken while a model runs: held by reference, or copied where the model overwrites them later."""

from __future__ import annotations

import torch
from torch import Tensor

from ..torch_internals import DisableTorchFunction, functorch_unwrapped, is_functorch_wrapped, without_transforms
from .spots import Act, Spot


class TakenValue:
    """A value that was read: the tensor, and a copy of it where it may be overwritten in place later."""

    __slots__ = ("_copy", "_version", "tensor")

    def __init__(self, tensor: Tensor, *, copies: bool) -> None:
        while is_functorch_wrapped(tensor):  # what torch.func wraps means nothing later: the whole batch is held
            tensor = functorch_unwrapped(tensor)
        self.tensor = tensor
        self._copy: Tensor | None = None
        if copies:
            with DisableTorchFunction(), without_transforms():
                self._copy = tensor.clone()
        try:
            self._version = tensor._version
        except RuntimeError:  # inference tensors do not count versions
            self._version = -1

    @property
    def may_be_overwritten(self) -> bool:
        """Whether the tensor was written to since it was read; of inference tensors that is not known.

        Writes through `.data` count no version of the tensor, so it is compared with the copy, if there is one.
        """
        if self._version < 0 or self.tensor._version != self._version:
            return True
        if self._copy is None or type(self.tensor) is not Tensor:
            return False
        with DisableTorchFunction():
            return not torch.equal(self._copy, self.tensor)

    def settle(self) -> None:
        """Hold one tensor only: the copy if the other one was overwritten."""
        if not self.may_be_overwritten:
            self._copy = None
        elif self._copy is not None:
            self.tensor = self._copy

    def get(self) -> Tensor | None:
        """The value as it was when it was read; None if it is gone."""
        return self._copy if self.may_be_overwritten else self.tensor


class Take(Act):
    """Holds what is at a place in the last call of the model.

    At the first call every value is copied. Where that call overwrote nothing, later ones are held by reference.
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
        """The model is called once more: what it overwrote last time is known now."""
        for spot, values in self.values.items():
            if any(value.may_be_overwritten for value in values):
                self._is_safe.discard(spot)
            else:
                self._is_safe.add(spot)
        self.values.clear()

    def end(self) -> None:
        """The block is over."""
        for values in self.values.values():
            for value in values:
                value.settle()

    def lost(self, spot: Spot) -> None:
        """A value was overwritten of which there is no copy: from now on copy it."""
        self._is_safe.discard(spot)
