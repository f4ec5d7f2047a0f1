"""Memory over a pass, from the log alone: which tensors are alive when, what the peak is, and who is responsible.

The model. Tensors that share memory count once, with the bytes of the first. A tensor is born with its operation and lives
until

- its last use as an argument, or the end of the last module call it was given to (the call holds its arguments);
- the end of the pass, for inputs, for what came from outside, and for what the model returns;
- as long as an autograd node that saved it; a node lives as long as the tensor it belongs to, and the nodes that came from it.

Not counted: parameters and buffers (`MemoryTimeline.states` has them), what a kernel needs only while it runs, and
what a local variable of the model's forward holds beyond the last use. So the timeline is what the pass cannot do without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ..functions.saved_for_backward import Saved, saved_by
from ..history import History
from ..history.index import Index
from ..history.printing.text import human_size
from ..records import NODE, Origin
from .calls import FactsOf, TorchCall, calls_of
from .storage import Storages


@dataclass(frozen=True, slots=True)
class Alive:
    """Memory that was in use at some moment: the operation it came from, and whether only autograd sees it."""

    label: str
    bytes: int
    is_hidden: bool = False  # saved for backward inside the function: a mask, indices, statistics

    def __repr__(self) -> str:
        return f"{self.label}{' (for backward)' if self.is_hidden else ''}: {human_size(self.bytes)}"


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """Bytes in use over a pass.

    `live` has one number for each of `history.operations`: the bytes in use when that operation has just finished, its
    arguments included. `peak` is the most of it, over everything that ran, and `at_peak` what was alive then, largest first.
    """

    live: tuple[int, ...]
    peak: int
    peak_operation: str | None
    at_peak: tuple[Alive, ...]
    saved_for_backward: int  # bytes that autograd keeps when the pass is over; also what is in use for other reasons
    states: int  # bytes of the parameters and buffers that were used
    unknown: Counter[str]  # functions for which it is unknown what autograd keeps; counted as nothing

    def __repr__(self) -> str:
        lines = [f"Peak {human_size(self.peak)} at {self.peak_operation}, of which the largest:"]
        lines += [f"\t{one!r}" for one in self.at_peak[:8]]
        lines.append(
            f"Kept for backward: {human_size(self.saved_for_backward)}; parameters and buffers: {human_size(self.states)}"
        )
        return "\n".join(lines)


def memory_of(history: History) -> MemoryTimeline:
    """The bytes in use over a pass, its peak, and what was alive then.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 100), torch.nn.Linear(100, 2))
    >>> with torch.no_grad():
    ...     history = torcheer.log_forward_pass(model, torch.ones(1, 4))
    >>> memory = memory_of(history)
    >>> memory.live
    (16, 416, 424, 24)
    >>> memory.peak_operation
    'linear_2_2'

    The model behind the numbers is described in docs/cost.md.
    """
    return _Lives(history._index).timeline()


class _Lives:
    """When each tensor of a log is born and dies."""

    def __init__(self, index: Index) -> None:
        log = index.log
        self.index, self.log, self.length = index, log, index.length
        self.facts = FactsOf(log)
        self.storages = Storages(log, self.facts, self.length)
        self.unknown: Counter[str] = Counter()
        self.saved: dict[int, Saved] = {}  # by first operation of the call
        self.calls = list(calls_of(log, self.facts, self.length))
        self.end = self.length - 1
        self.last = self._last_uses()
        self.node_end = self._note_nodes()

    def _last_uses(self) -> list[int]:
        """By operation: the last operation during which its tensor is held by the program."""
        last = list(range(self.length))
        for call in self.calls:
            for parent in call.parents:
                if parent >= 0:
                    last[parent] = max(last[parent], call.numbers[-1])
            if call.function.origin in (Origin.INPUT, Origin.SOURCE, Origin.OUTPUT):
                for number in (*call.numbers, *(p for p in call.parents if p >= 0)):
                    last[number] = self.end
        for module in self.log.modules:
            until = (module.end if module.end >= 0 else self.length) - 1
            for number in module.inputs:
                if 0 <= number < self.length:
                    last[number] = max(last[number], until)
        return last

    def _note_nodes(self) -> list[int]:
        """By operation: the last operation during which its autograd node is alive; -1 for none."""
        rows = self.log.rows
        ends = [-1] * self.length
        for call in reversed(self.calls):
            for number in call.numbers:
                if rows[number][NODE] is not None:
                    ends[number] = max(ends[number], self.last[number])
            end = max(ends[number] for number in call.numbers)
            if end < 0:
                continue
            for number in call.numbers:
                ends[number] = max(ends[number], end) if rows[number][NODE] is not None else -1
            for parent in call.parents:
                if parent >= 0 and rows[parent][NODE] is not None:
                    ends[parent] = max(ends[parent], end)
        return ends

    def timeline(self) -> MemoryTimeline:
        deaths = self._deaths()
        change = [0] * (self.length + 1)
        hidden: list[tuple[int, int, int]] = []  # operation, bytes, death
        for call in self.calls:
            saved = self.saved.get(call.numbers[0])
            if saved is not None and saved.hidden:
                hidden.append((call.numbers[0], saved.hidden, self._node_end(call)))
        births = [(n, self.facts.bytes(n), deaths[n]) for n in range(self.length) if self.storages.is_fresh(n)]
        for number, size, death in (*births, *hidden):
            change[number] += size
            change[death + 1] -= size
        everything = list(accumulate(change[: self.length]))
        at = max(range(self.length), key=everything.__getitem__, default=None)
        live = tuple(everything[number] for number in self.index.operations)
        alive = [] if at is None else [*self._alive(births, at, False), *self._alive(hidden, at, True)]
        return MemoryTimeline(
            live,
            everything[at] if at is not None else 0,
            self._label(at) if at is not None else None,
            tuple(sorted(alive, key=lambda one: -one.bytes)),
            self._kept(hidden),
            sum(self.facts.bytes(state.number) for state in self.log.states),
            self.unknown,
        )

    def _alive(self, lives: Sequence[tuple[int, int, int]], at: int, is_hidden: bool) -> list[Alive]:
        return [Alive(self._label(n), size, is_hidden) for n, size, death in lives if n <= at <= death and size]

    def _label(self, number: int) -> str:
        if self.index.table.shows(number):
            return self.index.label(number)
        return f"({self.log.operations[number].function.name})"  # not shown, so without a label

    def _node_end(self, call: TorchCall) -> int:
        return max(self.node_end[number] for number in call.numbers)

    def _deaths(self) -> dict[int, int]:
        """By root: the last operation during which that memory is in use."""
        roots = self.storages.roots
        deaths: dict[int, int] = {}
        for number, root in enumerate(roots):
            if root >= 0:
                deaths[root] = max(deaths.get(root, root), self.last[number])
        for call in self.calls:
            if call.node is None or call.function.func is None:
                continue
            saved = saved_by(call, self.storages)
            if saved is None or (saved.hidden and not call.has_known_shapes):
                self.unknown[call.name] += 1
                continue
            self.saved[call.numbers[0]] = saved
            end = self._node_end(call)
            for root in self._saved_roots(call, saved):
                deaths[root] = max(deaths[root], end)
        return deaths

    def _saved_roots(self, call: TorchCall, saved: Saved) -> list[int]:
        numbers = [call.parents[slot] for slot in saved.slots] + [call.numbers[position] for position in saved.results]
        return [root for root in map(self.storages.root, numbers) if root >= 0]

    def _kept(self, hidden: Sequence[tuple[int, int, int]]) -> int:
        roots: set[int] = set()
        for call in self.calls:
            saved = self.saved.get(call.numbers[0])
            if saved is not None and self._node_end(call) == self.end:
                roots.update(self._saved_roots(call, saved))
        return sum(map(self.facts.bytes, roots)) + sum(size for _, size, death in hidden if death == self.end)
