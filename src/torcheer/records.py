"""What capture writes down: plain slotted records, without labels or graphs.

One `OperationRecord` is one tensor that was made or given. Where a record refers to another tensor it does so by
number: `n >= 0` is `log.operations[n]`, `n < 0` is `log.states[-1 - n]` (a parameter or a buffer).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from .backward_records import BackwardLog
from .functions import Kind as Kind
from .functions import Origin as Origin
from .functions import TorchFunction as TorchFunction
from .module_records import ClassNames as ClassNames
from .module_records import ModuleCall as ModuleCall
from .module_records import RegisteredModule as RegisteredModule
from .module_records import is_kind_of as is_kind_of
from .record_views import Views
from .shapes import shape_of
from .signs import Sign
from .source_places import CodeTable, Site
from .state_records import StateRecord as StateRecord
from .state_records import States as States
from .tensor_memory import FREED, is_freed
from .torch_internals import DisableTorchFunction, write_count

# Stands in an argument template where a tensor was. Compared by identity, so no argument can be mistaken for it; a
# string, because tuples of strings and numbers are left alone by the garbage collector (a big log is all such tuples).
TENSOR: Final = "".join(("<", "tensor", ">"))


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
