"""A representative part of the zoo is valid; `make zoo` goes through all of it."""

from __future__ import annotations

import pytest

from zoo.cases import QUICK, all_cases, named
from zoo.checking import check

RUNS = [(case, mode, dtype) for case in named(*QUICK) for mode, dtype in case.runs]


@pytest.mark.filterwarnings("default")  # what strangers' models warn of is theirs; `check` looks for ours
@pytest.mark.parametrize(("case", "mode", "dtype"), RUNS, ids=[f"{c.name}-{m}-{str(d)[6:]}" for c, m, d in RUNS])
def test_the_log_of_a_model_is_proved(case, mode, dtype):
    operations, problem = check(*case.make(mode, dtype))
    assert problem is None, problem
    assert operations > 1


def test_the_zoo_is_wide():
    families = [case.family for case in all_cases()]
    assert families.count("torchvision") >= 100
    assert families.count("transformers") >= 60
    assert families.count("timm") >= 40
    assert families.count("handwritten") >= 60
