"""A call without values, the input of the FLOP formulas and of the rules of what autograd saves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ..shapes import elements_of

if TYPE_CHECKING:
    from .facts import TorchFunction


Result = tuple[tuple[int, ...], torch.dtype, torch.device]  # shape, dtype, device


class Operand(NamedTuple):
    """A tensor among the arguments of a call."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    slot: int
    needs_grad: bool

    @property
    def numel(self) -> int:
        return elements_of(self.shape)


class Call(Protocol):
    """One call of a torch function. Results and tensor arguments are known by shape, dtype and device.

    Arguments are looked up by position and name, because callers use either: `call.value(3, "stride", 1)`.
    """

    __slots__ = ()

    @property
    def function(self) -> TorchFunction: ...
    @property
    def name(self) -> str:
        """The plain name of the function."""

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers of the operations that are its results."""

    @property
    def parents(self) -> tuple[int, ...]:
        """The operations that made its tensor arguments, by slot."""

    @property
    def results(self) -> list[Result]: ...
    @property
    def operands(self) -> list[Operand]:
        """The tensors among the arguments, in order."""

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, with an `Operand` for each tensor."""

    @property
    def kwargs(self) -> dict[str, Any]: ...
    def value(self, position: int, name: str, default: Any = None) -> Any:
        """An argument, given by name or by position."""
        args, kwargs = self.args, self.kwargs
        if name in kwargs:
            return kwargs[name]
        return args[position] if 0 <= position < len(args) else default

    def operand(self, position: int, name: str) -> Operand:
        """An argument that must be a tensor; raises LookupError if it is not."""
        value = self.value(position, name)
        if not isinstance(value, Operand):
            raise LookupError(f"{self.name}: argument {name!r} is no tensor")
        return value

    @property
    def given(self) -> int:
        """The number of values in the first tensor argument."""
        ...

    @property
    def made(self) -> int:
        """The number of values in all results together."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        ...

    @property
    def node(self) -> str | None:
        """The autograd node of the first result that has a node."""

    @property
    def overwritten(self) -> int | None:
        """The slot of the argument that the call overwrote with its first result."""

    @property
    def is_complex(self) -> bool: ...


class Memory(Protocol):
    """Facts about the memory behind the tensors of a pass."""

    def is_fresh(self, number: int) -> bool:
        """True if the operation allocated the memory of its result."""
        ...

    def reshapes_freely(self, number: int, shape: tuple[int, ...]) -> bool:
        """True if a tensor can be viewed in another shape without a copy."""
        ...
