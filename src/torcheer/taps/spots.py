"""Watched places, and what is done with the values there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import count
from typing import Any

from torch import Tensor
from torch.nn import Module

from ..capture.restore.left_as_found import PassStopped
from ..containers import replace_tensors
from .places import Place


class Act(ABC):
    """What is done with the values at places."""

    changes = False  # whether the model goes on with another value

    @abstractmethod
    def __call__(self, spot: Spot, tensor: Tensor) -> Tensor | None:
        """Take a value; return the one that the model goes on with, or None for the same one."""

    def begin(self) -> None:  # noqa: B027 - most acts have nothing to do here
        """A call of the model begins."""

    def placed(self, spot: Spot, tensor: Tensor, part: int, is_other: Tensor | bool) -> None:  # noqa: B027 - for acts that change
        """The model goes on with `tensor`, number `part` of the tensors that a module returned or was given.

        `is_other`: whether its values are others than those that were there; a tensor where a device has not told yet.
        """


@dataclass(eq=False, slots=True)
class Spot:
    """A place that is watched, what is done there, and how often it was reached."""

    place: Place
    act: Act
    rank: float = 0  # how many places its key means: of two changes of one value, that of the lower rank counts
    module: Module | None = None
    reached: int = 0  # over the whole block
    here: int = 0  # in this call of the model
    made: int = 0  # how often the model went on with what the act gave, over the whole block
    changed: int | Tensor = 0  # in how many of these with other values
    is_alone: bool = False  # whether it was reached last where its module was called by itself, not by the model
    is_outranked: bool = False  # another change was made in its place


def counting(spots: list[Spot]) -> list[Spot]:
    """The spots at one value that count: all that read, and one that changes."""
    changing = [spot for spot in spots if spot.act.changes]
    if len(changing) < 2:
        return spots
    chosen = min(reversed(changing), key=lambda spot: spot.rank)  # of equal ranks the last
    for spot in changing:
        spot.is_outranked = spot is not chosen
    return [spot for spot in spots if spot is chosen or not spot.act.changes]


class Stopped(PassStopped):
    """Ends a pass in which every place was reached."""


def with_tensors(value: Any, new: dict[int, Tensor]) -> Any:
    """`value` with other tensors in it, by their number among the tensors of `value`."""
    if isinstance(value, Tensor):
        return new.get(0, value)
    numbers = count()
    return replace_tensors(value, lambda tensor: new.get(next(numbers), tensor))
