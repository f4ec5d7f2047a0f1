"""Groups inputs, and outputs, that repeat, such as the cache that a language model receives and returns.

Pictures draw a group as one node, the page as one box that opens. For a cache of keys and values of two layers,

    input_2   kwargs['cache'][0][0]   float32 3×6
    input_3   kwargs['cache'][0][1]   float32 3×4
    input_4   kwargs['cache'][1][0]   float32 3×6
    input_5   kwargs['cache'][1][1]   float32 3×4

are one group, `kwargs['cache']`: input_4 repeats input_2 and input_5 repeats input_3.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .model import Node

_FEWEST = 3  # tensors inside a nested value form a group if they are at least this many
_FEWEST_UNNESTED = 9  # the same for other tensors: a few results of a flat tuple usually mean different things
_NUMBER = re.compile(r"\d+")
_STEP = re.compile(r"\[\d+\]|\['[^']*'\]|\.\w+")


@dataclass(frozen=True, slots=True)
class EqualPorts:
    """A group of inputs, or of outputs, that is drawn as one node, in the order of the graph."""

    # the value that contains the tensors, `output['past_key_values'].layers`; if they are not nested: `args`, `kwargs`,
    # `output`
    place: str
    nodes: tuple[Node, ...]

    @property
    def is_nested(self) -> bool:
        return _is_nested(self.nodes[0])

    @property
    def name(self) -> str:
        return name_of_place(self.place)


def equal_ports(nodes: Iterable[Node]) -> list[EqualPorts]:
    """The groups of equal inputs, and of equal outputs, among some nodes.

    Two tensors in one nested value repeat if their positions differ only in numbers, and shape and dtype are equal. All
    repeating tensors of one value are a group if they are at least three. Tensors that are not nested are a group if at least
    nine have the same shape and dtype.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(lambda x: {"cache": [(x + i, x.sum() * i) for i in range(4)]}, torch.ones(2))
    >>> [(group.name, len(group.nodes)) for group in equal_ports(history.graph.nodes)]
    [('cache', 8)]
    """
    ports = [node for node in nodes if node.kind in ("input", "output") and node.role]
    order = {node.key: number for number, node in enumerate(ports)}
    repeats: dict[tuple[object, ...], list[Node]] = {}
    for node in ports:
        numberless = _NUMBER.sub("#", node.role) if _is_nested(node) else ""
        repeats.setdefault((*_group(node), numberless, node.shape, node.dtype), []).append(node)
    groups: dict[tuple[object, ...], list[Node]] = {}
    for equal in repeats.values():
        if len(equal) > 1:
            groups.setdefault(_group(equal[0]), []).extend(equal)
    return [
        EqualPorts(place_around(members[0].role), tuple(sorted(members, key=lambda node: order[node.key])))
        for members in groups.values()
        if len(members) >= (_FEWEST if _is_nested(members[0]) else _FEWEST_UNNESTED)
    ]


def _group(node: Node) -> tuple[object, ...]:
    tensor = () if _is_nested(node) else (node.shape, node.dtype)
    return node.kind, node.modules, place_around(node.role), *tensor


def _is_nested(node: Node) -> bool:
    return "[" in place_around(node.role)


def place_around(role: str) -> str:
    """The part of `role` before the first nested number: the value that contains the tensor.

    `args`, `kwargs` or `output` for a tensor that is itself an argument or a result.

    >>> place_around("output['past_key_values'].layers[3].keys"), place_around("output[1][0]"), place_around("output['logits']")
    ("output['past_key_values'].layers", 'output[1]', 'output')
    """
    steps = list(_STEP.finditer(role))
    numbered = next((step for step in steps[1:] if _NUMBER.search(step[0])), None)
    return role[: (numbered or steps[0]).start()] if steps else role


def name_of_place(place: str) -> str:
    """The text that pictures show for a place: `past_key_values.layers` for `output['past_key_values'].layers`."""
    return re.sub(r"^(?:output|kwargs)\['(\w+)'\]", r"\1", place)
