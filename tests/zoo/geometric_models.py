"""Graph networks of PyTorch Geometric: one layer of nearly every kind, whole models, and graphs of several types."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .cases import FLOAT32, Built, Case
from .foreign import package

NODES, EDGES, WIDTH = 12, 30, 8


def edges(count: int = EDGES, nodes: int = NODES) -> Tensor:
    """Random edges in the order of where they lead, which some aggregations want."""
    found = torch.randint(0, nodes, (2, count))
    return found[:, found[1].argsort(stable=True)]


def features(width: int = WIDTH) -> Tensor:
    return torch.randn(NODES, width)


def batch() -> Tensor:
    return torch.tensor([0] * 5 + [1] * 7)


# layer, its arguments, the arguments of a call besides features and edges
LAYERS: list[tuple[str, tuple[Any, ...], dict[str, Any], Callable[[], tuple[Any, ...]]]] = [
    ("GCNConv", (8, 4), {}, tuple),
    ("GCNConv", (8, 4), {"cached": True}, tuple),
    ("ChebConv", (8, 4, 3), {}, tuple),
    ("SAGEConv", (8, 4), {}, tuple),
    ("SAGEConv", (8, 4), {"aggr": "lstm"}, tuple),
    ("SAGEConv", (-1, 4), {"aggr": ["mean", "max", "std"]}, tuple),
    ("GraphConv", (-1, 4), {}, lambda: (torch.rand(EDGES),)),
    ("GatedGraphConv", (8, 2), {}, tuple),
    ("ResGatedGraphConv", (8, 4), {}, tuple),
    ("GATConv", (-1, 4), {"heads": 2, "dropout": 0.2}, tuple),
    ("GATv2Conv", (8, 4), {"heads": 2, "edge_dim": 3}, lambda: (torch.randn(EDGES, 3),)),
    ("TransformerConv", (8, 4), {"heads": 2}, tuple),
    ("AGNNConv", (), {}, tuple),
    ("TAGConv", (8, 4), {}, tuple),
    ("ARMAConv", (8, 4), {"num_stacks": 2, "num_layers": 2}, tuple),
    ("SGConv", (8, 4), {"K": 2}, tuple),
    ("SSGConv", (8, 4), {"alpha": 0.1, "K": 2}, tuple),
    ("APPNP", (3, 0.1), {"dropout": 0.1}, tuple),
    ("MFConv", (8, 4), {}, tuple),
    ("RGCNConv", (8, 4, 3), {"num_bases": 2}, lambda: (torch.randint(0, 3, (EDGES,)),)),
    ("FastRGCNConv", (8, 4, 3), {}, lambda: (torch.randint(0, 3, (EDGES,)),)),
    ("RGATConv", (8, 4, 3), {}, lambda: (torch.randint(0, 3, (EDGES,)),)),
    ("FeaStConv", (8, 4), {"heads": 2}, tuple),
    ("LEConv", (8, 4), {}, tuple),
    ("ClusterGCNConv", (8, 4), {}, tuple),
    ("GENConv", (8, 4), {"aggr": "softmax", "learn_t": True}, tuple),
    ("FiLMConv", (8, 4), {}, tuple),
    ("SuperGATConv", (8, 4), {"heads": 2}, tuple),
    ("EGConv", (8, 4), {"num_heads": 2}, tuple),
    ("GeneralConv", (8, 4), {}, tuple),
    ("LGConv", (), {}, tuple),
    ("MixHopConv", (8, 4), {}, tuple),
    ("AntiSymmetricConv", (8,), {}, tuple),
    ("HypergraphConv", (8, 4), {}, tuple),
    ("CGConv", (8,), {}, tuple),
]  # fmt: skip


class Whole(nn.Module):
    """Layers, a norm, pooling over the nodes of each graph, and a linear layer, as in the tutorials."""

    def __init__(self, pooling: str) -> None:
        super().__init__()
        pyg = package("torch_geometric.nn")
        self.first = pyg.GCNConv(-1, 16)
        self.norm = pyg.BatchNorm(16)
        self.second = pyg.GATConv(16, 8, heads=2)
        self.pool = getattr(pyg, pooling)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor, edge_index: Tensor, of: Tensor) -> Tensor:
        x = self.norm(self.first(x, edge_index)).relu()
        return self.last(self.pool(self.second(x, edge_index).relu(), of))


def whole(pooling: str) -> Built:
    return Whole(pooling), (features(), edges(), batch()), {}


def layer(name: str, args: tuple[Any, ...], options: dict[str, Any], more: Callable[[], tuple[Any, ...]]) -> Built:
    model = getattr(package("torch_geometric.nn"), name)(*args, **options)
    return model, (features(), edges(), *more()), {}


def several_types() -> Built:
    """Two types of nodes and three of edges, each with a lazily sized layer of its own."""
    pyg = package("torch_geometric.nn")
    layers = {
        ("paper", "cites", "paper"): pyg.GCNConv(-1, 6),
        ("author", "writes", "paper"): pyg.SAGEConv((-1, -1), 6),
        ("paper", "written_by", "author"): pyg.GATConv((-1, -1), 6, add_self_loops=False),
    }
    x = {"paper": torch.randn(6, 8), "author": torch.randn(4, 5)}
    pairs = {
        ("paper", "cites", "paper"): (6, 6),
        ("author", "writes", "paper"): (4, 6),
        ("paper", "written_by", "author"): (6, 4),
    }
    index = {kind: torch.stack([torch.randint(0, a, (9,)), torch.randint(0, b, (9,))]) for kind, (a, b) in pairs.items()}
    return pyg.HeteroConv(layers, aggr="sum"), (x, index), {}


def molecule(name: str, **options: Any) -> Built:
    """A network over atoms and their positions."""
    model = getattr(package("torch_geometric.nn"), name)(**options)
    return model, (torch.randint(1, 9, (6,)), torch.randn(6, 3), torch.tensor([0, 0, 0, 1, 1, 1])), {}


def whole_model(name: str, **options: Any) -> Built:
    model = getattr(package("torch_geometric.nn"), name)(**options)
    return model, (features(), edges()), {}


SMALL = {"in_channels": 8, "hidden_channels": 8, "num_layers": 2, "out_channels": 3, "norm": "batch_norm", "jk": "cat"}
U_NET = {"in_channels": 8, "hidden_channels": 8, "out_channels": 3, "depth": 2}
SCHNET = {"hidden_channels": 8, "num_filters": 8, "num_interactions": 2, "num_gaussians": 6}


def cases() -> list[Case]:
    """Every layer above, and models made of them."""
    made: dict[str, Callable[[], Built]] = {}
    for position, (name, args, options, more) in enumerate(LAYERS):
        made["_".join([name, *map(str, options), str(position)])] = partial(layer, name, args, options, more)
    for pooling in ("global_mean_pool", "global_max_pool", "global_add_pool"):
        made[f"whole_{pooling}"] = partial(whole, pooling)
    for name in ("GCN", "GraphSAGE", "GIN", "GAT", "EdgeCNN"):
        made[name] = partial(whole_model, name, **SMALL)
    made["GraphUNet"] = partial(whole_model, "GraphUNet", **U_NET)
    made["SchNet"] = partial(molecule, "SchNet", **SCHNET, interaction_graph=complete)
    made["several_types"] = several_types
    return [Case(f"geometric/{name}", build, dtypes=FLOAT32) for name, build in made.items()]


def complete(pos: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
    """Every two atoms of one molecule, and how far apart they are: what a compiled extension would find."""
    source, target = torch.nonzero((of[:, None] == of[None]) & ~torch.eye(len(of), dtype=torch.bool), as_tuple=True)
    return torch.stack([source, target]), (pos[source] - pos[target]).norm(dim=-1)
