"""Draws a history or one of its modules: the work behind both `draw` methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from ..analysis import flops_of
from ..graph import Node, graph_of
from ..log.run import Index
from ..pictures import Picture, Target, draw, picture_options
from .operation import Operation


def draw_history(index: Index, path: Target | None, format: str | None, options: Mapping[str, Any]) -> Picture:
    """Draw a history to a path or file object, or show it."""
    chosen = picture_options(options)
    if chosen.color_by == "grad":
        chosen = replace(chosen, color_by=_of_node(index, gradient_norm))
    elif chosen.color_by == "flops":
        chosen = replace(chosen, color_by=_flops_of_node(index))
    elif callable(chosen.color_by):
        chosen = replace(chosen, color_by=_of_node(index, chosen.color_by))
    return draw(graph_of(index), chosen, path, format)


def _of_node(index: Index, of_operation: Callable[[Operation], float | None]) -> Callable[[Node], float | None]:
    """Turn a function of an operation into a function of a node: its mean over all operations that the node stands for."""

    @wraps(of_operation)
    def of_node(node: Node) -> float | None:
        found = [of_operation(Operation(index, number)) for number in node.operations]
        known = [float(value) for value in found if value is not None]
        return sum(known) / len(known) if known else None

    return of_node


def _flops_of_node(index: Index) -> Callable[[Node], float | None]:
    by_operation = flops_of(index)

    def flops(node: Node) -> float | None:
        """The FLOPs of all operations that a node stands for; None if an operation's FLOPs are unknown."""
        found = [by_operation.get(number) for number in node.operations]
        known = [value for value in found if value is not None]
        return sum(known) if known and len(known) == len(found) else None

    return flops


def gradient_norm(operation: Operation) -> float | None:
    """The norm of the gradient at an operation's output."""
    gradient = operation.grad_contents
    return float(gradient.norm()) if gradient is not None else None
