"""The data of a comparison's page: both graphs, with errors, partners and culprits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..model_history import ModelHistory
from ..viewer import payload_of

FIGURES = ["own error", "inherited error", "error"]


@dataclass(frozen=True, slots=True)
class PageSide:
    """One of the two histories, with the figures and the partner of each operation, by its number."""

    history: ModelHistory
    figures: Mapping[int, tuple[float | None, ...]]
    partners: Mapping[int, int]
    culprits: list[int]


def payloads_of(sides: tuple[PageSide, PageSide], verdict: str, *, previews: bool, max_bytes: int) -> list[dict[str, Any]]:
    """The data of both sides, with figures, partners and culprits."""
    payloads = [payload_of(side.history, previews=previews, max_bytes=max_bytes // 2) for side in sides]
    places = [_places(side.history) for side in sides]
    for side, payload, here, there in zip(sides, payloads, places, reversed(places), strict=True):
        _add(payload, side, verdict, here, there)
    return payloads


def _places(history: ModelHistory) -> dict[int, int]:
    """By number of an operation: its node."""
    return {number: place for place, node in enumerate(history.graph.all_nodes) for number in node.operations}


def _add(payload: dict[str, Any], side: PageSide, verdict: str, here: dict[int, int], there: dict[int, int]) -> None:
    nodes = payload["nodes"]
    payload["metrics"] = FIGURES
    payload["verdict"] = verdict
    culprits = [here[number] for number in side.culprits if number in here]
    if culprits:
        payload["culprits"] = culprits
    payload["partners"] = [-1] * len(nodes)
    for number, place in here.items():
        if number in side.figures:
            nodes[place]["metrics"] = [_plain(value) for value in side.figures[number]]
        payload["partners"][place] = there.get(side.partners.get(number, -1), -1)


def _plain(value: float | None) -> float | None:
    """A figure as JSON can hold it: the largest float for infinity."""
    return 1e308 if value == float("inf") else value
