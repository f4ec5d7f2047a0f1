"""Checks comparisons on CUDA: a model on the processor against its copy on the GPU, with and without TF32.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src:tests python tests/gpu/check_compare.py
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from checking import run

import torcheer as tl
from torcheer.demo import Gpt2


def made() -> tuple[Gpt2, torch.Tensor]:
    torch.manual_seed(0)
    model = Gpt2(vocabulary=200, length=64, width=192, heads=4, depth=6).eval().requires_grad_(False)
    return model, torch.randint(200, (2, 48))


@contextmanager
def tf32(is_allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = is_allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def without_tf32_there_is_no_culprit() -> None:
    model, ids = made()
    with tf32(False):
        comparison = tl.compare_models(model, copy.deepcopy(model).cuda(), ids)
    print(comparison)
    assert comparison.culprit is None, comparison
    assert comparison.b.outputs[0].tensor_device.type == "cuda"


def the_first_product_in_tf32_is_the_culprit() -> None:
    model, ids = made()
    with tf32(True):
        comparison = tl.compare_models(model, copy.deepcopy(model).cuda(), ids)
    print(comparison)
    culprit = comparison.culprit
    assert culprit is not None
    assert culprit.module == "blocks.0.attention.queries_keys_values", culprit
    assert "TF32" in str(comparison)
    names = {row.a.layer_type for row in comparison.rows if row.own_error and row.own_error.relative > row.tolerance}
    assert names <= {"linear", "matmul"}, names


def a_mistake_is_found_across_devices() -> None:
    model, ids = made()
    other = copy.deepcopy(model).cuda()
    other.blocks[3].norm1.eps = 1e-3
    with tf32(False):
        culprit = tl.compare_models(model, other, ids).culprit
    assert culprit is not None
    assert culprit.module == "blocks.3.norm1", culprit
    assert culprit.arguments == (("eps", 1e-5, 1e-3),)


def half_precision_on_the_gpu_has_no_culprit() -> None:
    model, ids = made()
    for dtype in (torch.bfloat16, torch.float16):
        comparison = tl.compare_models(model, copy.deepcopy(model).to("cuda", dtype), ids)
        assert comparison.culprit is None, comparison


def random_states_of_the_device_are_left_as_they_were() -> None:
    model, ids = made()
    other = copy.deepcopy(model).cuda()
    before = torch.cuda.get_rng_state()
    tl.compare_models(model, other, ids)
    assert torch.equal(before, torch.cuda.get_rng_state())


if __name__ == "__main__":
    sys.exit(
        run(
            [
                without_tf32_there_is_no_culprit,
                the_first_product_in_tf32_is_the_culprit,
                a_mistake_is_found_across_devices,
                half_precision_on_the_gpu_has_no_culprit,
                random_states_of_the_device_are_left_as_they_were,
            ]
        )
    )
