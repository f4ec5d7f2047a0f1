"""Colour by a number: time, memory, parameters, or the result of a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgument
from ..graph import Graph, Node
from ..history.printing.text import human_size, human_time
from .wording import human_count

_FAR_APART = 50.0  # from this ratio on, a scale is logarithmic


@dataclass(frozen=True, slots=True)
class Scale:
    """Values by node, and what they are called. Nodes without a value are not coloured."""

    title: str
    values: dict[str, float]
    low: float
    high: float
    is_log: bool
    words: Callable[[float], str]

    def share(self, value: float) -> float:
        """Where a value lies between the ends, 0 to 1."""
        if self.high <= self.low:
            return 0.5
        if self.is_log:
            return math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def _of_tensors(value: Callable[[Node], float | None]) -> Callable[[Node], float | None]:
    return lambda node: None if node.kind in ("input", "output", "buffer", "identity", "failed", "stub") else value(node)


_MEASURES: dict[str, tuple[str, Callable[[Node], float | None], Callable[[float], str]]] = {
    "time": ("time", _of_tensors(lambda node: node.seconds), human_time),
    "memory": ("memory of outputs", _of_tensors(lambda node: node.bytes), human_size),
    "params": ("parameters", lambda node: node.num_params or None, human_count),
}


def make_scale(graph: Graph, color_by: str | Callable[[Any], float | None] | None) -> Scale | None:
    """The scale of the option `color_by`; None without it."""
    if color_by is None:
        return None
    if color_by in ("flops", "grad"):
        raise InvalidArgument(f"color_by={color_by!r} needs a history: use history.draw(color_by={color_by!r}).")
    if isinstance(color_by, str):
        title, value, words = _MEASURES[color_by]
    else:
        title, value, words = _name_of(color_by), color_by, lambda number: f"{number:.3g}"
    values = {node.key: float(found) for node in graph.nodes if (found := value(node)) is not None}
    known = {key: number for key, number in values.items() if math.isfinite(number)}
    low, high = (min(known.values()), max(known.values())) if known else (0.0, 0.0)
    above = min((number for number in known.values() if number > 0), default=0.0)
    is_log = low >= 0 and above > 0 and high / above > _FAR_APART
    return Scale(title, known, above if is_log else low, high, is_log, words)


def _name_of(function: Callable[..., Any]) -> str:
    """What a user's function is called."""
    name = getattr(function, "__name__", "")
    return "value" if name in ("", "<lambda>") else name.strip("_").replace("_", " ")
