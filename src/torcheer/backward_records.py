"""What capture writes down of backward passes: the nodes that ran, and the gradients."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .tensor_memory import has_memory
from .torch_internals import address_of, storage_use_count

Shapes = tuple[tuple[int, ...] | None, ...]


@dataclass(slots=True, eq=False)
class NodeRecord:
    """One autograd node that ran.

    Its role: it made an operation's tensor (`result`), belongs to an operation's inside (`inside`), was made by the backward
    of an operation (`derivative`), adds up the gradient of a parameter or an input (`accumulation`), or belongs to
    nothing that was recorded (`other`).
    """

    name: str
    role: str
    operation: int  # negative for a parameter; -1 with the role `other`: no operation
    started: int
    given: Shapes  # of the gradients of what it made
    made: Shapes  # of the gradients of what it was made from
    _span: int = 0
    inner: tuple[NodeRecord, ...] = ()  # what ran inside it, in a backward pass of its own
    node: int = -1  # the same for all runs of one node
    onward: tuple[int, ...] = ()  # the nodes its gradients go to, as autograd's `next_functions` has them
    tensors: tuple[int, ...] = ()  # the operations whose tensors it made: more than one where a call returned its argument
    is_device_time: bool = False
    _events: tuple[Any, Any] | None = None  # of the device, until the time is asked for

    def time_by(self, before: Any, after: Any) -> None:
        """Take its time from two events of the device, which may not have happened yet."""
        self.is_device_time, self._events = True, (before, after)

    @property
    def span(self) -> int:
        """Nanoseconds from its begin to its end. Waits for the device, if that is not done yet."""
        if self._events is not None:
            before, after = self._events
            after.synchronize()
            self._span, self._events = int(before.elapsed_time(after) * 1e6), None
        return self._span

    @property
    def elapsed(self) -> int:
        """Nanoseconds of the node itself."""
        return max(0, self.span - sum(one.span for one in self.inner)) if self.inner else self.span


@dataclass(slots=True, eq=False)
class BackwardRecord:
    """One backward pass: the nodes that ran, and the gradients, by operation or (negative) by parameter."""

    task: int  # torch's number of it
    nodes: list[NodeRecord] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    summed: dict[int, Tensor] = field(default_factory=dict)  # where torch was asked for them, from the nodes that used them
    accumulated: set[int] = field(default_factory=set)  # leaves whose own node ran
    scale: Tensor | None = None  # what the loss was multiplied by, by a gradient scaler
    is_complete: bool = False
    inner: set[int] = field(default_factory=set)  # torch's numbers of passes that a node of this one ran

    def gradient(self, number: int) -> Tensor | None:
        """The gradient of an operation's tensor, or of a parameter."""
        found = self.gradients.get(number)
        gradient = found if found is not None else self.summed.get(number)
        return gradient if gradient is not None and has_memory(gradient) else None

    def let_go(self) -> None:
        """Copy gradients whose memory is used elsewhere and may be overwritten. Kept gradients are aliases until then."""
        kept = [(found, number) for found in (self.gradients, self.summed) for number in found]
        memory = {id(tensor): _memory(tensor) for found, number in kept for tensor in (found[number],)}
        own = Counter(memory.values())
        alone = torch.empty(0, device="cpu")
        besides = _uses(_memory(alone)) - 1  # looking at memory may count as a use of it
        for found, number in kept:
            address = memory[id(found[number])]
            if not has_memory(found[number]):
                del found[number]
            elif address is None or _uses(address) > own[address] + besides:
                found[number] = found[number].clone()


def _uses(address: int | None) -> int:
    """How many tensors use this memory, ours and others."""
    return storage_use_count(address) if address is not None else 0


def _memory(tensor: Tensor) -> int | None:
    """What torch knows the memory of a tensor by; None where it is not one piece."""
    try:
        return address_of(tensor.untyped_storage())
    except RuntimeError:
        return None


class BackwardLog:
    """The backward passes of a recording. Hooks hold it weakly."""

    def __init__(self) -> None:
        self.scale: Tensor | None = None  # of the pass that is about to begin
        self.on_device = False  # whether nodes that work on a device are timed there
        self.running: dict[int, Any] = {}  # by thread: the node that runs now, if it may run a backward pass itself
        self.pinned: list[Any] = []  # nodes that are kept alive here, and their hooks with them
        self.latest: BackwardRecord | None = None
        self.left_behind: Any = None  # what the forward pass changed and was undone; backward passes of it need that
        self.begins_outside = False  # whether the backward pass that runs begins at a parameter or an input
        self.is_copy = False  # no hook adds further passes to it
        self._begun: list[BackwardRecord] = []
        self.wanted: set[int] | None = None  # the operations whose gradients are kept; None: all

    @property
    def passes(self) -> list[BackwardRecord]:
        """The passes in which a node ran."""
        return [one for one in self._begun if one.nodes]

    def wants(self, number: int) -> bool:
        """Whether to keep the gradient of an operation; those of parameters always are."""
        return self.wanted is None or number < 0 or number in self.wanted

    def only(self, numbers: set[int]) -> None:
        """Keep the gradients of these operations, and release all others."""
        self.wanted = numbers
        for one in self._begun:
            for gradients in (one.gradients, one.summed):
                for number in [n for n in gradients if not self.wants(n)]:
                    del gradients[number]

    def clear(self) -> None:
        """Let go of every gradient."""
        for one in self._begun:
            one.gradients.clear()
            one.summed.clear()

    def copy(self) -> BackwardLog:
        """The same passes with copies of the gradients; no hook adds further passes."""
        new = BackwardLog()
        new.is_copy = True
        new.wanted = self.wanted
        for one in self._begun:
            gradients, summed = (
                {n: g.clone() for n, g in found.items() if has_memory(g)} for found in (one.gradients, one.summed)
            )
            twin = BackwardRecord(
                one.task, list(one.nodes), gradients, summed, set(one.accumulated), one.scale, one.is_complete
            )
            new._begun.append(twin)
        return new

    @classmethod
    def of(cls, passes: list[BackwardRecord], wanted: set[int] | None) -> BackwardLog:
        """The passes of a saved history, to which no hook adds."""
        new = cls()
        new._begun, new.wanted = passes, wanted
        return new

    def known(self, task: int) -> BackwardRecord | None:
        """The pass with torch's number `task`, or the one inside which that pass runs."""
        for one in reversed(self._begun):
            if one.task == task or task in one.inner:
                return one
        return None

    def begin(self, task: int) -> BackwardRecord:
        """A new pass."""
        self.latest = BackwardRecord(task, scale=self.scale)
        self._begun.append(self.latest)
        return self.latest
