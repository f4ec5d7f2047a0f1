"""Promises every view keeps, on random programs: consistent, ordered, deterministic, and no connection lost or made up."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import torcheer
from programs import COLUMNS, ROWS, Program, programs
from torcheer.graph import (
    add_buffer_nodes,
    add_input_nodes,
    add_output_nodes,
    build_graph,
    collapse,
    drop_buffer_nodes,
    drop_input_nodes,
    drop_output_nodes,
    expand_identities,
    fold_repeats,
    keep_module_outputs,
    merge_elementwise,
    prune_dead_ends,
    prune_internal,
    roll,
    show_internal,
    unroll,
)

VIEWS = {
    "prune dead ends": prune_dead_ends,
    "prune internal": prune_internal,
    "drop inputs": drop_input_nodes,
    "drop outputs": drop_output_nodes,
    "add buffers": add_buffer_nodes,
    "module outputs": keep_module_outputs,
    "collapse 1": lambda g: collapse(g, depth=1),
    "collapse 2": lambda g: collapse(g, depth=2),
    "collapse class": lambda g: collapse(g, where=lambda box: box.class_name == "Linear"),
    "roll": roll,
    "identities": expand_identities,
    "chains": merge_elementwise,
    "fold": fold_repeats,
}
several_views = st.lists(st.sampled_from(sorted(VIEWS)), min_size=1, max_size=4)
common = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def graph_of(steps):
    torch.manual_seed(3)
    return build_graph(torcheer.log_forward_pass(Program(steps).eval(), torch.randn(ROWS, COLUMNS)))


def seen(graph, names):
    for name in names:
        graph = VIEWS[name](graph)
    return graph


def reached(graph):
    """By visible node: the visible nodes it leads to, in any number of steps."""
    after = {node.key: set() for node in graph.nodes}
    for edge in graph.edges:
        after[edge.source].add(edge.target)
    found = {}
    for key in after:
        waiting, known = list(after[key]), set(after[key])
        while waiting:
            new = after[waiting.pop()] - known
            known |= new
            waiting += new
        found[key] = known
    return found


@common
@given(programs, several_views)
def test_views_are_consistent(steps, names):
    graph = seen(graph_of(steps), names)
    keys = [node.key for node in graph.nodes]
    assert len(set(keys)) == len(keys)
    assert {end for edge in graph.edges for end in (edge.source, edge.target)} <= set(keys)
    assert len({(edge.source, edge.target) for edge in graph.edges}) == len(graph.edges)
    for node in graph.nodes:
        assert all(key in graph.modules for key in node.modules)
        assert node.passes == tuple(sorted(set(node.passes)))
    for box in graph.modules.values():
        assert box.parent is None or box.parent in graph.modules
        assert graph.modules[box.parent].path == box.path[:-1] if box.parent else len(box.path) == 1


@common
@given(programs, several_views)
def test_without_feedback_the_order_is_topological(steps, names):
    graph = seen(graph_of(steps), names)
    order = {node.key: position for position, node in enumerate(graph.nodes)}
    for edge in graph.edges:
        assert edge.is_feedback or order[edge.source] < order[edge.target]
    if not {"roll", "fold", "add buffers"} & set(names):
        assert not any(edge.is_feedback for edge in graph.edges)
    targets = [order[edge.target] for edge in graph.edges]
    assert targets == sorted(targets)


@common
@given(programs, st.lists(st.sampled_from(sorted(set(VIEWS) - {"roll"})), min_size=1, max_size=3))
def test_connections_between_nodes_that_stay_are_kept(steps, names):
    graph = graph_of(steps)
    view = seen(graph, names)
    before, after = reached(graph), reached(view)
    stay = before.keys() & after.keys()
    for key in stay:
        assert before[key] & stay <= after[key] & stay
        if not {"fold", "add buffers"} & set(names):
            merged = {node.key for node in view.nodes if node.kind in ("module", "chain")}
            assert after[key] & stay <= before[key] or merged, "a connection was made up"


@common
@given(programs)
def test_removing_nodes_makes_up_no_connection(steps):
    graph = graph_of(steps)
    before = reached(graph)
    for view in (prune_dead_ends(graph), prune_internal(graph), keep_module_outputs(graph), expand_identities(graph)):
        after = reached(view)
        for key in before.keys() & after.keys():
            assert after[key] & before.keys() == before[key] & after.keys()


@common
@given(programs)
def test_rolling_keeps_which_layers_are_connected(steps):
    graph = graph_of(steps)
    rolled = roll(graph)
    layers = {(graph.by_key[e.source].label, graph.by_key[e.target].label) for e in graph.edges}
    assert {(e.source, e.target) for e in rolled.edges} == layers
    assert [n.key for n in rolled.nodes] == list(dict.fromkeys(n.label for n in graph.nodes))
    assert sum(len(e.passes) for e in rolled.edges) == len(graph.edges)
    assert sum(n.bytes for n in rolled.nodes) == sum(n.bytes for n in graph.nodes)


@common
@given(programs, several_views)
def test_every_operation_stands_for_itself_once(steps, names):
    graph = unroll(seen(graph_of(steps), names))
    numbers = [number for node in graph.all_nodes for number in node.operations]
    assert len(numbers) == len(set(numbers))


@common
@given(programs, st.sampled_from(sorted(VIEWS)))
def test_a_view_of_itself_changes_nothing(steps, name):
    graph = VIEWS[name](graph_of(steps))
    assert VIEWS[name](graph) == graph


@common
@given(programs, st.sampled_from(sorted(VIEWS)))
def test_rolling_first_or_last_is_the_same(steps, name):
    graph = graph_of(steps)
    assert VIEWS[name](roll(graph)) == roll(VIEWS[name](graph))


@common
@given(programs)
def test_collapsing_deep_then_shallow_is_collapsing_shallow(steps):
    graph = graph_of(steps)
    assert collapse(collapse(graph, depth=2), depth=1) == collapse(graph, depth=1)


@common
@given(programs, several_views)
def test_what_was_hidden_comes_back(steps, names):
    names = [name for name in names if not name.startswith(("drop", "prune internal"))]
    graph = seen(graph_of(steps), names)
    hidden = drop_output_nodes(drop_input_nodes(prune_internal(graph)))
    assert show_internal(add_input_nodes(add_output_nodes(hidden))) == graph
    if "add buffers" not in names:
        assert drop_buffer_nodes(graph) == graph


@common
@given(programs, several_views)
def test_views_are_deterministic_and_survive_json(steps, names):
    graph = graph_of(steps)
    plain = seen(graph, names).to_dict()
    assert plain == seen(graph, names).to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


@pytest.mark.parametrize("name", sorted(VIEWS))
def test_views_of_nothing_are_nothing(name):
    with torcheer.recording() as history:
        pass
    if not name.startswith("collapse"):
        assert len(VIEWS[name](build_graph(history))) == 0
