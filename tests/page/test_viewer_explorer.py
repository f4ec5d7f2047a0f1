"""Model Explorer's JSON is a graph as it wants one."""

from __future__ import annotations

import json

import pytest
import torch
from test_viewer_payload import HISTORIES

import torcheer
from torcheer import InvalidArgument
from torcheer.page import node_data_of


@pytest.fixture(params=HISTORIES)
def history(request):
    return HISTORIES[request.param]()


def nodes(history) -> list[dict[str, object]]:
    graphs = history.to_model_explorer()["graphs"]
    assert [graph["id"] for graph in graphs] == [history.model_name]
    return graphs[0]["nodes"]


def test_nodes_have_unique_ids_and_edges_come_from_nodes_before(history):
    seen: set[str] = set()
    for node in nodes(history):
        assert node["id"] not in seen
        assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= seen
        seen.add(node["id"])
    assert seen == {node.key for node in history.graph.nodes}


def test_edges_are_the_arguments_of_each_node(history):
    """One for each, numbered, with its position and its shape."""
    for node in nodes(history):
        ends = [edge["targetNodeInputId"] for edge in node["incomingEdges"]]
        assert ends == [str(number) for number in range(len(ends))]
        assert [entry["id"] for entry in node["inputsMetadata"]] == ends
        assert {edge["sourceNodeOutputId"] for edge in node["incomingEdges"]} <= {"0"}
        assert [entry["id"] for entry in node["outputsMetadata"]] == ["0"]
        arrived = [
            (edge.source, position) for edge in history.graph.edges_in.get(node["id"], ()) for position in edge.positions
        ]
        tags = [
            (edge["sourceNodeId"], pair["value"])
            for edge, entry in zip(node["incomingEdges"], node["inputsMetadata"], strict=True)
            for pair in entry["attrs"]
            if pair["key"] == "__tensor_tag" and pair["value"] != "through memory"
        ]
        assert tags == arrived


def test_namespaces_are_module_addresses(history):
    """With slashes for dots, and the call where there are several."""
    operations = {one.layer_label_w_pass: one for one in history.operations}
    for node in nodes(history):
        one = operations.get(node["id"])
        if one is None:
            continue
        address = one.containing_module or ""
        if address and history.modules[address].num_calls > 1:
            address = one.containing_modules[-1]
        assert node["namespace"] == address.replace(".", "/")


def test_everything_said_is_text(history):
    """As Model Explorer wants it, and nothing empty."""
    for node in nodes(history):
        metadata = [entry for name in ("inputsMetadata", "outputsMetadata") for entry in node[name]]
        pairs = [*node["attrs"], *(pair for entry in metadata for pair in entry["attrs"])]
        assert all(set(pair) == {"key", "value"} and pair["value"] and isinstance(pair["value"], str) for pair in pairs)
        assert node["label"]


def test_shapes_are_told():
    found = {node["label"]: node for node in nodes(HISTORIES["convolutional"]())}
    shape = {"key": "tensor_shape", "value": "float32[2,4,6,6]"}
    assert shape in found["conv2d"]["outputsMetadata"][0]["attrs"]
    assert shape in found["batchnorm"]["inputsMetadata"][0]["attrs"]


def test_the_importer_finds_a_label_beside_the_graphs(history):
    """Without one Model Explorer says "Error"."""
    found = history.to_model_explorer()
    assert found["label"] == history.model_name
    assert list(found) == ["label", "graphs"]


def test_figures_of_nodes_lie_beside_the_graph(tmp_path):
    """Time, FLOPs, memory and norms of every node, in the format that Model Explorer documents."""
    history = HISTORIES["mlp"]()
    history.to_model_explorer(tmp_path / "net.json")
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["net.flops.json", "net.json", "net.memory.json", "net.norm.json", "net.time.json"]
    nodes = {node.key: node for node in history.graph.nodes}
    for name in ("time", "flops", "memory", "norm"):
        data = json.loads((tmp_path / f"net.{name}.json").read_text(encoding="utf-8"))
        assert list(data) == [history.model_name]
        (graph,) = data.values()
        assert set(graph["results"]) == set(nodes)
        assert [stop["stop"] for stop in graph["gradient"]][:: len(graph["gradient"]) - 1] == [0, 1]
        for key, result in graph["results"].items():
            operation = history[key]
            expected = {
                "time": history.cost.operation(key).seconds * 1e3,
                "flops": history.cost.operation(key).flops,
                "memory": nodes[key].bytes / 1e3,
                "norm": operation.tensor_contents.float().norm().item(),
            }[name]
            assert result["value"] == pytest.approx(expected, rel=1e-4)


def test_figures_that_are_not_known_are_not_written(tmp_path):
    """Without activations there are no norms; and none at all when they are not wanted."""
    history = torcheer.log_forward_pass(torch.nn.ReLU(), torch.ones(2), layers_to_save="none")
    assert "norm" not in node_data_of(history)
    history.to_model_explorer(tmp_path / "net.json", node_data=False)
    assert [file.name for file in tmp_path.iterdir()] == ["net.json"]


def test_it_is_written_to_a_file(tmp_path):
    history = HISTORIES["mlp"]()
    found = history.to_model_explorer(tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8")) == found
    with pytest.raises(InvalidArgument, match="cannot be written"):
        history.to_model_explorer(tmp_path / "nowhere" / "graph.json")
    for write in (history.to_model_explorer, history.to_html, history.to_json):
        with pytest.raises(InvalidArgument, match=r"path says where the .* is written, such as 'model"):
            write(7)
