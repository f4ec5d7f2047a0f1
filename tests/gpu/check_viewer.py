"""Checks on CUDA that the viewer's statistics and previews are those of the same values on the processor.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_viewer.py
"""

from __future__ import annotations

import json
import math
import sys
import time

import torch
from checking import run

import torcheer
from torcheer._torch.measure import statistics_of
from torcheer.demo import AlexNet, Gpt2
from torcheer.page import payload_of
from torcheer.page.values import plan_of, preview_of

TENSORS = [
    torch.randn(3, 20, 30, 40),
    torch.randn(2, 12, 40, 40).softmax(-1),
    torch.randn(40_000_000),
    torch.randn(200, 300, dtype=torch.float16),
    torch.randn(200, 300, dtype=torch.bfloat16),
    torch.randn(20, 30, dtype=torch.complex64),
    torch.arange(1000).reshape(10, 100),
    torch.rand(20, 30) > 0.5,
    torch.tensor([1.0, math.nan, math.inf, -2.0, 0.0]),
    torch.randn(5, 1, 7).expand(5, 400, 7),
    torch.randn(8, 9).t(),
    torch.empty(0, 3),
]


def test_statistics_are_those_of_the_processor():
    for tensor in TENSORS:
        here, there = statistics_of(tensor), statistics_of(tensor.cuda())
        assert here is not None
        assert there is not None
        for name in ("count", "mean", "std", "min", "max", "norm", "zeros", "nan", "inf"):
            one, other = getattr(here, name), getattr(there, name)
            assert one == other or math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-4), (tensor.shape, name)
        moved = sum(abs(a - b) for a, b in zip(here.histogram, there.histogram, strict=True))
        assert moved <= max(4, tensor.numel() * 1e-5), tensor.shape


def test_previews_are_those_of_the_processor():
    for tensor in TENSORS:
        plan = plan_of(tuple(tensor.shape), is_input=False)
        if plan is not None:
            here, there = preview_of(tensor, plan), preview_of(tensor.cuda(), plan)
            assert here is not None
            assert there is not None
            assert (here["kind"], here["width"], here["height"]) == (there["kind"], there["width"], there["height"])
            assert math.isclose(here["high"], there["high"], rel_tol=1e-3), tensor.shape


def test_a_payload_needs_no_operation_that_is_not_deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        history = torcheer.log_forward_pass(
            AlexNet().cuda().eval(), torch.rand(4, 3, 224, 224, device="cuda"), layers_to_save="all"
        )
        payload = payload_of(history)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all("stats" in node and "preview" in node for node in payload["nodes"])
    assert {node["device"] for node in payload["nodes"]} == {"cuda:0"}
    json.dumps(payload, allow_nan=False)


def test_a_decoder_takes_little_time():
    with torch.no_grad():
        history = torcheer.log_forward_pass(Gpt2().cuda().half(), torch.randint(50257, (4, 256), device="cuda"))
    began = time.perf_counter()
    payload = payload_of(history)
    print(f"   {len(payload['nodes'])} operations, {time.perf_counter() - began:.2f} s")
    assert "notes" not in payload["facts"]
    assert sum("attention" in node for node in payload["nodes"]) == 12  # the patterns of its heads


if __name__ == "__main__":
    checks = (
        test_statistics_are_those_of_the_processor,
        test_previews_are_those_of_the_processor,
        test_a_payload_needs_no_operation_that_is_not_deterministic,
        test_a_decoder_takes_little_time,
    )
    sys.exit(run(checks))
