"""What is written in pictures for papers: the operation, its window, the shape of its tensor."""

from __future__ import annotations

import re

from ..graph import Graph, ModuleBox, Node
from .windows import window_words
from .wording import clean, dimensions, node_lines, own_repeats


def short_node_lines(node: Node, graph: Graph) -> list[str]:
    """What is written on a node, its name first."""
    if node.kind in ("failed", "identity", "omitted", "stub"):
        return node_lines(node, graph)
    lines = [_name(node, graph)]
    if node.kind == "module":
        lines.append(clean(node.type, 30))
        if (times := own_repeats(node, graph)) > 1:
            lines.append(f"{times} in a row")
    if words := window_words(node, graph):
        lines.append(", ".join(word.removeprefix("kernel ") for word in words))
    if node.shape is not None:
        lines.append(dimensions(node.shape))
    return lines


def _name(node: Node, graph: Graph) -> str:
    if node.kind in ("input", "output"):
        named = re.fullmatch(r"(?:output|kwargs)\['(\w+)'\].*", node.role)
        name = named[1] if named else node.kind
        return f"{node.num_operations} {node.kind}s" if node.num_operations > 1 else name
    if node.kind == "buffer":
        return clean(node.role, 30)
    name = clean(node.label if node.kind == "module" else node.title, 40)
    passes = len(node.passes)
    if graph.is_rolled:
        return f"{name} ×{passes}" if passes > 1 else name
    return f"{name} ({node.passes[0]}/{node.num_passes})" if node.num_passes > 1 and passes == 1 else name


def short_box_lines(box: ModuleBox, graph: Graph) -> list[str]:
    """The title of a module: its address within the module around it, and how many equal ones in a row it stands for."""
    around = graph.boxes[box.parent].address + "." if box.parent is not None else ""
    times = f" ×{box.num_turns}" if graph.is_rolled and box.num_turns > 1 else ""
    lines = [clean(box.address.removeprefix(around), 34) + times]
    return [*lines, f"{box.repeats} in a row"] if box.repeats > 1 else lines
