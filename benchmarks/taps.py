"""Reading and changing chosen values while a model runs, against the plain pass."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch

from .models import build

ROUNDS = 61
WORKS = {
    "read": "five module outputs read",
    "changed": "one module output changed",
    "functions": "five module outputs and two function calls read",
    "stopped": "one output at a quarter of the depth, the rest not run",
}
_READ, _CHANGED, _QUARTER = [f"h.{at}" for at in (1, 3, 5, 7, 9)], "h.6", "h.2"


def taps(case: str, work: str) -> dict[str, Any]:
    """A pass inside a block that reads or changes, against a plain one; and plain against plain, which shows the noise.

    Each round is a plain pass, another one, and one inside. Ratios are taken in each round, and their median counts. Opening
    the block and two passes in it are not timed: the first copies what it reads, the second finds out whether it had to.
    """
    model, x = build(case)
    with torch.no_grad():
        inside = _works(model, x)[work]
        return _paired(lambda: model(x), inside)


def taps_of_nnsight(case: str, work: str) -> dict[str, Any]:
    """The same work done by nnsight, if it is installed."""
    try:
        from nnsight import NNsight
    except ImportError:
        return {"not_installed": True}
    model, x = build(case)
    wrapped = NNsight(model)

    def read() -> float:
        start = perf_counter()
        with wrapped.trace(x):
            for at in (1, 3, 5, 7, 9):
                wrapped.h[at].output.save()
        return perf_counter() - start

    def changed() -> float:
        start = perf_counter()
        with wrapped.trace(x):
            wrapped.h[6].output += 1.0
        return perf_counter() - start

    with torch.no_grad():
        return _paired(lambda: model(x), {"read": read, "changed": changed}[work])


def _works(model: Any, x: Any) -> dict[str, Callable[[], float]]:
    import torcheer
    from torcheer import changes

    history = torcheer.log_forward_pass(model, x)
    functions = [layer.label for layer in history if layer.layer_type == "scaleddotproductattention"][:2]

    def inside(opened: Callable[[], Any]) -> Callable[[], float]:
        def once() -> float:
            with opened():
                model(x)
                model(x)
                start = perf_counter()
                model(x)
                return perf_counter() - start

        return once

    def stopped() -> float:
        opened = torcheer.tap(model, [_QUARTER], stop=True)
        start = perf_counter()
        with opened:
            model(x)
        return perf_counter() - start

    return {
        "read": inside(lambda: torcheer.tap(model, _READ)),
        "changed": inside(lambda: torcheer.intervene(model, {_CHANGED: changes.add(1.0)})),
        "functions": inside(lambda: torcheer.tap(model, [*_READ, *functions], like=history)),
        "stopped": stopped,
    }


def _paired(plain: Callable[[], Any], inside: Callable[[], float]) -> dict[str, Any]:
    def timed() -> float:
        start = perf_counter()
        plain()
        return perf_counter() - start

    for _ in range(3):
        timed(), inside()
    rounds = [(timed(), timed(), inside()) for _ in range(ROUNDS)]
    return {
        "plain_ms": median(second for _, second, _ in rounds) * 1e3,
        "ms": median(used for _, _, used in rounds) * 1e3,
        "ratio": median(used / second for _, second, used in rounds),
        "noise": median(first / second for first, second, _ in rounds),
    }
