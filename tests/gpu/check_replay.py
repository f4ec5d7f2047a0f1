"""Checks proof by replay on CUDA: models whose values, edges and modules must come again, bit by bit.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src:tests python tests/gpu/check_replay.py
Prints one line per model and exits with 1 if any log is not valid. Takes the hand-written models of the zoo too.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import torch
import torch.nn.functional as F
from check_capture import DEVICE, Network
from torch import Tensor, nn

import torcheer


class Recurrent(nn.Module):
    """A cell in a loop, with a state that starts as zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True, dropout=0.2)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.shape[0], 8, device=x.device)
        for step in range(x.shape[1]):
            h, c = self.cell(x[:, step], (h, c))
        return self.lstm(x)[0][:, -1] + h


def half_precision(x: Tensor) -> Tensor:
    with torch.autocast("cuda", dtype=torch.float16):
        return F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None]).float()


def atomic_additions(x: Tensor) -> Tensor:
    index = torch.arange(64, device=x.device) % 3
    return torch.zeros(3, 8, device=x.device).index_add(0, index, x.repeat(16, 1, 1)[:, 0, :].repeat(2, 1)[:64])


def random_numbers(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5) + torch.randn_like(x) + torch.rand(8, device=x.device)


def cases() -> dict[str, tuple[Callable[..., object], Tensor]]:
    torch.manual_seed(0)
    sequence = torch.rand(4, 5, 8, device=DEVICE)
    return {
        "network, training": (Network().to(DEVICE).train(), torch.rand(2, 3, 16, 16, device=DEVICE)),
        "network, evaluation": (Network().to(DEVICE).eval(), torch.rand(2, 3, 16, 16, device=DEVICE)),
        "recurrent": (Recurrent().to(DEVICE), sequence),
        "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE), sequence),
        "bfloat16": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(DEVICE, torch.bfloat16), sequence.bfloat16()),
        "half precision by autocast": (half_precision, sequence),
        "atomic additions": (atomic_additions, sequence),
        "random numbers": (random_numbers, sequence),
    }


def main() -> int:
    failed = 0
    for name, (model, x) in cases().items():
        try:
            before = torch.cuda.get_rng_state()
            report = torcheer.validate_forward_pass(model, x)
            assert report, report
            assert torch.equal(before, torch.cuda.get_rng_state()), "the random state of the device was changed"
            changed = torcheer.log_forward_pass(model, x).replay(inputs=x * 0.5)
            assert changed["output"].tensor_contents.is_cuda
            print(f"ok    {name}: {report.num_operations} operations")
        except Exception:
            failed += 1
            print(f"FAIL  {name}\n{traceback.format_exc()}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
