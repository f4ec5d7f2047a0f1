"""The views: pure functions from graph to graph that leave out, join or merge nodes, so that a picture stays readable.

Views compose in any order. Most are decorated with `pass_by_pass`, so that they accept rolled graphs too. `restrict`, `regroup`
and `bridge` are the operations that all views are made of.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cache, wraps
from math import inf
from typing import Any, Concatenate, ParamSpec

from .._text import nearest
from ..errors import InvalidArgument, LayerNotFound
from .blocks import Block, BlockRun, runs_of
from .equal_ports import EqualPorts, equal_ports
from .model import MERGES, BufferUse, Edge, Graph, ModuleBox, Node, Sharing, united

# Operations that all views use: keep some nodes, merge several nodes into one.


def restrict(graph: Graph, kept: AbstractSet[str]) -> Graph:
    """The graph with only these nodes and the edges between them."""
    if all(node.key in kept for node in graph.all_nodes):
        return graph
    nodes = tuple([node for node in graph.all_nodes if node.key in kept])
    edges = tuple([edge for edge in graph.all_edges if edge.source in kept and edge.target in kept])
    return replace(graph, all_nodes=nodes, all_edges=edges)


def reached(
    starts: Iterable[str], edges: Mapping[str, list[Edge]], *, forwards: bool, stops: AbstractSet[str] = frozenset()
) -> set[str]:
    """The keys of all nodes that paths from `starts` reach, including `starts`. Paths end at nodes in `stops`."""
    seen = set(starts)
    waiting = list(seen)
    while waiting:
        key = waiting.pop()
        for edge in edges.get(key, ()) if key not in stops else ():
            beyond = edge.target if forwards else edge.source
            if beyond not in seen:
                seen.add(beyond)
                waiting.append(beyond)
    return seen


# Merging nodes ----------------------------------------------------------------------------------------------------


def regroup(
    graph: Graph,
    groups: Mapping[str, str],
    merge: Callable[[str, list[Node]], Node],
    *,
    boxes: tuple[ModuleBox, ...] | None = None,
    at_last: bool = False,
    is_same_step: bool = False,
    keeps_positions: bool = False,
) -> Graph:
    """Merge the nodes of each group into one node, at the position of the group's first node (`at_last`: last node).

    `groups` maps keys of nodes to the key of the merged node, which `merge` makes. Other nodes stay as they are. Edges inside a
    group are dropped, unless they are feedback. With `is_same_step` the members are repetitions of one step: then all edges
    stay, with their argument positions. `keeps_positions` keeps the positions of edges into merged nodes.
    """
    members: dict[str, list[Node]] = {}
    last: dict[str, int] = {}
    for position, node in enumerate(graph.all_nodes):
        group = groups.get(node.key, node.key)
        members.setdefault(group, []).append(node)
        last[group] = position
    names = sorted(members, key=last.__getitem__) if at_last else list(members)
    merged = set(groups.values())
    nodes = {name: merge(name, members[name]) if name in merged else members[name][0] for name in names}
    order = {name: position for position, name in enumerate(nodes)}
    bundles: dict[tuple[str, str], list[Edge]] = {}
    for edge in graph.all_edges:
        source, target = groups.get(edge.source, edge.source), groups.get(edge.target, edge.target)
        if source != target or is_same_step or edge.is_feedback:
            bundles.setdefault((source, target), []).append(edge)
    edges = []
    for source, target in sorted(bundles, key=lambda ends: order[ends[1]]):
        edge = bundle(bundles[source, target], nodes[source], nodes[target], is_same_step=is_same_step)
        if target in merged and not is_same_step and not keeps_positions:
            edge = replace(edge, positions=())  # argument positions of a member say nothing about the merged node
        if order[source] >= order[target] and not edge.is_feedback:
            edge = replace(edge, is_feedback=True)
        edges.append(edge)
    kept = graph.all_boxes if boxes is None else boxes
    return replace(graph, all_nodes=tuple(nodes.values()), all_edges=tuple(edges), all_boxes=kept)


def bundle(edges: list[Edge], source: Node, target: Node, *, is_same_step: bool = True) -> Edge:
    """Merge edges between the same two nodes into one."""
    first = edges[0]
    passes = first.passes
    if is_same_step:
        passes = united(edge.passes for edge in edges)
    elif len(source.passes) == 1 and len(target.passes) == 1:
        passes = ((source.passes[0], target.passes[0]),)
    if len(edges) == 1:
        return replace(first, source=source.key, target=target.key, passes=passes)
    sizes = {edge.tensors: edge.bytes for edge in edges}
    shapes = {edge.shape for edge in edges}
    return replace(
        first,
        source=source.key,
        target=target.key,
        positions=united(edge.positions for edge in edges),
        is_memory=all(edge.is_memory for edge in edges),
        is_bridge=all(edge.is_bridge for edge in edges),
        is_feedback=all(edge.is_feedback for edge in edges),
        is_to_next_block=all(edge.is_to_next_block for edge in edges),
        passes=passes,
        tensors=united(edge.tensors for edge in edges),
        shape=first.shape if len(shapes) == 1 else None,
        bytes=sum(sizes.values()),
    )


def common_path(paths: list[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the keys of the boxes that all of these paths begin with, outermost first."""
    shared = paths[0]
    for path in dict.fromkeys(paths):
        while path[: len(shared)] != shared:
            shared = shared[:-1]
    return shared


def merge_facts(members: list[Node], **facts: Any) -> Node:
    """Merge nodes as the fields of `Node` declare; other fields are those of the first. `facts` replace fields."""
    merged = {name: merge([getattr(node, name) for node in members]) for name, merge in MERGES.items()}
    by_call = {(node.call if node.call is not None else node.key): node.seconds for node in members}
    seconds = sum(filter(None, by_call.values())) if None not in by_call.values() else None
    return replace(members[0], seconds=seconds, **{**merged, **facts})


def merge_unseen(members: list[Node], **facts: Any) -> Node:
    """Merge nodes that are not drawn into one node, without function, passes and module exits."""
    blank = {"function": "", "passes": (1,), "num_passes": 1, "parts": (), "exits": (), "role": "", "python_reads": ()}
    return merge_facts(members, **{**blank, "arguments": None, "structure": None, **facts})


# Rolls all passes of a layer into one node, and lets every other view work on a rolled graph.
#
# A rolled graph keeps the unrolled graph. A view of a rolled graph is computed on the unrolled graph and rolled again, so
# views may be applied in any order.

_P = ParamSpec("_P")
View = Callable[Concatenate[Graph, _P], Graph]


def pass_by_pass(view: View[_P]) -> View[_P]:
    """Decorator: a view of unrolled graphs accepts rolled graphs too."""

    @wraps(view)
    def of_any(graph: Graph, /, *args: _P.args, **kwargs: _P.kwargs) -> Graph:
        if graph.unrolled is not None:
            return roll(view(graph.unrolled, *args, **kwargs))
        return view(graph, *args, **kwargs)

    return of_any


def format_passes(passes: Iterable[int]) -> str:
    """Format numbers of passes as text, with ranges.

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
    """Draw every layer as one node, however often it ran. An edge that only some passes use names these passes.

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
    """Undo `roll`: draw every pass as a separate node again."""
    return graph if graph.unrolled is None else graph.unrolled


def _rolled_key(node: Node) -> str:
    return f"@{node.label}" if node.kind == "module" else node.label


def _note(edge: Edge, graph: Graph) -> str:
    """Return the passes in which data flows along an edge, as text. Empty if both ends have one pass, or if for every n, pass n
    of the source leads to pass n of the target.
    """
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
    """Return the steps along a path of boxes. Each step occurs once, even if a module is called inside itself."""
    return list(dict.fromkeys(graph.boxes[key].step for key in path))


def _rolled_boxes(graph: Graph) -> tuple[tuple[ModuleBox, ...], dict[str, tuple[str, ...]]]:
    """Make one box per step, inside those steps that contain all of its calls. Also returns the path of each box, by step."""
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
    """Return the path to the innermost module that all passes ran in."""
    first = _steps(passes[0].modules, graph)
    others = [set(_steps(path, graph)) for path in dict.fromkeys(node.modules for node in passes[1:])]
    shared = [step for step in first if all(step in other for other in others)]
    return homes[shared[-1]] if shared else ()


# Removes nodes from a graph and connects the nodes that were connected through them.


def bridge(graph: Graph, kept: AbstractSet[str]) -> Graph:
    """Keep only these nodes, and add an edge (a bridge) for each path between two of them through removed nodes."""
    found = _joined(graph, kept)
    for edge in graph.all_edges:
        if edge.is_feedback:
            _join_feedback(graph, kept, edge, found)
    nodes = tuple([node for node in graph.all_nodes if node.key in kept])
    order = {node.key: position for position, node in enumerate(nodes)}
    position = order.__getitem__  # direct edges in the order of arguments, then bridges in the order of their sources
    edges = sorted(found.values(), key=lambda edge: (position(edge.target), position(edge.source) if edge.is_bridge else -1))
    return replace(graph, all_nodes=nodes, all_edges=tuple(edges))


def _joined(graph: Graph, kept: AbstractSet[str]) -> dict[tuple[str, str], Edge]:
    """Find the edges between kept nodes, and make the bridges over removed nodes. Leaves out feedback edges."""
    uses = {key: sum(not edge.is_feedback for edge in edges) for key, edges in graph.edges_out.items()}
    reaching: dict[str, dict[str, Edge]] = {}  # removed node -> kept nodes that reach it, each with its first edge
    found: dict[tuple[str, str], Edge] = {}
    for node in graph.all_nodes:
        direct: dict[str, Edge] = {}
        through: dict[str, Edge] = {}
        for edge in graph.edges_in.get(node.key, ()):
            if edge.is_feedback:
                continue
            if edge.source in kept:
                direct[edge.source] = edge
                continue
            uses[edge.source] -= 1
            more = reaching[edge.source]
            if uses[edge.source] == 0:  # last use of `more`: merge the smaller dictionary into the larger, without a copy
                del reaching[edge.source]
                if len(more) > len(through):
                    through, more = more, through
            for source, known in more.items():
                through.setdefault(source, known)
        if node.key in kept:
            found.update(((source, node.key), edge) for source, edge in direct.items())
            for source, edge in through.items():
                if source not in direct:
                    found[source, node.key] = _bridge(graph, source, node.key, edge)
        elif uses.get(node.key):
            for source, edge in direct.items():
                through.setdefault(source, edge)
            reaching[node.key] = through
    return found


def _join_feedback(graph: Graph, kept: AbstractSet[str], edge: Edge, found: dict[tuple[str, str], Edge]) -> None:
    if edge.source in kept and edge.target in kept:
        found.setdefault((edge.source, edge.target), edge)
        return
    for source in kept & reached([edge.source], graph.edges_in, forwards=False, stops=kept):
        for target in kept & reached([edge.target], graph.edges_out, forwards=True, stops=kept):
            if (source, target) not in found:
                bridged = _bridge(graph, source, target, graph.edges_out[source][0])
                found[source, target] = replace(bridged, is_feedback=True)


def _bridge(graph: Graph, source: str, target: str, leaving: Edge) -> Edge:
    """Make a bridge between two nodes. It has the tensor of `leaving`, which is the first edge of the path."""
    passes = ((graph.by_key[source].passes[0], graph.by_key[target].passes[0]),)
    return Edge(
        source, target, is_bridge=True, passes=passes, tensors=leaving.tensors, shape=leaving.shape, bytes=leaving.bytes
    )


# Views of whole modules: `collapse` draws a module call as one node, `keep_module_outputs` keeps only results of modules.

_STAY = ("input", "output", "failed", "buffer", "identity", "module")


@pass_by_pass
def collapse(
    graph: Graph,
    *,
    depth: int | None = None,
    address: Any = (),
    class_name: str | Iterable[str] = (),
    where: Callable[[ModuleBox], bool] | None = None,
) -> Graph:
    """Draw each call of the chosen modules as one node. Choose by depth, address, class name or a function of the box.

    `depth=1` chooses the modules that the model itself calls. `address` takes any key that names modules: `"layer*.0"`,
    `"cell:2"`, a module class, a list. With several conditions, a module needs to meet only one.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.nn.Tanh())
    >>> graph = collapse(build_graph(torcheer.log_forward_pass(model, torch.ones(1, 2))), class_name="Sequential")
    >>> [node.key for node in graph.nodes]
    ['input_1_0:1', '@0:1', 'tanh_1_3:1', 'output_1_4:1']
    """
    named = list(address) if isinstance(address, (list, tuple, set, frozenset)) else [address]
    classes = _known_classes(class_name, {box.class_name for box in graph.all_boxes})
    if depth is None and not named and not classes and where is None:
        raise InvalidArgument(
            "collapse() needs to know which modules: depth=1, address='layer1', class_name='Block' or where=…."
        )
    if depth is not None and depth < 1:
        raise InvalidArgument(f"depth starts at 1, the modules that the model itself calls; got {depth}.")
    picked = {box.key for key in named for box in graph.boxes_of(key)}
    picked |= {
        box.key
        for box in graph.all_boxes
        if box.depth == depth or box.class_name in classes or (where is not None and where(box))
    }
    return _collapsed(graph, picked)


def _known_classes(wanted: str | Iterable[str], known: set[str]) -> list[str]:
    """The wanted class names as a list. Raises if no module has one of these classes."""
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    for name in names:
        if name not in known:
            raise LayerNotFound(f"no module class fits {name!r}: {len(known)} were called.{nearest(name, sorted(known))}")
    return names


def _collapsed(graph: Graph, picked: set[str]) -> Graph:
    outermost = {path: next((key for key in path if key in picked), None) for path in {n.modules for n in graph.all_nodes}}
    groups = {node.key: f"@{key}" for node in graph.all_nodes if (key := outermost[node.modules]) is not None}
    if not groups:
        return graph
    return regroup(graph, groups, lambda key, inside: _module_node(graph, graph.boxes[key[1:]], inside))


def _module_node(graph: Graph, box: ModuleBox, inside: list[Node]) -> Node:
    returned = set(box.outputs)
    inside = [node for node in inside if node.kind != "buffer"] or inside
    leaving = [node for node in inside if not returned.isdisjoint(node.operations)]
    result = leaving[0] if leaving else inside[-1]
    beyond = [key for node in leaving for key in node.exits if graph.boxes[key].path[: box.depth] != box.path]
    return merge_facts(
        inside,
        key=f"@{box.key}",
        label=box.step,
        kind="module",
        type=box.class_name,
        function=box.class_name,
        passes=box.turns,
        num_passes=box.num_turns,
        repeats=math.prod(graph.boxes[key].repeats for key in box.path),
        sharing=box.sharing,
        parts=(),
        modules=box.path[:-1],
        exits=tuple(dict.fromkeys((box.key, *beyond))),
        bottom_level_module=None,
        shape=box.output_shapes[0] if box.output_shapes else result.shape,
        dtype=result.dtype,
        device=result.device,
        input_shapes=box.input_shapes,
        output_shapes=box.output_shapes,
        composite=None,
        output_path="",
        role="",
        error=next((node.error for node in inside if node.error), ""),
        place=box.place,
        arguments=None,
        structure=cache(lambda: Block(graph, inside, box).form),
    )


@pass_by_pass
def keep_module_outputs(graph: Graph) -> Graph:
    """Keep only inputs, outputs and results of modules, and connect them by bridges."""
    return bridge(graph, {node.key for node in graph.all_nodes if node.exits or node.kind in _STAY})


# Folds consecutive equal blocks, such as the twelve blocks of GPT-2, into one. `runs_of` in blocks.py finds them.


def _sharing(parts: Iterable[Iterable[Node]]) -> Sharing:
    """Compares the parameters of parts of a graph: "shared" if all are the same, "own" if all differ, else "mixed"."""
    names = [{param.name for node in nodes for param in node.params} for nodes in parts]
    if not any(names):
        return ""
    if all(some == names[0] for some in names):
        return "shared"
    return "own" if sum(map(len, names)) == len(set[str]().union(*names)) else "mixed"


@pass_by_pass
def fold_repeats(graph: Graph) -> Graph:
    """Draw consecutive equal module calls as one, the first, with their number in `repeats`.

    `sharing` of the folded box (or of the collapsed node) says whether the blocks share their parameters. An edge from one
    block to the next becomes feedback.

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


def _folded(graph: Graph, runs: dict[str, BlockRun], groups: dict[str, str]) -> Graph:
    """Fold each group of nodes into one. `runs` are keyed by the key of their first block."""
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


def _folded_box(graph: Graph, box: ModuleBox, run: BlockRun) -> ModuleBox:
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


# Merges runs of elementwise operations into one node: `add → relu → mul`.


@pass_by_pass
def merge_elementwise(graph: Graph) -> Graph:
    """Draw each chain of elementwise operations as one node, if no other operation uses the results in between.

    A chain stays within one module call, and ends at a tensor that a module returns. Its node has the position of its last
    operation.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: torch.relu(x + 1) * 2, torch.ones(2)))
    >>> [node.title for node in merge_elementwise(graph).nodes]
    ['x', 'add → relu → mul', 'output']
    """
    chains: dict[str, list[Node]] = {}  # key of the last node of a chain so far -> the nodes of the chain
    for node in graph.all_nodes:
        if _is_elementwise(node):
            before = next((edge.source for edge in graph.edges_in.get(node.key, ()) if _joins(graph, edge.source, node)), None)
            chain = chains.pop(before, []) if before is not None else []
            chain.append(node)
            chains[node.key] = chain
    groups = {}
    for chain in chains.values():
        if len(chain) > 1:
            groups.update(dict.fromkeys([node.key for node in chain], f"{chain[0].key}…{chain[-1].key}"))
    return regroup(graph, groups, _chain_node, at_last=True) if groups else graph


def _is_elementwise(node: Node) -> bool:
    is_elementwise = node.facts is not None and node.facts.is_elementwise
    return node.kind == "operation" and is_elementwise and len(node.passes) == 1


def _joins(graph: Graph, source: str, node: Node) -> bool:
    """True if a node continues the chain that ends with node `source`."""
    before = graph.by_key[source]
    return (
        _is_elementwise(before)
        and len(graph.edges_out[source]) == 1
        and before.modules == node.modules
        and before.from_input == node.from_input
        and not before.exits
    )


def _chain_node(key: str, chain: list[Node]) -> Node:
    first, last = chain[0], chain[-1]
    return merge_facts(
        chain,
        key=key,
        label=f"{first.label}…{last.label}",
        kind="chain",
        type="chain",
        function=" → ".join(node.function for node in chain),
        parts=tuple(node.type for node in chain),
        passes=last.passes,
        num_passes=last.num_passes,
        shape=last.shape,
        dtype=last.dtype,
        device=last.device,
        bottom_level_module=None,
        output_path="",
        place=last.place,
        arguments=None,
    )


# Draws buffers as nodes. Without this view, only the operations that use a buffer name it.


@pass_by_pass
def add_buffer_nodes(graph: Graph) -> Graph:
    """Draw every buffer as a node, with edges to the nodes that read it and feedback edges from the nodes that write to it.

    A buffer that only one collapsed module uses is part of that module, and is not drawn.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(torch.nn.BatchNorm1d(2).eval(), torch.ones(1, 2)))
    >>> [node.key for node in add_buffer_nodes(graph).nodes]
    ['input_1_0:1', 'buffer running_mean', 'buffer running_var', 'batchnorm_1_1:1', 'output_1_2:1']
    """
    users: dict[str, list[tuple[Node, BufferUse]]] = {}
    for node in graph.all_nodes:
        for use in node.buffers:
            users.setdefault(use.buffer.name, []).append((node, use))
    before: dict[str, list[Node]] = {}  # key of the first node that uses a buffer -> buffer nodes before it
    edges: dict[str, list[Edge]] = {}  # key of the target -> edges
    for uses in users.values():
        node = _buffer_node(uses)
        is_inside = len(uses) == 1 and uses[0][0].kind == "module"
        if node.key in graph.by_key or is_inside:
            continue
        before.setdefault(uses[0][0].key, []).append(node)
        for user, use in uses:
            if use.positions or user.kind == "module":
                edges.setdefault(user.key, []).append(_read(node, user, use))
            if use.is_written:
                edges.setdefault(node.key, []).append(_write(node, user))
    nodes = [one for node in graph.all_nodes for one in (*before.get(node.key, ()), node)]
    every = [edge for node in nodes for edge in (*graph.edges_in.get(node.key, ()), *edges.get(node.key, ()))]
    return replace(graph, all_nodes=tuple(nodes), all_edges=tuple(every))


@pass_by_pass
def drop_buffer_nodes(graph: Graph) -> Graph:
    """Remove the nodes of buffers."""
    return restrict(graph, {node.key for node in graph.all_nodes if node.kind != "buffer"})


def _buffer_node(uses: list[tuple[Node, BufferUse]]) -> Node:
    buffer = uses[0][1].buffer
    return Node(
        key=f"buffer {buffer.name}",
        label=f"buffer {buffer.name}",
        kind="buffer",
        type="buffer",
        function="buffer",
        modules=common_path([user.modules for user, _ in uses]),
        shape=buffer.shape,
        dtype=str(buffer.dtype).removeprefix("torch."),
        bytes=buffer.fsize,
        from_input=False,
        to_output=any(user.to_output for user, _ in uses),
        is_hidden=all(user.is_hidden for user, _ in uses),
        role=buffer.name,
    )


def _read(buffer: Node, user: Node, use: BufferUse) -> Edge:
    positions = () if user.kind in ("module", "chain") else use.positions
    return Edge(buffer.key, user.key, positions, passes=((1, user.passes[0]),), shape=buffer.shape, bytes=buffer.bytes)


def _write(buffer: Node, user: Node) -> Edge:
    passes = ((user.passes[0], 1),)
    return Edge(user.key, buffer.key, is_feedback=True, passes=passes, shape=buffer.shape, bytes=buffer.bytes)


# Adds nodes for module calls that return their input, such as those of `nn.Identity`.


@pass_by_pass
def expand_identities(graph: Graph) -> Graph:
    """Add a node for each input that a module call returned unchanged; later operations are connected to this node.

    Input and output of such a call are one tensor object, so the log does not know which of them a later operation used; the
    graph shows the output.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Identity())
    >>> [node.label for node in expand_identities(build_graph(torcheer.log_forward_pass(model, torch.ones(2)))).nodes]
    ['input_1_0', 'relu_1_1', 'identity 1', 'output_1_2']
    """
    maker = {number: node for node in graph.all_nodes if node.kind != "output" for number in node.operations}
    # number of an operation -> the calls that returned its tensor unchanged, in order
    steps: dict[int, list[tuple[ModuleBox, Node]]] = {}
    for box, number in _passed(graph):
        if number in maker:
            node = _identity_node(box, number, maker[number])
            if node.key not in graph.by_key:
                steps.setdefault(number, []).append((box, node))
    if not steps:
        return graph
    edges = [_rerouted(graph, edge, steps) for edge in graph.all_edges]
    for number, passed in steps.items():
        source = maker[number]
        size = source.bytes if len(source.operations) == 1 else 0
        for _, node in passed:
            passes = ((source.passes[0], node.passes[0]),)
            edges.append(Edge(source.key, node.key, passes=passes, tensors=(number,), shape=node.shape, bytes=size))
            source = node
    return _in_order(graph, steps, edges)


def _passed(graph: Graph) -> list[tuple[ModuleBox, int]]:
    """Find (call, input that the call returned unchanged), in the order in which calls ended. Only innermost calls count."""
    out_of_sight = {node.key[1:] for node in graph.all_nodes if node.kind == "module"}
    out_of_sight |= {key for box in graph.all_boxes for key in box.folded}
    found: list[tuple[ModuleBox, int]] = []
    explained: set[tuple[str, int]] = set()
    for box in sorted(graph.all_boxes, key=lambda box: (box.span[1], -box.depth)):  # inner calls before outer ones
        if not out_of_sight.isdisjoint(box.path):
            continue
        for number in dict.fromkeys(box.outputs):
            if number in box.inputs and (box.key, number) not in explained:
                found.append((box, number))
                explained.update((key, number) for key in box.path)
    return found


def _identity_node(box: ModuleBox, number: int, source: Node) -> Node:
    which = dict.fromkeys(n for n in box.outputs if n in box.inputs)
    part = f"[{list(which).index(number)}]" if len(which) > 1 else ""
    shape = box.output_shapes[box.outputs.index(number)] if len(box.output_shapes) == len(box.outputs) else source.shape
    return Node(
        key=f"identity {box.key}{part}",
        label=f"identity {box.step}{part}",
        kind="identity",
        type="identity",
        function=box.class_name,
        passes=box.turns,
        num_passes=box.num_turns,
        modules=box.path,
        exits=(box.key,),
        shape=shape,
        dtype=source.dtype,
        device=source.device,
        from_input=source.from_input,
        to_output=source.to_output,
        is_hidden=source.is_hidden and source.kind != "input",
        output_path=part,
        place=box.place,
    )


def _rerouted(graph: Graph, edge: Edge, steps: dict[int, list[tuple[ModuleBox, Node]]]) -> Edge:
    """The edge with a new source: the last identity node that returned the edge's tensor before the target ran, if any."""
    if len(edge.tensors) != 1 or edge.tensors[0] not in steps:
        return edge
    when = _when(graph.by_key[edge.target])
    through = [node for box, node in steps[edge.tensors[0]] if box.span[1] <= when]
    return replace(edge, source=through[-1].key) if through else edge


def _when(node: Node) -> float:
    """Return when a node ran, as the number of an operation. For a node without operations: -1, or infinity if it raised."""
    if node.operations:
        return node.operations[max(len(node.parts), 1) - 1]
    return inf if node.kind == "failed" else -1


def _in_order(graph: Graph, steps: dict[int, list[tuple[ModuleBox, Node]]], edges: list[Edge]) -> Graph:
    """Insert each new node before the first node that ran after its call."""
    added = [pair for passed in steps.values() for pair in passed]
    added.sort(key=lambda pair: (pair[0].span[1], -pair[0].depth))
    nodes: list[Node] = []
    waiting = 0
    for node in graph.all_nodes:
        while waiting < len(added) and _when(node) >= added[waiting][0].span[1]:
            nodes.append(added[waiting][1])
            waiting += 1
        nodes.append(node)
    nodes += [node for _, node in added[waiting:]]
    order = {node.key: position for position, node in enumerate(nodes)}
    edges.sort(key=lambda edge: order[edge.target])
    return replace(graph, all_nodes=tuple(nodes), all_edges=tuple(edges))


# Leaves out the middle of a graph that is too large for a picture and has no modules left to collapse.


def omit_middle(graph: Graph, keep: int) -> Graph:
    """Draw the middle nodes as one node with their number of operations. `keep` nodes stay, counting both ends together.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> def many(x):
    ...     for _ in range(50):
    ...         x = x.sin()
    ...     return x
    >>> graph = omit_middle(build_graph(torcheer.log_forward_pass(many, torch.ones(2))), keep=4)
    >>> [(node.kind, node.num_operations) for node in graph.nodes]
    [('input', 1), ('operation', 1), ('operation', 1), ('omitted', 48), ('output', 1)]
    """
    nodes = graph.nodes
    if len(nodes) <= keep + 1:
        return graph
    head = keep - keep // 4
    middle = nodes[head : len(nodes) - keep // 4]
    groups = dict.fromkeys((node.key for node in middle), "… left out")
    return regroup(graph, groups, _omitted)


def _omitted(key: str, middle: list[Node]) -> Node:
    return merge_unseen(
        middle,
        key=key,
        label=key,
        kind="omitted",
        type="omitted",
        repeats=1,
        sharing="",
        modules=common_path([node.modules for node in middle]),
        shape=middle[-1].shape,
        dtype=middle[-1].dtype,
        output_path="",
        place=None,
    )


# Removes dead ends; hides and shows internal tensors, inputs and outputs.


@pass_by_pass
def prune_dead_ends(graph: Graph) -> Graph:
    """Remove nodes that lead neither to an output nor to the operation that raised. Inputs stay.

    If no node leads there, the graph is returned unchanged.
    """
    if not any(node.to_output for node in graph.all_nodes):
        return graph
    return restrict(graph, {node.key for node in graph.all_nodes if node.to_output or node.kind == "input"})


@pass_by_pass
def prune_internal(graph: Graph) -> Graph:
    """Hide nodes that have no input among their ancestors: constants, random numbers, tensors from outside the model."""
    return _hide(graph, lambda node: node.is_internal, True)


@pass_by_pass
def show_internal(graph: Graph) -> Graph:
    """Show the nodes again that `prune_internal` hid."""
    return _hide(graph, lambda node: node.is_internal, False)


@pass_by_pass
def drop_input_nodes(graph: Graph) -> Graph:
    """Hide the inputs."""
    return _hide(graph, lambda node: node.kind == "input", True)


@pass_by_pass
def add_input_nodes(graph: Graph) -> Graph:
    """Show the inputs again."""
    return _hide(graph, lambda node: node.kind == "input", False)


@pass_by_pass
def drop_output_nodes(graph: Graph) -> Graph:
    """Hide the outputs."""
    return _hide(graph, lambda node: node.kind == "output", True)


@pass_by_pass
def add_output_nodes(graph: Graph) -> Graph:
    """Show the outputs again."""
    return _hide(graph, lambda node: node.kind == "output", False)


def _hide(graph: Graph, which: Callable[[Node], bool], is_hidden: bool) -> Graph:
    nodes = [
        replace(node, is_hidden=is_hidden) if node.is_hidden != is_hidden and which(node) else node for node in graph.all_nodes
    ]
    return replace(graph, all_nodes=tuple(nodes))


# Draws a call that returned several tensors as one node.


@pass_by_pass
def merge_calls(graph: Graph) -> Graph:
    """Draw all tensors of one call as one node: `split`, `topk`, an LSTM.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = merge_calls(build_graph(torcheer.log_forward_pass(lambda x: x.split(2), torch.ones(4))))
    >>> [(node.label, node.num_operations) for node in graph.nodes]
    [('input_1_0', 1), ('split_1_1…split_2_2', 2), ('output_1_3', 1), ('output_2_4', 1)]
    """
    calls: dict[int, list[Node]] = {}
    for node in graph.all_nodes:
        if node.call is not None and node.kind == "operation":
            calls.setdefault(node.call, []).append(node)
    several = {f"{nodes[0].key}…{nodes[-1].key}": nodes for nodes in calls.values() if len(nodes) > 1}
    groups = {node.key: name for name, nodes in several.items() for node in nodes}
    return regroup(graph, groups, _call_node, keeps_positions=True) if groups else graph


def _call_node(key: str, tensors: list[Node]) -> Node:
    first, last = tensors[0], tensors[-1]
    shapes = tuple([node.shape for node in tensors if node.shape is not None])
    facts = {"passes": first.passes, "num_passes": first.num_passes, "call": first.call, "arguments": first.arguments}
    return merge_facts(tensors, key=key, label=f"{first.label}…{last.label}", output_path="", output_shapes=shapes, **facts)


# Draws many similar inputs or outputs as one node, such as the cache that a language model returns.


def merge_ports(graph: Graph) -> Graph:
    """Draw each group of equal inputs or outputs (see `equal_ports`) as one node. Hidden nodes stay as they are.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: [x] * 9, torch.ones(2)))
    >>> [(node.label, node.num_operations) for node in merge_ports(graph).nodes]
    [('input_1_0', 1), ('output_1_1…output_9_9', 9)]
    """
    found = {f"{group.nodes[0].key}…{group.nodes[-1].key}": group for group in equal_ports(graph.nodes)}
    groups = {node.key: name for name, group in found.items() for node in group.nodes}
    return regroup(graph, groups, lambda key, nodes: _merged(key, found[key]), at_last=True) if groups else graph


def merge_ends(key: str, nodes: list[Node]) -> Node:
    """Merge several inputs, or several outputs, into one node."""
    names = ", ".join(dict.fromkeys(node.name for node in nodes if node.name))
    return merge_facts(nodes, key=key, label=key, role="", name=names, passes=(1,), num_passes=1)


def _merged(key: str, group: EqualPorts) -> Node:
    first, last = group.nodes[0], group.nodes[-1]
    role = group.place if group.is_nested else f"{first.role} … {last.role}"
    label = f"{first.label}…{last.label}"
    return merge_facts(list(group.nodes), key=key, label=label, role=role, passes=(1,), num_passes=1)


# A view of one part of a model: its nodes, and stubs, small nodes that stand for the neighbours.

_STEPS = 2  # `focus` on an operation draws nodes up to this many edges away


@pass_by_pass
def focus(graph: Graph, key: Any) -> Graph:
    """Draw the modules or operations that a key means, and stubs for their neighbours.

    For a module, all its nodes are drawn; for an operation, all nodes up to two edges away. Each neighbouring module or
    operation becomes a stub.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU()) for _ in range(5)))
    >>> graph = focus(build_graph(torcheer.log_forward_pass(model, torch.ones(1, 2))), "2")
    >>> [(node.kind, node.label) for node in graph.nodes]
    [('stub', '1'), ('operation', 'linear_3_5'), ('operation', 'relu_3_6'), ('stub', '3')]
    """
    kept = _inside(graph, key) or _around(graph, [node.key for node in graph.find(key)])
    crossing = [edge for edge in graph.edges if (edge.source in kept) != (edge.target in kept)]
    beside = {edge.source if edge.target in kept else edge.target for edge in crossing}
    if not beside:
        return restrict(graph, kept)
    part = restrict(graph, kept | beside)
    home = common_path([graph.by_key[name].modules for name in kept])
    groups = {}
    for name in beside:
        node = graph.by_key[name]
        if node.kind not in ("input", "output"):
            is_before = any(edge.target in kept for edge in graph.edges_out.get(name, ()))
            groups[name] = f"… {_outer(node, home) or name} {'before' if is_before else 'after'}"
    edges = tuple([edge for edge in part.all_edges if edge.source in kept or edge.target in kept])
    return regroup(replace(part, all_edges=edges), groups, lambda name, nodes: _stub(name, nodes, home, graph))


def _inside(graph: Graph, key: Any) -> set[str]:
    """Find the nodes inside the module calls that a key means. Returns an empty set for fewer than two nodes."""
    try:
        boxes = {box.key for box in graph.boxes_of(key)}
    except (LayerNotFound, InvalidArgument):
        return set()
    found = {node.key for node in graph.nodes if not boxes.isdisjoint(node.modules)}
    return found if len(found) > 1 else set()


def _around(graph: Graph, starts: Iterable[str]) -> set[str]:
    """The given nodes, and all visible nodes up to `_STEPS` edges away."""
    found = set(starts)
    here = set(found)
    for _ in range(_STEPS):
        here = {edge.target for name in here for edge in graph.edges_out.get(name, ())} | {
            edge.source for name in here for edge in graph.edges_in.get(name, ())
        }
        found |= here
    return {name for name in found if not graph.by_key[name].is_hidden}


def _outer(node: Node, home: tuple[str, ...]) -> str | None:
    """Return the key of the outermost module call that contains the node but not the focus; None without such a call."""
    return next((name for place, name in enumerate(node.modules) if home[place : place + 1] != (name,)), None)


def _stub(name: str, nodes: list[Node], home: tuple[str, ...], graph: Graph) -> Node:
    outer = _outer(nodes[0], home)
    box = graph.boxes[outer] if outer is not None else None
    return merge_unseen(
        nodes,
        key=name,
        label=box.step if box is not None else nodes[0].label,
        kind="stub",
        type=box.class_name if box is not None else nodes[0].type,
        operations=(),
        params=(),
        buffers=(),
        modules=common_path([home, *(node.modules for node in nodes)]),
        is_inplace=False,
        error="",
    )


# Parts of a graph: ancestors, descendants, nodes between two nodes, a path to an output.


@pass_by_pass
def ancestors(graph: Graph, key: Any) -> Graph:
    """Keep the nodes that a key means and all their ancestors."""
    return restrict(graph, reached(_keys(graph, key), graph.edges_in, forwards=False))


@pass_by_pass
def descendants(graph: Graph, key: Any) -> Graph:
    """Keep the nodes that a key means and all their descendants."""
    return restrict(graph, reached(_keys(graph, key), graph.edges_out, forwards=True))


@pass_by_pass
def subgraph_between(graph: Graph, first: Any, last: Any) -> Graph:
    """Keep all nodes on paths from `first` to `last`, including both.

    >>> import torch, torcheer
    >>> from torcheer.graph import build_graph
    >>> graph = build_graph(torcheer.log_forward_pass(lambda x: (x + 1).relu() + x.sin(), torch.ones(2)))
    >>> [node.label for node in subgraph_between(graph, "add_1_1", "add_2_4").nodes]
    ['add_1_1', 'relu_1_2', 'add_2_4']
    """
    after = reached(_keys(graph, first), graph.edges_out, forwards=True)
    between = after & reached(_keys(graph, last), graph.edges_in, forwards=False)
    if not between:
        back = reached(_keys(graph, last), graph.edges_out, forwards=True) & set(_keys(graph, first))
        hint = " There is a way in the other direction." if back else ""
        raise InvalidArgument(f"no way leads from {first!r} to {last!r}.{hint}")
    return restrict(graph, between)


@pass_by_pass
def path_to_output(graph: Graph, key: Any) -> Graph:
    """Keep only the shortest path from a node to an output."""
    came_from: dict[str, str | None] = dict.fromkeys(_keys(graph, key))
    for here in (waiting := list(came_from)):
        if graph.by_key[here].kind == "output":
            way, step = set[str](), came_from[here]
            while step is not None:
                way.add(step)
                step = came_from[step]
            return restrict(graph, {here} | way)
        for edge in graph.edges_out.get(here, ()):
            if edge.target not in came_from:
                came_from[edge.target] = here
                waiting.append(edge.target)
    raise InvalidArgument(f"no way leads from {key!r} to an output of this graph.")


def _keys(graph: Graph, key: Any) -> list[str]:
    return [node.key for node in graph.find(key)]
