"""Folds blocks that follow one another and are equal, such as the twelve blocks of GPT-2, into one.

Equal means: the same operations on the same shapes, wired the same way inside, with the same constants, fed alike (each
from the one before it, or from the same node outside), read alike. Names and parameter values may differ.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ..block_equality import Block
from ..model import Edge, Graph, ModuleBox, Node, Sharing
from .regrouping import merge_facts, regroup
from .rolling import pass_by_pass


@dataclass(frozen=True, slots=True)
class _Run:
    """Equal blocks, in order."""

    blocks: list[Block]
    is_parallel: bool


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
    """Draw equal module calls that follow one another as the first of them, which says how often (`repeats`).

    The box of a folded block, or the node of a collapsed one, says whether the blocks share their parameters. An edge from
    one block to the next becomes feedback.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> blocks = [torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(12)]
    >>> graph = fold_repeats(build_graph(torcheer.log_forward_pass(torch.nn.Sequential(*blocks), torch.ones(1, 2))))
    >>> len(graph), graph.modules["0:1"].repeats, graph.modules["0:1"].sharing
    (4, 12, 'own')
    """
    runs = list(_runs(graph))
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


def _folded(graph: Graph, runs: dict[str, _Run], groups: dict[str, str]) -> Graph:
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
    forward = {
        (groups.get(edge.source, edge.source), edge.target)
        for edge in graph.all_edges
        if groups.get(edge.target, edge.target) == edge.target and not edge.is_feedback
    }
    feedback = {(groups.get(e.source, e.source), groups.get(e.target, e.target)) for e in graph.all_edges if e.is_feedback}
    edges = [
        edge if (ends := (edge.source, edge.target)) in forward or ends in feedback else _to_next_block(edge)
        for edge in folded.all_edges
    ]
    return replace(folded, all_edges=tuple(edges))


def _to_next_block(edge: Edge) -> Edge:
    return replace(edge, is_feedback=True, is_to_next_block=True)


def _folded_box(graph: Graph, box: ModuleBox, run: _Run) -> ModuleBox:
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


def _runs(graph: Graph) -> Iterator[_Run]:
    """The runs of equal blocks, outer ones first; inside a run only its first block is looked into."""
    inside: dict[str, list[Node]] = {}
    sequences: dict[str, list[str | Node | None]] = {"": []}  # by box: what is directly inside it, None where no block is
    for node in graph.all_nodes:
        outer = ""
        for key in node.modules:
            if key not in inside:
                sequences[key] = []
            inside.setdefault(key, []).append(node)
            if not sequences[outer] or sequences[outer][-1] != key:
                sequences[outer].append(key)
            outer = key
        if node.kind != "buffer":
            sequences[outer].append(node if node.kind == "module" else None)
    gone: set[str] = set()
    for outer, sequence in sequences.items():
        if outer and not gone.isdisjoint(graph.boxes[outer].path):
            continue
        times = Counter(item for item in sequence if isinstance(item, str))
        pieces = {key for key, count in times.items() if count > 1}  # a block in pieces is no block
        for run in _equal_runs([None if item in pieces else _block(graph, item, inside) for item in sequence]):
            gone.update(block.key for block in run.blocks[1:])
            yield run


def _block(graph: Graph, item: str | Node | None, inside: dict[str, list[Node]]) -> Block | None:
    """What may be folded; not what already is, for it stands for several."""
    if isinstance(item, str):
        box = graph.boxes[item]
        return Block(graph, inside[item], box) if box.repeats == 1 else None
    if item is None or item.repeats > math.prod(graph.boxes[key].repeats for key in item.modules):
        return None
    return Block(graph, [item], None)


Feed = tuple[bool, object]  # whether it comes from the block before, and what it is there


def _equal_runs(blocks: list[Block | None]) -> Iterator[_Run]:
    run: list[Block] = []
    feeds: list[Feed] = []
    for block in (*blocks, None):
        if block is not None and run and _are_alike(run[-1], block):
            now = _feeds(run[-1], block)
            if now == feeds if len(run) > 1 else _can_start(run[0], now):
                run.append(block)
                feeds = now
                continue
        if len(run) > 1:
            yield _Run(run, not any(is_before for is_before, _ in feeds))
        run = [block] if block is not None else []


def _are_alike(one: Block, other: Block) -> bool:
    if one.class_name != other.class_name or len(one.nodes) != len(other.nodes) or (one.box is None) != (other.box is None):
        return False
    return one.form == other.form


def _feeds(before: Block, block: Block) -> list[Feed]:
    """Where each entry of a block comes from: the block before it, by number of the node, or one outside; and which tensors."""
    found: list[Feed] = []
    for _, edge in block.entries:
        number = before.numbers.get(edge.source)
        if number is None:
            found.append((False, (edge.source, edge.tensors)))
        else:
            made = before.nodes[number].operations
            found.append((True, (number, *(bisect_left(made, tensor) for tensor in edge.tensors))))
    return found


def _can_start(first: Block, feeds: list[Feed]) -> bool:
    """Whether the first block is fed as the ones after it: the same from outside, one stream for each from the block before."""
    streams: dict[object, object] = {}
    for (_, edge), (is_before, origin) in zip(first.entries, feeds, strict=True):
        own = (edge.source, edge.tensors)
        if streams.setdefault(origin, own) != own if is_before else own != origin:
            return False
    return True
