"""Checks capture on CUDA: that it is right, that it forces no synchronisation, what it costs.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_capture.py
Prints one line per check and exits with 1 if any failed.
"""

from __future__ import annotations

import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from checking import no_synchronisation, run
from torch import Tensor, nn

import torcheer

DEVICE = torch.device("cuda")


class Network(nn.Module):
    """Convolutions, batch normalisation, in-place activations, dropout, attention, a write through a view."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x).flatten(2).transpose(1, 2)
        attended, _ = self.attention(features, features, features, need_weights=False)
        attended[:, 0].mul_(2)
        return self.head(F.normalize(attended + features, dim=-1)).mean(1)


def model_and_input() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    return Network().to(DEVICE).train(), torch.rand(2, 3, 16, 16, device=DEVICE)


def times_are_those_of_the_device() -> None:
    big = torch.rand(8192, 8192, device=DEVICE)
    multiply = lambda t: t @ t
    multiply(big)
    torch.cuda.synchronize()
    by_clock = torcheer.log_forward_pass(multiply, big)["matmul_1"].func_time_elapsed
    started = time.perf_counter()
    multiply(big)
    torch.cuda.synchronize()
    real = time.perf_counter() - started
    by_events = torcheer.log_forward_pass(multiply, big, time_on_device=True)["matmul_1"].func_time_elapsed
    assert 0.5 * real < by_events < 1.5 * real, (by_events, real)
    assert by_clock < by_events


def outputs_are_bit_equal_to_the_plain_model() -> None:
    torch.use_deterministic_algorithms(False)
    model, x = model_and_input()
    model.attention.eval()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    random = torch.cuda.get_rng_state()
    history = torcheer.log_forward_pass(model, x)
    assert torch.equal(torch.cuda.get_rng_state(), random), "the CUDA random state changed"
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), f"{name} changed"
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        plain = model(x)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    assert torch.equal(plain, history["output"].tensor_contents)
    assert all(one.tensor_contents.is_cuda for one in history.saved if one.tensor_device.type == "cuda")


def logging_forces_no_synchronisation() -> None:
    model, x = model_and_input()
    torcheer.log_forward_pass(model, x)  # first use allocates and picks algorithms
    torch.cuda.synchronize()
    for options in (
        {},
        {"layers_to_save": "none"},
        {"layers_to_save": ["head"]},
        {"layers_to_save": "modules"},
        {"random_seed": 3},
    ):
        with no_synchronisation():
            history = torcheer.log_forward_pass(model, x, **options)
            assert history["head"].tensor_shape == (2, 196, 4)


def a_recorded_training_step_forces_no_synchronisation() -> None:
    model, x = model_and_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        with no_synchronisation(), torcheer.recording(model) as history:
            model(x).square().mean().backward()
            optimizer.step()
        torch.cuda.synchronize()
    assert len(history) > 20


def seeds_fix_random_functions_on_the_device() -> None:
    x = torch.zeros(1000, device=DEVICE)
    before = torch.cuda.get_rng_state()
    one = torcheer.log_forward_pass(F.dropout, x + 1, random_seed=5)["output"].tensor_contents
    two = torcheer.log_forward_pass(F.dropout, x + 1, random_seed=5)["output"].tensor_contents
    assert torch.equal(one, two)
    assert torch.equal(before, torch.cuda.get_rng_state())


def kept_activations_move_to_the_cpu() -> None:
    model, x = model_and_input()
    history = torcheer.log_forward_pass(model, x, output_device="cpu")
    assert {one.tensor_contents.device.type for one in history.saved} == {"cpu"}
    assert history["head"].tensor_device.type == "cuda"


def autocast_is_recorded() -> None:
    model, x = model_and_input()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        history = torcheer.log_forward_pass(model, x)
    assert history["conv2d_1"].tensor_dtype is torch.bfloat16
    assert history.operations[1]._record.details.autocast == (("cuda", torch.bfloat16),)


def in_place_writes_keep_earlier_values() -> None:
    x = torch.rand(1000, device=DEVICE) - 0.5

    def model(t: Tensor) -> Tensor:
        y = t * 2
        y.relu_()
        y[:500].add_(1)
        return y + 1

    history = torcheer.log_forward_pass(model, x)
    assert torch.equal(history["mul_1"].tensor_contents, x * 2)
    assert torch.equal(history["relu_1"].tensor_contents, (x * 2).relu())


def the_gpu_may_be_where_new_tensors_go() -> None:
    on_cpu, image = Network().eval(), torch.rand(2, 3, 16, 16)
    torch.set_default_device(DEVICE)
    try:
        for model, x in (model_and_input(), (on_cpu, image)):
            history = torcheer.log_forward_pass(model, x)
            report = torcheer.validate_forward_pass(model, x)
            assert report, report
            with tempfile.TemporaryDirectory() as folder:
                history.to_json(f"{folder}/history.json")
            assert history.cost.flops > 0
    finally:
        torch.set_default_device(None)


def steps_of_fused_optimizers_are_noticed() -> None:
    """torch counts no write of a fused optimizer: samples, which are copied on the device, tell."""
    for dtype in (torch.float32, torch.bfloat16):
        model = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.Linear(300, 4)).to(DEVICE, dtype).eval()
        x = torch.rand(3, 4, device=DEVICE, dtype=dtype)
        torcheer.log_forward_pass(model, x)  # first use allocates and picks algorithms
        torch.cuda.synchronize()
        with no_synchronisation():
            history = torcheer.log_forward_pass(model, x)
        assert history["0"].inputs[1] is model[0].weight
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
        model.train()(x).square().sum().backward()
        optimizer.step()
        for key in ("0", "1", "2"):
            try:
                history[key].inputs
            except torcheer.ParameterChanged:
                continue
            raise AssertionError(f"{key} shows new weights as the old")


def memory_is_given_back() -> None:
    model, x = model_and_input()
    torcheer.log_forward_pass(model, x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    history = torcheer.log_forward_pass(model, x)
    held = torch.cuda.memory_allocated() - before
    kept = {one.tensor_contents.untyped_storage().data_ptr(): one.tensor_contents for one in history.saved}
    distinct = sum(-(-t.untyped_storage().nbytes() // 512) * 512 for t in kept.values() if t.is_cuda)
    del kept
    assert held <= 1.05 * distinct + 4096, (held, distinct)
    del history
    assert torch.cuda.memory_allocated() == before


def speed() -> None:
    """Not a check: prints ratios to the plain forward pass."""
    import transformers

    models: dict[str, tuple[nn.Module, Tensor]] = {}
    small = transformers.GPT2Config(bos_token_id=0, eos_token_id=0)
    models["GPT-2 small 1×128"] = transformers.GPT2Model(small), torch.randint(0, 50000, (1, 128))
    models["GPT-2 small 8×1024"] = transformers.GPT2Model(small), torch.randint(0, 50000, (8, 1024))
    try:
        import torchvision

        models["ResNet-50 batch 64"] = torchvision.models.resnet50(), torch.rand(64, 3, 224, 224)
    except ImportError:
        print("      torchvision is not there")
    for name, (model, x) in models.items():
        plain = functools.partial(model.to(DEVICE).eval(), x.to(DEVICE))
        with torch.no_grad():
            raw, logged = interleaved(plain, functools.partial(torcheer.log_forward_pass, plain.func, plain.args))
        print(f"      {name}: raw {raw * 1e3:.2f} ms, logged {logged * 1e3:.2f} ms, {logged / raw:.2f}×")


def interleaved(one: Callable[[], object], two: Callable[[], object], times: int = 25) -> tuple[float, float]:
    """The median seconds of each, taken in turns, the GPU idle before and after."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(times + 3):
        for function, found in zip((one, two), seconds, strict=True):
            torch.cuda.synchronize()
            started = time.perf_counter()
            result = function()
            torch.cuda.synchronize()
            if turn >= 3:
                found.append(time.perf_counter() - started)
            del result
    return statistics.median(seconds[0]), statistics.median(seconds[1])


CHECKS = (
    outputs_are_bit_equal_to_the_plain_model,
    logging_forces_no_synchronisation,
    a_recorded_training_step_forces_no_synchronisation,
    times_are_those_of_the_device,
    seeds_fix_random_functions_on_the_device,
    kept_activations_move_to_the_cpu,
    autocast_is_recorded,
    in_place_writes_keep_earlier_values,
    the_gpu_may_be_where_new_tensors_go,
    steps_of_fused_optimizers_are_noticed,
    memory_is_given_back,
    speed,
)


if __name__ == "__main__":
    sys.exit(run(CHECKS))
