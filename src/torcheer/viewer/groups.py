"""What the page draws as one: equal blocks that follow one another, and equal inputs or outputs."""

from __future__ import annotations

from ..graph import Graph
from ..graph.equal_ports import equal_ports
from ..graph.runs import Run, runs_of
from ..web.schema import Plain

_LONGEST_BLOCK = 8  # module calls and operations


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
    """The distances from a run inside the first block of other runs to its copies in their other blocks."""
    offsets = [0]
    for size, starts in found:
        if starts[0] <= start < starts[0] + size:
            offsets = [offset + other - starts[0] for other in starts for offset in offsets]
    return offsets


def ports_in(graph: Graph) -> list[Plain]:
    """Every group of equal inputs, and of equal outputs, as the numbers of their nodes."""
    numbers = {node.key: number for number, node in enumerate(graph.all_nodes)}
    return [
        {"name": group.name, "nodes": [numbers[node.key] for node in group.nodes]} for group in equal_ports(graph.all_nodes)
    ]
