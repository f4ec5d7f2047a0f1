"""A representative part of the zoo is valid; `make zoo` goes through all of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from torcheer.log.records import BackwardRecord
from zoo.cases import QUICK, TYPICAL, all_cases, named
from zoo.checking import UNHEALTHY, check, diagnose
from zoo.gradients import NothingToCompare, compare_gradients

# Every mode and every type of each case, but not every pair of them.
RUNS = [(case, *run) for case in named(*QUICK) for run in dict.fromkeys((case.runs[0], case.runs[-1]))]
NO_WAY_BACK = ("transformers/llama-generate", "handwritten/in_place")


@pytest.mark.filterwarnings("default")  # what strangers' models warn of is theirs; `check` looks for ours
@pytest.mark.parametrize(("case", "mode", "dtype"), RUNS, ids=[f"{c.name}-{m}-{str(d)[6:]}" for c, m, d in RUNS])
def test_the_log_of_a_model_is_proved(case, mode, dtype):
    operations, problem = check(*case.make(mode, dtype))
    assert problem is None, problem
    assert operations > 1


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", [case for case in named(*QUICK) if case.name not in NO_WAY_BACK], ids=lambda case: case.name)
def test_the_gradients_of_a_model_are_those_of_plain_torch(case):
    comparison = compare_gradients(lambda: case.make(case.modes[-1], torch.float32))
    assert comparison.problem is None, comparison.problem
    assert comparison.compared > 5
    assert comparison.unsteady == 0


def test_a_model_without_gradients_is_told_from_one_with_wrong_ones(monkeypatch):
    (generate, lstm) = named(NO_WAY_BACK[0], "handwritten/lstm")
    with pytest.raises(NothingToCompare):
        compare_gradients(generate.make)

    def wrong(self):
        number = min(self.gradients)
        self.gradients[number] = self.gradients[number] + 1

    monkeypatch.setattr(BackwardRecord, "let_go", wrong)
    assert "it differs by up to 1" in str(compare_gradients(lstm.make).problem)
    monkeypatch.setattr(BackwardRecord, "let_go", lambda self: self.gradients.clear())
    assert "it is missing" in str(compare_gradients(lstm.make).problem)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("case", [case for case in named(*TYPICAL) if "eval" in case.modes], ids=lambda case: case.name)
def test_a_healthy_model_is_called_healthy(case):
    for dtype in case.dtypes:
        problem = diagnose(case.name, *case.make("eval", dtype))
        assert problem is None, problem


def test_unhealthy_programs_are_cases_of_the_zoo():
    assert UNHEALTHY.keys() <= {case.name for case in all_cases()}


def test_a_false_alarm_and_a_missed_fault_are_told(monkeypatch):
    model, value = nn.Sequential(nn.Linear(4, 4), nn.Softmax(dim=0)).eval(), (torch.randn(8, 4),)
    assert "softmax" in str(diagnose("a softmax over the batch", model, value, {}))
    monkeypatch.setitem(UNHEALTHY, "a softmax over the batch", {"softmax axis": "it is planted"})
    assert diagnose("a softmax over the batch", model, value, {}) is None
    assert "no finding" in str(diagnose("a softmax over the batch", model[:1], value, {}))


def test_the_zoo_is_wide():
    families = [case.family for case in all_cases()]
    assert families.count("torchvision") >= 100
    assert families.count("transformers") >= 60
    assert families.count("timm") >= 40
    assert families.count("handwritten") >= 60
