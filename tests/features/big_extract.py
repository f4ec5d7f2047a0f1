"""Extracts more features than fit into memory, and reads them again.

    PYTHONPATH=tests python tests/features/big_extract.py 10 FOLDER

The first argument is how many gigabytes of features are written. What is measured is memory of the process that is not a part
of some file: it has to stay below 2 GB all the time.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import torcheer as tl
from memory_watch import MemoryWatch
from torcheer import reducers

LARGEST = 2.0  # GB
_CHANNELS, _SIDE, _BATCH = 64, 56, 32
_EACH = 3 * _CHANNELS * _SIDE * _SIDE * 4  # bytes of a sample, in three layers


class Pictures(Dataset[tuple[Tensor, int]]):
    """Pictures that are made when they are asked for."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return torch.rand(3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(number)), number


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, _CHANNELS, 3, padding=1), nn.ReLU(), nn.Conv2d(_CHANNELS, _CHANNELS, 3, padding=1, groups=_CHANNELS)
    ).eval()


def main(size: float, folder: Path) -> None:
    watch = MemoryWatch()
    watch.start()
    shutil.rmtree(folder, ignore_errors=True)
    model, data = make_model(), Pictures(int(size * 1e9) // _EACH)
    started = perf_counter()
    keep = {"1": ["activations", reducers.Mean(), reducers.TopK(5)]}
    features = tl.extract(model, DataLoader(data, batch_size=_BATCH), ["0", "1", "2"], folder, keep=keep)
    extracted, written = perf_counter() - started, features.size_on_disk / 1e9
    print(f"{written:.1f} GB extracted in {extracted:.0f} s; at most {watch.peak:.2f} GB of memory", flush=True)
    started = perf_counter()
    check(features, model, data)
    print(f"read in {perf_counter() - started:.0f} s; at most {watch.peak:.2f} GB of memory")
    shutil.rmtree(folder)
    assert written > 0.9 * size
    assert watch.peak < LARGEST, f"{watch.peak:.2f} GB"


def check(features: tl.Features, model: nn.Module, data: Pictures) -> None:
    """Read everything once in order, and some of it in another order, and compare with the plain model."""
    total, count = torch.zeros(_CHANNELS, dtype=torch.float64), 0
    for batch in features["1"].batches(64):
        total += batch.mean((2, 3), dtype=torch.float64).sum(0)
        count += len(batch)
    assert count == len(data)
    assert torch.allclose(features.mean("1").mean, total / count)
    numbers = torch.randperm(len(data), generator=torch.Generator().manual_seed(0))[:200]
    for some in numbers.split(50):
        pictures = torch.stack([data[number][0] for number in some.tolist()])
        with torch.no_grad():
            expected = model[0](pictures)
            for layer, read in (("0", expected), ("1", expected.relu()), ("2", model[2](expected.relu()))):
                assert torch.allclose(features[layer][some], read, atol=1e-5), layer
    assert torch.equal(features.labels["labels"], torch.arange(len(data)))


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
