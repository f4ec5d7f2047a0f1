"""torch_vis: figures, files and pictures."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import inspect
import io
import json
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis
import torcheer
from models import made_of, made_with
from torch_vis import (
    GraphNode,
    OperationType,
    analyze_computational_graph_execution,
    export_computational_graph,
    track_computational_graph_execution,
    visualize_computational_graph,
)
from torch_vis.scene import Scene, make_scene
from torcheer import DrawingFailed, InvalidArgument
from torcheer.pictures.layout import run_graphviz

plt = pytest.importorskip("matplotlib.pyplot")
PathPatch, Polygon = plt.matplotlib.patches.PathPatch, plt.matplotlib.patches.Polygon
pytest.importorskip("plotly.graph_objects")


@pytest.fixture(autouse=True)
def nothing_opens():
    plt.close("all")
    plt.switch_backend("Agg")
    yield
    plt.close("all")


@made_with(body=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), head=lambda: nn.Linear(4, 2))
def Model(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Functional code between layers, a residual, a result in a dictionary."""
    return {"result": self.head(x + self.body(x)).flatten(0)}


def test_the_analysis_adds_up():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(2, 4)
    analysis = analyze_computational_graph_execution(model, x)
    assert set(analysis) == {"summary", "performance", "layer_analysis"}
    summary, performance = analysis["summary"], analysis["performance"]
    assert sum(summary["operation_types"].values()) == summary["total_nodes"]
    assert sum(summary["edge_types"].values()) == summary["total_edges"]
    assert summary["parameters"] == {"total": 58, "trainable": 58}
    assert summary["module_types"] == {"Linear": 2, "ReLU": 1, "Sequential": 1}
    assert performance["operations_per_second"] == pytest.approx(performance["operations"] / performance["execution_time"])
    memory = performance["memory_usage"]
    assert memory["parameter_bytes"] == 58 * 4
    assert memory["input_bytes"] == 32
    assert memory["activation_bytes"] == (16 + 16 + 4) * 4
    assert memory["peak_bytes"] > 0
    assert performance["macs"] == 2 * (4 * 8 + 8 * 2)
    assert list(analysis["layer_analysis"]) == ["Sequential", "0", "1", "2"]
    operation = analysis["layer_analysis"]["0"][0]
    assert operation["operation_type"] == "layer_op"
    assert set(operation) == {field.name for field in dataclasses.fields(GraphNode)}
    assert set(analyze_computational_graph_execution(model, x, detailed=False)) == {"summary"}
    json.dumps(analysis, allow_nan=False)


def test_an_export_is_whole_and_says_its_version(tmp_path):
    target = tmp_path / "graph.json"
    target.write_text("old")
    path = export_computational_graph(Model(), torch.ones(3, 4), target)
    assert path == str(target)
    data = json.loads(target.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert (data["schema"], data["version"]) == ("torch_vis.graph", 1)
    assert set(data) == {"schema", "version", "torch_version", "torcheer_version", "options", "summary", "nodes", "edges"}
    ids = {node["id"] for node in data["nodes"]}
    assert len(ids) == len(data["nodes"]) == data["summary"]["total_nodes"]
    assert {edge[end] for edge in data["edges"] for end in ("source_id", "target_id")} <= ids
    assert {edge["edge_type"] for edge in data["edges"]} == {"data_flow", "gradient_flow", "parameter", "calls"}
    assert [one.name for one in tmp_path.iterdir()] == ["graph.json"]


def test_numbers_in_an_export_are_finite(tmp_path):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.clamp(x, float("-inf"), float("nan")).masked_fill(x > 9, float("inf")) + "\ud800".count("a")

    path = export_computational_graph(made_of(forward), torch.ones(2), tmp_path / "graph.json")
    with open(path, encoding="utf-8") as file:
        json.load(file, parse_constant=pytest.fail)


def test_what_cannot_be_written_is_told_before_the_model_runs(tmp_path):
    class Never(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("must not run")

    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match="is a folder"):
        export_computational_graph(Never(), torch.ones(1), tmp_path)
    with pytest.raises(InvalidArgument, match="no folder"):
        export_computational_graph(Never(), torch.ones(1), tmp_path / "missing" / "graph.json")
    with pytest.raises(InvalidArgument, match="no folder"):
        export_computational_graph(Never(), torch.ones(1), tmp_path / "file" / "graph.json")
    with pytest.raises(InvalidArgument, match="'json'; got 'xml'"):
        export_computational_graph(Never(), torch.ones(1), "graph.xml", format="xml")
    with pytest.raises(InvalidArgument, match="'plotly', 'matplotlib'; got 'ascii'"):
        visualize_computational_graph(Never(), torch.ones(1), renderer="ascii")
    with pytest.raises(InvalidArgument, match="filepath"):
        export_computational_graph(Never(), torch.ones(1), 3)  # type: ignore[arg-type]


def test_a_write_that_fails_is_told_too(tmp_path, monkeypatch):
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InvalidArgument, match="No space left"):
        export_computational_graph(nn.ReLU(), torch.ones(1), tmp_path / "graph.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["plotly", "matplotlib"])
def test_a_missing_library_is_named_with_the_command(name, monkeypatch):
    monkeypatch.setattr("torch_vis.execution.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=f"{name.capitalize()} not available.*pip install {name}"):
        visualize_computational_graph(nn.ReLU(), torch.ones(1), renderer=name)


def loop(self, xs: torch.Tensor) -> torch.Tensor:
    h = xs.new_zeros(1, 3)
    for x in xs:
        h = self.cell(x[None], h)
    return h


DRAWN = {
    "mlp": lambda: (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), torch.ones(2, 4)),
    "cnn": lambda: (nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten()), torch.ones(2, 1, 5, 5)),
    "attention": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.ones(1, 3, 8)),
    "recurrent": lambda: (made_of(loop, cell=nn.RNNCell(2, 3)), torch.ones(4, 2)),
    "dictionary": lambda: (Model(), torch.ones(3, 4)),
}


def scene_of(model: nn.Module, x: Any) -> Scene:
    return make_scene(track_computational_graph_execution(model, x))


@pytest.mark.parametrize("name", DRAWN)
def test_nodes_stand_apart_and_arrows_end_at_them(name):
    scene = scene_of(*DRAWN[name]())
    places = [node.place for node in scene.nodes]
    for number, one in enumerate(places):
        for other in places[:number]:
            apart_x = abs(one.x - other.x) >= (one.width + other.width) / 2 - 0.5
            apart_y = abs(one.y - other.y) >= (one.height + other.height) / 2 - 0.5
            assert apart_x or apart_y
    around = scene.bounds
    for edge in [edge for edges in scene.edges.values() for edge in edges]:
        assert (len(edge.curve) - 1) % 3 == 0
        x, y = edge.tip
        assert around.left <= x <= around.right
        assert around.low <= y <= around.high
        assert any(abs(x - p.x) <= p.width / 2 + 2 and abs(y - p.y) <= p.height / 2 + 2 for p in places)


def test_data_goes_down_and_gradients_go_up():
    scene = scene_of(*DRAWN["mlp"]())
    assert set(scene.edges) == {"data_flow", "gradient_flow"}
    for kind, edges in scene.edges.items():
        for edge in edges:
            if edge.line == "solid":
                assert (edge.tip[1] < edge.curve[0][1]) == (kind == "data_flow")


def test_places_are_those_of_the_static_picture():
    model, x = DRAWN["mlp"]()
    with torch.no_grad():
        scene = scene_of(model, x)
        static = torcheer.log_forward_pass(model, x).draw(io.BytesIO())
    ours = {node.key: node.place for node in scene.nodes}
    heights = {m[1]: float(m[2]) for m in re.finditer(r"<title>([a-z0-9_:]+)</title>.*?y=\"(-?[0-9.]+)\"", static.svg, re.S)}
    assert set(ours) == set(heights)
    assert sorted(ours, key=lambda key: -ours[key].y) == sorted(heights, key=lambda key: heights[key])


@pytest.mark.parametrize("name", DRAWN)
def test_every_model_is_drawn_by_both(name, tmp_path):
    model, x = DRAWN[name]()
    figure = visualize_computational_graph(model, x)
    figure.write_html(tmp_path / "graph.html", include_plotlyjs=False)
    named = {trace.name for trace in figure.data if trace.showlegend is not False}
    assert {"data_flow", "gradient_flow", "GRADIENT_OP (autograd)"} <= named
    drawn = visualize_computational_graph(model, x, renderer="matplotlib")
    assert drawn is plt.gcf()
    plt.tight_layout()
    drawn.savefig(tmp_path / "graph.png", dpi=40, bbox_inches="tight")
    assert {text.get_text() for text in drawn.axes[0].get_legend().get_texts()} == named - {"output, reference"}


def test_pointing_at_a_node_tells_shapes_time_memory_and_module():
    figure = visualize_computational_graph(nn.Sequential(nn.Linear(4, 8), nn.ReLU()), torch.ones(2, 4))
    told = "\n".join(text for trace in figure.data for text in trace.hovertext or ())
    assert "<b>linear_1_1</b><br>type: layer_op<br>function: linear<br>module: 0<br>shapes: 2×4 → 2×8<br>time: " in told
    assert "memory: 64 B<br>parameters: 40 (0.weight, 0.bias)" in told
    assert "gradients of relu_1_2<br>" in told.replace("</b>", "")


def test_arrows_have_heads_that_turn_with_them():
    figure = visualize_computational_graph(nn.ReLU(), torch.ones(2))
    (flow,) = [trace for trace in figure.data if trace.name == "data_flow"]
    assert flow.marker.angleref == "previous"
    assert sum(size > 0 for size in flow.marker.size) == sum(x is None for x in flow.x)


class Minus(nn.Module):
    """The order of its arguments matters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() - x.sin()


def test_arrows_say_which_argument_they_lead_to():
    """Where the order matters, beside the arrow."""
    figure = visualize_computational_graph(Minus(), torch.ones(2))
    said = [text for trace in figure.data if trace.mode == "text" and trace.text for text in trace.text]
    scene = scene_of(Minus(), torch.ones(2))
    wanted = sorted(edge.text for several in scene.edges.values() for edge in several if edge.text)
    assert len(wanted) == 2
    assert sorted(text for text in said if text in wanted) == wanted


def test_facts_of_a_gradient_that_there_are_none_of_are_left_out(tmp_path):
    """An export has no empty words: a node has a parameter or an operation only where it belongs to one."""
    export_computational_graph(Minus(), torch.ones(2, requires_grad=True), tmp_path / "graph.json")
    data = json.loads((tmp_path / "graph.json").read_text())
    gradients = [node for node in data["nodes"] if node["id"].startswith("grad:")]
    assert gradients
    for node in gradients:
        assert None not in node["metadata"].values()
        assert "parameter" not in node["metadata"]


def test_in_matplotlib_a_head_sits_at_the_end_of_its_arrow():
    """The middle of its back is where the line ends."""
    drawn = visualize_computational_graph(nn.ReLU(), torch.ones(2), renderer="matplotlib")
    patches = drawn.axes[0].patches
    ends = {tuple(one.get_path().vertices[-1].round(3)) for one in patches if isinstance(one, PathPatch)}
    backs = {tuple(((a + b) / 2).round(3)) for a, b, *_ in (one.get_xy() for one in patches if isinstance(one, Polygon))}
    assert backs
    assert backs == ends


def test_a_layout_may_take_most_of_the_time_limit(monkeypatch):
    given = []

    def watched(text, engine, form, limit):
        given.append(limit)
        return run_graphviz(text, engine, form, limit)

    monkeypatch.setattr("torcheer.pictures.layout.run_graphviz", watched)
    scene_of(nn.ReLU(), torch.ones(2))
    limit = torcheer.PictureOptions().time_limit
    assert limit / 2 < given[0] < limit


def test_names_are_text_and_not_markup():
    model = nn.Module()
    model.add_module("<b>bold", nn.Linear(2, 2))
    model.forward = lambda x: getattr(model, "<b>bold")(x) + 1  # type: ignore[method-assign]
    figure = visualize_computational_graph(model, torch.ones(1, 2))
    assert "<b>bold" not in "".join(text for trace in figure.data for text in trace.text or () if "&lt;" not in text)
    visualize_computational_graph(model, torch.ones(1, 2), renderer="matplotlib")


def test_a_large_model_is_collapsed_by_module_and_says_so():
    block = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4 + i % 2), nn.ReLU(), nn.LazyLinear(4)) for i in range(40)]
    model, x = nn.Sequential(*[nn.Sequential(*block[i : i + 4]) for i in range(0, 40, 4)]), torch.ones(1, 4)
    scene = scene_of(model, x)
    assert len(scene.nodes) < 200
    assert any("Collapsed by module" in note for note in scene.notes)
    assert OperationType.FORWARD in scene.kinds
    assert OperationType.BACKWARD in scene.kinds
    assert "Collapsed by module" in visualize_computational_graph(model, x).layout.title.text
    assert "Collapsed by module" in visualize_computational_graph(model, x, renderer="matplotlib").axes[0].get_title()


def test_pictures_need_every_operation():
    tracker = track_computational_graph_execution(nn.ReLU(), torch.ones(1), track_tensor_ops=False)
    with pytest.raises(InvalidArgument, match="only layers were tracked"):
        make_scene(tracker)


def test_the_public_names():
    assert {name for name in vars(torch_vis) if name[0] != "_" and not hasattr(torch_vis.__dict__[name], "__path__")} >= {
        "ComputationalGraphTracker",
        "GraphEdge",
        "GraphNode",
        "OperationType",
        "analyze_computational_graph_execution",
        "export_computational_graph",
        "track_computational_graph_execution",
        "visualize_computational_graph",
    }


PUBLIC = {"torcheer", "torcheer.graph", "torcheer.live.module_calls", "torcheer.pictures"}


@pytest.mark.parametrize("path", sorted(Path(torch_vis.__path__[0]).glob("*.py")), ids=lambda path: path.stem)
def test_only_public_names_of_torcheer_are_used(path):
    """What torch_vis imports is what torcheer's packages offer, and it reaches for no attribute that begins with `_`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names if alias.name.partition(".")[0] == "torcheer"]
            assert set(imported) <= PUBLIC, imported
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and str(node.module).partition(".")[0] == "torcheer":
            assert node.module in PUBLIC
            offered = importlib.import_module(str(node.module))
            for alias in node.names:
                assert alias.name == "__version__" or not alias.name.startswith("_")
                assert not inspect.ismodule(getattr(offered, alias.name)), f"{alias.name} is a module, not a name"
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert isinstance(node.value, ast.Name), ast.unparse(node)
            assert node.value.id == "self", ast.unparse(node)


@pytest.mark.parametrize("name", [one.name for one in pkgutil.iter_modules(torch_vis.__path__)])
def test_examples_in_docstrings_give_what_they_show(name):
    module = importlib.import_module(f"torch_vis.{name}")
    assert module.__doc__
    assert doctest.testmod(module).failed == 0


def test_what_cannot_be_drawn_whole_may_be_folded(monkeypatch):
    asked = []

    def lay_out(graph, options, **more):
        asked.append(options)
        if len(asked) == 1:
            raise DrawingFailed("too large")
        return real(graph, options, **more)

    real = torch_vis.scene.lay_out
    monkeypatch.setattr(torch_vis.scene, "lay_out", lay_out)
    scene = scene_of(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), torch.rand(2, 4))
    assert [options.fold_repeats for options in asked] == [False, None]  # None: where it helps
    assert any("linear" in line.lower() for node in scene.nodes for line in node.lines)
