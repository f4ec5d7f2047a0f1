"""The page of two models: finds which node of one payload corresponds to which node of the other payload.

A comparison of two histories brings its own matches. Two payloads without them, such as two saved pages, are matched here by
the same rules (`torcheer.graph.matching`), with statistics in place of values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ..errors import InvalidArgument
from ..graph.matching import Matching, Side, Signature, Step, match_steps
from .schema import Plain

PARTNER_BYTES = 4  # a page needs at most this many bytes to name the partner of a node


def with_partners(left: Plain, right: Plain) -> Plain:
    """Add to each node of the left payload the number of the matching node on the right, unless a comparison already did."""
    try:
        if left.get("verdict") and _are_numbers(left["partners"], len(left["nodes"]), len(right["nodes"])):
            return left
        found = Matching(_PayloadSide(left), _PayloadSide(right))
        match_steps(found)
        _match_replaced(found)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgument(
            f"{left.get('title')!r:.60} and {right.get('title')!r:.60} cannot be shown side by side, because one of the two "
            f"payloads is damaged ({type(error).__name__}: {error})."
        ) from error
    return {**left, "partners": [found.of_a.get(number, -1) for number in range(len(left["nodes"]))]}


def _are_numbers(partners: list[Any], count: int, end: int) -> bool:
    return len(partners) == count and all(isinstance(one, int) and -1 <= one < end for one in partners)


class _PayloadSide(Side):
    """One payload. Its steps have no shape: a model that ran another batch still corresponds to itself."""

    def __init__(self, payload: Plain) -> None:
        self._nodes: list[Plain] = payload["nodes"]
        self._values = [_signature(node.get("stats")) for node in self._nodes]
        self._weights = {weight["name"]: _signature(weight.get("stats")) for weight in payload.get("weights", ())}
        modules: list[Plain] = payload["modules"]
        calls: list[tuple[int, ...]] = []
        for number, module in enumerate(modules):  # outer calls stand before inner calls
            parent = module.get("parent", -1)
            calls.append((*(calls[parent] if parent >= 0 else ()), number))
        reads: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for edge in payload["edges"]:
            if not edge.get("gradient"):
                reads[edge["to"]] += [(position, edge["from"]) for position in edge.get("positions", ()) or ("",)]
        held = [0] * len(modules)
        for node in self._nodes:
            for call in calls[node["module"]] if node.get("module", -1) >= 0 else ():
                held[call] += 1
        self.homes: list[str] = []  # for each node: the innermost module around it that holds more than one node
        every = []
        for number, node in enumerate(self._nodes):
            module = node.get("module", -1)
            around = calls[module] if module >= 0 else ()
            self.homes.append(next((modules[call]["key"] for call in reversed(around) if held[call] > 1), ""))
            parents = tuple(parent for _, parent in sorted(reads[number]))
            every.append(
                Step(
                    number=number,
                    type=f"{node.get('kind', 'operation')} {node['type']}",
                    shape=(),
                    address=modules[module]["address"] if module >= 0 else "",
                    call=modules[module].get("call", 1) if module >= 0 else 0,
                    calls=around,
                    states=(*(param["name"] for param in node.get("params", ())), *node.get("buffers", ())),
                    leaves=tuple(f"{modules[one]['class']} {modules[one]['address']}" for one in node.get("exits", ())),
                    parents=parents,
                    dependencies=parents,
                    role=node.get("role", ""),
                )
            )
        inputs, outputs = (
            [n for n, node in enumerate(self._nodes) if node.get("kind") == kind] for kind in ("input", "output")
        )
        super().__init__(every, inputs, outputs)

    def content(self, step: Step) -> tuple[Signature, ...]:
        return tuple(sorted(known for name in step.states if (known := self._weights.get(name)) is not None))

    def value_signature(self, number: int) -> Signature | None:
        return self._values[number]

    def arguments(self, number: int) -> Any:
        return self._nodes[number].get("arguments"), self._nodes[number].get("shape")


def _signature(stats: Mapping[str, Any] | None) -> Signature | None:
    if not stats or stats.get("norm") is None:
        return None
    largest = max(abs(stats["min"]), abs(stats["max"]))
    return stats["count"], float(f"{stats['norm']:.4g}"), float(f"{largest:.3g}")


def _match_replaced(found: Matching[_PayloadSide]) -> None:
    """Match steps that replace each other: equally many steps between the same two matches, in modules of the same name.

    `gelu` in place of `relu` then counts as a changed operation, and not as one removed and one added operation.
    """
    ours, theirs = found.a.steps, found.b.steps
    places = {step.number: place for place, step in enumerate(theirs)}
    at_a = at_b = 0
    for end_a in range(len(ours) + 1):
        partner = found.of_a.get(ours[end_a].number) if end_a < len(ours) else None
        if end_a < len(ours) and partner is None:
            continue
        end_b = places[partner] if partner is not None else len(theirs)
        pairs = list(zip(ours[at_a:end_a], theirs[at_b:end_b], strict=False))
        is_free = not any(other.number in found.of_b for _, other in pairs)
        is_alike = all(found.a.homes[one.number] == found.b.homes[other.number] for one, other in pairs)
        if end_a - at_a == end_b - at_b and is_free and is_alike:
            for one, other in pairs:
                found.match(one.number, other.number, "place")
        at_a, at_b = end_a + 1, max(at_b, end_b + 1)
