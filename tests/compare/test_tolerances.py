"""No culprit where only rounding differs, and the planted operation where a fault is: the quick part of the study."""

from __future__ import annotations

import pytest
from tests.compare.tolerance_study import FAULTS, ROUNDING, outcome, rounding_outcome

QUICK = ("transformers/gpt2", "transformers/mamba", "handwritten/unet", "handwritten/seq2seq_attention")


@pytest.mark.parametrize("kind", ROUNDING)
@pytest.mark.parametrize("architecture", QUICK)
def test_nothing_is_named_where_only_rounding_differs(architecture, kind):
    pytest.importorskip("transformers")
    assert rounding_outcome(architecture, kind) in ("ok", None)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("architecture", ["transformers/gpt2", "transformers/llama", "handwritten/unet"])
def test_a_planted_fault_is_named(architecture, name):
    pytest.importorskip("transformers")
    said = outcome(architecture, name)
    assert said is None or said.startswith(("found", "harmless")), said


def test_most_faults_can_be_planted():
    pytest.importorskip("transformers")
    found = [outcome("transformers/llama", name) for name in FAULTS]
    assert found.count("found") >= 5
