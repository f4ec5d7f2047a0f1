"""Views of whole modules: calls of modules as single nodes, or only what modules return."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from ...display import nearest
from ...errors import InvalidArgument, LayerNotFound
from ..block_equality import Block
from ..model import Graph, ModuleBox, Node
from .bridging import bridge
from .regrouping import merge_facts, regroup
from .rolling import pass_by_pass

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
    """Draw each call of some modules as one node: those at a depth, at addresses, of classes, or that a function picks.

    `depth=1` are the modules that the model itself calls. `address` takes any key that names modules: `"layer*.0"`,
    `"cell:2"`, a module class, a list. Several conditions pick what any of them picks.

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
    """The names of classes that were asked for; raises where no module is of one of them."""
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
    """Keep only inputs, outputs and what modules returned, joined by bridges where other nodes connected them."""
    return bridge(graph, {node.key for node in graph.all_nodes if node.exits or node.kind in _STAY})
