"""The graph of a history: one node per operation, edges with argument positions, every fact a picture needs."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from models import Branching, Convolutional, Mlp, Stateful, log
from torcheer import AmbiguousKey, InvalidArgument, LayerNotFound
from torcheer.graph import Edge, Graph, Node, build_graph, roll

x = torch.rand(3, 4)


def graph_of(model, *args, **options):
    return build_graph(log(model, *args, **options))


def pairs(graph):
    """The edges without passes, by label."""
    return [(graph.node(e.source).label, graph.node(e.target).label) for e in graph.edges]


def labels(graph):
    return [node.label for node in graph.nodes]


def edge(graph, source, target):
    ends = graph.node(source).key, graph.node(target).key
    return next(e for e in graph.edges if (e.source, e.target) == ends)


def test_one_node_per_operation_in_execution_order():
    history = log(Branching(), x)
    graph = build_graph(history)
    assert labels(graph) == history.layer_labels
    assert [n.operations for n in graph.nodes] == [(one._number,) for one in history.operations]


def test_edges_are_the_parents_of_each_operation_with_their_positions():
    history = log(Branching(), x)
    graph = build_graph(history)
    for one in history.operations:
        assert [n.label for n in graph.parents(one.layer_label)] == one.parent_layers
        assert [n.label for n in graph.children(one.layer_label)] == one.child_layers
        found = {
            position: graph.node(e.source).label
            for e in graph.edges_in.get(one.layer_label + ":1", ())
            for position in e.positions
        }
        assert found == one.parent_arg_positions


def test_one_edge_holds_all_positions_of_a_tensor():
    graph = graph_of(lambda t: torch.cat([t, t + 1, t]), x)
    assert edge(graph, "input_1_0", "cat_1_2").positions == ("args[0][0]", "args[0][2]")


def test_named_arguments_are_positions():
    graph = graph_of(lambda t: torch.where(t > 0, input=t, other=t.sin()), x)
    assert edge(graph, "sin_1_2", "where_1_3").positions == ("kwargs['other']",)


def test_arguments_are_told_without_addresses_in_memory():
    """They are others in every run, and in a loaded history."""
    generator = torch.Generator()
    history = log(lambda t: t + torch.rand(3, generator=generator), torch.rand(3))
    assert str(history.graph.node("rand_1").arguments) == "size=3, generator=<torch._C.Generator object>"


def test_a_dependency_through_shared_memory_says_so():
    def model(t):
        base = t * 1
        view = base[0]
        base.mul_(2)
        return view + 1

    graph = graph_of(model, x)
    add = [e for e in graph.edges if e.target.startswith("add")]
    assert [(e.source.partition("_")[0], e.is_memory, bool(e.positions)) for e in add] == [
        ("getitem", False, True),
        ("mul", True, False),
    ]


def test_facts_agree_with_the_history():
    history = log(Convolutional().train(), torch.rand(2, 3, 8, 8))
    graph = build_graph(history)
    for one in history.operations:
        node = graph.node(one.layer_label)
        assert (node.type, node.function) == (one.layer_type, one.func_applied_name)
        assert (node.shape, node.bytes, node.seconds) == (one.tensor_shape, one.tensor_fsize, one.func_time_elapsed)
        assert f"torch.{node.dtype}" == str(one.tensor_dtype)
        assert list(node.modules) == one.containing_modules
        assert list(node.exits) == one.modules_exited
        assert node.bottom_level_module == one.bottom_level_module
        assert node.is_inplace == one.is_inplace
        assert (node.from_input, node.to_output) == (one.has_input_ancestor, one.is_output_ancestor)
        assert [p.name for p in node.params] == [p.name for p in one.parent_params]
        assert node.num_params == one.num_params
        assert node.source == (str(one.source) if one.source is not None else "")
        assert node.role == one.io_role


def test_kinds_say_where_a_tensor_came_from():
    closed_over = torch.ones(4)
    graph = graph_of(lambda t: t + closed_over + torch.zeros(4), x)
    assert [(n.type, n.kind, n.is_internal) for n in graph.nodes] == [
        ("input", "input", False),
        ("source", "source", True),
        ("add", "operation", False),
        ("zeros", "operation", True),
        ("add", "operation", False),
        ("output", "output", False),
    ]


def test_parameters_are_trainable_frozen_or_mixed():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    graph = graph_of(model, x)
    assert [n.trainable for n in graph.nodes] == ["", "trainable", "frozen", "mixed", "", ""]


def test_buffers_are_facts_of_their_readers_and_not_of_what_follows():
    graph = graph_of(nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()).train(), x)
    norm, relu = graph.node("batchnorm_1_1"), graph.node("relu_1_2")
    assert [(use.buffer.name, use.positions, use.is_written) for use in norm.buffers] == [
        ("0.running_mean", ("args[1]",), True),
        ("0.running_var", ("args[2]",), True),
    ]
    assert relu.buffers == ()
    assert not norm.is_inplace


def test_a_buffer_read_after_it_was_overwritten_is_still_that_buffer():
    node = next(n for n in graph_of(Stateful(), torch.rand(2, 3)).nodes if n.params)
    assert [p.name for p in node.params] == ["weight"]


def test_a_decision_in_python_is_marked_where_its_value_was_made():
    def model(t):
        return t + 1 if t.sum() > 0 else t

    graph = graph_of(model, x)
    (read,) = graph.node("gt_1_2").python_reads
    assert (read.function, read.value, read.is_decision) == ("__bool__", True, True)
    assert "t.sum() > 0" in str(read.place)
    assert graph.node("sum_1_1").python_reads == ()


def test_the_operation_that_raised_is_a_node():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(RuntimeError), torcheer.recording(model) as history:
        model(x)
    graph = build_graph(history)
    failed = graph.nodes[-1]
    assert (failed.kind, failed.function, failed.modules[-1]) == ("failed", "linear", "1:1")
    assert "RuntimeError" in failed.error
    assert [p.name for p in failed.params] == ["1.weight", "1.bias"]
    assert [n.type for n in graph.parents(failed.key)] == ["linear"]
    assert all(n.to_output for n in graph.nodes)


def test_tensors_of_one_call_share_it():
    graph = graph_of(lambda t: torch.chunk(t, 2), torch.rand(4))
    one, other = graph.nodes[1:3]
    assert one.call == other.call
    assert (one.output_path, other.output_path) == ("[0]", "[1]")


def test_passes_of_a_layer_have_keys_of_their_own():
    def model(t):
        for _ in range(3):
            t = torch.sin(t) + 1
        return t

    graph = graph_of(model, x)
    assert [n.key for n in graph.nodes][1:5] == ["sin_1_1:1", "add_1_2:1", "sin_1_1:2", "add_1_2:2"]
    assert (graph.nodes[3].passes, graph.nodes[3].num_passes) == ((2,), 3)
    assert next(e for e in graph.edges if e.target == "sin_1_1:2").passes == ((1, 2),)


def test_module_boxes_form_a_tree():
    graph = graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8))
    boxes = graph.modules
    assert [(b.key, b.parent, b.depth, b.class_name) for b in boxes.values()][:3] == [
        ("features:1", None, 1, "Sequential"),
        ("features.0:1", "features:1", 2, "Conv2d"),
        ("features.1:1", "features:1", 2, "BatchNorm2d"),
    ]
    assert boxes["features:1"].input_shapes == ((2, 3, 8, 8),)
    assert boxes["features:1"].output_shapes == ((2, 4, 3, 3),)


def test_nodes_are_found_by_key_label_and_module():
    graph = graph_of(Mlp(), x)
    assert graph.node("relu_1_2") is graph.node("relu_1_2:1") is graph.node("act") is graph.node("act:1")
    assert "relu_1_2" in graph
    assert "relu_9" not in graph
    assert 3 in graph
    assert 99 not in graph


def test_an_unknown_key_names_the_nearest():
    with pytest.raises(LayerNotFound, match="relu_1_2"):
        graph_of(Mlp(), x).node("relu_1_3")


def test_a_label_of_several_nodes_is_ambiguous():
    graph = Graph("two", (Node(key="a:1", label="a"), Node(key="a:2", label="a")))
    with pytest.raises(AmbiguousKey, match="a:1, a:2"):
        graph.node("a")


def test_two_nodes_cannot_have_one_key():
    with pytest.raises(InvalidArgument):
        Graph("two", (Node(key="a", label="a"), Node(key="a", label="a")))


def test_roots_and_leaves():
    graph = graph_of(lambda t: t + torch.ones(4), x)
    assert [n.type for n in graph.roots] == ["input", "ones"]
    assert [n.type for n in graph.leaves] == ["output"]


def test_a_graph_cannot_be_changed():
    graph = graph_of(Mlp(), x)
    with pytest.raises(AttributeError):
        graph.title = "other"
    with pytest.raises(AttributeError):
        graph.nodes[0].label = "other"
    with pytest.raises(TypeError):
        graph.modules["x"] = None


def test_a_graph_needs_no_history():
    graph = graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8))
    assert "head" in graph.node("linear_1_7").source


@pytest.mark.parametrize("view", [lambda g: g, roll])
def test_to_dict_survives_json(view):
    graph = view(graph_of(Branching(), x))
    plain = graph.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert len(plain["nodes"]) == len(graph)
    assert plain["nodes"][1]["params"][0]["dtype"] == "float32"


def test_values_that_json_has_no_word_for_are_text():
    def model(t):
        return t * float(t.sum() * float("inf"))

    assert graph_of(model, x + 1).to_dict()["nodes"][2]["python_reads"][0]["value"] == "inf"


def test_to_networkx_has_the_same_nodes_and_edges():
    networkx = pytest.importorskip("networkx")
    graph = graph_of(Branching(), x)
    made = graph.to_networkx()
    assert list(made) == [n.key for n in graph.nodes]
    assert set(made.edges) == {(e.source, e.target) for e in graph.edges}
    assert networkx.is_directed_acyclic_graph(made)
    assert made.nodes["input_1_0:1"]["shape"] == (3, 4)


def test_text_counts_and_lists_nodes():
    graph = graph_of(Mlp(), x)
    assert repr(graph) == "graph of Mlp: 6 nodes, 5 edges, 3 modules"
    assert "    relu_1_2:1 3×8 96 B ← linear_1_1:1" in str(graph).splitlines()


def test_a_long_listing_is_cut_with_a_count():
    def model(t):
        for k in range(100):
            t = F.relu(t) if k % 2 else t.sin()
        return t

    text = str(graph_of(model, x))
    assert "… 62 nodes more …" in text
    assert len(text.splitlines()) == 42


def test_an_output_that_is_an_input():
    graph = graph_of(lambda t: t, x)
    assert [n.kind for n in graph.nodes] == ["input", "output"]
    assert [(e.source, e.target, e.positions) for e in graph.edges] == [("input_1_0:1", "output_1_1:1", ())]


def test_small_graphs_can_be_written_by_hand():
    graph = Graph("hand", (Node(key="a", label="a"), Node(key="b", label="b")), (Edge("a", "b"),))
    assert [n.key for n in graph.children("a")] == ["b"]


def test_a_rolled_graph_prints_how_often_a_node_runs():
    linear = nn.Linear(4, 4)
    graph = roll(torcheer.log_forward_pass(nn.Sequential(linear, nn.ReLU(), linear), torch.rand(3, 4)).graph)
    assert any(line.strip().startswith("linear_1_1 ×2 3×4") for line in str(graph).splitlines()), str(graph)
    assert all(" ×" not in line for line in str(graph).splitlines() if "relu_1" in line.split("←")[0])
