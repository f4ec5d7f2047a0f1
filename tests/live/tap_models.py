"""Models that are tapped, and what plain hooks say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention written out, with a softmax that is a function call."""

    def __init__(self, size: int = 8, num_heads: int = 2) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.num_heads = num_heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        pattern = F.softmax(q @ k.transpose(-1, -2) / 2, -1)
        return self.out((pattern @ v).transpose(1, 2).reshape(batch, length, size))


class Net(nn.Module):
    """Blocks, a recurrent loop, and an in-place function at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.cell = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        for _ in range(3):
            x = torch.tanh(self.cell(x))
        return F.relu(x - 0.1, inplace=True)


@dataclass
class Pair:
    first: Tensor
    second: Tensor


class Several(nn.Module):
    """Modules that return tuples, dictionaries and dataclasses, and take named arguments."""

    class Inner(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind = kind

        def forward(self, x: Tensor, *, scale: Tensor) -> Any:
            made = {"first": x * scale, "second": x + scale}
            return {"tuple": tuple(made.values()), "dict": made, "dataclass": Pair(**made)}[self.kind]

    def __init__(self) -> None:
        super().__init__()
        self.kinds = nn.ModuleDict({kind: self.Inner(kind) for kind in ("tuple", "dict", "dataclass")})

    def forward(self, x: Tensor) -> Tensor:
        first, second = self.kinds["tuple"](x, scale=x.new_tensor(2.0))
        named = self.kinds["dict"](first + second, scale=x.new_tensor(3.0))
        pair = self.kinds["dataclass"](named["first"] - named["second"], scale=x.new_tensor(4.0))
        return pair.first * pair.second


class Normed(nn.Module):
    """A value that is overwritten in place after its module returned it."""

    def __init__(self) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm1d(4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.relu(self.bn1(x)))


class Statement(nn.Module):
    """In-place calls whose result nobody takes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y.sigmoid_()
        z = self.fc(y)
        self.act(z)
        return y + z


class Ragged(nn.Module):
    """Runs its cell and a function as often as it is told, or takes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.times = 2
        self.function: Callable[[Tensor], Tensor] = torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.times):
            x = self.function(self.cell(x))
        return x if self.times else self.other(x)


def hook_outputs(model: nn.Module, *addresses: str) -> tuple[dict[str, list[Any]], list[Any]]:
    """What plain forward hooks see leave modules: copies of the first tensor, by address; and the handles of the hooks."""
    seen: dict[str, list[Any]] = {address: [] for address in addresses}

    def keep(address: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, result: Any) -> None:
            first = result if isinstance(result, Tensor) else result[0]
            seen[address].append(first.detach().clone())

        return hook

    return seen, [model.get_submodule(address).register_forward_hook(keep(address)) for address in addresses]


def hooks_of(model: nn.Module) -> int:
    """How many hooks are on the modules of a model."""
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


UNUSUAL: dict[str, Callable[[Tensor], Tensor]] = {
    "sparse": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "nested": lambda t: torch.nested.nested_tensor([t[0], t[1, :2]]),
    "meta": lambda t: t.to("meta"),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8),
    "complex32": lambda t: t.to(torch.complex32),
    "float8": lambda t: t.to(torch.float8_e4m3fn),
    "int4": lambda t: t.to(torch.uint8).view(torch.int4),
}
