"""Graphs, sets, tables, structured prediction, and structured values in and out."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import made_with

from .cases import FLOAT32, Case
from .handwritten_generative import mlp

Pair = namedtuple("Pair", "first second")
EDGES = torch.tensor([[0, 1, 2, 3, 4, 0, 2, 5], [1, 2, 3, 4, 0, 5, 5, 1]])


@made_with(first=lambda: nn.Linear(4, 8), second=lambda: nn.Linear(8, 3))
def DenseGcn(self, x: Tensor, edges: Tensor) -> Tensor:
    """Graph convolution with a normalised dense adjacency."""
    adjacency = torch.eye(len(x), dtype=x.dtype)
    adjacency[edges[0], edges[1]] = 1
    degree = adjacency.sum(-1).rsqrt()
    adjacency = degree[:, None] * adjacency * degree
    return (adjacency @ self.second(F.relu(adjacency @ self.first(x)))).log_softmax(-1)


class SparseGcn(DenseGcn):
    """The same with a sparse matrix."""

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1], dtype=x.dtype), (len(x), len(x))).coalesce()
        hidden = F.relu(torch.sparse.mm(adjacency, self.first(x)))
        return torch.sparse.mm(adjacency.t(), self.second(hidden))


@made_with(project=lambda: nn.Linear(4, 6), score=lambda: nn.Linear(12, 1))
def GraphAttention(self, x: Tensor, edges: Tensor) -> Tensor:
    """Attention over edges, with a softmax by scatter."""
    h, (source, target) = self.project(x), edges
    score = F.leaky_relu(self.score(torch.cat([h[source], h[target]], -1)), 0.2).squeeze(-1)
    top = score.new_full((len(x),), -1e9).scatter_reduce(0, target, score, "amax")
    weight = (score - top[target]).exp()
    total = weight.new_zeros(len(x)).index_add(0, target, weight)
    return torch.zeros_like(h).index_add_(0, target, h[source] * (weight / (total[target] + 1e-9))[:, None])


@made_with(message=lambda: mlp(9, 8, 4), cell=lambda: nn.GRUCell(4, 4), out=lambda: nn.Linear(4, 1))
def MessagePassing(self, x: Tensor, edges: Tensor, features: Tensor, graph: Tensor) -> Tensor:
    """Three rounds of messages with scatter_add and a shared cell, and a readout per graph."""
    for _ in range(3):
        sent = self.message(torch.cat([x[edges[0]], x[edges[1]], features], -1))
        arrived = torch.zeros_like(x).scatter_add_(0, edges[1, :, None].expand_as(sent), sent)
        x = self.cell(arrived, x)
    return x.new_zeros(2, 1).index_add(0, graph, self.out(x)) / torch.bincount(graph)[:, None]


@made_with(layers=lambda: nn.ModuleList([mlp(6, 8, 8), mlp(16, 8, 8)]))
def EdgeConv(self, x: Tensor) -> Tensor:
    """Points, each with its nearest neighbours in feature space."""
    for layer in self.layers:
        near = (x[:, :, None] - x[:, None]).pow(2).sum(-1).topk(3, largest=False).indices
        neighbours = x[torch.arange(len(x))[:, None, None], near]
        centre = x[:, :, None].expand_as(neighbours)
        x = layer(torch.cat([centre, neighbours - centre], -1)).amax(2)
    return x.mean(1)


@made_with(
    transform=lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.BatchNorm1d(8), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten()),
    matrix=lambda: nn.Linear(8, 9),
    head=lambda: nn.Sequential(nn.Conv1d(3, 8, 1), nn.ReLU()),
)
def PointNet(self, points: Tensor) -> Tensor:
    """A transform predicted from the points, applied to them, and a symmetric pooling."""
    matrix = self.matrix(self.transform(points)).view(-1, 3, 3) + torch.eye(3, dtype=points.dtype)
    return self.head(torch.bmm(matrix, points)).max(-1)[0]


@made_with(
    bags=lambda: nn.ModuleList(nn.EmbeddingBag(20, 4, mode=mode) for mode in ("sum", "mean", "max")),
    dense=lambda: mlp(5, 8, 4),
    top=lambda: mlp(10, 8, 1),
)
def Recommender(self, dense: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    """Embedding bags, dense features and their pairwise products."""
    parts = [self.dense(dense), *(bag(tokens, offsets) for bag in self.bags)]
    stacked = torch.stack(parts, 1)
    rows, columns = torch.tril_indices(4, 4, -1)
    pairs = (stacked @ stacked.mT)[:, rows, columns]
    return torch.sigmoid(self.top(torch.cat([parts[0], pairs], -1)))


@made_with(weight=lambda: nn.Parameter(torch.randn(6, 3)))
def SparseInputs(self, table: Tensor) -> tuple[Tensor, Tensor]:
    """Sparse matrices, coordinate and compressed, times weights."""
    return torch.sparse.mm(table, self.weight), torch.sparse.sum(table, 0).to_dense() @ self.weight.exp()


@dataclass
class Batch:
    """A batch as people pass it."""

    image: Tensor
    about: dict[str, Tensor]
    name: str = "batch"


@dataclass
class Answer:
    """An answer as people return it."""

    logits: Tensor
    hidden: list[Tensor]
    loss: Tensor | None = None


@made_with(
    layers=lambda: nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), scale=lambda: nn.ParameterDict({"a": torch.ones(4)})
)
def Dataclasses(self, batch: Batch, *, weights: dict[str, Any]) -> Answer:
    """Takes a dataclass and a dictionary, returns a dataclass."""
    x, hidden = batch.image * self.scale["a"] + batch.about["shift"], []
    for layer, weight in zip(self.layers, weights["each"], strict=True):
        x = layer(x) * weight
        hidden.append(x)
    return Answer(x, hidden, loss=x.pow(2).mean() if batch.about["labelled"].any() else None)


@made_with(net=lambda: nn.Linear(3, 3))
def Nested(self, x: Tensor) -> list[Any]:
    """Returns tuples in dictionaries in lists, the same tensor twice, an input, a parameter and a constant."""
    y = self.net(x)
    pair = Pair(y, {"again": y, "deep": [(y + 1, None), {"number": 3, "input": x}]})
    return [pair, self.net.weight, torch.ones(2), y.view(-1)[:2], ("text", y.T)]


@made_with(emit=lambda: nn.Linear(4, 3), move=lambda: nn.Parameter(torch.randn(3, 3)))
def Crf(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """The log-likelihood of a chain, and its best path by backtracking."""
    emissions = self.emit(x)
    total = best = emissions[0]
    back = []
    for emission in emissions[1:]:
        total = torch.logsumexp(total[:, None] + self.move, 0) + emission
        best, where = (best[:, None] + self.move).max(0)
        best = best + emission
        back.append(where)
    path = [best.argmax()]
    for where in reversed(back):
        path.append(where[path[-1]])
    return total.logsumexp(0), torch.stack(path[::-1])


@made_with(features=lambda: mlp(3, 8, 4))
def Sinkhorn(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Optimal transport between two sets, by normalising rows and columns in turn."""
    cost = torch.cdist(self.features(one).float(), self.features(other).float())
    plan = -cost / 0.1
    for _ in range(4):
        plan = plan - plan.logsumexp(1, keepdim=True)
        plan = plan - plan.logsumexp(0, keepdim=True)
    return (plan.exp() * cost).sum(), plan.argmax(-1)


@made_with(decide=lambda: nn.Linear(4, 7), leaves=lambda: nn.Parameter(torch.randn(8, 2)))
def SoftTree(self, x: Tensor) -> Tensor:
    """A decision forest: products of decisions along every path."""
    decisions = torch.sigmoid(self.decide(x))
    reach = [torch.ones_like(x[:, 0])]
    for depth in range(3):
        level = decisions[:, 2**depth - 1 : 2 ** (depth + 1) - 1].unbind(1)
        reach = [part for r, d in zip(reach, level, strict=True) for part in (r * d, r * (1 - d))]
    return torch.stack(reach, 1) @ self.leaves.softmax(-1)


@made_with(log_scale=lambda: nn.Parameter(torch.zeros(3)))
def GaussianProcess(self, x: Tensor, y: Tensor, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A posterior by Cholesky factors, and its likelihood."""
    kernel = lambda a, b: torch.exp(-0.5 * ((a[:, None] - b[None]) / self.log_scale.exp()).pow(2).sum(-1))
    factor = torch.linalg.cholesky(kernel(x, x) + 1e-2 * torch.eye(len(x)))
    alpha = torch.cholesky_solve(y[:, None], factor)
    v = torch.linalg.solve_triangular(factor, kernel(x, new), upper=False)
    likelihood = -0.5 * (y @ alpha).sum() - factor.diagonal().log().sum()
    return kernel(new, x) @ alpha, kernel(new, new) - v.T @ v, likelihood


@made_with(before=lambda: nn.Linear(4, 4), after=lambda: nn.Linear(4, 2))
def NumpyInside(self, x: Tensor) -> Tensor:
    """Leaves torch for NumPy and comes back, both by memory that is shared and by a copy."""
    y = self.before(x)
    array = y.detach().float().numpy()
    ranks = torch.from_numpy(np.argsort(array, axis=-1).copy())
    smooth = torch.from_numpy(np.tanh(array)).to(y.dtype)
    return self.after(y.gather(-1, ranks) + smooth + float(array.mean()))


@made_with(yes=lambda: nn.Linear(4, 4), no=lambda: nn.Linear(4, 4))
def DataDependent(self, x: Tensor) -> tuple[Tensor, Tensor, int]:
    """Branches, loop counts, sizes and indices that depend on values."""
    x = self.yes(x) if x.sum() > 0 else self.no(x)
    for _ in range(int(x.abs().max().item() * 3) % 4 + 1):
        x = torch.tanh(x) * 1.1
    kept = x[x.mean(-1) > x.mean()]
    rows = kept.tolist()
    best = max(range(len(x)), key=lambda row: x[row].sum().item())
    return torch.tensor(rows), x[best], int(torch.count_nonzero(x > 0))


def cases() -> list[Case]:
    """Structured models on toy graphs and tables."""

    def case(name: str, model: Any, *args: Any, kwargs: Any = dict, **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(arg() for arg in args), kwargs()), **options)

    def normal(*shape: int) -> Any:
        return lambda: torch.randn(shape)

    def batch() -> Batch:
        return Batch(torch.randn(2, 4), {"shift": torch.randn(4), "labelled": torch.tensor([True, False])})

    nodes, edges = normal(6, 4), EDGES.clone
    table = lambda: torch.randn(5, 6).relu()
    return [
        case("gcn_dense", DenseGcn, nodes, edges),
        case("gcn_sparse", SparseGcn, nodes, edges, dtypes=FLOAT32),
        case("graph_attention", GraphAttention, nodes, edges),
        case("message_passing", MessagePassing, nodes, edges, normal(8, 1), lambda: torch.tensor([0, 0, 0, 1, 1, 1])),
        case("edge_conv", EdgeConv, normal(2, 7, 3)),
        case("point_net", PointNet, normal(2, 3, 9)),
        case("recommender", Recommender, normal(3, 5), lambda: torch.randint(0, 20, (8,)), lambda: torch.tensor([0, 3, 5])),
        case("sparse_coordinates", SparseInputs, lambda: table().to_sparse(), dtypes=FLOAT32),
        case("dataclasses", Dataclasses, batch, kwargs=lambda: {"weights": {"each": [0.5, torch.rand(4), 2]}}, dtypes=FLOAT32),
        case("nested_containers", Nested, normal(2, 3)),
        case("chain_random_field", Crf, normal(5, 4)),
        case("sinkhorn", Sinkhorn, normal(4, 3), normal(5, 3)),
        case("soft_decision_tree", SoftTree, normal(3, 4)),
        case("gaussian_process", GaussianProcess, normal(6, 3), normal(6), normal(2, 3), dtypes=FLOAT32),
        case("numpy_inside", NumpyInside, normal(3, 4)),
        case("data_dependent", DataDependent, normal(5, 4)),
    ]
