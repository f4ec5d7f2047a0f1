"""Long models in columns: everything is drawn, nothing overlaps, and what crosses from one column to the next is connected."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torcheer
from models import made_of, made_with
from torcheer.demo import AlexNet
from torcheer.graph import Graph
from torcheer.pictures import Layout, PictureOptions, lay_out, make_picture
from torcheer.pictures.geometry import Rect


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


@made_with(stages=lambda: nn.ModuleList(nn.Sequential(*(Residual(4 + stage + 5 * b) for b in range(4))) for stage in range(3)))
def Long(self, x: Tensor) -> Tensor:
    """Blocks that differ, in stages, so that nothing is folded."""
    for stage in self.stages:
        x = stage(x)
    return x


@pytest.fixture(scope="module")
def long() -> Graph:
    return torcheer.log_forward_pass(Long(), torch.ones(1, 4)).graph


def columns(layout: Layout, direction: str) -> int:
    """How often the model begins again: the steps of the longest chain that go far against its direction."""
    places = [node.place for node in layout.nodes]
    along = [{"down": -place.y, "up": place.y, "right": place.x, "left": -place.x}[direction] for place in places]
    return 1 + sum(later < earlier - 60 for earlier, later in pairwise(along))


def overlaps(one: Rect, other: Rect) -> bool:
    return one.overlap(other) > 0.01


@pytest.mark.parametrize("direction", ["down", "up", "right", "left"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_columns_hold_everything_in_order_and_connected(long: Graph, direction: str, count: int) -> None:
    layout = lay_out(long, PictureOptions(columns=count, direction=direction))  # type: ignore[arg-type]
    plain = lay_out(long, PictureOptions(direction=direction, nesting_depth="all"))  # type: ignore[arg-type]
    assert columns(plain, direction) == 1
    assert columns(layout, direction) == count
    assert [node.node.key for node in layout.nodes] == [node.node.key for node in plain.nodes]
    assert len(layout.edges) == len(plain.edges)
    places = {node.node.key: node.place for node in layout.nodes}
    rects = list(places.values())
    for number, one in enumerate(rects):
        assert not any(overlaps(one, other) for other in rects[:number])
    for edge, drawn in zip(layout.graph.edges, layout.edges, strict=True):
        assert _distance(drawn.curve[0], places[edge.source]) < 3, edge
        assert _distance(drawn.tip, places[edge.target]) < 3, edge


def _distance(point: tuple[float, float], rect: Rect) -> float:
    return math.hypot(
        max(rect.left - point[0], 0.0, point[0] - rect.right), max(rect.low - point[1], 0.0, point[1] - rect.high)
    )


def test_a_box_that_is_cut_goes_on_in_the_next_column(long: Graph) -> None:
    """Every node is in a piece of each of its boxes; pieces after the first say that they go on."""
    layout = lay_out(long, PictureOptions(columns=5))
    titles = [box.lines[0] for box in layout.boxes]
    assert any(title.startswith("… ") for title in titles)
    assert {title.removeprefix("… ") for title in titles} == {
        box.lines[0] for box in lay_out(long, PictureOptions(nesting_depth="all")).boxes
    }
    for node in layout.nodes:
        for key in node.node.modules:
            address = layout.graph.boxes[key].address
            pieces = [box.place for box in layout.boxes if box.lines[0].removeprefix("… ") == address]
            assert not pieces or any(piece.contains((node.place.x, node.place.y)) for piece in pieces), (node.node.key, address)


def test_arrows_between_columns_run_through_no_node(long: Graph) -> None:
    layout = lay_out(long, PictureOptions(columns=3))
    rects = [node.place for node in layout.nodes]
    crossing = [edge for edge in layout.edges if max(x for x, _ in edge.curve) - min(x for x, _ in edge.curve) > 150]
    assert len(crossing) >= 2
    for edge in crossing:
        inner = edge.sampled(4)[6:-6]
        for a, b in pairwise(inner):
            assert not any(Rect(r.left + 2, r.low + 2, r.right - 2, r.high - 2).is_crossed(a, b) for r in rects)


def test_cuts_are_made_between_modules_where_that_can_be(long: Graph) -> None:
    layout = lay_out(long, PictureOptions(columns=3))
    assert [box.lines[0] for box in layout.boxes if box.lines[0].startswith("stages.") and box.depth == 1] == [
        "stages.0",
        "stages.1",
        "stages.2",
    ]
    assert not any(box.lines[0].startswith("… ") for box in layout.boxes)


def test_repeated_blocks_are_not_cut() -> None:
    model = nn.Sequential(*(Residual(8) for _ in range(6)))
    layout = lay_out(torcheer.log_forward_pass(model, torch.ones(1, 4)).graph, PictureOptions(fold_repeats=True, columns=4))
    assert [box.lines[0] for box in layout.boxes].count("0") == 1
    assert not any(box.lines[0].startswith("… ") for box in layout.boxes)


def test_a_very_tall_picture_has_columns_by_itself_and_a_short_one_has_not() -> None:
    def forward(self, x: Tensor) -> Tensor:
        for name in ("sin", "cos", "tanh", "exp", "relu") * 11:
            x = getattr(torch, name)(x)
        return x

    graph = torcheer.log_forward_pass(made_of(forward), torch.ones(4)).graph
    options = {"rolled": False, "nesting_depth": "all"}
    tall = make_picture(graph, PictureOptions(columns=1, **options))  # type: ignore[arg-type]
    assert tall.size[1] > 4 * tall.size[0]
    width, height = make_picture(graph, PictureOptions(**options)).size  # type: ignore[arg-type]
    assert 0.6 < height / width < 2.2
    short = torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none").graph
    assert make_picture(short).size == make_picture(short, PictureOptions(columns=1)).size


def test_in_a_paper_columns_leave_text_large_enough_to_read() -> None:
    """At any width no text is smaller than 6 points; a wider picture has more in it."""
    graph = torcheer.log_forward_pass(AlexNet(10), torch.rand(1, 3, 224, 224), layers_to_save="none").graph
    narrow = make_picture(graph, PictureOptions(style="paper", width="4cm"))
    wide = make_picture(graph, PictureOptions(style="paper", width="17cm"))
    assert narrow.size[1] / narrow.size[0] > wide.size[1] / wide.size[0]
    assert min(narrow.smallest_text, wide.smallest_text) >= 6
    assert len(narrow.graph.nodes) <= len(wide.graph.nodes)
    with_less = make_picture(graph, PictureOptions(style="paper", width="1.5cm"))
    assert any("no text is smaller than 6 pt" in note or "give it more width" in note for note in with_less.notes)


def test_more_columns_than_places_to_cut_are_as_many_as_can_be() -> None:
    graph = torcheer.log_forward_pass(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(1, 2)).graph
    places = [node.place for node in lay_out(graph, PictureOptions(columns=50)).nodes]
    assert len(places) == 4
    assert all(one.right < other.left for one, other in pairwise(places)), "one node in each column"
