"""A call that is given no tensor and returns none, such as a pipeline of text to pictures: what ran is the log."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import torcheer
from torcheer import changes


class Pipeline(nn.Module):
    """Words in, rows of numbers out."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.denoiser = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
        self.register_buffer("scale", torch.ones(4))

    @torch.no_grad()
    def forward(self, words: str, steps: int = 3) -> list[list[float]]:
        text = self.embedding(torch.tensor([ord(letter) % 10 for letter in words]))
        picture = torch.randn(len(words), 4)
        for _ in range(steps):
            picture = self.denoiser(picture + text) * self.scale
        return picture.tolist()


class Nothing(nn.Module):
    """Computes something and returns nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, count: int) -> None:
        self.last = self.fc(torch.ones(count, 3))


def plain_call():
    return torch.arange(3).mul(2).numpy()


CALLS = {"a pipeline": (Pipeline(), "hello"), "returns nothing": (Nothing(), 2), "a function": (plain_call, ())}


@pytest.fixture(autouse=True)
def without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", sorted(CALLS))
def test_what_ran_is_shown_looked_up_drawn_saved_and_proved(name, tmp_path):
    model, given = CALLS[name]
    history = torcheer.log_forward_pass(model, given, random_seed=0)
    everything = torcheer.log_forward_pass(model, given, keep_orphans=True, random_seed=0)
    assert len(history) > 0
    assert history.layer_labels == everything.layer_labels
    assert not history.inputs
    assert not history.outputs
    assert "not shown" not in str(history)
    for layer in history:
        assert layer.label in str(history)
        assert history[layer.label] == layer
    for ours, theirs in zip(history.operations, everything.operations, strict=True):
        assert torch.equal(ours.activation, theirs.activation)
    assert len(history.graph.nodes) == len(history.operations)
    report = torcheer.validate_forward_pass(model, given)
    assert report, report
    assert report.num_operations == len(history.operations)
    assert report.num_checked >= len(history.operations)
    history.draw(tmp_path / "picture.svg")
    assert all(layer.layer_type in (tmp_path / "picture.svg").read_text() for layer in history)
    history.to_html(tmp_path / "page.html")
    history.to_csv(tmp_path / "table.csv")
    assert len((tmp_path / "table.csv").read_text().splitlines()) == len(history.operations) + 1
    assert str(history.summary())
    history.save(tmp_path / "log.safetensors")
    loaded = torcheer.load(tmp_path / "log.safetensors", model=model if isinstance(model, nn.Module) else None)
    assert loaded.layer_labels == history.layer_labels
    assert loaded.validate()


def test_modules_of_a_pipeline_are_looked_up_and_their_values_changed():
    model = Pipeline()
    history = torcheer.log_forward_pass(model, "hello", random_seed=0)
    assert history["denoiser"].num_passes == 3
    assert history["embedding"].shape == (5, 4)
    torch.manual_seed(0)
    last = torch.tensor(model("hello"))
    assert torch.equal(history.operations[-1].activation, last)
    changed = history.replay(changes={"embedding": changes.zero()})
    assert not torch.equal(changed.operations[-1].activation, last)


def test_some_layers_of_a_pipeline_can_be_kept():
    some = torcheer.log_forward_pass(Pipeline(), "hello", layers_to_save=["denoiser.0", -1])
    assert {one.layer_label for one in some.saved} == {"linear_1_4", "mul_1_7"}
    assert len(some.saved) == 6


def test_a_recording_of_a_pipeline_shows_what_ran():
    model = Pipeline()
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
