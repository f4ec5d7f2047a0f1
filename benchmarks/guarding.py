"""A training under a guard: how much slower is a step, beside `torch.autograd.detect_anomaly`?

    python -m benchmarks.guarding --device cuda

Plain, guarded and anomaly-checked steps take turns, so that other work on the machine meets all three alike. A figure is the
median of the ratios to the plain step of the same turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torcheer

LIMITS = {"cpu": 1.05, "cuda": 1.02}  # of a guarded step


def gpt2(device: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = device == "cpu"
    sizes = {"n_layer": 4, "n_head": 4, "n_embd": 128, "vocab_size": 1000, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(**sizes if small else {})
    tokens = torch.randint(config.vocab_size, (8, 64 if small else 512), device=device)

    def loss_of(model: nn.Module) -> Tensor:
        logits = model(input_ids=tokens).logits[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    return GPT2LMHeadModel(config).to(device), loss_of


def resnet50(device: str) -> tuple[nn.Module, Callable[[nn.Module], Tensor]]:
    from torchvision.models import resnet50 as make

    count, size = (4, 64) if device == "cpu" else (64, 224)
    images, labels = torch.randn(count, 3, size, size, device=device), torch.randint(1000, (count,), device=device)
    return make().to(device), lambda model: F.cross_entropy(model(images), labels)


MODELS = {"gpt2": gpt2, "resnet50": resnet50}


def measure(make: Callable[[str], Any], device: str, turns: int) -> dict[str, float]:
    """Milliseconds of a plain step, and the ratios of the others to it."""
    torch.manual_seed(0)
    model, loss_of = make(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()

    def timed(steps: int = 3) -> float:
        step()
        _wait(device)
        began = perf_counter()
        for _ in range(steps):
            step()
        _wait(device)
        return (perf_counter() - began) / steps

    plain, guarded, anomaly = [], [], []
    warnings.filterwarnings("ignore", message="Anomaly Detection has been enabled")
    with tempfile.TemporaryDirectory() as folder:
        timed()
        for _ in range(turns):
            plain.append(timed())
            with torcheer.guard(model, optimizer, folder=folder):
                guarded.append(timed())
            with torch.autograd.detect_anomaly(check_nan=True):
                anomaly.append(timed())
    ratios = {"guard": guarded, "detect_anomaly": anomaly}
    return {
        "plain_ms": 1e3 * median(plain),
        **{name: median(one / base for one, base in zip(found, plain, strict=True)) for name, found in ratios.items()},
    }


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure trainings with and without a guard.")
    parser.add_argument("--device", choices=LIMITS, default="cpu")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    given = parser.parse_args()
    torch.set_num_threads(2 if given.device == "cpu" else torch.get_num_threads())
    results = {make.__name__: measure(make, given.device, given.turns) for make in map(MODELS.__getitem__, given.models)}
    print(json.dumps(results, indent=2))
    return int(any(one["guard"] > LIMITS[given.device] for one in results.values()))


if __name__ == "__main__":
    raise SystemExit(main())
