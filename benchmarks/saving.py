"""What it takes to save a history and to open it again, beside torch and TorchLens."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from .models import build, tiny_loop
from .timing import interleave, rounds_in

_SECONDS = 12.0


def saving(case: str) -> dict[str, Any]:
    """Saving a history against `torch.save` of the same tensors, in turns; and opening it and reading one layer."""
    import torcheer

    model, x = build(case)
    with torch.no_grad():
        history = torcheer.log_forward_pass(model, x)
    tensors = [one.activation for one in history.saved]
    label = history.layer_labels[len(history.layer_labels) // 2]
    with tempfile.TemporaryDirectory(dir=disk()) as folder:
        path, other = Path(folder) / "run.safetensors", Path(folder) / "run.pt"
        functions = (lambda: torch.save(tensors, other), lambda: history.save(path), lambda: _flushed(tensors, other))
        theirs, ours, flushed = interleave(rounds_in(_SECONDS, *functions), *functions)
        opened = interleave(30, lambda: torcheer.load(path), lambda: float(torcheer.load(path)[label].activation.sum()))
        size = path.stat().st_size
    return {
        "bytes": size,
        "save": asdict(ours),
        "torch_save": asdict(theirs),
        "torch_save_flushed": asdict(flushed),
        "ratio": ours.median / theirs.median,
        "flushed_ratio": ours.median / flushed.median,
        "open_ms": opened[0].median,
        "open_and_read_ms": opened[1].median,
    }


def _flushed(tensors: list[torch.Tensor], path: Path) -> None:
    """`torch.save`, and what saving a history does besides: the file is on the disk when it returns."""
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def saved_loop(operations: int) -> dict[str, Any]:
    """A long log of tiny operations, everything kept: seconds to save it and to open it, the best of three."""
    import torcheer

    history = torcheer.log_forward_pass(tiny_loop(operations), torch.zeros(4, 4))
    len(history)  # grouping is measured elsewhere
    saved, opened = [], []
    with tempfile.TemporaryDirectory(dir=disk()) as folder:
        path = Path(folder) / "run.safetensors"
        for _ in range(3):
            started = perf_counter()
            history.save(path)
            saved.append(perf_counter() - started)
            started = perf_counter()
            torcheer.load(path)
            opened.append(perf_counter() - started)
        size = path.stat().st_size
    return {"operations": operations, "bytes": size, "save_seconds": min(saved), "open_seconds": min(opened)}


def torchlens_saving(case: str) -> dict[str, Any]:
    """TorchLens's own save and load of the same pass."""
    try:
        version("torchlens")
    except PackageNotFoundError:
        return {"not_installed": True}
    import torchlens

    model, x = build(case)
    with torch.no_grad():
        trace = torchlens.trace(model, x)
    saved, opened = [], []
    with tempfile.TemporaryDirectory(dir=disk()) as folder:
        path = Path(folder) / "run.tlspec"
        for _ in range(3):
            shutil.rmtree(path, ignore_errors=True)
            started = perf_counter()
            torchlens.save(trace, path)
            saved.append(perf_counter() - started)
            started = perf_counter()
            torchlens.load(path)
            opened.append(perf_counter() - started)
        files = [one for one in path.rglob("*") if one.is_file()] if path.is_dir() else [path]
        size = sum(one.stat().st_size for one in files)
    return {"bytes": size, "files": len(files), "save_ms": median(saved) * 1e3, "open_ms": median(opened) * 1e3}


def disk() -> Path:
    """Where to write: on the disk of the project, since the folder for temporary files may be memory."""
    build_folder = Path("build")
    build_folder.mkdir(exist_ok=True)
    return build_folder
