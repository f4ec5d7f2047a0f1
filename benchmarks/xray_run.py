"""A long training under an Xray: does it stay as fast, as small, and without a stall?

    python -m benchmarks.xray_run --snapshots 20000

Times are the training thread's own processor time, so that other work on the machine does not count. Snapshots are taken as
fast as they can be, of a small convolutional network, and thinned to a budget of bytes all the time.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from torcheer import Xray

from .memory import resident

PART = 200  # snapshots that are looked at together
MAX_BYTES = 300_000_000  # some 6,000 snapshots fit


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 16), nn.ReLU(), nn.Linear(16, 4))


def measure_long_run(snapshots: int, max_bytes: int | None = MAX_BYTES) -> dict[str, Any]:
    """Take so many snapshots of a training, and say what they took at the beginning, at the end, and at most."""
    torch.set_num_threads(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 1, 8, 8), torch.randint(4, (8,))
    own: list[float] = []  # seconds of the training thread
    behind: list[float] = []  # of the thread that writes
    memory: list[int] = []
    with torch.enable_grad(), tempfile.TemporaryDirectory() as folder:
        xray = Xray(model, x[:2], ["0", "3"], folder=Path(folder) / "run", optimizer=optimizer, max_bytes=max_bytes)
        for step in range(snapshots):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            began, started = time.thread_time(), time.process_time()
            xray.take_graphs(step)
            own.append(time.thread_time() - began)
            xray.flush()
            behind.append(time.process_time() - started - own[-1])
            if step % PART == PART - 1:
                memory.append(resident())
        kept = len(xray.run.snapshots)
        xray.close()
    first, last = slice(PART // 2, PART), slice(-PART // 2, None)
    settled = min(len(memory) - 1, 5)
    return {
        "snapshots": snapshots,
        "kept": kept,
        "first_ms": 1e3 * _median(own[first]),
        "last_ms": 1e3 * _median(own[last]),
        "most_ms": 1e3 * max(own[PART // 2 :]),
        "first_behind_ms": 1e3 * _median(behind[first]),
        "last_behind_ms": 1e3 * _median(behind[last]),
        "most_behind_ms": 1e3 * max(behind[PART // 2 :]),
        "bytes_per_snapshot": (memory[-1] - memory[settled]) / max(1, (len(memory) - 1 - settled) * PART),
    }


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a long training under an Xray.")
    parser.add_argument("--snapshots", type=int, default=20_000)
    print(json.dumps(measure_long_run(parser.parse_args().snapshots), indent=2))


if __name__ == "__main__":
    main()
