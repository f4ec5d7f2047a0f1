"""`torcheer extract` and `torcheer features`."""

from __future__ import annotations

import importlib

import pytest
import torch

import torcheer as tl
from torcheer.cli import main

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))

def pictures(count=20):
    torch.manual_seed(1)
    return torch.randn(count, 3, 6, 6)

loader = DataLoader(TensorDataset(pictures(), torch.arange(20)), batch_size=6)

def batches():
    for first in range(0, 20, 6):
        yield {"picture": pictures()[first : first + 6], "name": [str(n) for n in range(first, min(20, first + 6))]}

def call(model, batch):
    return model(batch["picture"])

def halves(tensor):
    return tensor[:, ::2]

def broken():
    yield pictures()[:6]
    raise RuntimeError("the disk of the data is gone\\nsecond line")

def interrupted():
    yield from loader
    raise KeyboardInterrupt

def needy(root):
    return loader

number = 7
"""


@pytest.fixture
def program(user_module):
    user_module("some_extraction", PROGRAM)
    return importlib.import_module("some_extraction")


def arguments_of(*words, data="loader", layers=("conv", "head"), to="features"):
    return ["extract", "some_extraction:Net", f"some_extraction:{data}", "--layers", *layers, "-o", to, *words]


def command(*words, **options):
    return main(arguments_of(*words, **options))


def plain(program):
    model = program.Net().eval()
    with torch.no_grad():
        return model.conv(program.pictures()), model(program.pictures())


@pytest.mark.filterwarnings("error")
def test_features_are_written_and_printed(program, capsys):
    assert command() == 0
    printed = capsys.readouterr().out
    assert "Features of Net in features: 20 samples, complete" in printed
    assert "  conv  (20, 4, 4, 4) float32\n" in printed
    assert "  labels: labels\n" in printed
    assert "  on disk: " in printed
    features = tl.open_features("features")
    conv, head = plain(program)
    assert torch.allclose(features["conv"][:], conv, atol=1e-6)
    assert torch.allclose(features["head"][:], head, atol=1e-6)
    assert main(["features", "features"]) == 0
    assert capsys.readouterr().out == printed
    assert command() == 0  # goes on with it
    assert command("--no-resume", to="memory://cli/features") == 0
    assert torch.equal(tl.open_features("memory://cli/features")["conv"][:], features["conv"][:])


def test_ids_may_be_named_by_their_place(program):
    assert command("--ids", "1") == 0
    assert tl.open_features("features").ids.tolist() == list(range(20))


def test_every_option_is_handed_on(program, capsys):
    words = ["--transform", "mean", "--dtype", "float16", "--block", "6", "--ids", "name", "--call", "some_extraction:call"]
    assert command(*words, "--device", "cpu", "--whole-pass", data="batches", layers=["conv"]) == 0
    features = tl.open_features("features")
    assert features["conv"].shape == (20, 4)
    assert features["conv"].dtype is torch.float16
    assert features.ids == [str(n) for n in range(20)]
    assert torch.allclose(features["conv"][:].float(), plain(program)[0].mean((2, 3)), atol=1e-3)
    printed = capsys.readouterr().out
    assert "block=6" in printed
    assert "dtype=torch.float16" in printed
    assert "ids: of every sample" in printed
    assert command("--transform", "some_extraction:halves", to="halves") == 0
    assert tl.open_features("halves")["conv"].shape == (20, 2, 4, 4)
    assert command("--keep", "mean", "TopK=3", to="kept") == 0
    assert "reducers: conv: Mean, TopK; head: Mean, TopK" in capsys.readouterr().out
    assert tl.open_features("kept").top("conv", unit=1).numbers.shape == (3,)


def test_layers_are_typed_as_keys(program):
    assert command(layers=["nn.BatchNorm2d", "torch.relu", "head"]) == 0
    assert list(tl.open_features("features")) == ["norm", "relu_1", "head"]


def test_an_interrupt_says_that_the_command_goes_on(program, capsys):
    assert command("--block", "6", data="interrupted") == 130
    assert "Interrupted. The same command continues with the samples in features: 18 samples." in capsys.readouterr().err
    assert len(tl.open_features("features")["conv"]) == 18


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": "nowhere"}, "has no attribute 'nowhere'"),
        ({"data": "number"}, "data is a DataLoader, a Dataset or an iterable of batches; got 7"),
        ({"data": "needy"}, "data is a DataLoader, a Dataset or an iterable of batches; got"),
        (
            {"data": "broken"},
            "some_extraction:Net over some_extraction:broken raised RuntimeError: the disk of the data is gone\n",
        ),
        ({"layers": ["conw"]}, "conw"),
        ({"words": ["--transform", "middle"]}, "--transform is one of mean, max, first_token, last_token, or MODULE:FUNCTION"),
        ({"words": ["--transform", "some_extraction:middle"]}, "torcheer: module 'some_extraction' has no attribute 'middle'"),
        ({"words": ["--keep", "Mean=5"]}, "a number with TopK alone, as in TopK=50; got 'Mean=5'"),
        ({"words": ["--keep", "TopK=x"]}, "a number with TopK alone, as in TopK=50; got 'TopK=x'"),
        ({"words": ["--keep", "median"]}, "keep takes reducers"),
        ({"words": ["--dtype", "float17"]}, "float17"),
        ({"words": ["--block", "0"]}, "block is the least number of samples"),
        ({"words": ["--device", "moon"]}, "--device moon raised RuntimeError"),
        ({"to": "some_extraction.py"}, "is a file"),
        ({"to": "nowhere://folder"}, "cannot be opened"),
    ],
)
def test_what_is_wrong_is_told_in_words(program, refused, arguments, said):
    told = refused(arguments_of(*arguments.pop("words", ()), **arguments))
    assert said in told
    assert "Traceback" not in told


def test_a_function_has_no_layers_and_a_folder_no_features(program, refused):
    told = refused(["extract", "torch:relu", "some_extraction:loader", "--layers", "x", "-o", "features"])
    assert "torch:relu is not an nn.Module, so it has no layers to read" in told
    assert "there are no features in nowhere" in refused(["features", "nowhere"])
