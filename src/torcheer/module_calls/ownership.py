"""Which module call a tensor or an autograd node came from, told without keeping either alive.

Torch numbers the nodes of autograd in the order they are made, so a call owns those made while it ran, but for those of the
calls inside it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..capture.autograd.grad_fn_names import node_of
from ..capture.keep.keeper import version_of
from ..torch_internals import base_of, sequence_number
from .calls import ModuleInput, ModulePass, Shape

Node = Any  # of autograd
Source = ModulePass | ModuleInput
Sources = dict[Source, Shape | None]
LEAF = 2**62  # nodes that accumulate have the greatest number there is


def _ignore(node: Node, one: ModulePass) -> None:
    return None


class Ownership:
    """Which call made which tensor and node. `hook` is called for each node made by the own code of a call around others."""

    def __init__(self, hook: Callable[[Node, ModulePass], None]) -> None:
        self._hook = hook
        # By the id of a tensor: what it is from, and how often it had been written to then.
        self._made: dict[int, tuple[weakref.ref[Tensor], Source, int]] = {}
        self._owners: list[ModulePass | None] = []  # of autograd's nodes, by number from `_first`
        self._behind: dict[int, Sources] = {}  # by number: what was found there
        self._first = 0

    def begin(self, first: int) -> None:
        """Start over: nodes are counted from the number `first` on."""
        self._first = first

    def clear(self) -> None:
        self._hook = _ignore  # the one that was given leads back to who watched
        self._made.clear()
        self._owners.clear()
        self._behind.clear()

    def claim(self, tensor: Tensor, source: Source) -> None:
        """Note that `source` is, or returned, this tensor."""
        self._made[id(tensor)] = (weakref.ref(tensor), source, version_of(tensor))

    def known(self, tensor: Tensor, *, as_it_was: bool = True) -> Source | None:
        """The source of a tensor, if this very tensor was claimed and was not written to since."""
        found = self._made.get(id(tensor))
        if found is None or found[0]() is not tensor or (as_it_was and found[2] != version_of(tensor)):
            return None
        return found[1]

    def finish(self, first: int, end: int, one: ModulePass) -> None:
        """A call has returned: it owns the nodes made since `first`, except those that calls inside it own."""
        owners = self._owners
        first, end = first - self._first, end - self._first
        if not one.has_inner and len(owners) <= first:
            owners += [None] * (first - len(owners)) + [one] * (end - first)
            return
        owners += [None] * (end - len(owners))
        for number in range(first, end):
            if owners[number] is None:
                owners[number] = one
        if self._behind:
            self._behind = {number: found for number, found in self._behind.items() if number < first}

    def producers(self, tensor: Tensor, around: ModulePass | None) -> Sources:
        """The calls and inputs a tensor comes from: by the tensor itself, by autograd's graph, or by the base it is a view of.

        `around` is the call in whose own code it may have been made.
        """
        known = self.known(tensor)
        node = node_of(tensor) if known is None else None
        if node is None:
            known = known or self.known(tensor, as_it_was=False)
            base = base_of(tensor) if known is None else None
            if base is not None:
                known = self.known(base, as_it_was=False)
            return {known: None} if known is not None else {}
        number = sequence_number(node) - self._first
        found = self._behind.get(number)
        if found is None:
            found = self._behind[number] = self._walk(node, around)
        return found

    def _walk(self, node: Node, around: ModulePass | None) -> Sources:
        """The finished calls that autograd's graph leads to from a node. Nodes on the way belong to the call around them."""
        found: Sources = {}
        seen: set[Node] = set()
        waiting = [node]
        while waiting:
            here = waiting.pop()
            if here is None or here in seen:
                continue
            seen.add(here)
            number = sequence_number(here) - self._first
            if number > LEAF - self._first:
                known = self.known(here.variable)
                if known is not None:
                    found[known] = None
            elif number >= 0:
                owner = self._owners[number] if number < len(self._owners) else None
                if owner is not None and owner is not around and owner.ended:
                    found[owner] = None
                    continue
                if owner is None and around is not None:
                    self._owners += [None] * (number + 1 - len(self._owners))
                    self._owners[number] = around
                    self._hook(here, around)
                waiting += [following for following, _ in here.next_functions]
        return found


def last_nodes(first: int, results: list[Node]) -> list[Node]:
    """The nodes made since `first` from which gradients go on; failing those, the ones that lead to parameters."""
    seen = set(results)
    waiting = list(seen)
    leaving: list[Node] = []
    ending: list[Node] = []
    while waiting:
        node = waiting.pop()
        is_leaving = is_ending = False
        for following, _ in node.next_functions:
            if following is None or following in seen:
                continue
            number = sequence_number(following)
            if number > LEAF:
                is_ending = True
            elif number < first:
                is_leaving = True
            else:
                seen.add(following)
                waiting.append(following)
        if is_leaving:
            leaving.append(node)
        elif is_ending:
            ending.append(node)
    return leaving or ending or results
