"""Finds where NaN and infinity begin in a pass, forward and backward, and says why.

A value *begins* to be NaN at an operation whose result holds NaN while none of its arguments does; likewise for infinity. What
a beginning leads to decides whether it is a fault: NaN in an output, or in a gradient, is an error; infinity that a softmax
or a mask removes is not a fault. `why` explains a beginning from the function and the values of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from .._cleanup import pass_interrupts_on
from .._text import few, plural
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.measure import dense, real
from ..log.run import Index
from .diagnosis import Checkup, Finding, Reading, Severity, amount, read

_MOST_SEARCHED = 1 << 30  # `print(history)` searches at most this many bytes of kept tensors for NaN and infinity
_MOST_OF_A_FILE = 1 << 26  # the same limit if the kept tensors have to be read from a file
_LIMIT_SHARE = 0.5  # values above this fraction of the largest number of a dtype are close to overflow
_TRACED = 20  # at most this many beginnings of NaN are traced back to infinity
_MOST_RUN_AGAIN = 1 << 26  # a call is computed again in float64 if its arguments have at most this many elements


def nonfinite_of(index: Index) -> list[str]:
    """Sentences that say which kept tensors hold NaN or infinity. Searches a gigabyte of kept tensors at most."""
    if not index.log.is_complete:
        return []
    checkup = Checkup(index)
    most = _MOST_SEARCHED if index.log.first_passes is None else _MOST_OF_A_FILE
    sizes = accumulate(index.tensor_bytes(number) for number in checkup.operations)
    first = [number for number, size in zip(checkup.operations, sizes, strict=True) if size <= most]
    found = [(number, reading) for number in first if (reading := checkup.reading(number)) is not None and reading.nonfinite]
    nan = [number for number, reading in found if reading.nan]
    infinite = [number for number, reading in found if not reading.nan]
    return [
        f"{plural(len(numbers), 'tensor')} {'holds' if len(numbers) == 1 else 'hold'} {what}; the first is "
        f"{checkup.label(numbers[0])}."
        for numbers, what in ((nan, "NaN"), (infinite, "infinity"))
        if numbers
    ]


# Forward ------------------------------------------------------------------------------------------------------------


class NonFinite:
    """The operations of a pass with NaN or infinity, where these begin, and what they lead to."""

    def __init__(self, checkup: Checkup) -> None:
        self.checkup = checkup
        self.spoilt = {number: reading for number, reading in checkup.readable() if reading.nonfinite}
        self.nan_begins = [n for n in self.spoilt if self.spoilt[n].nan and not self._any_argument(n, "nan")]
        self.infinity_begins = [n for n in self.spoilt if self.spoilt[n].infinite and not self._any_argument(n, "infinite")]

    def _any_argument(self, number: int, what: str) -> bool:
        if self.checkup.record(number).origin is Origin.INPUT:
            return False
        known = self.checkup.argument_readings(number)
        parents = [one for one in self.checkup.record(number).dependencies if one in self.spoilt]
        return any(one is not None and getattr(one, what) for one in known) or any(
            getattr(self.spoilt[one], what) for one in parents if one not in self.checkup.record(number).parents
        )

    def above(self, numbers: Iterable[int]) -> set[int]:
        """These operations, and all earlier operations that their NaN or infinity came from."""
        found: set[int] = set()
        waiting = [number for number in numbers if number in self.spoilt]
        while waiting:
            number = waiting.pop()
            if number not in found:
                found.add(number)
                waiting += [one for one in self.checkup.record(number).dependencies if one in self.spoilt]
        return found

    def findings(self) -> Iterator[Finding]:
        """Find where NaN begins. Then, unless an output has NaN, find where infinity begins that reaches an output."""
        ends = [number for number in self.checkup.ends if number in self.spoilt]
        behind_nan = self.above(number for number in ends if self.spoilt[number].nan)
        for turn, number in enumerate(self.nan_begins):
            before = self.above([number]) if turn < _TRACED else set()
            infinite = [one for one in self.infinity_begins if one != number and one in before]
            yield self._nan(number, infinite, number in behind_nan)
        if behind_nan:
            return  # if NaN is in the outputs, infinity in the outputs says nothing more
        behind, begun = self.above(ends), set(self.nan_begins)
        for number in self.infinity_begins:
            if number in behind and number not in begun:
                yield self._infinity(number)

    def _nan(self, number: int, infinite: list[int], reaches: bool) -> Finding:
        checkup, reading = self.checkup, self.spoilt[number]
        what, advice = why(checkup, number, "nan")
        message = (
            f"NaN begins at {function_words(checkup, number)}: {what} ({plural(reading.nan, 'value')} of {reading.count:,})"
        )
        began: dict[str, str] = {}
        if infinite:
            first = infinite[0]
            if not self._is_meant(first):
                began["began"] = checkup.label(first)
            message += f"; infinity began at {checkup.label(first)}: {why(checkup, first, 'infinite')[0]}"
        if not reaches:
            message += "; no output holds it"
            advice = "A mask or a selection removes it from the outputs. Its gradient may still be NaN: 0 times infinity."
        severity: Severity = "error" if reaches else "note"
        return checkup.find(
            "nonfinite", severity, message, number, advice=advice, nan=reading.nan, count=reading.count, **began
        )

    def _infinity(self, number: int) -> Finding:
        checkup, reading = self.checkup, self.spoilt[number]
        what, advice = why(checkup, number, "infinite")
        is_meant = self._is_meant(number)
        message = (
            f"infinity begins at {function_words(checkup, number)}: {what} ({plural(reading.infinite, 'value')} of "
            f"{reading.count:,}), and reaches an output"
        )
        return checkup.find(
            "nonfinite",
            "note" if is_meant else "error",
            message,
            number,
            advice="" if is_meant else advice,
            infinite=reading.infinite,
            count=reading.count,
        )

    def _is_meant(self, number: int) -> bool:
        """True for infinity that the program writes itself, as masks do: it is an argument of the call, or in an input."""
        return any(isinstance(one, float) and math.isinf(one) for one in self.checkup.plain_arguments(number)) or (
            self.checkup.record(number).origin in (Origin.INPUT, Origin.SOURCE)
        )


def find_nonfinite(checkup: Checkup) -> Iterator[Finding]:
    """Finds where NaN and infinity begin, and parameters and buffers whose NaN or infinity reaches an output."""
    found = NonFinite(checkup)
    ends = [number for number in checkup.ends if number in found.spoilt]
    with_nan = _states_read(checkup, found.above(n for n in ends if found.spoilt[n].nan))
    for reference in sorted(_states_read(checkup, found.above(ends)), reverse=True):
        reading, name = checkup.reading(reference), checkup.label(reference)
        if reading is None or not reading.nonfinite:
            continue
        is_parameter = checkup.index.state(reference).is_parameter
        if (reading.nan and reference in with_nan) or (reading.infinite and is_parameter):  # buffers of masks are infinite
            what, count = ("NaN", reading.nan) if reading.nan else ("infinity", reading.infinite)
            yield checkup.find(
                "nonfinite",
                "error",
                f"{'parameter' if is_parameter else 'buffer'} {name} holds {what} "
                f"({plural(count, 'value')} of {reading.count:,})",
                advice="A step of an optimizer, or a checkpoint, wrote it: load an earlier one.",
                module=name.rpartition(".")[0],
                nan=reading.nan,
                infinite=reading.infinite,
                count=reading.count,
            )
    yield from found.findings()


def _states_read(checkup: Checkup, numbers: Iterable[int]) -> set[int]:
    """The (negative) numbers of the parameters and buffers that operations read."""
    return {parent for number in numbers for parent in checkup.record(number).parents if parent < 0}


def find_near_overflow(checkup: Checkup) -> Iterator[Finding]:
    """Finds values close to the largest number of their dtype, where the program did not write such numbers itself."""
    written: set[int] = set()  # operations whose large values come from a number in the program, as in masks
    for number in checkup.operations:
        record, reading = checkup.record(number), checkup.reading(number)
        if not record.dtype.is_floating_point or record.dtype is torch.float64:
            continue
        limit = torch.finfo(record.dtype).max
        arguments = [checkup.origin_of(one) for one in record.parents]
        large = any(
            isinstance(one, (int, float)) and abs(one) > limit * _LIMIT_SHARE for one in checkup.plain_arguments(number)
        )
        comes_large = any(one in written for one in (*record.parents, *arguments, *record.details.also))
        if large or comes_large:
            if checkup.name(number) not in groups.ACTIVATIONS | groups.NORMALISATIONS:
                written.add(number)
            continue
        if reading is None or reading.nonfinite or not limit * _LIMIT_SHARE < reading.largest < limit:
            continue
        if not record.dependencies or record.origin in (Origin.OUTPUT, Origin.ALIAS) or record.function.is_view:
            if not record.dependencies:
                written.add(number)
            continue
        if any(one is not None and one.largest > limit * _LIMIT_SHARE for one in checkup.argument_readings(number)):
            continue
        yield checkup.find(
            "near overflow",
            "warning",
            f"{function_words(checkup, number)} reaches {amount(reading.largest)} of at most "
            f"{amount(limit)} in {_dtype(record.dtype)}",
            number,
            advice="A slightly larger input overflows to infinity. Use bfloat16 or float32 here, or scale the values.",
            largest=reading.largest,
            limit=limit,
        )


# Why ----------------------------------------------------------------------------------------------------------------


def function_words(checkup: Checkup, number: int) -> str:
    """Name an operation in a sentence: by its label; an input by its position."""
    record = checkup.record(number)
    if record.origin is Origin.INPUT:
        return f"the input {checkup.label(number)}"
    return f"{checkup.label(number)} ({record.function.name})"


def why(checkup: Checkup, number: int, what: str) -> tuple[str, str]:
    """Explain why NaN (`nan`) or infinity (`infinite`) begins at an operation, and what to do about it."""
    record = checkup.record(number)
    if record.origin is Origin.INPUT:
        return "it was given to the model", "Look at the data: a sample with missing values, or a division by a deviation of 0."
    if record.origin is Origin.SOURCE:
        return "it came from outside the model", ""
    with DisableTorchFunction(), torch.no_grad():
        for explain in (_written, _of_domain, _of_division, _of_softmax, _of_statistics, _of_infinity, _of_overflow, _of_power):
            try:
                found = explain(checkup, number, what)
            # the function took its arguments in an unexpected form
            except (RuntimeError, TypeError, ValueError, IndexError, OverflowError):
                continue
            if found is not None:
                return found
    if record.origin is Origin.OPAQUE:
        return "code that torcheer cannot trace made it", ""
    return "none of its arguments holds any", ""


def _arguments(checkup: Checkup, number: int) -> list[Any]:
    """The first two positional arguments as numbers or tensors, in the order of the mathematics: `1 / x` is (1, x)."""
    call = checkup.call(number)
    if call is None:
        return []
    args, kwargs = call
    found = [*args, *(kwargs[name] for name in ("input", "self", "other", "exponent") if name in kwargs)]
    record = checkup.record(number)
    return found[1::-1] if record.function.is_reflected else found


def _numbers(value: Any) -> Tensor | None:
    """Convert a tensor or number to a flat tensor of real numbers."""
    if isinstance(value, Tensor):
        readable = dense(value)
        return real(readable).reshape(-1) if readable is not None else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return torch.tensor([float(value)], dtype=torch.float64, device="cpu")
    return None


def _written(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    """Return the cause and the advice if a number that is not finite is an argument of the call; else None."""
    wanted = math.isnan if what == "nan" else math.isinf
    written = [one for one in checkup.plain_arguments(number) if isinstance(one, float) and wanted(one)]
    return (f"the program writes {amount(written[0])} there", "") if written else None


# A test of numbers, and its name. Tables map plain names to the arguments that have no finite value, for NaN and for infinity.
_Test = tuple[Callable[[Tensor], Tensor], str]
_NEGATIVE: _Test = (lambda x: x < 0, "< 0")
_ZERO: _Test = (lambda x: x == 0, "of 0")
_BEYOND_ONE: _Test = (lambda x: x.abs() > 1, "beyond ±1")
_AT_ONE: _Test = (lambda x: x.abs() == 1, "at ±1")
_BELOW_MINUS_ONE: _Test = (lambda x: x < -1, "< −1")
_MINUS_ONE: _Test = (lambda x: x == -1, "at −1")
_DOMAINS: dict[str, tuple[_Test | None, _Test | None]] = {
    **dict.fromkeys(("log", "log2", "log10"), (_NEGATIVE, _ZERO)),
    "log1p": (_BELOW_MINUS_ONE, _MINUS_ONE),
    "sqrt": (_NEGATIVE, None),
    "rsqrt": (_NEGATIVE, _ZERO),
    "reciprocal": (None, _ZERO),
    **dict.fromkeys(("acos", "asin"), (_BEYOND_ONE, None)),
    "atanh": (_BEYOND_ONE, _AT_ONE),
    "acosh": ((lambda x: x < 1, "< 1"), None),
    "erfinv": (_BEYOND_ONE, _AT_ONE),
    "logit": ((lambda x: (x < 0) | (x > 1), "outside 0 to 1"), (lambda x: (x == 0) | (x == 1), "at 0 or 1")),
    "lgamma": (None, (lambda x: (x <= 0) & (x == x.floor()), "at 0 or a negative integer")),
    "digamma": ((lambda x: (x < 0) & (x == x.floor()), "at a negative integer"), _ZERO),
}


def _of_domain(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    tests = _DOMAINS.get(checkup.name(number))
    test = tests[0 if what == "nan" else 1] if tests is not None else None
    values = _numbers(next(iter(_arguments(checkup, number)), None)) if test is not None else None
    if test is None or values is None:
        return None
    outside = values[test[0](values)]
    if not outside.numel():
        return None
    name, smallest = checkup.name(number), float(outside.min())
    if test is _ZERO:
        words = f"{name} of {plural(outside.numel(), 'zero')}"
    else:
        words = f"{name} of {plural(outside.numel(), 'value')} {test[1]}, smallest {amount(smallest)}"
    return words, f"Keep the argument of {name} inside its domain, as by clamp(min=eps) or adding a small eps."


def _of_division(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    if checkup.name(number) not in ("div", "floor_divide", "remainder", "fmod", "true_divide", "addcdiv"):
        return None
    arguments = _arguments(checkup, number)
    if checkup.name(number) == "addcdiv":
        arguments = arguments[1:]
    if len(arguments) < 2:
        return None
    above, below = (one.detach() if isinstance(one, Tensor) else torch.tensor(float(one)) for one in arguments[:2])
    count = int(((below == 0) & ((above == 0) if what == "nan" else (above != 0))).sum())
    if not count:
        return None
    words = f"0/0 in {plural(count, 'place')}" if what == "nan" else f"division by 0 in {plural(count, 'place')}"
    return words, "Add a small eps to the denominator, or leave these elements out before the division."


def _of_softmax(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    name = checkup.name(number)
    advice = "Leave the sample out, or let every row attend to at least one position."
    if name in ("softmax", "log_softmax", "softmin", "safe_softmax", "gumbel_softmax"):
        scores = next((one for one in _arguments(checkup, number) if isinstance(one, Tensor)), None)
        dim = checkup.option(number, 1, "dim", -1)
        if scores is None or not isinstance(dim, int):
            return None
        masked = int((scores == -math.inf).all(dim).sum())
        if masked:
            return f"{name} of {plural(masked, 'row')} that {_are(masked)} −inf throughout: a sample masked whole", advice
        if int((scores == math.inf).sum()):
            return f"{name} of +inf: infinity − infinity", ""
    if name == "scaled_dot_product_attention":
        mask = checkup.call(number) or ((), {})
        given = mask[1].get("attn_mask", mask[0][3] if len(mask[0]) > 3 else None)
        if isinstance(given, Tensor):
            masked = int((~given if given.dtype is torch.bool else given == -math.inf).all(-1).sum())
            if masked:
                return f"attention over {plural(masked, 'row')} of the mask that {_are(masked)} masked throughout", advice
    return None


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _of_statistics(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    name = checkup.name(number)
    record = checkup.record(number)
    if not record.parents:
        return None
    value = checkup.argument(number, 0)
    if value is None:
        return None
    if name in ("std", "var", "std_mean", "var_mean") and value.numel() <= max(1, math.prod(record.shape)):
        return f"{name} of single values, which divides by n − 1 = 0", "Pass correction=0, or take more values."
    if name in ("mean", "nanmean") and value.numel() == 0:
        return "mean of no values", "Check for an empty selection first."
    if name in groups.LOSSES and value.numel() == 0:
        return f"{name} of an empty batch", "Check for an empty selection first."
    if name == "cross_entropy":
        target, ignored = checkup.argument(number, 1), checkup.option(number, 4, "ignore_index", -100)
        if target is not None and not target.is_floating_point() and bool((target == ignored).all()):
            return f"cross_entropy whose targets are all ignore_index ({ignored}): the mean of no values", "Skip such batches."
    if name in groups.NORMALISATIONS and what == "nan":
        reading = checkup.argument_reading(number, 0)
        if reading is not None and reading.nonfinite == 0 and reading.largest**2 > torch.finfo(value.dtype).max:
            return f"{name} squares {amount(reading.largest)}, which overflows {_dtype(value.dtype)}", ""
        return f"{name} of values without spread, with eps 0 or too small for {_dtype(value.dtype)}", "Use a larger eps."
    return None


_PRODUCTS = frozenset("mul matmul mm bmm linear addmm baddbmm einsum dot mv".split()) | groups.CONVOLUTIONS


def _of_infinity(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    """Return the cause and the advice if NaN comes from infinite arguments; else None."""
    readings = [one for one in checkup.argument_readings(number) if one is not None]
    if what != "nan" or not any(one.infinite for one in readings):
        return None
    name = checkup.name(number)
    if name in ("sub", "add", "sum", "mean", "cumsum", "rsub"):
        return "infinity − infinity", "Look at where infinity began."
    if name in _PRODUCTS:
        return "0 × infinity, or infinity − infinity in a sum", "Look at where infinity began."
    if name in ("div", "true_divide", "remainder", "fmod"):
        return "infinity / infinity", "Look at where infinity began."
    if name in ("sin", "cos", "tan"):
        return f"{name} of infinity", "Look at where infinity began."
    return f"{name} of infinite values", "Look at where infinity began."


_EXPONENTIAL = ("exp", "expm1", "exp2", "cosh", "sinh", "logcumsumexp")


def _of_overflow(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    """Return the cause and the advice if the result overflows its dtype; else None. If needed, computes the call in float64."""
    record = checkup.record(number)
    name, dtype = checkup.name(number), record.dtype
    readings = checkup.argument_readings(number)
    if not readings or any(one is None or one.nonfinite for one in readings if one is not None) or not dtype.is_floating_point:
        return None
    limit = torch.finfo(dtype).max
    first = readings[0]
    if name in _EXPONENTIAL and first is not None:
        highest = {"exp2": math.log2(limit)}.get(name, math.log(limit))
        return (
            f"{name} of {amount(first.high if name.startswith('exp') else first.largest)}; above {highest:.4g} it overflows "
            f"{_dtype(dtype)}",
            "Subtract the maximum first, as logsumexp and softmax do.",
        )
    largest = max((one.largest for one in readings if one is not None), default=0.0)
    if name in groups.CONVERSIONS:
        return (
            (f"{amount(largest)} > {amount(limit)}, the most that {_dtype(dtype)} holds", _NARROW_ADVICE)
            if largest > limit
            else None
        )
    exact = _in_float64(checkup, number)
    if exact is None or exact.nonfinite or exact.largest <= limit:
        return None
    return f"{_dtype(dtype)} overflow: {amount(exact.largest)} > {amount(limit)}", _NARROW_ADVICE


_NARROW_ADVICE = "Compute this in bfloat16 or float32, or scale the values down."


def _in_float64(checkup: Checkup, number: int) -> Reading | None:
    """The `Reading` of a call's result if its arguments are float64; None if the call cannot be made again."""
    record = checkup.record(number)
    function = record.function
    call = checkup.call(number)
    if call is None or function.func is None or function.draws is not None or checkup.log.first_passes is not None:
        return None  # calls of a saved history are not made: a file could name them
    size = sum(one.numel() for slot in range(len(record.parents)) if (one := checkup.argument(number, slot)) is not None)
    if size > _MOST_RUN_AGAIN:
        return None

    def exact(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().double() if value.is_floating_point() else value.detach().clone()
        if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
            return type(value)(map(exact, value))
        return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value

    args, kwargs = call
    try:
        result = function.func(*map(exact, args), **{name: exact(value) for name, value in kwargs.items() if name != "out"})
    except Exception as error:  # a call that cannot be made in float64 explains nothing
        pass_interrupts_on(error)
        return None
    for step in record.details.output_path:
        if not isinstance(result, (list, tuple)) or not isinstance(step, int):
            return None
        result = result[step]
    return read(result) if isinstance(result, Tensor) else None


def _of_power(checkup: Checkup, number: int, what: str) -> tuple[str, str] | None:
    if checkup.name(number) not in ("pow", "float_power"):
        return None
    base, exponent = (_numbers(one) for one in _arguments(checkup, number)[:2])
    if base is None or exponent is None:
        return None
    if what == "nan" and bool((base < 0).any()):
        return f"a negative base ({amount(float(base.min()))}) to the power {amount(float(exponent.min()))}", ""
    if what == "infinite" and bool((base == 0).any()) and bool((exponent < 0).any()):
        return f"0 to the negative power {amount(float(exponent.min()))}", "Add a small eps to the base."
    return None


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# Backward -----------------------------------------------------------------------------------------------------------

# Maps plain names to the values of the argument at which the derivative is infinite: there a gradient of 0 becomes 0 × infinity
# = NaN.
_INFINITE_SLOPE: dict[str, _Test] = {
    "sqrt": _ZERO,
    "rsqrt": _ZERO,
    "log": _ZERO,
    "log2": _ZERO,
    "log10": _ZERO,
    "reciprocal": _ZERO,
    "acos": _AT_ONE,
    "asin": _AT_ONE,
    "atanh": _AT_ONE,
    "pow": _ZERO,
    "norm": _ZERO,
    "linalg_norm": _ZERO,
    "linalg_vector_norm": _ZERO,
    "std": (lambda x: x == x, "without spread"),
    "atan2": _ZERO,
}


def find_nonfinite_gradients(checkup: Checkup) -> Iterator[Finding]:
    """Finds operations whose gradient is not finite although the gradients of all users of their tensor are finite."""
    backward = checkup.log.backward
    if backward is None or not backward.passes:
        return
    spoilt = {number for number in checkup.operations if _is_spoilt(checkup, number)}
    begun = [n for n in reversed(checkup.operations) if n in spoilt and not _children(checkup, n) & spoilt]
    for number in begun:
        yield _gradient(checkup, number)
    wrong = [state.number for state in checkup.log.states if _is_spoilt(checkup, state.number)]
    if wrong and not begun:
        users = [number for number in checkup.operations if set(wrong) & set(checkup.record(number).parents)]
        yield checkup.find(
            "nonfinite gradient",
            "error",
            f"the gradients of {few(map(checkup.label, wrong), 3)} are not finite, while those of all activations are",
            users[-1] if users else None,  # the user whose gradient is computed first in the backward pass
            advice="The sum over the batch may overflow: use float32 or bfloat16, or a smaller scale of the loss.",
            parameters=len(wrong),
        )


def _children(checkup: Checkup, number: int) -> set[int]:
    return set(checkup.index.children.get(number, ()))


def _is_spoilt(checkup: Checkup, number: int) -> bool:
    reading = checkup.gradient_reading(number)
    return reading is not None and reading.nonfinite > 0


def _gradient(checkup: Checkup, number: int) -> Finding:
    reading = checkup.gradient_reading(number) or Reading(0)
    makers = [child for child in sorted(_children(checkup, number)) if checkup.gradient_reading(child) is not None]
    message = (
        f"the gradient at {checkup.label(number)} is {'NaN' if reading.nan else 'infinite'} ({reading.nonfinite:,} of "
        f"{reading.count:,})"
    )
    for child in makers:
        result = checkup.reading(child)
        if result is not None and result.nan:
            return checkup.find(
                "nonfinite gradient",
                "error",
                f"{message}: {checkup.name(child)} ({checkup.label(child)}) is NaN in {plural(result.nan, 'place')}, "
                f"{why(checkup, child, 'nan')[0]}; where its result is not used, the gradient is still 0 × NaN",
                child,
                advice="Replace the values before the function: a mask or a torch.where behind it does not help.",
                nonfinite=reading.nonfinite,
                count=reading.count,
            )
        test = _INFINITE_SLOPE.get(checkup.name(child))
        value = checkup.value(number)
        values = _numbers(value) if value is not None else None
        if test is None or values is None or not bool(test[0](values).any()):
            continue
        count = int(test[0](values).sum())
        words = plural(count, "zero") if test is _ZERO else f"{plural(count, 'value')} {test[1]}"
        return checkup.find(
            "nonfinite gradient",
            "error",
            f"{message}: the slope of {checkup.name(child)} ({checkup.label(child)}) is infinite at {words}",
            child,
            advice="Add a small eps inside the function, or replace the values before it. A torch.where behind the function "
            "does not help, because 0 × infinity is NaN.",
            nonfinite=reading.nonfinite,
            count=reading.count,
        )
    behind = f", in the backward of {checkup.label(makers[0])}" if makers else ""
    return checkup.find(
        "nonfinite gradient",
        "error",
        f"{message}{behind}, while the gradients that arrive there are finite",
        makers[0] if makers else number,
        advice="In float16 the gradient may overflow: use a GradScaler, or bfloat16.",
        nonfinite=reading.nonfinite,
        count=reading.count,
    )
