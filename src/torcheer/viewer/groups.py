"""What the page draws as one: equal blocks that follow one another, and equal inputs or outputs of one container."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..graph import Graph, Node
from ..graph.runs import Run, runs_of
from ..web.schema import Plain

_LONGEST_BLOCK = 8  # module calls and operations
_FEWEST_PORTS = 4
_NUMBER = re.compile(r"\d+")
_STEP = re.compile(r"\[(?P<number>\d+)\]|\['(?P<key>[^']*)'\]|\.(?P<name>\w+)")


def runs_in(graph: Graph) -> list[Plain]:
    """Every run of equal blocks, outer ones first, as the numbers of the nodes that its blocks begin with."""
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    boxes = {box.key: number for number, box in enumerate(graph.all_boxes)}
    found: list[tuple[int, list[int]]] = []  # of a run: the size of its blocks, where these begin
    made: list[Plain] = []
    for run in runs_of(graph, _LONGEST_BLOCK):
        if not _is_in_one_piece(run, numbers):
            continue
        first = run.blocks[0]
        depth = first.depth - (1 if first.box is not None else 0)
        starts = [numbers[block.nodes[0].key] for block in run.blocks]
        for offset in _offsets(starts[0], found):
            around = graph.all_nodes[starts[0] + offset].modules[:depth]
            made.append(
                {
                    "module": boxes[around[-1]] if around else -1,
                    "starts": [start + offset for start in starts],
                    "end": starts[-1] + len(first.nodes) + offset,
                }
            )
        found.append((len(first.nodes), starts))
    return made


def _is_in_one_piece(run: Run, numbers: dict[str, int]) -> bool:
    return all(numbers[block.nodes[-1].key] - numbers[block.nodes[0].key] == len(block.nodes) - 1 for block in run.blocks)


def _offsets(start: int, found: list[tuple[int, list[int]]]) -> list[int]:
    """How far a run in the first block of other runs is from the same one in their other blocks."""
    offsets = [0]
    for size, starts in found:
        if starts[0] <= start < starts[0] + size:
            offsets = [offset + other - starts[0] for other in starts for offset in offsets]
    return offsets


def ports_in(graph: Graph) -> list[Plain]:
    """Inputs, and outputs, of one container that repeat, such as the cache a language model returns.

    What repeats differs by the numbers in its place alone, as `layers[0].keys` and `layers[1].keys`, and is alike.
    """
    repeated: dict[tuple[str, str, object], list[int]] = {}
    for number, node in enumerate(graph.all_nodes):
        name = _container(node) if node.kind in ("input", "output") else ""
        if name:
            place = _NUMBER.sub("#", node.role)
            repeated.setdefault((name, node.kind, (place, node.shape, node.dtype)), []).append(number)
    found: dict[tuple[str, str], list[int]] = {}
    for (name, kind, _), numbers in repeated.items():
        if len(numbers) > 1:
            found.setdefault((name, kind), []).extend(numbers)
    return [{"name": name, "nodes": sorted(numbers)} for (name, _), numbers in found.items() if len(numbers) >= _FEWEST_PORTS]


def _container(node: Node) -> str:
    """What an input or output was given or returned in; nothing where it has a name of its own.

    `output['past_key_values'].layers[0].keys` is in `past_key_values`, `output[3]` in `output`, `kwargs['mask']` in nothing.
    """
    root = re.match(r"\w*", node.role)
    steps = list(_steps(node.role[root.end() :])) if root is not None else []
    if len(steps) > 1:
        return steps[0] if not steps[0].isdigit() else f"{root[0] if root else ''}[{steps[0]}]"
    return "output" if node.kind == "output" and steps and steps[0].isdigit() else ""


def _steps(path: str) -> Iterator[str]:
    for found in _STEP.finditer(path):
        yield found["number"] or found["key"] or found["name"] or ""
