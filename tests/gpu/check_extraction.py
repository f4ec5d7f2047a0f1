"""Checks extraction of features on CUDA, and what it costs a GPT-2 of 12 layers at 8×1024.

A plain script, for machines with torch alone:`PYTHONPATH=src:tests/gpu python tests/gpu/check_extraction.py`
Prints one line per check, then how long the GPU is busy against the plain loop, and exits with 1 if any check failed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from check_taps import Transformer
from checking import no_synchronisation, run
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

import torcheer as tl
from torcheer.features.layer_reader import LayerReader
from torcheer.features.storage import open_storage
from torcheer.features.writer import BlockWriter

DEVICE = torch.device("cuda")
BUSY = 0.95  # how long the GPU is to be busy, against the plain loop, where the disk keeps up
BOUND = 0.75  # how much of what the disk takes is to be written, where it does not


def hooked(model: Any, batches: list[Tensor], names: list[str]) -> dict[str, Tensor]:
    seen: dict[str, list[Tensor]] = {name: [] for name in names}
    for name in names:
        keep = lambda module, args, out, name=name: seen[name].append(out.cpu().clone())
        model.get_submodule(name).register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            model(batch.to(DEVICE))
    for name in names:
        model.get_submodule(name)._forward_hooks.clear()
    return {name: torch.cat(some) for name, some in seen.items()}


def features_are_what_hooks_see() -> None:
    """Batches are on the CPU; values are overwritten in place later, transformed and converted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(inplace=True), nn.Linear(512, 64), nn.Sigmoid()).to(DEVICE).eval()
    batches = [torch.randn(100, 64) for _ in range(30)]
    with tempfile.TemporaryDirectory() as folder:
        features = tl.extract(model, batches, ["0", "1", "2", "3"], folder, block=250, progress=False)
        expected = hooked(model, batches, ["0", "1", "2", "3"])
        assert all(torch.equal(features[name][:], expected[name]) for name in expected)
    with tempfile.TemporaryDirectory() as folder:
        features = tl.extract(model, batches, ["2"], folder, dtype="float16", transform=lambda t: t[:, :7], progress=False)
        assert torch.equal(features["2"][:], expected["2"][:, :7].half())


def nothing_waits_for_the_gpu() -> None:
    """Neither reading nor handing over, after the first batches."""
    model, x = Transformer(64, 4, 3).to(DEVICE).eval(), torch.randn(2, 16, 64, device=DEVICE)
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, 9:] = 0
    with tempfile.TemporaryDirectory() as folder:
        writer = BlockWriter(open_storage(folder), 4096, lambda size: None)
        for flatten, batch in ((None, x), ("tokens", {"x": x, "attention_mask": mask})):
            with LayerReader(model, "blocks.*", batch, flatten=flatten) as reader:
                for _ in range(3):
                    writer.add(reader.read(batch))
                torch.cuda.synchronize()
                with no_synchronisation():
                    writer.add(reader.read(batch))
        writer.abandon()


def busy(work: Callable[[], None]) -> tuple[float, float]:
    """How long the GPU ran kernels, and how long it took in all, in seconds."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        begin = perf_counter()
        work()
        torch.cuda.synchronize()
        took = perf_counter() - begin
    events: Iterator[Any] = (event for event in seen.events() if "Memcpy" not in event.name)
    return sum(event.device_time_total for event in events) / 1e6, took


def own_rate(folder: Path, sizes: list[int]) -> float:
    """How many GB a second the disk takes, of files of these sizes that are written from pinned memory and flushed."""
    data = memoryview(torch.ones(32 << 20, dtype=torch.uint8).pin_memory().numpy())
    begin = perf_counter()
    for number, size in enumerate(sizes):
        path = folder / f"own-{number}"
        with path.open("wb", buffering=0) as file:
            for at in range(0, size, len(data)):
                file.write(data[: size - at])
            os.fsync(file.fileno())
    took = perf_counter() - begin
    for path in folder.glob("own-*"):
        path.unlink()
    return sum(sizes) / 1e9 / took


def measure() -> int:
    model = Transformer().to(DEVICE).eval()
    batches = [torch.randn(8, 1024, 768, device=DEVICE) for _ in range(3)]
    data = [batches[at % 3] for at in range(30)]

    def plain() -> None:
        with torch.no_grad():
            for batch in data:
                model(batch)

    plain()
    failed = 0
    settings: dict[str, dict[str, Any]] = {
        "float32": {},
        "float16": {"dtype": "float16"},
        "last position": {"transform": lambda tensor: tensor[:, -1]},
    }
    for where in ("/dev/shm", "/tmp"):
        folder = Path(tempfile.mkdtemp(dir=where))
        for name, options in settings.items():
            times: list[float] = []
            for count in (1, 1, 2):  # the first warms up; what all three do once, such as the log, is in no difference
                to, begin = folder / f"{name}-{len(times)}", perf_counter()
                tl.extract(model, data * count, "blocks.*", to, block=64, progress=False, **options)
                times.append(perf_counter() - begin)
                sizes = [path.stat().st_size for path in to.iterdir()]
                shutil.rmtree(to)
            took = busy(plain)[1]
            ours_took = times[2] - times[1]
            share, rate = took / ours_took, sum(sizes) / 2e9 / ours_took
            disk = own_rate(folder, sizes)
            is_kept = share >= BUSY or rate >= BOUND * disk
            failed += not is_kept
            once = times[1] - ours_took
            said = "ok  " if is_kept else "SLOW"
            print(f"{said}  {where}, {name}: plain {took:.2f} s, extract {ours_took:.2f} s and {once:.2f} s once;")
            print(
                f"      GPU busy {share:.1%} of the plain loop; {rate:.2f} GB/s, where the disk takes {disk:.2f} GB/s",
                flush=True,
            )
        shutil.rmtree(folder)
    # The same without a disk: blocks are taken and dropped.
    kernels, took = busy(plain)
    with LayerReader(model, "blocks.*", batches[0]) as reader:
        for _ in range(2):
            reader.read(batches[0])

        def read() -> None:
            for at, batch in enumerate(data):
                reader.read(batch, at)

        ours, ours_took = busy(read)
    ratio = (ours / ours_took) / (kernels / took)
    print(f"read only: {took:.3f} s plain, {ours_took:.3f} s, {ours_took / took:.3f}×; GPU busy {ratio:.1%} of the plain loop")
    failed += ratio < BUSY
    return failed


if __name__ == "__main__":
    code = run([features_are_what_hooks_see, nothing_waits_for_the_gpu])
    sys.exit(code or bool(measure()))
