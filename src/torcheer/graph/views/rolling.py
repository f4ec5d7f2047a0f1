"""Rolls the passes of a layer into one node, and lets every other view work on a rolled graph.

A rolled graph holds the graph that was rolled. A view of it is the view of that graph, rolled again, so views may come in any
order, and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from typing import Concatenate, ParamSpec

from ..model import Edge, Graph, ModuleBox, Node
from .regrouping import merge_facts, regroup, restrict

_P = ParamSpec("_P")
View = Callable[Concatenate[Graph, _P], Graph]


def pass_by_pass(view: View[_P]) -> View[_P]:
    """Make a view that takes unrolled graphs take rolled graphs too."""

    @wraps(view)
    def of_any(graph: Graph, /, *args: _P.args, **kwargs: _P.kwargs) -> Graph:
        if graph.unrolled is not None:
            return roll(view(graph.unrolled, *args, **kwargs))
        return view(graph, *args, **kwargs)

    return of_any


def format_passes(passes: Iterable[int]) -> str:
    """Numbers of passes, with ranges.

    >>> format_passes({1, 2, 3}), format_passes([2, 4]), format_passes([1, 2, 3, 7])
    ('1-3', '2,4', '1-3,7')
    """
    runs: list[list[int]] = []
    for number in sorted(set(passes)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def roll(graph: Graph) -> Graph:
    """Every layer as one node, however often it ran; edges say which passes travel them where that differs.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> def twice(x):
    ...     for _ in range(2):
    ...         x = torch.sin(x) + 1
    ...     return x
    >>> rolled = roll(build_graph(torcheer.log_forward_pass(twice, torch.ones(2))))
    >>> [(node.key, node.num_passes) for node in rolled.nodes]
    [('input_1_0', 1), ('sin_1_1', 2), ('add_1_2', 2), ('output_1_3', 1)]
    """
    if graph.unrolled is not None:
        return graph
    seen = restrict(graph, {node.key for node in graph.nodes})
    boxes, homes = _rolled_boxes(graph)
    groups = {node.key: _rolled_key(node) for node in seen.all_nodes}

    def merge(key: str, passes: list[Node]) -> Node:
        numbers = sorted({number for node in passes for number in node.passes})
        turns = {"passes": tuple(numbers), "num_passes": max(node.num_passes for node in passes)}
        return merge_facts(passes, key=key, modules=_home(passes, graph, homes), **turns)

    rolled = regroup(seen, groups, merge, boxes=boxes, is_same_step=True)
    edges = tuple([replace(edge, pass_note=_note(edge, rolled)) for edge in rolled.all_edges])
    return replace(rolled, all_edges=edges, unrolled=graph)


def unroll(graph: Graph) -> Graph:
    """The graph with every pass on its own again."""
    return graph if graph.unrolled is None else graph.unrolled


def _rolled_key(node: Node) -> str:
    return f"@{node.label}" if node.kind == "module" else node.label


def _note(edge: Edge, graph: Graph) -> str:
    """The passes in which data flows along an edge; empty if each pass of one end leads to the same pass of the other."""
    source, target = graph.by_key[edge.source].passes, graph.by_key[edge.target].passes
    leaving, arriving = {a for a, _ in edge.passes}, {b for _, b in edge.passes}
    if len(source) == len(target) == 1:
        return ""
    if source == target and set(edge.passes) == {(number, number) for number in source}:
        return ""
    if len(target) == 1:
        return format_passes(leaving)
    is_step = all(b - a == 1 for a, b in edge.passes)
    if len(source) == 1 or is_step or all(a == b for a, b in edge.passes):
        return format_passes(arriving)
    return f"{format_passes(leaving)}→{format_passes(arriving)}"


# Boxes ------------------------------------------------------------------------------------------------------------


def _steps(path: Iterable[str], graph: Graph) -> list[str]:
    """The steps along a path, each once: a module may be called inside itself."""
    return list(dict.fromkeys(graph.boxes[key].step for key in path))


def _rolled_boxes(graph: Graph) -> tuple[tuple[ModuleBox, ...], dict[str, tuple[str, ...]]]:
    """One box per step, inside the steps that are around every one of its calls; and the path to each."""
    calls: dict[str, list[ModuleBox]] = {}
    around: dict[str, list[str]] = {}
    for box in graph.all_boxes:
        outer = [step for step in _steps(box.path[:-1], graph) if step != box.step]
        if box.step in around:
            around[box.step] = [step for step in around[box.step] if step in outer]
        else:
            around[box.step] = outer
        calls.setdefault(box.step, []).append(box)
    homes: dict[str, tuple[str, ...]] = {}

    def home(step: str) -> tuple[str, ...]:
        if step not in homes:
            outer = home(around[step][-1]) if around[step] else ()
            homes[step] = (*outer, step)
        return homes[step]

    return tuple(_rolled_box(boxes, home(step)) for step, boxes in calls.items()), homes


def _rolled_box(boxes: list[ModuleBox], path: tuple[str, ...]) -> ModuleBox:
    return replace(
        boxes[0],
        path=path,
        calls=tuple(sorted({call for box in boxes for call in box.calls})),
        turns=tuple(sorted({turn for box in boxes for turn in box.turns})),
        seconds=sum(box.seconds for box in boxes),
        inputs=tuple(number for box in boxes for number in box.inputs),
        outputs=tuple(number for box in boxes for number in box.outputs),
    )


def _home(passes: list[Node], graph: Graph, homes: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The path to the innermost module that all passes ran in."""
    first = _steps(passes[0].modules, graph)
    others = [set(_steps(path, graph)) for path in dict.fromkeys(node.modules for node in passes[1:])]
    shared = [step for step in first if all(step in other for other in others)]
    return homes[shared[-1]] if shared else ()
