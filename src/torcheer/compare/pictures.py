"""A picture of one side of a comparison: errors as colour, and a frame around culprits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..graph import Graph, Node
from ..model_history import ModelHistory
from ..render import Picture, Target, draw, picture_options
from .culprit import Culprit

_FRAME = "#D81B60"  # seen on light and on dark pages, and on every colour of the scale


def culprit_operations(culprits: list[Culprit], side: str) -> list[int]:
    """The operations of a side that culprits name, and all operations of blocks that only this side runs."""
    found: dict[int, None] = {}
    for one in culprits:
        operation = one.a if side == "a" else one.b
        if operation is not None:
            found[operation._number] = None
            found.update((inside._number, None) for inside in (one.lone.operations if one.lone is not None else ()))
    return list(found)


def draw_side(
    history: ModelHistory,
    path: Target | None,
    format: str | None,
    errors: Mapping[int, float],
    culprits: list[int],
    title: str,
    options: Mapping[str, Any],
) -> Picture:
    """Draw a history with errors by operation as colour. A block with a culprit is not folded into one without."""
    chosen = picture_options({"color_by": _error(errors), **options})
    framed = set(culprits)

    def of_culprits(value: str) -> Callable[[Any], str | None]:
        return lambda node: value if framed.intersection(node.operations) else None

    frame = {"color": of_culprits(_FRAME), "penwidth": of_culprits("4")}
    node = {**frame, **chosen.overrides.get("node", {})} if framed else chosen.overrides.get("node", {})
    chosen = replace(chosen, overrides={**chosen.overrides, "node": node})
    return draw(replace(_set_apart(history.graph, framed), title=title), chosen, path, format)


def _error(errors: Mapping[int, float]) -> Callable[[Node], float | None]:
    """The largest error of the operations of a node; infinite errors are drawn as the largest finite one."""
    most = max((error for error in errors.values() if math.isfinite(error)), default=1.0) or 1.0

    def own_error(node: Node) -> float | None:
        found = [min(errors[number], most) for number in node.operations if number in errors]
        return max(found, default=None)

    own_error.__name__ = "own error (framed: the culprit)"
    return own_error


def _set_apart(graph: Graph, framed: set[int]) -> Graph:
    """The graph with another structure for nodes of culprits, so that folding takes them for equal to no other node."""

    def apart(node: Node) -> Node:
        return replace(node, structure=lambda: ("culprit", node.key)) if framed.intersection(node.operations) else node

    return replace(graph, all_nodes=tuple(map(apart, graph.all_nodes)))
