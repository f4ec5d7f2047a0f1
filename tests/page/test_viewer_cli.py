"""`torcheer show` and `torcheer view`, and the transformer of the demo."""

from __future__ import annotations

import pytest
import torch

import torcheer
from models import Mlp, log
from torcheer.cli import main
from torcheer.demo import Gpt2
from torcheer.page import read_payload

MODELS = """
import torch
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
"""


@pytest.fixture
def folder(user_module):
    return user_module("shown_models", MODELS)


NET = ["shown_models:net", "--input", "1,3,8,8"]


def test_show_writes_a_page_or_a_payload(folder, capsys):
    """As the ending says."""
    assert main(["show", *NET, "-o", "net.html"]) == 0
    assert "Written: net.html" in capsys.readouterr().out
    assert (folder / "net.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert main(["show", *NET, "-o", "net.json"]) == 0
    assert any("preview" in node for node in read_payload(folder / "net.json")["nodes"])
    assert main(["show", *NET, "-o", "bare.json", "--no-previews"]) == 0
    assert not any("preview" in node for node in read_payload(folder / "bare.json")["nodes"])


def test_show_without_an_output_shows(folder, capsys):
    assert main(["show", *NET]) == 0
    assert capsys.readouterr().out == "Page: torcheer_Sequential.html\n"
    assert (folder / "torcheer_Sequential.html").exists()


def test_view_makes_a_page_of_a_payload_and_opens_it(folder, capsys, monkeypatch):
    """Next to it, or where it is told; alone, or with another."""
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("torcheer._text.screen.has_screen", lambda: True)
    log(Mlp(), torch.randn(2, 4)).to_json("mlp.json")
    assert main(["view", "mlp.json"]) == 0
    assert opened == [(folder / "mlp.html").resolve().as_uri()]
    assert main(["view", "mlp.html"]) == 0
    assert len(opened) == 2
    assert main(["view", "mlp.json", "-o", "other.html", "--compare", "mlp.json"]) == 0
    assert len(opened) == 2
    assert 'id="payload-2"' in (folder / "other.html").read_text(encoding="utf-8")
    assert "Written: other.html" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["view", "net.json", "-o", "net.png"], "the ending of the output is .html"),
        (["show", *NET, "-o", "net.svg"], ".html or .json"),
        (["show", *NET, "-o", "nowhere/net.html"], "cannot be written"),
        (["show", "shown_models:other"], "other"),
        (["view", "nothing.html"], "there is no page"),
        (["view", "nothing.json"], "cannot be read"),
        (["view", "shown_models.py"], "not JSON"),
        (["view", "page.html", "-o", "other.html"], "only opened"),
    ],
)
def test_what_is_wrong_is_told(folder, arguments, message, refused):
    (folder / "page.html").write_text("<!doctype html>")
    assert message in refused(arguments)


def test_the_decoder_of_the_demo_is_the_size_of_gpt2():
    """124,439,808 parameters, in twelve blocks."""
    with torch.device("meta"):
        model = Gpt2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 124_439_808
    assert len(model.blocks) == 12


def test_a_token_of_the_decoder_does_not_see_what_comes_later():
    model = Gpt2(50, 12, 16, 2, 2).eval()
    ids = torch.randint(50, (1, 9))
    other = ids.clone()
    other[0, 6:] = (ids[0, 6:] + 1) % 50
    one, two = model(ids), model(other)
    assert torch.allclose(one[:, :6], two[:, :6], atol=1e-6)
    assert not torch.allclose(one[:, 6:], two[:, 6:], atol=1e-3)
    assert torcheer.validate_forward_pass(model, ids)
