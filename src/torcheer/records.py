"""What capture writes down: plain slotted records, without labels, graphs or opinions.

One `OperationRecord` is one tensor that came to be. Where a record refers to another tensor it does so by
number: `n >= 0` is `log.operations[n]`, `n < 0` is `log.states[-1 - n]` (a parameter or a buffer).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Final

import torch

# Stands in an argument template where a tensor was. Compared by identity, so no argument can be mistaken for it; a
# string, because tuples of strings and numbers are left alone by the garbage collector (a big log is all such tuples).
TENSOR: Final = "".join(("<", "tensor", ">"))


class Unsaved:
    """Stands where no activation was kept."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<not saved>"

    def __copy__(self) -> Unsaved:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Unsaved:
        return self


UNSAVED: Final = Unsaved()


class Origin(enum.Enum):
    """How a tensor came to be."""

    INPUT = "input"  # given to the model
    OPERATION = "operation"  # made by a torch function that was watched
    OPAQUE = "opaque"  # made inside something that cannot be watched; its inputs are known
    ALIAS = "alias"  # another view of a recorded tensor, made where it could not be watched
    SOURCE = "source"  # turned up unexplained: closed over, made by NumPy or on another thread
    OUTPUT = "output"  # handed back by the model


class Kind(enum.IntEnum):
    """What a torch function does, as far as recording it is concerned."""

    QUERY = 0  # asks about a tensor, makes none
    ESCAPE = 1  # hands values to Python
    OPERATION = 2
    COMPOSITE = 3  # Python around several operations: opened
    BACKWARD = 4  # runs autograd, makes no tensor


@dataclass(slots=True, eq=False)
class TorchFunction:
    """What is known about one torch function. Built once per function, shared by every record."""

    func: Callable[..., Any] | None
    name: str  # as torch spells it: max_pool2d
    type: str  # as labels spell it: maxpool2d
    kind: Kind
    written: Callable[[tuple[Any, ...], dict[str, Any]], list[Any]] | None = None
    opened: Callable[..., Any] | None = None
    origin: Origin = Origin.OPERATION
    is_attribute: bool = False  # a property read, such as `.grad`
    is_module: bool = False  # stands for a module whose inside cannot be watched


@dataclass(slots=True, eq=False)
class Site:
    """A place in the program: the chain of frames up to the enclosing module's forward, innermost first."""

    codes: tuple[CodeType, ...]
    instructions: tuple[int, ...]
    number: int


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
    """What few records have to say beyond the ordinary.

    `also` names writes that reached an argument through another view of its memory; `mutated` are the argument slots the
    call wrote to; `held` are arguments, by slot, that no record holds.
    """

    call: int = -1  # the first record of a call that made several tensors
    output_path: tuple[Any, ...] = ()
    also: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    composite: Composite | None = None
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    held: dict[int, Held] | None = None


_ORDINARY: Final = Details()


class OperationRecord:
    """One tensor that came to be, and the call that made it.

    `parents` has one number for each `TENSOR` in the templates `args` and `kwargs`, in order. A call that returns three
    tensors is three records with the same `call`, told apart by `output_path`.
    """

    __slots__ = (
        "args",
        "details",
        "device",
        "dtype",
        "elapsed",
        "function",
        "gradfunc",
        "kwargs",
        "module",
        "number",
        "parents",
        "shape",
        "site",
        "started",
        "value",
        "version",
    )

    def __init__(
        self,
        number: int,
        function: TorchFunction,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        parents: tuple[int, ...] = (),
        module: ModuleCall | None = None,
        site: Site | None = None,
        details: Details | None = None,
        started: int = 0,
        elapsed: int = 0,
        shape: tuple[int, ...] = (),
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        gradfunc: type | None = None,
        value: Any = UNSAVED,
        version: int = -1,
    ) -> None:
        self.number = number
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.parents = parents
        self.module = module
        self.site = site
        self.details = details
        self.started = started
        self.elapsed = elapsed
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.gradfunc = gradfunc
        self.value = value
        self.version = version

    @property
    def origin(self) -> Origin:
        return self.function.origin

    @property
    def more(self) -> Details:
        """The details, or those of an ordinary record. Not to be written to."""
        return self.details or _ORDINARY

    @property
    def call(self) -> int:
        """The same for every tensor that one call made."""
        return self.number if self.details is None or self.details.call < 0 else self.details.call

    @property
    def is_saved(self) -> bool:
        return self.value is not UNSAVED

    def forget(self) -> None:
        """Let go of the kept tensor and arguments."""
        self.value = UNSAVED
        self.version = -1
        if self.details is not None:
            self.details.held = None

    @property
    def dependencies(self) -> tuple[int, ...]:
        """The operations this one depends on: through arguments first, then through shared memory. May repeat."""
        also = self.details.also if self.details is not None else ()
        return (*(n for n in self.parents if n >= 0), *also)


@dataclass(slots=True, eq=False)
class StateRecord:
    """A parameter or buffer that an operation read. Held by reference: its value belongs to the model."""

    number: int  # negative
    tensor: torch.Tensor
    version: int

    @property
    def is_parameter(self) -> bool:
        return isinstance(self.tensor, torch.nn.Parameter)


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
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    end: int = -1
    exit: int = 0  # which exit of the recording this call's was, from 1; 0 while it runs
    started: int = 0
    elapsed: int = 0
    forward: int = 0  # the id of the code of its forward

    def stack(self) -> tuple[ModuleCall, ...]:
        """This call and those around it, outermost first."""
        chain: list[ModuleCall] = []
        call: ModuleCall | None = self
        while call is not None:
            chain.append(call)
            call = call.outer
        return tuple(reversed(chain))


@dataclass(slots=True, eq=False)
class RegisteredModule:
    """A module as the model registers it, called or not."""

    address: str
    class_name: str
    parameters: dict[str, torch.nn.Parameter | None]
    buffers: dict[str, torch.Tensor | None]
    other_addresses: list[str]
    is_root: bool


@dataclass(slots=True, eq=False)
class Escape:
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
    operations: list[OperationRecord] = field(default_factory=list)
    states: list[StateRecord] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    registered: dict[str, RegisteredModule] = field(default_factory=dict)
    escapes: list[Escape] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unexplained: list[int] = field(default_factory=list)
    source_names: dict[int, str] = field(default_factory=dict)
    input_paths: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    failure: Failure | None = None
    random_seed: int | None = None
    random_state: Any = None
    is_complete: bool = False
    holds_tensors: bool = True  # what is kept are tensors as they were, not what a postfunc made of them
    seconds: dict[str, float] = field(default_factory=dict)
    _lost: set[int] | None = None

    def is_lost(self, record: OperationRecord) -> bool:
        """Whether a kept tensor was overwritten unseen: torch counted a write that nobody protected it from.

        Checked once when the pass is complete: from then on nothing outside shares memory with what is kept.
        """
        if not self.is_complete:
            return _was_overwritten(record)
        if self._lost is None:
            self._lost = {r.number for r in self.operations if _was_overwritten(r)}
        return record.number in self._lost


def _was_overwritten(record: OperationRecord) -> bool:
    value = record.value
    return record.version >= 0 and isinstance(value, torch.Tensor) and value._version != record.version
