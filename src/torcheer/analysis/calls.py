"""`TorchCall`: one call of a log with its arguments, shapes and results, read from rows. Needs no kept activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from .._torch.functions.facts import TorchFunction
from .._torch.functions.flops import Operand
from .._torch.internals import DisableTorchFunction
from .._torch.shapes import bytes_of, elements_of
from ..log.records import ELAPSED, FACTS, FUNCTION, MODULE, NAMES, NODE, PARENTS, TEMPLATE, Facts, Log, facts_of
from ..log.templates import fill_call


class TorchCall:
    """One call of a log. Results and tensor arguments are known by shape, dtype and device.

    Arguments are looked up by position and name, because callers use either: `call.value(3, "stride", 1)`.
    """

    __slots__ = ("_facts", "_filled", "_log", "_row", "name", "numbers")

    name: str  # the plain name of the function
    numbers: range  # the operations that are results of this call

    def __init__(self, log: Log, facts: FactsOf, numbers: range) -> None:
        self._log = log
        self._facts = facts
        self._row = log.rows[numbers[0]]
        self._filled: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        self.numbers = numbers
        self.name = facts.names[self._row[FUNCTION]]

    @property
    def function(self) -> TorchFunction:
        return self._log.functions[self._row[FUNCTION]]

    @property
    def elapsed(self) -> int:
        """Nanoseconds that the function took."""
        elapsed: int = self._row[ELAPSED]
        return elapsed

    @property
    def module(self) -> int:
        """The number of the module call that the call ran in; -1 outside all modules."""
        module: int = self._row[MODULE]
        return module

    @property
    def parents(self) -> tuple[int, ...]:
        """The operations that made the call's tensor arguments, by slot."""
        return self._row[PARENTS:]

    @property
    def results(self) -> list[Facts]:
        return [self._facts.of(number) for number in self.numbers]

    @property
    def operands(self) -> list[Operand]:
        """The tensors among the arguments, in order."""
        return [Operand(*self._facts.of(n), slot, self._facts.needs_grad(n)) for slot, n in enumerate(self.parents)]

    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._filled is None:
            self._filled = fill_call(self._row[TEMPLATE], self._row[NAMES], iter(self.operands))
        return self._filled

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, with an `Operand` for each tensor."""
        return self._arguments()[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._arguments()[1]

    def value(self, position: int, name: str, default: Any = None) -> Any:
        """An argument that is not a tensor, given by name or by position."""
        args, kwargs = self.args, self.kwargs
        if name in kwargs:
            return kwargs[name]
        return args[position] if 0 <= position < len(args) else default

    def operand(self, position: int, name: str) -> Operand:
        """An argument that must be a tensor; raises LookupError if it is not."""
        value = self.value(position, name)
        if not isinstance(value, Operand):
            raise LookupError(f"{self.name}: argument {name!r} is no tensor")
        return value

    @property
    def given(self) -> int:
        """The number of values in the first tensor argument."""
        parents = self.parents
        return elements_of(self._facts.of(parents[0])[0]) if parents else 0

    @property
    def made(self) -> int:
        """The number of values in all results together."""
        return sum(elements_of(self._facts.of(number)[0]) for number in self.numbers)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self._facts.of(self.numbers[0])[0]

    @property
    def node(self) -> str | None:
        """The autograd node of the first result that has a node."""
        rows = self._log.rows
        return next((rows[number][NODE] for number in self.numbers if rows[number][NODE] is not None), None)

    @property
    def overwritten(self) -> int | None:
        """The slot of the argument that the call overwrote with its first result."""
        return self._log.operations[self.numbers[0]].overwritten

    @property
    def is_complex(self) -> bool:
        return self._facts.any_complex and any(self._facts.of(n)[1].is_complex for n in (*self.parents, *self.numbers))

    @property
    def has_known_shapes(self) -> bool:
        """True if every logged shape is the shape that the kernel got: no ragged dimension, no `torch.func` transform."""
        details = self._log.details
        if any(n in details and details[n].is_transformed for n in self.numbers):
            return False
        if not self._facts.any_ragged:
            return True
        return all(min(self._facts.of(n)[0], default=0) >= 0 for n in (*self.parents, *self.numbers))


class FactsOf:
    """Shape, dtype and device of every operation and state of a log, by number; and the plain name of every function."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.names = [function.plain_name for function in log.functions]
        with DisableTorchFunction():
            rows, values = log.rows, log.values
            self._made: list[Facts] = [row[FACTS] or facts_of(values[n]) for n, row in enumerate(rows)]
            self._states: list[Facts] = [facts_of(state.tensor) for state in log.states]
            self._trained: list[bool] = [state.tensor.requires_grad for state in log.states]

    def of(self, number: int) -> Facts:
        return self._made[number] if number >= 0 else self._states[-1 - number]

    def bytes(self, number: int) -> int:
        shape, dtype, _ = self.of(number)
        return bytes_of(shape, dtype)

    def needs_grad(self, number: int) -> bool:
        """True if the tensor requires gradients."""
        if number < 0:
            return self._trained[-1 - number]
        return self._log.rows[number][NODE] is not None or number in self._log.leaves

    @cached_property
    def any_complex(self) -> bool:
        return any(facts[1].is_complex for facts in (*self._made, *self._states))

    @cached_property
    def any_ragged(self) -> bool:
        return any(size < 0 for facts in self._made for size in facts[0])


def calls_of(log: Log, facts: FactsOf, length: int) -> Iterator[TorchCall]:
    """The first `length` operations of a log, grouped by the call that made them."""
    return (TorchCall(log, facts, numbers) for numbers in log.calls(length))
