"""FLOPs of a call, from what was recorded.

What has no formula is unknown, which is not the same as zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from .._torch.functions.facts import Origin, is_view
from .._torch.functions.flops import NOTHING, Formula, Work
from ..errors import SeveralPasses
from ..log.index import Index
from ..log.lookup import Lookup
from ..log.records import MODULE, BackwardRecord, NodeRecord, number_of
from ..log.run import HoldsRun, run_of
from .calls import FactsOf, TorchCall, calls_of
from .memory import Storages

_NOT_WORK = frozenset({Origin.INPUT, Origin.OUTPUT, Origin.SOURCE, Origin.ALIAS})


def work_of(call: TorchCall, formulas: Mapping[str, Formula] | None = None) -> Work | None:
    """What a call costs; None where that is not known. Backward is counted where autograd followed the call.

    `formulas` are asked first. They are by plain name (`add` for `add_` and `__iadd__`; `library::name` for the operators of
    other libraries), and return `Work`, or None to leave it unknown.
    """
    origin = call.function.origin
    if origin in _NOT_WORK:
        return NOTHING
    given = formulas.get(call.name) if formulas else None
    if origin is Origin.OPAQUE and given is None:
        return None
    found = given or call.function.formula
    if found is None:
        return NOTHING if is_view(call.name.removesuffix("_copy")) else None
    try:
        work = found(call)
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError, ZeroDivisionError):  # not called as expected
        return None
    if work is None or not work.flops:
        return work
    if not call.has_known_shapes:
        return None
    return work if call.node is not None else work._replace(backward=0)


# Backward time: what autograd's nodes took, counted where they belong.
#
# A node belongs to the operation it came from, and with it to the module that ran it; one that adds up the gradient
# of a parameter belongs to the module that has the parameter. All backward passes are summed.

NONE = -1


def backward_passes(index: Index) -> list[BackwardRecord]:
    """Those that ran so far."""
    return index.log.backward.passes if index.log.backward is not None else []


class BackwardTime:
    """Nanoseconds of all nodes that ran so far, once by operation and once by module."""

    def __init__(self, index: Index, payers: Mapping[int, int]) -> None:
        self._index = index
        self._payers = payers  # the operation that pays for the call which made an operation, where one is shown
        self.by_operation: Counter[int] = Counter()  # NONE: of parameters, and what no shown operation pays for
        self.by_call: Counter[int] = Counter()  # by number of the module call; NONE: in none
        self.by_address: Counter[str] = Counter()  # of modules that have a parameter and were not called
        for one in backward_passes(index):
            for record in one.nodes:
                self._count(record)

    def _count(self, record: NodeRecord) -> None:
        number, elapsed = record.operation, record.elapsed
        index = self._index
        if number < 0 and record.role == "accumulation":
            self.by_operation[NONE] += elapsed
            self._count_parameter(number, elapsed)
        elif 0 <= number < index.length:
            call = index.log.rows[number][MODULE]
            self.by_operation[self._payers.get(number, NONE)] += elapsed
            self.by_call[call if call < index.module_count else NONE] += elapsed
        else:
            self.by_operation[NONE] += elapsed
            self.by_call[NONE] += elapsed

    def _count_parameter(self, number: int, elapsed: int) -> None:
        index = self._index
        names = index.state_names.get(id(index.state(number).tensor), ())
        address = names[0].rpartition(".")[0] if names else None
        if address is not None and address not in index.calls:
            self.by_address[address] += elapsed
        else:
            self.by_call[index.calls[address][0].number if address is not None else NONE] += elapsed


# Cost: FLOPs, time and traffic of every operation, layer and module, and of the whole pass.
#
# Worked out after the pass, on first use, in one sweep over the log. A call that made several tensors is paid for
# once: by the first of them that is shown. What ran but is not shown (operations connected to nothing) is part of its
# module and of the total. The time of backward passes is added on top, whenever there is more of it.


@dataclass(frozen=True, slots=True)
class Expense:
    """What something cost. Expenses add up with `+`."""

    flops: int = 0
    macs: int = 0
    backward_flops: int = 0
    seconds: float = 0.0  # spent in the functions themselves
    # spent in autograd's nodes, in all backward passes together; None where none was followed
    backward_seconds: float | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    parameter_bytes: int = 0  # the part of `bytes_read` that is parameters
    unknown: int = 0  # calls without a formula; their FLOPs are in no sum
    untimed: int = 0  # calls in code that cannot be watched; their seconds are in no sum

    def __add__(self, other: Expense) -> Expense:
        return sum_of([self, other])

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte read or written; None where a formula is missing, or nothing was."""
        moved = self.bytes_read + self.bytes_written
        return self.flops / moved if moved and not self.unknown else None


_FIELDS = tuple(field.name for field in fields(Expense))
_FREE = Expense()


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """What a module cost: `own` is what ran in it but in no module inside, `total` is everything that ran in it.

    `seconds` in those is time spent in functions, `backward_seconds` in autograd's nodes. `elapsed` is from entry to exit of
    its calls, `own_elapsed` without the calls of modules inside; both contain the recording's own work.
    """

    address: str
    own: Expense
    total: Expense
    elapsed: float
    own_elapsed: float


class Cost:
    """What a pass cost. The totals are properties; parts are asked for by label or address.

    Backward passes that run later are included when they have run.
    """

    def __init__(self, index: Index, formulas: Mapping[str, Formula] | None = None) -> None:
        self._index = index
        self._formulas = dict(formulas or {})
        self._made: tuple[int, _Parts] | None = None

    @cached_property
    def _sweep(self) -> _Sweep:
        return _Sweep(self._index, self._formulas)

    @property
    def _parts(self) -> _Parts:
        nodes = sum(len(one.nodes) for one in backward_passes(self._index))
        if self._made is None or self._made[0] != nodes:
            self._made = (nodes, _Parts(self._index, self._sweep))
        return self._made[1]

    # The whole pass -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> Expense:
        """The whole pass."""
        return self._parts.total

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass, where they are known."""
        return self.total.flops

    @property
    def macs(self) -> int:
        """Multiply-accumulates: the part of `flops` that is matrix products and convolutions, two FLOPs each."""
        return self.total.macs

    @property
    def backward_flops(self) -> int:
        """Floating-point operations that a backward pass through everything autograd followed would take."""
        return self.total.backward_flops

    @property
    def seconds(self) -> float:
        """Seconds spent in the functions themselves."""
        return self.total.seconds

    @property
    def backward_seconds(self) -> float | None:
        """Seconds spent in autograd's nodes, in all backward passes that were followed; None where none was.

        Needs `save_gradients`, and `history.log_backward(loss)` or `loss.backward()`.
        """
        return self.total.backward_seconds

    @property
    def unknown(self) -> Counter[str]:
        """How often each function ran for which there is no formula. Their FLOPs are missing from every sum."""
        return Counter(self._sweep.unknown)

    @property
    def untimed(self) -> Counter[str]:
        """How often each function ran in code that cannot be watched (TorchScript). Their seconds are in no sum."""
        return Counter(self._sweep.untimed)

    @property
    def hidden(self) -> Expense:
        """The part of the total that no shown operation pays for: work connected to neither input nor output.

        Of backward time, also what adds up the gradients of parameters.
        """
        return self._parts.hidden

    @property
    def elsewhere(self) -> Expense:
        """The part of the total that is in no module: the user's own code and loss, gradients of inputs."""
        return self._parts.elsewhere

    # Parts ----------------------------------------------------------------------------------------------------------

    def operation(self, key: Any) -> Expense:
        """One operation, by label or any other key that means one: `cost.operation("conv2d_1")`."""
        found = Lookup(self._index).find(key)
        if found.number is None:
            label = self._index.table.label(found.layer)
            raise SeveralPasses(
                f"{label} has {len(found.layer.passes)} passes: ask for one of them ({label}:1, …), or for layer({label!r})."
            )
        return self.of_operation(found.number)

    def of_operation(self, number: int) -> Expense:
        """One operation, by its number."""
        return self._parts.of_operation(number)

    def layer(self, key: Any) -> Expense:
        """All passes of a layer together."""
        entry = Lookup(self._index).find(key).layer
        return sum_of([self._parts.of_operation(number) for number in entry.passes])

    def module(self, key: Any) -> ModuleCost:
        """All calls of a module together, by address; `""` is the model itself."""
        return self._parts.of_module(self._index.address_of_module(getattr(key, "address", key)))

    def __repr__(self) -> str:
        total = self.total
        missing = f", {total.unknown} calls unknown" if total.unknown else ""
        backward = f", backward {total.backward_seconds:.3E} s" if total.backward_seconds is not None else ""
        return f"Cost({total.flops:,} FLOPs, {total.macs:,} MACs, {total.seconds:.3E} s{backward}{missing})"


def cost_of(history: HoldsRun, formulas: Mapping[str, Formula] | None = None) -> Cost:
    """What a pass cost: FLOPs, MACs, seconds, bytes; in total, and by operation, layer and module.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Linear(4, 8), torch.ones(2, 4))
    >>> cost = cost_of(history)
    >>> cost.flops, cost.macs, cost.operation("linear_1").flops
    (128, 64, 128)

    Args:
        history: what `log_forward_pass` or `recording` returned; activations need not be kept.
        formulas: how to count functions torcheer does not know, by name (`library::name` for other libraries' operators):
            a function of a `TorchCall` that returns `Work`.

    A FLOP is counted as docs/cost.md says. Nothing is computed until it is asked for.
    """
    return Cost(run_of(history).index, formulas)


def flops_of(index: Index) -> Mapping[int, int | None]:
    """The FLOPs of every operation; None where no formula is known. The first tensor of a call has those of the call."""
    if "flops" not in index.kept:
        index.kept["flops"] = _flops(_Sweep(index, {}))
    found: dict[int, int | None] = index.kept["flops"]
    return found


def _flops(sweep: _Sweep) -> dict[int, int | None]:
    flops = {number: None if expense.unknown else expense.flops for number, expense in sweep.by_operation.items()}
    return flops | {number: None for number, payer in sweep.payers.items() if flops[payer] is None}


class _Sweep:
    """The costs of every call of a log, by the operation that pays for it and by the module call it ran in."""

    def __init__(self, index: Index, formulas: Mapping[str, Formula]) -> None:
        log = index.log
        facts = FactsOf(log)
        storages = Storages(log, facts, index.length)
        self._index = index
        self.by_operation: dict[int, Expense] = {}
        self.payers: dict[int, int] = {}  # which operation pays for the call that made an operation, where one is shown
        self.unknown: Counter[str] = Counter()
        self.untimed: Counter[str] = Counter()
        hidden: list[Expense] = []
        parameters = frozenset(state.number for state in log.states if state.is_parameter)
        by_call: dict[int, list[Expense]] = {}
        for call in calls_of(log, facts, index.length):
            expense = self._expense(call, facts, storages, parameters, formulas)
            bearer = next((number for number in call.numbers if index.table.shows(number)), None)
            if bearer is None:
                hidden.append(expense)
            else:
                self.by_operation[bearer] = expense
                self.payers.update(dict.fromkeys(call.numbers, bearer))
            by_call.setdefault(_home_of(call, index), []).append(expense)
        self.by_call = {number: sum_of(expenses) for number, expenses in by_call.items()}  # NONE: in no module
        self.hidden = sum_of(hidden)

    def _expense(
        self,
        call: TorchCall,
        facts: FactsOf,
        storages: Storages,
        parameters: frozenset[int],
        formulas: Mapping[str, Formula],
    ) -> Expense:
        work = work_of(call, formulas)
        if work is None:
            self.unknown[call.name] += 1
        is_timed = call.function.origin is not Origin.OPAQUE
        if not is_timed:
            self.untimed[call.name] += 1
        flops, macs, backward = work or NOTHING
        log = self._index.log
        written = read = from_parameters = 0
        if call.function.func is not None:
            made = [n for n in call.numbers if storages.is_fresh(n) or log.operations[n].overwritten is not None]
            written = sum(map(facts.bytes, made))
            if made:
                moves = work is not None and not flops  # what only moves values reads no more than it writes
                for number in dict.fromkeys(call.parents):
                    size = min(facts.bytes(number), written) if moves else facts.bytes(number)
                    read += size
                    from_parameters += size if number in parameters else 0
        seconds, missing = call.elapsed / 1e9, int(work is None)
        return Expense(flops, macs, backward, seconds, None, read, written, from_parameters, missing, int(not is_timed))


def _home_of(call: TorchCall, index: Index) -> int:
    """The number of the module call that a call belongs to: what a module that cannot be watched returned is its own."""
    if call.function.origin is Origin.OPAQUE:
        for left in index.exits.get(call.numbers[0], ()):
            if number_of(left.outer) == call.module:
                return left.number
    return call.module


class _Parts:
    """The costs of a log and its backward passes so far, put together."""

    def __init__(self, index: Index, sweep: _Sweep) -> None:
        self._index = index
        self._sweep = sweep
        self._backward = backward = BackwardTime(index, sweep.payers)
        self._is_followed = bool(backward_passes(index))
        self._free = self._with(_FREE, 0)
        numbers = {**sweep.by_call, **backward.by_call}
        self._own = {number: self._with(sweep.by_call.get(number, _FREE), backward.by_call[number]) for number in numbers}
        self.hidden = self._with(sweep.hidden, backward.by_operation[NONE])
        self.elsewhere = self._own.get(NONE, self._free)
        self.total = self._with(sum_of([*self._own.values()]), backward.by_address.total())

    def _with(self, expense: Expense, nanoseconds: int) -> Expense:
        """An expense with more backward time, if there is any to know."""
        if not self._is_followed:
            return expense
        return replace(expense, backward_seconds=(expense.backward_seconds or 0.0) + nanoseconds / 1e9)

    def of_operation(self, number: int) -> Expense:
        return self._with(self._sweep.by_operation.get(number, _FREE), self._backward.by_operation[number])

    @cached_property
    def _modules(self) -> dict[str, ModuleCost]:
        log = self._index.log
        total = dict(self._own)
        inside = dict.fromkeys(range(len(log.modules)), 0)
        for call in reversed(log.modules):
            if call.outer is not None:
                total[call.outer.number] = total.get(call.outer.number, self._free) + total.get(call.number, self._free)
                inside[call.outer.number] += call.elapsed
        found: dict[str, ModuleCost] = {}
        for address, calls in self._index.calls.items():
            outermost = [call for call in calls if not call.is_nested]
            own = sum(call.elapsed - inside[call.number] for call in calls)
            found[address] = ModuleCost(
                address,
                sum_of([self._own.get(call.number, self._free) for call in calls]),
                sum_of([total.get(call.number, self._free) for call in outermost]),
                sum(call.elapsed for call in outermost) / 1e9,
                own / 1e9,
            )
        for address, elapsed in self._backward.by_address.items():
            for around in (*self._index.module_parents(address), address):
                one = found.get(around) or self._not_called(around)
                own_too = elapsed if around == address else 0
                found[around] = replace(one, own=self._with(one.own, own_too), total=self._with(one.total, elapsed))
        return found

    def of_module(self, address: str) -> ModuleCost:
        return self._modules.get(address) or self._not_called(address)

    def _not_called(self, address: str) -> ModuleCost:
        return ModuleCost(address, self._free, self._free, 0.0, 0.0)


def sum_of(expenses: list[Expense]) -> Expense:
    """Several expenses together; backward time that is not known is in no sum."""
    if len(expenses) == 1:
        return expenses[0]
    columns = ([getattr(expense, name) for expense in expenses] for name in _FIELDS)
    return Expense(*(sum(column) if None not in column else _sum_of_known(column) for column in columns)) if expenses else _FREE


def _sum_of_known(column: list[Any]) -> Any:
    known = [one for one in column if one is not None]
    return sum(known) if known else None
