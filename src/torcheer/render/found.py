"""What a layout found: where nodes, arrows and boxes are, before words have their places."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .geometry import Arrow, Point, Rect, read_arrow, read_point, read_rect


@dataclass(frozen=True, slots=True)
class Found:
    """Places by the names in the DOT text; arrows by the number of their edge."""

    bounds: Rect
    head: Rect | None  # title, notes and legend
    nodes: Mapping[str, Rect]
    arrows: dict[int, Arrow]
    boxes: Mapping[str, Rect]
    title_heights: Mapping[str, float] = field(default_factory=dict)  # by box
    texts: Mapping[int, Point] = field(default_factory=dict)  # of edges, where the layout placed them


def read_layout(laid_out: bytes) -> Found:
    """The places in a layout that Graphviz wrote as JSON."""
    read: dict[str, Any] = json.loads(laid_out)
    objects = read.get("objects", [])
    edges = {int(one["id"][1:]): one for one in read.get("edges", ()) if "id" in one}
    boxes = {one["name"]: one for one in objects if "bb" in one}
    return Found(
        bounds=read_rect(read["bb"]),
        head=_rect(read["lp"], read["lwidth"], read["lheight"]) if "lp" in read else None,
        nodes={
            one["name"]: _rect(one["pos"], one["width"], one["height"]) for one in objects if "bb" not in one and "pos" in one
        },
        arrows={number: read_arrow(one["pos"]) for number, one in edges.items() if "pos" in one},
        boxes={name: read_rect(one["bb"]) for name, one in boxes.items()},
        title_heights={name: float(one.get("lheight", 0.3)) * 72 for name, one in boxes.items()},
        texts={number: read_point(one["lp"]) for number, one in edges.items() if "lp" in one},
    )


def _rect(middle: str, width: str, height: str) -> Rect:
    """A rectangle by its middle, and its size in inches."""
    return Rect.around(read_point(middle), float(width) * 72, float(height) * 72)
