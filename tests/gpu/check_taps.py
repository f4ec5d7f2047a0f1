"""Checks reading and changing of chosen values on CUDA, and what it costs a GPT-2 of 12 layers at 8×1024 and at 1×128.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src:tests python tests/gpu/check_taps.py
Prints one line per check, then the ratios against the plain pass, and exits with 1 if any check failed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from checking import no_synchronisation, run
from torch import Tensor, nn

import torcheer
from torcheer import changes

DEVICE = torch.device("cuda")
ROUNDS = 31
MUST = {"five outputs read": 1.01, "one output changed": 1.01, "five outputs and two functions read": 1.01}  # at 8×1024


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, size = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, size))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, size: int = 768, heads: int = 12, layers: int = 12) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(size, heads) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def small() -> tuple[Transformer, Tensor]:
    torch.manual_seed(0)
    return Transformer(16, 4, 3).to(DEVICE), torch.randn(2, 6, 16, device=DEVICE)


def reads_what_the_log_kept() -> None:
    model, x = small()
    history = torcheer.log_forward_pass(model, x)
    labels = [one.label for one in history.operations if not (one.is_input_layer or one.is_output_layer)]
    with torcheer.tap(model, labels, like=history) as values:
        model(x)
    assert all(torch.equal(values[label], history[label].tensor_contents) for label in labels)


def changes_are_those_of_a_plain_hook() -> None:
    model, x = small()
    vector = torch.randn(16)
    handle = model.blocks[1].register_forward_hook(lambda module, args, result: result + vector.to(DEVICE))
    expected = model(x)
    handle.remove()
    with torcheer.intervene(model, {"blocks.1": changes.add(vector)}):
        assert torch.equal(model(x), expected)


def a_replay_is_the_same_change() -> None:
    model, x = small()
    history = torcheer.log_forward_pass(model, x)
    change = {"scaleddotproductattention_2": changes.zero(heads=[1])}
    replayed = history.replay(changes=change)["output"].tensor_contents
    with torcheer.intervene(model, change, like=history):
        torch.testing.assert_close(model(x), replayed)


def noise_is_that_of_the_processor() -> None:
    value = torch.randn(3, 4)
    assert torch.equal(changes.noise(seed=1)(value.to(DEVICE)).cpu(), changes.noise(seed=1)(value))


def works_under_autocast_and_in_half_precision() -> None:
    model, x = small()
    with torch.autocast("cuda", torch.bfloat16):
        history = torcheer.log_forward_pass(model, x)
        with torcheer.tap(model, ["scaleddotproductattention_1"], like=history) as values:
            model(x)
    assert values["scaleddotproductattention_1"].dtype is torch.bfloat16
    with torcheer.intervene(model.half(), {"blocks.0": changes.scale(2)}):
        assert model(x.half()).dtype is torch.float16


def patterns_of_fused_attention() -> None:
    model, x = small()
    history = torcheer.log_forward_pass(model, x)
    heads = history["scaleddotproductattention_1"].heads
    torch.testing.assert_close(heads.pattern @ heads.values, heads.outputs, atol=1e-4, rtol=1e-3)


def does_not_wait_for_the_gpu() -> None:
    model, x = small()
    history = torcheer.log_forward_pass(model, x)
    vector = torch.randn(16, device=DEVICE)
    with torcheer.tap(model, ["blocks.0", "scaleddotproductattention_1"], like=history), torch.no_grad():
        model(x)
        model(x)
        with torcheer.intervene(model, {"blocks.1": changes.add(vector)}), no_synchronisation():
            model(x)


def stopping_saves_the_rest() -> None:
    model, x = small()
    model.blocks[2].register_forward_hook(lambda *given: sys.exit("the rest ran"))
    assert torcheer.activation(model, x, "blocks.1").shape == x.shape


CHECKS = (
    reads_what_the_log_kept,
    changes_are_those_of_a_plain_hook,
    a_replay_is_the_same_change,
    noise_is_that_of_the_processor,
    works_under_autocast_and_in_half_precision,
    patterns_of_fused_attention,
    does_not_wait_for_the_gpu,
    stopping_saves_the_rest,
)


def speed(batch: int, length: int) -> None:
    """Print ratios against the plain pass, taken in turns, and plain against plain beside them."""
    model, x = Transformer().to(DEVICE).eval(), torch.randn(batch, length, 768, device=DEVICE)
    history = torcheer.log_forward_pass(model, x, layers_to_save="none")
    five = [f"blocks.{at}" for at in (1, 3, 5, 7, 9)]
    functions = ["scaleddotproductattention_1", "scaleddotproductattention_2"]
    vector = torch.randn(768, device=DEVICE)
    works: dict[str, Callable[[], Any]] = {
        "five outputs read": lambda: torcheer.tap(model, five),
        "one output changed": lambda: torcheer.intervene(model, {"blocks.6": changes.add(vector)}),
        "five outputs and two functions read": lambda: torcheer.tap(model, [*five, *functions], like=history),
    }

    def timed() -> float:
        torch.cuda.synchronize()
        start = perf_counter()
        model(x)
        torch.cuda.synchronize()
        return perf_counter() - start

    def inside(opened: Callable[[], Any]) -> float:
        with opened():
            model(x)
            model(x)
            return timed()

    for name, opened in works.items():
        for _ in range(3):
            timed(), inside(opened)
        rounds = [(timed(), timed(), inside(opened)) for _ in range(ROUNDS)]
        ratio = median(used / second for _, second, used in rounds)
        noise = median(first / second for first, second, _ in rounds)
        must = f", must be at most {MUST[name]}" if batch * length > 1000 else ""
        plain = median(second for _, second, _ in rounds) * 1e3
        print(f"{batch}×{length}, {name}: {ratio:.3f}× of {plain:.2f} ms (plain against plain {noise:.3f}×{must})", flush=True)


if __name__ == "__main__":
    code = run(CHECKS)
    with torch.no_grad():
        speed(8, 1024)
        speed(1, 128)
    sys.exit(code)
