"""Chooses which channels of a layer are kept if there are too many.

The choice is made once for a layer and stored with the run, so that the same filters are seen at every step, in every kind, and
after resuming. A selector is a function of the layer's name, how many channels there are, how many may be kept, and the tensor.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import InvalidArgument

# (layer, number of channels, number to keep, the tensor with channels first) -> the numbers of the channels to keep
Selector = Callable[[str, int, int, Tensor], Iterable[int]]


@dataclass(frozen=True)
class RandomFilterSelectorType:
    """Chooses channels at random, by a generator of its own: the same channels for the same seed and layer.

    >>> RandomFilterSelectorType(seed=1)("conv1", 8, 3, None) == RandomFilterSelectorType(seed=1)("conv1", 8, 3, None)
    True
    """

    seed: int = 0

    def __call__(self, layer: str, count: int, limit: int, tensor: Tensor | None) -> list[int]:
        private = random.Random(zlib.crc32(f"{self.seed}/{layer}".encode()))
        return sorted(private.sample(range(count), limit))


@dataclass(frozen=True)
class FirstFilters:
    """Chooses the first channels."""

    def __call__(self, layer: str, count: int, limit: int, tensor: Tensor | None) -> list[int]:
        return list(range(limit))


@dataclass(frozen=True)
class TopVarianceFilters:
    """Chooses the channels that vary most when the layer is first seen."""

    def __call__(self, layer: str, count: int, limit: int, tensor: Tensor) -> list[int]:
        variance = tensor.detach().reshape(count, -1).float().var(dim=1, correction=0).nan_to_num(-1.0)
        return sorted(variance.topk(limit).indices.tolist())


@dataclass(frozen=True)
class ChosenFilters:
    """Chooses the channels you name: for all layers, or by layer; `"conv1/inputs"` names input channels.

    >>> ChosenFilters({"conv1": [0, 5]})("conv1", 8, 4, None)
    [0, 5]
    """

    channels: Any  # a list of numbers, or a dictionary from layers to lists

    def __call__(self, layer: str, count: int, limit: int, tensor: Tensor | None) -> list[int]:
        wanted = self.channels.get(layer) if isinstance(self.channels, dict) else self.channels
        if wanted is None or (layer.endswith("/inputs") and not isinstance(self.channels, dict)):
            return list(range(limit))
        return [number for number in wanted if number < count]


CONVOLUTION, CONNECTED = "conv", "fc"  # the two groups of layers that may have a selector each


class Choices:
    """The choices made so far, by layer and number of channels."""

    def __init__(self, selector: Any, default: Selector) -> None:
        given = selector if isinstance(selector, Mapping) else dict.fromkeys((CONVOLUTION, CONNECTED), selector)
        unknown = [name for name in given if name not in (CONVOLUTION, CONNECTED)]
        if unknown:
            raise InvalidArgument(f"selectors are for {CONVOLUTION!r} and for {CONNECTED!r}; got one for {unknown[0]!r}.")
        self._selectors: dict[str, Selector] = {CONVOLUTION: default, CONNECTED: default}
        self._selectors |= {name: one for name, one in given.items() if one is not None}
        for one in self._selectors.values():
            if not callable(one):
                raise InvalidArgument(
                    "selector must be a function of (layer, count, limit, tensor) that returns channel numbers, such as "
                    f"RandomFilterSelectorType(); got {type(one).__name__}."
                )
        self.made: dict[str, list[int]] = {}

    def choose(self, layer: str, count: int, limit: int, tensor: Tensor, sort: str = CONNECTED) -> tuple[int, ...]:
        """Choose the channels to keep. `tensor` has the channels as its first dimension. `sort` is the group of the layer."""
        selector = self._selectors[sort]
        name_them = isinstance(selector, ChosenFilters)
        if count <= limit and not name_them:
            return tuple(range(count))
        key = f"{layer}/{count}"
        if key not in self.made:
            self.made[key] = self._checked(layer, count, list(selector(layer, count, min(limit, count), tensor)))
        return tuple(self.made[key])

    def _checked(self, layer: str, count: int, chosen: list[Any]) -> list[int]:
        numbers = [int(number) for number in chosen]
        if not numbers or len(set(numbers)) != len(numbers) or not all(0 <= number < count for number in numbers):
            raise InvalidArgument(
                f"the selector must choose different numbers from 0 to {count - 1} for layer {layer!r}; "
                f"it chose {chosen!r:.200}."
            )
        return numbers
