"""Functions that write several values to one place at once, as `max_unpool2d` does where windows overlap.

On an accelerator it is undefined which value stays. A model with such a function gives other values each time, so a
disagreement with its log proves nothing. It counts as exempt if the model, or the call, was seen to disagree with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..containers import Arguments
from ..functions import groups
from ..records import Log, OperationRecord
from .comparison import Agreement
from .reference_run import run_plainly
from .report import Check

_TRIES = 8


def is_on_accelerator(record: OperationRecord) -> bool:
    return record.device.type not in ("cpu", "meta")


def may_race(record: OperationRecord) -> bool:
    """Whether the result of a call is undefined where it writes several values to one place."""
    return record.function.is_in(groups.RACING) and is_on_accelerator(record)


def why_unsteady(
    model: Callable[..., Any], arguments: Arguments, log: Log, expected: list[Any], agrees: Agreement
) -> str | None:
    """Why a model returns other values when it is run again from the same state; None if it does not."""
    names = sorted({record.function.name for record in log.operations if may_race(record)})
    ignored = Check("")
    for _ in range(_TRIES if names else 1):
        again = run_plainly(model, arguments, log)
        pairs = zip(expected, again, strict=False)
        if len(again) == len(expected) and all(agrees(ignored, one, other) for one, other in pairs if isinstance(one, Tensor)):
            continue
        if names:
            return f"the plain model gives other values each time; {', '.join(names)} wrote several values to one place"
        return (
            "the plain model gives other values each time it runs from the same random state; it depends on something that is "
            "not put back, such as torch.seed(), the time or a variable that a function closes over"
        )
    return None
