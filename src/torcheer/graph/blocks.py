"""Finds consecutive equal blocks in a graph, such as the twelve blocks of GPT-2: `runs_of`.

A `Block` is a module call, or several nodes in a row. Two blocks are equal if their `form` is: the same operations, shapes,
constants and inner edges. Names and parameter values are not part of the form.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .._cleanup import pass_interrupts_on
from .model import Edge, Graph, ModuleBox, Node


class OwnForms:
    """Numbers nodes by their own form (see `own_form`): equal nodes get equal numbers, which compare fast."""

    def __init__(self) -> None:
        self._numbers: dict[object, object] = {}  # own form -> number
        self._known: dict[str, object] = {}  # key of a node -> number of its own form

    def of(self, node: Node) -> object:
        found = self._known.get(node.key)
        if found is None:
            form = own_form(node)
            try:
                found = self._numbers.setdefault(form, len(self._numbers))
            except TypeError:  # a part of the form is not hashable
                found = form
            self._known[node.key] = found
        return found


def own_form(node: Node) -> tuple[object, ...]:
    """Return the part of a node's form that needs no edges: function, shapes, arguments, and reads by Python code."""
    return (
        (node.kind, node.type, node.function, node.shape, node.dtype, node.is_inplace, node.output_path, node.composite),
        (node.parts, node.input_shapes, node.output_shapes, len(node.passes), node.repeats, node.sharing),
        _words(node),
        tuple([read.function for read in node.python_reads]),
        node.structure() if node.structure is not None else None,
    )


def _words(node: Node) -> object:
    """Return the arguments of a node as text. If they cannot be written as text: an object that equals nothing else."""
    try:
        return str(node.arguments) if node.arguments is not None else ""
    except Exception as error:  # a user-defined __repr__ may raise anything
        pass_interrupts_on(error)
        return object()


class Block:
    """The nodes of one module call, in order; or several nodes in a row, without a box of their own.

    `depth` is the number of boxes that contain all nodes. Blocks that share a `forms` object compare faster.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: list[Node],
        box: ModuleBox | None,
        depth: int | None = None,
        forms: OwnForms | None = None,
    ) -> None:
        self.graph = graph
        self._own_form = forms.of if forms is not None else own_form
        self.nodes = nodes
        self.box = box
        self.depth = box.depth if box is not None else depth if depth is not None else len(nodes[0].modules)
        self.numbers = {node.key: number for number, node in enumerate(nodes)}

    @property
    def key(self) -> str:
        return self.box.key if self.box is not None else self.nodes[0].key

    @property
    def class_name(self) -> str:
        return self.box.class_name if self.box is not None else self.nodes[0].type

    @property
    def outermost(self) -> set[str]:
        """The keys of the block's outermost module calls."""
        if self.box is not None:
            return {self.box.key}
        return {node.modules[self.depth] for node in self.nodes if len(node.modules) > self.depth}

    @cached_property
    def entries(self) -> list[tuple[int, Edge]]:
        """The edges from outside the block, each with the position in the block of the node that it enters."""
        edges = self.graph.edges_in
        return [
            (number, edge)
            for number, node in enumerate(self.nodes)
            for edge in edges.get(node.key, ())
            if edge.source not in self.numbers and not edge.is_feedback
        ]

    @cached_property
    def form(self) -> tuple[object, ...]:
        """A value that is equal for equal blocks: functions, shapes, inner edges, constants."""
        self._states: dict[str, int] = {}
        self._calls: dict[int | None, int] = {}
        self._boxes: dict[str, int] = {}
        nodes = tuple([self._node_form(node) for node in self.nodes])
        leaving = tuple([number for number, node in enumerate(self.nodes) if self._leaves(node)])
        return (self.class_name, nodes, leaving, tuple(self._box_form(key) for key in self._boxes))

    def _leaves(self, node: Node) -> bool:
        return any(e.target not in self.numbers and not e.is_feedback for e in self.graph.edges_out.get(node.key, ()))

    def _node_form(self, node: Node) -> tuple[object, ...]:
        states = [(use.buffer, (use.positions, use.is_written)) for use in node.buffers]
        return (
            self._own_form(node),
            self._calls.setdefault(node.call, len(self._calls)) if node.call is not None else -1,
            tuple([self._boxes.setdefault(key, len(self._boxes)) for key in node.modules[self.depth :]]),
            tuple(
                [
                    (self._states.setdefault(one.name, len(self._states)), one.shape, one.dtype, one.is_trainable, how)
                    for one, how in (*((param, None) for param in node.params), *states)
                ]
            ),
            tuple([self._edge_form(edge) for edge in self.graph.edges_in.get(node.key, ()) if not edge.is_feedback]),
        )

    def _edge_form(self, edge: Edge) -> tuple[object, ...]:
        return (self.numbers.get(edge.source, -1), edge.positions, edge.is_memory, edge.is_bridge, edge.shape)

    def _box_form(self, key: str) -> tuple[object, ...]:
        box = self.graph.boxes[key]
        around = self.box or self.graph.boxes[box.path[self.depth]]  # the addresses of a block's outermost calls may differ
        name = box.address.removeprefix(around.address) if box is not around else ""
        return (box.class_name, name, box.training)


# Runs: consecutive blocks of equal form whose inputs correspond too. Each block gets an input from the previous block, or all
# get it from the same outside node.

Item = str | Node | None  # an item directly inside a box: an inner box (its key), a node, or None if it cannot be in a block
Feed = tuple[bool, object]  # an edge into a block: True if it comes from the previous block; its source and its tensors

MANY = 24  # a run of blocks without a module of several operations needs at least this many operations


@dataclass(frozen=True, slots=True)
class BlockRun:
    """A run of equal blocks, in order."""

    blocks: list[Block]
    is_parallel: bool  # True if no block uses results of another block


def runs_of(graph: Graph, longest_block: int = 1) -> Iterator[BlockRun]:
    """The runs of equal blocks, outer runs first. Inside a run, only its first block is searched for inner runs.

    A block is one module call, or one collapsed module. With `longest_block` > 1, up to that many consecutive module calls and
    operations are also a block, as `linear, relu` in `linear, relu, linear, relu`. A run of such blocks without a module of
    several operations needs at least `MANY` operations.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(*[torch.nn.Linear(2, 2), torch.nn.ReLU()] * 12)
    >>> [run] = runs_of(torcheer.log_forward_pass(model, torch.ones(1, 2)).graph, longest_block=2)
    >>> len(run.blocks), [node.type for node in run.blocks[0].nodes]
    (12, ['linear', 'relu'])
    """
    return _Finder(graph, longest_block).runs()


class _Finder:
    """Finds runs in every box of a graph. A box is a sequence of the items directly inside it."""

    def __init__(self, graph: Graph, longest_block: int) -> None:
        self.graph = graph
        self.longest_block = longest_block
        self.forms = OwnForms()
        self._read: dict[str, list[int]] = {}  # key of a node -> the positions of the nodes that it uses
        self.places = {node.key: place for place, node in enumerate(graph.all_nodes)}
        self.inside: dict[str, list[Node]] = {}
        self.sequences: dict[str, list[Item]] = {"": []}  # key of a box -> the items directly inside it
        for node in graph.all_nodes:
            outer = ""
            for key in node.modules:
                if key not in self.inside:
                    self.sequences[key] = []
                self.inside.setdefault(key, []).append(node)
                if not self.sequences[outer] or self.sequences[outer][-1] != key:
                    self.sequences[outer].append(key)
                outer = key
            if node.kind != "buffer":
                self.sequences[outer].append(node)

    def runs(self) -> Iterator[BlockRun]:
        gone: set[str] = set()
        for outer, sequence in self.sequences.items():
            if outer and not gone.isdisjoint(self.graph.boxes[outer].path):
                continue
            times = Counter(item for item in sequence if isinstance(item, str))
            pieces = {key for key, count in times.items() if count > 1}  # calls whose nodes are not contiguous cannot be blocks
            for run in self._runs_in([self._usable(item, pieces) for item in sequence], outer):
                gone.update(key for block in run.blocks[1:] for key in block.outermost)
                yield run

    def _usable(self, item: Item, pieces: set[str]) -> Item:
        """The item if it may be in a block, else None. An already folded item stands for several blocks and may not."""
        if isinstance(item, str):
            return item if item not in pieces and self.graph.boxes[item].repeats == 1 else None
        if item is None or item.repeats > math.prod(self.graph.boxes[key].repeats for key in item.modules):
            return None
        return item if self.longest_block > 1 or item.kind == "module" else None

    def _runs_in(self, items: list[Item], outer: str) -> Iterator[BlockRun]:
        """Yield the runs in a sequence. From each item, chooses the run that covers most items, with the shortest blocks."""
        repeats = _Repeats(self, items)
        at = 0
        while at < len(items):
            best: BlockRun | None = None
            covered = 1
            for length in range(1, self.longest_block + 1):
                if best is not None and not repeats.goes_on(at + covered, length, at):
                    continue
                run = self._run_at(items, at, length, outer, repeats)
                if run is not None and len(run.blocks) * length > covered:
                    best, covered = run, len(run.blocks) * length
            if best is not None:
                yield best
            at += covered

    def _run_at(self, items: list[Item], at: int, length: int, outer: str, repeats: _Repeats) -> BlockRun | None:
        """The run of blocks of `length` items that begins at item `at`; None if there is none."""
        if not all(repeats.is_equal(place, length) for place in range(at + length, at + 2 * length)):
            return None
        first = items[at : at + length]
        if self.longest_block > 1 and not any(map(self._is_large, first)) and not repeats.is_long(at, length):
            return None
        run: list[Block] = []
        feeds: list[Feed] = []
        for start in range(at, len(items) - length + 1, length):
            part = items[start : start + length]
            if None in part or [isinstance(item, str) for item in part] != [isinstance(item, str) for item in first]:
                break
            block = self._block(part, outer)
            if run:
                if not _are_alike(run[-1], block):
                    break
                found = _feeds(run[-1], block)
                if found != feeds if len(run) > 1 else not _can_start(run[0], found):
                    break
                feeds = found
            run.append(block)
        return BlockRun(run, not any(is_before for is_before, _ in feeds)) if len(run) > 1 else None

    def _is_large(self, item: Item) -> bool:
        """True for a module call in which several operations ran."""
        return len(self.inside[item]) > 1 if isinstance(item, str) else item is not None and item.kind == "module"

    def look(self, item: Item) -> object:
        """Return a quick approximation of an item's form: equal items have equal looks. None if it cannot be in a block."""
        if isinstance(item, str):
            return self.graph.boxes[item].class_name, len(self.inside[item])
        return self.forms.of(item) if item is not None else None

    def node(self, item: Item) -> Node | None:
        return self.inside[item][0] if isinstance(item, str) else item

    def reads_alike(self, before: Node, node: Node) -> bool:
        """True if two nodes use the same nodes, or nodes at the same distance before them, at most one block back."""
        place = self.places[node.key]
        apart = place - self.places[before.key]
        ours, theirs = self._sources(node), self._sources(before)
        return len(ours) == len(theirs) and all(
            one == other or (one - other == apart and place - one < 2 * apart) for one, other in zip(ours, theirs, strict=True)
        )

    def _sources(self, node: Node) -> list[int]:
        """The positions of the nodes that a node uses."""
        found = self._read.get(node.key)
        if found is None:
            found = self._read[node.key] = [self.places[edge.source] for edge in self.graph.edges_in.get(node.key, ())]
        return found

    def _block(self, items: list[Item], outer: str) -> Block:
        if len(items) == 1 and isinstance(items[0], str):
            return Block(self.graph, self.inside[items[0]], self.graph.boxes[items[0]], forms=self.forms)
        nodes = [node for item in items for node in (self.inside[item] if isinstance(item, str) else [item] if item else [])]
        return Block(self.graph, nodes, None, self.graph.boxes[outer].depth if outer else 0, self.forms)


class _Repeats:
    """Quick, cached checks whether items of a sequence repeat the items one block length earlier."""

    def __init__(self, finder: _Finder, items: list[Item]) -> None:
        self._finder = finder
        self._items = items
        self._looks: dict[int, object] = {}  # position -> look
        # length of a block -> for each item, how many consecutive items repeat
        self._streaks: dict[int, tuple[list[int], list[int]]] = {}

    def _look(self, place: int) -> object:
        if place not in self._looks:
            self._looks[place] = self._finder.look(self._items[place])
        return self._looks[place]

    def is_equal(self, place: int, length: int) -> bool:
        """True if an item may be equal to the item `length` positions before."""
        if place >= len(self._items):
            return False
        look = self._look(place)
        return look is not None and look == self._look(place - length)

    def goes_on(self, place: int, length: int, start: int) -> bool:
        """True if a run that begins at `start`, of blocks of `length` items, may include the item at `place`."""
        return place < len(self._items) and (place - length < start or self.is_equal(place, length))

    def is_long(self, at: int, length: int) -> bool:
        """True if at least MANY operations from item `at` repeat with this block length, with corresponding inputs."""
        if at + MANY > len(self._items):
            return False
        if length not in self._streaks:
            self._streaks[length] = self._found_streaks(length)
        same, fed = self._streaks[length]
        return same[at + length] >= MANY - length and fed[at + 2 * length] >= MANY - 2 * length

    def _found_streaks(self, length: int) -> tuple[list[int], list[int]]:
        """Count from each item how many items in a row repeat the item a block before: in type and shape; also in inputs."""
        nodes = [self._finder.node(item) for item in self._items]
        same, fed = [0] * (len(nodes) + length), [0] * (len(nodes) + length)
        for place in range(len(nodes) - 1, length - 1, -1):
            node, before = nodes[place], nodes[place - length]
            if node is not None and before is not None and node.type == before.type and node.shape == before.shape:
                same[place] = same[place + 1] + 1
                if self._finder.reads_alike(before, node):
                    fed[place] = fed[place + 1] + 1
        return same, fed


def _are_alike(one: Block, other: Block) -> bool:
    if one.class_name != other.class_name or len(one.nodes) != len(other.nodes) or (one.box is None) != (other.box is None):
        return False
    return one.form == other.form


def _feeds(before: Block, block: Block) -> list[Feed]:
    """Return for each edge into a block its source (by position in the previous block, or an outside node) and its tensors."""
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
    """True if the inputs of the first block correspond to those of later blocks.

    If later blocks get an input from outside, the first block must get the same. Where later blocks get several inputs from one
    node of the previous block, the first block must get all of these from one outside node.
    """
    streams: dict[object, object] = {}
    for (_, edge), (is_before, origin) in zip(first.entries, feeds, strict=True):
        own = (edge.source, edge.tensors)
        if streams.setdefault(origin, own) != own if is_before else own != origin:
            return False
    return True
