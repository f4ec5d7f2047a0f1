"""Checks an Xray on CUDA: what it keeps is what plain hooks see, training is bit-identical, what it costs.

A plain script:  PYTHONPATH=src python tests/gpu/check_xray.py
Prints one line per check and exits with 1 if any failed.
"""

from __future__ import annotations

import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from checking import run
from torch import Tensor, nn

from torcheer.xray import Limits, Xray

DEVICE = torch.device("cuda")


class Network(nn.Module):
    """Convolutions, batch normalisation, in-place activations, dropout, fully connected layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.conv1, self.norm = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width)
        self.conv2, self.drop = nn.Conv2d(width, 2 * width, 3), nn.Dropout(0.3)
        self.fc = nn.Linear(2 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu_(self.norm(self.conv1(x)))
        return self.fc(self.drop(F.relu(self.conv2(x)).mean((2, 3))))


def made(batch: int = 16, width: int = 64, side: int = 32) -> tuple[Network, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(batch, 3, side, side, device=DEVICE)
    return Network(width).to(DEVICE), x, torch.randint(0, 10, (batch,), device=DEVICE)


def it_keeps_what_plain_hooks_see() -> None:
    model, x, y = made()
    seen: dict[str, Tensor] = {}
    plain = copy.deepcopy(model).eval()
    for name in ("conv1", "conv2"):

        def hook(_: nn.Module, __: object, output: Tensor, name: str = name) -> None:
            seen[name] = output.detach().clone()
            output.register_hook(lambda gradient, name=name: seen.__setitem__(f"{name} grad", gradient.clone()))

        plain.get_submodule(name).register_forward_hook(hook)
    F.cross_entropy(plain(x), y).backward()
    everything = Limits(channels=128)
    with Xray(
        model,
        x,
        ["conv1", "conv2"],
        folder=tempfile.mkdtemp(),
        dtype=torch.float32,
        limits=everything,
        loss_fn=F.cross_entropy,
        target=y,
    ) as xray:
        xray.take_graphs()
    run = xray.run
    for name in ("conv1", "conv2"):
        assert torch.equal(torch.from_numpy(run.tensor(name, "layer")), seen[name][0].cpu())
        assert run.entry(name, "layer").statistics.norm is not None
        assert abs(run.entry(name, "layer").statistics.norm - float(seen[name].double().norm())) < 1e-3
        gradient = torch.from_numpy(run.tensor(name, "layer_grad"))
        assert torch.allclose(gradient, seen[f"{name} grad"][0].cpu(), rtol=1e-3, atol=1e-7)
        assert torch.equal(
            torch.from_numpy(run.tensor(name, "weight"))[:, 0, 0, 0], model.get_submodule(name).weight[:, 0, 0, 0].cpu()
        )


def training_is_bit_identical() -> None:
    model, x, y = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x + torch.randn_like(x)), y).backward()
        optimizer.step()

    torch.backends.cudnn.deterministic = True
    with Xray(model, x, folder=tempfile.mkdtemp(), optimizer=optimizer, loss_fn=F.cross_entropy, target=y) as xray:
        found = xray.verify(train_step, steps=5)
    assert found, str(found)


def it_works_on_a_stream_of_its_own() -> None:
    """What is kept is the value at that moment, whatever the stream goes on to do."""
    model, x, _ = made()
    with Xray(model, x, {"conv1": ["weight", "layer"]}, folder=tempfile.mkdtemp(), dtype=torch.float32) as xray:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream), torch.no_grad():
            for step in range(20):
                model.conv1.weight.fill_(float(step))
                xray.take_graphs(step)
                torch.cuda._sleep(1_000_000)
    for step in range(20):
        assert (xray.run.tensor("conv1", "weight", step) == step).all(), step


def what_it_costs() -> None:
    model, x, _ = made(batch=256, width=128, side=64)
    with Xray(model, x, folder=tempfile.mkdtemp()) as xray:

        def plain() -> None:
            with torch.no_grad():
                model(x)

        for _ in range(3):
            plain()
            xray.take_graphs()
        xray.flush()
        taken: dict[str, list[float]] = {"plain": [], "taken": []}
        for _ in range(15):
            for name, function in (("plain", plain), ("taken", xray.take_graphs)):
                torch.cuda.synchronize()
                start = time.perf_counter()
                function()
                torch.cuda.synchronize()
                taken[name].append((time.perf_counter() - start) * 1e3)
                xray.flush()
    raw, ours = (statistics.median(taken[name]) for name in ("plain", "taken"))
    print(f"     plain pass {raw:.2f} ms, take_graphs {ours:.2f} ms: {ours / raw:.2f}×")


CHECKS: list[Callable[[], None]] = [
    it_keeps_what_plain_hooks_see,
    training_is_bit_identical,
    it_works_on_a_stream_of_its_own,
    what_it_costs,
]


if __name__ == "__main__":
    sys.exit(run(CHECKS))
