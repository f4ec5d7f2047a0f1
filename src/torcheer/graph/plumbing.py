"""Finds the plumbing of a model, and folds it away: `plumbing_of`, `fold_plumbing`.

Plumbing is what a person leaves out of a drawing on a whiteboard. An operation is plumbing by its function or by its place:

- Operations on the model's data that only rearrange it (`view`, `transpose`, `to`, a dropout that is switched off) fold into
  the edge they stand on. An operation that drops values, such as a `getitem` that selects the last token, stays.
- Operations through which no data flows: constants, masks, positions, rotary tables, indices. They fold into the operation
  they lead to. Operations that lead to several others become one small node, a chip: `mask · 14 operations`.

The data is every tensor computed from a parameter, from a floating-point argument of the model, or from random numbers. Whole
numbers and truth values do not pass data on. Arguments of the model that are named as masks or positions are not data.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from .._text import plural
from .._torch.sentinels import TENSOR
from .model import Edge, Graph, Node
from .views import common_path, merge_unseen, pass_by_pass, regroup

_STEERING = re.compile(r"mask|position|bias_index")  # an argument of the model is not data if its name contains this
_FEWEST = 2  # a chip has at least this many operations; fewer operations fold into the operations they lead to
_MANY = 6  # a chip of constants has at least this many operations
_ALWAYS_DRAWN = ("input", "output", "failed", "buffer", "identity", "module", "chain", "omitted", "stub", "plumbing")


@dataclass(frozen=True, slots=True)
class Chip:
    """Operations beside the data that lead to several others: drawn as one small node."""

    name: str  # what they compute: `mask`, `positions`, `rotary`, `indices` or `constants`
    nodes: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"{self.name} · {plural(len(self.nodes), 'operation')}"


@dataclass(frozen=True, slots=True)
class Plumbing:
    """The plumbing of a graph, by keys of nodes."""

    folded: frozenset[str]  # nodes that fold into the edge they stand on, or into the operation they lead to
    chips: tuple[Chip, ...]

    @property
    def nodes(self) -> frozenset[str]:
        """All nodes that are plumbing."""
        return self.folded.union(*(chip.nodes for chip in self.chips))


_NONE = Plumbing(frozenset(), ())


def plumbing_of(graph: Graph) -> Plumbing:
    """The plumbing among the nodes of an unrolled graph.

    A graph has no plumbing if the pass failed, or if only plumbing would be left.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> sorted(plumbing_of(torcheer.log_forward_pass(model, torch.ones(1, 1, 4)).graph).folded)
    ['flatten_1_2:1']
    """
    if any(node.kind == "failed" for node in graph.all_nodes):
        return _NONE
    data = _data(graph)
    rearranging = {node.key for node in graph.all_nodes if node.key in data and _only_rearranges(node, graph, data)}
    if all(node.key in rearranging or node.key not in data for node in graph.all_nodes if node.kind not in _ALWAYS_DRAWN):
        return _NONE
    beside = _beside(graph, data)
    groups = _groups(graph, beside)
    chips = [(group, name) for group in groups if (name := _chip_name(group, graph, beside))]
    in_chips = {key for group, _ in chips for key in group}
    return Plumbing(frozenset((rearranging | beside) - in_chips), tuple(Chip(name, tuple(group)) for group, name in chips))


# Which tensors are data -------------------------------------------------------------------------------------------


def _data(graph: Graph) -> set[str]:
    """The keys of the nodes whose tensor is data, or computed with data."""
    found: set[str] = set()
    floating: set[str] = set()
    for node in graph.all_nodes:
        parents = [edge.source for edge in graph.edges_in.get(node.key, ()) if not edge.is_feedback]
        makes_constants = node.facts is not None and node.facts.category == "constant"  # also `zeros_like`
        if _is_origin(node) or (not makes_constants and any(parent in floating for parent in parents)):
            found.add(node.key)
            if _carries(node):
                floating.add(node.key)
    return found


def _is_origin(node: Node) -> bool:
    """True for data that is not computed from other data."""
    if node.kind == "input":
        return _carries(node) and _STEERING.search(node.name or node.role) is None
    if node.kind in ("operation", "composite"):
        return bool(node.params) or (node.facts is not None and node.facts.category == "random" and not node.facts.is_dropout)
    return node.kind not in ("alias", "source", "buffer")


def _carries(node: Node) -> bool:
    """True for a tensor whose values can be data: not whole numbers and truth values. Bytes are pictures."""
    dtype = node.dtype or ""
    return not (dtype == "bool" or dtype.startswith(("int", "uint16", "uint32", "uint64")))


# Data that only changes its shape ---------------------------------------------------------------------------------


def _only_rearranges(node: Node, graph: Graph, data: set[str]) -> bool:
    """True if the result has all values of its argument and no others."""
    facts = node.facts
    if node.kind not in ("operation", "alias") or facts is None or node.params or node.python_reads or node.is_inplace:
        return False
    if node.structure is not None or any(use.is_written for use in node.buffers):
        return False
    if facts.is_dropout:
        return _is_off(node)
    if not (facts.rearranges or facts.joins or node.kind == "alias"):
        return False
    sources = [edge.source for edge in graph.edges_in.get(node.key, ()) if edge.source in data]
    before = graph.by_key[sources[0]].shape if len(sources) == 1 else None
    if before is None or node.shape is None:
        return False
    more = math.prod(node.shape) - math.prod(before)
    return more == 0 or (more > 0 and not facts.joins)  # a join may add only an empty tensor, such as an empty cache


def _is_off(node: Node) -> bool:
    """True for a dropout that returns its argument."""
    if node.arguments is None or node.facts is None or node.facts.draws is None:
        return False
    values, names = node.arguments.template, node.arguments.names
    count = len(values) - len(names)
    return TENSOR in values[:1] and not node.facts.draws(values[:count], dict(zip(names, values[count:], strict=True)))


# Beside the data --------------------------------------------------------------------------------------------------


def _beside(graph: Graph, data: set[str]) -> set[str]:
    """Return the operations not computed with data. Empty if no output shows data: they are then what the model computes."""
    outputs = [node for node in graph.all_nodes if node.kind == "output"]
    if outputs and not any(edge.source in data for node in outputs for edge in graph.edges_in.get(node.key, ())):
        return set()
    return {
        node.key
        for node in graph.all_nodes
        if node.key not in data and node.kind not in _ALWAYS_DRAWN and node.structure is None
    }


def _groups(graph: Graph, beside: set[str]) -> list[list[str]]:
    """The connected operations beside the data, each group in execution order.

    The operations of a group are in one module and come after the same drawn operation, so that one node can stand for them.
    """
    home = _homes(graph, beside)
    order = {node.key: place for place, node in enumerate(graph.all_nodes)}
    after: dict[str, int] = {}  # key -> position of the last drawn operation that the operation is computed from
    group: dict[str, str] = {}

    def first(key: str) -> str:
        while group[key] != key:
            group[key] = key = group[group[key]]
        return key

    for node in graph.all_nodes:
        if node.key not in beside:
            continue
        sources = [edge.source for edge in graph.edges_in.get(node.key, ()) if not edge.is_feedback]
        drawn = [order[one] for one in sources if one not in beside and graph.by_key[one].kind != "input"]
        after[node.key] = max([*drawn, *(after[one] for one in sources if one in beside)], default=-1)
        group[node.key] = node.key
        for one in sources:
            if one in beside and home[one] == home[node.key] and after[one] == after[node.key]:
                old, new = sorted((first(one), first(node.key)), key=order.__getitem__)
                group[new] = old
    found: dict[str, list[str]] = {}
    for key in group:
        found.setdefault(first(key), []).append(key)
    return list(found.values())


def _homes(graph: Graph, beside: set[str]) -> dict[str, tuple[str, ...]]:
    """Map each operation beside the data to those modules around it that also contain nodes that are not beside the data."""
    others: set[tuple[str, ...]] = set()
    for path in {node.modules for node in graph.all_nodes if node.key not in beside}:
        others.update(path[:depth] for depth in range(len(path) + 1))
    found: dict[str, tuple[str, ...]] = {}
    by_path: dict[tuple[str, ...], tuple[str, ...]] = {}
    for key in beside:
        path = graph.by_key[key].modules
        if path not in by_path:
            by_path[path] = next((path[:depth] for depth in range(len(path), 0, -1) if path[:depth] in others), ())
        found[key] = by_path[path]
    return found


def _chip_name(group: list[str], graph: Graph, beside: set[str]) -> str:
    """Return the name of a chip of these operations. Empty if they fold into the operations that they lead to."""
    inside = set(group)
    leaving = [edge for key in group for edge in graph.edges_out.get(key, ()) if edge.target not in inside]
    is_shown = any(graph.by_key[edge.target].kind == "output" for edge in leaving)
    if not is_shown and (len(group) < _FEWEST or len({edge.target for edge in leaving}) < 2):
        return ""
    nodes = [graph.by_key[key] for key in group]
    functions = {node.function for node in nodes}
    entering = [graph.by_key[edge.source] for key in group for edge in graph.edges_in.get(key, ())]
    if {"cos", "sin", "polar"} & functions:
        return (
            "rotary"
            if any("rotary" in key.lower() or "rope" in key.lower() for n in nodes for key in n.modules)
            else "positions"
        )
    names = [place for edge in leaving for place in edge.positions]
    is_sum = any(name.startswith(("scatter", "index_add", "bincount")) for name in functions)  # counts the edges of a graph
    has_truth = (any(node.dtype == "bool" for node in nodes) or bool({"tril", "triu"} & functions)) and not is_sum
    if has_truth or any("mask" in name for name in (*names, *(node.name for node in entering))):
        return "mask"
    if any(graph.by_key[edge.target].function == "embedding" for edge in leaving):
        return "positions"
    if any(node.from_input for node in nodes):
        return "indices"
    return "constants" if is_shown or len(group) >= _MANY else ""


# The view ---------------------------------------------------------------------------------------------------------


@pass_by_pass
def fold_plumbing(graph: Graph) -> Graph:
    """Leave out the plumbing: chips are one node each, and edges lead through what is folded.

    Apply it before other views.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(4, 2))
    >>> graph = fold_plumbing(torcheer.log_forward_pass(model, torch.ones(1, 1, 4)).graph)
    >>> [node.label for node in graph.nodes]
    ['input_1_0', 'conv1d_1_1', 'linear_1_3', 'output_1_4']
    """
    found = plumbing_of(graph)
    if not found.folded and not found.chips:
        return graph
    graph = _without(graph, found.folded)
    chips = {f"{chip.name} {chip.nodes[0]}": chip for chip in found.chips}
    groups = {key: name for name, chip in chips.items() for key in chip.nodes}
    return regroup(graph, groups, lambda name, nodes: _chip_node(name, chips[name], nodes)) if groups else graph


def _chip_node(key: str, chip: Chip, nodes: list[Node]) -> Node:
    return merge_unseen(
        nodes,
        key=key,
        label=f"{chip.name} {nodes[0].label}",
        kind="plumbing",
        type=chip.name,
        modules=common_path([node.modules for node in nodes]),
        output_path="",
        place=nodes[0].place,
    )


def _without(graph: Graph, folded: frozenset[str]) -> Graph:
    """The graph without these nodes. An edge through them begins at the last drawn node, and has the shape that arrives."""
    reaching: dict[str, dict[str, Edge]] = {}  # folded node -> the drawn nodes that reach it, each with its first edge
    edges: list[Edge] = []
    backwards: list[Edge] = []  # from a folded node to an earlier node, such as the buffer that the folded node writes

    def through(edge: Edge) -> Iterator[Edge]:
        """An edge for each drawn node that reaches the folded source of an edge."""
        for source, first in reaching[edge.source].items():
            passes = ((graph.by_key[source].passes[0], graph.by_key[edge.target].passes[0]),)
            ends: dict[str, Any] = {"target": edge.target, "positions": edge.positions, "passes": passes}
            yield replace(first, **ends, is_memory=False, shape=edge.shape, bytes=edge.bytes)

    for node in graph.all_nodes:
        arriving: dict[str, list[Edge]] = {}
        for edge in graph.edges_in.get(node.key, ()):
            if edge.source not in folded:
                arriving.setdefault(edge.source, []).append(edge)
            elif edge.source in reaching:
                for new in through(edge):
                    arriving.setdefault(new.source, []).append(new)
            else:
                backwards.append(edge)
        if node.key in folded:
            reaching[node.key] = {source: some[0] for source, some in arriving.items()}
        else:
            edges += [_joined(some) for some in arriving.values()]
    for edge in backwards:
        if edge.target not in folded:
            edges += [replace(new, is_feedback=edge.is_feedback) for new in through(edge) if new.source != edge.target]
    nodes = tuple([node for node in graph.all_nodes if node.key not in folded])
    return replace(graph, all_nodes=nodes, all_edges=tuple(edges))


def _joined(edges: list[Edge]) -> Edge:
    """Merge edges with the same ends, which carry the same tensor, into one edge."""
    positions = tuple(dict.fromkeys(place for edge in edges for place in edge.positions))
    return replace(edges[0], positions=positions, is_memory=all(edge.is_memory for edge in edges))
