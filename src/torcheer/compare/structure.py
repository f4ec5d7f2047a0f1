"""What changed in the structure of a model, in words."""

from __future__ import annotations

from collections import Counter

from ..display import few
from ..history import Operation
from ..history.fingerprint import what_differs
from ..history.printing.text import plural
from ..model_history import ModelHistory
from .alignment import Alignment, align
from .sides import Side

_MOST = 8  # changes and functions that are listed


def changes_of_fingerprint(wanted: str, now: ModelHistory) -> list[str]:
    """What a fingerprint tells about a model that no longer has it, in lines."""
    found = now.fingerprint()
    before, count = (int(one.partition("-")[0]) for one in (wanted, found))
    differs, same = what_differs(wanted, found)
    if before != count:
        lines = [f"It runs {plural(count, 'operation')} instead of {before}."]
    else:
        lines = [f"It still runs {plural(count, 'operation')}."]
        if differs:
            lines.append(f"Changed: {', '.join(differs)}. The same: {', '.join(same) or 'nothing'}.")
    types = Counter(operation.layer_type for operation in now.operations if operation.layer_type not in ("input", "output"))
    lines.append(f"It runs {few((f'{name} × {times}' for name, times in types.most_common()), _MOST)}.")
    lines.append(
        "A fingerprint cannot tell which operations changed. Save a history of the model as it should be, "
        "log_forward_pass(model, x, layers_to_save='none').save('expected.safetensors'), and give its path instead."
    )
    return lines


def changes_of_structure(expected: ModelHistory, now: ModelHistory) -> list[str]:
    """A line for each operation that only one of two histories has, or that has another shape or other parents."""
    alignment = align(Side(expected), Side(now))
    a, b = alignment.a, alignment.b
    gone = [a.operation(number) for number in alignment.only_in(a)]
    new = [b.operation(number) for number in alignment.only_in(b)]
    lines = []
    for operation in gone:
        place = operation.layer_type, operation.containing_module
        twin = next((one for one in new if (one.layer_type, one.containing_module) == place), None)
        if twin is not None:
            new.remove(twin)
            lines.append(f"{_named(twin)} has shape {twin.tensor_shape}, expected was {operation.tensor_shape}")
        else:
            lines.append(f"{_named(operation)} does not run any more")
    lines += [f"{_named(operation)} is new" for operation in new]
    lines += [f"{_named(b.operation(number))} {what}" for number, what in _rewired(alignment)]
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"and {len(lines) - _MOST} more"]


def _rewired(alignment: Alignment) -> list[tuple[int, str]]:
    """Matched operations that now run another function, or have other parents or parameters; and which of these, in words."""
    a, b = alignment.a, alignment.b
    found = []
    for number in sorted(alignment.of_b):
        one, other = a.log.operations[alignment.of_b[number]], b.log.operations[number]
        if one.function.type != other.function.type:
            found.append((number, f"runs instead of {a.index.label(one.number)}"))
            continue
        ours = [parent for parent in one.parents if parent >= 0]
        theirs = [alignment.of_b.get(parent) for parent in other.parents if parent >= 0]
        shapes = [
            [tuple(side.index.state(parent).tensor.shape) for parent in record.parents if parent < 0]
            for side, record in ((a, one), (b, other))
        ]
        if ours != theirs and None not in theirs:
            names = ", ".join(a.index.label(parent) for parent in ours if parent in a.index.positions)
            found.append((number, f"is computed from other tensors than expected ({names})"))
        elif shapes[0] != shapes[1]:
            found.append((number, "uses other parameters than expected"))
    return found


def _named(operation: Operation) -> str:
    module = operation.containing_module
    where = f" ({operation.source})" if operation.source is not None else ""
    return f"{operation.label}{f' in {module!r}' if module else ''}{where}"
