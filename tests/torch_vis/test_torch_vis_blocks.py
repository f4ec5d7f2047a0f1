"""torch_vis: the code that its first documentation shows runs as written."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Any

import pytest
import torch
from torch import nn

import torch_vis
from torch_vis import GraphEdge, GraphNode, OperationType

plt = pytest.importorskip("matplotlib.pyplot")
go = pytest.importorskip("plotly.graph_objects")


@pytest.fixture(autouse=True)
def nothing_opens(monkeypatch, tmp_path):
    plt.close("all")
    plt.switch_backend("Agg")
    shown: list[Any] = []
    monkeypatch.setattr(go.Figure, "show", lambda self, *a, **k: shown.append(self))
    monkeypatch.setattr(plt, "show", lambda *a, **k: shown.append(plt.gcf()))
    monkeypatch.chdir(tmp_path)
    yield shown
    plt.close("all")


QUICK_START = """
import torch
import torch.nn as nn
from torch_vis import track_computational_graph_execution, visualize_computational_graph

# Create a simple model
model = nn.Sequential(
    nn.Linear(10, 20),
    nn.ReLU(),
    nn.Linear(20, 1)
)

# Create input tensor
input_tensor = torch.randn(1, 10, requires_grad=True)

# Track the computational graph
tracker = track_computational_graph_execution(model, input_tensor)

# Get summary
summary = tracker.get_graph_summary()
print(f"Total operations: {summary['total_nodes']}")
print(f"Execution time: {summary['execution_time']:.4f}s")

# Visualize the graph
fig = visualize_computational_graph(model, input_tensor, renderer='plotly')
fig.show()
"""

TRACK = """
tracker = track_computational_graph_execution(model, input_tensor)

# Get summary
summary = tracker.get_graph_summary()
print(f"Operations: {summary['total_nodes']}")

# Get detailed data
graph_data = tracker.get_graph_data()
print(f"Nodes: {len(graph_data['nodes'])}")
print(f"Edges: {len(graph_data['edges'])}")
"""

ANALYZE = """
analysis = analyze_computational_graph_execution(model, input_tensor)

print(f"Total operations: {analysis['summary']['total_nodes']}")
print(f"Execution time: {analysis['summary']['execution_time']:.4f}s")

# Performance metrics
if 'performance' in analysis:
    perf = analysis['performance']
    print(f"Operations per second: {perf['operations_per_second']:.2f}")

# Layer-wise analysis
if 'layer_analysis' in analysis:
    for layer_name, operations in analysis['layer_analysis'].items():
        print(f"{layer_name}: {len(operations)} operations")
"""

VISUALIZE = """
# Create interactive visualization
fig = visualize_computational_graph(model, input_tensor, renderer='plotly')
fig.show()

# Save to HTML file
fig.write_html("computational_graph.html")

# Use matplotlib instead
fig = visualize_computational_graph(model, input_tensor, renderer='matplotlib')
fig.savefig("computational_graph.png")
"""

EXPORT = """
filepath = export_computational_graph(model, input_tensor, "graph.json")
print(f"Graph exported to: {filepath}")

# Load and inspect the exported data
import json
with open(filepath, 'r') as f:
    graph_data = json.load(f)

print(f"Nodes: {len(graph_data['nodes'])}")
print(f"Edges: {len(graph_data['edges'])}")
"""

OPTIONS = """
# Track with specific options
tracker = track_computational_graph_execution(
    model,
    input_tensor,
    track_memory=True,      # Track memory usage
    track_timing=True,      # Track execution timing
    track_tensor_ops=False  # Disable tensor operation tracking for performance
)
"""

MANUAL = """
from torch_vis import ComputationalGraphTracker

# Create tracker manually
tracker = ComputationalGraphTracker(model, track_memory=True)

# Start tracking
tracker.start_tracking()

# Run your model
output = model(input_tensor)
loss = output.sum()
loss.backward()

# Stop tracking
tracker.stop_tracking()

# Get results
summary = tracker.get_graph_summary()
graph_data = tracker.get_graph_data()
"""

PERFORMANCE = """
# Get detailed performance analysis
analysis = analyze_computational_graph_execution(model, input_tensor, detailed=True)

# Access performance metrics
performance = analysis['performance']
print(f"Operations per second: {performance['operations_per_second']:.2f}")
print(f"Memory usage: {performance['memory_usage']}")

# Access layer-wise analysis
layer_analysis = analysis['layer_analysis']
for layer_name, operations in layer_analysis.items():
    print(f"\\n{layer_name}:")
    for op in operations:
        print(f"  - {op['operation_type']}: {op['input_shapes']} -> {op['output_shapes']}")
"""

PLOTLY = """
import plotly.graph_objects as go

# Create visualization
fig = visualize_computational_graph(model, input_tensor, renderer='plotly')

# Customize the plot
fig.update_layout(
    title="PyTorch Computational Graph",
    width=1200,
    height=800
)

# Save as HTML
fig.write_html("computational_graph.html")

# Display in Jupyter notebook
fig.show()
"""

MATPLOTLIB = """
import matplotlib.pyplot as plt

# Create visualization
fig = visualize_computational_graph(model, input_tensor, renderer='matplotlib')

# Customize the plot
plt.title("PyTorch Computational Graph")
plt.tight_layout()

# Save as PNG
plt.savefig("computational_graph.png", dpi=300, bbox_inches='tight')
plt.show()
"""

LARGE = """
# Disable tensor operation tracking for better performance
tracker = track_computational_graph_execution(
    model, input_tensor, track_tensor_ops=False
)
"""

TRAINING = """
# Wrap your existing training loop
def train_with_tracking(model, dataloader, num_epochs=10):
    for epoch in range(num_epochs):
        for batch_idx, (data, target) in enumerate(dataloader):
            # Track computational graph for first batch of each epoch
            if batch_idx == 0:
                tracker = track_computational_graph_execution(model, data)
                summary = tracker.get_graph_summary()
                print(f"Epoch {epoch}: {summary['total_nodes']} operations")

            # Your existing training code
            optimizer.zero_grad()
            output = model(data)
            loss = criterion(output, target)
            loss.backward()
            optimizer.step()
"""

DATACLASSES = {
    GraphNode: "id name operation_type module_name input_shapes output_shapes parameters execution_time memory_usage metadata "
    "parent_ids child_ids timestamp",
    GraphEdge: "source_id target_id edge_type tensor_shape metadata",
}


def run(code: str, **names: Any) -> dict[str, Any]:
    exec(QUICK_START, names)
    names.update(vars(torch_vis))
    exec(code, names)
    return names


def test_the_quick_start(capsys, nothing_opens):
    began = time.perf_counter()
    took = run("")["summary"]["execution_time"]
    assert 0 < took < time.perf_counter() - began
    printed = capsys.readouterr().out
    assert "Total operations: 26\n" in printed
    assert f"Execution time: {took:.4f}s\n" in printed
    assert isinstance(nothing_opens[0], go.Figure)


@pytest.mark.parametrize("code", [TRACK, ANALYZE, OPTIONS, MANUAL, PERFORMANCE, LARGE])
def test_blocks_that_track(code, capsys):
    run(code)
    assert "Total operations" in capsys.readouterr().out


def test_what_the_analysis_prints(capsys):
    run(PERFORMANCE)
    printed = capsys.readouterr().out
    assert "0:\n  - layer_op: [[1, 10]] -> [[1, 20]]\n  - tensor_op: [[1, 10]] -> [[1, 20]]" in printed
    assert "Memory usage: {'parameter_bytes': 964," in printed


def test_the_manual_tracker_leaves_the_effects_of_the_users_own_pass():
    names = run(MANUAL)
    assert all(parameter.grad is not None for parameter in names["model"].parameters())
    assert names["input_tensor"].grad is not None
    assert names["summary"]["operation_types"]["gradient_op"] == 11


def test_blocks_that_draw_and_write(tmp_path, nothing_opens):
    for code in (VISUALIZE, EXPORT, PLOTLY, MATPLOTLIB):
        run(code)
    assert (tmp_path / "computational_graph.html").stat().st_size > 10_000
    assert (tmp_path / "computational_graph.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))["version"] == 1
    assert nothing_opens[-1].axes[0].get_title() == "PyTorch Computational Graph"
    layouts = [figure.layout for figure in nothing_opens if isinstance(figure, go.Figure)]
    assert ("PyTorch Computational Graph", 1200, 800) in [(one.title.text, one.width, one.height) for one in layouts]


def test_the_training_loop_trains_as_if_nothing_watched(capsys):
    def train(code: str) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = [(torch.randn(6, 4), torch.randn(6, 1)) for _ in range(3)]
        names = {**vars(torch_vis), "optimizer": optimizer, "criterion": nn.MSELoss()}
        exec(code, names)
        names["train_with_tracking"](model, data, num_epochs=2)
        return [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]

    watched = train(TRAINING)
    assert capsys.readouterr().out.count(" operations\n") == 2
    plain = train(TRAINING.replace("if batch_idx == 0", "if False"))
    assert all(map(torch.equal, watched, plain))


def test_the_data_structures_have_the_fields_that_are_documented():
    for cls, names in DATACLASSES.items():
        assert [field.name for field in dataclasses.fields(cls)] == names.split()
    assert GraphNode("a", "b", OperationType.CUSTOM).child_ids is None
    assert GraphEdge("a", "b", "data_flow").metadata is None
    documented = "forward backward tensor_op layer_op gradient_op memory_op custom"
    assert [one.value for one in OperationType] == documented.split()
    assert OperationType.LAYER_OP.value == "layer_op"
