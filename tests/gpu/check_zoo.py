"""Proves the logs of some ninety runs of models on CUDA: a part of the zoo, chosen for its integers.

Detectors (indices, boxes), optical flow, segmentation, classifiers; ten families of transformers with experts, state spaces and
caches; evaluation and training, float32 and bfloat16. A plain script: PYTHONPATH=src:tests python tests/gpu/check_zoo.py
[--device cpu] [--workers 6] [--only PART]. Needs torchvision and transformers. Models run in worker processes, so that a
device-side assert harms nobody else. A line for each run, and a last line of counts.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
import warnings
from typing import Any

import torch
from torch import Tensor, nn
from workers import Told, master, this_script, worker

from torchvision_operators import declare
from zoo.cases import Case, all_cases
from zoo.checking import check

MODELS = """
    torchvision/fasterrcnn_resnet50_fpn torchvision/fasterrcnn_mobilenet_v3_large_320_fpn torchvision/maskrcnn_resnet50_fpn
    torchvision/keypointrcnn_resnet50_fpn torchvision/retinanet_resnet50_fpn torchvision/ssdlite320_mobilenet_v3_large
    torchvision/fcos_resnet50_fpn torchvision/raft_small torchvision/raft_large torchvision/deeplabv3_mobilenet_v3_large
    torchvision/lraspp_mobilenet_v3_large torchvision/resnet18 torchvision/mobilenet_v3_small torchvision/swin_t
    torchvision/vit_b_32 transformers/gpt2 transformers/bert transformers/llama transformers/mixtral transformers/qwen2_moe
    transformers/mamba transformers/mamba2 transformers/t5 transformers/swin transformers/switch_transformers
    transformers/gpt2-sdpa transformers/llama-cache transformers/gpt2-generate transformers/mixtral-generate
    transformers/mamba-generate transformers/llama-generate-static-cache transformers/gpt2-generate-sampling
""".split()
BATCH = 4  # runs of a worker process


def runs() -> dict[str, tuple[Case, Any, torch.dtype]]:
    """Every run of the models above by its name: `transformers/gpt2 train bfloat16`."""
    declare()
    by_name = {case.name: case for case in all_cases()}
    return {
        f"{name} {mode} {str(dtype).removeprefix('torch.')}": (by_name[name], mode, dtype)
        for name in MODELS
        for mode, dtype in by_name[name].runs
    }


def moved(value: Any, device: str) -> Any:
    """The same arguments on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if type(value) in (list, tuple):
        return type(value)(moved(item, device) for item in value)
    if type(value) is dict:
        return {key: moved(item, device) for key, item in value.items()}
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove the logs of some ninety runs of models.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--only", default="", help="a part of the runs' names")
    parser.add_argument("--worker", nargs="+", help="be a worker process for these runs")
    options = parser.parse_args()
    every = runs()

    def check_one(name: str) -> Told:
        case, mode, dtype = every[name]
        started = time.perf_counter()
        try:
            model, args, kwargs = case.make(mode, dtype)
            if isinstance(model, nn.Module):
                model.to(options.device)
            count, wrong = check(model, moved(args, options.device), moved(kwargs, options.device))
            if options.device == "cuda":
                torch.cuda.synchronize()
        except Exception:
            count, wrong = 0, traceback.format_exc()[-900:]
        return {"operations": count, "wrong": wrong, "seconds": time.perf_counter() - started}

    if options.worker:
        warnings.simplefilter("ignore")
        return worker(options.worker, check_one)
    where = torch.cuda.get_device_name() if options.device == "cuda" else options.device
    print(f"torch {torch.__version__}, {where}", flush=True)
    names = [name for name in every if options.only in name]
    started, valid, failed, died = time.perf_counter(), 0, 0, 0
    for told in master(this_script("--device", options.device), names, size=BATCH, workers=options.workers):
        trouble = told.get("death") or told["wrong"]
        if trouble is None:
            valid += 1
            print(f"ok    {told['name']}: {told['operations']} operations, {told['seconds']:.1f} s", flush=True)
        else:
            failed, died = (failed, died + 1) if told["is_broken"] else (failed + 1, died)
            print(f"{'DIED' if told['is_broken'] else 'FAIL'}  {told['name']}: {trouble}", flush=True)
    print(f"{len(names)} runs: {valid} valid  {failed} failed  {died} died   {time.perf_counter() - started:.0f} s")
    return int(valid != len(names))


if __name__ == "__main__":
    sys.exit(main())
