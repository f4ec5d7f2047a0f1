"""Extractions that are killed with `kill -9` at random moments and resumed, in one process and in two.

    python tests/features/kills.py 100

kills a hundred times each way, and compares every byte with an undisturbed run. `make kills` does so; the tests kill ten times.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer.reducers import Mean, TopK


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.0005)  # so that most of the time is spent in the blocks
        return self.second(self.first(x).relu_())


def work(folder: Path) -> None:
    """One extraction: forty blocks of three batches, values and statistics."""
    torch.manual_seed(0)
    model, data = Net().eval(), TensorDataset(torch.rand(960, 8), torch.arange(960))
    keep = {"second": [Mean(), TopK(3), "activations"]}
    tl.extract(model, DataLoader(data, batch_size=8), ["first", "second"], to=folder, block=24, keep=keep, progress=False)


def start(folder: Path, rank: int, world: int) -> int:
    """Fork a process that works, after everything is imported. Returns its number."""
    child = os.fork()
    if child:
        return child
    try:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
        work(folder)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def ended(child: int) -> bool:
    """Wait for a process. Returns whether it was killed; raises where it failed."""
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    if os.WEXITSTATUS(status):
        raise RuntimeError("an extraction that was resumed failed")
    return False


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a folder. What a killed process left half-written is gone after the next extraction."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def kill_and_resume(kills: int, world: int, seed: int) -> None:
    """Kill extractions so many times, let the last one end, and compare it with one that nobody disturbed."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        reference, folder = Path(name, "reference"), Path(name, "killed")
        begin = time.monotonic()
        assert not ended(start(reference, 0, 1))
        longest = time.monotonic() - begin
        expected = contents(reference)
        count = 0
        while count < kills:
            children = [start(folder, rank, world) for rank in range(world)]
            time.sleep(rng.uniform(0.1, 1) * longest / world)
            for child in children:
                if rng.random() < 0.8:
                    os.kill(child, signal.SIGKILL)
            landed = sum(map(ended, children))
            count += landed
            if not landed:  # they were done before: the first run took longer, on a machine that was busy then
                longest *= 0.7
            there = contents(folder) if folder.is_dir() else {}
            assert all(expected[file] == data for file, data in there.items() if file.startswith("block-"))
            if len([file for file in there if file.startswith("block-")]) == 40:  # it was done: begin anew
                for path in folder.iterdir():
                    path.unlink()
        for child in [start(folder, rank, 3 - world) for rank in range(3 - world)]:  # ended by another number of processes
            assert not ended(child)
        found = contents(folder)
        different = sorted(file for file in {**found, **expected} if found.get(file) != expected.get(file))
        if different:
            raise RuntimeError(f"after {count} kills of {world} processes these files differ: {different}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for processes in (1, 2):
        kill_and_resume(wanted, processes, seed=processes)
        print(f"{wanted} kills of {processes} process{'es' if processes > 1 else ''}: every byte as in an undisturbed run")
