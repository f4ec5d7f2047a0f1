"""One of the two compared histories: its operations as steps, with the features by which they are recognised."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from .._text import few
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from ..errors import InvalidArgument
from ..graph import matching
from ..graph.matching import Signature, Step
from ..history import ModelHistory, Operation
from ..log.records import TEMPLATE, AbsentTensor, OperationRecord
from ..log.run import run_of
from .measures import absolute_values, is_measurable


class Side(matching.Side):
    """One history: its steps, values and wiring. `rename` translates addresses of this history to those of the other."""

    def __init__(self, history: ModelHistory, rename: Callable[[str], str] = str) -> None:
        self.history = history
        self.index = run_of(history).index
        self.log = self.index.log
        self.rename = rename
        self._values: dict[int, Tensor | None] = {}
        self._value_signatures: dict[int, Signature | None] = {}
        self._state_signatures: dict[int, Signature | None] = {}
        records = [self.log.operations[number] for number in self.index.operations]
        inputs = [record.number for record in records if record.origin is Origin.INPUT]
        outputs = [record.number for record in records if record.origin is Origin.OUTPUT]
        stacks: dict[int, tuple[int, ...]] = {}  # number of a module call -> the calls around it
        super().__init__((self._step(record, stacks) for record in records), inputs, outputs)

    def _step(self, record: OperationRecord, stacks: dict[int, tuple[int, ...]]) -> Step:
        call = record.module
        if call is not None and call.number not in stacks:
            stacks[call.number] = tuple(one.number for one in call.stack())
        parents = record.parents
        exits = self.index.exits.get(record.number, ())
        return Step(
            number=record.number,
            type=record.function.type,
            shape=record.shape,
            address=self.rename(call.address) if call is not None else "",
            call=call.call if call is not None else 0,
            calls=stacks[call.number] if call is not None else (),
            states=tuple(parent for parent in parents if parent < 0),
            leaves=tuple(f"{one.class_name} {self.rename(one.address)}" for one in exits),
            parents=parents,
            dependencies=record.dependencies,
            role=self.operation(record.number).io_role if record.origin in (Origin.INPUT, Origin.OUTPUT) else "",
            path=record.details.output_path,
            is_commutative=record.function.is_commutative,
        )

    def operation(self, number: int) -> Operation:
        return Operation(self.index, number)

    def value(self, number: int) -> Tensor | None:
        """The kept activation of an operation; None if it was not kept, was lost, or cannot be measured."""
        if number not in self._values:
            value = self.log.values[number]
            self._values[number] = value if is_measurable(value) and not self.log.is_lost(number) else None
        return self._values[number]

    def arguments(self, number: int) -> Any:
        return self.log.rows[number][TEMPLATE]

    def state_name(self, reference: int) -> str:
        """The name of the parameter or buffer with a negative number."""
        return self.index.state_name(self.index.state(reference))

    def stack(self, number: int) -> tuple[int, ...]:
        """The numbers of the module calls around an operation, outermost first."""
        return self.every[number].calls

    @cached_property
    def varying(self) -> set[int]:
        """The operations that depend on an input, a parameter or a buffer; the others are constants."""
        found: set[int] = set()
        for record in self.log.operations:
            parents = record.dependencies
            if record.origin is Origin.INPUT or any(parent < 0 or parent in found for parent in (*record.parents, *parents)):
                found.add(record.number)
        return found

    def state_signature(self, reference: int) -> Signature | None:
        """The signature of a parameter or buffer. It does not change if the tensor is transposed or permuted."""
        if reference not in self._state_signatures:
            self._state_signatures[reference] = _state_signature(self.index.state(reference).value)
        return self._state_signatures[reference]

    def content(self, step: Step) -> tuple[Signature, ...]:
        """The signatures of a step's parameters and buffers."""
        found = [signature for state in step.states if (signature := self.state_signature(state)) is not None]
        return tuple(sorted(found))

    def value_signature(self, number: int) -> Signature | None:
        """The signature of an activation; None if it was not kept, or is constant."""
        if number not in self._value_signatures:
            value = self.value(number)
            self._value_signatures[number] = signature_of(value) if value is not None else None
        return self._value_signatures[number]

    @cached_property
    def ends(self) -> list[int]:
        """The outputs; if no tensor is returned, the operations that nothing uses."""
        return self.outputs or [step.number for step in self.steps if not self.children(step.number)]

    def children(self, number: int) -> list[int]:
        """The operations that depend on `number`, including hidden ones."""
        return self._children.get(number, [])

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for record in self.log.operations:
            for parent in dict.fromkeys(record.dependencies):
                found.setdefault(parent, []).append(record.number)
        return found

    def ancestors(self, number: int, until: Container[int]) -> list[int]:
        """The operations that `number` depends on, in order, back to the operations in `until`, which are left out."""
        found: set[int] = set()
        waiting = list(self.log.operations[number].dependencies)
        while waiting:
            one = waiting.pop()
            if one not in until and one not in found:
                found.add(one)
                waiting += self.log.operations[one].dependencies
        return sorted(found)


def first_after(
    starts: Iterable[int], following: Callable[[int], Iterable[int]], is_wanted: Callable[[int], bool]
) -> list[int]:
    """On each path from `starts`, find the first wanted operation. `following` returns the operations that come next."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = list(starts)
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            if is_wanted(one):
                found.add(one)
            else:
                waiting += following(one)
    return sorted(found)


def _state_signature(value: Tensor | AbsentTensor) -> Signature | None:
    """The signature of a parameter or buffer. If no file has the values, it is made from the saved fingerprint."""
    if not isinstance(value, AbsentTensor):
        return signature_of(value)
    mark = blake2b(value.fingerprint.encode(), digest_size=6).digest()  # a file may contain any text here
    return (value.numel(), float(int.from_bytes(mark, "big")), -1.0) if value.fingerprint else None


def signature_of(value: Tensor) -> Signature | None:
    """Return size, sum and maximum of the finite absolute values.

    Transposing does not change them, and rounding hardly changes them.
    """
    if not is_measurable(value) or value.numel() == 0:
        return None
    with DisableTorchFunction(), torch.no_grad():
        sizes = absolute_values(value)
        if not math.isfinite(float(sizes.sum())):
            sizes = torch.where(torch.isfinite(sizes), sizes, 0.0)
        total = float(sizes.sum(dtype=torch.float64))
        return value.numel(), float(f"{total:.4g}"), float(f"{float(sizes.max()):.3g}")


def renaming(names: Mapping[str, str] | None, a: ModelHistory, b: ModelHistory) -> Callable[[str], str]:
    """Make a function that translates addresses of `a` to `b`. `names` maps parts of addresses in `a` to those in `b`."""
    if names is None:
        return str
    if not isinstance(names, Mapping) or not all(isinstance(text, str) for pair in names.items() for text in pair):
        raise InvalidArgument(
            f"names is a dictionary from addresses in a to addresses in b, {{'h': 'layers'}}; got {names!r:.80}."
        )
    for history, side, parts in ((a, "a", names.keys()), (b, "b", names.values())):
        addresses = [f".{address}." for address in run_of(history).log.registered]
        for part in parts:
            if part and not any(f".{part}." in address for address in addresses):
                known = few(dict.fromkeys(address.split(".")[0] for address in run_of(history).log.registered if address), 12)
                raise InvalidArgument(f"names has {part!r}, but no module of {side} has that name. It has: {known}.")
    patterns = [
        (re.compile(rf"(?<![^.]){re.escape(old)}(?![^.])"), new)
        for old, new in sorted(names.items(), key=lambda pair: -len(pair[0]))
    ]

    def rename(address: str) -> str:
        for pattern, new in patterns:
            address = pattern.sub(lambda _, new=new: new, address)  # type: ignore[misc]  # a default that is bound early
        return address.strip(".").replace("..", ".")

    return rename
