"""Weights in unusual places: shared, computed, reparametrised, pruned, quantised, adapted, changed by hooks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from models import Buffer, made_with

from .cases import FLOAT32, Case
from .handwritten_generative import mlp


class Tied(nn.Module):
    """A language model whose embedding is its output layer, and a decoder that is its encoder transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
        self.out.weight = self.embed.weight
        self.encoder = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(tokens)
        code = torch.tanh(self.encoder(x))
        return self.out(F.linear(code, self.encoder.weight.T)), code


class TwoParents(nn.Module):
    """One module that lives in two places and is called from both."""

    def __init__(self) -> None:
        super().__init__()
        shared = nn.Linear(4, 4)
        self.left, self.right = nn.Sequential(shared, nn.ReLU()), nn.Sequential(nn.Tanh(), shared)

    def forward(self, x: Tensor) -> Tensor:
        return self.left(x) + self.right(x) + self.left[0](x)


def reparametrised() -> nn.Module:
    """Weight, spectral and orthogonal parametrisations."""
    return nn.Sequential(
        parametrizations.weight_norm(nn.Linear(4, 8)),
        nn.ReLU(),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
        nn.ReLU(),
        parametrizations.orthogonal(nn.Linear(8, 8)),
    )


class Symmetric(nn.Module):
    """Makes a weight symmetric."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).T


class Parametrised(nn.Module):
    """A custom parametrisation, read twice, and cached."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        parametrize.register_parametrization(self.layer, "weight", Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(self.layer(x))
        with parametrize.cached():
            return self.layer(self.layer(y))


def pruned() -> nn.Module:
    """Weights with masks, by a forward pre-hook."""
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    for layer in (model[0], model[2]):
        prune.l1_unstructured(layer, "weight", amount=0.4)
    return model


@made_with(writer=lambda: mlp(3, 8, 4 * 2 + 2), main=lambda: nn.Linear(4, 2))
def HyperNetwork(self, x: Tensor, task: Tensor) -> tuple[Tensor, Tensor]:
    """A network that writes the weights of another."""
    made = self.writer(task)
    weights = {"weight": made[:8].view(2, 4), "bias": made[8:]}
    each = torch.vmap(lambda row: F.linear(row, weights["weight"]))(x)
    return torch.func.functional_call(self.main, weights, x), each


@made_with(
    weights=lambda: nn.ParameterList(torch.randn(5, 5) / 3 for _ in range(3)),
    cores=lambda: nn.ParameterDict({name: torch.randn(2, 3, 2) for name in "abc"}),
)
def ParameterLists(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Loops over lists and dictionaries of parameters, used functionally."""
    for weight in self.weights:
        x = F.gelu(x @ weight) + x
    train = torch.einsum("aib,bjc,ckd->aijkd", *(self.cores[name] for name in "abc"))
    return x, train.sum((0, -1))


@made_with(
    base=lambda: nn.Linear(6, 6).requires_grad_(False),
    down=lambda: nn.Parameter(torch.randn(2, 6) / 3),
    up=lambda: nn.Parameter(torch.randn(6, 2) / 3),
)
def LowRankAdapter(self, x: Tensor) -> Tensor:
    """A frozen layer with a trained low-rank correction, merged and not."""
    if self.training:
        return self.base(x) + F.dropout(x, 0.1) @ self.down.T @ self.up.T
    return F.linear(x, self.base.weight + self.up @ self.down, self.base.bias)


def lazy() -> nn.Module:
    """Layers whose sizes the first batch decided."""
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(3))
    model(torch.rand(2, 3, 6, 6))
    return model


class Hooks(nn.Module):
    """Hooks that change what goes in and comes out, and keep it."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.kept = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), {}
        self.net[0].register_forward_pre_hook(self.double)
        self.net[1].register_forward_hook(self.shift)

    @staticmethod
    def double(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        return args[0] * 2

    @staticmethod
    def shift(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


@made_with(layer=lambda: nn.Linear(5, 4), low=lambda: Buffer(torch.tensor(0.0)), high=lambda: Buffer(torch.tensor(0.0)))
def FakeQuantised(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantisation-aware training: observers, fake quantisation, a straight-through rounding by hand."""
    if self.training:
        self.low.copy_(torch.minimum(self.low, x.detach().min()))
        self.high.copy_(torch.maximum(self.high, x.detach().max()))
    scale = ((self.high - self.low) / 255).clamp(min=1e-3).float()
    x = torch.fake_quantize_per_tensor_affine(x.float(), scale, torch.tensor(0, dtype=torch.int32), -128, 127)
    weight = self.layer.weight
    rounded = (weight * 16).round() / 16
    return F.linear(x.to(weight.dtype), weight + (rounded - weight).detach(), self.layer.bias), scale


def quantised() -> nn.Module:
    """Dynamically quantised layers: packed integer weights."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, torch.qint8)


class Standardised(nn.Conv2d):
    """A convolution with standardised weights."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return self._conv_forward(x, weight / (weight.std((1, 2, 3), keepdim=True) + 1e-5), self.bias)


@made_with(
    conv=lambda: Standardised(3, 4, 3, padding=1),
    gamma=lambda: nn.Embedding(5, 4),
    batch=lambda: nn.BatchNorm2d(4, affine=False),
    instance=lambda: nn.InstanceNorm2d(4),
    group=lambda: nn.GroupNorm(2, 4),
    squeeze=lambda: nn.Sequential(nn.Conv2d(4, 2, 1), nn.ReLU(), nn.Conv2d(2, 4, 1), nn.Sigmoid()),
    drop=lambda: nn.Dropout2d(0.3),
)
def Conditional(self, x: Tensor, label: Tensor) -> Tensor:
    """Normalisations of every kind, one conditioned on a class, with squeeze-excitation and stochastic depth."""
    x = self.batch(self.conv(x)) * self.gamma(label)[:, :, None, None]
    branch = F.layer_norm(self.group(self.instance(x)), x.shape[1:])
    branch = branch * self.squeeze(branch.mean((2, 3), keepdim=True))
    if self.training and torch.rand(()) < 0.2:
        return x
    return x + self.drop(branch)


def cases() -> list[Case]:
    """Models whose parameters are not plain attributes of the layers that use them."""

    def case(name: str, model: Any, *shapes: tuple[int, ...], **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(torch.randn(shape) for shape in shapes), {}), **options)

    return [
        Case("handwritten/weight_tying", lambda: (Tied(), (torch.randint(0, 9, (2, 4)),), {})),
        case("module_with_two_parents", TwoParents, (3, 4)),
        case("weight_spectral_orthogonal", reparametrised, (3, 4), dtypes=FLOAT32),
        case("parametrisation", Parametrised, (3, 4)),
        case("pruned", pruned, (3, 5)),
        case("hypernetwork", HyperNetwork, (3, 4), (3,)),
        case("parameter_lists", ParameterLists, (3, 5)),
        case("low_rank_adapter", LowRankAdapter, (3, 6)),
        case("lazy_layers", lazy, (2, 3, 6, 6)),
        case("hooks", Hooks, (3, 4)),
        case("fake_quantised", FakeQuantised, (3, 5)),
        case("quantised_dynamic", quantised, (3, 8), modes=("eval",), dtypes=FLOAT32),
        Case("handwritten/normalisations", lambda: (Conditional(), (torch.randn(3, 3, 6, 6), torch.tensor([0, 4, 2])), {})),
    ]
