"""States of reducers on disk, merged in a fixed binary tree: the result is the same to the bit, whichever process ran a
block.

Node (level, i) stands for the blocks from i·2^level up to (i+1)·2^level; a block itself is a node of level 0. A process that
finds both halves of a node writes the node and deletes the halves. With five blocks:

    blocks 0 1 2 3 4    ->    (0, 0) (0, 1)   (0, 2) (0, 3)   (0, 4)
                                 (1, 0)          (1, 1)
                                         (2, 0)                       and the result is (2, 0) merged with (0, 4)

The content of a node depends only on its blocks, so two processes that write it at once write the same bytes. A file below
an existing node is a leftover of a killed or slower process; readers ignore it and `settle` deletes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ..errors import UnreadableFile
from ..reducers import Reducer, State
from .storage import Storage

_NAME = re.compile(r"reduced-(\d{2})-(\d{8,12})\.safetensors", re.ASCII)
_MOST_LEVELS = 40
_TRIES = 100  # number of attempts to read the files while other processes merge them
States = dict[str, list[State]]  # layer -> one state for each of its reducers


class Node(NamedTuple):
    """A part of the data: `2 ** level` blocks."""

    level: int
    place: int  # index among the nodes of its level

    @property
    def name(self) -> str:
        return f"reduced-{self.level:02d}-{self.place:08d}.safetensors"

    @property
    def parent(self) -> Node:
        return Node(self.level + 1, self.place // 2)

    @property
    def sibling(self) -> Node:
        return Node(self.level, self.place ^ 1)

    @property
    def halves(self) -> tuple[Node, Node]:
        return Node(self.level - 1, 2 * self.place), Node(self.level - 1, 2 * self.place + 1)

    @property
    def blocks(self) -> range:
        return range(self.place << self.level, (self.place + 1) << self.level)

    def is_covered(self, there: set[Node]) -> bool:
        """True if a node above this node exists."""
        above = self.parent
        while above.level <= _MOST_LEVELS:
            if above in there:
                return True
            above = above.parent
        return False


def nodes_among(names: Sequence[str]) -> set[Node]:
    """The nodes among file names."""
    found = (_NAME.fullmatch(name) for name in names)
    nodes = {Node(int(match[1]), int(match[2])): match[0] for match in found if match is not None}
    return {node for node, name in nodes.items() if node.level <= _MOST_LEVELS and node.name == name}


class Reduced(NamedTuple):
    """The merged states of one layer's reducers, with their blocks and samples."""

    states: list[State]
    samples: int


class ReducedBlocks:
    """The states of the reducers of all layers, in the files of a folder."""

    def __init__(self, storage: Storage, reducers: Mapping[str, Sequence[Reducer]]) -> None:
        self._storage = storage
        self._reducers = {layer: list(some) for layer, some in sorted(reducers.items()) if some}
        described = [[layer, [one.describe() for one in some]] for layer, some in self._reducers.items()]
        self._written_of = json.dumps(described, separators=(",", ":"), sort_keys=True)

    def begin(self) -> States:
        """The states of all reducers at the begin of a block."""
        return {layer: [one.begin() for one in some] for layer, some in self._reducers.items()}

    def update(self, states: States, layer: str, values: Tensor, sample_numbers: Tensor) -> None:
        """Add the values of a batch to the states of a block."""
        for reducer, state in zip(self._reducers.get(layer, ()), states.get(layer, ()), strict=True):
            reducer.update(state, values, sample_numbers)

    # Writing --------------------------------------------------------------------------------------------------------

    def write(self, block: int, states: States, samples: int) -> None:
        """Write the states of a block, and merge them with existing nodes."""
        node = Node(0, block)
        self._write(node, states, samples)
        self._merge_from(node)

    def settle(self) -> None:
        """Merge what a killed process left unmerged, and delete leftovers."""
        there = self.nodes()
        for node in sorted(there):
            if node.is_covered(there):
                self._storage.delete(node.name)
            elif node.place % 2 == 0 and node.sibling in there:
                self._merge_from(node)

    def _write(self, node: Node, states: States, samples: int) -> None:
        tensors = {}
        for layer_number, (layer, some) in enumerate(self._reducers.items()):
            for number, (reducer, state) in enumerate(zip(some, states[layer], strict=True)):
                for name, tensor in reducer.to_tensors(state).items():
                    tensors[f"{layer_number}.{number}.{name}"] = tensor
        metadata = {"format": "torcheer reduced features", "of": self._written_of, "samples": str(samples)}
        self._storage.write_tensors(node.name, tensors, metadata)

    def _merge_from(self, node: Node) -> None:
        """Merge a node with its sibling, if that exists, then the parent with its sibling, and so on."""
        tries = 0
        while node.level < _MOST_LEVELS and tries < _TRIES:
            there = self.nodes()
            if node.is_covered(there):  # another process was faster
                self._storage.delete(node.name)
                return
            if node.sibling not in there:
                return
            left, right = node.parent.halves
            try:
                halves = [self._read(one, self._reducers) for one in (left, right)]
            except FileNotFoundError:  # another process merged and deleted the files, or the listing is old
                tries += 1
                continue
            merged = {layer: self._merged(layer, *(states[layer] for states, _ in halves)) for layer in self._reducers}
            self._write(node.parent, merged, sum(samples for _, samples in halves))
            for one in (left, right):
                self._storage.delete(one.name)
            node = node.parent

    def _merged(self, layer: str, left: list[State], right: list[State]) -> list[State]:
        pairs = zip(self._reducers[layer], left, right, strict=True)
        return [reducer.merge(one, other) for reducer, one, other in pairs]

    # Reading --------------------------------------------------------------------------------------------------------

    def nodes(self) -> set[Node]:
        """The nodes that exist as files.

        A listing may miss files written meanwhile, so it is repeated until two listings are equal.
        """
        found = nodes_among(self._storage.names())
        for _ in range(_TRIES):
            again = nodes_among(self._storage.names())
            if again == found:
                break
            found = again
        return found

    def blocks(self) -> set[int]:
        """The numbers of the blocks whose states are stored."""
        return {block for node in self.nodes() for block in node.blocks}

    def read(self, layer: str) -> Reduced:
        """The merged states of a layer over all stored blocks. Works while other processes write."""
        for _ in range(_TRIES):
            try:
                return self._read_tree(layer, self.nodes())
            except FileNotFoundError:  # the files were merged and deleted meanwhile
                continue
        raise UnreadableFile(f"the reduced features in {self._storage.location} changed during each attempt to read them.")

    def _read_tree(self, layer: str, there: set[Node]) -> Reduced:
        above: set[Node] = set()  # every node that has stored nodes below it
        top = max((node.blocks[-1].bit_length() for node in there), default=0)
        for node in there:
            while node.level < top:
                node = node.parent
                above.add(node)

        def read(node: Node) -> Reduced | None:
            if node in there:
                states, samples = self._read(node, [layer])
                return Reduced(states[layer], samples)
            if node not in above:
                return None
            left, right = map(read, node.halves)
            if left is None or right is None:
                return left if right is None else right
            return Reduced(self._merged(layer, left.states, right.states), left.samples + right.samples)

        return read(Node(top, 0)) or Reduced(self.begin()[layer], 0)

    def _read(self, node: Node, layers: Mapping[str, object] | Sequence[str]) -> tuple[States, int]:
        """The states in a node's file. Raises FileNotFoundError if there is no file."""
        file = self._storage.read_tensors(node.name)
        samples = file.metadata.get("samples", "")
        if file.metadata.get("of") != self._written_of or not (samples.isascii() and samples.isdigit() and len(samples) < 20):
            raise UnreadableFile(f"{node.name} in {self._storage.location} is not of the layers and reducers of this folder.")
        states: States = {}
        for layer_number, (layer, some) in enumerate(self._reducers.items()):
            if layer not in layers:
                continue
            states[layer] = []
            for number, reducer in enumerate(some):
                begin = f"{layer_number}.{number}."
                tensors = {name.removeprefix(begin): file.tensor(name) for name in file.places if name.startswith(begin)}
                states[layer].append(reducer.from_tensors(tensors))
        return states, int(samples)
