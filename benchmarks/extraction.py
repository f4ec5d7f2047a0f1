"""Activations of a dataset, against the plain loop and against hooks written by hand that keep everything in memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .models import build
from .saving import disk

LAYERS = {
    "resnet50": ["layer1", "layer2", "layer3", "layer4", "avgpool"],
    "gpt2_small": [f"h.{at}" for at in range(12)],
}
_THEIRS = {**LAYERS, "gpt2_small": [f"h.{at}.mlp" for at in range(12)]}  # TorchLens knows no outputs of whole blocks
_SAMPLES = {"resnet50": 8, "gpt2_small": 4}  # in a batch
_ROUNDS = 15
_BATCHES = 12  # of a whole extraction
_MEMORY = Path("/dev/shm")  # a disk that always keeps up
_PIECE = 1 << 20


def extraction_forward(case: str, rounds: int = _ROUNDS) -> dict[str, Any]:
    """The part of an extraction that runs the model: one batch at a time, in turns with the plain pass and with hooks."""
    from torcheer.features.layer_reader import LayerReader

    model, batch = _case(case)
    layers = LAYERS[case]
    reader = LayerReader(model, layers, batch)
    reader.read(batch)  # finds out what the model writes to

    def read() -> float:
        reader.read(batch)  # hooks the model, copies every value, and sees which of them need it
        took = _timed(lambda: reader.read(batch))
        reader.close()
        return took

    reader.close()
    kept, copied = _hooks(model, layers, keep=True), _hooks(model, layers, keep=False)
    taken = []
    for _ in range(rounds):
        plain = [_timed(lambda: model(batch)) for _ in range(2)]
        taken.append((*plain, kept(batch), copied(batch), read()))
    noise, _, hooks, copies, ours = (median(one[at] / one[1] for one in taken) for at in range(5))
    return {
        "plain_ms": median(one[1] for one in taken) * 1e3,
        "noise": noise,
        "hooks": hooks,
        "copies": copies,
        "ratio": ours,
    }


def extraction_whole(case: str, rounds: int = 5) -> dict[str, Any]:
    """Whole extractions into memory and onto the disk, in turns with the plain loop, from the second batch to the end.

    The first batch is logged, and run twice more: what that takes, once for a dataset, is told apart. `bound_ratio` is what
    writing as many bytes takes by itself, which no extraction can be faster than.
    """
    model, batch = _case(case)
    batches = [batch] * _BATCHES
    kept = _hooks(model, LAYERS[case], keep=True)
    places = {"memory": _MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir()), "disk": disk()}
    taken: dict[str, list[float]] = {name: [] for name in ("plain", "hooks", *places, "first", "bound")}
    size = 0
    for _ in range(rounds):
        taken["plain"].append(sum(_timed(lambda: model(batch)) for _ in range(_BATCHES - 1)))
        taken["hooks"].append(sum(kept(batch) for _ in range(_BATCHES - 1)))
        for name, place in places.items():
            with _folder(place) as folder:
                first, rest, size = _extracted(model, batches, LAYERS[case], folder)
            taken[name].append(rest)
            taken["first"].append(first)
        with _folder(places["disk"]) as folder:
            taken["bound"].append(_written(folder / "file", size))
    found = {name: median(a / b for a, b in zip(times, taken["plain"], strict=False)) for name, times in taken.items()}
    return {
        "plain_ms": median(taken["plain"]) / (_BATCHES - 1) * 1e3,
        "first_ms": median(taken["first"]) * 1e3,
        "bytes": size,
        "disk_rate": size / median(taken["bound"]),
        "hooks": found["hooks"],
        "ratio": found["memory"],
        "disk_ratio": found["disk"],
        "bound_ratio": found["bound"] * (_BATCHES - 1) / _BATCHES,
    }


def extraction_of_torchlens(case: str) -> dict[str, Any]:
    """The same by TorchLens, if it is installed: a whole extraction into memory, against the plain loop before it."""
    try:
        import torchlens
    except ImportError:
        return {"not_installed": True}
    model, batch = _case(case)
    count = _SAMPLES[case]
    plain = [_timed(lambda: model(batch)) for _ in range(6)][1:]
    with _folder(_MEMORY if _MEMORY.is_dir() else disk()) as folder:

        def once(batches: int) -> float:
            shutil.rmtree(folder)
            stimuli = torch.cat([batch] * batches)
            extract = torchlens.extract_dataset
            return _timed(lambda: extract(model, stimuli, _THEIRS[case], count, output_dir=folder, progress=False))

        short, long = once(1), once(4)
    per_batch = (long - short) / 3
    return {"plain_ms": median(plain) * 1e3, "first_ms": short * 1e3, "ratio": per_batch / median(plain)}


# What is measured -----------------------------------------------------------------------------------------------------


def _case(case: str) -> tuple[Module, Tensor]:
    model, x = build(case)
    return model, x.expand(_SAMPLES[case], *x.shape[1:]).contiguous()


def _timed(function: Callable[[], Any]) -> float:
    start = perf_counter()
    function()
    return perf_counter() - start


def _hooks(model: Module, layers: list[str], *, keep: bool) -> Callable[[Tensor], float]:
    """The loop that everybody writes: hooks that hold what they see, or, as thingsvision does, a copy of it, as NumPy."""

    def once(batch: Tensor) -> float:
        seen: dict[str, Any] = {}

        def hook(name: str) -> Any:
            def see(_module: Any, _args: Any, output: Any) -> None:
                tensor = output[0] if isinstance(output, tuple) else output
                seen[name] = tensor if keep else tensor.clone().detach()

            return see

        handles = [model.get_submodule(name).register_forward_hook(hook(name)) for name in layers]
        start = perf_counter()
        model(batch)
        if not keep:
            seen = {name: tensor.numpy() for name, tensor in seen.items()}
        took = perf_counter() - start
        for handle in handles:
            handle.remove()
        return took

    return once


def _extracted(model: Module, batches: list[Tensor], layers: list[str], folder: Path) -> tuple[float, float, int]:
    """Seconds until the first batch was run, seconds from then on, and bytes."""
    import torcheer

    ends: list[float] = []
    start = perf_counter()
    features = torcheer.extract(
        model, batches, layers, folder, block=4 * len(batches[0]), progress=lambda _: ends.append(perf_counter())
    )
    end = perf_counter()
    return ends[0] - start, end - ends[0], features.size_on_disk


def _written(path: Path, size: int) -> float:
    """Seconds to write a file of so many bytes, all of it on the disk."""
    data = os.urandom(_PIECE)
    start = perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // _PIECE):
            file.write(data)
        os.fsync(file.fileno())
    return perf_counter() - start


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=place, prefix="torcheer-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
