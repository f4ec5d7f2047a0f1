"""Real notebooks: every cell is run by a kernel, and what it shows is looked at."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import matplotlib
import nbformat
import pytest
from nbclient import NotebookClient

_CELLS = {
    "history": """
import matplotlib.pyplot as plt
import torch, torcheer as tl, torch_vis
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
x = torch.rand(2, 3, 8, 8)
history = tl.log_forward_pass(model, x)
history
""",
    "layer": "history['relu_1']",
    "operation": "history['relu_1'][1]",
    "module": "history.modules['0']",
    "modules": "history.modules",
    "summary": "history.summary()",
    "picture": "history.draw()",
    "page": "history.show()",
    "logged": "tl.log_forward_pass(model, x, vis_opt='rolled')",
    "matplotlib": "torch_vis.visualize_computational_graph(model, x, renderer='matplotlib')",
    "training": """
xray = tl.Xray(model, x, folder='run')
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    model(x).sum().backward()
    optimizer.step()
    xray.take_graphs(step)
figure = xray.show('0', 'layer')
figure
""",
    "again": "figure",
    "printed": "print(history)",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[nbformat.NotebookNode]]:
    """What each cell shows."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in _CELLS.values()])
    with pytest.MonkeyPatch.context() as patch:
        source = Path(__file__).parents[2] / "src"
        patch.setenv("PYTHONPATH", os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")]))
        patch.setenv("PYTHONWARNINGS", "ignore")
        NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return dict(zip(_CELLS, [cell.outputs for cell in notebook.cells], strict=True))


def _shown(outputs: list[nbformat.NotebookNode]) -> dict[str, str]:
    """What the only output of a cell is, by kind."""
    assert len(outputs) == 1, [output.get("data", output) for output in outputs]
    return dict(outputs[0]["data"])


@pytest.mark.parametrize("name", ["history", "layer", "operation", "module", "modules", "summary"])
def test_results_are_shown_as_static_html(outputs, name):
    html = _shown(outputs[name])["text/html"]
    assert "<table>" in html
    assert "<script" not in html
    assert "\x1b" not in _shown(outputs[name])["text/plain"]


def test_a_history_is_shown_with_its_modules_and_a_picture(outputs):
    html = _shown(outputs["history"])["text/html"]
    assert "Log of Sequential forward pass" in html
    assert "conv2d_1_1" in html
    assert "FLOPs" in html
    picture = base64.b64decode(html.partition("data:image/png;base64,")[2].partition('"')[0])
    assert picture.startswith(b"\x89PNG")
    assert len(html) < 200_000  # a notebook is saved with what it shows


def test_a_picture_is_shown_once(outputs):
    assert "<svg" in _shown(outputs["picture"])["image/svg+xml"]
    assert "<iframe" in _shown(outputs["page"])["text/html"]
    picture, history = outputs["logged"]
    assert "image/svg+xml" in picture["data"]
    assert "text/html" in history["data"]


@pytest.mark.parametrize("name", ["matplotlib", "training", "again"])
def test_a_figure_is_shown_once_and_not_as_text(outputs, name):
    if name == "matplotlib" and matplotlib.__version_info__ < (3, 9):
        return  # IPython 9 shows no figure of it
    shown = _shown(outputs[name])
    assert base64.b64decode(shown["image/png"]).startswith(b"\x89PNG")


def test_printing_gives_plain_text(outputs):
    (printed,) = outputs["printed"]
    assert printed["text"].startswith("Log of Sequential forward pass:")
    assert "\x1b" not in printed["text"]
