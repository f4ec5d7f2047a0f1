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


def test_a_folder_that_cannot_be_written_is_an_error_in_words(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        main(["demo", "--folder", str(tmp_path / "file")])
    assert caught.value.code == 2
    assert "cannot write" in capsys.readouterr().err


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert __version__ in capsys.readouterr().out
