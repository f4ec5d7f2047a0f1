"""A call that is given no tensor and returns none, such as a pipeline of text to pictures: what ran is the log."""

from __future__ import annotations

import warnings

import pytest
import torch

import torcheer
from catalogue import CATALOGUE
from torcheer import changes


@pytest.fixture(autouse=True)
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", ["a pipeline", "returning nothing", "without tensors at its ends"])
def test_what_ran_is_the_log(name):
    model, given = CATALOGUE[name].make(), CATALOGUE[name].given()
    history = torcheer.log_forward_pass(model, given, random_seed=0)
    everything = torcheer.log_forward_pass(model, given, keep_orphans=True, random_seed=0)
    assert len(history) > 0
    assert history.layer_labels == everything.layer_labels
    assert not history.inputs
    assert not history.outputs
    assert "not shown" not in str(history)
    for ours, theirs in zip(history.operations, everything.operations, strict=True):
        assert torch.equal(ours.activation, theirs.activation)
    report = torcheer.validate_forward_pass(model, given)
    assert report.num_checked >= report.num_operations == len(history.operations)


def test_modules_of_a_pipeline_are_looked_up_and_their_values_changed():
    model = CATALOGUE["a pipeline"].make()
    history = torcheer.log_forward_pass(model, "hello", random_seed=0)
    assert history["denoiser"].num_passes == 3
    assert history["embedding"].shape == (5, 4)
    torch.manual_seed(0)
    last = torch.tensor(model("hello"))
    assert torch.equal(history.operations[-1].activation, last)
    changed = history.replay(changes={"embedding": changes.zero()})
    assert not torch.equal(changed.operations[-1].activation, last)


def test_some_layers_of_a_pipeline_can_be_kept():
    some = torcheer.log_forward_pass(CATALOGUE["a pipeline"].make(), "hello", layers_to_save=["denoiser.0", -1])
    assert {one.layer_label for one in some.saved} == {"linear_1_4", "mul_1_7"}
    assert len(some.saved) == 6


def test_a_recording_of_a_pipeline_shows_what_ran():
    model = CATALOGUE["a pipeline"].make()
    with torcheer.recording(model) as history:
        model("hello")
    assert history.layer_labels == torcheer.log_forward_pass(model, "hello").layer_labels
    with torcheer.recording(model) as history:
        model("hello")
        beside = torch.ones(2) * 3
    assert history["denoiser"].num_passes == 3
    assert torch.equal(history["mul_2"].activation, beside)


def test_with_a_tensor_at_one_end_orphans_stay_hidden():
    def model(t):
        torch.ones(3) * 2
        return t + 1

    assert [layer.layer_type for layer in torcheer.log_forward_pass(model, torch.ones(2))] == ["input", "add", "output"]
