"""The viewer in a browser: a person opens a page, without a network, and finds the model as it ran."""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
import torchvision
import transformers
from torch import Tensor, nn

import torcheer
from browser import until
from models import made_with
from torcheer import ModelHistory
from torcheer.demo import AlexNet, SimpleRecurrent
from torcheer.graph import merge_calls, plumbing_of
from torcheer.page import make_page


class Masked(nn.Module):
    """A block that reads a mask."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(8, width)
        self.out = nn.Linear(width, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.out(torch.relu(self.into(x @ mask)))


@made_with(blocks=lambda: nn.ModuleList(Masked(8 + i) for i in range(24)))
def Hub(self, x: Tensor) -> Tensor:
    """One mask feeds every block, and no two blocks are equal."""
    mask = torch.tril(torch.ones(8, 8))
    for block in self.blocks:
        x = block(x, mask)
    return x


class Residual(nn.Sequential):
    """What its parts make of its input, and its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def many_stages() -> nn.Module:
    """Fifteen hundred operations in stages of blocks that differ."""

    def block(width: int) -> nn.Module:
        return Residual(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 4))

    stages = (nn.Sequential(*(block(4 + (stage + b * b) % 11) for b in range(31))) for stage in range(12))
    return nn.Sequential(*stages)


def gpt2() -> tuple[nn.Module, Any]:
    config = transformers.GPT2Config(n_embd=48, n_head=4, n_positions=64, vocab_size=100)
    return transformers.GPT2LMHeadModel(config), torch.arange(16)[None]


def log(model: nn.Module, x: Any, **options: Any) -> ModelHistory:
    return torcheer.log_forward_pass(model.eval(), x, **options)


class Shelf:
    """Histories and their pages, each made when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._histories: dict[str, ModelHistory] = {}
        self._pages: dict[str, Path] = {}

    def history(self, name: str) -> ModelHistory:
        if name not in self._histories:
            torch.manual_seed(0)
            self._histories[name] = self._log(name)
        return self._histories[name]

    def _log(self, name: str) -> ModelHistory:
        image = torch.rand(1, 3, 64, 64)
        if name == "alexnet":
            return log(AlexNet(num_classes=10), image)
        if name == "alexnet, changed":
            model = AlexNet(num_classes=10)
            model.features[1] = nn.GELU()
            model.classifier.insert(6, nn.LayerNorm(4096))
            return log(model, image)
        if name == "resnet50":
            return log(torchvision.models.resnet50(), image)
        if name == "gpt2":
            return log(*gpt2())
        if name == "recurrent":
            return log(SimpleRecurrent(), torch.rand(1, 5))
        if name == "hub":
            return log(Hub(), torch.rand(2, 8, 8))
        if name == "flat":
            return log(nn.Sequential(*(nn.Linear(8 + i, 9 + i) for i in range(40))), torch.rand(1, 8))
        assert name == "stages"
        return log(many_stages(), torch.rand(1, 4), layers_to_save="none")

    def page(self, name: str) -> Path:
        """The page of a history, or of two with ' against ' between their names."""
        if name not in self._pages:
            first, _, second = name.partition(" against ")
            compare = self.history(second) if second else None
            made = make_page(self.history(first), compare=compare)
            self._pages[name] = made.save(self.folder / f"{len(self._pages)}.html")
        return self._pages[name]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("pages"))


class Reader:
    """A person in front of a page: asks the page what is seen, and acts with pointer and keys."""

    def __init__(self, page, path: Path, place: str = "") -> None:
        self.page = page
        page.goto(path.as_uri() + place)
        self.settle()

    def settle(self) -> None:
        """Wait until everything has arrived where it belongs."""
        until(self.page)

    def ask(self, expression: str, value: Any = None) -> Any:
        return self.page.evaluate(expression, value)

    @property
    def state(self) -> dict[str, Any]:
        return self.ask("__torcheer.state()")

    def seen(self, kind: str | None = None, side: int = 0) -> dict[str, dict[str, Any]]:
        """Everything that is drawn, by key."""
        items = self.ask("side => __torcheer.seen(side)", side)
        return {item["key"]: item for item in items if kind is None or item["kind"] == kind}

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def click(self, key: str, side: int = 0, held: str | None = None, times: int = 1) -> None:
        """On the title of what is drawn under a key, once it is in sight."""
        item = self.seen(side=side)[key]
        while not 60 < item["y"] < 700:
            self.press("ArrowDown" if item["y"] > 700 else "ArrowUp")
            item = self.seen(side=side)[key]
        if held:
            self.page.keyboard.down(held)
        self.page.mouse.click(item["x"] + item["w"] / 2, item["y"] + min(item["h"] / 2, 16), click_count=times)
        if held:
            self.page.keyboard.up(held)
        self.settle()

    def search(self, words: str) -> None:
        self.page.keyboard.press("/")
        self.page.keyboard.insert_text(words)
        self.page.wait_for_timeout(90)
        self.settle()

    @property
    def panel(self) -> str:
        return self.page.locator(".panel").inner_text()

    @property
    def said(self) -> str:
        """What a screen reader is told."""
        return self.page.locator(".unseen").inner_text()


@pytest.fixture
def read(page, shelf):
    """Opens a page by the name of its model, with modules open down to a depth if there is one."""

    def reader(name: str, place: str = "", depth: int | None = None, size: tuple[int, int] | None = None) -> Reader:
        if size is not None:
            page.set_viewport_size({"width": size[0], "height": size[1]})
        made = Reader(page, shelf.page(name), place)
        if depth is not None:
            made.press(str(depth))
        return made

    return reader


SIZES = [(1440, 900), (1000, 640), (390, 844)]


@pytest.mark.parametrize("size", SIZES, ids=["laptop", "notebook", "telephone"])
@pytest.mark.parametrize("name", ["resnet50", "gpt2", "recurrent", "flat"])
def test_the_first_view_is_the_whole_model_in_the_middle_at_a_size_that_can_be_read(read, name, size):
    """From the first input to the last output, over at least half of the height, with nothing in front of it."""
    reader = read(name, size=size)
    (canvas,) = reader.page.locator("[data-canvas]").all()
    frame, seen = canvas.bounding_box(), reader.seen().values()
    left, right = min(item["x"] for item in seen), max(item["x"] + item["w"] for item in seen)
    top, bottom = min(item["y"] for item in seen), max(item["y"] + item["h"] for item in seen)
    assert frame["x"] <= left <= right <= frame["x"] + frame["width"]
    assert frame["y"] <= top <= bottom <= frame["y"] + frame["height"]
    assert bottom - top >= frame["height"] / 2
    assert abs((left + right) / 2 - (frame["x"] + frame["width"] / 2)) < 40  # a loop at one side is part of the drawing
    assert abs((top + bottom) / 2 - (frame["y"] + frame["height"] / 2)) < 30
    assert reader.ask("__torcheer.camera().scale") >= 0.3
    legend = reader.page.locator(".legend").bounding_box()
    assert legend["y"] >= frame["y"] + frame["height"] - 1, "the legend covers nothing"


def test_the_cache_of_a_decoder_is_one_output_below_the_model(read, shelf):
    """GPT-2 returns its logits and two tensors for each of twelve blocks."""
    reader = read("gpt2")
    ((key, cache),) = reader.seen("ports").items()
    assert not cache["isOpen"]
    model = reader.seen()["transformer:1"]
    assert cache["y"] > model["y"] + model["h"]
    reader.click(key)
    outputs = [node.key for node in shelf.history("gpt2").graph.nodes if node.kind == "output"]
    assert len(outputs) == 25
    assert set(outputs) <= set(reader.seen("operation"))


def test_one_key_opens_the_next_level_and_another_closes_it(read):
    reader = read("resnet50")
    depths = []
    for key in ("o", "o", "O", "O"):
        reader.press(key)
        depths.append([reader.seen().get(name, {}).get("isOpen") for name in ("layer1:1", "layer1.0:1")])
    assert depths == [[True, False], [True, True], [True, False], [False, None]]


@pytest.mark.parametrize("name", ["alexnet", "resnet50", "gpt2", "recurrent", "hub", "stages"])
def test_the_first_screen_is_readable_and_everything_open_is_every_operation(read, shelf, name):
    """At first a few dozen boxes; with all open one box per node of the graph, each under its own key."""
    reader = read(name)
    at_first = [item for item in reader.seen().values() if not item["isOpen"]]
    assert 3 <= len(at_first) <= 40
    if reader.state["rolled"]:
        reader.press("r")
    reader.press("e")
    graph = shelf.history(name).graph
    plumbing = plumbing_of(graph).folded
    assert not plumbing & set(reader.seen("operation"))
    reader.press("p")
    reader.press("e")
    keys = [node.key.partition("…")[0] for node in merge_calls(graph).nodes]
    assert sorted(reader.seen("operation")) == sorted(keys)
    reader.press("c")
    assert not any(item["isOpen"] for item in reader.seen().values())


def test_a_click_opens_a_module_where_it_is_and_another_closes_it(read, shelf):
    """What was clicked stays under the pointer, and what is inside appears."""
    reader = read("resnet50", depth=2)
    before = reader.seen()["layer1.0:1"]
    reader.click("layer1.0:1")
    after = reader.seen()["layer1.0:1"]
    assert after["isOpen"]
    pointer = before["x"] + before["w"] / 2, before["y"] + 16
    panel = 340 / 2  # the details open beside the graph, and the middle of the picture stays its middle
    assert after["x"] < pointer[0] - panel < after["x"] + after["w"]
    assert abs(after["y"] + 16 - pointer[1]) < 3
    inside = {node.key for node in shelf.history("resnet50").graph.nodes if "layer1.0:1" in node.modules}
    downsample = {node.key for node in shelf.history("resnet50").graph.nodes if "layer1.0.downsample:1" in node.modules}
    assert inside - downsample <= set(reader.seen("operation"))
    reader.click("layer1.0:1")
    assert not reader.seen()["layer1.0:1"]["isOpen"]
    assert not inside & set(reader.seen("operation"))


def test_the_number_keys_open_down_to_a_depth(read, shelf):
    """Depth 1 is what the model itself calls."""
    reader = read("resnet50")
    reader.press("1")
    graph = shelf.history("resnet50").graph
    own = {node.key for node in graph.nodes if not node.modules and node.type != "flatten"} | {
        "conv2d_1_1:1",
        "batchnorm_1_2:1",
        "relu_1_3:1",
    }
    assert own <= set(reader.seen("operation"))
    assert {"layer1:1", "layer2:1", "layer3:1", "layer4:1"} == set(reader.seen("module"))
    reader.press("2")
    assert all(reader.seen()[f"layer{number}:1"]["isOpen"] for number in range(1, 5))


def test_equal_blocks_are_one_box_that_shows_any_of_them_or_all(read, shelf):
    """The twelve blocks of GPT-2 are one run."""
    reader = read("gpt2")
    reader.press("2")
    (run,) = [key for key in reader.seen("run") if "transformer.h.0" in key]
    assert not reader.seen()[run]["isOpen"]
    reader.click(run)
    assert "transformer.h.0.attn:1" in reader.seen("module")
    reader.press("]", "]")
    assert "transformer.h.2.attn:1" in reader.seen("module")
    assert "transformer.h.0.attn:1" not in reader.seen("module")
    reader.click(run, held="Control")
    reader.page.get_by_role("button", name="Show all 12").click()
    reader.settle()
    assert {f"transformer.h.{number}:1" for number in range(12)} <= set(reader.seen("module"))
    assert 0 < reader.seen("module")["transformer.h.2:1"]["y"] < 900, "the block that was shown stays in sight"
    reader.page.get_by_role("button", name="Fold into one").click()
    reader.settle()
    assert "transformer.h.2.attn:1" in reader.seen("module")
    assert "transformer.h.0.attn:1" not in reader.seen("module")


def test_a_recurrent_model_is_rolled_until_it_is_unrolled(read, shelf):
    """One box per layer, then one per operation, and the selection stays where it was."""
    reader = read("recurrent")
    assert reader.state["rolled"]
    layers = {node.label for node in shelf.history("recurrent").graph.nodes}
    assert set(reader.seen("operation")) == layers
    back = [link for link in reader.ask("__torcheer.links()") if link["isFeedback"]]
    assert [link["label"] for link in back] == ["pass 2–4"]
    reader.click("add_1_2")
    assert "pass 1 of 4" in reader.panel
    reader.press("r")
    assert reader.state["selection"]["key"] == "add_1_2:1"
    assert len(reader.seen("operation")) == len(shelf.history("recurrent").graph.nodes)


def test_a_hub_is_a_reference_at_its_consumers(read, shelf):
    """The mask feeds 24 blocks: one edge stays, the others are references, and a click on one leads to the mask."""
    reader = read("hub", depth=2)
    reader.press("p")
    reader.press("2")
    mask = next(node.key for node in shelf.history("hub").graph.nodes if node.type == "tril")
    links = [link for link in reader.ask("__torcheer.links()") if link["from"] == f"n:{mask}"]
    assert len(links) == 24
    assert sum(not link["isCut"] for link in links) == 1
    item = reader.seen()["blocks.5:1"]
    assert item["references"] == 1
    reader.ask("key => (location.hash = `module=${key}`)", "blocks.5:1")
    reader.settle()
    item, scale = reader.seen()["blocks.5:1"], reader.ask("__torcheer.camera().scale")
    reader.page.mouse.click(item["x"] + 40 * scale, item["y"] + item["h"] - 24 * scale)
    reader.settle()
    assert reader.state["selection"]["key"] == mask


def test_a_double_click_opens_a_module_and_another_closes_it(read):
    """The two clicks do not undo one another."""
    reader = read("resnet50")
    for is_open in (True, False):
        reader.click("layer2:1", times=2)
        assert reader.seen()["layer2:1"]["isOpen"] == is_open
        reader.page.wait_for_timeout(450)


def test_a_double_click_inside_an_open_module_closes_it(read):
    reader = read("resnet50")
    reader.click("layer2:1")
    reader.page.wait_for_timeout(450)
    item = reader.seen()["layer2:1"]
    reader.page.mouse.dblclick(item["x"] + 6, item["y"] + min(item["h"] - 8, 60))
    reader.settle()
    assert not reader.seen()["layer2:1"]["isOpen"]


def test_the_data_goes_from_left_to_right_when_asked(read):
    reader = read("alexnet")
    names = ["features:1", "adaptiveavgpool2d_1_14:1", "classifier:1"]
    reader.press("h")
    seen = [reader.seen()[name] for name in names]
    assert all(one["x"] + one["w"] < other["x"] for one, other in pairwise(seen))
    middles = [item["y"] + item["h"] / 2 for item in seen]
    assert max(middles) - min(middles) < 3
    reader.click("features:1")
    inside = [item for key, item in reader.seen().items() if key.startswith(("conv2d", "maxpool"))]
    header = reader.seen()["features:1"]
    assert all(item["y"] > header["y"] + 10 for item in inside)
    reader.press("h")
    assert reader.seen()["conv2d_1_1:1"]["y"] < reader.seen()["relu_1_2:1"]["y"]


def test_a_search_finds_what_is_inside_closed_modules_and_goes_there(read, shelf):
    """By class and by shape, with a count, and one result after the other."""
    reader = read("resnet50")
    convolutions = [node.key for node in shelf.history("resnet50").graph.nodes if node.type == "conv2d"]
    reader.search("type:conv2d")
    assert reader.page.locator(".found-count").inner_text() == str(len(convolutions))
    reader.press("Enter", "Enter", "Enter")
    assert reader.state["selection"]["key"] == convolutions[2]
    assert convolutions[2] in reader.seen("operation")
    reader.press("Shift+Enter")
    assert reader.state["selection"]["key"] == convolutions[1]
    reader.press("Escape")
    assert not reader.page.locator(".results").is_visible()
    reader.press("n")
    assert reader.state["selection"]["key"] == convolutions[2], "from the graph, n goes on"
    reader.press("Escape", "Escape")
    assert (reader.state["query"], reader.state["selection"]) == ("", None)
    shape = shelf.history("resnet50").graph.node(convolutions[0]).shape
    fitting = [node.key for node in shelf.history("resnet50").graph.nodes if node.shape == shape]
    reader.search("shape:" + ",".join(map(str, shape)))
    assert reader.page.locator(".found-count").inner_text() == str(len(fitting))


def test_the_table_lists_every_operation_and_sorts_them(read, shelf):
    """Sorted by size the largest is first, and a click goes to it."""
    reader = read("stages")
    reader.press("t")
    nodes = shelf.history("stages").graph.nodes
    assert f"{len(nodes):,} operations" in reader.page.locator(".table-bar").inner_text()
    reader.page.get_by_role("columnheader", name="Sort by shape").click()
    reader.page.get_by_role("columnheader", name="Sort by shape").click()
    reader.settle()
    first = reader.page.locator(".table-row").first
    key = first.locator(".cell").nth(1).inner_text()
    assert shelf.history("stages").graph.node(key).shape == max((node.shape for node in nodes), key=lambda shape: shape[-1])
    first.click()
    reader.settle()
    assert reader.state["selection"]["key"] == key
    assert key in reader.seen("operation")


def test_the_table_is_saved_as_csv(read, shelf, tmp_path):
    """Every operation, with figures as numbers; a spreadsheet and pandas read the same."""
    reader = read("alexnet")
    reader.press("t")
    with reader.page.expect_download() as waiting:
        reader.page.get_by_role("button", name="Save the table as CSV").click()
    assert waiting.value.suggested_filename == "AlexNet_operations.csv"
    waiting.value.save_as(tmp_path / "table.csv")
    table = pandas.read_csv(tmp_path / "table.csv")
    nodes = shelf.history("alexnet").graph.nodes
    assert list(table["operation"]) == [node.key for node in nodes]
    assert list(table["params"].fillna(0)) == [sum(param.numel for param in node.params) for node in nodes]
    assert list(table["memory"]) == [node.bytes for node in nodes]
    assert list(table["shape"]) == ["×".join(map(str, node.shape)) for node in nodes]


def test_an_operation_shows_everything_known_about_it(read, shelf):
    """What the panel says is what the history says; its neighbours lead on."""
    reader = read("alexnet", depth=2)
    history = shelf.history("alexnet")
    node = history.graph.node("conv2d_2_4:1")
    reader.click(node.key)
    said = reader.panel
    contents = history[node.key].tensor_contents
    assert "×".join(map(str, node.shape)) in said
    assert "features.3.weight" in said
    assert f"{contents.numel():,}" in said
    assert f"{contents.std(correction=0).item():.4g}"[:5] in said  # the last of four digits may be rounded otherwise
    assert "forward" in said or "demo.py" in said
    assert reader.page.locator(".panel canvas").count() >= 2
    reader.page.locator(".panel section", has_text="Comes from").locator("button").click()
    reader.settle()
    assert reader.state["selection"]["key"] == history.graph.parents(node.key)[0].key
    assert "conv2d_2_4" in reader.panel
    assert "Selected" in reader.said


def test_a_parameter_shows_its_values_when_it_is_opened(read, shelf):
    """A picture, a histogram and statistics; buffers too."""
    reader = read("alexnet", "#node=conv2d_2_4:1")
    line = reader.page.locator(".params details", has_text="features.3.weight")
    assert line.locator("canvas").first.is_visible() is False
    line.locator("summary").click()
    assert line.locator("canvas").count() >= 2
    weight = shelf.history("alexnet")["conv2d_2_4"].params[0]
    assert f"{weight.numel:,}" in line.inner_text()
    assert "stride=(1, 1), padding=(2, 2)" in reader.panel


def test_the_tip_says_what_is_not_written_on_the_box(read, shelf):
    reader = read("alexnet", depth=2)
    item = reader.seen()["conv2d_1_1:1"]
    reader.page.mouse.move(item["x"] + item["w"] / 2, item["y"] + item["h"] / 2)
    tip = reader.page.locator(".tip")
    tip.wait_for()
    said = tip.inner_text()
    values = shelf.history("alexnet")["conv2d_1_1"].tensor_contents
    assert "stride=(4, 4)" in said
    assert f"{values.max().item():.4g}"[:4] in said
    assert "demo.py" in said
    assert "1×64" not in said, "the shape is on the box"


def test_edges_say_what_travels_them_when_asked(read, shelf):
    reader = read("alexnet", depth=2)
    reader.press("p")

    def labels() -> set[str]:
        return {link["label"] for link in reader.ask("__torcheer.links()")}

    assert labels() == {""}
    reader.page.get_by_label("What is written on the boxes").click()
    reader.page.get_by_label("Shapes on edges").check()
    reader.settle()
    shapes = {"×".join(map(str, node.shape)) for node in shelf.history("alexnet").graph.nodes if node.kind != "output"}
    assert labels() == shapes


def test_boxes_are_colored_by_a_figure_of_ones_own(page, shelf, tmp_path):
    """It is in the list of colours, on the boxes, in the details and in the table."""
    history = shelf.history("alexnet")
    path = history.to_html(tmp_path / "page.html", metrics={"my norm": lambda tensor: tensor.abs().sum()})
    reader = Reader(page, path, "#node=conv2d_1_1:1")
    reader.page.get_by_label("Colour by").select_option(label="my norm")
    reader.settle()
    assert "my norm" in reader.page.locator(".legend").inner_text()
    assert reader.page.locator(".legend canvas").count() == 1
    expected = history["conv2d_1_1"].tensor_contents.abs().sum().item()
    said = reader.page.locator(".panel section", has_text="Figures of your own").inner_text()
    assert float(said.split()[-1].replace(",", "")) == pytest.approx(expected, rel=1e-3)
    reader.press("t")
    assert reader.page.get_by_role("columnheader", name="Sort by my norm").count() == 1


@pytest.mark.parametrize("name", ["recurrent", "alexnet against alexnet, changed"])
def test_the_toolbar_is_one_row_at_the_width_of_a_notebook(read, name):
    reader = read(name)
    for width in (770, 860, 980, 1100):
        reader.page.set_viewport_size({"width": width, "height": 640})
        reader.settle()
        tops = [one.bounding_box() for one in reader.page.locator(".toolbar > *:visible").all()]
        middles = [box["y"] + box["height"] / 2 for box in tops]
        assert max(middles) - min(middles) < 6
        assert max(box["x"] + box["width"] for box in tops) <= width


def test_a_module_shows_its_totals(read, shelf):
    """Parameters and operations are those of the history."""
    reader = read("resnet50", depth=2)
    reader.click("layer2.0:1", held="Control")
    said = reader.panel
    inside = [node for node in shelf.history("resnet50").graph.nodes if "layer2.0:1" in node.modules]
    assert "Bottleneck" in said
    assert re.search(rf"operations\s+{len(inside)}\b", said)
    total = sum({param.name: param.numel for node in inside for param in node.params}.values())
    assert f"{total / 1000:.1f}K" in said


def test_an_edge_shows_the_tensor_that_travels_it(read, shelf):
    """Between two boxes of a chain, half way."""
    reader = read("alexnet", depth=2)
    one, other = reader.seen()["conv2d_1_1:1"], reader.seen()["relu_1_2:1"]
    reader.page.mouse.click(one["x"] + one["w"] / 2, (one["y"] + one["h"] + other["y"]) / 2)
    reader.settle()
    assert reader.state["selection"]["kind"] == "edge"
    shape = shelf.history("alexnet").graph.node("conv2d_1_1:1").shape
    assert "conv2d_1_1 → relu_1_2" in reader.panel
    assert "×".join(map(str, shape)) in reader.panel


def test_ancestors_and_paths_are_highlighted(read):
    """The keys a and d trace; a second choice with Shift makes a path."""
    reader = read("alexnet", depth=2)
    reader.click("maxpool2d_1_3:1")
    reader.press("a")
    assert reader.state["trace"] == "ancestors"
    reader.press("Escape")
    reader.click("conv2d_1_1:1", held="Shift")
    assert reader.state["other"]["key"] == "conv2d_1_1:1"
    assert "3 operations on the ways, shortest 2 steps" in reader.panel


def test_the_outline_and_the_graph_are_in_step(read):
    """What is opened in one opens in the other, and the keys move through it."""
    reader = read("resnet50", depth=2)
    row = reader.page.locator(".tree-row", has_text="layer3.0")
    assert row.get_attribute("aria-expanded") == "false"
    row.locator(".twist").click()
    reader.settle()
    assert reader.seen()["layer3.0:1"]["isOpen"]
    assert row.get_attribute("aria-expanded") == "true"
    reader.press("c")
    assert not reader.seen()["layer3:1"]["isOpen"]
    reader.page.locator(".tree .list").focus()
    reader.press("Home", "ArrowDown", "Enter")
    assert reader.state["selection"]["key"] == "conv2d_1_1:1"


COLORS = """() => {
    const canvas = document.querySelector(".graph");
    const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 64) seen.add(data.slice(i, i + 3).join());
    return seen.size;
}"""


def test_boxes_are_colored_by_a_figure_with_its_range(read, shelf):
    """The legend says how far the figures of what is seen reach, or that there are none."""
    reader = read("alexnet", depth=2)
    nodes = shelf.history("alexnet").graph.nodes
    for metric in ("time", "memory", "flops", "params", "norm", "zeros"):
        reader.page.get_by_label("Colour by").select_option(metric)
        reader.settle()
        assert reader.page.locator(".legend canvas").count() == 1, metric
        assert reader.ask(COLORS) > 20, metric
        if metric == "params":
            most = max(sum(param.numel for param in node.params) for node in nodes)
            assert f"{most / 1e6:.1f}M" in reader.page.locator(".legend").inner_text()
    reader.page.get_by_label("Colour by").select_option("nonfinite")
    assert reader.page.locator(".legend").inner_text().endswith(": none")
    reader.page.get_by_label("Colour by").select_option("gradient")
    assert "nothing is known" in reader.page.locator(".legend").inner_text()


def test_a_link_leads_to_a_node_inside_a_closed_module_and_back_leads_back(read):
    """Also after a reload; a link made in the other view is understood."""
    reader = read("gpt2", "#module=transformer.h.7.mlp:1")
    assert reader.state["selection"] == {"kind": "box", "key": "transformer.h.7.mlp:1", "side": 0}
    assert "transformer.h.7.mlp:1" in reader.seen("module")
    reader.press("u")
    assert "transformer.h.7" in reader.state["selection"]["key"]
    reader.page.go_back()
    reader.settle()
    assert reader.state["selection"]["key"] == "transformer.h.7.mlp:1"
    reader.page.reload()
    reader.settle()
    assert reader.state["selection"]["key"] == "transformer.h.7.mlp:1"


def test_what_is_seen_is_saved_as_svg_and_png(read, shelf, tmp_path):
    """The SVG is whole XML with every label in it; the PNG is one."""
    reader = read("alexnet", depth=2)
    reader.press("p")
    with reader.page.expect_download() as waiting:
        reader.page.keyboard.press("s")
    assert waiting.value.suggested_filename == "AlexNet.svg"
    waiting.value.save_as(tmp_path / "graph.svg")
    drawn = ElementTree.parse(tmp_path / "graph.svg").getroot()
    words = " ".join(text for text in drawn.itertext())
    assert all(node.type in words for node in shelf.history("alexnet").graph.nodes)
    assert "features.10" in words
    with reader.page.expect_download() as waiting:
        reader.page.keyboard.press("S")
    waiting.value.save_as(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_keys_do_everything_and_the_help_lists_them(read):
    """Moving, zooming, selecting, dark and light."""
    reader = read("resnet50")
    before = reader.ask("__torcheer.camera()")
    reader.press("ArrowDown")
    assert reader.ask("__torcheer.camera().y") == before["y"] - 80
    reader.press("+")
    assert reader.ask("__torcheer.camera().scale") > before["scale"]
    reader.press("0")
    top, bottom = reader.seen()["input_1_0:1"], reader.seen()["output_1_176:1"]
    assert top["y"] > 40
    assert bottom["y"] + bottom["h"] <= 900
    reader.press(".", "Shift+ArrowDown")
    assert reader.state["selection"]["key"] == "conv2d_1_1:1"
    reader.press("Shift+ArrowUp", "f", "g")
    assert reader.state["selection"]["key"] == "input_1_0:1"
    assert reader.ask("document.documentElement.dataset.theme") == "dark"
    reader.press("?")
    listed = reader.page.locator("dialog.help").inner_text()
    assert all(word in listed for word in ("search", "open everything", "rolled or unrolled", "highlight its ancestors"))
    reader.press("Escape")
    assert "help" not in reader.state["parts"]


def test_the_list_of_differences_names_the_parameters_that_differ(page, tmp_path):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), torch.rand(2, 4)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other[2].weight[0, 0] += 1
    path = log(model, x).to_html(tmp_path / "page.html", compare=log(other, x))
    reader = Reader(page, path)
    reader.page.get_by_role("button", name="Show: Parameters").click()
    rows = reader.page.locator(".differences .result")
    assert rows.count() == 1
    assert "2.weight has other values" in rows.first.inner_text()
    assert "0.weight" not in reader.page.locator(".differences").inner_text()
    rows.first.click()
    reader.settle()
    assert "2.weight" in reader.page.locator(".panel .changes").inner_text()


def test_two_models_stand_side_by_side_with_what_differs(read, shelf):
    """A function that was exchanged and a layer that was put in; both sides open, move and select together."""
    reader = read("alexnet against alexnet, changed")
    counts = reader.ask("__torcheer.differences()")
    assert (counts["left"], counts["right"]) == (0, 1)
    listed = reader.page.locator(".differences")
    listed.get_by_role("button", name="Show: Only in one").click()
    reader.press("v")
    added = next(node.key for node in shelf.history("alexnet, changed").graph.nodes if node.type == "layernorm")
    assert reader.state["selection"] == {"kind": "unit", "key": added, "side": 1}
    assert "Only in the right model" in reader.panel
    listed.get_by_role("button", name="Show: Shape, type").click()
    reader.press("v")
    assert reader.state["selection"]["key"] == "relu_1_2:1"
    assert "gelu" in reader.panel
    left, right = reader.seen()["relu_1_2:1"], reader.seen(side=1)["gelu_1_2:1"]
    assert abs(left["y"] - right["y"]) < 2
    before = [reader.ask("side => __torcheer.camera(side)", side) for side in (0, 1)]
    reader.press("ArrowDown", "-")
    after = [reader.ask("side => __torcheer.camera(side)", side) for side in (0, 1)]
    assert [one["scale"] for one in after] == [pytest.approx(0.8 * one["scale"]) for one in before]
    reader.press("0")
    before = [reader.ask("side => __torcheer.camera(side)", side) for side in (0, 1)]
    reader.press("+")
    after = [reader.ask("side => __torcheer.camera(side)", side) for side in (0, 1)]
    assert [one["scale"] for one in after] == [pytest.approx(1.25 * one["scale"]) for one in before]
    reader.press("1")
    assert all(not item["isOpen"] for side in (0, 1) for item in reader.seen(side=side).values())


def test_a_model_is_the_same_as_itself(read):
    """Nothing differs but, perhaps, the time."""
    reader = read("recurrent against recurrent")
    counts = reader.ask("__torcheer.differences()")
    assert {name: counts[name] for name in ("left", "right", "structure", "values")} == dict.fromkeys(
        ("left", "right", "structure", "values"), 0
    )


def test_names_are_text_whatever_they_say(page, tmp_path):
    """A module called like markup is shown by that name, in the outline, the panel, the search and the picture."""
    hostile = '<img src=x onerror="alert(1)">'
    model = nn.Sequential()
    model.add_module(hostile, nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    history = log(model, torch.ones(1, 2))
    path = make_page(history, title="</title><script>alert(2)</script>").save(tmp_path / "page.html")
    reader = Reader(page, path)
    reader.search("onerror")
    reader.press("Enter")
    assert hostile in reader.panel
    assert page.locator("img").count() == 0
    assert hostile in page.locator(".tree").inner_text()
    with page.expect_download() as waiting:
        page.locator(".graph").focus()
        page.keyboard.press("s")
    waiting.value.save_as(tmp_path / "graph.svg")
    assert any(hostile[:10] in text for text in ElementTree.parse(tmp_path / "graph.svg").getroot().itertext())


def test_a_page_works_in_the_frame_of_a_notebook(page, shelf, tmp_path):
    """The frame has no storage and no address of its own."""
    made = make_page(shelf.history("alexnet"), previews=False)
    (tmp_path / "notebook.html").write_text(f"<!doctype html><body>{made._repr_html_()}</body>", encoding="utf-8")
    from playwright.sync_api import TimeoutError as NotThereInTime

    frame = page.frame_locator("iframe")
    for seconds in (60, 120, 300):  # Playwright may miss a frame of another origin that is loaded with the page: load it again
        page.goto((tmp_path / "notebook.html").as_uri())
        try:
            frame.locator(".tree-row", has_text="avgpool").click(timeout=1000 * seconds)
            break
        except NotThereInTime:
            if seconds == 300:
                raise
    frame.locator(".panel h2", has_text="adaptive_avg_pool2d").wait_for()
    assert page.url.endswith("notebook.html")


def test_on_a_narrow_screen_the_sides_are_sheets(browser, shelf):
    """Nothing is wider than the screen, and the details lie over the graph."""
    context = browser.new_context(offline=True, viewport={"width": 420, "height": 900})
    reader = Reader(context.new_page(), shelf.page("alexnet"))
    assert reader.ask("document.documentElement.scrollWidth") <= 420
    graph = reader.page.locator(".graph").bounding_box()
    assert graph["width"] == 420
    reader.press("2")
    reader.click("conv2d_1_1:1")
    sheet = reader.page.locator(".panel").bounding_box()
    assert sheet["width"] == 420
    assert sheet["y"] > 300
    reader.press("m")
    assert reader.page.locator(".tree").bounding_box()["width"] == 420
    context.close()


def test_a_broken_page_says_what_is_wrong(browser, shelf, tmp_path):
    """A file that was cut off is no empty page."""
    whole = shelf.page("recurrent").read_text(encoding="utf-8")
    payload = re.search(r'id="payload">([^<]+)<', whole)[1]
    (tmp_path / "cut.html").write_text(whole.replace(payload, payload[: len(payload) // 2 // 4 * 4]), encoding="utf-8")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((tmp_path / "cut.html").as_uri())
    page.locator(".error").wait_for()
    assert "cannot be shown" in page.locator(".error").inner_text()
    context.close()
