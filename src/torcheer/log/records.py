"""Records that are made from columns when they are asked for."""

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

from .._torch.functions import Origin, TorchFunction
from .._torch.internals import DisableTorchFunction, address_of, storage_use_count, write_count
from .._torch.memory import FREED, has_memory, is_freed
from .._torch.samples import Marks
from .._torch.sentinels import Sign
from .._torch.shapes import elements_of, shape_of
from .._torch.source_code import CodeTable, Site, source_of

Record = TypeVar("Record")


class Views(Sequence[Record]):
    """A sequence of records, each of which is a view of its place in some columns."""

    __slots__ = ()

    @abstractmethod
    def _view(self, place: int) -> Record:
        """The record at a place."""

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


# What capture writes down of modules: those that the model registers, and their calls.


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
    args: tuple[Any, ...] = ()  # an outline of all arguments, the named ones last
    names: tuple[str, ...] = ()
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    end: int = -1
    exit: int = 0  # which exit of the recording this call's was, from 1; 0 while it runs
    started: int = 0
    elapsed: int = 0

    def stack(self) -> tuple[ModuleCall, ...]:
        """This call and those around it, outermost first."""
        chain: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            chain.append(call)
            call = call.outer
        return tuple(reversed(chain))

    @property
    def is_nested(self) -> bool:
        """Whether it runs inside another call of the same module."""
        return any(outer.address == self.address for outer in self.stack()[:-1])


@dataclass(frozen=True, slots=True)
class ClassNames:
    """The class of a module of a saved history: its qualified name, and those of the classes it is derived from."""

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
    """Whether modules of a class are of another one; those of a saved history are compared by name."""
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
    is_made_running: bool = False  # a root that was met when it was called, as in `nn.ReLU()(x)`; its address is made up

    def full_name(self, name: str) -> str:
        """The name that a parameter or buffer of this module has in the model: `features.0.weight`."""
        return f"{self.address}.{name}" if self.address else name


# The parameters and buffers that operations read. They are held by reference, so they may change after the recording.

_is_near: Final[Callable[[torch.Tensor], bool]] = attrgetter("is_cpu")
_BESIDE: Final = 8  # how many others of its kind are asked whether they were changed, where one is not watched as a whole


@dataclass(slots=True, eq=False)
class AbsentTensor:
    """A parameter or buffer of a saved history whose values are not in the file: what can be told without reading it.

    It has the attributes of a tensor that tell shape, type and place. `States.bind` puts the tensor in its place.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_parameter: bool
    layout: torch.layout = torch.strided
    fingerprint: str = ""  # of the values it had (store/log_parts.py); empty where these were gone
    is_uninitialized: bool = False  # of a lazy module that did not run

    @property
    def is_nested(self) -> bool:
        return False

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def numel(self) -> int:
        return elements_of(self.shape)


def is_parameter(tensor: Any) -> bool:
    """Whether it is a parameter, not a buffer; also of one that is absent."""
    return bool(tensor.is_parameter) if type(tensor) is AbsentTensor else isinstance(tensor, Parameter)


class StateRecord:
    """A parameter or buffer that an operation read. Held by reference: its value belongs to the model."""

    __slots__ = ("_states", "number", "tensor")

    def __init__(self, states: States, place: int) -> None:
        self._states = states
        self.tensor = states.tensors[place]
        self.number = -1 - place

    @property
    def before(self) -> torch.Tensor | None:
        """Its earlier value, if the recording overwrote it and did not restore it."""
        return self._states.before.get(self.number)

    @property
    def is_changed(self) -> bool:
        """Whether it certainly differs from what the operations read: it was written to, or given other memory, since then."""
        return self.before is None and self._states.is_changed(-1 - self.number)

    @property
    def may_be_changed(self) -> bool:
        """Whether it may differ: only a sample of it is compared, and others were changed without torch counting it."""
        return self.before is None and self._states.may_be_changed(-1 - self.number)

    @property
    def value(self) -> torch.Tensor:
        """The value that the operations read. Must not be asked for if it is absent."""
        before = self.before
        return self.tensor if before is None else before

    @property
    def is_absent(self) -> bool:
        """Whether its values are not there: the history was saved without them, and no model is bound."""
        value: Any = self.value
        return type(value) is AbsentTensor

    @property
    def is_parameter(self) -> bool:
        return is_parameter(self.tensor)


class States(Views[StateRecord]):
    """The parameters and buffers that operations read, in the order they were met."""

    __slots__ = ("_marks", "before", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Any] = []  # tensors; in a saved history also `AbsentTensor`s
        self.before: dict[int, torch.Tensor] = {}  # by (negative) number, where the recording overwrote one for good
        self._marks: Marks | None = None  # marks that show whether one changed since the recording ended

    def __len__(self) -> int:
        return len(self.tensors)

    def _view(self, place: int) -> StateRecord:
        return StateRecord(self, place)

    def mark(self) -> None:
        """The recording is over: notice changes from now on."""
        is_near = all(map(_is_near, self.tensors))
        sampled = () if is_near else {place for kind in self._kinds().values() for place in _spread(kind)}
        self._marks = Marks(self.tensors, sampled)

    def is_changed(self, place: int) -> bool:
        """Whether torch counted a write since the recording, the memory is another, or a sample of the elements is."""
        return self._marks is not None and bool(self._changes(self._marks, [place])[0])

    def may_be_changed(self, place: int) -> bool:
        """Whether one may have changed outside of the compared sample, as others of its kind did.

        A fused optimizer changes all parameters that it was given, but of an embedding only the rows that were used.
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
        """How each of these changed: `"counted"` by torch, `"uncounted"`, or not at all."""
        now = Marks([self.tensors[place] for place in places], range(len(places)))
        found = []
        for its_place, place in enumerate(places):
            is_same = before.is_same_sample(place, now, its_place)
            is_counted = before.is_counted(place, now, its_place, self.tensors[place])
            found.append("counted" if is_counted else "" if is_same else "uncounted")
        return found

    def _kinds(self) -> dict[str, list[int]]:
        """The places of trainable parameters, of frozen ones and of buffers."""
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
    """A few of these, from the first to the last."""
    return places[:: -(-len(places) // _BESIDE)]


# What capture writes down of backward passes: the nodes that ran, and the gradients.

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


# What capture writes down: plain slotted records, without labels or graphs.
#
# One `OperationRecord` is one tensor that was made or given. Where a record refers to another tensor it does so by
# number: `n >= 0` is `log.operations[n]`, `n < 0` is `log.states[-1 - n]` (a parameter or a buffer).

# Stands in an argument template where a tensor was. Compared by identity, so no argument can be mistaken for it; a
# string, because tuples of strings and numbers are left alone by the garbage collector (a big log is all such tuples).
UNSAVED: Final = Sign("<not saved>")  # stands where no activation was kept
LOST: Final = -2  # the version of a kept tensor that unwatched code may have overwritten: it is not returned to users
OVERWRITTEN: Final = -3  # the version of one that unwatched code did overwrite, as torch's count of writes told


@dataclass(slots=True, eq=False)
class Composite:
    """One call of a function that was opened, such as `F.multi_head_attention_forward`."""

    name: str
    number: int
    outer: Composite | None


@dataclass(slots=True, eq=False)
class Held:
    """An argument kept on its own, because the record it came from does not hold that value."""

    value: Any
    version: int


@dataclass(slots=True, eq=False)
class Details:
    """Facts that few records have.

    `also` names writes that reached an argument through another view of its memory; `mutated` are the argument slots the
    call wrote to; `held` are arguments, by slot, that no record holds; `home` is, of an input in memory of a parameter or
    buffer, the (negative) number of that, and the distance in elements.
    """

    call: int = -1  # the first record of a call that made several tensors
    output_path: tuple[Any, ...] = ()
    also: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    composite: Composite | None = None
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    held: dict[int, Held] | None = None
    home: tuple[int, int] | None = None
    is_collective: bool = False  # a collective ran inside it, as DTensor makes them
    is_hooked: bool = False  # a gradient that backward hooks, which are not in the graph, may have changed
    is_no_grad: bool = False  # wrote in place to what requires gradients, while gradients were off
    is_foreign: bool = False  # in memory that torch did not allocate, as that of a NumPy array, where the program may read it
    is_through_unseen: bool = False  # a gradient that went backward through code that is not in the log
    changed: str = ""  # the change that an intervention made here, in words
    is_passing: bool = False  # a source that was made in the pass, by code that cannot be watched
    is_transformed: bool = False  # ran inside a `torch.func` transform, on tensors that exist only there


_ORDINARY: Final = Details()


# The part of an operation that never changes, in this order: the number of its function in `log.functions`, a template of
# its arguments, the names of the last of them, the numbers of its module call and its site (-1: none), when it started and
# how long it took in nanoseconds, the autograd node, what is known of the tensor (None: what the kept tensor says), and from
# there on the parents. A plain tuple of plain values, because the garbage collector leaves those alone, and a log of a
# million operations is mostly rows.
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
        """All arguments in order, the named ones last, with `TENSOR` where a tensor was."""
        template: tuple[Any, ...] = self._row[TEMPLATE]
        return template

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the last arguments of the template."""
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
        """Whether it is known how long it took: not where it ran in code that cannot be watched."""
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
        """Facts that few records have. Read-only: `Log.detail` gives details to write to."""
        return self.log.details.get(self.number, _ORDINARY)

    @property
    def overwritten(self) -> int | None:
        """The slot of the argument that this tensor is, when the call wrote its result in place."""
        slots = self.details.mutated
        if not slots or self.function.writes_aside:
            return None
        path = self.details.output_path
        turn = path[0] if path and type(path[0]) is int else 0
        slot = slots[min(turn, len(slots) - 1)]
        return slot if slot < len(self._row) - PARENTS else None

    @property
    def call(self) -> int:
        """The same for every tensor that one call made."""
        call = self.details.call
        return self.number if call < 0 else call

    @property
    def value(self) -> Any:
        """What was kept of the tensor."""
        return self.log.values[self.number]

    @property
    def is_saved(self) -> bool:
        return self.log.values[self.number] is not UNSAVED

    @property
    def dependencies(self) -> tuple[int, ...]:
        """The operations this one depends on: through arguments first, then through shared memory. May repeat."""
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
    value: Any  # when it is a plain number or truth value
    module: ModuleCall | None
    site: Site | None
    before: int  # the number of the operation that came next


@dataclass(slots=True, eq=False)
class Failure:
    """The call that raised."""

    function: TorchFunction
    parents: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    module: ModuleCall | None
    site: Site | None
    error: str
    before: int

    def in_words(self) -> str:
        """Where the call raised: the operation, its module, the source line; and the error."""
        shapes = ", ".join(map(str, self.shapes)) or "none"
        address = self.module.address if self.module is not None else ""
        where = f"in module {address!r}" if address else "in the model's own forward"
        line = source_of(self.site, self.module)
        at = f", at {line}" if line is not None else ""
        return f"operation {self.function.name!r} (tensor shapes: {shapes}) {where}{at}\n\t\t{self.error.splitlines()[0]}"


@dataclass(slots=True)
class Log:
    """Everything one recording wrote down."""

    title: str
    rows: list[Row] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)  # by operation: the kept tensor, or UNSAVED
    versions: list[int] = field(default_factory=list)  # by operation: torch's version of the kept tensor, or -1
    details: dict[int, Details] = field(default_factory=dict)  # by operation, for those that have any
    functions: list[TorchFunction] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)
    codes: CodeTable = field(default_factory=CodeTable)  # what the numbers in sites mean
    states: States = field(default_factory=States)
    modules: list[ModuleCall] = field(default_factory=list)
    registered: dict[str, RegisteredModule] = field(default_factory=dict)
    python_reads: list[PythonReadRecord] = field(default_factory=list)
    without_memory: set[int] = field(default_factory=set)  # tensors that had no memory when they were met
    collectives: int = 0  # how many calls other processes took part in, seen or not
    notes: list[str] = field(default_factory=list)
    hollow: set[int] = field(default_factory=set)  # new tensors without elements that nothing used as they were made
    source_names: dict[int, str] = field(default_factory=dict)
    source_tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)  # those that turned up unexplained
    input_paths: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    leaves: set[int] = field(default_factory=set)  # no operation made them, or they were set to require gradients
    failure: Failure | None = None
    backward: BackwardLog | None = None  # where gradients are followed
    random_seed: int | None = None
    random_state: Any = None
    random_states: dict[int, Any] = field(default_factory=dict)  # by operation that draws: the state, where something set it
    is_recording: bool = False  # of a `with` block, which is given nothing and returns nothing
    is_complete: bool = False
    is_cleared: bool = False  # kept tensors were released by `clear_activations`
    holds_tensors: bool = True  # what is kept are tensors as they were, not what a postfunc made of them
    seconds: dict[str, float] = field(default_factory=dict)
    first_passes: list[int] | None = None  # of a saved history, by operation: the first pass of its layer; -1 of an orphan
    comes_again: bool = False  # a replay without changes gave every value that is kept
    _lost: set[int] | None = None

    @property
    def operations(self) -> OperationRecords:
        """Every operation, in execution order."""
        return OperationRecords(self)

    def function_of(self, number: int) -> TorchFunction:
        """The function that an operation is a call of."""
        return self.functions[self.rows[number][FUNCTION]]

    def draws(self) -> bool:
        """Whether a call drew random numbers from a default generator."""
        asked = {number: function.draws for number, function in enumerate(self.functions) if function.draws is not None}
        for row in self.rows if asked else ():
            draws, arguments, names = asked.get(row[FUNCTION]), row[TEMPLATE], row[NAMES]
            positional = len(arguments) - len(names)
            if draws is not None and draws(arguments[:positional], dict(zip(names, arguments[positional:], strict=True))):
                return True
        return False

    def root_of(self, address: str) -> RegisteredModule | None:
        """The root that the module at an address is, or is inside of; None where there is no such root."""
        while (known := self.registered.get(address)) is None or not known.is_root:
            if not address:
                return None
            address = address.rpartition(".")[0]
        return known

    def calls(self, length: int | None = None) -> Iterator[range]:
        """The first `length` operations (all of them, if not said), those that one call made together."""
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
        """The details of an operation, to be written to."""
        return self.details.setdefault(number, Details())

    def forget(self, number: int) -> None:
        """Let go of an operation's kept tensor and arguments."""
        self._let_go(number, UNSAVED)
        if number in self.details:
            self.details[number].held = None

    def clear(self) -> None:
        """Let go of every kept tensor and gradient."""
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
        """Whether a kept tensor is gone: its memory was freed, or torch counted a write before which it was not copied."""
        if is_freed(self.values[number]):
            return True
        if not self.is_complete:
            return was_overwritten(self.values[number], self.versions[number])
        return number in self.overwritten()

    def overwritten(self) -> set[int]:
        """The operations of a complete pass whose kept tensors were overwritten by unwatched code.

        They are looked for once: when the pass is complete, nothing outside shares memory with what is kept.
        """
        if self._lost is None:
            pairs = enumerate(zip(self.values, self.versions, strict=True))
            with DisableTorchFunction():
                self._lost = set()
                if not self._is_untouched():
                    self._lost = {n for n, (value, version) in pairs if version != -1 and was_overwritten(value, version)}
        return self._lost

    def _is_untouched(self) -> bool:
        """Whether all that is kept are tensors of their noted versions: a quick look that finds nothing in most logs."""
        try:
            return list(map(write_count, self.values)) == self.versions
        except (AttributeError, RuntimeError):  # not a tensor, or one whose writes torch does not count
            return False

    def mark_freed(self, number: int) -> None:
        """The memory of an operation's kept tensor is gone."""
        self._let_go(number, FREED)

    def _let_go(self, number: int, instead: Any) -> None:
        """Put something in the place of a kept tensor, whose shape, dtype and device stay known."""
        row = self.rows[number]
        if row[FACTS] is None:
            self.rows[number] = (*row[:FACTS], self.operations[number].facts, *row[PARENTS:])
        self.values[number], self.versions[number] = instead, -1


def was_overwritten(value: Any, version: int) -> bool:
    """Whether a tensor has been written to since it had this version."""
    return version <= LOST or (version >= 0 and isinstance(value, torch.Tensor) and write_count(value) != version)


def facts_of(tensor: torch.Tensor) -> Facts:
    """The shape, dtype and device of a tensor."""
    return shape_of(tensor), tensor.dtype, tensor.device


def number_of(record: ModuleCall | Site | None) -> int:
    """The number of a module call or site; -1 where there is none."""
    return record.number if record is not None else -1
