"""Computes which tensors of a log share memory (`Storages`), and how much memory is in use over a pass (`memory_of`).

Tensors share memory if they are views, in-place results, or results of functions that copy only sometimes (`reshape`,
`contiguous`, `to`). Views are known from torch's schemas. Whether `reshape` copied depends on strides, which a log does not
hold: they are read from kept activations, else computed by running the views on meta tensors. A tensor that is no view is
assumed to be contiguous, except that most elementwise results have the layout of their first argument of the same shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._text import human_size
from .._torch.containers import get_path
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.functions.saved_for_backward import Saved, saved_by
from .._torch.internals import DisableTorchFunction, storage_address
from .._torch.shapes import contiguous_strides
from ..log.records import NAMES, NODE, TEMPLATE, Log
from ..log.run import HoldsRun, Index, run_of
from ..log.templates import fill_call
from .calls import FactsOf, TorchCall, calls_of

Strides = tuple[int, ...]

_LAID_OUT_LIKE = groups.DROPOUTS | {"gelu", "clone", "scaled_dot_product_attention"}
_LAID_OUT_AFRESH = frozenset({"masked_fill", "mvlgamma"})  # elementwise functions whose result is always contiguous
_LAID_OUT_AS_ASKED = groups.CONVERSIONS | {"clone", "contiguous"}
_RANKS = {torch.channels_last: 4, torch.channels_last_3d: 5}


class Storages:
    """Tells which operations of a log share memory.

    `roots[n]` is the operation that first used the memory of operation `n`; a negative number is a parameter or a buffer.
    """

    def __init__(self, log: Log, facts: FactsOf, length: int) -> None:
        self._log = log
        self._facts = facts
        self._strides: dict[int, Strides] = {}  # only for tensors that are not contiguous
        self.roots: list[int] = []
        with DisableTorchFunction(), torch.no_grad():
            for call in calls_of(log, facts, length):
                for number in call.numbers:
                    slot = self._shared(call, number)
                    base = call.parents[slot] if slot is not None and slot < len(call.parents) else None
                    self.roots.append(number if base is None else self.root(base))
                    self._note_strides(call, number, base)

    def root(self, number: int) -> int:
        return self.roots[number] if number >= 0 else number

    def is_fresh(self, number: int) -> bool:
        """True if an operation's tensor has new memory: it is no view, and not written in place."""
        return self.roots[number] == number

    def strides(self, number: int) -> Strides:
        """The strides of a tensor: computed or read from its kept activation, else those of a contiguous tensor."""
        if number < 0:
            state = self._log.states[-1 - number].tensor
            return tuple(state.stride()) if state.layout is torch.strided else ()
        return self._strides.get(number) or contiguous_strides(self._facts.of(number)[0])

    def reshapes_freely(self, number: int, shape: tuple[int, ...]) -> bool:
        """True if a tensor can be reshaped to `shape` without a copy."""
        if number >= 0 and number not in self._strides:
            return True
        with DisableTorchFunction(), torch.no_grad():
            tensor = self._meta(number)
            try:
                return storage_address(tensor.reshape(shape)) == storage_address(tensor)
            except RuntimeError:  # shapes do not match: a saved file may contain anything
                return False

    def _shared(self, call: TorchCall, number: int) -> int | None:
        """The slot of the argument that a result shares its memory with."""
        function = call.function
        if function.origin is not Origin.OPERATION:
            return 0 if function.origin in (Origin.ALIAS, Origin.OUTPUT, Origin.INPUT) else None
        record = self._log.operations[number]
        if record.overwritten is not None:
            return record.overwritten
        name, parents = call.name, call.parents
        if not parents:
            return None
        if name == "getitem":
            return 0 if self._is_basic(call) else None
        if name in groups.CONVERSIONS:
            same = self._facts.of(number)[1:] == self._facts.of(parents[0])[1:]
            return 0 if same and not call.value(-1, "copy") and self._has_format(parents[0], _format(call)) else None
        if name == "contiguous":
            return 0 if self._has_format(parents[0], _format(call)) else None
        if name in groups.RESHAPES:
            return 0 if self.reshapes_freely(parents[0], self._facts.of(number)[0]) else None
        if name in groups.DROPOUTS:  # returns its argument if there is nothing to drop
            training = call.value(2, "training", call.value(2, "train"))
            return None if call.value(1, "p", 0.5) and training else 0
        if name in groups.ONE_FOR_EACH:
            return number - call.numbers[0]
        return 0 if function.is_view else None

    def _has_format(self, number: int, layout: torch.memory_format) -> bool:
        """True if a tensor has this memory format, so that converting it copies nothing. Ignores dimensions of size 1."""
        if layout is torch.preserve_format:
            return True
        is_plain = number >= 0 and number not in self._strides and layout is torch.contiguous_format
        return is_plain or self._meta(number).is_contiguous(memory_format=layout)

    def _is_basic(self, call: TorchCall) -> bool:
        """True if indexing makes a view: the index has no lists, masks or tensors of indices."""
        index = call.args[1] if len(call.args) > 1 else None
        items = index if type(index) is tuple else (index,)
        for item in items:
            if item is None or item is ... or type(item) in (int, slice):
                continue
            shape, dtype = getattr(item, "shape", None), getattr(item, "dtype", None)
            if shape != () or dtype is torch.bool:
                return False
        return True

    # Layout ---------------------------------------------------------------------------------------------------------

    def _note_strides(self, call: TorchCall, number: int, base: int | None) -> None:
        shape = self._facts.of(number)[0]
        if min(shape, default=0) < 0 or not shape:
            return
        found: Strides | None
        if base is None:
            found = self._kept_strides(number, shape) or self._inherited(call, shape)
        elif self._facts.of(base)[0] == shape and self._log.operations[number].overwritten is not None:
            found = self.strides(base)
        else:
            found = self._viewed(call, number)
        if (
            found is not None and len(found) == len(shape) and found != contiguous_strides(shape)
        ):  # a transform hides dimensions
            self._strides[number] = found

    def _kept_strides(self, number: int, shape: tuple[int, ...]) -> Strides | None:
        value = self._log.values[number]
        if isinstance(value, Tensor) and self._log.holds_tensors and value.layout is torch.strided and value.shape == shape:
            return tuple(value.stride())
        return None

    def _inherited(self, call: TorchCall, shape: tuple[int, ...]) -> Strides | None:
        layout = _format(call) if call.name in _LAID_OUT_AS_ASKED else torch.preserve_format
        if layout is not torch.preserve_format:
            rank = _RANKS.get(layout, len(shape))  # a transform hides dimensions
            return tuple(torch.empty(shape, device="meta", memory_format=layout).stride()) if rank == len(shape) else None
        is_elementwise = call.function.is_elementwise and call.name not in _LAID_OUT_AFRESH
        if is_elementwise or call.name in _LAID_OUT_LIKE:
            for parent in call.parents:
                if self._facts.of(parent)[0] == shape:
                    is_plain = parent >= 0 and parent not in self._strides
                    return None if is_plain else tuple(torch.empty_like(self._meta(parent)).stride())
        return None

    def _viewed(self, call: TorchCall, number: int) -> Strides | None:
        """The strides of a view, computed by making the same view of a meta tensor."""
        func = call.function.func
        if func is None or call.name in groups.DROPOUTS or call.name in groups.CONVERSIONS:
            parent = call.parents[0]
            return self.strides(parent) if self._facts.of(parent)[0] == call.shape else None
        row = self._log.rows[number]
        tensors = (self._meta(parent) for parent in call.parents)
        try:
            args, kwargs = fill_call(row[TEMPLATE], row[NAMES], tensors)
            result = func(*args, **kwargs)
            view = get_path(result, self._log.operations[number].details.output_path)
        except Exception as error:  # functions may raise anything on meta tensors
            pass_interrupts_on(error)
            return None
        return tuple(view.stride()) if isinstance(view, Tensor) and view.layout is torch.strided else None

    def _meta(self, number: int) -> Tensor:
        shape, dtype, _ = self._facts.of(number)
        if not shape and not dtype.is_floating_point and not dtype.is_complex:
            return torch.zeros((), dtype=dtype, device="cpu")  # may be used as an index, which needs a value
        return torch.empty_strided(shape, self.strides(number), dtype=dtype, device="meta")


def _format(call: TorchCall) -> torch.memory_format:
    """The `memory_format` argument of a call."""
    is_contiguous = call.name == "contiguous"
    default = torch.contiguous_format if is_contiguous else torch.preserve_format
    asked: torch.memory_format = call.value(1 if is_contiguous else -1, "memory_format", default)
    return asked


# Memory over a pass, from the log alone: when each tensor is alive, the peak, and the tensors alive at the peak.
#
# The assumptions. Tensors that share memory count once, with the bytes of the first. A tensor's life begins with its
# operation and ends with the latest of these:
#
# - its last use as an argument, or the end of the last module call that received it (the call holds its arguments);
# - the end of the pass, for inputs, sources and outputs;
# - the life of an autograd node that saved it; a node lives as long as the tensor it belongs to and all nodes that refer to
#   it.
#
# Not counted: parameters and buffers (see `MemoryTimeline.states`), memory that a kernel needs only while it runs, and
# tensors that a local variable of `forward` holds beyond their last use. So the timeline is a lower bound.


@dataclass(frozen=True, slots=True)
class Alive:
    """Memory that was in use at the peak, and the operation that allocated it. `is_hidden`: only autograd refers to it."""

    label: str
    bytes: int
    is_hidden: bool = False  # saved for backward inside the function: a mask, indices, statistics

    def __repr__(self) -> str:
        return f"{self.label}{' (for backward)' if self.is_hidden else ''}: {human_size(self.bytes)}"


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """How many bytes are in use during a pass.

    `live` has one number for each of `history.operations`: the bytes in use when that operation has just finished, including
    its arguments. `peak` is the maximum over all operations, orphans included; `at_peak` lists the memory in use then, largest
    first.
    """

    live: tuple[int, ...]
    peak: int
    peak_operation: str | None
    at_peak: tuple[Alive, ...]
    saved_for_backward: int  # bytes that autograd keeps after the pass, including tensors that are alive for other reasons too
    states: int  # bytes of the parameters and buffers that were used
    unknown: Counter[str]  # function -> number of calls of which it is unknown what autograd saves; they count as 0 bytes

    def __repr__(self) -> str:
        lines = [f"Peak {human_size(self.peak)} at {self.peak_operation}, of which the largest:"]
        lines += [f"\t{one!r}" for one in self.at_peak[:8]]
        lines.append(
            f"Kept for backward: {human_size(self.saved_for_backward)}; parameters and buffers: {human_size(self.states)}"
        )
        return "\n".join(lines)


def memory_of(history: HoldsRun) -> MemoryTimeline:
    """The bytes in use over a pass, the peak, and the tensors alive at the peak.

    >>> import torch, torcheer
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 100), torch.nn.Linear(100, 2))
    >>> with torch.no_grad():
    ...     history = torcheer.log_forward_pass(model, torch.ones(1, 4))
    >>> memory = memory_of(history)
    >>> memory.live
    (16, 416, 424, 24)
    >>> memory.peak_operation
    'linear_2_2'

    docs/cost.md describes the assumptions behind these numbers.
    """
    return _Lives(run_of(history).index).timeline()


class _Lives:
    """Computes the first and last operation during which each tensor of a log is alive."""

    def __init__(self, index: Index) -> None:
        log = index.log
        self.index, self.log, self.length = index, log, index.length
        self.facts = FactsOf(log)
        self.storages = Storages(log, self.facts, self.length)
        self.unknown: Counter[str] = Counter()
        self.saved: dict[int, Saved] = {}  # first operation of a call -> what autograd saves of the call
        self.calls = list(calls_of(log, self.facts, self.length))
        self.end = self.length - 1
        self.last = self._last_uses()
        self.node_end = self._note_nodes()

    def _last_uses(self) -> list[int]:
        """Return for each operation the last operation during which the program still holds the first operation's tensor."""
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
        """For each operation: the last operation during which its autograd node is alive; -1 if it has no node."""
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
        hidden: list[tuple[int, int, int]] = []  # (operation, bytes, last operation during which the bytes are in use)
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
        return f"({self.log.operations[number].function.name})"  # an operation that is not shown has no label

    def _node_end(self, call: TorchCall) -> int:
        return max(self.node_end[number] for number in call.numbers)

    def _deaths(self) -> dict[int, int]:
        """For each root (see `Storages`): the last operation during which the root's memory is in use."""
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
