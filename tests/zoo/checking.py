"""Whether a log of a case is right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

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
