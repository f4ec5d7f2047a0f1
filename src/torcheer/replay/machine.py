"""`Machine` runs the calls of a log again, in order, from inputs, parameters and constants; an `Observer` sees each value.

Memory behaves as in the model: views stay views, and writes in place reach every tensor that shares the memory, even if copied
inputs overlapped (`SharedInputs`). Values of calls that cannot run again are taken from the log (`given_because`). The model's
parameters and the thread's random state are unchanged afterwards.
"""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level

from .._cleanup import pass_interrupts_on
from .._text import few
from .._torch.containers import PLAIN, SavedObject, find_leaves, get_path
from .._torch.functions import groups
from .._torch.functions.allowed_calls import refuse_stray, refuse_stray_indices
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction, DisableTorchFunctionSubclass
from .._torch.memory import MemoryCopy, alias, copied, copy_of, has_memory, is_freed, is_plain_memory, of_same_class
from .._torch.randomness import random_as_found
from .._torch.tensor_table import extent, storage_of, storages_of
from .._torch.thread_state import autocast_as, thread_as_found
from ..capture import has_bytes
from ..errors import InvalidArgument, ReplayFailed
from ..log.records import FACTS, FUNCTION, PARENTS, Log, OperationRecord, PythonReadRecord, StateRecord
from ..log.run import LoggedRun
from ..log.templates import fill_call
from .walk import tensors_of

_Bytes = tuple[int, int, int]  # a storage, and a range of its bytes
_MOST_GROWTH = 4  # copy overlapping tensors together only if the copy has at most this many times their bytes


class SharedInputs:
    """Copies tensors so that tensors that overlap in memory have overlapping copies."""

    def __init__(self, tensors: Iterable[Any]) -> None:
        # maps the bytes of a tensor that overlaps with others to the bytes that are copied together
        self._ranges: dict[_Bytes, _Bytes] = {}
        self._copies: dict[_Bytes, MemoryCopy] = {}
        by_storage: dict[int, list[tuple[int, int, int]]] = {}
        plain = list(filter(_is_readable, tensors))
        for tensor in plain:
            storage, begin, end = _bytes_of(tensor)
            by_storage.setdefault(storage, []).append((begin, end, tensor.nbytes))
        for storage, together in by_storage.items():
            if len(together) > 1:
                self._find(storage, sorted(together))
        # Keep these alive: a loaded history would read a released tensor again, into other memory.
        self._held = [tensor for tensor in plain if _bytes_of(tensor) in self._ranges]

    def copy(self, tensor: Tensor) -> Tensor | None:
        """Copy a tensor that overlaps with others; returns None for a tensor that overlaps with none."""
        found = self._ranges.get(_bytes_of(tensor)) if self._ranges and _is_readable(tensor) else None
        if found is None:
            return None
        if found not in self._copies:
            self._copies[found] = MemoryCopy(tensor, *found[1:])
        return self._copies[found].of(tensor)

    def _find(self, storage: int, ranges: list[tuple[int, int, int]]) -> None:
        """Group the ranges of one storage, sorted by begin, that overlap."""
        group: list[tuple[int, int, int]] = []
        stop = 0  # where the last range of a group ends
        for one in ranges:
            if one[0] >= stop:
                self._add(storage, group, stop)
                group = []
            group.append(one)
            stop = max(stop, one[1])
        self._add(storage, group, stop)

    def _add(self, storage: int, group: list[tuple[int, int, int]], end: int) -> None:
        begin = group[0][0] if group else end
        if len(group) > 1 and end - begin <= _MOST_GROWTH * sum(size for _, _, size in group):
            whole = (storage, begin, end)
            self._ranges.update({(storage, first, last): whole for first, last, _ in group})


def _bytes_of(tensor: Tensor) -> _Bytes:
    begin, end, _ = extent(tensor)
    return storage_of(tensor) or 0, begin, end


def _is_readable(value: Any) -> bool:
    return is_plain_memory(value) and has_bytes(value)


# Values that a replay takes from the log, because the call that made them cannot run again.

COLLECTIVE = "of a collective, which is not run again"  # to run it again, the other processes would have to take part


def given_because(record: OperationRecord) -> str | None:
    """The reason why an operation's value is taken from the log; None if its call can run again."""
    function, details = record.function, record.details
    if record.origin is Origin.SOURCE:
        return "a constant"
    if function.is_collective or details.is_collective:
        return COLLECTIVE
    if record.origin is Origin.OPAQUE or (record.origin is Origin.OPERATION and function.func is None):
        return "computed in code torcheer cannot trace"
    if details.is_transformed or (function.func is torch.autograd.grad and _is_of_transform(record)):
        return "inside a torch.func transform"
    if details.is_through_unseen:
        return "a gradient through a torch.autograd.Function or other code whose backward is not in the log"
    if details.is_hooked:
        return "a gradient that backward hooks may have changed"
    if function.is_gradient:
        return "a gradient"
    if function.plain_name == "as_strided" and _reaches_out(record):
        return "memory beyond an input"
    if record.origin is Origin.ALIAS and not record.template:
        return "computed in code torcheer cannot trace"
    if record.log.first_passes is not None and _lost_arguments(record):
        return "of a call that was given what no file can give back"
    return None


def _lost_arguments(record: OperationRecord) -> list[SavedObject]:
    """The arguments of a call in a file that are only described there, such as functions of the program."""
    if PLAIN.issuperset(map(type, record.template)):
        return []
    return find_leaves(record.template, lambda item: type(item) is SavedObject)


def _reaches_out(record: OperationRecord) -> bool:
    """True if `as_strided` may read the memory around an input: the log keeps only the input itself."""
    args, kwargs = record.args, record.kwargs
    offset = kwargs.get("storage_offset", args[3] if len(args) > 3 else None)
    if offset is None or not record.parents or record.parents[0] < 0:
        return False
    base = record.log.operations[record.parents[0]]
    while base.function.is_view and base.parents and base.parents[0] >= 0:
        base = base.log.operations[base.parents[0]]
    return base.origin is Origin.INPUT


def is_uninitialised(record: OperationRecord) -> bool:
    """True if a tensor is uninitialised memory: the result of `torch.empty`, or a view of it."""
    while True:
        if record.function.is_uninitialised or _is_unused_seed(record):
            return True
        is_view = record.origin in (Origin.OUTPUT, Origin.ALIAS) or record.function.is_view
        if not is_view or record.details.also or not record.parents or record.parents[0] < 0:
            return False
        record = record.log.operations[record.parents[0]]


def _is_unused_seed(record: OperationRecord) -> bool:
    """True if a tensor is the random seed of a fused attention kernel, which stays uninitialised without dropout."""
    return record.function.is_in(groups.ATTENTION) and record.dtype in (torch.int64, torch.uint64)


def _is_of_transform(record: OperationRecord) -> bool:
    """True if an argument existed only inside a transform, as an argument of the function that `torch.func.vjp` returns."""
    return any(record.log.operations[parent].details.is_transformed for parent in record.parents if parent >= 0)


# Runs the calls of a log again, in order, from inputs, parameters and constants alone.
#
# Tensors behave as they did in the model: a view is a view, and a write in place reaches all tensors that share the
# memory. Kept values are used only where there is no call to make again: for constants, and results of code that
# torcheer cannot trace. Parameters are borrowed from the model; if something would write to one, copies are used.

# The dtypes that `torch.set_default_dtype` accepts.
DEFAULT_TYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class WouldWrite(Exception):
    """Raised before a call that would write to a parameter of the model."""


class Observer(Protocol):
    """Receives every call and every value of a replay.

    Two more methods are optional. `substitute(reader, number, value)` returns the value that operation `reader` gets for its
    parent `number`. `read(record, tensors)` is called where Python code read values of these tensors.
    """

    def before(self, record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Called before each call."""

    def before_given(self, record: OperationRecord, written: list[Tensor]) -> None:
        """Called before the kept results of a call that cannot run again are written into its arguments."""

    def after(self, number: int, value: Any) -> Any:
        """Called with the value of each operation. Returns the value that the replay continues with."""


class Machine:
    """Runs the calls of one log again."""

    def __init__(self, log: Log, inputs: Mapping[int, Tensor], observer: Observer, *, borrow: bool = True) -> None:
        self.log = log
        self._inputs = inputs
        self._observer = observer
        self._substitute: Callable[[int, int, Any], Any] | None = getattr(observer, "substitute", None)
        read: Callable[[PythonReadRecord, list[Tensor]], None] | None = getattr(observer, "read", None)
        self._read = read
        self._reads = deque(log.python_reads if read is not None else ())
        self._live: dict[int, Any] = {}
        self._states: dict[int, Tensor] = {}
        self._borrowed: set[int] = set()
        self._borrow = borrow
        self._sharing = Counter(storage_of(state.value) for state in log.states if not state.is_absent)
        self._memory: dict[int, Any] = {}  # copies of storages that several parameters or buffers share
        self._together = SharedInputs(self._values_given())
        self._last_use = _last_uses(log, self._reads)
        self._homes = _homes(log)
        self._reaching = _reaching(log)
        self._around: dict[int, Tensor] = {}  # by input or source: its memory, and the memory around it that aliases reach
        self._known: dict[int, Tensor] = {}  # for the same: which elements have their values
        self._first: dict[int, int] = {}  # for the same: where that memory begins, in elements after the input

    def run(self) -> None:
        """Make every call again, from the recorded random state. Afterwards the thread's random state is as before."""
        is_dual = any(function.name == "_make_dual" for function in self.log.functions)
        with thread_as_found(), random_as_found() as random:
            if self.log.random_state is not None:
                random.start_from(self.log.random_state, draws=self.log.draws())
            with dual_level() if is_dual else contextlib.nullcontext():
                self._read_before(0)
                for numbers in self.log.calls():
                    self._step(numbers)
                    self._read_before(numbers[-1] + 1)
                    for number in self._last_use.get(numbers[-1], ()):
                        self._live.pop(number, None)

    def _read_before(self, number: int) -> None:
        """Report reads by Python code that happened before this operation."""
        while self._reads and self._reads[0].before <= number and self._read is not None:
            record = self._reads.popleft()
            self._read(record, [self._argument(parent) for parent in record.parents])

    def _step(self, numbers: range) -> None:
        record = self.log.operations[numbers[0]]
        if record.origin is Origin.ALIAS and record.details.home is not None and record.details.home[0] in self._around:
            self._settle(record.number, self._reaches(record, *record.details.home))
        elif given_because(record) is not None:
            self._give(record, numbers)
        elif record.origin is Origin.INPUT:
            self._settle(record.number, self._with_room(record.number, self._input(record)))
        elif record.origin is Origin.OUTPUT:
            self._settle(record.number, self._argument(record.parents[0], record.number))
        elif record.origin is Origin.ALIAS:
            view = view_again(self._argument(record.parents[0], record.number), *record.template[1:])
            self._settle(record.number, of_same_class(view, self.log.values[record.number]))
        else:
            self._call(record, numbers)

    def _settle(self, number: int, value: Any) -> None:
        value = self._observer.after(number, value)
        is_leaf = number in self.log.leaves and isinstance(value, Tensor) and not value.requires_grad
        if is_leaf and (value.is_floating_point() or value.is_complex()):
            value = value if value.grad_fn is None else value.detach()
            value.requires_grad_()
        self._live[number] = value

    def _give(self, record: OperationRecord, numbers: range) -> None:
        """Called for a call that cannot run again: use its kept values. If it wrote to arguments, write the values there."""
        written = {slot: self._argument(record.parents[slot]) for slot in record.details.mutated if slot < len(record.parents)}
        self._refuse_borrowed(written.values())
        if written:
            self._observer.before_given(record, list(written.values()))
        for number in numbers:
            value, slot = self._given(number), self.log.operations[number].overwritten
            if record.origin is Origin.SOURCE:
                value = self._with_room(number, value)
            if slot in written and slot is not None:
                value = _written_into(written[slot], value)
            self._settle(number, value)

    def _refuse_borrowed(self, tensors: Iterable[Any]) -> None:
        if self._borrowed and any(not self._borrowed.isdisjoint(storages_of(t)) for t in tensors if isinstance(t, Tensor)):
            raise WouldWrite

    # Values ---------------------------------------------------------------------------------------------------------

    def _values_given(self) -> list[Any]:
        """The values of inputs and constants, which no call makes."""
        values = self.log.values
        functions = [function.origin in (Origin.INPUT, Origin.SOURCE) for function in self.log.functions]
        numbers = [number for number, row in enumerate(self.log.rows) if functions[row[FUNCTION]]]
        return [given if (given := self._inputs.get(number)) is not None else values[number] for number in numbers]

    def _input(self, record: OperationRecord) -> Any:
        given = self._inputs.get(record.number)
        if given is not None and has_memory(given):
            shared = self._together.copy(given)
            return copy_of(given.detach()) if shared is None else shared
        if record.details.home is not None:
            return self._part_of_state(record, *record.details.home)
        return self._argument(record.parents[0]) if record.parents else self._given(record.number)

    def _with_room(self, number: int, value: Any) -> Any:
        """Return the tensor of an input or source. If aliases reach beyond it, it is put in memory with room for them."""
        reaching = self._reaching.get(number)
        if reaching is None or number in self._inputs or not is_plain_memory(value):
            return value
        spans = [_span(value.shape, value.stride(), 0)]
        for alias_number, distance in reaching:
            kept = self._given(alias_number)
            spans.append(_span(kept.shape, kept.stride(), distance))
        first, last = min(low for low, _ in spans), max(high for _, high in spans)
        if last - first > _MOST_GROWTH * sum(high - low for low, high in spans):
            return value
        with DisableTorchFunction(), torch.no_grad():
            whole = value.new_zeros(last - first)
            known = torch.zeros(last - first, dtype=torch.bool, device=value.device)
            fresh = whole.as_strided(value.shape, value.stride(), -first)
            fresh.copy_(value)
            known.as_strided(value.shape, value.stride(), -first).fill_(True)
        self._around[number], self._known[number] = whole, known
        self._first[number] = first
        return fresh.detach()

    def _reaches(self, record: OperationRecord, number: int, distance: int) -> Tensor:
        """Make an alias that reaches beyond its input or source. The elements beyond it have the kept values."""
        kept = self._given(record.number)
        place = tuple(kept.shape), kept.stride(), distance - self._first[number]
        with DisableTorchFunction(), torch.no_grad():
            value = self._around[number].detach().as_strided(*place)
            known = self._known[number].as_strided(*place)
            value.data.copy_(torch.where(known, value, kept))
            known.fill_(True)
            return value.detach()

    def _part_of_state(self, record: OperationRecord, state: int, distance: int) -> Tensor:
        """Make an input that is a view of a parameter or buffer: a write to one of the two reaches the other."""
        kept = self._given(record.number)
        try:
            return view_again(self._argument(state).detach(), tuple(kept.shape), kept.stride(), distance)
        except RuntimeError as error:
            raise _failed(record, f"is not in the memory of the parameter or buffer that was given as well: {error}") from error

    def _given(self, number: int) -> Any:
        kept = self.log.values[number]
        if number in self.log.without_memory:
            shape, dtype, device = self.log.operations[number].facts
            return torch.zeros(shape, dtype=dtype, device=device)  # no operation can have read the values
        if is_freed(kept):
            raise _failed(self.log.operations[number], "cannot be run again: its value was kept, but its memory was freed")
        if not isinstance(kept, Tensor) or not self.log.holds_tensors:
            record = self.log.operations[number]
            raise ReplayFailed(
                f"the history cannot be run again: it did not keep {record.function.name!r} (operation {number}), which is "
                f"{given_because(record) or 'an input'}. Log with layers_to_save='all' and no activation_postfunc."
            )
        with DisableTorchFunction():
            fresh = self._together.copy(kept)
            fresh = copied(kept) if fresh is None else fresh
        if fresh is None:
            raise ReplayFailed(
                f"the history cannot be run again: the {type(kept).__name__} of operation {number} cannot be copied."
            )
        return at_home(fresh, self.log.operations[number].device)

    def _argument(self, reference: int, reader: int = -1) -> Any:
        """The tensor that a number stands for, as operation `reader` reads it."""
        if reference >= 0:
            value = self._live[reference]
            return value if self._substitute is None or reader < 0 else self._substitute(reader, reference, value)
        if reference not in self._states:
            self._states[reference] = self._state(reference)
        return self._states[reference]

    def _state(self, reference: int) -> Tensor:
        state = self.log.states[-1 - reference]
        tensor = state.tensor
        if is_freed(state.value):
            raise _gone(self.log, state)
        with DisableTorchFunction(), torch.no_grad():
            value = alias(at_home(state.value, self._homes.get(reference)))
            if value is not None and (not self._borrow or not state.is_parameter or state.before is not None):
                value = self._copied_state(value)
            elif value is not None:
                self._borrowed |= storages_of(value)
            if value is None:
                raise ReplayFailed(f"the history cannot be run again: a {type(tensor).__name__} cannot be copied.")
        return value.requires_grad_(tensor.requires_grad)

    def _copied_state(self, value: Tensor) -> Tensor | None:
        """Copy a parameter or buffer. If two of them share memory, their copies share memory too."""
        storage = storage_of(value)
        if self._sharing[storage] < 2 or storage is None or type(value) is not Tensor:
            return copied(value)
        if storage not in self._memory:
            self._memory[storage] = value.untyped_storage().clone()  # type: ignore[no-untyped-call]  # torch's own
        fresh = torch.empty(0, dtype=value.dtype, device=value.device)
        return fresh.set_(self._memory[storage], value.storage_offset(), value.shape, value.stride())

    # Calls ----------------------------------------------------------------------------------------------------------

    def _call(self, record: OperationRecord, numbers: range) -> None:
        args, kwargs = self._arguments(record)
        if record.number in self.log.random_states:
            self.log.random_states[record.number].restore()
        self._observer.before(record, args, kwargs)
        slots = record.details.mutated
        self._refuse_borrowed(self._argument(record.parents[slot]) for slot in slots if slot < len(record.parents))
        size = args[0].numel() if record.function.is_in(groups.RESIZING) else -1
        try:
            result = call_again(record, args, kwargs)
        except Exception as error:
            pass_interrupts_on(error)
            raise _failed(record, f"cannot be run again: {type(error).__name__}: {error}") from error
        for number in numbers:
            try:
                value = outcome(self.log.operations[number], result, args, kwargs)
            except (IndexError, KeyError, AttributeError) as error:
                raise _failed(record, "returned something else than when it was logged") from error
            self._fill_uninitialised(number, value, size)
            self._settle(number, value)

    def _arguments(self, record: OperationRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with the tensors of this replay."""
        tensors = iter([self._argument(parent, record.number) for parent in record.parents])
        try:
            arguments = fill_call(record.template, record.names, tensors)
        except (StopIteration, RuntimeError) as error:  # a RuntimeError if the StopIteration passes through a generator
            raise _unaccounted(record) from error
        if next(tensors, None) is not None or len(tensors_of(arguments)) != len(record.parents):
            raise _unaccounted(record)
        if lost := _lost_arguments(record):
            raise _failed(record, f"was given {lost[0]!r:.60}, a {lost[0].type_name}, which no file can give back")
        return arguments

    def _fill_uninitialised(self, number: int, value: Any, size: int) -> None:
        """Fill uninitialised memory with the recorded values: they are constants of the log."""
        kept = self.log.values[number]
        if not isinstance(kept, Tensor) or not isinstance(value, Tensor) or is_freed(kept):
            return
        if type(kept) is not type(value):
            return  # a fake tensor has no values
        with torch.no_grad():
            if self.log.operations[number].function.is_uninitialised:
                # torch cannot write to a tensor with several elements at one place in memory
                with contextlib.suppress(RuntimeError):
                    value.copy_(kept)
            elif 0 <= size < value.numel() and value.is_contiguous():
                value.view(-1)[size:] = kept.reshape(-1)[size:]


def _written_into(target: Any, value: Tensor) -> Any:
    """Write `value` into the memory of `target`, so that views of `target` have it too. Returns `target`."""
    if type(target) is not Tensor or target.shape != value.shape or target.dtype != value.dtype:
        return value
    with torch.no_grad():
        target.data.copy_(value)
    return target


def _unaccounted(record: OperationRecord) -> ReplayFailed:
    count = len(record.parents)
    return _failed(record, f"has {count} parents, but not that many tensors among its arguments: an edge is missing")


def _gone(log: Log, state: StateRecord) -> ReplayFailed:
    for module in log.registered.values():
        for name, tensor in (*module.parameters.items(), *module.buffers.items()):
            if tensor is state.tensor:
                return ReplayFailed(f"the history cannot be run again: the memory of {module.full_name(name)!r} was freed.")
    return ReplayFailed("the history cannot be run again: the memory of a parameter that it uses was freed.")


def _failed(record: OperationRecord, what: str) -> ReplayFailed:
    error = ReplayFailed(f"{record.function.name!r} (operation {record.number}) {what}.")
    error.operation = record.number
    return error


def call_again(record: OperationRecord, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make a call again with its gradient mode, autocast state, default device and default dtype."""
    func = record.function.func
    assert func is not None
    refuse_stray(record.function, args, kwargs)
    with contextlib.ExitStack() as context:
        tensors = tensors_of((args, kwargs))
        is_of_file = record.log.first_passes is not None
        for tensor in tensors if is_of_file else ():
            refuse_stray_indices(tensor)
        follows = record.gradfunc is not None or not any(tensor.requires_grad for tensor in tensors)
        follows = follows and not record.details.is_no_grad
        context.enter_context(torch.set_grad_enabled(follows and kwargs.get("out") is None))
        context.enter_context(autocast_as(record.details.autocast))
        if not record.parents and record.device != _default_device():
            context.enter_context(record.device)
        if (
            record.dtype in DEFAULT_TYPES
            and record.dtype != torch.get_default_dtype()
            and not any(tensor.dtype == record.dtype for tensor in tensors)
        ):
            context.callback(torch.set_default_dtype, torch.get_default_dtype())
            torch.set_default_dtype(record.dtype)
        result = func(*args, **kwargs)
        for tensor in tensors_of(result) if is_of_file else ():
            refuse_stray_indices(tensor)
        return result


def _default_device() -> torch.device:
    try:
        return torch.get_default_device()
    except AttributeError:  # torch up to 2.8, after `torch.set_default_device(None)`
        return torch.device("cpu")


def refuse_without_tensors(run: LoggedRun, purpose: str, name: str = "this history") -> None:
    """Raise if the kept values are not the original tensors."""
    if not run.log.holds_tensors:
        raise InvalidArgument(
            f"{name} does not hold its tensors as they were, so there is nothing to {purpose}: it was made with "
            "activation_postfunc, or saved with dtype=. Log, or save, without it."
        )


def refuse_changed_states(run: LoggedRun) -> None:
    """Raise if parameters or buffers are absent, or have changed since the pass was logged."""
    absent = [state for state in run.log.states if state.is_absent]
    if absent:
        raise InvalidArgument(
            f"{_names(run, absent)} are not in the file of this history, so it cannot be run again. Load it with "
            "model=, or save it with params=True."
        )
    changed = [state for state in run.log.states if state.is_changed]
    if changed:
        raise InvalidArgument(
            f"{_names(run, changed)} changed since this history was logged, so it cannot be run again as it was. "
            "Log again, or restore the weights (by load_state_dict) and log."
        )


def _names(run: LoggedRun, states: list[StateRecord]) -> str:
    return few((repr(run.index.state_name(state)) for state in states), 3)


def outcome(record: OperationRecord, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Find the tensor that a record stands for, among the results of the call or the arguments that the call wrote to."""
    path = record.details.output_path
    if result is None:  # the result is the argument that the call wrote to
        return record.function.writes(args, kwargs)[path[0] if path else 0]
    return get_path(result, path)


def view_again(base: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], distance: int) -> Tensor:
    """Make a view of the memory of `base`, as `recorder.view_of` describes it."""
    with DisableTorchFunctionSubclass():
        return torch.as_strided(base, shape, strides, int(base.storage_offset()) + distance)


def at_home(tensor: Tensor, device: torch.device | None) -> Tensor:
    """Move a tensor that was kept on the CPU back to its device in the pass, if this machine has that device."""
    if device is None or device.type in ("cpu", "meta") or tensor.device.type != "cpu":
        return tensor
    kind = getattr(torch, device.type, None)
    is_there = kind is not None and kind.is_available() and (device.index or 0) < kind.device_count()
    return tensor.to(device) if is_there else tensor


def _homes(log: Log) -> dict[int, torch.device]:
    """Maps the (negative) number of a parameter or buffer to the device of the first operation that read it, if known."""
    found: dict[int, torch.device] = {}
    for row in log.rows:
        facts = row[FACTS]
        for parent in row[PARENTS:] if facts is not None else ():
            if parent < 0:
                found.setdefault(parent, facts[2])
    return found


def _reaching(log: Log) -> dict[int, list[tuple[int, int]]]:
    """Map each input or source to the aliases that reach beyond its memory, each with its offset from it in elements."""
    found: dict[int, list[tuple[int, int]]] = {}
    for number, details in log.details.items():
        if details.home is not None and details.home[0] >= 0:
            found.setdefault(details.home[0], []).append((number, details.home[1]))
    return found


def _span(shape: Sequence[int], strides: Sequence[int], distance: int) -> tuple[int, int]:
    """Return the elements that a tensor spans, as the first element and the element after the last."""
    if 0 in shape:
        return distance, distance
    return distance, distance + 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def _last_uses(log: Log, reads: Iterable[PythonReadRecord]) -> dict[int, list[int]]:
    """Map each operation to the values that no operation needs after it, so that they can be released."""
    last: dict[int, int] = {}
    for number, row in enumerate(log.rows):
        last[number] = number
        for parent in row[PARENTS:]:
            if parent >= 0:
                last[parent] = number
    for read in reads:
        last.update({parent: max(last[parent], read.before - 1) for parent in read.parents if parent >= 0})
    ends = {number: together[-1] for together in log.calls() for number in together}
    found: dict[int, list[int]] = {}
    for number, use in last.items():
        found.setdefault(ends[use], []).append(number)
    return found


Told = TypeVar("Told", bound=Observer)


def run_again(log: Log, inputs: Mapping[int, Tensor], observer: Callable[[], Told]) -> Told:
    """Run a log again and return the observer. If a call would write to a parameter, start again with copied parameters."""
    told = observer()
    try:
        Machine(log, inputs, told).run()
    except WouldWrite:
        told = observer()
        Machine(log, inputs, told, borrow=False).run()
    return told
