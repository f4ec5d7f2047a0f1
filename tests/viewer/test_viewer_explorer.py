"""Model Explorer's JSON is a graph as it wants one."""

from __future__ import annotations

import json

import pytest
from test_viewer_payload import HISTORIES

from torcheer import InvalidArgument


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


def test_it_is_written_to_a_file(tmp_path):
    history = HISTORIES["mlp"]()
    found = history.to_model_explorer(tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8")) == found
    with pytest.raises(InvalidArgument, match="cannot be written"):
        history.to_model_explorer(tmp_path / "nowhere" / "graph.json")
