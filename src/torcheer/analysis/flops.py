"""FLOPs of a call, from what was recorded.

What has no formula is unknown, which is not the same as zero.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..functions.flops import NOTHING, Formula, Work
from ..functions.properties import is_view
from ..records import Origin
from .calls import TorchCall

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
    except (LookupError, ValueError, TypeError, ZeroDivisionError):  # not called as the formula expects
        return None
    if work is None or not work.flops:
        return work
    if not call.has_known_shapes:
        return None
    return work if call.node is not None else work._replace(backward=0)
