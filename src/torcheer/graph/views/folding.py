"""Folds blocks that follow one another and are equal, such as the twelve blocks of GPT-2, into one (runs.py finds them)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..model import Graph, ModuleBox, Node, Sharing
from ..runs import Run, runs_of
from .regrouping import merge_facts, regroup
from .rolling import pass_by_pass


def _sharing(parts: Iterable[Iterable[Node]]) -> Sharing:
    """Whether parts of a graph have the same parameters."""
    names = [{param.name for node in nodes for param in node.params} for nodes in parts]
    if not any(names):
        return ""
    if all(some == names[0] for some in names):
        return "shared"
    return "own" if sum(map(len, names)) == len(set[str]().union(*names)) else "mixed"


@pass_by_pass
def fold_repeats(graph: Graph) -> Graph:
    """Draw equal module calls in a row as the first of them, with their number in `repeats`.

    The box of a folded block, or the node of a collapsed one, says whether the blocks share their parameters. An edge from
    one block to the next becomes feedback.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> blocks = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(12)]
    >>> graph = fold_repeats(build_graph(torcheer.log_forward_pass(torch.nn.Sequential(*blocks), torch.ones(1, 2))))
    >>> len(graph), graph.modules["0:1"].repeats, graph.modules["0:1"].sharing
    (4, 12, 'own')
    """
    runs = list(runs_of(graph))
    if not runs:
        return graph
    stands_for: dict[str, str] = {}
    for run in runs:
        first = run.blocks[0]
        for block in run.blocks[1:]:
            pairs = zip(block.nodes, first.nodes, strict=True)
            stands_for.update((node.key, equal.key) for node, equal in pairs)
    kept = set(stands_for.values())
    groups = {key: group for key in graph.by_key if (group := _followed(stands_for, key)) in kept}
    return _folded(graph, {run.blocks[0].key: run for run in runs}, groups)


def _followed(stands_for: dict[str, str], key: str) -> str:
    while key in stands_for:
        key = stands_for[key]
    return key


def _folded(graph: Graph, runs: dict[str, Run], groups: dict[str, str]) -> Graph:
    """The graph with one node per group; `runs` by the key of their first block."""
    boxes = tuple([_folded_box(graph, box, runs[box.key]) if box.key in runs else box for box in graph.all_boxes])

    def merge(key: str, equal: list[Node]) -> Node:
        first = graph.by_key[key]
        own = {number for node in equal if node.label == first.label for number in node.passes}
        facts: dict[str, Any] = {
            "passes": tuple(sorted(own)),
            "repeats": first.repeats * math.prod(len(runs[name].blocks) for name in (*first.modules, key) if name in runs),
            "sharing": _sharing([[node] for node in equal]),
        }
        return merge_facts(equal, exits=first.exits, bottom_level_module=first.bottom_level_module, **facts)

    folded = regroup(graph, groups, merge, boxes=boxes, is_same_step=True)
    within = {
        (groups.get(edge.source, edge.source), target)
        for edge in graph.all_edges
        if (target := groups.get(edge.target, edge.target)) == edge.target or edge.is_feedback
    }
    edges = [
        edge if (edge.source, edge.target) in within else replace(edge, is_feedback=True, is_to_next_block=True)
        for edge in folded.all_edges
    ]
    return replace(folded, all_edges=tuple(edges))


def _folded_box(graph: Graph, box: ModuleBox, run: Run) -> ModuleBox:
    equal = [graph.boxes[block.key] for block in run.blocks]
    return replace(
        box,
        calls=tuple(sorted({call for one in equal if one.address == box.address for call in one.calls})),
        turns=tuple(sorted({turn for one in equal if one.step == box.step for turn in one.turns})),
        repeats=box.repeats * len(equal),
        sharing=_sharing(block.nodes for block in run.blocks),
        is_parallel=run.is_parallel,
        folded=(*box.folded, *(key for one in equal[1:] for key in (one.key, *one.folded))),
        seconds=sum(one.seconds for one in equal),
    )
