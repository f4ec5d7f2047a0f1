"""Whether a log of a case is right, and whether a healthy model is called healthy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

import torcheer


def check(model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, str | None]:
    """How many operations ran, and what is wrong with their log, if anything."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        report = torcheer.validate_forward_pass(model, args, kwargs)
    if not report:
        return report.num_operations, f"{report.first_disagreement}\n{report}"
    for one in seen:
        if issubclass(one.category, torcheer.UnseenWorkWarning):
            return report.num_operations, f"a warning: {one.message}"
    return report.num_operations, None


# Programs whose findings above a note are right: by case and by the kind of the finding, why.
UNHEALTHY: dict[str, dict[str, str]] = {
    "transformers/align": {
        "nonfinite": "untrained, its image tower gives values whose squares are 0, so their norm is 0 and the output NaN"
    },
    "handwritten/arithmetic": {"softmax axis": "it tries functions one by one, a softmax over dimension 0 among them"},
}


def diagnose(name: str, model: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What a diagnosis says wrongly about a healthy model, if anything. The model is at its initialisation."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        diagnosis = torcheer.log_forward_pass(model, args, kwargs).diagnose()
    meant = UNHEALTHY.get(name, {})
    wrong = [one for one in diagnosis if one.severity != "note" and one.kind not in meant]
    if wrong:
        return f"a false alarm: {wrong[0]}"
    missed = meant.keys() - {one.kind for one in diagnosis if one.severity != "note"}
    return f"no finding, although there should be: {', '.join(sorted(missed))}" if missed else None
