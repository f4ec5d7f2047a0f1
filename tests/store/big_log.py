"""Logs more than fits into memory straight into a file, and reads it again.

    PYTHONPATH=tests python tests/store/big_log.py 20 big.safetensors

The first argument is how many gigabytes of activations are kept. What is measured is memory of the process that is not a part
of some file (VmHWM counts pages of mapped files too): it has to stay below 2 GB all the time.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter

import torch

import torcheer
from memory_watch import MemoryWatch

LARGEST = 2.0  # GB
_WIDTH = 1 << 13
_ROWS = 1 << 10  # of float32: 32 MiB for each operation
_EACH = _WIDTH * _ROWS * 4


class Deep(torch.nn.Module):
    """Many large activations, of which the model itself needs one at a time."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.depth // 2):
            x = torch.tanh(x)
            x = x * 1.01
        return x


def main(size: float, path: Path) -> None:
    watch = MemoryWatch()
    watch.start()
    depth = max(2, int(size * 1e9) // _EACH)
    started = perf_counter()
    with torch.no_grad():
        history = torcheer.log_forward_pass(Deep(depth), torch.rand(_ROWS, _WIDTH), save_to=path)
    logged = perf_counter() - started
    written = path.stat().st_size / 1e9
    started = perf_counter()
    loaded = torcheer.load(path)
    opened = perf_counter() - started
    last = loaded.operations[-2]
    expected = loaded.operations[-3].activation * 1.01
    assert torch.equal(last.activation, expected)
    means = [float(one.activation[::64].mean()) for one in loaded.operations]
    assert len(means) == len(history.operations)
    path.unlink()
    print(f"{written:.1f} GB logged in {logged:.0f} s, opened in {opened * 1e3:.0f} ms; at most {watch.peak:.2f} GB of memory")
    assert written > 0.9 * size
    assert watch.peak < LARGEST, f"{watch.peak:.2f} GB"


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]))
