"""Runs a model and draws its graph."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from torch.nn import Module

from torcheer import InvalidArgument

from .execution import track_computational_graph_execution
from .matplotlib_picture import draw_with_matplotlib
from .plotly_picture import draw_with_plotly
from .scene import make_scene

_RENDERERS = {"plotly": draw_with_plotly, "matplotlib": draw_with_matplotlib}


def visualize_computational_graph(
    model: Module, input_tensor: Any, renderer: str = "plotly", *, include_loss: bool = False
) -> Any:
    """Run a model once, forward and backward, and draw its graph.

    >>> import torch
    >>> figure = visualize_computational_graph(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()), torch.ones(1, 2))
    >>> figure.layout.title.text.partition("<")[0]
    'Computational graph of Sequential'

    Args:
        model, input_tensor, include_loss: as in `track_computational_graph_execution`.
        renderer: `"plotly"` returns an interactive `plotly.graph_objects.Figure`; `"matplotlib"` a
            `matplotlib.figure.Figure`, which also becomes the current figure of `pyplot`.

    A graph that is too large is drawn with its modules collapsed, and the title says so.
    """
    if renderer not in _RENDERERS:
        raise InvalidArgument(f"renderer is one of {', '.join(map(repr, _RENDERERS))}; got {renderer!r}.")
    if find_spec(renderer) is None:  # raise before the model runs
        raise ImportError(f"{renderer.capitalize()} not available: renderer={renderer!r} needs it. Run: pip install {renderer}")
    tracker = track_computational_graph_execution(model, input_tensor, include_loss=include_loss)
    return _RENDERERS[renderer](make_scene(tracker))
