"""One folder holds one run: a second one is refused, a resumed one is of the same model and goes on from its last step."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from torcheer import InvalidArgument, RunExists, RunMismatch, Xray

X = torch.ones(2, 3, 8, 8)


def network(channels=4, norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, channels, 3), norm(channels), nn.ReLU(), nn.Flatten(), nn.Linear(channels * 36, 2))


def take(folder, model=None, steps=2, **options):
    with Xray(model if model is not None else network(), X, ["0"], folder=folder, **options) as xray:
        for _ in range(steps):
            xray.take_graphs()
    return xray


def test_a_second_run_in_a_folder_is_refused_with_what_to_do(tmp_path):
    """The error offers to resume, and a folder that is free; the first run is as it was."""
    folder = tmp_path / "run"
    take(folder)
    (tmp_path / "run-2").mkdir()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunExists, match=r"resume=True.*run-3'") as raised:
        take(folder)
    assert isinstance(raised.value, FileExistsError)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert take(tmp_path / "run-3").run.steps() == [0, 1]


def test_a_folder_in_which_nothing_was_taken_yet_is_free(tmp_path):
    """A training that failed before its first snapshot leaves nothing that could be mixed up."""
    take(tmp_path / "run", steps=0)
    assert take(tmp_path / "run", network(channels=6)).run.steps() == [0, 1]


def test_a_resumed_run_goes_on_from_the_recorded_step(tmp_path):
    take(tmp_path / "run")
    assert take(tmp_path / "run", resume=True).run.steps() == [0, 1, 2, 3]


def test_where_there_is_no_run_to_resume_one_begins(tmp_path):
    """The same line works for the first start of a job and for every restart."""
    assert take(tmp_path / "run", resume=True).run.steps() == [0, 1]


def test_resuming_needs_a_folder():
    with pytest.raises(InvalidArgument, match="give it, folder="):
        Xray(network(), X, ["0"], resume=True)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: network(channels=6), r"parameter '0.weight' is 6×3×3×3 in the model and 4×3×3×3 in the run"),
        (lambda: network(norm=nn.InstanceNorm2d), r"the run has a parameter '1.weight' 4, the model has none"),
        (lambda: network(norm=lambda n: nn.GroupNorm(2, n)), r"module '1' is a GroupNorm in the model and a BatchNorm2d"),
        (lambda: network().append(nn.Linear(2, 2)), r"the model has a parameter '5.weight' 2×2, the run has none"),
    ],
    ids=["wider", "without a parameter", "another class", "longer"],
)
def test_another_architecture_cannot_resume(tmp_path, other, said):
    """It is told what differs and which folder is free; the run is not touched, and its own model still resumes."""
    take(tmp_path / "run")
    with pytest.raises(RunMismatch, match=f"(?s){said}.*run-2'"):
        take(tmp_path / "run", other(), resume=True)
    assert take(tmp_path / "run", resume=True).run.steps() == [0, 1, 2, 3]


class Heads(nn.Module):
    """Attention as many write it: the number of heads changes no shape of a parameter."""

    def __init__(self, heads=2, activation=nn.functional.relu):
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.heads = heads
        self.activation = activation
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for one in self.qkv(x.flatten(1, 2)).chunk(3, -1))
        return self.activation(nn.functional.scaled_dot_product_attention(q, k, v))


def convolution(stride=1, padding_mode="zeros", activation=nn.ReLU):
    return nn.Sequential(nn.Conv2d(3, 4, 3, stride=stride, padding=1, padding_mode=padding_mode), activation(), nn.Flatten())


@pytest.mark.parametrize(
    ("model", "other", "said"),
    [
        (convolution(), convolution(stride=2), r"stride of module '0' is \(2, 2\) in the model and \(1, 1\) in the run"),
        (convolution(), convolution(padding_mode="reflect"), r"padding_mode of module '0' is 'reflect' in the model"),
        (convolution(), convolution(activation=nn.GELU), r"module '1' is a GELU in the model and a ReLU in the run"),
        (convolution(activation=nn.LeakyReLU), convolution(activation=lambda: nn.LeakyReLU(0.2)), "negative_slope"),
        (convolution(), convolution().append(nn.Dropout()), r"the model has a module '3', a Dropout, the run has none"),
        (convolution().append(nn.Tanh()), convolution(), r"the run has a module '3', a Tanh, the model has none"),
        (Heads(), Heads(heads=4), r"heads of the model is 4 in the model and 2 in the run"),
        (Heads(), Heads(activation=nn.functional.gelu), "activation of the model is gelu in the model and relu in the run"),
        (nn.MultiheadAttention(8, 2), nn.MultiheadAttention(8, 4), "num_heads"),
        (nn.TransformerEncoderLayer(8, 2), nn.TransformerEncoderLayer(8, 2, activation="gelu"), "activation"),
        (nn.TransformerEncoderLayer(8, 2), nn.TransformerEncoderLayer(8, 2, norm_first=True), "norm_first"),
        (nn.LSTM(8, 4), nn.LSTM(8, 4, batch_first=True), "batch_first"),
        (nn.BatchNorm2d(3), nn.BatchNorm2d(3, eps=1e-3), r"eps of the model is 0\.001 in the model and 1e-05 in the run"),
    ],
    ids=str,
)
def test_settings_and_modules_without_parameters_are_part_of_the_architecture(tmp_path, model, other, said):
    """What changes no shape of a parameter changes what the model computes all the same."""
    given = {nn.MultiheadAttention: (torch.ones(5, 2, 8),) * 3, nn.TransformerEncoderLayer: torch.ones(5, 2, 8)}
    x = given.get(type(model), torch.ones(5, 2, 8) if isinstance(model, nn.LSTM) else X)
    with Xray(model, x, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    with pytest.raises(RunMismatch, match=said):
        Xray(other, x, folder=tmp_path / "run", resume=True)
    Xray(model, x, folder=tmp_path / "run", resume=True).close()


def test_what_a_model_counts_while_it_runs_is_no_setting(tmp_path):
    """Neither what its methods assign, nor what a training puts on it."""
    model = Heads()
    with Xray(model, X, folder=tmp_path / "run") as xray:
        xray.take_graphs()
    model.seen, model.epoch, model.best = 100, 7, 0.5
    Xray(model.eval().requires_grad_(False), X, folder=tmp_path / "run", resume=True).close()


def test_a_lazy_module_is_the_one_it_becomes(tmp_path):
    """A run that begins before its shapes are known is resumed when they are."""
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.Linear(3, 1))
    with Xray(model, (2, 4), folder=tmp_path / "run") as xray:
        xray.take_graphs()
    model(torch.ones(2, 4))
    assert type(model[0]) is nn.Linear
    Xray(model, (2, 4), folder=tmp_path / "run", resume=True).close()


def test_a_run_of_an_older_version_is_resumed_by_what_it_recorded(tmp_path):
    """It names classes of modules with parameters, and no settings."""
    take(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    about["architecture"] = {"modules": {"0": "Conv2d"}, "parameters": about["architecture"]["parameters"]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    other = network()
    other[2] = nn.GELU()
    assert take(tmp_path / "run", other, resume=True).run.steps() == [0, 1, 2, 3]


def test_a_run_that_says_nothing_of_its_architecture_is_resumed(tmp_path):
    """Runs of older versions have no such record; they get one."""
    take(tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["architecture"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    assert take(tmp_path / "run", resume=True).run.steps() == [0, 1, 2, 3]
    with pytest.raises(RunMismatch):
        take(tmp_path / "run", network(channels=6), resume=True)


@pytest.mark.parametrize("folder", ["", "  ", 3, b"run"])
def test_a_folder_without_a_name_is_told(folder, tmp_path, monkeypatch):
    """Nothing is written into the current folder."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="folder says where the run is kept"):
        take(folder)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_a_file_is_told(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InvalidArgument, match="that is a file"):
        take(tmp_path / "run")
    with pytest.raises(InvalidArgument, match="cannot be written to the folder"):
        take(tmp_path / "run" / "inside")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_without_its_description_is_not_spliced_with_another(tmp_path):
    """What is left of a run whose run.json is gone cannot be compared with a model, so nothing is added to it."""
    first = Xray(nn.Linear(4, 2), (1, 4), folder=tmp_path / "run")
    first.take_graphs(0)
    first.close()
    (tmp_path / "run" / "run.json").unlink()
    for options in ({}, {"resume": True}):
        with pytest.raises(RunExists, match=r"run\.json is missing"):
            Xray(nn.Linear(3, 3), (1, 3), folder=tmp_path / "run", **options)
