"""Removes dead ends; hides internal tensors, inputs and outputs, and shows them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..model import Graph, Node
from .regrouping import restrict
from .rolling import pass_by_pass


@pass_by_pass
def prune_dead_ends(graph: Graph) -> Graph:
    """Remove nodes that lead to no output (in a failed pass: nor to the operation that raised). Inputs stay.

    The graph of a pass that reached neither is returned as it is.
    """
    if not any(node.to_output for node in graph.all_nodes):
        return graph
    return restrict(graph, {node.key for node in graph.all_nodes if node.to_output or node.kind == "input"})


@pass_by_pass
def prune_internal(graph: Graph) -> Graph:
    """Hide what has no input among its ancestors: constants, random numbers, tensors the model closed over."""
    return _hide(graph, lambda node: node.is_internal, True)


@pass_by_pass
def show_internal(graph: Graph) -> Graph:
    """Show again what `prune_internal` hid."""
    return _hide(graph, lambda node: node.is_internal, False)


@pass_by_pass
def drop_input_nodes(graph: Graph) -> Graph:
    """Hide the inputs."""
    return _hide(graph, lambda node: node.kind == "input", True)


@pass_by_pass
def add_input_nodes(graph: Graph) -> Graph:
    """Show the inputs again."""
    return _hide(graph, lambda node: node.kind == "input", False)


@pass_by_pass
def drop_output_nodes(graph: Graph) -> Graph:
    """Hide the outputs."""
    return _hide(graph, lambda node: node.kind == "output", True)


@pass_by_pass
def add_output_nodes(graph: Graph) -> Graph:
    """Show the outputs again."""
    return _hide(graph, lambda node: node.kind == "output", False)


def _hide(graph: Graph, which: Callable[[Node], bool], is_hidden: bool) -> Graph:
    nodes = [
        replace(node, is_hidden=is_hidden) if node.is_hidden != is_hidden and which(node) else node for node in graph.all_nodes
    ]
    return replace(graph, all_nodes=tuple(nodes))
