"""Checks reducers and similarities on CUDA: what is found there is what the processor finds.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_reducers.py
Prints one line per check and exits with 1 if any failed.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable

import torch
from checking import run
from torch import Tensor, nn

import torcheer as tl
from torcheer.reducers import Covariance, Histogram, Mean, Reducer, TopK

REDUCERS = [Mean(), Mean(unit_dim="all"), Covariance(), TopK(5), TopK(5, positions="max", largest=False), Histogram()]
REDUCERS += [Histogram(20, range=(-2, 2))]


def state_of(reducer: Reducer, values: Tensor) -> dict[str, Tensor]:
    state = reducer.begin()
    for begin in range(0, len(values), 16):
        part = values[begin : begin + 16]
        reducer.update(state, part, torch.arange(begin, begin + len(part), device=values.device))
    return reducer.to_tensors(state)


def agree(values: Tensor) -> None:
    for reducer in REDUCERS:
        here, there, again = (state_of(reducer, one) for one in (values, values.cuda(), values.cuda()))
        for name, wanted in here.items():
            if wanted.dtype is torch.int64:
                assert torch.equal(there[name], wanted), (reducer, name)
            else:
                torch.testing.assert_close(there[name], wanted, rtol=1e-9, atol=1e-9, msg=f"{reducer} {name}", equal_nan=True)
            assert torch.equal(there[name].nan_to_num(), again[name].nan_to_num()), (reducer, name, "twice")


def float32_agrees() -> None:
    values = torch.randn(80, 6, 9, 9)
    values[3, 2, 1, 1], values[7, 0] = torch.nan, torch.inf
    agree(values)


def bfloat16_agrees() -> None:
    agree(torch.randn(80, 12, 6).bfloat16())


def complex_agrees() -> None:
    agree(torch.randn(80, 6, dtype=torch.complex64))


def similarity_agrees() -> None:
    layers = {"narrow": torch.randn(90, 5), "wide": torch.randn(90, 4, 8, 8)}
    on_device = {name: values.cuda() for name, values in layers.items()}
    for options in ({}, {"debiased": True}, {"measure": "rsa"}):
        here, there = tl.similarity(layers, **options), tl.similarity(on_device, **options)
        assert abs(here.matrix - there.matrix).max() < 1e-12


def extraction_agrees() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).eval()
    data = torch.randn(200, 3, 10, 10)
    model(data[:1])
    with torch.no_grad():
        inner = model[1](model[0](data))
    with tempfile.TemporaryDirectory() as folder:
        keep = [Mean(), TopK(5), Covariance(), Histogram()]
        features = tl.extract(model.cuda(), data.split(16), ["1", "3"], to=folder, keep=keep, block=64, progress=False)
        torch.testing.assert_close(features.mean("1").mean, inner.double().mean((0, 2, 3)), rtol=1e-3, atol=1e-3)
        assert features.covariance("3").count == 200
        found = features.top("1", unit=0).values[0]
        torch.testing.assert_close(found, inner[:, 0].double().mean((1, 2)).max(), rtol=1e-3, atol=1e-3)


def speed() -> None:
    values = torch.randn(64, 256, 56, 56, device="cuda").relu()
    numbers = torch.arange(64, device="cuda")
    for reducer in (Mean(), Covariance(), TopK(20), Histogram()):
        state = reducer.begin()
        reducer.update(state, values, numbers)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(5):
            reducer.update(state, values, numbers)
        torch.cuda.synchronize()
        print(f"  {reducer} of 64 × 256 × 56 × 56: {(time.perf_counter() - begin) / 5 * 1000:.1f} ms")


CHECKS: list[Callable[[], None]] = [
    float32_agrees,
    bfloat16_agrees,
    complex_agrees,
    similarity_agrees,
    extraction_agrees,
    speed,
]

if __name__ == "__main__":
    sys.exit(run(CHECKS))
