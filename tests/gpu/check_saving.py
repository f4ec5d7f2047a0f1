"""Checks saved histories on CUDA: what is streamed through pinned buffers is what was kept, and is replayed on the device.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_saving.py
Prints one line per check and exits with 1 if any failed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from check_capture import Network
from checking import run
from torch import Tensor, nn

import torcheer

DEVICE = torch.device("cuda")
FOLDER = Path(tempfile.mkdtemp(prefix="torcheer_saving_"))


def model_and_input() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    return Network().to(DEVICE).eval(), torch.rand(2, 3, 16, 16, device=DEVICE)


def same_activations(one: torcheer.ModelHistory, other: torcheer.ModelHistory) -> None:
    assert one.layer_labels == other.layer_labels
    for ours, theirs in zip(one.operations, other.operations, strict=True):
        a, b = ours.activation, theirs.activation
        assert ours.tensor_device == theirs.tensor_device == DEVICE.__class__("cuda:0"), theirs.tensor_device
        assert b.device.type == "cpu"
        assert torch.equal(a.detach().cpu(), b), ours.label
        assert a.stride() == b.stride(), ours.label


def what_is_saved_comes_back() -> None:
    model, x = model_and_input()
    history = torcheer.log_forward_pass(model, x)
    path = history.save(FOLDER / "saved.safetensors", params=True)
    loaded = torcheer.load(path)
    same_activations(history, loaded)
    ours, theirs = (json.loads(one.to_json(previews=False)) for one in (history, loaded))  # statistics differ by rounding
    assert all(ours[part] == theirs[part] for part in ("modules", "edges", "files", "title"))
    assert [node["label"] for node in ours["nodes"]] == [node["label"] for node in theirs["nodes"]]
    assert str(loaded) == str(history)


def what_is_streamed_is_what_is_kept() -> None:
    model, x = model_and_input()
    torch.backends.cudnn.deterministic = True
    history = torcheer.log_forward_pass(model, x)
    same_activations(history, torcheer.log_forward_pass(model, x, save_to=FOLDER / "streamed.safetensors"))


def large_tensors_are_streamed_in_pieces() -> None:
    """Larger than a pinned buffer, in any layout, overwritten right after they were kept."""

    def overwrites(x: Tensor) -> Tensor:
        y = x * 2
        z = y.t()
        y.mul_(3)
        return z + 1

    x = torch.rand(5000, 9000, device=DEVICE)
    kept = torcheer.log_forward_pass(overwrites, x)
    streamed = torcheer.log_forward_pass(overwrites, x, save_to=FOLDER / "large.safetensors")
    for ours, theirs in zip(kept.operations, streamed.operations, strict=True):
        assert torch.equal(ours.activation.cpu(), theirs.activation), ours.label


def a_loaded_history_is_replayed_on_the_device() -> None:
    model, x = model_and_input()
    history = torcheer.log_forward_pass(model, x)
    whole, bare = history.save(FOLDER / "whole.safetensors", params=True), history.save(FOLDER / "bare.safetensors")
    for loaded in (torcheer.load(whole), torcheer.load(bare, model=model)):
        again = loaded.replay()
        assert again["output"].activation.device == x.device
        assert loaded.validate(), loaded.validate()


def memory_stays_bounded() -> None:
    """Neither the device nor the process holds what was streamed."""

    class Deep(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for _ in range(60):
                x = torch.tanh(x) * 1.01
            return x

    x = torch.rand(4096, 4096, device=DEVICE)
    with torch.no_grad():
        torcheer.log_forward_pass(torch.tanh, x, save_to=FOLDER / "warm.safetensors")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        started = time.perf_counter()
        torcheer.log_forward_pass(Deep(), x, save_to=FOLDER / "deep.safetensors")
        seconds = time.perf_counter() - started
    grown = torch.cuda.max_memory_allocated() - before
    size = (FOLDER / "deep.safetensors").stat().st_size
    assert size > 100 * x.nbytes
    assert grown < 6 * x.nbytes, grown
    resident = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon:"))
    print(f"      {size / 1e9:.1f} GB in {seconds:.1f} s, {size / 1e9 / seconds:.2f} GB/s; {resident}")


def an_interrupted_pass_leaves_nothing() -> None:
    def fails(x: Tensor) -> Tensor:
        y = torch.relu(x)
        raise KeyboardInterrupt(str(y.shape))

    try:
        torcheer.log_forward_pass(fails, torch.rand(3000, 3000, device=DEVICE), save_to=FOLDER / "nothing.safetensors")
    except KeyboardInterrupt:
        pass
    assert not [path for path in FOLDER.iterdir() if "nothing" in path.name]


if __name__ == "__main__":
    sys.exit(
        run(
            [
                what_is_saved_comes_back,
                what_is_streamed_is_what_is_kept,
                large_tensors_are_streamed_in_pieces,
                a_loaded_history_is_replayed_on_the_device,
                memory_stays_bounded,
                an_interrupted_pass_leaves_nothing,
            ]
        )
    )
