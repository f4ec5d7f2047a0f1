"""Times operations on an accelerator, and follows gradients through autograd's graph.

`DeviceTimer` records CUDA events, because the CPU clock measures only how long it takes to launch an operation.
`GradientWatcher` hooks autograd nodes and writes each backward pass into the log.
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
    """A device event, recorded now on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own
    event.record()
    return event


class DeviceTimer:
    """Records a device event before and after every operation, and waits for the device only at the end."""

    def __init__(self) -> None:
        self._marks: list[tuple[int, int, Any, Any]] = []

    def note(self, first: int, end: int, before: Any) -> None:
        """Record that operations `first <= n < end` ran since the event `before`."""
        self._marks.append((first, end, before, device_event()))

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


# Follows gradients by hooks on autograd's nodes. Each node is tied to the operation whose result it made.
#
# An example:
#
#     y = fc(x)          # record 1; y.grad_fn is an AddmmBackward0, whose next nodes are a TBackward0 and AccumulateGrads
#     loss = y.sum()     # record 2; its SumBackward0 leads to the AddmmBackward0
#     loss.backward()    # hooks tell: SumBackward0 ran (of record 2), AddmmBackward0 ran and got the gradient of y
#                        # (of record 1), AccumulateGrad added to fc.weight.grad (of a parameter)
#
# When an operation is recorded, its node is hooked, and so are the new nodes reached from it by `next_functions`. A hook
# records when its node ran, for how long, and the gradients; torch's id of the backward call identifies the pass. Data about
# a node is stored in the node's own metadata, and hooks refer to the log weakly, so neither the graph nor the history keeps
# the other alive.

FOLLOWED = 20_000  # hook at most this many nodes at a time: freeing a longer chain of hooked nodes could overflow torch's stack

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
        # the operation the node belongs to, or (negative) the parameter whose gradient it accumulates
        self.operation = operation
        self.leaf: int | None = operation if role == "accumulation" else None
        self.outputs: dict[int, list[int]] = {}  # output -> operations with that tensor: a call may return its own argument
        # for each gradient: (its index, the node that receives it, the output of that node whose gradient it is)
        self.onward: list[tuple[int, Watched, int]] = []
        self.is_given = False  # True if the node made an input of the recording: the node itself was not recorded
        self.is_target = self.leaf is not None  # True if a pass may end here without running the node
        self.can_nest = False  # True if its backward is Python code, which may run a backward pass
        self.record: BackwardRecord | None = None  # the backward pass in which the node is running
        self.outer: Watched | None = None  # the node whose backward runs this node
        self.inner: list[NodeRecord] = []
        self.event: Any = None
        self.sequence = -1
        self.started = 0

    def made(self, output: int, number: int) -> None:
        """Note that this node made the tensor of operation `number`."""
        self.outputs.setdefault(output, []).append(number)
        if self.role != "result" or number < self.operation:
            self.operation, self.role = number, "result"


class Following:
    """Hooks nodes for one log, each node once."""

    def __init__(self, backward: BackwardLog) -> None:
        self.log = weakref.ref(backward)
        self.counted = object()  # each living `Watched` refers to this object, so its reference count shows how many there are
        self._none = sys.getrefcount(self.counted)
        self.count = 0  # nodes hooked so far
        self.has_custom = False
        self._left_behind: Callable[[], LeftBehind | None] | None = None  # None: the pass left nothing behind
        self._key = object()
        self._handles: list[Any] = []  # handles of hooks on leaf tensors, which may outlive the graph
        self._many = 1_000  # remove the handles of dead nodes when there are more handles than this
        weakref.finalize(backward, _remove, self._handles).atexit = False

    def keep(self, left: LeftBehind, outputs: Iterable[Tensor]) -> None:
        """Let each backward pass that reaches a node of this forward pass restore the state that the forward pass left.

        The graph holds `left` only if `left` refers to no graph: Python never collects a cycle through autograd.
        """
        self._left_behind = partial(_same, left) if left.has_no_graph else weakref.ref(left)
        for tensor in outputs:  # tensor hooks run before the hooks of the tensor's node
            node = node_of(tensor) if tensor.requires_grad else None
            if node is not None and (self.known(node) is None or hooks_of(tensor)):
                first = tensor.register_hook(partial(_put_back, self))  # type: ignore[no-untyped-call]  # torch's own
                for hooks in hooks_of(tensor):
                    if first.id in hooks:
                        hooks.update({number: hooks.pop(number) for number in list(hooks) if number != first.id})

    def put_back(self) -> None:
        """Called when a node of the pass is about to run: restores the state that the forward pass left."""
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

        Reads a reference count: a counter decremented in `__del__` could swallow an interrupt.
        """
        return FOLLOWED + self._none - sys.getrefcount(self.counted)

    def known(self, node: Node) -> Watched | None:
        """The data of a node, if it is hooked."""
        found: Watched | None = node.metadata.get(self._key)
        return found

    def follow(
        self, node: Node, operation: int, role: str, leaf_of: LeafOf | None, goes_on: Callable[[Node], bool] | None = None
    ) -> Watched:
        """Hook a node of an operation, and the unhooked nodes behind it, as long as `goes_on` accepts each node on the way."""
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
    """Ties autograd nodes to the operations of one recording."""

    def __init__(self, log: Log, number_of_leaf: Callable[[Tensor], int | None]) -> None:
        assert log.backward is not None
        self._log = log
        self._backward = log.backward
        self._number_of_leaf = number_of_leaf
        self._following = Following(log.backward)
        self.outputs: list[Tensor] = []  # the model's outputs, until the pass is undone
        self._tied: set[int] = set()  # operations that have an autograd node
        self._leaves: dict[int, weakref.ref[Tensor]] = {}  # the tensors whose gradients belong to inputs

    def keep_left_behind(self, restorer: StateRestorer, before: RandomState) -> None:
        """Called before the pass is undone: remember what it changed. `before` is the random state at its start."""
        left = self._backward.left_behind = restorer.left_behind(before)
        if left is not None:
            self._following.keep(left, self.outputs)
        self.outputs = []

    def note(self, number: int, tensor: Tensor, *, is_given: bool = False) -> None:
        """Hook the node of `tensor`, the result of an operation or (`is_given`) an input, whose graph was not recorded."""
        while is_functorch_wrapped(tensor):  # each transform has its own graph
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
            self.follow(number, base)  # a write through a view gives the view's base a new node

    def follow(self, number: int, tensor: Tensor) -> None:
        """Hook the node of `tensor`, if it is not hooked, as a part of operation `number`."""
        node = self._node(tensor)
        if node is not None and self._following.known(node) is None:
            self._following.follow(node, number, "inside", self._leaf)

    def is_given(self, tensor: Tensor) -> bool:
        """True for a tensor that the pass did not make: a parameter or an input."""
        node = self._node(tensor)
        watched = self._following.known(node) if node is not None else None
        return tensor.is_leaf or (watched is not None and watched.is_given)

    def meet(self, numbers: Iterable[int], tensors: Iterable[Tensor]) -> None:
        """Called before a call uses its arguments: hook the nodes they got from an unwatched custom autograd function."""
        for number, tensor in zip(numbers, tensors, strict=True):
            if not tensor.requires_grad or number < 0:
                continue
            if number in self._tied:
                self.follow(number, tensor)
            else:
                self._tie(number, tensor)

    def expect(self, roots: Iterable[Tensor]) -> None:
        """Called before a backward pass begins at these tensors: note whether a parameter or an input is among them."""
        known = [one for one in roots if one.requires_grad and self._number_of_leaf(one) is not None]
        self._backward.begins_outside = any(map(self.is_given, known))

    def watch(self, tensors: Iterable[Tensor]) -> None:
        """Prepare for a backward pass that may begin or end at these tensors."""
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
        # the backward of a custom function may run a nested pass through parameters that no node leads to
        if self._following.has_custom:
            for state in self._log.states:
                if state.is_parameter and state.tensor.requires_grad and state.tensor.is_leaf:
                    self._pin(state.tensor)

    def _pin(self, leaf: Tensor) -> None:
        if is_functorch_wrapped(leaf):  # a transform wraps the leaf, and inside the transform it has no AccumulateGrad node
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
        """Return the number of the parameter or input whose gradient a node accumulates; None for a detached copy of one."""
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
    if node.leaf is None and not node.is_given:  # a parameter or input can also belong to other graphs
        following.put_back()
    log = following.log()
    if log is None:
        return None
    task = current_graph_task()
    node.record = backward = log.latest
    node.outer = None
    if backward is None or backward.task != task:
        node.record = backward = _entered(log, node, task)
    if backward is None:
        return None
    handed_on = None
    with DisableTorchFunction():
        if node.leaf is not None:
            handed_on = _receive(log, backward, node.leaf, gradients)
        for output, numbers in node.outputs.items():
            if output < len(gradients):
                _keep(log, backward.gradients, numbers, gradients[output])
        on_device = log.on_device and any(gradient is not None and gradient.is_cuda for gradient in gradients)
        node.event = device_event() if on_device else None
    if node.can_nest:
        node.inner = []
        log.running[get_ident()] = node
    node.sequence = next_sequence_number() if torch.is_grad_enabled() else -1
    node.started = now()
    return handed_on


def _entered(log: BackwardLog, node: Watched, task: int) -> BackwardRecord | None:
    """Find the backward pass in which a node runs, if it is not the latest; None if its graph was not recorded here."""
    backward = log.known(task)
    outer = log.running.get(get_ident())
    if backward is None and outer is not None and outer.record is not None and _runs_inside_a_node():
        backward = outer.record
        backward.inner.add(task)
    is_outside = node.leaf is not None or node.is_given  # a parameter or input can also belong to other graphs
    if backward is None and (not is_outside or log.begins_outside):
        backward = log.begin(task)
        after_this_backward(partial(_finish, weakref.ref(log), backward))
    node.outer = outer if backward is not None and backward.task != task else None
    return backward


def _runs_inside_a_node() -> bool:
    """True if the backward of a custom function (for example checkpointing) started this backward pass."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if any(is_of_custom_function(frame.f_code, name) for name in ("backward", "vjp")):
            return True
        frame = frame.f_back
    return False


def _receive(
    log: BackwardLog, backward: BackwardRecord, leaf: int, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor | None, ...] | None:
    """Keep the gradient of a leaf. Returns the tensor that torch is to accumulate instead of the gradient."""
    backward.summed.pop(leaf, None)
    gradient = gradients[0] if gradients else None
    if gradient is None or not log.wants(leaf) or is_legacy_batched(gradient):
        return None
    kept = unwrap(gradient).detach()
    backward.gradients[leaf] = (
        backward.gradients[leaf] + kept if leaf in backward.accumulated and leaf in backward.gradients else kept
    )
    if torch.is_grad_enabled():
        return None
    if gradient.is_nested:  # torch rejects a replaced nested gradient
        backward.gradients[leaf] = backward.gradients[leaf].clone()
        return None
    return (gradient.clone(),)  # torch makes this tensor the leaf's `.grad`, and later adds to `.grad` in place


def _after(following: Following, node: Watched, made: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]) -> None:
    elapsed = now() - node.started
    backward, log = node.record, following.log()
    if backward is None or log is None:
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
        backward.nodes.append(record)
        if node.leaf is not None:
            backward.accumulated.add(node.leaf)
        elif node.outer is None:
            for place, target, output in node.onward:
                if target.is_target and place < len(made):
                    _add(log, backward, target, output, made[place])
        if node.sequence >= 0:
            _follow_derivatives(following, node, made)
    node.record = node.event = None
    if node.outer is not None:
        node.outer.inner.append(record)
    if node.can_nest:
        log.running[get_ident()] = node.outer
        node.inner = []


def _add(log: BackwardLog, backward: BackwardRecord, target: Watched, output: int, gradient: Tensor | None) -> None:
    """Sum the gradients that reach a node where the pass may end. The sum is used only if the node itself does not run."""
    numbers = (target.leaf,) if target.leaf is not None else target.outputs.get(output)
    if not numbers or gradient is None or target.leaf in backward.accumulated:
        return
    so_far = backward.summed.get(numbers[0])
    _keep(log, backward.summed, numbers, gradient if so_far is None else so_far + unwrap(gradient).detach())


def _follow_derivatives(following: Following, node: Watched, made: tuple[Tensor | None, ...]) -> None:
    """Hook the nodes that a backward function created (`create_graph=True`): they run in a second differentiation."""

    def is_new(one: Node) -> bool:
        return type(one) is not AccumulateGrad and sequence_number(one) >= node.sequence

    for gradient in made:
        new = gradient.grad_fn if gradient is not None and following.left > 0 else None
        if new is not None and following.known(new) is None and is_new(new):
            following.follow(new, node.operation, "derivative" if node.role != "other" else "other", None, is_new)


def _finish(log: weakref.ref[BackwardLog], backward: BackwardRecord) -> None:
    """Called when the backward pass is over."""
    if log() is not None:
        with DisableTorchFunction(), torch.no_grad():
            backward.is_complete = True
            backward.let_go()


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
