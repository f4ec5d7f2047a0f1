"""torch_vis: tracks the forward and backward pass of a PyTorch model as one graph. Built on the public API of `torcheer`."""

from .execution import analyze_computational_graph_execution as analyze_computational_graph_execution
from .execution import export_computational_graph as export_computational_graph
from .execution import track_computational_graph_execution as track_computational_graph_execution
from .execution import visualize_computational_graph as visualize_computational_graph
from .structures import GraphEdge as GraphEdge
from .structures import GraphNode as GraphNode
from .structures import OperationType as OperationType
from .tracker import ComputationalGraphTracker as ComputationalGraphTracker
