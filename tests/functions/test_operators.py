"""Operators of torch's own database are logged and proved, each where its death harms nobody: a part of `make operators`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from operator_database import operators
from operators.sweep import Case, Result, case_name, cases, check, sweep

pytestmark = pytest.mark.filterwarnings("ignore")

# Operators that divide, whose integer divisors must never be zero.
DIVIDE = ("div.", "floor_divide", "remainder", "fmod", "__rmod__", "__rdiv__")


def takes_integers(case: Case) -> bool:
    """Whether a sample has a tensor of integers although it was asked for others: indices, lengths, offsets."""
    operator, dtype = case
    if dtype is not torch.float32:
        return False
    try:
        sample = next(iter(operator.sample_inputs_func(operator, "cpu", dtype, False)))
    except (RuntimeError, StopIteration):
        return False
    found: list[Tensor] = []
    sample.transform(lambda value: found.append(value) if isinstance(value, Tensor) else value)
    return any(tensor.dtype in (torch.int64, torch.int32) for tensor in found)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """All operators that take integers beside their values, all that divide, and every fourth of the rest."""
    every = cases(operators())
    chosen = [case for case in every if takes_integers(case) or case_name(case).startswith(DIVIDE)]
    assert len(chosen) > 60
    return list(sweep([*chosen, *(case for case in every[::4] if case not in chosen)], 1))


def test_no_operator_ends_the_process(results):
    assert [(one.name, one.notes) for one in results if one.died] == []


def test_every_log_is_valid(results):
    assert [(one.name, one.notes) for one in results if one.wrong] == []
    assert sum(one.valid for one in results) > 300


def test_structure_is_left_alone_and_other_edges_are_tried(results):
    assert sum(one.structure for one in results) >= 10
    assert sum(one.tried for one in results) > 200


class Fatal:
    """Stands for an operator that ends the process."""

    name, variant_test_name = "fatal", ""

    def sample_inputs_func(self, *_: object) -> None:
        import os

        os.abort()


def test_a_death_is_reported_and_the_rest_goes_on():
    first, last = (case for case in cases(operators()) if case_name(case) in ("add float32", "sub float32"))
    found = list(sweep([first, (Fatal(), torch.float32), last], 1))
    assert [(one.name, one.died) for one in found] == [("add float32", 0), ("fatal float32", 1), ("sub float32", 0)]
    assert found[1].notes == ["signal 6"]
    assert found[0] == check(first, 1)
