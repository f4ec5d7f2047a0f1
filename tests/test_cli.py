"""The command line."""

from __future__ import annotations

import csv

import pytest

from torcheer import __version__
from torcheer.cli import main


def test_the_demo_prints_a_history_a_layer_and_its_files(tmp_path, capsys):
    assert main(["demo", "--folder", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Log of AlexNet forward pass" in printed
    assert "Layer conv2d_3_7, operation 8/24" in printed
    text, table = tmp_path / "out" / "alexnet.txt", tmp_path / "out" / "alexnet.csv"
    assert str(text) in printed
    assert str(table) in printed
    assert text.read_text(encoding="utf-8").startswith("Log of AlexNet")
    with table.open(encoding="utf-8") as file:
        assert [row["label"] for row in csv.DictReader(file)][7] == "conv2d_3_7"
    for name in ("alexnet", "recurrent_unrolled", "recurrent_rolled"):
        assert str(tmp_path / "out" / name) in printed
        assert (tmp_path / "out" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path, refused):
    (tmp_path / "file").write_text("")
    assert "cannot write" in refused(["demo", "--folder", str(tmp_path / "file")])


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out


MODELS = """
import torch
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
class Net(torch.nn.Module):
    def forward(self, x):
        for _ in range(3):
            x = x.sin()
        return x
def made(width=4):
    return torch.nn.Linear(width, 2)
def function(ids, x):
    return x[ids]
def broken():
    raise ValueError("no weights here\\nsecond line")
number = 7
def hooked():
    model = torch.nn.Linear(4, 2)
    model.register_forward_pre_hook(lambda module, args: args or (torch.ones(1, 4),))
    return model
class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor = None) -> torch.Tensor:
        return x
"""


@pytest.fixture
def models(user_module):
    return user_module("some_models", MODELS)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["some_models:net", "--input", "1,4"], "relu_1_2"),
        (["some_models:Net", "--input", "1,4", "--rolled"], "sin_1_1 ×3"),
        (["some_models:Net", "--input", "1,4", "--unrolled"], "sin_1_1 (pass 3/3)"),
        (["some_models:made", "--input", "1,4", "--theme", "dark"], "linear_1_1"),
        (["some_models:function", "--input", "3:int64", "--input", "5,2", "--direction", "right"], "getitem_1_2"),
        (["some_models:net", "--input", "1,4", "--depth", "all"], "linear_1_1"),
        (["some_models:hooked"], "linear_1_1"),
        (["some_models:net", "--input", "1,4", "--depth", "1"], "linear_1_1"),
        (["some_models:net", "--input", "1,4", "--style", "paper", "--width", "8.5cm", "--columns", "1"], 'width="8.5cm"'),
        (["some_models:net", "--input", "1,4", "--focus", "relu_1_2"], "Only relu_1_2 and what is next to it."),
    ],
)
def test_draw_draws_what_is_named(models, arguments, expected, capsys):
    assert main(["draw", *arguments, "-o", "out.svg"]) == 0
    assert expected in (models / "out.svg").read_text(encoding="utf-8")
    assert "Written: out.svg" in capsys.readouterr().out


def test_draw_without_an_output_shows(models, capsys):
    assert main(["draw", "some_models:net", "--input", "1,4"]) == 0
    assert (models / "torcheer_Sequential_unrolled.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["some_models", "--input", "1"], "module:name"),
        (["some_models:nothing"], "nothing"),
        (["some_models:nett"], "module 'some_models' has no attribute 'nett'. Did you mean net?"),
        (["no_such_module_here:net"], "there is no module 'no_such_module_here'"),
        (["some_models.py:net"], "there is no module 'some_models.py' in this folder"),
        (["some_models:Named.forwrd"], "has no attribute 'forwrd'. Did you mean forward?"),
        (["imports_another:net"], "importing imports_another raised ModuleNotFoundError: No module named 'nope'"),
        (["cannot_be_read:net"], "importing cannot_be_read raised SyntaxError: "),
        (["some_models:number"], "int, not a model"),
        (["some_models:net", "--input", "1,x"], "shape such as"),
        (["some_models:net", "--input", "1,4:floaty"], "shape such as"),
        (["some_models:net", "--input", "1,4", "-o", "out.bmp"], ".svg, .png, .pdf, .dot"),
        (["some_models:net", "--input", "1,4", "-o", "nowhere/out.svg"], "cannot be written"),
        (["some_models:net", "--input", "1,4", "--depth", "deep"], "or 'all'"),
        (["some_models:net", "--input", "1,4", "--direction", "round"], "direction is one of"),
        (["torch.nn:Linear"], "needs in_features, out_features"),
        (["torch:Tensor", "--input", "1"], "torcheer: "),
        (["some_models:broken"], "some_models:broken() raised ValueError: no weights here"),
        (["some_models:net", "--input", "1,5"], "mat1 and mat2 shapes cannot be multiplied"),
        (["some_models:net", "--input", "1,5"], "in operation 'linear'"),
        (["some_models:net", "--input", "1,4:int64"], "some_models:net with --input 1,4:int64 raised RuntimeError"),
        (["torch:relu"], "torch:relu with no --input raised TypeError"),
        (["torch.nn:ReLU"], "torch.nn:ReLU takes (input), and cannot be called with 0 of --input"),
        (["some_models:Named"], "some_models:Named takes (x, *, mask=None), and cannot be called with 0 of --input"),
        (
            ["torch.nn:ReLU", "--input", "2", "--input", "3"],
            "too many positional arguments. Give the shape of each: --input 1,3",
        ),
        (["torch.nn:ReLU", "--input", "999999999999999"], "--input 999999999999999 raised RuntimeError"),
        (["torch.nn:ReLU", "--input", "1:int7"], "--input 1:int7 raised "),
        (["some_models:net", "--input", "1,4", "--width", "wide"], "width is a length"),
        (["some_models:net", "--input", "1,4", "--style", "poster"], "style is one of"),
        (["some_models:net", "--input", "1,4", "--columns", "0"], "columns is a number from 1"),
    ],
)
def test_draw_tells_what_is_wrong(models, arguments, message, refused, user_module):
    user_module("imports_another", "import nope\n")
    user_module("cannot_be_read", "def def\n")
    told = refused(["draw", *arguments])
    assert message in told
    assert len(told.splitlines()) == 1
