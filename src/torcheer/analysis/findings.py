"""`diagnose` runs every check on a logged pass. A check is a function from a `Checkup` to findings; `CHECKS` lists them.

A finding above a note must be a fault: a healthy model, also at its initialisation, gets none (`make zoo`). What is often
meant, such as a parameter that this input did not use, is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .._text import few, human_size, plural
from .._torch.functions import groups
from .._torch.functions.facts import Origin
from .._torch.internals import DisableTorchFunction
from .._torch.measure import dense
from .._torch.shapes import elements_of
from ..log.records import ModuleCall, OperationRecord
from ..log.run import LoggedRun, named_once
from .diagnosis import Checkup, Diagnosis, Finding, Reading, Severity, amount, read
from .nonfinite import find_near_overflow, find_nonfinite, find_nonfinite_gradients, function_words

_FEW_POSITIONS = 16  # a unit is judged only if it has at least this many values: one sample says nothing
_MANY = 0.5  # a note if at least this fraction of a layer's units is dead (or of its values is saturated)
_NEARLY_ALL = 0.9  # a warning from this fraction on
_GROWN = 100.0  # a note if the scale grows or shrinks by this factor from the first to the last of equal blocks
_FAR_APART = 1e4  # a finding if the gradients of the first and of the last layers differ by more than this factor
_LARGE = 1 << 24  # a copy of fewer bytes gets no note
_SHARE_OF_COPY = 0.02  # a copy of a smaller fraction of the pass's bytes gets no note
_ROUNDINGS = 8  # rounding may make samples equal if they differ by less than this many rounding steps of the dtype
_MUCH_WORK = 1 << 20  # repeated calls are reported only if their arguments have at least this many elements


# Units --------------------------------------------------------------------------------------------------------------


def find_dead_units(checkup: Checkup) -> Iterator[Finding]:
    """Finds units of a ReLU that are 0 for every sample and position."""
    for number, reading in checkup.readable():
        if checkup.name(number) not in ("relu", "relu6") or reading.nonfinite:
            continue
        units = _by_unit(checkup, number)
        if units is None or units.shape[1] < _FEW_POSITIONS:
            continue
        dead = int((units <= 0).all(1).sum())
        count = units.shape[0]
        if count < 2 or dead < _MANY * count:
            continue
        severity: Severity = "warning" if dead >= _NEARLY_ALL * count else "note"
        yield checkup.find(
            "dead units",
            severity,
            f"{dead:,} of {plural(count, 'unit')} of {checkup.label(number)} are 0 for all {units.shape[1]:,} values",
            number,
            dead=dead,
            units=count,
        )


def find_saturated_units(checkup: Checkup) -> Iterator[Finding]:
    """Finds results of tanh and sigmoid that are nearly all at the ends of their range, where the gradient is nearly 0."""
    results = {checkup.origin_of(number) for number in checkup.ends}  # an output near 0 or 1 means only that the model is sure
    for number, reading in checkup.readable():
        name = checkup.name(number)
        if name not in ("tanh", "sigmoid") or reading.nonfinite or reading.count < _FEW_POSITIONS:
            continue
        value = checkup.value(number)
        if value is None:
            continue
        with DisableTorchFunction(), torch.no_grad():
            ends = (value.abs() > 0.999) if name == "tanh" else (value > 0.999) | (value < 0.001)
            count = int(ends.sum())
        if count < _MANY * reading.count:
            continue
        is_fault = count >= _NEARLY_ALL * reading.count and number not in results and not checkup.has_untrained_norms
        severity: Severity = "warning" if is_fault else "note"
        yield checkup.find(
            "saturated units",
            severity,
            f"{count:,} of {reading.count:,} values of {checkup.label(number)} ({name}) are at the ends of its range",
            number,
            saturated=count,
            count=reading.count,
        )


def _by_unit(checkup: Checkup, number: int) -> Tensor | None:
    """Reshape an activation to units × positions: units are channels after a convolution, else the last dimension."""
    value = checkup.value(number)
    if value is None or value.dim() < 2 or value.layout is not torch.strided:
        return None
    before = checkup.origin_of(checkup.record(number).parents[0]) if checkup.record(number).parents else -1
    for _ in range(8):  # goes back through at most eight norms and sums
        if before < 0 or checkup.name(before) in groups.CONVOLUTIONS | groups.LINEAR or not checkup.record(before).parents:
            break
        before = checkup.origin_of(checkup.record(before).parents[0])
    is_spatial = before >= 0 and checkup.name(before) in groups.CONVOLUTIONS
    with DisableTorchFunction(), torch.no_grad():
        return value.detach().movedim(1 if is_spatial else -1, 0).reshape(value.shape[1 if is_spatial else -1], -1)


# Depth --------------------------------------------------------------------------------------------------------------


def find_growth(checkup: Checkup) -> Iterator[Finding]:
    """Finds activations whose scale grows or shrinks much from the first to the last of consecutive equal blocks."""
    for container, calls in _rows_of_blocks(checkup):
        scales = [(call, reading) for call in calls if (reading := _result(checkup, call)) is not None]
        scales = [(call, reading) for call, reading in scales if not reading.nonfinite]
        if len(scales) < 3:
            continue
        (first, before), (last, after) = scales[0], scales[-1]
        if not before.magnitude:
            continue
        times = after.magnitude / before.magnitude
        number = last.outputs[0]
        if after.magnitude == 0.0:
            yield checkup.find(
                "vanishing activations",
                "note" if checkup.has_untrained_norms else "warning",
                f"the outputs of {container or 'the blocks'} vanish: {last.address} returns zeros alone",
                number,
                first=before.magnitude,
                last=0.0,
            )
        elif times >= _GROWN:
            yield checkup.find(
                "growing scale",
                "note",
                f"the scale grows {times:,.0f}× along {container or 'the blocks'}: "
                f"{amount(before.magnitude)} at {first.address}, {amount(after.magnitude)} at {last.address}",
                number,
                times=times,
            )
        elif times <= 1 / _GROWN:
            yield checkup.find(
                "vanishing activations",
                "note",
                f"the scale shrinks {1 / times:,.0f}× along {container or 'the blocks'}: "
                f"{amount(before.magnitude)} at {first.address}, {amount(after.magnitude)} at {last.address}",
                number,
                times=times,
            )


def _result(checkup: Checkup, call: ModuleCall) -> Reading | None:
    return checkup.reading(call.outputs[0]) if call.outputs else None


def _rows_of_blocks(checkup: Checkup) -> Iterator[tuple[str, list[ModuleCall]]]:
    """Yields (container, calls of numbered children) for three or more successive calls of one class and output shape."""
    rows: dict[tuple[str, str, tuple[int, ...]], list[ModuleCall]] = defaultdict(list)
    for call in checkup.log.modules:
        container, _, last = call.address.rpartition(".")
        if last.isdigit() and call.outputs and call.call == 1 and call.address in checkup.index.holders:
            shape = tuple(checkup.record(call.outputs[0]).shape)
            rows[container, call.class_name, shape].append(call)
    for (container, _, _), calls in rows.items():
        if len(calls) >= 3 and all(later.first >= earlier.end for earlier, later in pairwise(calls)):
            yield container, calls


def find_gradient_depth(checkup: Checkup) -> Iterator[Finding]:
    """Finds gradients that are far smaller or larger at the first layers than at the last layers."""
    backward = checkup.log.backward
    if backward is None or not backward.passes:
        return
    scales = []
    for number in checkup.operations:
        if checkup.name(number) in groups.CONVOLUTIONS | groups.LINEAR and checkup.record(number).parents:
            reading = checkup.gradient_reading(number)
            if reading is not None and not reading.nonfinite:
                scales.append((number, reading.magnitude))
    if len(scales) < 4:
        return
    part = max(1, len(scales) // 4)
    early, late = (sorted(one for _, one in half)[part // 2] for half in (scales[:part], scales[-part:]))
    number = scales[0][0]
    if late > 0 and early < late / _FAR_APART:
        words = f"{late / early:,.0f}× smaller than at" if early else "0, unlike at"
        yield checkup.find(
            "vanishing gradients",
            "warning",
            f"gradients vanish with depth: at the first layers they are {words} the last ones",
            number,
            first=early,
            last=late,
        )
    elif early > late * _FAR_APART and late > 0:
        yield checkup.find(
            "exploding gradients",
            "warning",
            f"gradients explode with depth: at the first layers they are {early / late:,.0f}× larger than at the last ones",
            number,
            first=early,
            last=late,
        )


# Parameters ---------------------------------------------------------------------------------------------------------


def find_unused_parameters(checkup: Checkup) -> Iterator[Finding]:
    """Finds parameters that no operation used, and parameters that were used and got no gradient."""
    index = checkup.index
    registered = named_once(index.log.registered.values(), "parameters")
    used = {id(state.tensor) for state in checkup.log.states}
    unused = [name for name, tensor in registered.items() if id(tensor) not in used]
    if unused and len(unused) < len(registered):
        yield checkup.find(
            "unused parameters",
            "note",
            f"{plural(len(unused), 'parameter')} of {len(registered):,} took no part in this pass: {few(unused, 3)}",
            None,
            module=unused[0].rpartition(".")[0],
            unused=len(unused),
            parameters=len(registered),
        )
    backward = checkup.log.backward
    if backward is None or not backward.passes:
        return
    without = [
        checkup.label(state.number)
        for state in checkup.log.states
        if state.is_parameter and state.tensor.requires_grad and checkup.gradient(state.number) is None
    ]
    if without:
        yield checkup.find(
            "no gradient",
            "warning",
            f"{plural(len(without), 'parameter')} took part in the pass and got no gradient: {few(without, 3)}",
            None,
            module=without[0].rpartition(".")[0],
            parameters=len(without),
        )


def find_shared_parameters(checkup: Checkup) -> Iterator[Finding]:
    """Finds modules with parameters that one container holds several times: `[nn.Linear(8, 8)] * 3` is one layer."""
    for address, module in checkup.log.registered.items():
        if not module.other_addresses or address not in checkup.index.holders:
            continue
        container, _, last = address.rpartition(".")
        twins = [
            other
            for other in module.other_addresses
            if other.rpartition(".")[0] == container and other.rpartition(".")[2].isdigit()
        ]
        if last.isdigit() and twins:
            yield checkup.find(
                "shared module",
                "note",
                f"{container or 'the model'} holds one {module.class_name} {len(twins) + 1} times: {address} "
                f"is also {few(twins, 3)}",
                None,
                module=address,
                times=len(twins) + 1,
            )


def find_removed_biases(checkup: Checkup) -> Iterator[Finding]:
    """Finds biases without effect, because a batch norm subtracts the mean of the layer's result at once."""
    found: list[str] = []
    first: int | None = None
    for number in checkup.operations:
        if checkup.name(number) not in groups.BATCH_NORMS or not checkup.record(number).parents:
            continue
        before = checkup.record(number).parents[0]
        if before < 0 or checkup.name(before) not in groups.CONVOLUTIONS | {"linear", "addmm"}:
            continue
        if len(checkup.index.children.get(before, ())) != 1:
            continue
        states = [checkup.index.state_behind(parent) for parent in checkup.record(before).parents]
        vectors = [state for state in states if state is not None and state.is_parameter and len(state.tensor.shape) == 1]
        if vectors:
            first = number if first is None else first
            found.append(checkup.label(vectors[0].number))
    if found and first is not None:
        yield checkup.find(
            "removed bias",
            "note",
            f"{plural(len(found), 'bias')} {'is' if len(found) == 1 else 'are'} removed by the batch norm "
            f"that follows: {few(found, 3)}",
            first,
            biases=len(found),
        )


# Outputs and axes ---------------------------------------------------------------------------------------------------


def find_constant_outputs(checkup: Checkup) -> Iterator[Finding]:
    """Finds outputs that are equal for all samples of a batch although the samples themselves differ."""
    batch = checkup.batch
    if batch is None or batch < 2 or not _samples_differ(checkup, batch):
        return
    judged, constant = 0, []
    for number in sorted(checkup.index.outputs):
        value = checkup.value(number)
        if value is None or not value.is_floating_point() or value.dim() < 1 or value.shape[0] != batch:
            continue
        if not checkup.is_from_input(number):
            continue
        reading = checkup.reading(number)
        if reading is None or reading.nonfinite:
            continue
        judged += 1
        if _is_same_for_all(value):
            constant.append(number)
    for number in constant:
        is_all = len(constant) == judged
        reading = checkup.reading(number)
        what = "0 everywhere" if reading is not None and reading.largest == 0 else "the same for every sample"
        reason = _harmless_reason(checkup, number, batch)
        why = f": {reason}" if reason else ""
        yield checkup.find(
            "constant output",
            "warning" if is_all and not checkup.has_untrained_norms and not reason else "note",
            f"the output {checkup.label(number)} is {what}, although the {batch} samples differ{why}",
            number,
            batch=batch,
        )


_SUMS = frozenset("add sub rsub cat concat concatenate stack hstack vstack where embedding".split())


def _harmless_reason(checkup: Checkup, number: int, batch: int) -> str:
    """Say why and where an output becomes constant, if zero weights or rounding explain it. Empty if they do not."""
    waiting, seen = [number], {number}
    chosen: set[int] = set()  # operations of whose values only a part is used
    while waiting:
        one = waiting.pop()
        name = checkup.name(one)
        if name in ("getitem", "select", "narrow") or (one in chosen and name in groups.NORMALISATIONS | {"cat"}):
            chosen.update(checkup.record(one).parents)
        for parent in checkup.record(one).parents:
            if parent < 0:
                if name not in _SUMS and _is_zero_weight(checkup, parent):  # zeros in a sum make nothing constant
                    return f"{checkup.label(parent)} is 0 throughout, as some initialisations make it"
                continue
            value = checkup.value(parent)
            if value is None or value.dim() < 1 or parent in seen or not checkup.is_from_input(parent):
                continue
            if parent in chosen or value.shape[0] != batch or _is_same_for_all(value):
                seen.add(parent)
                waiting.append(parent)
            elif _is_rounded_away(checkup, value, one):
                return f"what differs is rounded away by {checkup.label(one)} in {_short(checkup.record(one).dtype)}"
    return ""


def _is_zero_weight(checkup: Checkup, reference: int) -> bool:
    reading = checkup.reading(reference)
    if not checkup.index.state(reference).is_parameter or checkup.label(reference).rpartition(".")[2] == "bias":
        return False
    return reading is not None and reading.count > 0 and reading.largest == reading.nonfinite == 0


def _is_rounded_away(checkup: Checkup, value: Tensor, number: int) -> bool:
    """True if the samples of an argument differ by no more than the rounding of a result in 16 bits."""
    dtype, result = checkup.record(number).dtype, checkup.reading(number)
    if dtype not in (torch.float16, torch.bfloat16) or result is None or result.nonfinite or not value.is_floating_point():
        return False
    spread, own = read((value - value[:1]).float()), read(value)
    if spread is None or own is None or spread.nonfinite or own.nonfinite:
        return False
    beside = max(own.magnitude, result.magnitude)  # the function may add a bias
    return spread.magnitude < _ROUNDINGS * torch.finfo(dtype).eps * beside


def _samples_differ(checkup: Checkup, batch: int) -> bool:
    for number in checkup.index.of_origin(Origin.INPUT):
        value = checkup.value(number)
        if value is not None and value.dim() >= 1 and value.shape[0] == batch and not _is_same_for_all(value):
            return True
    return False


def _is_same_for_all(value: Tensor) -> bool:
    with DisableTorchFunction(), torch.no_grad():
        values = dense(value)
        if values is None or values.dim() == 0 or values.shape[0] < 2:
            return False
        return bool((values == values[:1]).all())


_COMBINING = frozenset("add sub mul div rsub eq pow maximum minimum".split())


def find_broadcasts(checkup: Checkup) -> Iterator[Finding]:
    """Finds (N, 1) combined with (N,), which gives (N, N): nearly always a forgotten squeeze."""
    for number in checkup.operations:
        name, record = checkup.name(number), checkup.record(number)
        if name not in _COMBINING and name not in groups.LOSSES:
            continue
        if len(record.parents) < 2:
            continue
        one, other = record.parents[:2]
        if one < 0 or other < 0:
            continue
        shapes = [tuple(checkup.record(n).shape) for n in (one, other)]
        if not _is_crossed(*shapes) and not _is_crossed(*shapes[::-1]):
            continue
        if not all(checkup.record(n).dtype.is_floating_point for n in (one, other)):
            continue
        if not any(checkup.is_from_input(n) for n in (one, other)):
            continue
        size = max(shapes[0][0], shapes[1][0])
        is_loss = name in groups.LOSSES or _is_reduced(checkup, number)
        yield checkup.find(
            "broadcast",
            "warning" if is_loss else "note",
            f"{function_words(checkup, number)} combines {shapes[0]} with {shapes[1]} into ({size}, {size})",
            number,
            size=size,
        )


def _is_crossed(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == 2 and len(other) == 1 and one[1] == 1 and one[0] == other[0] and one[0] > 1


def _is_reduced(checkup: Checkup, number: int) -> bool:
    """True if everything computed from the tensor ends in one number: a loss."""
    waiting, seen = [number], set()
    while waiting:
        for child in checkup.index.children.get(waiting.pop(), ()):
            if child in seen:
                continue
            seen.add(child)
            record = checkup.record(child)
            if elements_of(record.shape) == 1 and checkup.name(child) in groups.REDUCTIONS:
                continue
            if not checkup.record(child).function.is_elementwise or checkup.index.children.get(child) is None:
                return False
            waiting.append(child)
    return bool(seen)


_SOFTMAXES = frozenset("softmax log_softmax softmin safe_softmax".split())
_PRODUCTS = frozenset("matmul bmm".split())


# Losses, and what is wrong if they get the result of a softmax or sigmoid.
_LOSSES_OF_LOGITS = {
    **dict.fromkeys(("cross_entropy", "cross_entropy_loss"), "computes the softmax itself"),
    "binary_cross_entropy_with_logits": "computes the sigmoid itself",
    "nll_loss": "expects logarithms of probabilities",
}


def find_softmax_faults(checkup: Checkup) -> Iterator[Finding]:
    """Finds a softmax over samples, over a wrong dimension, after another softmax, or before a loss that computes a softmax."""
    for number in checkup.operations:
        name, record = checkup.name(number), checkup.record(number)
        if not record.parents or not (name in _SOFTMAXES or name in _LOSSES_OF_LOGITS):
            continue
        before = checkup.origin_of(record.parents[0])
        function = checkup.name(before) if before >= 0 else ""
        if name in _SOFTMAXES:
            yield from _softmax_axis(checkup, number)
            if function == "softmax" and not _is_router(checkup, before, number):
                yield checkup.find(
                    "two softmaxes",
                    "warning",
                    f"{function_words(checkup, number)} is computed of {checkup.label(before)}, which is a softmax already",
                    number,
                )
        elif function in ("softmax", "sigmoid"):
            yield checkup.find(
                "softmax before loss",
                "warning",
                f"{function_words(checkup, number)} gets {checkup.label(before)}, and {_LOSSES_OF_LOGITS[name]}",
                number,
            )


def _is_router(checkup: Checkup, first: int, second: int) -> bool:
    """True if two softmaxes run over different axes: then both are intended, to find agreement in both directions."""
    return _softmax_dim(checkup, first) != _softmax_dim(checkup, second)


def _softmax_dim(checkup: Checkup, number: int) -> int | None:
    """The dimension of a softmax, counted from the end; None if it is not known."""
    dims = len(checkup.record(number).shape)
    dim = checkup.option(number, 1, "dim")
    if dim is None:  # torch chooses the dimension itself, with a warning
        dim = 0 if dims in (0, 1, 3) else 1
    return dim - dims if isinstance(dim, int) and dim >= 0 else dim if isinstance(dim, int) else None


def _softmax_axis(checkup: Checkup, number: int) -> Iterator[Finding]:
    shape = checkup.record(number).shape
    dim = _softmax_dim(checkup, number)
    if dim is None or len(shape) < 2 or not checkup.is_from_input(number):
        return
    batch = checkup.batch
    if dim == -len(shape) and batch is not None and batch > 1 and shape[0] == batch and not _is_alone(shape, batch):
        yield checkup.find(
            "softmax axis",
            "warning",
            f"{function_words(checkup, number)} runs over the {batch} samples of the batch",
            number,
            dim=dim,
            batch=batch,
        )
        return
    for child in checkup.index.children.get(number, ()):
        record = checkup.record(child)
        if checkup.name(child) in _PRODUCTS and len(record.parents) == 2 and number in record.parents:
            slot = record.parents.index(number)
            summed = -1 if slot == 0 else -2
            if dim not in (summed, -3) and shape[dim] != shape[summed]:
                yield checkup.find(
                    "softmax axis",
                    "note",
                    f"{function_words(checkup, number)} runs over dimension {dim}, and {checkup.label(child)} "
                    f"sums over dimension {summed}",
                    number,
                    dim=dim,
                    summed=summed,
                )


def _is_alone(shape: tuple[int, ...], batch: int) -> bool:
    """True if another dimension also has the batch's size, so that the first dimension may not be the batch."""
    return sum(size == batch for size in shape) > 1


# Modes --------------------------------------------------------------------------------------------------------------


def find_training_parts(checkup: Checkup) -> Iterator[Finding]:
    """Finds dropout and statistics of the batch in a model in evaluation mode, and batch norm on one sample in training."""
    for number in checkup.operations:
        name, record = checkup.name(number), checkup.record(number)
        if record.details.call not in (-1, number):
            continue
        if checkup.is_evaluating:
            if name in groups.DROPOUTS and checkup.option(number, 2, "training", True) and checkup.option(number, 1, "p", 0.5):
                yield checkup.find(
                    "training in evaluation",
                    "warning",
                    f"{function_words(checkup, number)} drops values although the model is in evaluation mode",
                    number,
                )
            elif name == "scaled_dot_product_attention" and _positive(checkup.option(number, 4, "dropout_p", 0.0)):
                yield checkup.find(
                    "training in evaluation",
                    "warning",
                    f"{function_words(checkup, number)} drops attention weights although the model is in evaluation mode",
                    number,
                )
        if name == "batch_norm" and len(record.parents) > 2 and checkup.option(number, 5, "training", False) is True:
            if not any(_is_buffer(checkup, parent) for parent in record.parents[1:]):
                continue  # a norm without running statistics always normalises by the batch
            if checkup.is_evaluating:
                yield checkup.find(
                    "training in evaluation",
                    "warning",
                    f"{function_words(checkup, number)} uses the statistics of the batch "
                    "although the model is in evaluation mode",
                    number,
                )
            elif record.shape and record.shape[0] == 1:
                yield checkup.find(
                    "batch norm on one sample",
                    "warning",
                    f"{function_words(checkup, number)} normalises a batch of one sample",
                    number,
                )


def _positive(value: Any) -> bool:
    return isinstance(value, (int, float)) and value > 0


def _is_buffer(checkup: Checkup, parent: int) -> bool:
    state = checkup.index.state_behind(parent)
    return state is not None and not state.is_parameter


# Work that could be saved -------------------------------------------------------------------------------------------


def find_python_reads(checkup: Checkup) -> Iterator[Finding]:
    """Finds values that Python read inside the model, for which a GPU has to wait."""
    reads = [one for one in checkup.log.python_reads if any(parent >= 0 for parent in one.parents)]
    if not reads:
        return
    first = next(parent for parent in reads[0].parents if parent >= 0)
    number = first if checkup.index.table.shows(first) else None
    names = few(dict.fromkeys(one.function.name for one in reads), 3)
    yield checkup.find(
        "python read",
        "note",
        f"Python reads {plural(len(reads), 'value')} inside the model ({names})",
        number,
        reads=len(reads),
    )


def find_casts(checkup: Checkup) -> Iterator[Finding]:
    """Finds operations whose result has a wider dtype because one argument is wider: silent promotion."""
    found: list[int] = []
    for number in checkup.operations:
        record = checkup.record(number)
        if record.details.autocast or not record.dtype.is_floating_point or record.origin is not Origin.OPERATION:
            continue
        if checkup.name(number) in groups.CONVERSIONS | groups.NORMALISATIONS:
            continue
        kinds = {one for parent in record.parents if (one := _float_dtype(checkup, parent)) is not None}
        if len(kinds) > 1 and record.dtype in kinds and record.dtype.itemsize > min(kind.itemsize for kind in kinds):
            found.append(number)
    if found:
        record = checkup.record(found[0])
        kinds = {one for parent in record.parents if (one := _float_dtype(checkup, parent)) is not None}
        narrow = min(kinds, key=lambda kind: kind.itemsize)
        yield checkup.find(
            "silent cast",
            "note",
            f"{plural(len(found), 'operation')} {'widens' if len(found) == 1 else 'widen'} values silently; "
            f"the first is {function_words(checkup, found[0])}: {_short(narrow)} becomes {_short(record.dtype)}",
            found[0],
            operations=len(found),
        )


def _float_dtype(checkup: Checkup, parent: int) -> torch.dtype | None:
    """Return the dtype of an argument. None for integers, and for tensors without dimensions, which cause no promotion."""
    shape, dtype = (
        (checkup.record(parent).shape, checkup.record(parent).dtype)
        if parent >= 0
        else (tuple(checkup.index.state(parent).tensor.shape), checkup.index.state(parent).tensor.dtype)
    )
    return dtype if dtype.is_floating_point and len(shape) else None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def find_copies(checkup: Checkup) -> Iterator[Finding]:
    """Finds large tensors that were copied only to be contiguous."""
    total = sum(checkup.index.tensor_bytes(number) for number in checkup.operations)
    for number in checkup.operations:
        if checkup.name(number) not in ("contiguous", "reshape", "flatten") or not checkup.record(number).parents:
            continue
        size = checkup.index.tensor_bytes(number)
        if size < _LARGE or size < _SHARE_OF_COPY * total:
            continue
        value, given = checkup.value(number), checkup.argument(number, 0)
        if value is None or given is None or value.layout is not torch.strided or given.is_contiguous():
            continue
        yield checkup.find(
            "large copy",
            "note",
            f"{function_words(checkup, number)} copies {human_size(size)} to make it contiguous",
            number,
            bytes=size,
        )


def find_repeated_work(checkup: Checkup) -> Iterator[Finding]:
    """Finds calls with the same function, arguments and tensors as an earlier call, if they compute much."""
    seen: dict[Any, int] = {}
    for number in checkup.operations:
        record, name = checkup.record(number), checkup.name(number)
        if record.origin is not Origin.OPERATION or record.details.mutated or not record.parents or record.details.held:
            continue
        if record.function.is_random or record.function.func is None or record.details.call not in (-1, number):
            continue
        size = sum(elements_of(checkup.record(parent).shape) for parent in record.parents if parent >= 0)
        if size < _MUCH_WORK or name not in groups.CONVOLUTIONS | groups.LINEAR | groups.ATTENTION | groups.NORMALISATIONS:
            continue
        key = (record.function.name, repr(record.template), record.names, record.parents)
        earlier = seen.setdefault(key, number)
        if earlier != number and not _was_written(checkup, record, earlier, number):
            yield checkup.find(
                "computed twice",
                "note",
                f"{function_words(checkup, number)} computes what {checkup.label(earlier)} has computed",
                number,
            )


def _was_written(checkup: Checkup, record: OperationRecord, earlier: int, later: int) -> bool:
    """True if an argument was written to between the two calls."""
    return any(
        checkup.record(other).details.mutated or checkup.record(other).details.also
        for other in range(earlier + 1, later)
        if set(checkup.record(other).parents) & set(record.parents)
    )


# All checks ---------------------------------------------------------------------------------------------------------


CHECKS: tuple[Callable[[Checkup], Iterator[Finding]], ...] = (
    find_nonfinite,
    find_nonfinite_gradients,
    find_near_overflow,
    find_dead_units,
    find_saturated_units,
    find_growth,
    find_gradient_depth,
    find_unused_parameters,
    find_shared_parameters,
    find_removed_biases,
    find_constant_outputs,
    find_broadcasts,
    find_softmax_faults,
    find_training_parts,
    find_python_reads,
    find_casts,
    find_copies,
    find_repeated_work,
)


def diagnose(run: LoggedRun) -> Diagnosis:
    """Run every check on a logged pass."""
    checkup = Checkup(run.index)
    with DisableTorchFunction(), torch.no_grad():
        found = [finding for check in CHECKS for finding in check(checkup)]
    return Diagnosis(run, found, _checked(checkup))


def _checked(checkup: Checkup) -> list[str]:
    """Sentences about what was read, and what could not be read."""
    float_operations = [
        n for n in checkup.operations if checkup.record(n).dtype.is_floating_point or checkup.record(n).dtype.is_complex
    ]
    readable = sum(checkup.reading(number) is not None for number in float_operations)
    said = [f"{readable:,} of {plural(len(float_operations), 'activation')}"]
    if readable < len(float_operations):
        said[0] += " (the others were not kept or have no values)"
    states = [checkup.reading(state.number) for state in checkup.log.states]
    said.append(f"{sum(one is not None for one in states):,} of {len(states):,} parameters and buffers")
    backward = checkup.log.backward
    if backward is None:
        said.append("no gradients, because none were recorded (loss=)")
    elif not backward.passes:
        said.append("no gradients, because no backward pass ran")
    else:
        said.append("the gradients of the last backward pass")
    if not checkup.log.is_complete:
        said.append("the pass did not run to its end")
    return said
