"""Blocks and passes that are drawn once: the arrows to the next one, the notes on them, and how deep a model is."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
import torch
import transformers
from torch import Tensor, nn

import torcheer
from models import made_of, made_with
from torcheer.demo import SimpleRecurrent
from torcheer.graph import Graph, fold_repeats, merge_ports
from torcheer.pictures import PictureOptions, lay_out, make_picture, picture_options
from torcheer.pictures.drawing import Drawing, make_drawing
from torcheer.pictures.views import views

SVG = "{http://www.w3.org/2000/svg}"


def drawn(graph: Graph, **options: object) -> Drawing:
    chosen = picture_options(options)
    return make_drawing(next(iter(views(graph, chosen))), chosen)


@made_with(query=lambda: nn.Linear(4, 4), key=lambda: nn.Linear(4, 4, bias=False))
def Block(self, x: Tensor) -> Tensor:
    """Its input is used three times, so that three arrows would lead to the next block."""
    return x + self.query(x) * self.key(x)


class Stack(nn.Module):
    """Equal blocks in a row, in stages if there are several."""

    def __init__(self, blocks: int, stages: int = 1) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Sequential(*(Block() for _ in range(blocks))) for _ in range(stages))
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        out: Tensor = self.last(x)
        return out


@pytest.fixture(scope="module")
def stack() -> Graph:
    return torcheer.log_forward_pass(Stack(5), torch.ones(1, 4)).graph


@pytest.fixture(scope="module")
def gpt2() -> Graph:
    config = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=2, vocab_size=60, bos_token_id=0, eos_token_id=0)
    model = transformers.GPT2LMHeadModel(config).eval()
    return torcheer.log_forward_pass(model, torch.arange(6)[None], layers_to_save="none").graph


def test_a_folded_block_has_one_arrow_to_the_next_however_often_its_input_is_used(stack: Graph) -> None:
    assert sum(edge.is_to_next_block for edge in fold_repeats(stack).edges) == 3
    drawing = drawn(stack, fold_repeats=True)
    assert [edge.around for edge in drawing.edges if edge.line == "dashed"] == ["stages.0.0:1"]
    assert "feedback" in drawing.seen


@pytest.mark.parametrize(("direction", "end"), [("down", "low"), ("up", "high"), ("right", "right"), ("left", "left")])
def test_the_arrow_to_the_next_block_leads_from_the_end_of_the_box_to_its_beginning(
    stack: Graph, direction: str, end: str
) -> None:
    """Its ends lie on the border of the box, where the model leaves and where it enters."""
    layout = lay_out(stack, PictureOptions(fold_repeats=True, direction=direction))  # type: ignore[arg-type]
    box = next(box.place for box in layout.boxes if box.lines[0] == "stages.0.0")
    (arrow,) = [edge for edge in layout.edges if edge.line == "dashed"]
    begin = {"low": "high", "high": "low", "right": "left", "left": "right"}[end]
    axis = 1 if direction in ("down", "up") else 0
    assert arrow.curve[0][axis] == pytest.approx(getattr(box, end), abs=0.1)
    assert arrow.tip[axis] == pytest.approx(getattr(box, begin), abs=0.1)
    inside = [
        point for point in arrow.sampled() if box.left + 1 < point[0] < box.right - 1 and box.low + 1 < point[1] < box.high - 1
    ]
    assert not inside, "it goes through the box"
    outer = next(box.place for box in layout.boxes if box.lines[0] == "stages.0")
    assert all(outer.contains(point) for point in arrow.sampled()), "it leaves the box around"


def test_blocks_within_blocks_have_an_arrow_each() -> None:
    history = torcheer.log_forward_pass(
        nn.Sequential(
            *(
                made_of(
                    lambda self, x: torch.tanh(self.last(self.inner(x))),
                    inner=nn.Sequential(Block(), Block(), Block()),
                    last=nn.Linear(4, 4),
                )
                for _ in range(3)
            )
        ),
        torch.ones(1, 4),
    )
    drawing = drawn(history.graph, fold_repeats=True)
    assert {edge.around for edge in drawing.edges if edge.line == "dashed"} == {"0:1", "0.inner.0:1"}


def test_a_collapsed_block_has_its_arrow_around_its_node(stack: Graph) -> None:
    drawing = drawn(stack, fold_repeats=True, collapse="Block")
    (arrow,) = [edge for edge in drawing.edges if edge.line == "dashed"]
    assert arrow.around == arrow.source == arrow.target
    layout = lay_out(stack, PictureOptions(fold_repeats=True, collapse="Block"))
    node = next(node.place for node in layout.nodes if node.lines[0] == "stages.0.0")
    (around,) = [edge for edge in layout.edges if edge.line == "dashed"]
    assert (around.curve[0][1], around.tip[1]) == pytest.approx((node.low, node.high), abs=0.1)
    (outer,) = [box.place for box in layout.boxes if box.lines[0] == "stages.0"]
    assert all(outer.left + 2 < x < outer.right - 2 and outer.low < y < outer.high for x, y in around.sampled())


def test_passes_that_feed_the_next_keep_their_arrows() -> None:
    graph = torcheer.log_forward_pass(SimpleRecurrent(), torch.ones(1, 5)).graph
    dashed = [edge for edge in drawn(graph, rolled=True).edges if edge.line == "dashed"]
    assert [(edge.around, edge.text) for edge in dashed] == [("", "passes 2-4")]


def loop(self, x: Tensor) -> Tensor:
    """Several arrows with passes end close to one another."""
    h, c = x, x * 2
    for _ in range(5):
        c = torch.sigmoid(self.gate(h)) * c
        h = torch.tanh(self.cell(h)) - c
    return h / c


@pytest.mark.parametrize("direction", ["down", "right"])
def test_the_passes_stand_on_the_arrow_they_mean(direction: str) -> None:
    """The middle of the text is on its own arrow, not on its head, and no other arrow is nearer."""
    for model in (made_of(loop, cell=nn.Linear(4, 4), gate=nn.Linear(4, 4)), SimpleRecurrent()):
        size = 5 if isinstance(model, SimpleRecurrent) else 4
        graph = torcheer.log_forward_pass(model, torch.ones(1, size)).graph
        layout = lay_out(graph, PictureOptions(rolled=True, direction=direction))  # type: ignore[arg-type]
        noted = [edge for edge in layout.edges if "pass" in edge.text]
        assert len(noted) > 1

        def away(point: tuple[float, float], line: list[tuple[float, float]]) -> float:
            return min(math.dist(point, other) for other in line)

        for edge in noted:
            own = away(edge.text_place, edge.sampled(60))
            is_loop = math.dist(edge.curve[0], edge.tip) < 30  # beside a small loop there is more room than on it
            assert own < (2.5 * len(edge.text) if is_loop else 3.0), edge.text
            assert all(own <= away(edge.text_place, other.sampled(60)) for other in layout.edges), edge.text
            assert math.dist(edge.text_place, edge.tip) > 9


def test_a_text_on_an_arrow_has_a_ground_of_the_color_it_stands_on() -> None:
    """Otherwise the arrow would run through the words."""
    graph = torcheer.log_forward_pass(SimpleRecurrent(), torch.ones(1, 5)).graph
    root = ElementTree.fromstring(make_picture(graph, PictureOptions(rolled=True)).svg)
    (noted,) = [g for g in root.iter(f"{SVG}g") if g.get("class") == "edge" and "passes 2-4" in g.itertext()]
    kinds = [child.tag.removeprefix(SVG) for child in noted]
    assert kinds[-2:] == ["polygon", "text"]
    fill = re.search(rf"\.{noted[-2].get('class')}\{{([^}}]*)\}}", root.findtext(f"{SVG}style", ""))
    assert fill is not None
    assert fill[1].startswith("fill:#ffffff")


def test_the_sample_of_a_collapsed_module_is_drawn_as_collapsed_modules_are(stack: Graph) -> None:
    """The same shapes: the outline of a solid and its three inner lines, in the same colours."""
    root = ElementTree.fromstring(make_picture(stack, PictureOptions(collapse="Block")).svg)
    groups = {kind: [g for g in root.iter(f"{SVG}g") if g.get("class") == kind] for kind in ("node", "legend")}
    solids = [g for g in groups["node"] if len(g.findall(f"{SVG}polyline")) == 3]
    samples = [g for g in groups["legend"] if len(g.findall(f"{SVG}polyline")) == 3]
    assert len(solids) == 5
    assert len(samples) == 1
    shapes = [
        [(one.tag, one.get("class")) for one in g if one.tag in (f"{SVG}polygon", f"{SVG}polyline")]
        for g in (*samples, solids[0])
    ]
    assert shapes[0] == shapes[1]


def test_samples_and_words_of_the_legend_stand_side_by_side_above_the_model(stack: Graph) -> None:
    root = ElementTree.fromstring(make_picture(stack, PictureOptions(show_buffers=True)).svg)
    legend = [g for g in root.iter(f"{SVG}g") if g.get("class") == "legend"]
    words = {text.text: float(text.get("y", "nan")) for g in legend for text in g.iter(f"{SVG}text")}
    assert {"input", "output", "trainable parameters"} <= set(words)
    nodes = [g for g in root.iter(f"{SVG}g") if g.get("class") == "node"]
    top = min(float(y) for g in nodes for shape in g for y in re.findall(r",(-?[\d.]+)", shape.get("points") or ""))
    assert all(y < top for y in words.values())


def test_one_level_of_a_model_with_a_wrapper_shows_what_is_in_the_wrapper(gpt2: Graph) -> None:
    """GPT-2 is a transformer and a head; at depth 1 its blocks are nodes, inside the open box of the transformer."""
    drawing = drawn(gpt2, nesting_depth=1)
    assert [box.lines[0] for box in drawing.boxes] == ["transformer"]
    solids = [node.lines[0] for node in drawing.nodes if node.shape == "box3d"]
    assert solids == [f"transformer.h.{number}" for number in range(4)]
    names = [box.lines[0] for box in drawn(gpt2, nesting_depth=2, fold_repeats=False).boxes]
    assert "transformer.h.0" in names
    assert "transformer.h.0.attn" not in names


def test_a_wrapper_without_larger_modules_and_modules_side_by_side_are_closed_at_depth_one() -> None:
    flat = nn.Sequential(nn.Sequential(*(nn.ReLU() for _ in range(8))), nn.Tanh())
    drawing = drawn(torcheer.log_forward_pass(flat, torch.ones(2)).graph, nesting_depth=1)
    assert [node.lines[0] for node in drawing.nodes if node.shape == "box3d"] == ["0"]
    pair = nn.Sequential(Stack(3), nn.Sequential(nn.ReLU(), nn.Tanh()))
    drawing = drawn(torcheer.log_forward_pass(pair, torch.ones(1, 4)).graph, nesting_depth=1)
    assert [node.lines[0] for node in drawing.nodes if node.shape == "box3d"] == ["0", "1"]


def test_the_cache_of_a_language_model_is_one_output_below_what_makes_it(gpt2: Graph) -> None:
    for options in (PictureOptions(), PictureOptions(nesting_depth=1), PictureOptions(nesting_depth=2, fold_repeats=False)):
        layout = lay_out(gpt2, options)
        (cache,) = [node for node in layout.nodes if node.lines[0] == "8 outputs"]
        assert cache.lines[1:] == ("past_key_values.layers", "float32 1×2×6×16 · 768 B each")
        (transformer,) = [box.place for box in layout.boxes if box.lines[0] == "transformer"]
        assert cache.place.high < transformer.low
        assert sum(node.node.kind == "output" for node in layout.nodes) == 2


def test_outputs_of_different_shapes_or_places_stay_apart() -> None:
    def detect(x: Tensor) -> list[dict[str, Tensor]]:
        return [{"boxes": x.reshape(2, 2), "labels": x > 0, "scores": x.exp()}]

    graph = torcheer.log_forward_pass(detect, torch.ones(4)).graph
    assert len(merge_ports(graph).nodes) == len(graph.nodes)
    three = torcheer.log_forward_pass(lambda x: (x.sin(), x.cos(), x.tan()), torch.ones(4)).graph
    assert len(merge_ports(three).nodes) == len(three.nodes)


def test_the_parts_of_a_cache_that_is_given_are_one_input() -> None:
    def step(x: Tensor, cache: list[list[Tensor]]) -> Tensor:
        for keys, values in cache:
            x = (x * keys).sin() + values
        return x

    graph = torcheer.log_forward_pass(step, (torch.ones(3), [[torch.ones(3), torch.ones(3)] for _ in range(3)])).graph
    (given,) = [node for node in merge_ports(graph).nodes if node.num_operations > 1]
    assert (given.kind, given.num_operations, given.role) == ("input", 6, "args[1]")


def test_an_output_of_very_many_nodes_is_drawn_as_references() -> None:
    def states(x: Tensor) -> dict[str, list[Tensor]]:
        found = []
        for function in (torch.sin, torch.cos, torch.tan, torch.exp, torch.tanh, torch.relu) * 3:
            x = function(x) + len(found)
            found.append(x)
        return {"states": found}

    graph = torcheer.log_forward_pass(states, torch.ones(2)).graph
    drawing = drawn(graph, rolled=False)
    small = [node for node in drawing.nodes if node.is_reference]
    assert len(small) == 17
    assert {node.lines for node in small} == {("states",)}
    (merged,) = [node.id for node in drawing.nodes if node.lines[0] == "18 outputs"]
    assert sum(edge.target == merged for edge in drawing.edges) == 1
