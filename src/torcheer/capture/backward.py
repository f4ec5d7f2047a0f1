"""Follows gradients: hooks on autograd's nodes, tied to the operations whose tensors they made.

While a pass runs, the node of every operation is noted. When the graph is complete (the pass is over, or a backward call
begins), every node that can be reached is hooked once. A hook writes down when its node ran, for how long, and the
gradients; a backward call is known by the number torch gives it. Hooks live on the nodes and go with them. They hold the
log only weakly, so neither the graph nor the history keeps the other alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter_ns as now
from typing import Any

import torch
from torch import Tensor

from ..backward_records import BackwardLog, BackwardRecord, NodeRecord

_current_task: Callable[[], int] = torch._C._current_graph_task_id
_AFTER_READING = 20_000  # a chain of more hooked nodes could overflow the stack when torch frees it

Node = Any


class GradientWatcher:
    """Ties the nodes of one recording to its operations, and hooks them."""

    def __init__(self, backward: BackwardLog, number_of_leaf: Callable[[Tensor], int | None]) -> None:
        self._backward = backward
        self._number_of_leaf = number_of_leaf
        self._made: dict[Node, dict[int, int]] = {}  # node -> output number -> operation
        self._hooked: set[Node] = set()

    def note(self, number: int, tensor: Tensor) -> None:
        """Operation `number` made `tensor`."""
        try:
            node = tensor.grad_fn
        except RuntimeError:  # a view made in no_grad whose base was written to
            return
        if node is not None:
            self._made.setdefault(node, {}).setdefault(tensor.output_nr, number)  # a call may hand back what it was given

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Hook every node these tensors come from that is not hooked yet."""
        waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        owner: dict[Node, int] = {}
        backward = weakref.ref(self._backward)
        while waiting and len(self._hooked) < _AFTER_READING:
            node = waiting.pop()
            if node in self._hooked:
                continue
            self._hooked.add(node)
            known = self._made.get(node)
            operation = min(known.values()) if known else owner.get(node, -1)
            watched = _Watched(type(node).__name__, operation, known or {}, self._leaf(node))
            for following, _ in node.next_functions:
                if following is not None and following not in self._hooked:
                    if following not in self._made:
                        owner.setdefault(following, operation)
                    waiting.append(following)
            node.register_prehook(partial(_before, backward, watched))
            node.register_hook(partial(_after, backward, watched, [_leaf_of(n, self._leaf) for n, _ in node.next_functions]))

    def _leaf(self, node: Node) -> int | None:
        leaf = getattr(node, "variable", None)
        return self._number_of_leaf(leaf) if leaf is not None else None


class _Watched:
    """What is known of a node before it runs."""

    __slots__ = ("leaf", "name", "operation", "outputs", "started")

    def __init__(self, name: str, operation: int, outputs: dict[int, int], leaf: int | None) -> None:
        self.name = name
        self.operation = operation
        self.outputs = outputs
        self.leaf = leaf
        self.started = 0


def _leaf_of(node: Node, number_of: Callable[[Node], int | None]) -> int | None:
    return number_of(node) if node is not None else None


def _before(backward: weakref.ref[BackwardLog], node: _Watched, gradients: tuple[Tensor | None, ...]) -> None:
    log = backward()
    if log is None:
        return
    with torch._C.DisableTorchFunction():
        one = log.passed(_current_task())
        for output, number in node.outputs.items():
            if output < len(gradients):
                _keep(log, one, number, gradients[output])
        if node.leaf is not None and gradients:
            one.summed.pop(node.leaf, None)
            if gradients[0] is not None and log.wants(node.leaf):
                one.gradients[node.leaf] = gradients[0].detach().clone()  # torch may add the next one to this very tensor
    node.started = now()


def _after(
    backward: weakref.ref[BackwardLog],
    node: _Watched,
    leaves: list[int | None],
    made: tuple[Tensor | None, ...],
    given: tuple[Tensor | None, ...],
) -> None:
    elapsed = now() - node.started
    log = backward()
    if log is None:
        return
    with torch._C.DisableTorchFunction():
        one = log.passed(_current_task())
        is_leaf = node.leaf is not None
        role = "accumulation" if is_leaf else "result" if node.outputs else "inside" if node.operation >= 0 else "other"
        operation = node.leaf if node.leaf is not None else node.operation
        one.nodes.append(NodeRecord(node.name, role, operation, node.started, elapsed, _shapes(given), _shapes(made)))
        for leaf, gradient in zip(leaves, made, strict=False):
            if leaf is not None and gradient is not None and leaf not in one.accumulated:
                _add(log, one, leaf, gradient)
        if is_leaf:
            one.accumulated.add(operation)


def _keep(log: BackwardLog, one: BackwardRecord, number: int, gradient: Tensor | None) -> None:
    if gradient is not None and log.wants(number):
        one.gradients[number] = gradient.detach()


def _add(log: BackwardLog, one: BackwardRecord, leaf: int, gradient: Tensor) -> None:
    """A part of a leaf's gradient; counts unless the leaf's own node runs and tells the whole, as `backward()` makes it."""
    if log.wants(leaf):
        so_far = one.summed.get(leaf)
        one.summed[leaf] = gradient.detach().clone() if so_far is None else so_far + gradient.detach()


def _shapes(gradients: Iterable[Tensor | None]) -> tuple[tuple[int, ...] | None, ...]:
    return tuple(tuple(gradient.shape) if gradient is not None else None for gradient in gradients)
