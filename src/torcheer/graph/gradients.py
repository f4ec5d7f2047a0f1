"""Gradients as edges: where a backward pass went, against the data."""

from __future__ import annotations

from dataclasses import replace

from .model import Graph


def add_gradient_edges(graph: Graph) -> Graph:
    """Add a reversed edge for each edge between two nodes that a backward pass reached.

    Apply it after all other views: they would treat gradients like data.

    >>> import torch, torcheer
    >>> x = torch.ones(2, requires_grad=True)
    >>> history = torcheer.log_forward_pass(torch.nn.ReLU(), x, save_gradients=True)
    >>> passed = history.log_backward(history["output"].tensor_contents.sum())
    >>> [(edge.source, edge.target) for edge in add_gradient_edges(history.graph).edges if edge.is_gradient]
    [('relu_1_1:1', 'input_1_0:1')]
    """
    nodes = graph.by_key
    gradients = [
        replace(edge, source=edge.target, target=edge.source, positions=(), pass_note="", is_feedback=True, is_gradient=True)
        for edge in graph.all_edges
        if not (edge.is_gradient or edge.is_feedback) and nodes[edge.source].has_gradient and nodes[edge.target].has_gradient
    ]
    return replace(graph, all_edges=(*graph.all_edges, *gradients))
