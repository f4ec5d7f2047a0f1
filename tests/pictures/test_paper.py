"""Pictures for papers: style, width, and the neighbourhood of one module."""

from __future__ import annotations

import io
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import torcheer
from models import made_of, made_with
from torcheer.demo import AlexNet
from torcheer.errors import InvalidArgument, LayerNotFound, TorcheerError
from torcheer.graph import focus, fold_repeats, roll
from torcheer.pictures import make_picture, picture_options

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def alexnet() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none")


@made_with(
    stem=lambda: nn.Linear(4, 4),
    layer1=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    layer2=lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 4)),
    layer3=lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()),
)
def Blocks(self, x: Tensor) -> Tensor:
    """Blocks with a skip past each, called by hand, so that several things are next to a block."""
    x = self.layer1(self.stem(x))
    x = x + self.layer2(x)
    out: Tensor = self.layer3(x)
    return out


@pytest.fixture(scope="module")
def blocks() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(Blocks(), torch.ones(1, 4))


def test_a_picture_for_a_paper_is_small_grey_and_says_little(alexnet: torcheer.ModelHistory) -> None:
    shown = make_picture(alexnet.graph, picture_options({"columns": 1}))
    printed = make_picture(alexnet.graph, picture_options({"style": "paper", "columns": 1}))
    assert printed.size[0] < 0.7 * shown.size[0]
    assert printed.size[1] < 0.6 * shown.size[1]
    colors = set(re.findall(r"#[0-9a-f]{6}", printed.svg))
    assert all(color[1:3] == color[3:5] == color[5:7] for color in colors), "grey only"
    texts = [text.text or "" for text in ElementTree.fromstring(printed.svg).iter(f"{SVG}text")]
    assert texts.count("conv2d") == 5
    assert "11×11, stride 4, padding 2" in texts
    assert "1×64×55×55" in texts
    assert not any(word in text for text in texts for word in ("float32", "KB", "AlexNet", "operations", "trainable", "_1_"))
    assert printed.notes[0].startswith("24 operations"), "what is not written can still be read"


def test_theme_and_legend_can_be_chosen_in_any_style(alexnet: torcheer.ModelHistory) -> None:
    light = make_picture(alexnet.graph, picture_options({"style": "paper", "theme": "light", "legend": True}))
    assert "#c9e0f7" in light.svg
    assert "trainable parameters" in light.svg
    assert "trainable parameters" not in make_picture(alexnet.graph, picture_options({"style": "paper"})).svg


@pytest.mark.parametrize(("width", "inches"), [("8.5cm", 8.5 / 2.54), ("80 mm", 80 / 25.4), ("3.3in", 3.3), (240, 240 / 72)])
def test_a_picture_is_as_wide_as_asked_for_in_every_form(
    alexnet: torcheer.ModelHistory, tmp_path: Path, width: str | float, inches: float
) -> None:
    for ending in ("svg", "pdf", "png"):
        alexnet.draw(tmp_path / f"a.{ending}", style="paper", width=width)
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    unit = {"cm": 2.54, "mm": 25.4, "in": 1.0, "pt": 72.0}
    read = re.fullmatch(r"([\d.]+)(\w+)", root.get("width", ""))
    assert read is not None
    assert float(read[1]) / unit[read[2]] == pytest.approx(inches, rel=1e-3)
    across, down = map(float, root.get("viewBox", "").split()[2:])
    assert float(re.sub(r"\D+$", "", root.get("height", ""))) / float(read[1]) == pytest.approx(down / across, rel=1e-3)
    page = re.search(rb"MediaBox \[ 0 0 ([\d.]+) ([\d.]+)", (tmp_path / "a.pdf").read_bytes())
    assert page is not None
    assert float(page[1]) == pytest.approx(72 * inches, abs=3)
    with Image.open(tmp_path / "a.png") as image:
        assert image.width == pytest.approx(300 * inches, abs=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"style": "poster"}, "style is one of 'screen', 'paper'"),
        ({"width": "8.5"}, "width is a length such as '8.5cm'"),
        ({"width": "-3cm"}, "width is a length"),
        ({"width": "1mm"}, "from 10 points"),
        ({"width": True}, "width is a length"),
        ({"width": float("nan")}, "width is a length"),
        ({"width": ["8cm"]}, "width is a length"),
        ({"columns": 0}, "columns is a number from 1"),
        ({"columns": "two"}, "columns is a number from 1"),
        ({"columns": True}, "columns is a number from 1"),
        ({"legend": "yes"}, "legend is one of"),
    ],
)
def test_wrong_options_are_told_in_words(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        picture_options(options)


def labels(graph: object) -> list[tuple[str, str]]:
    return [(node.kind, node.label) for node in graph.nodes]  # type: ignore[attr-defined]


def test_a_module_in_focus_is_open_and_its_neighbours_are_stubs(blocks: torcheer.ModelHistory) -> None:
    graph = focus(blocks.graph, "layer2")
    assert labels(graph) == [
        ("stub", "layer1"),
        ("operation", "linear_3_4"),
        ("operation", "relu_2_5"),
        ("operation", "linear_4_6"),
        ("stub", "add_1_7"),
    ]
    assert {(edge.source, edge.target) for edge in graph.edges if "…" in edge.source + edge.target} == {
        (graph.nodes[0].key, "linear_3_4:1"),
        ("linear_4_6:1", graph.nodes[4].key),
    }
    assert all(node.modules == () for node in graph.nodes if node.kind == "stub")
    picture = make_picture(blocks.graph, picture_options({"focus": "layer2"}))
    assert "Only layer2 and what is next to it." in picture.notes
    assert picture.notes[0].startswith("3 operations")


def test_an_operation_in_focus_has_its_neighbourhood(blocks: torcheer.ModelHistory) -> None:
    shown = labels(focus(blocks.graph, "relu_2_5"))
    assert shown[:2] == [("stub", "layer1"), ("operation", "relu_1_3")]
    assert shown[-2:] == [("operation", "add_1_7"), ("stub", "layer3")]
    chain = torcheer.log_forward_pass(nn.Sequential(*(nn.ReLU() for _ in range(9))), torch.ones(2)).graph
    assert [label for _, label in labels(focus(chain, "relu_5_5"))] == [
        "1",
        "relu_3_3",
        "relu_4_4",
        "relu_5_5",
        "relu_6_6",
        "relu_7_7",
        "7",
    ]


def test_focus_goes_with_rolling_folding_and_depth() -> None:
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.after(self.part(self.before(x)))
        return x

    history = torcheer.log_forward_pass(
        made_of(
            forward,
            before=nn.Linear(4, 4),
            after=nn.Linear(4, 4),
            part=nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))),
        ),
        torch.ones(1, 4),
    )
    rolled = focus(roll(history.graph), "part")
    assert [node.label for node in rolled.nodes if node.kind == "stub"] == ["before", "after"]
    assert len(fold_repeats(focus(history.graph, "part")).nodes) < len(focus(history.graph, "part").nodes)
    drawn = make_picture(history.graph, picture_options({"focus": "part", "rolled": True, "nesting_depth": 2}))
    assert [node.label for node in drawn.graph.nodes if node.kind == "module"] == [f"part.{n}" for n in range(4)]


def test_a_focus_that_means_nothing_is_told(blocks: torcheer.ModelHistory) -> None:
    with pytest.raises(LayerNotFound, match="nowhere"):
        blocks.draw(io.BytesIO(), focus="nowhere")
    for wrong in (3.5, [], object()):
        with pytest.raises(TorcheerError):
            blocks.draw(io.BytesIO(), focus=wrong)
    assert len(blocks.draw(io.BytesIO(), focus="").graph.nodes) == len(blocks.graph.nodes)


def test_a_module_draws_itself(blocks: torcheer.ModelHistory, tmp_path: Path) -> None:
    module = blocks.modules["layer2"]
    picture = module.draw(tmp_path / "layer2.svg", style="paper", color_by="flops", legend=True)
    assert picture.svg == blocks.draw(io.BytesIO(), focus="layer2", style="paper", color_by="flops", legend=True).svg
    assert (tmp_path / "layer2.svg").read_text() == picture.svg
    assert len(blocks.modules[""].draw(io.BytesIO()).graph.nodes) == len(blocks.graph.nodes)
    assert module.children[0].draw(io.BytesIO()).graph.nodes
    with pytest.raises(InvalidArgument, match=r"use history\.draw\(focus=…\)"):
        module.draw(io.BytesIO(), focus="layer1")


def test_a_module_that_did_not_run_says_so() -> None:
    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out

    history = torcheer.log_forward_pass(made_of(forward, used=nn.Linear(2, 2), idle=nn.Linear(2, 2)), torch.ones(1, 2))
    with pytest.raises(InvalidArgument, match="'idle' was not called"):
        history.modules["idle"].draw(io.BytesIO())
