"""Copies a log for `copy` (kept tensors shared) and `deepcopy` (kept tensors copied), and refuses pickling."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, NoReturn

from torch import Tensor

from .._torch.memory import FREED, has_memory
from ..errors import NotPicklable
from .records import Details, Held, Log, States, was_overwritten


def twin_of_log(log: Log) -> Log:
    """Make a second log that shares the kept tensors. If one log releases tensors, the other keeps them."""
    new = copy.copy(log)
    for field in fields(log):
        value = getattr(log, field.name)
        if isinstance(value, (list, dict, set, States)):
            setattr(new, field.name, copy.copy(value))
    new.backward = log.backward.copy() if log.backward is not None else None
    return new


def copy_of_log(log: Log, memo: dict[int, Any]) -> Log:
    """Copy a log and its kept tensors. The copy shares the model's parameters, and records that never change."""
    memo.update({id(one): one for one in (*log.modules, *log.registered.values())})
    new = twin_of_log(log)
    pairs = list(zip(log.values, log.versions, strict=True))
    lost = {number for number, pair in enumerate(pairs) if was_overwritten(*pair)}
    new.values = [_clone(value, memo) for value, _ in pairs]
    new.versions = [-1] * len(pairs)
    new._lost = lost if log.is_complete else None
    new.details = {number: _copied(details, memo) for number, details in log.details.items()}
    return new


def refuse_pickling(what: str, instead: str = "history.save(path) and torcheer.load(path)") -> NoReturn:
    """Raise `NotPicklable`: no part of a history can be pickled, because loading a pickle can run code."""
    raise NotPicklable(
        f"a {what} cannot be pickled: loading a pickle runs whatever code is in it. "
        f"Use {instead}, or copy.deepcopy() for a copy in this process."
    )


def _copied(details: Details, memo: dict[int, Any]) -> Details:
    new = copy.copy(details)
    if details.held is not None:
        new.held = {slot: Held(_clone(held.value, memo), -1) for slot, held in details.held.items()}
    return new


def _clone(value: Any, memo: dict[int, Any]) -> Any:
    if not isinstance(value, Tensor):
        return copy.deepcopy(value, memo)
    if not has_memory(value):
        return FREED
    if id(value) not in memo:
        memo[id(value)] = value.detach().clone()
    return memo[id(value)]
