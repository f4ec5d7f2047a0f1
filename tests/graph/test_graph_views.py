"""Views of a graph: each does what it says, and views compose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
import transformers
from test_graph import edge, graph_of, labels, pairs
from torch import Tensor, nn

import torcheer
from models import Buffer, Convolutional, Mlp, log, made_of, made_with
from torcheer import InvalidArgument, LayerNotFound
from torcheer.graph import (
    Edge,
    Graph,
    Node,
    add_buffer_nodes,
    add_input_nodes,
    add_output_nodes,
    ancestors,
    build_graph,
    collapse,
    descendants,
    drop_buffer_nodes,
    drop_input_nodes,
    drop_output_nodes,
    expand_identities,
    fold_repeats,
    format_passes,
    keep_module_outputs,
    merge_elementwise,
    merge_ports,
    path_to_output,
    prune_dead_ends,
    prune_internal,
    roll,
    show_internal,
    subgraph_between,
    unroll,
)
from torcheer.graph.equal_ports import equal_ports

x = torch.rand(3, 4)


@made_with(
    cell=lambda: made_of(lambda self, t, h: torch.tanh(self.new(t) + self.old(h)), new=nn.Linear(4, 4), old=nn.Linear(4, 4)),
    head=lambda: nn.Linear(4, 2),
)
def Recurrent(self, t):
    """A hand-written recurrence over four steps, and a head that sees the last."""
    h = torch.zeros(3, 4)
    for _ in range(4):
        h = self.cell(t, h)
    return self.head(h)


class Block(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = scale

    def forward(self, t):
        return t + F.relu(self.fc(t)) * self.scale


def keys(graph):
    return [node.key for node in graph.nodes]


def by_hand(*edges, **facts):
    """A graph from `a b` pairs; nodes in order of appearance."""
    names = dict.fromkeys(name for pair in edges for name in pair.split())
    nodes = [Node(key=name, label=name.partition(":")[0], passes=(int(name.partition(":")[2] or 1),)) for name in names]
    made = [Edge(*pair.split()) for pair in edges]
    by_key = {node.key: node for node in nodes}
    edges = [Edge(e.source, e.target, passes=((by_key[e.source].passes[0], by_key[e.target].passes[0]),)) for e in made]
    return Graph("hand", tuple(nodes), tuple(sorted(edges, key=lambda e: list(names).index(e.target))))


def test_dead_ends_go():
    def model(t):
        t.sin().cos()
        return t + 1

    graph = graph_of(model, x)
    assert labels(graph) == ["input_1_0", "sin_1_1", "cos_1_2", "add_1_3", "output_1_4"]
    assert labels(prune_dead_ends(graph)) == ["input_1_0", "add_1_3", "output_1_4"]


def test_dead_ends_go_also_after_the_outputs_did():
    def model(t):
        t.sin()
        return t + 1

    graph = graph_of(model, x)
    assert prune_dead_ends(drop_output_nodes(graph)) == drop_output_nodes(prune_dead_ends(graph))


def test_a_pass_that_never_reached_an_output_has_no_dead_ends():
    with torcheer.recording() as history:
        torch.ones(2) + 1
        graph = build_graph(history)
    assert prune_dead_ends(graph) == graph


def test_what_led_to_the_operation_that_raised_is_no_dead_end():
    def model(t):
        t.sin()
        return t.cos() @ torch.ones(7)

    with pytest.raises(RuntimeError), torcheer.recording() as history:
        model(x)
    left = [node.type for node in prune_dead_ends(build_graph(history)).nodes]
    assert "sin" not in left
    assert left[-3:] == ["cos", "ones", "matmul"]


def test_internal_tensors_go_and_come_back():
    graph = graph_of(lambda t: t + torch.ones(4) * 2, x)
    hidden = prune_internal(graph)
    assert labels(hidden) == ["input_1_0", "add_1_3", "output_1_4"]
    assert pairs(hidden) == [("input_1_0", "add_1_3"), ("add_1_3", "output_1_4")]
    assert show_internal(hidden) == graph


def test_an_output_without_an_input_stays_when_internal_tensors_go():
    assert labels(prune_internal(graph_of(lambda t: torch.ones(2), x))) == ["input_1_0", "output_1_2"]


def test_inputs_and_outputs_go_and_come_back():
    graph = graph_of(Mlp(), x)
    bare = drop_output_nodes(drop_input_nodes(graph))
    assert labels(bare) == ["linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4"]
    assert len(bare.edges) == 3
    assert add_output_nodes(add_input_nodes(bare)) == graph


def test_what_was_hidden_comes_back_after_other_views():
    graph = graph_of(Mlp(), x)
    late = add_input_nodes(collapse(drop_input_nodes(graph), depth=1))
    assert late == collapse(graph, depth=1)
    rolled = add_input_nodes(roll(drop_input_nodes(graph)))
    assert rolled == roll(graph)


def test_buffers_are_drawn_on_demand():
    graph = graph_of(Convolutional().train(), torch.rand(2, 3, 8, 8))
    drawn = add_buffer_nodes(graph)
    assert [n.label for n in drawn.nodes if n.kind == "buffer"] == [
        "buffer features.1.running_mean",
        "buffer features.1.running_var",
    ]
    read = edge(drawn, "buffer features.1.running_mean", "batchnorm_1_2")
    assert read.positions == ("args[1]",)
    assert edge(drawn, "batchnorm_1_2", "buffer features.1.running_mean").is_feedback
    assert drawn.node("buffer features.1.running_mean").modules == ("features:1", "features.1:1")
    assert drop_buffer_nodes(drawn) == graph
    assert add_buffer_nodes(drawn) == drawn


def test_buffers_in_eval_are_only_read():
    drawn = add_buffer_nodes(graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8)))
    assert not any(e.is_feedback for e in drawn.edges)


def counting(self, t):
    self.count += 1
    return t + self.count


def test_a_buffer_that_was_overwritten_flows_through_what_wrote_it():
    graph = add_buffer_nodes(graph_of(made_of(counting, count=Buffer(torch.zeros(4))), x))
    assert pairs(graph) == [
        ("add_1_1", "buffer count"),
        ("buffer count", "add_1_1"),
        ("input_1_0", "add_2_2"),
        ("add_1_1", "add_2_2"),
        ("add_2_2", "output_1_3"),
    ]


def test_a_buffer_inside_a_collapsed_module_is_not_drawn():
    graph = graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8))
    one, other = add_buffer_nodes(collapse(graph, depth=1)), collapse(add_buffer_nodes(graph), depth=1)
    assert one == other
    assert not any(n.kind == "buffer" for n in one.nodes)


def test_only_what_modules_return_is_kept():
    graph = keep_module_outputs(graph_of(Block(), x))
    assert pairs(graph) == [("input_1_0", "linear_1_1"), ("input_1_0", "output_1_5"), ("linear_1_1", "output_1_5")]
    assert [e.is_bridge for e in graph.edges] == [False, True, True]
    assert graph.edges[2].shape == (3, 4)


def test_what_goes_back_is_joined_between_what_modules_return():
    """A write to a buffer, and the way back in a run of equal blocks."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x) * 2
        self.count.add_(y.sum(0))
        return self.blocks(y)

    graph = graph_of(
        made_of(
            forward,
            first=nn.Linear(2, 2),
            count=Buffer(torch.zeros(2)),
            blocks=nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(4)]),
        ),
        torch.ones(3, 2),
    )

    def back(view: Graph) -> set[tuple[str, str, bool]]:
        return {(e.source, e.target, e.is_bridge) for e in keep_module_outputs(view).edges if e.is_feedback}

    buffer = "buffer count"
    assert back(add_buffer_nodes(graph)) == {("linear_1_1:1", buffer, True), (buffer, buffer, True)}
    assert back(fold_repeats(graph)) == {("relu_1_6:1", "linear_2_5:1", False)}


def test_a_way_back_through_nodes_that_go_is_joined_once():
    """From c, behind which d goes, to b, before which nothing stays: the nearest that stay are c and b's successor."""
    edges = [Edge(*one) for one in ("ab", "bc", "cd", "de")] + [
        Edge("d", "b", is_feedback=True),
        Edge("c", "b", is_feedback=True),
    ]
    nodes = tuple(Node(key=k, label=k, exits=("m:1",) if k in "ace" else ()) for k in "abcde")
    kept = keep_module_outputs(Graph("", nodes, tuple(edges)))
    assert [(e.source, e.target, e.is_feedback) for e in kept.edges] == [("a", "c", False), ("c", "c", True), ("c", "e", False)]


def test_a_direct_edge_beside_a_bridge_stays_direct():
    graph = by_hand("a b", "a c", "b c", "c d")
    kept = [Node(key=k, label=k, exits=("m:1",)) if k in "acd" else graph.by_key[k] for k in graph.by_key]
    assert [(e.source, e.target, e.is_bridge) for e in keep_module_outputs(Graph("", tuple(kept), graph.all_edges)).edges] == [
        ("a", "c", False),
        ("c", "d", False),
    ]


def test_a_module_call_becomes_one_node():
    graph = collapse(graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8)), address="features")
    node = graph.node("features")
    assert keys(graph) == ["input_1_0:1", "@features:1", "flatten_1_5:1", "dropout_1_6:1", "linear_1_7:1", "output_1_8:1"]
    assert (node.kind, node.type, node.num_operations, node.num_params) == ("module", "Sequential", 4, 4 * 3 * 9 + 4 + 8)
    assert (node.input_shapes, node.output_shapes) == (((2, 3, 8, 8),), ((2, 4, 3, 3),))
    assert (node.shape, node.dtype, node.trainable) == ((2, 4, 3, 3), "float32", "trainable")
    assert node.seconds > 0
    assert edge(graph, "input_1_0", "features").positions == ()
    assert edge(graph, "features", "flatten_1_5").positions == ("args[0]",)
    assert "features" not in {box.address for box in graph.modules.values()}


@pytest.mark.parametrize(
    "which", [{"depth": 1}, {"class_name": ["Linear", "ReLU"]}, {"address": "*"}, {"where": lambda box: "." not in box.address}]
)
def test_modules_are_picked_by_depth_class_address_or_function(which):
    assert labels(collapse(graph_of(Mlp(), x), **which)) == ["input_1_0", "fc1", "act", "fc2", "tanh_1_4", "output_1_5"]


def test_collapsing_needs_to_know_which():
    graph = graph_of(Mlp(), x)
    with pytest.raises(InvalidArgument, match="which modules"):
        collapse(graph)
    with pytest.raises(InvalidArgument, match="depth starts at 1"):
        collapse(graph, depth=0)
    with pytest.raises(LayerNotFound, match="'fc1'"):
        collapse(graph, address="fc3")
    with pytest.raises(LayerNotFound, match="'Linear'"):
        collapse(graph, class_name="Lineal")


def test_collapsing_twice_is_collapsing_the_outer():
    graph = graph_of(Convolutional().eval(), torch.rand(2, 3, 8, 8))
    assert collapse(collapse(graph, depth=2), depth=1).to_dict() == collapse(graph, depth=1).to_dict()
    assert collapse(collapse(graph, depth=1), depth=1) == collapse(graph, depth=1)
    assert collapse(collapse(graph, depth=1), depth=2) == collapse(graph, depth=1)


def test_a_module_that_raised_says_so_when_collapsed():
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)))
    with pytest.raises(RuntimeError), torcheer.recording(model) as history:
        model(x)
    assert "RuntimeError" in collapse(build_graph(history), address="0").nodes[-1].error


def test_passes_are_written_short():
    assert format_passes({1, 2, 3}) == "1-3"
    assert format_passes([4, 2]) == "2,4"
    assert format_passes([1, 2, 4, 6, 7]) == "1-2,4,6-7"
    assert format_passes([]) == ""


def test_passes_of_a_layer_roll_into_one_node():
    graph = roll(graph_of(Recurrent(), x))
    assert [(n.key, n.passes) for n in graph.nodes] == [
        ("input_1_0", (1,)),
        ("zeros_1_1", (1,)),
        ("linear_1_2", (1, 2, 3, 4)),
        ("linear_2_3", (1, 2, 3, 4)),
        ("add_1_4", (1, 2, 3, 4)),
        ("tanh_1_5", (1, 2, 3, 4)),
        ("linear_3_6", (1,)),
        ("output_1_7", (1,)),
    ]
    assert graph.node("linear_1_2").num_operations == 4
    assert graph.node("linear_1_2").bytes == 4 * 48


def test_rolled_edges_say_which_passes_travel_them():
    graph = roll(graph_of(Recurrent(), x))
    notes = {(e.source, e.target): (e.pass_note, e.is_feedback) for e in graph.edges}
    assert notes["input_1_0", "linear_1_2"] == ("1-4", False)
    assert notes["zeros_1_1", "linear_2_3"] == ("1", False)
    assert notes["tanh_1_5", "linear_2_3"] == ("2-4", True)
    assert notes["linear_1_2", "add_1_4"] == ("", False)
    assert notes["tanh_1_5", "linear_3_6"] == ("4", False)
    assert edge(graph, "tanh_1_5", "linear_2_3").passes == ((1, 2), (2, 3), (3, 4))
    assert edge(graph, "linear_1_2", "add_1_4").positions == ("args[0]",)


def test_an_edge_between_other_passes_names_both():
    rolled = roll(by_hand("a:1 b:1", "a:1 b:2", "a:2 b:3"))
    assert rolled.edges[0].pass_note == "1-2→1-3"


def test_module_boxes_roll_as_well():
    graph = roll(graph_of(Recurrent(), x))
    assert [(b.key, b.calls, b.parent) for b in graph.modules.values()] == [
        ("cell", (1, 2, 3, 4), None),
        ("cell.new", (1, 2, 3, 4), "cell"),
        ("cell.old", (1, 2, 3, 4), "cell"),
        ("head", (1,), None),
    ]
    assert graph.node("linear_1_2").modules == ("cell", "cell.new")


def test_rolling_after_collapsing_makes_one_node_per_module():
    graph = roll(collapse(graph_of(Recurrent(), x), depth=1))
    assert [(n.key, n.passes) for n in graph.nodes] == [
        ("input_1_0", (1,)),
        ("zeros_1_1", (1,)),
        ("@cell", (1, 2, 3, 4)),
        ("@head", (1,)),
        ("output_1_7", (1,)),
    ]
    loop = edge(graph, "@cell", "@cell")
    assert (loop.pass_note, loop.is_feedback) == ("2-4", True)


def test_rolling_and_other_views_come_in_any_order():
    graph = graph_of(Recurrent(), x)
    for view in (
        lambda g: collapse(g, depth=1),
        prune_internal,
        drop_input_nodes,
        keep_module_outputs,
        merge_elementwise,
        fold_repeats,
        add_buffer_nodes,
        lambda g: ancestors(g, "tanh_1_5"),
        roll,
    ):
        assert view(roll(graph)) == roll(view(graph))
    assert unroll(roll(graph)) == graph == unroll(graph)


class Caller(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, t):
        return self.inner(t) + 1


def test_a_module_called_from_two_others_rolls_into_a_box_of_its_own():
    shared = nn.Linear(4, 4)
    graph = roll(graph_of(nn.Sequential(Caller(shared), Caller(shared)), x))
    (linear,) = [n for n in graph.nodes if n.type == "linear"]
    assert linear.modules == ("0.inner",)
    assert graph.modules["0.inner"].calls == (1, 2)


def recursive(self, t, depth=3):
    t = self.fc(t)
    return self(t, depth - 1) if depth else t


def test_a_module_that_calls_itself_rolls():
    graph = roll(graph_of(nn.Sequential(made_of(recursive, fc=nn.Linear(4, 4))), x))
    assert [(n.label, n.modules) for n in graph.nodes if n.type == "linear"] == [("linear_1_1", ("0", "0.fc"))]


def test_a_tensor_that_passed_through_an_identity_gets_a_node():
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.Identity(), nn.ReLU())
    graph = graph_of(model, x)
    assert labels(graph) == ["input_1_0", "linear_1_1", "relu_1_2", "output_1_3"]
    expanded = expand_identities(graph)
    assert pairs(expanded) == [
        ("input_1_0", "linear_1_1"),
        ("linear_1_1", "identity 1"),
        ("identity 1", "identity 2"),
        ("identity 2", "relu_1_2"),
        ("relu_1_2", "output_1_3"),
    ]
    assert expanded.node("identity 1").modules == ("1:1",)
    assert expand_identities(expanded) == expanded


def test_only_the_innermost_identity_is_drawn():
    expanded = expand_identities(graph_of(nn.Sequential(nn.Sequential(nn.Identity()), nn.ReLU()), x))
    assert labels(expanded) == ["input_1_0", "identity 0.0", "relu_1_1", "output_1_2"]
    assert expanded.node("identity 0.0").modules == ("0:1", "0.0:1")


def test_what_used_a_tensor_before_an_identity_keeps_it():
    def forward(self, t):
        before = t.sin()
        return before + self.same(t).cos()

    expanded = expand_identities(graph_of(made_of(forward, same=nn.Identity()), x))
    assert ("input_1_0", "sin_1_1") in pairs(expanded)
    assert ("identity same", "cos_1_2") in pairs(expanded)


def test_identities_inside_a_collapsed_module_are_part_of_it():
    graph = graph_of(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Identity()), nn.ReLU()), x)
    assert labels(expand_identities(collapse(graph, depth=1))) == ["input_1_0", "0", "1", "output_1_3"]
    assert labels(collapse(expand_identities(graph), depth=1)) == ["input_1_0", "0", "1", "output_1_3"]


def test_runs_of_elementwise_operations_merge():
    graph = merge_elementwise(graph_of(lambda t: ((t + 1).relu() * 2) @ torch.ones(4, 2), x))
    assert [n.title for n in graph.nodes] == ["t", "add → relu → mul", "ones", "matmul", "output"]
    chain = graph.nodes[1]
    assert (chain.kind, chain.num_operations, chain.shape, chain.bytes) == ("chain", 3, (3, 4), 3 * 48)
    assert chain.key == "add_1_1:1…mul_1_3:1"


def test_a_run_ends_where_something_else_uses_it():
    graph = merge_elementwise(graph_of(lambda t: (t + 1).relu() + (t + 1).sin().sum() + t.cos(), x))
    assert "cos" in [n.title for n in graph.nodes]
    graph = merge_elementwise(graph_of(lambda t: (y := t + 1).relu() * y.sum(), x))
    assert [n.title for n in graph.nodes] == ["t", "add", "sum", "relu → mul", "output"]


def test_a_run_stays_in_its_module():
    graph = merge_elementwise(graph_of(nn.Sequential(nn.ReLU(), nn.Tanh()), x))
    assert [n.title for n in graph.nodes] == ["input", "relu", "tanh", "output"]


def test_a_run_stands_where_its_last_operation_did():
    graph = merge_elementwise(graph_of(lambda t: (t + 1) * t.sum(), x))
    assert [n.title for n in graph.nodes] == ["t", "sum", "add → mul", "output"]
    assert not any(e.is_feedback for e in graph.edges)


def test_merged_runs_roll():
    def model(t):
        for _ in range(3):
            t = (t.sin() + 1) @ torch.eye(4)
        return t

    rolled = roll(merge_elementwise(graph_of(model, x)))
    assert [(n.title, n.passes) for n in rolled.nodes][1] == ("sin → add", (1, 2, 3))


def test_equal_blocks_fold_and_say_that_parameters_are_their_own():
    graph = fold_repeats(graph_of(nn.Sequential(*[Block() for _ in range(5)]), x))
    box = graph.modules["0:1"]
    assert (box.repeats, box.sharing, box.is_parallel, len(box.folded)) == (5, "own", False, 4)
    assert labels(graph) == ["input_1_0", "linear_1_1", "relu_1_2", "mul_1_3", "add_1_4", "output_1_21"]
    assert graph.node("linear_1_1").repeats == 5
    assert graph.node("linear_1_1").num_operations == 5
    assert graph.node("linear_1_1").num_params == 5 * 20
    assert ("add_1_4", "output_1_21") in pairs(graph)
    assert edge(graph, "add_1_4", "linear_1_1").is_feedback
    assert not edge(graph, "relu_1_2", "mul_1_3").is_feedback


def test_calls_of_one_block_fold_and_say_that_parameters_are_shared():
    def forward(self, t):
        for _ in range(3):
            t = self.block(t)
        return t

    box = fold_repeats(graph_of(made_of(forward, block=Block()), x)).modules["block:1"]
    assert (box.repeats, box.sharing, box.calls) == (3, "shared", (1, 2, 3))


def test_blocks_that_share_some_parameters_are_mixed():
    blocks = [Block() for _ in range(3)]
    for block in blocks:
        block.fc.bias = blocks[0].fc.bias
    assert fold_repeats(graph_of(nn.Sequential(*blocks), x)).modules["0:1"].sharing == "mixed"


@pytest.mark.parametrize(
    "odd",
    [
        lambda: Block(scale=0.5),
        lambda: nn.Linear(4, 4),
        lambda: Block().requires_grad_(False),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
    ],
    ids=["constant", "class", "frozen", "structure"],
)
def test_blocks_that_differ_do_not_fold(odd):
    graph = fold_repeats(graph_of(nn.Sequential(Block(), Block(), odd(), Block(), Block(), Block()), x))
    assert {b.key: b.repeats for b in graph.modules.values() if b.depth == 1} == {"0:1": 2, "2:1": 1, "3:1": 3}


def test_blocks_on_other_shapes_do_not_fold():
    graph = graph_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 6), nn.Linear(6, 6)), x)
    assert fold_repeats(graph) == graph


def test_a_block_whose_inside_is_used_elsewhere_does_not_fold():
    def forward(self, t):
        for number, block in enumerate(self.blocks):
            if number == 2:
                tap = block[0](t)
                t = block[1](tap)
            else:
                t = block(t)
        return t, tap

    graph = fold_repeats(
        graph_of(made_of(forward, blocks=nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(4))), x)
    )
    assert max(b.repeats for b in graph.modules.values()) == 2


def test_blocks_fed_differently_do_not_fold():
    def skips(self, t):
        a = self.adds[0](t, t.sin())
        b = self.adds[1](a, t)
        return self.adds[2](b, a)

    graph = graph_of(made_of(skips, adds=nn.ModuleList(made_of(lambda self, a, b: a * 2 + b) for _ in range(3))), x)
    assert fold_repeats(graph) == graph


def test_parallel_blocks_fold_and_say_so():
    graph = fold_repeats(
        graph_of(
            made_of(
                lambda self, t: torch.cat([head(t) for head in self.heads], -1),
                heads=nn.ModuleList(nn.Linear(4, 2) for _ in range(3)),
            ),
            x,
        )
    )
    box = graph.modules["heads.0:1"]
    assert (box.repeats, box.is_parallel) == (3, True)
    assert edge(graph, "linear_1_1", "cat_1_4").positions == ("args[0][0]", "args[0][1]", "args[0][2]")
    assert not any(e.is_feedback for e in graph.edges)


def test_two_edges_between_collapsed_modules_are_one_with_both_tensors():
    graph = collapse(
        graph_of(made_of(lambda self, t: torch.cat(self.split(t)), split=made_of(lambda self, t: (t + 1, t[:2] * 2))), x),
        depth=1,
    )
    (found,) = (one for one in graph.edges if one.target.startswith("cat_1"))
    assert found.positions == ("args[0][0]", "args[0][1]")
    assert len(found.tensors) == 2
    assert found.bytes == 4 * (3 * 4 + 2 * 4)
    assert found.shape is None


def test_folding_goes_inside_folded_blocks():
    outer = [nn.Sequential(Block(), Block(), nn.Tanh()) for _ in range(3)]
    graph = fold_repeats(graph_of(nn.Sequential(*outer), x))
    assert {b.key: b.repeats for b in graph.modules.values() if b.repeats > 1} == {"0:1": 3, "0.0:1": 2}
    assert graph.node("linear_1_1").repeats == 6
    assert graph.node("tanh_1_9").repeats == 3
    assert fold_repeats(graph) == graph


def test_collapsed_blocks_fold_when_their_insides_are_equal():
    model = nn.Sequential(Block(), Block(), Block(scale=0.5), Block(scale=0.5))
    graph = fold_repeats(collapse(graph_of(model, x), depth=1))
    assert [(n.label, n.repeats, n.sharing) for n in graph.nodes if n.kind == "module"] == [("0", 2, "own"), ("2", 2, "own")]


def test_folded_blocks_collapse():
    graph = collapse(fold_repeats(graph_of(nn.Sequential(*[Block() for _ in range(5)]), x)), depth=1)
    node = graph.node("0")
    assert (node.repeats, node.sharing, node.num_operations, node.num_params) == (5, "own", 20, 100)


def gpt2(layers):
    config = transformers.GPT2Config(n_layer=layers, n_embd=32, n_head=2, vocab_size=60, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2Model(config).eval()


def test_the_blocks_of_gpt2_fold():
    history = torcheer.log_forward_pass(gpt2(12), (), {"input_ids": torch.arange(12).reshape(2, 6), "use_cache": False})
    graph = fold_repeats(build_graph(history))
    box = graph.modules["h.0:1"]
    assert (box.repeats, box.sharing) == (12, "own")
    assert [b.address for b in graph.modules.values() if b.depth == 1] == ["wte", "wpe", "drop", "h.0", "ln_f"]
    small = collapse(graph, depth=1)
    assert small.node("h.0").repeats == 12


def test_views_of_resnet18():
    history = log(torchvision.models.resnet18(num_classes=10).eval(), torch.rand(1, 3, 64, 64))
    graph = build_graph(history)
    stages = collapse(graph, depth=1)
    assert [n.label for n in stages.nodes if n.type == "Sequential"] == ["layer1", "layer2", "layer3", "layer4"]
    assert sum(n.num_params for n in stages.nodes) == sum(p.numel for p in history.params.values())
    assert fold_repeats(graph).modules["layer1.0:1"].repeats == 2
    assert all(n.exits or n.kind in ("input", "output") for n in keep_module_outputs(graph).nodes)


def test_ancestors_and_descendants():
    graph = graph_of(lambda t: (t.sin() + 1) * t.cos(), x)
    assert labels(ancestors(graph, "add_1_2")) == ["input_1_0", "sin_1_1", "add_1_2"]
    assert labels(descendants(graph, "cos_1_3:1")) == ["cos_1_3", "mul_1_4", "output_1_5"]


def test_between_two_nodes():
    graph = graph_of(lambda t: (t.sin() + 1) * t.cos(), x)
    assert labels(subgraph_between(graph, "sin_1_1", "mul_1_4")) == ["sin_1_1", "add_1_2", "mul_1_4"]
    with pytest.raises(InvalidArgument, match="other direction"):
        subgraph_between(graph, "mul_1_4", "sin_1_1")
    with pytest.raises(InvalidArgument, match="no way"):
        subgraph_between(graph, "sin_1_1", "cos_1_3")
    with pytest.raises(LayerNotFound, match="sin_1_1"):
        subgraph_between(graph, "sin_1_2", "mul_1_4")


def test_the_shortest_way_to_an_output():
    graph = graph_of(lambda t: (t.sin() + 1).relu() * t, x)
    assert labels(path_to_output(graph, "input_1_0")) == ["input_1_0", "mul_1_4", "output_1_5"]
    assert path_to_output(drop_output_nodes(graph), "relu_1_3").nodes[-1].label == "mul_1_4"


def test_no_way_to_an_output():
    def model(t):
        t.sin()
        return t + 1

    with pytest.raises(InvalidArgument, match="no way leads from 'sin_1_1' to an output"):
        path_to_output(graph_of(model, x), "sin_1_1")


def test_a_label_means_all_passes_and_a_key_means_one():
    graph = graph_of(Recurrent(), x)
    assert max(n.passes for n in ancestors(graph, "tanh_1_5:2").nodes) == (2,)
    assert max(n.passes for n in ancestors(graph, "tanh_1_5").nodes) == (4,)
    assert ancestors(roll(graph), "tanh_1_5:2").node("linear_1_2").passes == (1, 2)
    assert "linear_3_6" in descendants(graph, "cell:3")


def test_an_identity_beside_buffers_stands_after_what_it_was_given():
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Identity(), nn.BatchNorm1d(4)).eval()
    graph = expand_identities(add_buffer_nodes(graph_of(model, x)))
    assert [n.type for n in graph.nodes if n.kind != "buffer"] == ["input", "batchnorm", "identity", "batchnorm", "output"]
    assert not any(e.is_feedback for e in graph.edges)


def test_blocks_fed_by_different_blocks_that_were_folded_do_not_fold():
    def forward(self, t):
        one = self.fc[0](t)
        two = self.fc[1](one)
        return self.fc[2](one) + self.fc[3](two)

    folded = fold_repeats(graph_of(made_of(forward, fc=nn.ModuleList(nn.Linear(4, 4) for _ in range(4))), x))
    assert [b.repeats for b in folded.modules.values()] == [2, 1, 1]
    assert fold_repeats(folded) == folded


NAMES = ("loss", "aux", "kl", "norm", "main", "low", "high", "left", "right")


def _detect(x: Tensor) -> list[dict[str, Tensor]]:
    return [{"boxes": x.reshape(5, 1), "labels": x > 0, "scores": x.exp()}]


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        pytest.param(lambda x: {"y": x, "cache": [(x + i, x * i) for i in range(4)]}, [("cache", 8)], id="cache"),
        pytest.param(
            lambda x: {"cache": [(x + i, x.sum() * i) for i in range(4)]}, [("cache", 8)], id="keys and values of two shapes"
        ),
        pytest.param(
            lambda x: {"cache": {f"layer_{i}": {"k": x + i} for i in range(3)}}, [("cache", 3)], id="numbers in names"
        ),
        pytest.param(
            lambda x: {"a": {"s": [x] * 3, "t": [x] * 4}}, [("a['s']", 3), ("a['t']", 4)], id="two lists of one value"
        ),
        pytest.param(lambda x: (x, [x + i for i in range(3)]), [("output[1]", 3)], id="second of two"),
        pytest.param(lambda x: [x + i for i in range(9)], [("output", 9)], id="nine in a list"),
        pytest.param(lambda x: dict.fromkeys(NAMES, x + 1), [("output", 9)], id="nine names"),
        pytest.param(lambda x: [x + i for i in range(8)], [], id="eight in a list"),
        pytest.param(lambda x: dict.fromkeys(NAMES[:4], x + 1), [], id="four names"),
        pytest.param(lambda x: (x, [x + 1, x + 2]), [], id="two in a list"),
        pytest.param(lambda x: {"pyramid": [x[i:] for i in range(4)]}, [], id="shapes differ"),
        pytest.param(_detect, [], id="one detection"),
        pytest.param(lambda x: [{"a": x + 1, "b": x + 2, "c": x + 3}], [], id="three names of one shape in a list of one"),
    ],
)
def test_outputs_that_repeat_in_one_value_are_one(returned: Callable[[Tensor], Any], expected: list[tuple[str, int]]) -> None:
    graph = torcheer.log_forward_pass(returned, torch.rand(5)).graph
    assert [(group.name, len(group.nodes)) for group in equal_ports(graph.nodes)] == expected
    merged = [node.num_operations for node in merge_ports(graph).nodes if node.num_operations > 1]
    assert merged == [count for _, count in expected]


def test_inputs_that_repeat_in_one_value_are_one_and_arguments_are_not() -> None:
    cache = [torch.rand(2) for _ in range(4)]
    given = torcheer.log_forward_pass(lambda x, cache: x + sum(cache), (torch.ones(2), cache)).graph
    assert [(group.name, len(group.nodes)) for group in equal_ports(given.nodes)] == [("args[1]", 4)]
    four = torcheer.log_forward_pass(lambda a, b, c, d: torch.cat([a, b, c, d]), tuple(torch.rand(2) for _ in range(4))).graph
    assert equal_ports(four.nodes) == []


def test_pictures_and_the_page_draw_the_same_as_one() -> None:
    def step(x: Tensor, cache: list[list[Tensor]]) -> dict[str, Any]:
        return {"y": x, "cache": [(keys + x, values.sum()) for keys, values in cache], "few": [x + 1, x + 2]}

    history = torcheer.log_forward_pass(step, (torch.ones(2), [[torch.ones(2), torch.ones(2)] for _ in range(3)]))
    on_page = [
        [history.graph.all_nodes[number].key for number in port["nodes"]] for port in json.loads(history.to_json())["ports"]
    ]
    drawn = [f"{keys[0]}…{keys[-1]}" for keys in on_page]
    assert len(drawn) == 2
    assert drawn == [node.key for node in merge_ports(history.graph).nodes if node.num_operations > 1]
