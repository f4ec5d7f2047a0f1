"""Times operations on an accelerator by events, which are read once, after the pass.

The clock of the processor sees only how long it takes to hand an operation to the device.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from threading import get_ident
from time import perf_counter_ns as now
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .._torch.internals import (
    AccumulateGrad,
    CustomNode,
    DisableTorchFunction,
    after_this_backward,
    base_of,
    current_graph_task,
    functorch_unwrapped,
    hooks_of,
    is_functorch_wrapped,
    is_legacy_batched,
    is_of_custom_function,
    next_sequence_number,
    sequence_number,
)
from .._torch.randomness import RandomState
from .._torch.restore_state import LeftBehind, StateRestorer
from .._torch.tensor_table import unwrap
from ..errors import BackwardFailed
from ..log.grad_fn_names import node_of
from ..log.records import ELAPSED, BackwardLog, BackwardRecord, Log, NodeRecord, Shapes, facts_of


def device_event() -> Any:
    """An event on the stream that is current here, now."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    event.record()
    return event


class DeviceTimer:
    """Puts an event before and after every operation; waits for the device only at the end."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int, Any, Any]] = []

    def mark(self) -> Any:
        """An event on the current stream, now."""
        return device_event()

    def note(self, first: int, end: int, before: Any) -> None:
        """Operations `first <= n < end` ran since the event `before`."""
        self._marks.append((first, end, before, self.mark()))

    def settle(self, log: Log) -> None:
        """Write the times into the log."""
        if self._marks:
            torch.cuda.synchronize()
        for first, end, before, after in self._marks:
            nanoseconds = int(before.elapsed_time(after) * 1e6)
            for number in range(first, min(end, len(log.rows))):
                row = log.rows[number]
                log.rows[number] = (*row[:ELAPSED], nanoseconds, *row[ELAPSED + 1 :])
        self._marks.clear()


# Follows gradients: hooks on autograd's nodes, tied to the operations whose tensors they made.
#
# An example:
#
#     y = fc(x)          # record 1; y.grad_fn is an AddmmBackward0, whose next nodes are a TBackward0 and AccumulateGrads
#     loss = y.sum()     # record 2; its SumBackward0 leads to the AddmmBackward0
#     loss.backward()    # hooks tell: SumBackward0 ran (of record 2), AddmmBackward0 ran and got the gradient of y
#                        # (of record 1), AccumulateGrad added to fc.weight.grad (of a parameter)
#
# When an operation is recorded, its node is hooked, and so are the new nodes reached from it by `next_functions`. A
# hook records when its node ran, for how long, and the gradients; torch's number of the backward call says which pass
# it was. Data about a node is stored in the node's own metadata, so nothing here keeps a graph alive. Hooks refer to
# the log weakly: neither the graph nor the history keeps the other alive.

FOLLOWED = 20_000  # nodes at a time; a longer chain of hooked ones could overflow the stack when torch frees it

Node = Any
LeafOf = Callable[[Node], int | None]


class Watched:
    """Data about one hooked node, and about its current run."""

    __slots__ = (
        *("can_nest", "following", "is_given", "is_target", "leaf", "name", "number", "onward", "operation", "outputs", "role"),
        *("counted", "event", "inner", "outer", "record", "sequence", "started"),
    )

    def __init__(self, following: Following, name: str, role: str, operation: int) -> None:
        self.following = following
        following.count += 1
        self.counted = following.counted
        self.number = following.count
        self.name = name
        self.role = role
        self.operation = operation  # it is a part of, or (negative) the parameter whose gradient it adds up
        self.leaf: int | None = operation if role == "accumulation" else None
        self.outputs: dict[
            int, list[int]
        ] = {}  # by output, the operations whose tensor it is: a call may hand back its argument
        self.onward: list[tuple[int, Watched, int]] = []  # which of its gradients goes to which node, and is of which output
        self.is_given = False  # whether it made an input of the recording, so that the node itself was not recorded
        self.is_target = self.leaf is not None  # whether a pass may end here without running it
        self.can_nest = False  # whether its backward is Python code, which may run a backward pass
        self.record: BackwardRecord | None = None  # of the pass it runs in
        self.outer: Watched | None = None  # the node it runs inside of
        self.inner: list[NodeRecord] = []
        self.event: Any = None
        self.sequence = -1
        self.started = 0

    def made(self, output: int, number: int) -> None:
        """It made the tensor of an operation."""
        self.outputs.setdefault(output, []).append(number)
        if self.role != "result" or number < self.operation:
            self.operation, self.role = number, "result"


class Following:
    """Hooks nodes for one log, each once."""

    def __init__(self, backward: BackwardLog) -> None:
        self.log = weakref.ref(backward)
        self.counted = object()  # what is known of each node that is hooked, and alive, refers to this
        self._none = sys.getrefcount(self.counted)
        self.count = 0  # nodes hooked so far
        self.has_custom = False
        self._left_behind: Callable[[], LeftBehind | None] | None = None  # None: the pass left nothing behind
        self._key = object()
        self._handles: list[Any] = []  # of the hooks on leaves, which may outlive the graph
        self._many = 1_000  # handles, before those of nodes that are gone are thrown away
        weakref.finalize(backward, _remove, self._handles).atexit = False

    def keep(self, left: LeftBehind, outputs: Iterable[Tensor]) -> None:
        """Put back what the pass left behind, for the time of each backward pass that reaches a node of the pass.

        Held by the graph, and so by its hooks, only where that leads to no graph: a cycle through autograd is never collected.
        """
        self._left_behind = partial(_same, left) if left.has_no_graph else weakref.ref(left)
        for tensor in outputs:  # the hooks of a tensor run before those of its node
            node = node_of(tensor) if tensor.requires_grad else None
            if node is not None and (self.known(node) is None or hooks_of(tensor)):
                first = tensor.register_hook(partial(_put_back, self))  # type: ignore[no-untyped-call]  # torch's own
                for hooks in hooks_of(tensor):
                    if first.id in hooks:
                        hooks.update({number: hooks.pop(number) for number in list(hooks) if number != first.id})

    def put_back(self) -> None:
        """A node of the pass is about to run."""
        if self._left_behind is None:
            return
        left = self._left_behind()
        if left is None:
            raise BackwardFailed(
                "the logged pass changed the model's state, which its backward pass may read, and the history that remembers "
                "this state is gone. Keep the history until backward has run."
            )
        left.put_back(current_graph_task())

    @property
    def left(self) -> int:
        """How many more nodes may be hooked.

        References are counted, since a `__del__` of what is known of a node could swallow an interrupt.
        """
        return FOLLOWED + self._none - sys.getrefcount(self.counted)

    def known(self, node: Node) -> Watched | None:
        """What is known of a node that is hooked."""
        found: Watched | None = node.metadata.get(self._key)
        return found

    def follow(
        self, node: Node, operation: int, role: str, leaf_of: LeafOf | None, goes_on: Callable[[Node], bool] | None = None
    ) -> Watched:
        """Hook a node, and the nodes reached from it that are not hooked yet and fit; they are parts of an operation."""
        first = self._hook(node, operation, role, leaf_of)
        waiting = [(node, first)]
        while waiting:
            here, watched = waiting.pop()
            for place, (following, output) in enumerate(here.next_functions):
                if following is None:
                    continue
                known: Watched | None = following.metadata.get(self._key)
                if known is None and self.left > 0 and (goes_on is None or goes_on(following)):
                    known = self._hook(following, operation, role, leaf_of)
                    waiting.append((following, known))
                if known is not None:
                    watched.onward.append((place, known, output))
        return first

    def _hook(self, node: Node, operation: int, role: str, leaf_of: LeafOf | None) -> Watched:
        cls = type(node)
        leaf = leaf_of(node) if leaf_of is not None and cls is AccumulateGrad else None
        role, operation = (role, operation) if leaf is None else ("accumulation", leaf)
        watched = Watched(self, cls.__name__, role, operation)
        node.metadata[self._key] = watched
        if issubclass(cls, CustomNode):
            watched.can_nest = self.has_custom = True
        handles = node.register_prehook(partial(_before, self, watched)), node.register_hook(partial(_after, self, watched))
        if leaf is not None:
            self._handles += handles
            if len(self._handles) > self._many:
                self._handles[:] = [handle for handle in self._handles if handle.hooks_dict_ref() is not None]
                self._many = 2 * len(self._handles) + 64
        return watched


class GradientWatcher:
    """Ties the nodes of one recording to its operations."""

    def __init__(self, log: Log, number_of_leaf: Callable[[Tensor], int | None]) -> None:
        assert log.backward is not None
        self._log = log
        self._backward = log.backward
        self._number_of_leaf = number_of_leaf
        self._following = Following(log.backward)
        self.outputs: list[Tensor] = []  # of the model, until the pass is undone
        self._tied: set[int] = set()  # operations that have a node
        self._leaves: dict[int, weakref.ref[Tensor]] = {}  # the tensors whose gradients are those of inputs

    def keep_left_behind(self, restorer: StateRestorer, before: RandomState) -> None:
        """The pass is over and about to be undone: remember what it changed. `before` is the random state it began with."""
        left = self._backward.left_behind = restorer.left_behind(before)
        if left is not None:
            self._following.keep(left, self.outputs)
        self.outputs = []

    def note(self, number: int, tensor: Tensor, *, is_given: bool = False) -> None:
        """Operation `number` made `tensor`; or `tensor` is an input, and its upstream graph was not recorded."""
        while is_functorch_wrapped(tensor):  # each transform has a graph of its own
            self._tie(number, tensor, is_given)
            tensor = functorch_unwrapped(tensor)
        self._tie(number, tensor, is_given)

    def _tie(self, number: int, tensor: Tensor, is_given: bool = False) -> None:
        node = self._node(tensor)
        if node is None:
            return
        watched = self._following.known(node)
        if watched is None:
            watched = self._following.follow(node, number, "inside", self._leaf, _nowhere if is_given else None)
            watched.is_given = watched.is_target = is_given
        watched.made(tensor.output_nr, number)
        self._tied.add(number)
        base = base_of(tensor)
        if base is not None:
            self._explain(number, base)  # a write through a view gives its base a new node

    def _explain(self, number: int, tensor: Tensor) -> None:
        node = self._node(tensor)
        if node is not None and self._following.known(node) is None:
            self._following.follow(node, number, "inside", self._leaf)

    def is_given(self, tensor: Tensor) -> bool:
        """True for tensors that the pass did not make: parameters, and inputs."""
        node = self._node(tensor)
        watched = self._following.known(node) if node is not None else None
        return tensor.is_leaf or (watched is not None and watched.is_given)

    def note_handed(self, number: int, tensor: Tensor) -> None:
        """`tensor` is the view or copy of an output that the user gets: gradients come through its node."""
        self._explain(number, tensor)

    def meet(self, numbers: Iterable[int], tensors: Iterable[Tensor]) -> None:
        """Tensors of these operations are used as arguments. Their nodes may be new: a custom autograd function ran unseen."""
        for number, tensor in zip(numbers, tensors, strict=True):
            if not tensor.requires_grad or number < 0:
                continue
            if number in self._tied:
                self._explain(number, tensor)
            else:
                self._tie(number, tensor)

    def expect(self, roots: Iterable[Tensor]) -> None:
        """A backward pass begins at these tensors. Where one is a parameter or an input, the pass begins with its node."""
        known = [one for one in roots if one.requires_grad and self._number_of_leaf(one) is not None]
        self._backward.begins_outside = any(map(self.is_given, known))

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """A backward pass may begin or end at these tensors."""
        self._backward.scale = None
        for tensor in tensors:
            number = self._number_of_leaf(tensor)
            if number is None or not tensor.requires_grad:
                continue
            if tensor.is_leaf:
                self._pin(tensor)
            else:
                self.meet((number,), (tensor,))
                node = self._node(tensor)
                watched = self._following.known(node) if node is not None else None
                if watched is not None:
                    watched.is_target = True
        if self._following.has_custom:  # its backward may run passes of its own, through parameters that no node leads to
            for state in self._log.states:
                if state.is_parameter and state.tensor.requires_grad and state.tensor.is_leaf:
                    self._pin(state.tensor)

    def _pin(self, leaf: Tensor) -> None:
        if is_functorch_wrapped(leaf):  # by a transform, in which it has no such node
            return
        node = get_gradient_edge(leaf).node
        if self._following.known(node) is None:
            self._following.follow(node, -1, "other", self._leaf)
            self._backward.pinned.append(node)

    def _node(self, tensor: Tensor) -> Node | None:
        if self._following.left <= 0:
            self._note_end()
            return None
        return node_of(tensor)

    def _note_end(self) -> None:
        message = (
            f"a graph of more than {FOLLOWED:,} autograd nodes is followed in part: later ones have no gradients and no times."
        )
        if message not in self._log.notes:
            self._log.notes.append(message)

    def _leaf(self, node: Node) -> int | None:
        """The number of the parameter or input whose gradient a node accumulates. A detached copy of one does not count."""
        leaf = node.variable
        number = self._number_of_leaf(leaf) if not is_functorch_wrapped(leaf) else None
        if number is None or number < 0:
            return number
        known = self._leaves.get(number)
        if known is None or known() is None:
            self._leaves[number] = weakref.ref(leaf)
            return number
        return number if known() is leaf else None


def _nowhere(node: Node) -> bool:
    return False


# The hooks ------------------------------------------------------------------------------------------------------------


def _put_back(following: Following, gradient: Tensor) -> None:
    following.put_back()


def _same(left: LeftBehind) -> LeftBehind:
    return left


def _before(following: Following, node: Watched, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...] | None:
    if node.leaf is None and not node.is_given:  # other graphs lead to the same parameters and inputs
        following.put_back()
    log = following.log()
    if log is None:
        return None
    task = current_graph_task()
    node.record = one = log.latest
    node.outer = None
    if one is None or one.task != task:
        node.record = one = _entered(log, node, task)
    if one is None:
        return None
    handed_on = None
    with DisableTorchFunction():
        if node.leaf is not None:
            handed_on = _receive(log, one, node.leaf, gradients)
        for output, numbers in node.outputs.items():
            if output < len(gradients):
                _keep(log, one.gradients, numbers, gradients[output])
        on_device = log.on_device and any(gradient is not None and gradient.is_cuda for gradient in gradients)
        node.event = device_event() if on_device else None
    if node.can_nest:
        node.inner = []
        log.running[get_ident()] = node
    node.sequence = next_sequence_number() if torch.is_grad_enabled() else -1
    node.started = now()
    return handed_on


def _entered(log: BackwardLog, node: Watched, task: int) -> BackwardRecord | None:
    """The pass in which a node runs, where that is not the latest one; None if its graph was not recorded here."""
    one = log.known(task)
    outer = log.running.get(get_ident())
    if one is None and outer is not None and outer.record is not None and _runs_inside_a_node():
        one = outer.record
        one.inner.add(task)
    is_outside = node.leaf is not None or node.is_given  # other graphs lead to the same parameters and inputs
    if one is None and (not is_outside or log.begins_outside):
        one = log.begin(task)
        after_this_backward(partial(_finish, weakref.ref(log), one))
    node.outer = outer if one is not None and one.task != task else None
    return one


def _runs_inside_a_node() -> bool:
    """Whether this backward pass was begun by the backward of a custom function, as checkpointing does."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(is_of_custom_function(frame.f_code, name) for name in ("backward", "vjp")):
            return True
        frame = frame.f_back
    return False


def _receive(
    log: BackwardLog, one: BackwardRecord, leaf: int, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Keep the gradient of a leaf. Returns a tensor for torch to accumulate instead of the one that is kept."""
    one.summed.pop(leaf, None)
    gradient = gradients[0] if gradients else None
    if gradient is None or not log.wants(leaf) or is_legacy_batched(gradient):
        return None
    kept = unwrap(gradient).detach()
    one.gradients[leaf] = one.gradients[leaf] + kept if leaf in one.accumulated and leaf in one.gradients else kept
    if torch.is_grad_enabled():
        return None
    if gradient.is_nested:  # torch checks what it is given instead, and fails
        one.gradients[leaf] = one.gradients[leaf].clone()
        return None
    return (gradient.clone(),)  # torch makes `.grad` of the very tensor it is given, and later adds to it


def _after(following: Following, node: Watched, made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
    elapsed = now() - node.started
    one, log = node.record, following.log()
    if one is None or log is None:
        return
    with DisableTorchFunction():
        events = (node.event, device_event()) if node.event is not None else None
        shapes = _shapes(given), _shapes(made)
        record = NodeRecord(node.name, node.role, node.operation, node.started, *shapes, elapsed, tuple(node.inner))
        record.node = node.number
        record.onward = tuple([target.number for _, target, _ in node.onward])
        record.tensors = tuple([number for numbers in node.outputs.values() for number in numbers])
        if events is not None:
            record.time_by(*events)
        one.nodes.append(record)
        if node.leaf is not None:
            one.accumulated.add(node.leaf)
        elif node.outer is None:
            for place, target, output in node.onward:
                if target.is_target and place < len(made):
                    _add(log, one, target, output, made[place])
        if node.sequence >= 0:
            _follow_derivatives(following, node, made)
    node.record = node.event = None
    if node.outer is not None:
        node.outer.inner.append(record)
    if node.can_nest:
        log.running[get_ident()] = node.outer
        node.inner = []


def _add(log: BackwardLog, one: BackwardRecord, target: Watched, output: int, gradient: Tensor | None) -> None:
    """Sum the gradients that reach a node at which the pass may end. The sum is used only if the node itself does not run."""
    numbers = (target.leaf,) if target.leaf is not None else target.outputs.get(output)
    if not numbers or gradient is None or target.leaf in one.accumulated:
        return
    so_far = one.summed.get(numbers[0])
    _keep(log, one.summed, numbers, gradient if so_far is None else so_far + unwrap(gradient).detach())


def _follow_derivatives(following: Following, node: Watched, made: tuple[Tensor | None, ...]) -> None:
    """Hook the nodes that a backward function created (`create_graph=True`): they run in a second differentiation."""

    def is_new(one: Node) -> bool:
        return type(one) is not AccumulateGrad and sequence_number(one) >= node.sequence

    for gradient in made:
        new = gradient.grad_fn if gradient is not None and following.left > 0 else None
        if new is not None and following.known(new) is None and is_new(new):
            following.follow(new, node.operation, "derivative" if node.role != "other" else "other", None, is_new)


def _finish(log: weakref.ref[BackwardLog], one: BackwardRecord) -> None:
    """The pass is over."""
    if log() is not None:
        with DisableTorchFunction(), torch.no_grad():
            one.is_complete = True
            one.let_go()


def _keep(log: BackwardLog, kept: dict[int, Tensor], numbers: Iterable[int], gradient: Tensor | None) -> None:
    if gradient is None or is_legacy_batched(gradient):
        return
    for number in numbers:
        if log.wants(number):
            kept[number] = unwrap(gradient).detach()


def _shapes(gradients: tuple[Tensor | None, ...]) -> Shapes:
    return tuple([None if one is None else facts_of(one)[0] for one in gradients])


def _remove(handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
