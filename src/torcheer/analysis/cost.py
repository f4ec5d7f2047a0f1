"""Computes FLOPs, time and memory traffic of operations, layers, modules and the whole pass: `cost_of(history)` returns `Cost`.

`work_of` counts the FLOPs of one call. A call without a formula is unknown: it is in no sum, and counted separately.
`BackwardTime` sums the time of autograd nodes by operation and module.
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
from ..log.keys import Lookup
from ..log.records import MODULE, BackwardRecord, Log, NodeRecord, number_of
from ..log.run import HoldsRun, Index, run_of
from .calls import FactsOf, TorchCall, calls_of
from .memory import Storages

_NOT_WORK = frozenset({Origin.INPUT, Origin.OUTPUT, Origin.SOURCE, Origin.ALIAS})


def work_of(call: TorchCall, formulas: Mapping[str, Formula] | None = None) -> Work | None:
    """The FLOPs of a call; None if unknown. Backward FLOPs count only if autograd recorded the call.

    `formulas` take precedence. They are keyed by plain name (`add` for `add_` and `__iadd__`; `library::name` for operators of
    other libraries); a formula returns `Work`, or None for unknown.
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
    except (
        AttributeError,
        LookupError,
        StopIteration,
        TypeError,
        ValueError,
        ZeroDivisionError,
    ):  # arguments that the formula does not expect
        return None
    if work is None or not work.flops:
        return work
    if not call.has_known_shapes:
        return None
    return work if call.node is not None else work._replace(backward=0)


# Backward time: the time of autograd's nodes, by operation and module.
#
# A node's time belongs to the operation that created the node and to the module that this operation ran in. The time of a node
# that accumulates a parameter's gradient belongs to the module that has the parameter. All backward passes are summed.

NONE = -1  # key for time that belongs to no operation, or to no module call


def backward_passes(index: Index) -> list[BackwardRecord]:
    """The backward passes that ran so far."""
    return index.log.backward.passes if index.log.backward is not None else []


class BackwardTime:
    """Nanoseconds of all autograd nodes that ran so far: summed by operation, and again by module."""

    def __init__(self, index: Index, payers: Mapping[int, int]) -> None:
        self._index = index
        self._payers = payers  # operation -> the operation that the cost of its call is assigned to
        # operation -> nanoseconds; NONE: time of parameters, and of calls without a shown operation
        self.by_operation: Counter[int] = Counter()
        self.by_call: Counter[int] = Counter()  # number of a module call -> nanoseconds; NONE: outside all modules
        self.by_address: Counter[str] = Counter()  # address of a module that has a parameter but was not called -> nanoseconds
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
# Computed on first use, in one sweep over the log. The cost of a call that made several tensors is assigned to the first
# of them that is shown. Orphans (operations that are not shown) count for their module and for the total. The time of
# backward passes is added, and updated when further backward passes have run.


@dataclass(frozen=True, slots=True)
class Expense:
    """The cost of an operation, module or pass. Expenses add up with `+`."""

    flops: int = 0
    macs: int = 0
    backward_flops: int = 0
    seconds: float = 0.0  # seconds spent in the torch functions themselves
    # spent in autograd's nodes, summed over all backward passes; None if no backward pass was recorded
    backward_seconds: float | None = None
    bytes_read: int = 0
    bytes_written: int = 0
    parameter_bytes: int = 0  # the part of `bytes_read` that is parameters
    unknown: int = 0  # number of calls without a formula, whose FLOPs are in no sum
    untimed: int = 0  # number of calls in code that cannot be watched, whose seconds are in no sum

    def __add__(self, other: Expense) -> Expense:
        return sum_of([self, other])

    @property
    def intensity(self) -> float | None:
        """FLOPs per byte read or written; None if a formula is missing or no bytes were read or written."""
        moved = self.bytes_read + self.bytes_written
        return self.flops / moved if moved and not self.unknown else None


_FIELDS = tuple(field.name for field in fields(Expense))
_FREE = Expense()


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """The cost of a module: `own` without its submodules, `total` with them.

    Their `seconds` are spent in torch functions, their `backward_seconds` in autograd's nodes. `elapsed` is the time from entry
    to exit of the module's calls, `own_elapsed` the same without calls of submodules; both include the recording's own work.
    """

    address: str
    own: Expense
    total: Expense
    elapsed: float
    own_elapsed: float


class Cost:
    """The cost of a pass. Totals are properties; methods return the cost of one operation, layer or module.

    Backward passes that run later are included after they have run.
    """

    def __init__(self, index: Index, formulas: Mapping[str, Formula] | None = None) -> None:
        self._index = index
        self._formulas = dict(formulas or {})
        self._made: tuple[int, _Parts] | None = None

    @cached_property
    def _sweep(self) -> _Sweep:
        return _Sweep(self._index, self._formulas) if self._formulas else _sweep_of(self._index)

    @property
    def _parts(self) -> _Parts:
        nodes = sum(len(one.nodes) for one in backward_passes(self._index))
        if self._made is None or self._made[0] != nodes:
            self._made = (nodes, _Parts(self._index, self._sweep))
        return self._made[1]

    # The whole pass -----------------------------------------------------------------------------------------------

    @property
    def total(self) -> Expense:
        """The cost of the whole pass."""
        return self._parts.total

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass, without calls of unknown cost."""
        return self.total.flops

    @property
    def macs(self) -> int:
        """Multiply-accumulates: the part of `flops` that is matrix products and convolutions, two FLOPs each."""
        return self.total.macs

    @property
    def backward_flops(self) -> int:
        """Floating-point operations of a backward pass through every call that autograd recorded."""
        return self.total.backward_flops

    @property
    def seconds(self) -> float:
        """Seconds spent in the torch functions themselves."""
        return self.total.seconds

    @property
    def backward_seconds(self) -> float | None:
        """Seconds spent in autograd's nodes, summed over all recorded backward passes; None if there was none.

        Needs `save_gradients`, and `history.log_backward(loss)` or `loss.backward()`.
        """
        return self.total.backward_seconds

    @property
    def unknown(self) -> Counter[str]:
        """Number of calls of each function without a formula. Their FLOPs are missing from every sum."""
        return Counter(self._sweep.unknown)

    @property
    def untimed(self) -> Counter[str]:
        """Number of calls of each function in code that cannot be watched (TorchScript). Their seconds are in no sum."""
        return Counter(self._sweep.untimed)

    @property
    def hidden(self) -> Expense:
        """The part of the total that belongs to no shown operation: work connected to neither input nor output.

        Includes the backward time of nodes that accumulate gradients of parameters.
        """
        return self._parts.hidden

    @property
    def elsewhere(self) -> Expense:
        """The part of the total outside all modules: the user's own code, the loss, gradients of inputs."""
        return self._parts.elsewhere

    # Parts ----------------------------------------------------------------------------------------------------------

    def operation(self, key: Any) -> Expense:
        """The cost of one operation, by label or any other key that means one operation: `cost.operation("conv2d_1")`."""
        found = Lookup(self._index).find(key)
        if found.number is None:
            label = self._index.table.label(found.layer)
            raise SeveralPasses(
                f"{label} has {len(found.layer.passes)} passes: ask for one of them ({label}:1, …), or for layer({label!r})."
            )
        return self.of_operation(found.number)

    def of_operation(self, number: int) -> Expense:
        """The cost of one operation, by number."""
        return self._parts.of_operation(number)

    def layer(self, key: Any) -> Expense:
        """The cost of all passes of a layer together."""
        entry = Lookup(self._index).find(key).layer
        return sum_of([self._parts.of_operation(number) for number in entry.passes])

    def module(self, key: Any) -> ModuleCost:
        """The cost of all calls of a module together, by address; `""` is the model itself."""
        return self._parts.of_module(self._index.address_of_module(getattr(key, "address", key)))

    def __repr__(self) -> str:
        total = self.total
        missing = f", {total.unknown} calls unknown" if total.unknown else ""
        backward = f", backward {total.backward_seconds:.3E} s" if total.backward_seconds is not None else ""
        return f"Cost({total.flops:,} FLOPs, {total.macs:,} MACs, {total.seconds:.3E} s{backward}{missing})"


def cost_of(history: HoldsRun, formulas: Mapping[str, Formula] | None = None) -> Cost:
    """The cost of a pass: FLOPs, MACs, seconds, bytes; in total, and by operation, layer and module.

    >>> import torch, torcheer
    >>> history = torcheer.log_forward_pass(torch.nn.Linear(4, 8), torch.ones(2, 4))
    >>> cost = cost_of(history)
    >>> cost.flops, cost.macs, cost.operation("linear_1").flops
    (128, 64, 128)

    Args:
        history: the result of `log_forward_pass` or `recording`; activations need not be kept.
        formulas: maps names of functions that torcheer does not know (`library::name` for other libraries' operators) to a
            function of a `TorchCall` that returns `Work`.

    docs/cost.md says how FLOPs are counted. Each figure is computed on first access.
    """
    return Cost(run_of(history).index, formulas)


def flops_of(index: Index) -> Mapping[int, int | None]:
    """The FLOPs of every operation; None if unknown. The FLOPs of a call belong to its first tensor."""
    if "flops" not in index.kept:
        index.kept["flops"] = _flops(_sweep_of(index))
    found: dict[int, int | None] = index.kept["flops"]
    return found


def _sweep_of(index: Index) -> _Sweep:
    """The cost of every call by the known formulas, computed once."""
    if "costs" not in index.kept:
        index.kept["costs"] = _Sweep(index, {})
    found: _Sweep = index.kept["costs"]
    return found


def _flops(sweep: _Sweep) -> dict[int, int | None]:
    flops = {number: None if expense.unknown else expense.flops for number, expense in sweep.by_operation.items()}
    return flops | {number: None for number, payer in sweep.payers.items() if flops[payer] is None}


class _Sweep:
    """The cost of every call of a log, by the operation that it is assigned to and by the module call that it ran in.

    It does not refer to the index, which keeps it: a history is freed as soon as nobody holds it.
    """

    def __init__(self, index: Index, formulas: Mapping[str, Formula]) -> None:
        log = index.log
        facts = FactsOf(log)
        storages = Storages(log, facts, index.length)
        self.by_operation: dict[int, Expense] = {}
        self.payers: dict[int, int] = {}  # operation -> the operation that the cost of its call is assigned to
        self.unknown: Counter[str] = Counter()
        self.untimed: Counter[str] = Counter()
        hidden: list[Expense] = []
        parameters = frozenset(state.number for state in log.states if state.is_parameter)
        by_call: dict[int, list[Expense]] = {}
        for call in calls_of(log, facts, index.length):
            expense = self._expense(call, log, facts, storages, parameters, formulas)
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
        log: Log,
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
        written = read = from_parameters = 0
        if call.function.func is not None:
            made = [n for n in call.numbers if storages.is_fresh(n) or log.operations[n].overwritten is not None]
            written = sum(map(facts.bytes, made))
            if made:
                moves = work is not None and not flops  # a function that only moves values reads at most what it writes
                for number in dict.fromkeys(call.parents):
                    size = min(facts.bytes(number), written) if moves else facts.bytes(number)
                    read += size
                    from_parameters += size if number in parameters else 0
        seconds, missing = call.elapsed / 1e9, int(work is None)
        return Expense(flops, macs, backward, seconds, None, read, written, from_parameters, missing, int(not is_timed))


def _home_of(call: TorchCall, index: Index) -> int:
    """The number of the module call that a call belongs to. Results of an unwatchable module belong to that module."""
    if call.function.origin is Origin.OPAQUE:
        for left in index.exits.get(call.numbers[0], ()):
            if number_of(left.outer) == call.module:
                return left.number
    return call.module


class _Parts:
    """The costs of a log's operations and modules, including the backward passes that ran so far."""

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
        """Add backward time to an expense, if a backward pass was recorded."""
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
    """The sum of expenses. Unknown backward time (None) is skipped."""
    if len(expenses) == 1:
        return expenses[0]
    columns = ([getattr(expense, name) for expense in expenses] for name in _FIELDS)
    return Expense(*(sum(column) if None not in column else _sum_of_known(column) for column in columns)) if expenses else _FREE


def _sum_of_known(column: list[Any]) -> Any:
    known = [one for one in column if one is not None]
    return sum(known) if known else None
