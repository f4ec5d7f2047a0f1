"""Which modules are the same inside: a short digest for each module call, equal where what ran in it is equal.

Equal means: the same class, the same operations on the same shapes with the same constants, wired the same way, with
parameters of the same shapes shared in the same way. Names and values of parameters may differ. A module's digest is made
from those of the modules inside it, so every operation is looked at once, however deep it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from ..graph import Graph, ModuleBox, Node

Source = int | str  # the number of a node, or the name of a parameter or buffer
Wire = tuple[Source, object]  # where it comes from, and how it enters

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object, in its repr


def digest(content: object) -> str:
    """Twelve characters that stand for some content, the same in every process."""
    text = _ADDRESS.sub("", repr(content))
    return blake2b(text.encode("utf-8", "backslashreplace"), digest_size=6).hexdigest()


def structures_of(graph: Graph, words: list[str]) -> list[str]:
    """The digest of what is inside each box, in the order of `graph.all_boxes`; empty where nothing is.

    `words` are the arguments of each node, as text.
    """
    return _Structures(graph, words).digests()


class _Structures:
    """The module calls of a graph as a tree, and for each what is directly inside, what enters and what leaves."""

    def __init__(self, graph: Graph, words: list[str]) -> None:
        self.boxes = graph.all_boxes
        self.nodes = graph.all_nodes
        self.words = words
        numbers = {box.key: number for number, box in enumerate(self.boxes)}
        self.parents = [numbers[box.parent] if box.parent is not None else -1 for box in self.boxes]
        self.first, self.last = _intervals(self.parents)
        self.home = [numbers[node.modules[-1]] if node.modules else -1 for node in self.nodes]
        self.items: list[list[tuple[bool, int]]] = [[] for _ in self.boxes]  # whether it is a module, and its number
        self.node_places = [0] * len(self.nodes)  # among the items of its module
        self.box_places = [-1] * len(self.boxes)
        self.entries: list[dict[Source, int]] = [{} for _ in self.boxes]
        self.leaving: list[set[int]] = [set() for _ in self.boxes]
        self.wires = self._wires(graph)
        self._fill()

    def _wires(self, graph: Graph) -> list[list[Wire]]:
        """By node: what it is made from."""
        found: list[list[Wire]] = []
        places = {node.key: number for number, node in enumerate(self.nodes)}
        for node in self.nodes:
            edges = graph.edges_in.get(node.key, ())
            wires: list[Wire] = [
                (places[edge.source], (edge.positions, edge.is_memory, edge.shape))
                for edge in edges
                if not (edge.is_feedback or edge.is_gradient)
            ]
            wires += [(one.name, (one.shape, str(one.dtype), one.is_trainable)) for one in node.params]
            wires += [(use.buffer.name, (use.buffer.shape, use.positions, use.is_written)) for use in node.buffers]
            found.append(wires)
        return found

    def _fill(self) -> None:
        for number, home in enumerate(self.home):
            if home >= 0:
                self._place(number, home)
            for source, _ in self.wires[number]:
                self._enter(source, home)
                if isinstance(source, int):
                    self._leave(source, number)

    def _place(self, number: int, home: int) -> None:
        items = self.items[home]
        self.node_places[number] = len(items)
        items.append((False, number))
        box = home
        while self.box_places[box] < 0:
            outer = self.parents[box]
            around = self.items[outer] if outer >= 0 else []
            self.box_places[box] = len(around)
            around.append((True, box))
            if outer < 0:
                break
            box = outer

    def _enter(self, source: Source, box: int) -> None:
        """What is made from something outside a module makes it enter that module."""
        while box >= 0 and not self._is_inside(source, box):
            entries = self.entries[box]
            if source in entries:
                break  # and so it does those around
            entries[source] = len(entries)
            box = self.parents[box]

    def _leave(self, source: int, target: int) -> None:
        box = self.home[source]
        while box >= 0 and not self._is_inside(target, box):
            self.leaving[box].add(source)
            box = self.parents[box]

    def _is_inside(self, source: Source, box: int) -> bool:
        if isinstance(source, str):
            return False
        home = self.home[source]
        return home >= 0 and self.first[box] <= self.first[home] <= self.last[box]

    # Digests --------------------------------------------------------------------------------------------------------

    def digests(self) -> list[str]:
        made = [""] * len(self.boxes)
        exits: list[dict[int, int]] = [{} for _ in self.boxes]
        for box in range(len(self.boxes) - 1, -1, -1):  # a call comes after the one around it
            if not self.items[box]:
                continue
            exits[box] = {source: turn for turn, source in enumerate(sorted(self.leaving[box]))}
            parts = [
                self._inner(number, box, made, exits) if is_box else self._operation(number, box, exits)
                for is_box, number in self.items[box]
            ]
            made[box] = digest((self.boxes[box].class_name, parts, [self._reference(s, box, exits) for s in exits[box]]))
        return made

    def _inner(self, number: int, box: int, made: list[str], exits: list[dict[int, int]]) -> object:
        inner = self.boxes[number]
        return (made[number], _name(inner, self.boxes[box]), inner.training, self._references(self.entries[number], box, exits))

    def _operation(self, number: int, box: int, exits: list[dict[int, int]]) -> object:
        return (
            _form(self.nodes[number]),
            self.words[number],
            [(self._reference(source, box, exits), how) for source, how in self.wires[number]],
        )

    def _references(self, sources: Iterable[Source], box: int, exits: list[dict[int, int]]) -> list[object]:
        return [self._reference(source, box, exits) for source in sources]

    def _reference(self, source: Source, box: int, exits: list[dict[int, int]]) -> object:
        """What a source is called inside a module: the number of an entry, or of an item and of what leaves it."""
        if isinstance(source, str) or not self._is_inside(source, box):
            return self.entries[box].get(source, -1)
        inner = self.home[source]
        if inner == box:
            return (self.node_places[source],)
        while self.parents[inner] != box:
            inner = self.parents[inner]
        return (self.box_places[inner], exits[inner].get(source, -1))


def _form(node: Node) -> tuple[Any, ...]:
    reads = tuple([read.function for read in node.python_reads])
    what = (node.kind, node.type, node.function, node.shape, node.dtype)
    return (*what, node.is_inplace, node.output_path, node.composite, reads)


def _name(inner: ModuleBox, outer: ModuleBox) -> str:
    return inner.address.removeprefix(f"{outer.address}.")


def _intervals(parents: list[int]) -> tuple[list[int], list[int]]:
    """For each node of a forest its turn in depth-first order, and the last turn inside it."""
    children: dict[int, list[int]] = {}
    for number, parent in enumerate(parents):
        children.setdefault(parent, []).append(number)
    first, last = [0] * len(parents), [0] * len(parents)
    turn = 0
    waiting = [(number, False) for number in reversed(children.get(-1, []))]
    while waiting:
        number, is_done = waiting.pop()
        if is_done:
            last[number] = turn - 1
            continue
        first[number] = turn
        turn += 1
        waiting.append((number, True))
        waiting += [(child, False) for child in reversed(children.get(number, []))]
    return first, last
