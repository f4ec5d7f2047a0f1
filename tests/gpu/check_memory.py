"""Checks on CUDA that the memory timeline equals what torch's allocator says, operation by operation.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_memory.py
"""

from __future__ import annotations

import sys

import torch
import torch.nn.functional as F
from checking import run
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import torcheer
from torcheer.analysis import cost_of, device_memory, memory_of


class Block(nn.Module):
    """Attention without local variables that outlive their use."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.qkv = nn.Linear(256, 768)
        self.out = nn.Linear(256, 256)
        self.mlp = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 256))

    def heads(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(self.norm(x)).view(8, 128, 3, 4, 64).permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax((q @ k.transpose(-1, -2)) * 0.125, -1) @ v

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attend(*self.heads(x)).transpose(1, 2).reshape(8, 128, 256))
        return x + self.mlp(x)


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 1),
        nn.SiLU(),
    )


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.Tanh()), (128, 256)),
    "convolutional": (convolutional, (8, 8, 32, 32)),
    "attention": (Block, (8, 128, 256)),
}


def requested() -> int:
    """What tensors asked for; what they were given is rounded up, for large ones by up to a megabyte."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


class Sampler(TorchFunctionMode):
    def __init__(self, log, base: int) -> None:
        super().__init__()
        self.log, self.base, self.samples = log, base, {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before = len(self.log.rows)
        result = func(*args, **(kwargs or {}))
        if len(self.log.rows) > before:
            self.samples[len(self.log.rows) - 1] = requested() - self.base
        return result


def compare(name: str, *, training: bool, gradients: bool) -> list[tuple[str, int, int]]:
    """For each operation its label, the bytes the timeline says, the bytes torch says."""
    make, shape = CASES[name]
    model = make().cuda().train(training)
    with torch.set_grad_enabled(gradients):
        for _ in range(2):
            model(torch.rand(shape, device="cuda"))  # libraries take their workspaces
        torch.cuda.synchronize()
        base = requested()
        x = torch.rand(shape, device="cuda")
        recording = torcheer.recording(model, layers_to_save="none")
        with recording as history, Sampler(history._log, base) as sampler:
            result = model(x)
        del result
    positions, live = history._index.positions, memory_of(history).live
    assert not cost_of(history).unknown
    return [(history._index.label(n), live[positions[n]], real) for n, real in sampler.samples.items() if n in positions]


def test_the_timeline_is_what_the_allocator_says():
    for name in CASES:
        for training in (False, True):
            for gradients in (False, True):
                compared = compare(name, training=training, gradients=gradients)
                peaks = max(one[1] for one in compared), max(one[2] for one in compared)
                print(name, "training" if training else "evaluation", "gradients" if gradients else "", *peaks)
                different = [one for one in compared if one[1] != one[2]]
                assert not different, (name, training, gradients, different)


def test_device_memory_reads_the_device():
    tensor = torch.zeros(2**20, device="cuda")
    memory = device_memory()
    assert memory.allocated is not None
    assert memory.reserved is not None
    assert memory.reserved >= memory.allocated >= 4 * 2**20
    del tensor


def test_attention_has_the_same_cost_as_on_the_cpu():
    q = torch.rand(2, 4, 32, 64, device="cuda", dtype=torch.float16)
    on_device = cost_of(torcheer.log_forward_pass(F.scaled_dot_product_attention, (q, q, q)))
    on_cpu = cost_of(torcheer.log_forward_pass(F.scaled_dot_product_attention, (q.cpu().float(),) * 3))
    assert on_device.flops == on_cpu.flops


if __name__ == "__main__":
    checks = (
        test_device_memory_reads_the_device,
        test_attention_has_the_same_cost_as_on_the_cpu,
        test_the_timeline_is_what_the_allocator_says,
    )
    sys.exit(run(checks))
