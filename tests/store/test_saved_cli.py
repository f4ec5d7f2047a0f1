"""The command line makes saved histories and takes them in place of models."""

from __future__ import annotations

import pytest
import torch

import torcheer
from torcheer.cli import main


@pytest.fixture
def path(tmp_path, capsys):
    path = tmp_path / "run.safetensors"
    assert main(["log", "torcheer.demo:SimpleRecurrent", "--input", "1,5", "-o", str(path)]) == 0
    assert capsys.readouterr().out == f"Written: {path}\n"
    return path


def test_log_writes_a_history(path, tmp_path):
    history = torcheer.load(path)
    assert (history.model_name, history["linear_1"].num_passes) == ("SimpleRecurrent", 4)
    whole = tmp_path / "whole.safetensors"
    assert main(["log", "torcheer.demo:SimpleRecurrent", "--input", "1,5", "-o", str(whole), "--params", "--layers", "fc"]) == 0
    loaded = torcheer.load(whole)
    assert {one.layer_label_short for one in loaded.saved} == {"linear_1"}
    assert loaded.params["fc.weight"].shape == (5, 5)


def test_a_saved_history_is_drawn_shown_summed_up_and_searched(path, tmp_path, capsys):
    history = torcheer.load(path)
    assert main(["draw", str(path), "-o", str(tmp_path / "run.dot"), "--rolled"]) == 0
    assert "linear_1_1" in (tmp_path / "run.dot").read_text()
    assert main(["show", str(path), "-o", str(tmp_path / "run.json")]) == 0
    assert (tmp_path / "run.json").read_text() == history.to_json()
    assert main(["view", str(path), "-o", str(tmp_path / "run.html"), "--compare", str(path)]) == 0
    assert (tmp_path / "run.html").stat().st_size > 10_000
    capsys.readouterr()
    assert main(["summary", str(path)]) == 0
    assert capsys.readouterr().out == f"{history.summary()}\n"
    assert main(["find", str(path), "nn.Linear"]) == 0
    assert capsys.readouterr().out.count("linear_1_1:") == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["draw", "nothing.safetensors"], "there is no file 'nothing.safetensors'"),
        (["show", "{path}", "--input", "1,5"], "--input goes with a model"),
        (
            ["log", "torcheer.demo:SimpleRecurrent", "--input", "1,5", "-o", "run.bin"],
            "the ending of the output is .safetensors",
        ),
    ],
)
def test_what_is_wrong_is_told(path, arguments, words, refused):
    assert words in refused([one.format(path=path) for one in arguments])


def test_summary_also_takes_a_model(capsys):
    assert main(["summary", "torcheer.demo:SimpleRecurrent", "--input", "1,5"]) == 0
    assert "SimpleRecurrent" in capsys.readouterr().out
    assert torch.is_grad_enabled()
