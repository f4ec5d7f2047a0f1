"""`Finding` and `Diagnosis` say what is wrong with a logged pass, worst first; `Checkup` holds the data that all checks read.

The checks themselves are in `nonfinite.py` (where NaN and infinity begin, and why) and `findings.py` (everything else). A check
takes a `Checkup` and yields findings. A check that cannot read a value says nothing about it: `Checkup.unread` counts these.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, overload

import torch
from torch import Tensor

from .._text import Shown, plural
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.measure import dense, norm, real
from .._torch.memory import has_memory
from .._torch.source_code import SourceLine
from ..errors import TorcheerError
from ..log.operation import OperationFacts
from ..log.records import UNSAVED, OperationRecord
from ..log.run import Index, LoggedRun
from ..log.templates import fill_call

Severity = Literal["error", "warning", "note"]
SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")  # worst first
_TITLES: Final = {"error": "Error", "warning": "Warning", "note": "Note"}
_MOST_OF_A_KIND = 5  # at most this many findings of one kind and severity are listed; the others are counted


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of finding: what it means, and what to do about it."""

    meaning: str
    advice: str = ""


# Every kind of finding, by name. docs/diagnosis.md lists them.
KINDS: Final[dict[str, Kind]] = {
    "nonfinite": Kind("NaN or infinity begins at this operation, or a parameter holds NaN."),
    "nonfinite gradient": Kind("A gradient begins to be NaN or infinite at this operation."),
    "near overflow": Kind(
        "Values are in the upper half of what their dtype can hold.",
        "A slightly larger input overflows to infinity. Use bfloat16 or float32 here, or scale the values.",
    ),
    "dead units": Kind(
        "Units of a ReLU are 0 for every sample and position.",
        "Their weights get no gradient. Look at the learning rate and at the biases before them.",
    ),
    "saturated units": Kind(
        "Results of tanh or sigmoid are at the ends of their range.",
        "Their gradient is nearly 0. Scale the values before the function down, or normalise them.",
    ),
    "growing scale": Kind(
        "The scale grows by 100× or more along a row of equal blocks.",
        "In float16 it may overflow. Scale the residual branches, or normalise before them.",
    ),
    "vanishing activations": Kind(
        "The scale shrinks to a hundredth or less along a row of equal blocks.",
        "Look at the initialisation, or normalise between the blocks.",
    ),
    "vanishing gradients": Kind(
        "Gradients at the first layers are 10,000× smaller than at the last.",
        "Add residual connections or normalisation, or look for saturated activations.",
    ),
    "exploding gradients": Kind(
        "Gradients at the first layers are 10,000× larger than at the last.",
        "Look at the initialisation, normalise, or clip the gradients.",
    ),
    "unused parameters": Kind(
        "Parameters took no part in the pass.",
        "They get no gradient; DistributedDataParallel needs find_unused_parameters=True.",
    ),
    "no gradient": Kind(
        "Parameters took part in the pass and got no gradient.",
        "Look for detach(), torch.no_grad(), argmax or .item() between them and the loss.",
    ),
    "shared module": Kind(
        "One container holds one module with parameters several times: `[nn.Linear(8, 8)] * 3`.",
        "If the layers should learn apart, make each with a call of its own.",
    ),
    "removed bias": Kind(
        "A batch norm removes the bias of the layer before it.",
        "Pass bias=False to these layers: the norm has a bias of its own.",
    ),
    "constant output": Kind(
        "An output is the same for every sample, although the samples differ.",
        "Look for dead units, for a softmax over the batch, or for an input that is not used.",
    ),
    "broadcast": Kind(
        "(N, 1) is combined with (N,), which gives (N, N).",
        "Squeeze or view one of them, so that both have the same shape.",
    ),
    "softmax axis": Kind(
        "A softmax runs over the samples of the batch, or over another dimension than the product behind it sums.",
        "Pass the dimension of the classes, or of the keys of an attention: usually dim=-1.",
    ),
    "two softmaxes": Kind(
        "The input of a softmax is the result of a softmax.",
        "Remove the first one: a second softmax flattens the probabilities.",
    ),
    "softmax before loss": Kind(
        "A loss gets probabilities, and computes the softmax or the sigmoid itself.",
        "Give the loss the logits (cross_entropy, binary_cross_entropy_with_logits) or log_softmax (nll_loss).",
    ),
    "training in evaluation": Kind(
        "Dropout, or statistics of the batch, in a model that is in evaluation mode.",
        "Use nn.Dropout, pass training=self.training, or call eval() on the module.",
    ),
    "batch norm on one sample": Kind(
        "Batch norm in training on a batch of one sample.",
        "Use a larger batch, GroupNorm, or eval().",
    ),
    "python read": Kind(
        "Python reads values inside the model.",
        "On a GPU each read waits for all work before it, and torch.compile breaks its graph there.",
    ),
    "silent cast": Kind(
        "An operation widens its values because one argument has a wider dtype.",
        "Make tensors and buffers in the dtype of the model.",
    ),
    "large copy": Kind(
        "A large tensor is copied only to be contiguous.",
        "Choose an order of dimensions in which no copy is needed, or channels_last throughout.",
    ),
    "computed twice": Kind("Two calls have the same function and the same arguments.", "Keep the first result."),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found: what, how bad, where, the numbers behind it, and what to do."""

    kind: str  # one of `KINDS`
    severity: Severity
    message: str
    advice: str = ""
    label: str = ""  # the operation; empty for a finding about a parameter or the whole model
    module: str = ""  # the address of the module around the operation, or of the parameter's module
    source: SourceLine | None = None
    numbers: Mapping[str, float | int | str] = field(default_factory=dict)

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.label, self.module, str(self.source) if self.source is not None else "")))
        advice = f" {self.advice}" if self.advice else ""
        return f"{_TITLES[self.severity]}: {self.message}{f' [{where}]' if where else ''}{advice}"

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain values, for JSON. Numbers that JSON cannot hold are texts."""
        source = self.source
        return {
            "kind": self.kind,
            "severity": self.severity,
            "message": self.message,
            "advice": self.advice,
            "label": self.label,
            "module": self.module,
            "source": str(source) if source is not None else "",
            "numbers": {
                name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
                for name, value in self.numbers.items()
            },
        }


class Diagnosis(Shown, Sequence[Finding]):
    """The findings about one pass, worst first. Empty if nothing was found.

    `checked` says what was read: a value that was not kept cannot be judged.
    """

    __slots__ = ("_findings", "_run", "checked", "title")

    def __init__(self, run: LoggedRun, findings: Iterable[Finding], checked: Sequence[str]) -> None:
        self._run = run
        self.title = run.log.title
        self._findings = sorted(findings, key=lambda one: SEVERITIES.index(one.severity))
        self.checked = tuple(checked)

    @overload
    def __getitem__(self, place: int) -> Finding: ...
    @overload
    def __getitem__(self, place: slice) -> list[Finding]: ...
    def __getitem__(self, place: int | slice) -> Finding | list[Finding]:
        return self._findings[place]

    def __len__(self) -> int:
        return len(self._findings)

    def of(self, kind: str) -> list[Finding]:
        """The findings of one kind."""
        return [one for one in self if one.kind == kind]

    @property
    def history(self) -> Any:
        """The `ModelHistory` of the pass: `diagnosis.history[finding.label]` is the operation."""
        return self._run.history

    @property
    def errors(self) -> list[Finding]:
        """The findings that make the result wrong or unusable."""
        return [one for one in self if one.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that are probably not meant."""
        return [one for one in self if one.severity == "warning"]

    @property
    def notes(self) -> list[Finding]:
        """The findings that are worth knowing, and often meant."""
        return [one for one in self if one.severity == "note"]

    @property
    def is_healthy(self) -> bool:
        """True if there is no error and no warning."""
        return not self.errors and not self.warnings

    def to_dict(self) -> dict[str, Any]:
        """The whole diagnosis as plain values, for JSON."""
        return {
            "model": self.title,
            "healthy": self.is_healthy,
            "findings": [one.to_dict() for one in self],
            "checked": list(self.checked),
        }

    def _counts(self) -> str:
        found = [plural(sum(one.severity == severity for one in self), severity) for severity in SEVERITIES]
        said = [words for words in found if not words.startswith("0 ")]
        return ", ".join(said) or "nothing found"

    def __str__(self) -> str:
        lines = [f"Diagnosis of {self.title}: {self._counts()}."]
        shown: dict[tuple[str, str], int] = {}
        for one in self:
            key = (one.severity, one.kind)
            shown[key] = shown.get(key, 0) + 1
            if shown[key] <= _MOST_OF_A_KIND:
                lines.append(f"\t{_TITLES[one.severity]}: {one.message}")
                where = [one.label, f"in {one.module}" if one.module else "", f"at {one.source}" if one.source else ""]
                if any(where):
                    lines.append(f"\t\t{', '.join(filter(None, where))}")
                if one.advice:
                    lines.append(f"\t\t{one.advice}")
        for (severity, kind), count in shown.items():
            if count > _MOST_OF_A_KIND:
                lines.append(f"\t… {plural(count - _MOST_OF_A_KIND, f'more {severity}')} of the kind {kind!r}")
        lines.append(f"\tChecked: {'; '.join(self.checked)}.")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Reading:
    """Statistics of one tensor's values. Extremes and magnitude are of the finite values; 0 if there are none."""

    count: int
    nan: int = 0
    positive_infinity: int = 0
    negative_infinity: int = 0
    low: float = 0.0
    high: float = 0.0
    magnitude: float = 0.0  # root mean square

    @property
    def infinite(self) -> int:
        return self.positive_infinity + self.negative_infinity

    @property
    def nonfinite(self) -> int:
        return self.nan + self.infinite

    @property
    def largest(self) -> float:
        """The largest absolute value."""
        return max(abs(self.low), abs(self.high))


def read(tensor: Tensor) -> Reading | None:
    """Read a tensor's values once; None if the tensor has no values or torch cannot compute with them."""
    with DisableTorchFunction(), torch.no_grad():
        try:
            values = dense(tensor) if has_memory(tensor) else None  # fully_shard frees gathered parameters
            return _read(values) if values is not None else None
        except RuntimeError:  # a dtype or layout without kernels, such as float4_e2m1fn_x2
            return None


def _read(values: Tensor) -> Reading:
    if values.numel() == 0:
        return Reading(0)
    if values.dtype is torch.bool:
        return Reading(values.numel(), high=float(values.any()))
    numbers = real(values)
    low, high = (float(end) for end in numbers.aminmax())
    if not (values.is_floating_point() or values.is_complex()):
        return Reading(values.numel(), low=low, high=high)
    if math.isfinite(low) and math.isfinite(high):
        return Reading(values.numel(), low=low, high=high, magnitude=_root_mean_square(numbers))
    nan = int(numbers.isnan().sum())
    above, below = int((numbers == math.inf).sum()), int((numbers == -math.inf).sum())
    finite = numbers[numbers.isfinite()]
    if not finite.numel():
        return Reading(values.numel(), nan, above, below)
    low, high = (float(end) for end in finite.aminmax())
    return Reading(values.numel(), nan, above, below, low, high, _root_mean_square(finite))


def _root_mean_square(numbers: Tensor) -> float:
    found = float(norm(numbers)) / math.sqrt(numbers.numel())
    return found if math.isfinite(found) else float(norm(numbers.double())) / math.sqrt(numbers.numel())


class Checkup:
    """One pass while it is checked: its index, and readings of its tensors."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self.log = index.log
        self._readings: dict[int, Reading | None] = index.kept.setdefault("readings", {})  # each tensor is read once
        self._gradients: dict[int, Reading | None] = {}
        self._uninitialised: dict[int, bool] = {}  # by operation
        self._origins: dict[int, int] = {}  # operation -> the operation behind views

    @property
    def operations(self) -> list[int]:
        return self.index.operations

    def record(self, number: int) -> OperationRecord:
        return self.log.operations[number]

    def name(self, number: int) -> str:
        """The plain name of the function of an operation."""
        return self.record(number).function.plain_name

    def value(self, number: int) -> Tensor | None:
        """The kept tensor of an operation, or a parameter (negative numbers). None if the values cannot be read."""
        try:
            if number < 0:
                value = self.index.state_value(number, "the diagnosis")
            else:
                if not self.log.holds_tensors or self.log.values[number] is UNSAVED:
                    return None
                value = OperationFacts(self.index, number).tensor_contents
        except TorcheerError:
            return None
        return value if isinstance(value, Tensor) else None

    def reading(self, number: int) -> Reading | None:
        """The `Reading` of an operation's tensor or a parameter; None if it cannot be read. Real and complex numbers only."""
        if number not in self._readings:
            value = self.value(number) if not self.is_uninitialised(number) else None
            is_number = value is not None and (value.is_floating_point() or value.is_complex())
            self._readings[number] = read(value) if value is not None and is_number else None
        return self._readings[number]

    def is_uninitialised(self, number: int) -> bool:
        """True for memory that holds anything, also where a part of it was written: `x.new_empty(4)`, `x[:2] = y`."""
        chain: list[int] = []
        while number >= 0 and number not in self._uninitialised:
            chain.append(number)
            before = self._holder_before(number)
            if before is None:
                self._uninitialised[number] = self.name(number) in groups.UNINITIALISED
            else:
                number = before
        found = self._uninitialised.get(number, False)
        self._uninitialised.update(dict.fromkeys(chain, found))
        return found

    def _holder_before(self, number: int) -> int | None:
        """The tensor whose memory an operation hands on or writes a part of; None if the operation makes its result."""
        record = self.record(number)
        name = record.function.plain_name
        if not record.parents or name in groups.UNINITIALISED:
            return None
        if name == "set_data":  # the parameter of a lazy module
            return record.parents[-1]
        hands_on = passes_through(record) or record.function.is_view or name in ("setitem", "getitem")
        return record.parents[0] if hands_on else None

    def argument(self, number: int, slot: int) -> Tensor | None:
        """The tensor that an operation's function got as this argument. None if its values cannot be read."""
        try:
            value = OperationFacts(self.index, number)._argument(slot)
        except TorcheerError:
            return None
        return value if isinstance(value, Tensor) else None

    def argument_reading(self, number: int, slot: int) -> Reading | None:
        """The `Reading` of an argument. If the argument is the tensor of the parent, the parent's reading is used."""
        record = self.record(number)
        parent = record.parents[slot]
        if slot not in (record.details.held or {}):
            return self.reading(parent)
        value = self.argument(number, slot)
        return read(value) if value is not None else None

    def argument_readings(self, number: int) -> list[Reading | None]:
        return [self.argument_reading(number, slot) for slot in range(len(self.record(number).parents))]

    def gradient(self, number: int) -> Tensor | None:
        """The gradient of an operation's tensor or of a parameter in the last backward pass."""
        backward = self.log.backward
        return backward.passes[-1].gradient(number) if backward is not None and backward.passes else None

    def gradient_reading(self, number: int) -> Reading | None:
        """The `Reading` of a gradient; None if there is no gradient."""
        if number not in self._gradients:
            gradient = self.gradient(number)
            self._gradients[number] = read(gradient) if gradient is not None else None
        return self._gradients[number]

    def call(self, number: int) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Positional and keyword arguments of an operation with their tensors; None if a tensor cannot be read."""
        record = self.record(number)
        tensors = [self.argument(number, slot) for slot in range(len(record.parents))]
        if any(tensor is None for tensor in tensors):
            return None
        try:
            return fill_call(record.template, record.names, iter(tensors))
        except (LookupError, StopIteration, TypeError, ValueError):
            return None

    def plain_arguments(self, number: int) -> list[Any]:
        """The arguments of an operation that are not tensors, including those in nested containers."""
        found: list[Any] = []
        waiting = list(self.record(number).template)
        while waiting:
            value = waiting.pop()
            if isinstance(value, (list, tuple)):
                waiting.extend(value)
            elif isinstance(value, dict):
                waiting.extend(value.values())
            else:
                found.append(value)
        return found

    def option(self, number: int, position: int, name: str, default: Any = None) -> Any:
        """An argument that is not a tensor, by name or by position."""
        record = self.record(number)
        kwargs, args = record.kwargs, record.args
        if name in kwargs:
            return kwargs[name]
        return args[position] if 0 <= position < len(args) else default

    def is_from_input(self, number: int) -> bool:
        return number >= 0 and bool(self.index.from_input[number])

    @cached_property
    def ends(self) -> list[int]:
        """The outputs; for a recorded block without outputs, the operations whose tensor no operation used."""
        outputs = sorted(self.index.outputs)
        return outputs or [n for n in self.operations if not self.index.children.get(n)]

    @cached_property
    def is_evaluating(self) -> bool:
        """True if the outermost module of the pass was in evaluation mode."""
        outer = [call for call in self.log.modules if call.outer is None]
        return bool(outer) and not any(call.training for call in outer)

    @cached_property
    def has_untrained_norms(self) -> bool:
        """True if a batch norm used running statistics that are still 0 and 1: the scale of later values then means nothing."""
        for number in self.operations:
            if self.name(number) in groups.BATCH_NORMS and len(self.record(number).parents) > 2:
                mean, variance = (self.argument_reading(number, slot) for slot in (1, 2))
                if mean is not None and variance is not None and mean.largest == 0 and variance.low == variance.high == 1:
                    return True
        return False

    @cached_property
    def batch(self) -> int | None:
        """The size of the batch: the first dimension that all floating-point inputs, or else all inputs, share."""
        inputs = [self.record(n) for n in self.index.of_origin(Origin.INPUT)]
        shapes = [one.shape for one in inputs if one.shape and one.dtype.is_floating_point] or [
            one.shape for one in inputs if one.shape
        ]
        sizes = {shape[0] for shape in shapes}
        return sizes.pop() if len(sizes) == 1 else None

    def find(
        self,
        kind: str,
        severity: Severity,
        message: str,
        number: int | None = None,
        *,
        advice: str | None = None,
        module: str = "",
        **numbers: float | int | str,
    ) -> Finding:
        """Make a finding about an operation. If `number` is None, it is about a parameter or the whole model."""
        advice = KINDS[kind].advice if advice is None else advice
        if number is None:
            return Finding(kind, severity, message, advice, module=module, numbers=numbers)
        one = OperationFacts(self.index, number)
        return Finding(kind, severity, message, advice, one.label, one.containing_module or "", one.source, numbers)

    def label(self, number: int) -> str:
        """The label of an operation, or the name of a parameter or buffer."""
        if number < 0:
            return self.index.state_name(self.index.state(number))
        return self.index.label(number)

    def origin_of(self, number: int) -> int:
        """The operation behind views, conversions of layout and dropout that does nothing."""
        chain: list[int] = []
        while number >= 0 and number not in self._origins:
            chain.append(number)
            record = self.record(number)
            if not record.parents or not passes_through(record):
                self._origins[number] = number
            else:
                number = record.parents[0]
        found = self._origins.get(number, number)
        self._origins.update(dict.fromkeys(chain, found))
        return found

    def readable(self) -> Iterator[tuple[int, Reading]]:
        """The operations whose values can be read, with the readings, in execution order."""
        for number in self.operations:
            reading = self.reading(number)
            if reading is not None:
                yield number, reading


_PASSING = frozenset(
    "view reshape flatten unflatten squeeze unsqueeze expand expand_as view_as contiguous transpose permute t movedim "
    "transpose_ clone detach alias ravel .T .mT .H .mH dropout dropout1d dropout2d dropout3d".split()
)


def passes_through(record: OperationRecord) -> bool:
    """True for an operation that returns the values of its first argument in another arrangement."""
    return record.origin in (Origin.ALIAS, Origin.OUTPUT) or record.function.plain_name in _PASSING


def amount(value: float) -> str:
    """Write a number of a finding in few characters: `71,000`, `-0.02`, `3.4e+38`.

    >>> amount(71000.0), amount(-0.02), amount(3.4e38), amount(12.0)
    ('71,000', '-0.02', '3.4e+38', '12')
    """
    if value == int(value) and abs(value) < 1e7 if math.isfinite(value) else False:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) < 1e7 else f"{value:.3g}"
