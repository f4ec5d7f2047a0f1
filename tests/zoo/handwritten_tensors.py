"""Tensor code that is hard to follow: writes in place, views of views, indices, layouts, subclasses, scripted code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Buffer, made_with

from .cases import EVAL, FLOAT32, Case


@made_with(a=lambda: nn.Linear(6, 6), b=lambda: nn.Linear(6, 6), seen=lambda: Buffer(torch.zeros(6)))
def InPlace(self, x: Tensor) -> Tensor:
    """Writes over its own activations in every way."""
    y = self.a(x)
    y.relu_().add_(1).mul_(0.5)
    z = y.clone()
    z[0] = 0
    z[:, 1:3] += y[:, :2]
    z[z > 0.8] = 0.8
    z.masked_fill_(z < 0.1, -1).clamp_(max=0.7)
    z.view(-1)[::5].zero_()
    z.index_copy_(0, torch.tensor([1]), y[:1].detach())
    z.t()[2].copy_(y[:, 3])
    z.select(1, 4).sub_(1).exp_()
    self.seen += z.detach().sum(0)
    w = self.b(z)
    w /= w.norm()
    w.transpose_(0, 1).unsqueeze_(0).squeeze_(0)
    return w.fill_diagonal_(2.0)


def views(x: Tensor) -> tuple[Tensor, ...]:
    """Views of views, strides chosen by hand, and writes through them that all see."""
    base = x * 2
    windows = base.as_strided((3, 4), (2, 1))
    diagonal = base.view(4, 5).diagonal()
    base.narrow(0, 0, 3).add_(10)
    diagonal.mul_(-1)
    parts = base.split([5, 10, 5])
    parts[1].zero_()
    for row in base.view(5, 4).unbind(0):
        row[0] = row[1]
    swapped = base.view(2, 10).movedim(0, 1).unflatten(0, (5, 2)).flatten(1).expand(2, 5, 4)
    return windows.clone(), diagonal, parts[2], swapped, windows.as_strided_scatter(torch.ones(2), (2,), (3,))


def indexing(x: Tensor) -> tuple[Tensor, ...]:
    """Reads and writes by integers, slices, masks, lists, ellipses and tensors of indices."""
    y = x.clone()
    rows, columns = torch.tensor([0, 2, 1]), torch.tensor([[1], [3], [0]])
    y[rows, columns] = x[rows, columns.T]
    y[..., -1] = y[None, 0, :2].mean()
    y[[0, 1], 2:] *= 3
    y.index_put_((rows, rows), torch.ones(3), accumulate=True)
    mask = y.abs() > y.abs().median()
    y.masked_scatter_(mask, torch.arange(12.0) / 3)
    return (
        *(y[mask], y[mask.any(1)][:, [0, 0, 1]], torch.where(mask, y, x), *torch.where(mask)),
        *(y.take(torch.tensor([0, 5])), y.put(torch.tensor([1]), torch.ones(1)), y.take_along_dim(y.argsort(1), 1)),
        *(
            y.index_select(1, rows),
            y.scatter(1, columns, 9.0),
            y.scatter_reduce(0, columns % 3, y, "prod"),
            y.index_fill(0, rows, 1.0),
        ),
        *(torch.select_scatter(y, torch.zeros(4), 0, 1), torch.slice_scatter(y, torch.ones(2, 4), 0, 1)),
    )


def ordering(x: Tensor) -> tuple[Any, ...]:
    """Sorting, ranking, counting, searching: integers that come from values."""
    flat = x.flatten()
    values, order = flat.sort(descending=True)
    whole = (flat * 2).round().long().clamp(-3, 3) + 3
    return (
        *(values, order.argsort(), x.topk(2), flat.kthvalue(3), x.mode(), x.nanmedian(1), x.cummax(1), flat.logcumsumexp(0)),
        *(whole.unique(return_inverse=True, return_counts=True), whole.bincount(minlength=7), whole.unique_consecutive()),
        *(torch.searchsorted(values.flip(0), flat), torch.bucketize(flat, torch.linspace(-2, 2, 5)), flat.histc(4, -2, 2)),
        *(torch.quantile(flat, 0.3), x.aminmax(dim=1), F.one_hot(whole, 7), torch.isin(whole, torch.tensor([1, 3]))),
        *(whole & 3, whole << 1, whole % 2 == 0, torch.gcd(whole, whole.flip(0)), (x > 0) ^ (x < 1), flat.nonzero()),
    )


def arithmetic(x: Tensor) -> list[Tensor]:
    """Python numbers, NumPy arrays and tensors on either side, broadcasting, reductions, special functions."""
    column = x[:, :1]
    y = 2 - x / 3 + 1.5**x - x // 0.7 + x % 0.4
    return [
        *(
            y,
            -y,
            abs(y),
            +y,
            1 / (column.exp() + x.T[:1, :3].sum()),
            x @ x.T,
            torch.addmm(x[:3, :3], x, x.T, beta=0.5, alpha=2),
        ),
        *(x.addcmul(x, y, value=0.1), torch.lerp(x, y, 0.3), torch.hypot(x, y), torch.atan2(x, y), x.logsumexp((0, 1))),
        *(torch.special.erfcx(x), torch.special.i0(x), torch.lgamma(x.abs() + 1), x.sinc(), x.prod(1), x.std(0), *x.frexp()),
        *(torch.cartesian_prod(x[0], x[1]), torch.kron(x[:2, :2], x[:1]), torch.cross(x[:, :3], y[:, :3], dim=1), x.trace()),
        *(x.softmax(0).log(), F.gumbel_softmax(x), x.renorm(2, 0, 1), torch.tensordot(x, y, ([1], [1])), x.cov(), x.corrcoef()),
    ]


def factorisations(x: Tensor) -> tuple[Any, ...]:
    """Linear algebra: everything with several outputs."""
    square = x @ x.T + 3 * torch.eye(3)
    return (
        *(
            torch.linalg.svd(x, full_matrices=False),
            torch.linalg.eigh(square),
            torch.linalg.qr(x),
            torch.linalg.slogdet(square),
        ),
        *(torch.linalg.lu(square), torch.linalg.matrix_exp(square / 9), square.det()),
        *(torch.linalg.inv(square), torch.linalg.pinv(x), torch.linalg.solve(square, x), torch.linalg.matrix_norm(x, 2)),
    )


def complexes(x: Tensor) -> tuple[Tensor, ...]:
    """Complex numbers: views of their parts, conjugates that are lazy, writes into the real part."""
    z = torch.complex(x, x.flip(0))
    z.real.mul_(2)
    conjugate = z.conj()
    return conjugate, (conjugate @ z.T), z.imag, torch.view_as_real(z), z.abs() * z.sgn(), z.mH.resolve_conj(), (1j * z).real


def given_outputs(x: Tensor) -> tuple[Tensor, ...]:
    """Results written into tensors that were made before."""
    y, z = torch.empty(3, 4), torch.zeros(4)
    torch.add(x, 1, out=y)
    torch.mm(y[:3, :3], x, out=y)
    torch.sum(y, 0, out=z)
    values, where = torch.empty(3), torch.empty(3, dtype=torch.long)
    torch.max(x, 1, out=(values, where))
    lists = [x.clone(), y.clone()]
    torch._foreach_mul_(lists, 0.5)
    return y, z, values, where, *torch._foreach_add(lists, 1.0)


class Folding(nn.Module):
    """Patches out of an image and back, shuffled pixels, resizing, unusual convolutions and pools."""

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.wide = nn.Linear(27, 27), nn.Conv2d(3, 12, 3, padding=1, padding_mode="reflect")
        self.local, self.deep = nn.Conv2d(12, 12, 3, groups=12, dilation=2, padding="same"), nn.Conv3d(1, 2, (1, 3, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = x.to(memory_format=torch.channels_last)
        patches = self.mix(F.unfold(x, 3, padding=1).mT).mT
        whole = F.fold(patches, x.shape[-2:], 3, padding=1)
        wide = self.local(self.wide(whole))
        pooled, where = F.max_pool2d(wide, 2, return_indices=True)
        up = F.pixel_shuffle(pooled, 2) + F.interpolate(x, size=x.shape[-2:], mode="bicubic")
        deep = F.adaptive_max_pool3d(self.deep(x[:, None]), 1)
        return F.max_unpool2d(pooled, where, 2), F.pixel_unshuffle(up, 2), deep, F.lp_pool2d(wide.abs(), 2, 2), whole


class Marked(Tensor):
    """A tensor subclass that stays itself through every function."""


def subclasses(x: Tensor) -> Tensor:
    """Operations on a tensor subclass."""
    return (x.as_subclass(Marked) * 2 + 1).relu().sum(0)


@torch.jit.script
def scripted_part(x: Tensor) -> Tensor:
    """Code in TorchScript."""
    for _ in range(2):
        x = torch.tanh(x) + 1
    return x


@made_with(before=lambda: nn.Linear(4, 4), after=lambda: nn.Linear(4, 2))
def PartlyScripted(self, x: Tensor) -> Tensor:
    """A scripted function and a traced module between plain layers."""
    return self.after(scripted_part(self.before(x)))


def ragged(x: Tensor) -> Tensor:
    """Sequences of different lengths as one nested tensor."""
    nested = torch.nested.nested_tensor([x[:1], x[:2], x])
    return torch.nested.to_padded_tensor(nested * 2, 0.0)


def compressed(x: Tensor) -> Tensor:
    """A compressed sparse matrix times a dense one, twice."""
    table = x.relu().to_sparse_csr()
    return table @ (x.T @ (table @ x.T))


def made_inside(x: Tensor) -> tuple[Tensor, ...]:
    """Tensors made from nothing, from numbers, from each other, and random ones."""
    return (
        x + torch.arange(4) + torch.tensor([1.0, 2, 3, 4]) + torch.linspace(0, 1, 4) + torch.eye(3, 4),
        torch.rand_like(x) * x + x.new_tensor([1]) + torch.randn(4).sort().values + torch.empty_like(x).normal_(),
        torch.cat([torch.full((1, 4), 7.0), x]).tril(1),
        torch.block_diag(x, x.T) * torch.triu(torch.ones(7, 7)),
        torch.stack(torch.meshgrid(x[0], torch.arange(2.0), indexing="ij")),
        F.alpha_dropout(x, 0.3) + F.rrelu(x, training=True) + torch.poisson(x.abs()) + torch.normal(x, 1.0),
    )


def cases() -> list[Case]:
    """Modules in every mode; plain functions once."""
    functions: dict[str, Callable[..., Any]] = {
        "views": views,
        "indexing": indexing,
        "ordering": ordering,
        "arithmetic": arithmetic,
        "factorisations": factorisations,
        "complex_numbers": complexes,
        "given_outputs": given_outputs,
        "tensor_subclass": subclasses,
        "nested_tensor": ragged,
        "compressed_sparse": compressed,
        "made_inside": made_inside,
    }
    found = [
        Case(
            f"handwritten/{name}",
            lambda f=function: (f, (torch.randn(3, 4) if f is not views else torch.randn(20),), {}),
            EVAL,
            FLOAT32,
        )
        for name, function in functions.items()
    ]
    return [
        *found,
        Case("handwritten/in_place", lambda: (InPlace(), (torch.randn(6, 6),), {})),
        Case("handwritten/folding", lambda: (Folding(), (torch.randn(2, 3, 6, 6),), {})),
        Case("handwritten/partly_scripted", lambda: (PartlyScripted(), (torch.randn(3, 4),), {}), dtypes=FLOAT32),
    ]
