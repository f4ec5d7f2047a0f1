"""What `test_torchrun.py` runs under torchrun, and in one process: `python torchrun_program.py FOLDER TASK…`.

Each task is an extraction into the folder of its name. One that begins with `begun` is left when this process has run twenty
samples; with a `+` it is gone on with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torcheer as tl
from torcheer import cli, reducers


class Left(Exception):
    """The extraction is left unfinished."""


def make_model() -> nn.Module:
    """Also what the command names."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 5)).eval()


def make_data() -> DataLoader:
    torch.manual_seed(1)
    return DataLoader(TensorDataset(torch.randn(100, 3, 6, 6), torch.arange(100)), batch_size=4)


def extract(folder: Path, model: nn.Module | None = None, after: int | None = None) -> None:
    def leave(progress):
        if after is not None and progress.samples >= after:
            raise Left

    tl.extract(
        model or make_model(),
        make_data(),
        ["0", "4"],
        folder,
        keep=["activations", reducers.Covariance(), reducers.TopK(3)],
        block=8,
        progress=leave,
    )


def wrapped() -> nn.Module:
    """The model as it is trained on several devices."""
    torch.distributed.init_process_group("gloo")
    return nn.parallel.DistributedDataParallel(make_model())


def main(folder: Path, tasks: list[str]) -> None:
    for task in tasks:
        if task == "command":
            names = ["torchrun_program:make_model", "torchrun_program:make_data"]
            assert cli.main(["extract", *names, "--layers", "0", "4", "--block", "8", "-o", str(folder / task)]) == 0
            continue
        model = wrapped() if task == "ddp" else None
        try:
            extract(folder / task.removesuffix("+"), model, 20 if task.startswith("begun") and not task.endswith("+") else None)
        except Left:
            continue
        finally:
            if model is not None:
                torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
