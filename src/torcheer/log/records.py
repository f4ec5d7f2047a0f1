"""The records that capture writes, and `Log`, which holds them.

In this order: `ModuleCall` and `RegisteredModule`; `States`, the parameters and buffers that operations read; `BackwardLog`,
the backward passes with their nodes and gradients; `OperationRecord`, `PythonReadRecord` and `Failure`; and `Log` itself.

A log stores operations in columns (`rows`, `values`, `versions`, `details`). An `OperationRecord` is a view of one row, made on
access. Labels, layers and children are not stored here: `labels.py`, `layers.py` and `index.py` derive them from a log.
"""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, TypeVar, overload

import torch
from torch import Tensor
from torch.nn import Parameter

from .._torch.containers import format_path
from .._torch.functions import Origin, TorchFunction
from .._torch.internals import DisableTorchFunction, address_of, storage_use_count, write_count
from .._torch.memory import FREED, has_memory, is_freed
from .._torch.samples import Marks
from .._torch.sentinels import Sign
from .._torch.shapes import elements_of, shape_of
from .._torch.source_code import CodeTable, Site, source_of

Record = TypeVar("Record")


class Views(Sequence[Record]):
    """A sequence over columns of data. A record is a view of one row of the columns, made on access."""

    __slots__ = ()

    @abstractmethod
    def _view(self, place: int) -> Record:
        """Make the record of the row at a place."""

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> list[Record]: ...
    def __getitem__(self, place: int | slice) -> Record | list[Record]:
        if isinstance(place, slice):
            return [self._view(n) for n in range(*place.indices(len(self)))]
        return self._view(place)

    def __iter__(self) -> Iterator[Record]:
        return (self._view(place) for place in range(len(self)))


# Records modules: the modules that the model registers, and the calls of modules.


@dataclass(slots=True, eq=False)
class ModuleCall:
    """One call of a module. Operations `first <= n < end` ran inside it."""

    number: int
    address: str
    class_name: str
    call: int  # 1 for the first call of this module
    outer: ModuleCall | None
    site: Site | None
    training: bool
    first: int
    args: tuple[Any, ...] = ()  # an outline (see templates.py) of all arguments, keyword arguments last
    # the names of the keyword arguments; then the numbers of the tensors that the call received and returned
    names: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    end: int = -1
    exit: int = 0  # calls are numbered from 1 in the order in which they end; 0 while the call runs
    started: int = 0
    elapsed: int = 0

    def stack(self) -> tuple[ModuleCall, ...]:
        """This call and the calls around it, outermost first."""
        chain: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            chain.append(call)
            call = call.outer
        return tuple(reversed(chain))

    @property
    def is_nested(self) -> bool:
        """True if this call runs inside another call of the same module."""
        return any(outer.address == self.address for outer in self.stack()[:-1])


@dataclass(frozen=True, slots=True)
class ClassNames:
    """Stands for a module's class in a saved history: the qualified names of the class and of its base classes."""

    names: tuple[str, ...]

    @property
    def __name__(self) -> str:
        return self.names[0].rpartition(".")[2]

    @classmethod
    def of(cls, known: type | ClassNames) -> ClassNames:
        if isinstance(known, ClassNames):
            return known
        return cls(tuple([f"{one.__module__}.{one.__qualname__}" for one in known.__mro__[:-1]]))


def is_kind_of(known: type | ClassNames, wanted: type) -> bool:
    """True if class `known` is `wanted` or a subclass of it. Classes of a saved history are compared by name."""
    if isinstance(known, ClassNames):
        return f"{wanted.__module__}.{wanted.__qualname__}" in known.names
    return issubclass(known, wanted)


@dataclass(slots=True, eq=False)
class RegisteredModule:
    """A module as the model registers it, called or not."""

    address: str
    class_name: str
    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    is_root: bool
    cls: type | ClassNames
    other_addresses: tuple[str, ...] = ()
    calls: int = 0
    # True for a module that no model registers and that was found when it was called, as in `nn.ReLU()(x)`. Capture invents
    # its address.
    is_made_running: bool = False

    def full_name(self, name: str) -> str:
        """The name of this module's parameter or buffer `name` in the whole model: `features.0.weight`."""
        return f"{self.address}.{name}" if self.address else name


# Records parameters and buffers that operations read. They are the model's own tensors and may change after the recording.

_is_near: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
_BESIDE: Final = 8  # for a tensor that is compared by a sample only, `may_be_changed` checks this many tensors of the same kind


@dataclass(slots=True, eq=False)
class AbsentTensor:
    """Stands for a parameter or buffer of a saved history whose values are not in the file.

    It has a tensor's attributes for shape, dtype and device. If the history is loaded with `model=`, the model's tensor
    replaces it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_parameter: bool
    layout: torch.layout = torch.strided
    fingerprint: str = ""  # hash of its values (store/log_parts.py); empty if the values were gone when the history was saved
    is_uninitialized: bool = False  # True for a parameter of a lazy module that did not run

    @property
    def is_nested(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return elements_of(self.shape)


def is_parameter(tensor: Any) -> bool:
    """True for a parameter, False for a buffer. Also accepts an `AbsentTensor`."""
    return bool(tensor.is_parameter) if type(tensor) is AbsentTensor else isinstance(tensor, Parameter)


class StateRecord:
    """A parameter or buffer that an operation read. `tensor` is the model's own tensor, not a copy."""

    __slots__ = ("_states", "number", "tensor")

    def __init__(self, states: States, place: int) -> None:
        self._states = states
        self.tensor = states.tensors[place]
        self.number = -1 - place

    @property
    def before(self) -> torch.Tensor | None:
        """If the recording overwrote the tensor and did not restore it, the value before the recording; else None."""
        return self._states.before.get(self.number)

    @property
    def is_changed(self) -> bool:
        """True if the value is certainly not the one that operations read: the tensor was written to, or has other memory."""
        return self.before is None and self._states.is_changed(-1 - self.number)

    @property
    def may_be_changed(self) -> bool:
        """True if the value may differ: only a sample is compared, and similar tensors changed without a counted write."""
        return self.before is None and self._states.may_be_changed(-1 - self.number)

    @property
    def value(self) -> torch.Tensor:
        """The value that the operations read; an `AbsentTensor` if `is_absent`."""
        before = self.before
        return self.tensor if before is None else before

    @property
    def is_absent(self) -> bool:
        """True if the values are unknown: the history was saved without them and loaded without a model."""
        value: Any = self.value
        return type(value) is AbsentTensor

    @property
    def is_parameter(self) -> bool:
        return is_parameter(self.tensor)


class States(Views[StateRecord]):
    """The parameters and buffers that operations read, in the order of first use."""

    __slots__ = ("_marks", "before", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Any] = []  # tensors; in a saved history also `AbsentTensor`s
        self.before: dict[int, torch.Tensor] = {}  # by (negative) number: the value before the recording, if it is lost
        self._marks: Marks | None = None  # versions and samples at the end of the recording, to detect later changes

    def __len__(self) -> int:
        return len(self.tensors)

    def _view(self, place: int) -> StateRecord:
        return StateRecord(self, place)

    def mark(self) -> None:
        """Called when the recording ends: remember versions and samples, so that later changes can be detected."""
        is_near = all(map(_is_near, self.tensors))
        sampled = () if is_near else {place for kind in self._kinds().values() for place in _spread(kind)}
        self._marks = Marks(self.tensors, sampled)

    def is_changed(self, place: int) -> bool:
        """True if, since the recording, torch counted a write, or the memory or a sample of the elements is different."""
        return self._marks is not None and bool(self._changes(self._marks, [place])[0])

    def may_be_changed(self, place: int) -> bool:
        """True if elements outside the compared sample may have changed, because tensors of the same kind did.

        A fused optimizer changes all its parameters without a counted write; in an embedding it changes only the rows that
        were used, which the sample may miss.
        """
        marks = self._marks
        if marks is None or marks.is_whole(place):
            return False
        kind = _kind(self.tensors[place])
        if kind == "frozen" or (kind == "buffer" and marks.samples[place] is not None):
            return False
        sampled = [other for other in self._kinds()[kind] if marks.samples[other] is not None]
        beside = sorted(sampled, key=lambda other: abs(other - place))[:_BESIDE]
        return "uncounted" in self._changes(marks, beside)

    def _changes(self, before: Marks, places: list[int]) -> list[str]:
        """Say how the state at each place changed: `"counted"` if torch counted a write, else `"uncounted"`; `""` if not."""
        now = Marks([self.tensors[place] for place in places], range(len(places)))
        found = []
        for its_place, place in enumerate(places):
            is_same = before.is_same_sample(place, now, its_place)
            is_counted = before.is_counted(place, now, its_place, self.tensors[place])
            found.append("counted" if is_counted else "" if is_same else "uncounted")
        return found

    def _kinds(self) -> dict[str, list[int]]:
        """The places of `"trainable"` parameters, `"frozen"` parameters and `"buffer"`s."""
        found: dict[str, list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            found.setdefault(_kind(tensor), []).append(place)
        return found

    def __copy__(self) -> States:
        new = States()
        new.tensors, new.before, new._marks = list(self.tensors), dict(self.before), self._marks
        return new


def _kind(tensor: torch.Tensor) -> str:
    if not is_parameter(tensor):
        return "buffer"
    return "trainable" if tensor.requires_grad else "frozen"


def _spread(places: list[int]) -> list[int]:
    """Choose at most `_BESIDE` of these places, evenly spaced."""
    return places[:: -(-len(places) // _BESIDE)]


# Records backward passes: the autograd nodes that ran, and the gradients.

Shapes = tuple[tuple[int, ...] | None, ...]


@dataclass(slots=True, eq=False)
class NodeRecord:
    """One autograd node that ran in a backward pass.

    Its role is one of: `result`, the `grad_fn` of an operation's tensor; `inside`, another node that the operation created;
    `derivative`, a node that an operation's backward created; `accumulation`, it accumulates the gradient of a parameter
    or an input; `other`, it belongs to no recorded operation.
    """

    name: str
    role: str
    operation: int  # negative for a parameter; -1 with the role `other`: no operation
    started: int
    given: Shapes  # shapes of the gradients that the node received
    made: Shapes  # shapes of the gradients that the node computed
    _span: int = 0
    inner: tuple[NodeRecord, ...] = ()  # nodes that ran inside this node, in a nested backward pass
    node: int = -1  # the node's number: the same in every run of one node
    onward: tuple[int, ...] = ()  # numbers of the nodes that receive its gradients, as in autograd's `next_functions`
    tensors: tuple[int, ...] = ()  # operations whose tensors have this `grad_fn`: several if a call returned its argument
    is_device_time: bool = False
    _events: tuple[Any, Any] | None = None  # CUDA events before and after the node, until `span` reads them

    def time_by(self, before: Any, after: Any) -> None:
        """Measure the time between two device events, which may not have happened yet."""
        self.is_device_time, self._events = True, (before, after)

    @property
    def span(self) -> int:
        """Nanoseconds from begin to end. Waits for the device if it has not finished."""
        if self._events is not None:
            before, after = self._events
            after.synchronize()
            self._span, self._events = int(before.elapsed_time(after) * 1e6), None
        return self._span

    @property
    def elapsed(self) -> int:
        """Nanoseconds of the node itself, without nodes that ran inside it."""
        return max(0, self.span - sum(one.span for one in self.inner)) if self.inner else self.span


@dataclass(slots=True, eq=False)
class BackwardRecord:
    """One backward pass: the nodes that ran, and the gradients by operation number (parameters: negative)."""

    task: int  # torch's number of the graph task
    nodes: list[NodeRecord] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    summed: dict[int, Tensor] = field(default_factory=dict)  # at nodes where the pass may end: used if the node does not run
    accumulated: set[int] = field(default_factory=set)  # leaves whose accumulation node ran
    scale: Tensor | None = None  # the factor by which a gradient scaler multiplied the loss
    is_complete: bool = False
    inner: set[int] = field(default_factory=set)  # torch's numbers of the backward passes that ran inside nodes of this pass

    def gradient(self, number: int) -> Tensor | None:
        """The gradient of an operation's tensor or of a parameter; None if it was not kept or its memory was freed."""
        found = self.gradients.get(number)
        gradient = found if found is not None else self.summed.get(number)
        return gradient if gradient is not None and has_memory(gradient) else None

    def let_go(self) -> None:
        """Copy each kept gradient that shares memory with outside tensors. Until this call, kept gradients are aliases."""
        kept = [(found, number) for found in (self.gradients, self.summed) for number in found]
        memory = {id(tensor): _memory(tensor) for found, number in kept for tensor in (found[number],)}
        own = Counter(memory.values())
        alone = torch.empty(0, device="cpu")
        besides = _uses(_memory(alone)) - 1  # counting the uses of memory may itself count as a use
        for found, number in kept:
            address = memory[id(found[number])]
            if not has_memory(found[number]):
                del found[number]
            elif address is None or _uses(address) > own[address] + besides:
                found[number] = found[number].clone()


def _uses(address: int | None) -> int:
    """How many tensors use this memory, kept gradients included."""
    return storage_use_count(address) if address is not None else 0


def _memory(tensor: Tensor) -> int | None:
    """The address of the tensor's storage; None if the tensor has no single storage (sparse tensors)."""
    try:
        return address_of(tensor.untyped_storage())
    except RuntimeError:
        return None


class BackwardLog:
    """The backward passes of a recording. Autograd hooks refer to it weakly."""

    def __init__(self) -> None:
        self.scale: Tensor | None = None  # the factor by which a gradient scaler multiplied the loss of the next pass
        self.on_device = False  # True: nodes that run on an accelerator are timed by device events
        self.running: dict[int, Any] = {}  # thread id -> the node that runs now, if it may run a nested backward pass
        self.pinned: list[Any] = []  # autograd nodes kept alive here, so that their hooks live on
        self.latest: BackwardRecord | None = None
        self.left_behind: Any = None  # state at the end of the forward pass, which backward needs (`LeftBehind`)
        self.begins_outside = False  # True if the running backward pass begins at a parameter or an input
        self.is_copy = False  # True for a copy, to which no hook adds passes
        self._begun: list[BackwardRecord] = []
        self.wanted: set[int] | None = None  # the operations whose gradients are kept; None: all

    @property
    def passes(self) -> list[BackwardRecord]:
        """The backward passes in which a node ran."""
        return [one for one in self._begun if one.nodes]

    def wants(self, number: int) -> bool:
        """True if the gradient of this operation is kept. Gradients of parameters (negative numbers) are always kept."""
        return self.wanted is None or number < 0 or number in self.wanted

    def only(self, numbers: set[int]) -> None:
        """Keep the gradients of these operations, and release all others."""
        self.wanted = numbers
        for one in self._begun:
            for gradients in (one.gradients, one.summed):
                for number in [n for n in gradients if not self.wants(n)]:
                    del gradients[number]

    def clear(self) -> None:
        """Release every gradient."""
        for one in self._begun:
            one.gradients.clear()
            one.summed.clear()

    def copy(self) -> BackwardLog:
        """Copy the passes and their gradients. No hook adds passes to the copy."""
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
        """Make a log of the backward passes of a saved history. No hook adds to it."""
        new = cls()
        new._begun, new.wanted = passes, wanted
        return new

    def known(self, task: int) -> BackwardRecord | None:
        """The pass with torch's number `task`, or the pass around it if `task` runs inside a node."""
        for one in reversed(self._begun):
            if one.task == task or task in one.inner:
                return one
        return None

    def begin(self, task: int) -> BackwardRecord:
        """Add and return a new pass."""
        self.latest = BackwardRecord(task, scale=self.scale)
        self._begun.append(self.latest)
        return self.latest


# Operations. One `OperationRecord` is one tensor: made by a call, or given to the model. Records refer to tensors by number:
# `n >= 0` is `log.operations[n]`, `n < 0` is `log.states[-1 - n]` (a parameter or a buffer).

UNSAVED: Final = Sign("<not saved>")  # in `Log.values`: no activation was kept
LOST: Final = -2  # in `Log.versions`: unwatched code may have overwritten the kept tensor, so it is never returned
OVERWRITTEN: Final = -3  # in `Log.versions`: torch's version counter shows that unwatched code overwrote the kept tensor


@dataclass(slots=True, eq=False)
class Composite:
    """One call of a torch function whose inner operations were recorded, such as `F.multi_head_attention_forward`."""

    name: str
    number: int
    outer: Composite | None


@dataclass(slots=True, eq=False)
class Held:
    """The value of an argument. It is kept separately, because the record of the argument's tensor holds an older value."""

    value: Any
    version: int


@dataclass(slots=True, eq=False)
class Details:
    """Facts that few operations have, and that are therefore not in every row.

    `also`: operations that wrote to an argument's memory through another view. `mutated`: the argument slots that the call
    wrote to. `held`: by slot, the arguments whose values no record holds. `home`: if an input is a view of a parameter or
    buffer, the (negative) number of the parameter or buffer, and the offset in elements; if an alias reaches beyond its input
    or source, the number of that input or source, and the offset.
    """

    call: int = -1  # if the call made several tensors: the number of the first
    output_path: tuple[Any, ...] = ()
    also: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    composite: Composite | None = None
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    held: dict[int, Held] | None = None
    home: tuple[int, int] | None = None
    is_collective: bool = False  # a collective ran inside the call, as DTensor operations do
    is_hooked: bool = False  # the tensor is a gradient, and backward hooks, which the graph does not show, may have changed it
    is_no_grad: bool = False  # the call wrote in place, with gradients off, to a tensor that requires gradients
    is_foreign: bool = False  # torch did not allocate the tensor's memory (a NumPy array did), so the program may read it
    is_through_unseen: bool = False  # the tensor is a gradient that went backward through code that is not in the log
    changed: str = ""  # the change that an intervention made to this value, in words
    is_passing: bool = False  # the tensor is a source that code which cannot be watched made during the pass
    is_transformed: bool = False  # the call ran inside a `torch.func` transform, on tensors that exist only there


_ORDINARY: Final = Details()


# A row has, in this order: the number of the operation's function in `log.functions`; a template of
# its arguments; the names of the keyword arguments, which come last in the template; the numbers of its module call and of its
# site (-1: none); start and duration in nanoseconds; the name of the autograd node; shape, dtype and device (None: read them
# from the kept tensor); then one number per parent. Rows are plain tuples of plain values because the garbage collector does
# not track these, and a log of a million operations is mostly rows.
Row = tuple[Any, ...]
FUNCTION, TEMPLATE, NAMES, MODULE, SITE, STARTED, ELAPSED, NODE, FACTS, PARENTS = range(10)
Facts = tuple[tuple[int, ...], torch.dtype, torch.device]  # shape, dtype, device


class OperationRecord:
    """One tensor, and the call that made it: a view of one row of a log.

    `parents` has one number for each `TENSOR` in the templates `args` and `kwargs`, in order. A call that returns three
    tensors is three records with the same `call`, told apart by `output_path`.
    """

    __slots__ = ("_row", "log", "number")

    def __init__(self, log: Log, number: int) -> None:
        self.log = log
        self.number = number
        self._row = log.rows[number]

    @property
    def function(self) -> TorchFunction:
        return self.log.functions[self._row[FUNCTION]]

    @property
    def template(self) -> tuple[Any, ...]:
        """All arguments in order, keyword arguments last, with `TENSOR` in place of each tensor."""
        template: tuple[Any, ...] = self._row[TEMPLATE]
        return template

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the keyword arguments, which are the last items of the template."""
        names: tuple[str, ...] = self._row[NAMES]
        return names

    @property
    def args(self) -> tuple[Any, ...]:
        return self.template[: len(self.template) - len(self.names)]

    @property
    def kwargs(self) -> dict[str, Any]:
        return dict(zip(self.names, self.template[len(self.template) - len(self.names) :], strict=True))

    @property
    def parents(self) -> tuple[int, ...]:
        return self._row[PARENTS:]

    @property
    def module(self) -> ModuleCall | None:
        number = self._row[MODULE]
        return self.log.modules[number] if number >= 0 else None

    @property
    def site(self) -> Site | None:
        number = self._row[SITE]
        return self.log.sites[number] if number >= 0 else None

    @property
    def started(self) -> int:
        started: int = self._row[STARTED]
        return started

    @property
    def elapsed(self) -> int:
        elapsed: int = self._row[ELAPSED]
        return elapsed

    @property
    def is_timed(self) -> bool:
        """True if the duration is known: False for code that cannot be watched."""
        return self.function.origin is not Origin.OPAQUE

    @property
    def gradfunc(self) -> str | None:
        node: str | None = self._row[NODE]
        return node

    @property
    def facts(self) -> Facts:
        """The shape, dtype and device of the tensor."""
        facts: Facts | None = self._row[FACTS]
        if facts is None:
            with DisableTorchFunction():
                facts = facts_of(self.log.values[self.number])
        return facts

    @property
    def shape(self) -> tuple[int, ...]:
        return self.facts[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.facts[1]

    @property
    def device(self) -> torch.device:
        return self.facts[2]

    @property
    def origin(self) -> Origin:
        return self.function.origin

    @property
    def details(self) -> Details:
        """Rare facts about the operation. Read-only: to write, use `Log.detail`."""
        return self.log.details.get(self.number, _ORDINARY)

    @property
    def overwritten(self) -> int | None:
        """If the call wrote its result in place, the slot of the argument that it wrote to; else None."""
        slots = self.details.mutated
        if not slots or self.function.writes_aside:
            return None
        path = self.details.output_path
        turn = path[0] if path and type(path[0]) is int else 0
        slot = slots[min(turn, len(slots) - 1)]
        return slot if slot < len(self._row) - PARENTS else None

    @property
    def call(self) -> int:
        """The number of the first record of the call. All tensors that one call made have the same number here."""
        call = self.details.call
        return self.number if call < 0 else call

    @property
    def value(self) -> Any:
        """The kept tensor, the result of `activation_postfunc`, or `UNSAVED`."""
        return self.log.values[self.number]

    @property
    def is_saved(self) -> bool:
        return self.log.values[self.number] is not UNSAVED

    @property
    def dependencies(self) -> tuple[int, ...]:
        """The operations that this operation depends on: first through arguments, then through shared memory. May repeat."""
        return (*(n for n in self._row[PARENTS:] if n >= 0), *self.details.also)


class OperationRecords(Views[OperationRecord]):
    """The operations of a log, as a sequence of records."""

    __slots__ = ("_log",)

    def __init__(self, log: Log) -> None:
        self._log = log

    def __len__(self) -> int:
        return len(self._log.rows)

    def _view(self, place: int) -> OperationRecord:
        return OperationRecord(self._log, place)


@dataclass(slots=True, eq=False)
class PythonReadRecord:
    """A place where tensor data left for Python (`bool(t)`, `.item()`, `.numpy()`)."""

    function: TorchFunction
    parents: tuple[int, ...]
    value: Any  # the number or truth value that Python got; None for other results
    module: ModuleCall | None
    site: Site | None
    before: int  # number of the next operation: the read came before it

    @property
    def is_truth_value(self) -> bool:
        """True if Python got a truth value, on which it may branch."""
        return isinstance(self.value, bool)


@dataclass(slots=True, eq=False)
class Failure:
    """The torch call that raised."""

    function: TorchFunction
    parents: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    module: ModuleCall | None
    site: Site | None
    error: str
    before: int

    def in_words(self) -> str:
        """Text for errors: the operation that raised, its module and source line, and the error."""
        shapes = ", ".join(map(str, self.shapes)) or "none"
        address = self.module.address if self.module is not None else ""
        where = f"in module {address!r}" if address else "in the model's own forward"
        line = source_of(self.site, self.module)
        at = f", at {line}" if line is not None else ""
        return f"operation {self.function.name!r} (tensor shapes: {shapes}) {where}{at}\n\t\t{self.error.splitlines()[0]}"


@dataclass(slots=True)
class Log:
    """All records of one recording."""

    title: str
    rows: list[Row] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # for each operation: the kept tensor, or UNSAVED
    versions: list[int] = field(default_factory=list)  # for each operation: torch's version of the kept tensor, or -1
    details: dict[int, Details] = field(default_factory=dict)  # maps operations to their rare facts; most operations have none
    functions: list[TorchFunction] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    codes: CodeTable = field(default_factory=CodeTable)  # the code objects that the numbers in `sites` refer to
    states: States = field(default_factory=States)
    modules: list[ModuleCall] = field(default_factory=list)
    registered: dict[str, RegisteredModule] = field(default_factory=dict)
    python_reads: list[PythonReadRecord] = field(default_factory=list)
    without_memory: set[int] = field(default_factory=set)  # operations whose tensor had no memory when it was recorded
    collectives: int = 0  # number of calls with other processes (collectives), recorded or not
    notes: list[str] = field(default_factory=list)
    hollow: set[int] = field(default_factory=set)  # results of `torch.empty` without elements that nothing has used so far
    source_names: dict[int, str] = field(default_factory=dict)
    source_tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # tensors of unknown origin
    input_paths: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    result: list[tuple[tuple[Any, ...], Any]] | None = None  # path and value of each item of the result; None if unknown
    argument_names: tuple[str, ...] = ()  # the positional parameters of the model's forward
    leaves: set[int] = field(default_factory=set)  # autograd leaves: no operation made them, or `requires_grad` was set on them
    failure: Failure | None = None
    backward: BackwardLog | None = None  # None if gradients are not recorded
    random_seed: int | None = None
    random_state: Any = None
    random_states: dict[int, Any] = field(default_factory=dict)  # by number of a draw: the generator's state, if code set it
    is_recording: bool = False  # True for the log of a `with` block, which has no arguments and no result
    is_complete: bool = False
    is_cleared: bool = False  # kept tensors were released by `clear_activations`
    holds_tensors: bool = True  # True if kept values are the tensors; False if they are results of `activation_postfunc`
    seconds: dict[str, float] = field(default_factory=dict)
    first_passes: list[int] | None = None  # saved histories only. For each operation: first pass of its layer; orphans: -1
    comes_again: bool = False  # a replay without changes reproduced every kept value
    _lost: set[int] | None = None

    @property
    def operations(self) -> OperationRecords:
        """Every operation, in execution order."""
        return OperationRecords(self)

    def function_of(self, number: int) -> TorchFunction:
        """The function that an operation called."""
        return self.functions[self.rows[number][FUNCTION]]

    def port_names(self, number: int) -> list[str]:
        """The names of an input in `forward` (`input_ids`, `cache[0]`), or the path of an output in the result (`logits`).

        An input that was given twice has two names; an output without a path is called `output`.
        """
        origin = self.function_of(number).origin
        if origin is Origin.INPUT:
            return [self._argument_name(*path) for path in self.input_paths.get(number, ()) if path]
        if origin is Origin.OUTPUT:
            path = self.details[number].output_path if number in self.details else ()
            return [format_path(path[1:], path[0]) if path and isinstance(path[0], str) else format_path(path, "output")]
        return []

    def _argument_name(self, kind: str, first: Any = None, *rest: Any) -> str:
        if kind == "kwargs" and isinstance(first, str):
            return format_path(rest, first)
        if kind == "args" and isinstance(first, int) and first < len(self.argument_names):
            return format_path(rest, self.argument_names[first])
        return format_path((first, *rest) if first is not None else (), kind)

    def draws(self) -> bool:
        """True if a call drew random numbers from a default generator."""
        asked = {number: function.draws for number, function in enumerate(self.functions) if function.draws is not None}
        for row in self.rows if asked else ():
            draws, arguments, names = asked.get(row[FUNCTION]), row[TEMPLATE], row[NAMES]
            positional = len(arguments) - len(names)
            if draws is not None and draws(arguments[:positional], dict(zip(names, arguments[positional:], strict=True))):
                return True
        return False

    def root_of(self, address: str) -> RegisteredModule | None:
        """The root module that contains the module at this address (or is it); None if no root does."""
        while (known := self.registered.get(address)) is None or not known.is_root:
            if not address:
                return None
            address = address.rpartition(".")[0]
        return known

    def calls(self, length: int | None = None) -> Iterator[range]:
        """Yield the first `length` operations (default: all) by call: one range for the tensors that one call made."""
        details, end = self.details, len(self.rows) if length is None else length
        first = 0
        while first < end:
            after = first + 1
            if first in details and details[first].call == first:
                while after < end and after in details and details[after].call == first:
                    after += 1
            yield range(first, after)
            first = after

    def append(self, row: Row) -> int:
        """Add an operation whose tensor is not kept yet. Returns its number."""
        self.rows.append(row)
        self.values.append(UNSAVED)
        self.versions.append(-1)
        return len(self.rows) - 1

    def detail(self, number: int) -> Details:
        """The details of an operation, for writing. Creates them if the operation has none."""
        return self.details.setdefault(number, Details())

    def forget(self, number: int) -> None:
        """Release an operation's kept tensor and arguments."""
        self._let_go(number, UNSAVED)
        if number in self.details:
            self.details[number].held = None

    def clear(self) -> None:
        """Release every kept tensor and gradient."""
        for number in range(len(self.rows)):
            self.forget(number)
        if self.backward is not None:
            self.backward.clear()
        self.is_cleared = True

    def replace_states(self, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Register other tensors instead of these parameters and buffers."""
        by_id: dict[int, Any] = {id(old): new for old, new in pairs}
        for module in self.registered.values():
            module.parameters = {name: by_id.get(id(p), p) for name, p in module.parameters.items()}
            module.buffers = {name: by_id.get(id(b), b) for name, b in module.buffers.items()}

    def is_lost(self, number: int) -> bool:
        """True if a kept tensor's value is gone: its memory was freed, or it was overwritten before it was copied."""
        if is_freed(self.values[number]):
            return True
        if not self.is_complete:
            return was_overwritten(self.values[number], self.versions[number])
        return number in self.overwritten()

    def overwritten(self) -> set[int]:
        """Find the operations of a complete pass whose kept tensors unwatched code overwrote.

        This is computed once: after the pass, no tensor outside the log shares memory with kept tensors.
        """
        if self._lost is None:
            pairs = enumerate(zip(self.values, self.versions, strict=True))
            with DisableTorchFunction():
                self._lost = set()
                if not self._is_untouched():
                    self._lost = {n for n, (value, version) in pairs if version != -1 and was_overwritten(value, version)}
        return self._lost

    def _is_untouched(self) -> bool:
        """Quick check: True if all values are tensors whose version is the recorded version, as in most logs."""
        try:
            return list(map(write_count, self.values)) == self.versions
        except (AttributeError, RuntimeError):  # not a tensor, or a tensor whose writes torch does not count
            return False

    def mark_freed(self, number: int) -> None:
        """Record that the memory of an operation's kept tensor was freed."""
        self._let_go(number, FREED)

    def _let_go(self, number: int, instead: Any) -> None:
        """Replace a kept tensor by `instead`; its shape, dtype and device stay known."""
        row = self.rows[number]
        if row[FACTS] is None:
            self.rows[number] = (*row[:FACTS], self.operations[number].facts, *row[PARENTS:])
        self.values[number], self.versions[number] = instead, -1


def was_overwritten(value: Any, version: int) -> bool:
    """True if a tensor was written to since it had this version."""
    return version <= LOST or (version >= 0 and isinstance(value, torch.Tensor) and write_count(value) != version)


def facts_of(tensor: torch.Tensor) -> Facts:
    """The shape, dtype and device of a tensor."""
    return shape_of(tensor), tensor.dtype, tensor.device


def number_of(record: ModuleCall | Site | None) -> int:
    """The number of a module call or site; -1 for None."""
    return record.number if record is not None else -1
