"""Checks backward passes on CUDA: gradients are plain torch's, nodes are timed by events, and nothing waits for the device.

A plain script, since the GPU machines have torch and nothing else:  PYTHONPATH=src python tests/gpu/check_backward_time.py
Prints one line per check and exits with 1 if any failed.
"""

from __future__ import annotations

import copy
import gc
import statistics
import sys
import time
from collections.abc import Callable

import torch
from checking import no_synchronisation, run
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torcheer
from torch_vis import track_computational_graph_execution

DEVICE = torch.device("cuda")


class Network(nn.Module):
    """Convolutions, batch normalisation, in-place activations, attention, a write through a view, a shared layer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        features = self.body(x).flatten(2).transpose(1, 2)
        attended, _ = self.attention(features, features, features, need_weights=False)
        attended = attended * 2
        attended[:, 0].mul_(2)
        return self.head(self.head(attended + features)).mean(1)


class Product(nn.Module):
    """One large matrix product, of which the backward is two."""

    def __init__(self, size: int = 8192) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(size, size, device=DEVICE))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def model_and_input() -> tuple[Network, Tensor]:
    torch.manual_seed(0)
    return Network().to(DEVICE).train(), torch.rand(2, 3, 16, 16, device=DEVICE)


def big_input() -> Tensor:
    return torch.rand(8192, 8192, device=DEVICE, requires_grad=True)


def seconds_of(function: Callable[[], object]) -> float:
    """The seconds a function takes on an idle device, until the device is idle again: the least of a few."""
    taken = []
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        function()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
    return min(taken)


def backward_of(model: nn.Module, x: Tensor) -> Callable[[], object]:
    """The plain backward pass through a model, as often as one likes."""
    y = model(x)
    start = torch.ones_like(y)
    return lambda: torch.autograd.grad(y, [x, *model.parameters()], start, retain_graph=True)


def gradients_are_those_of_plain_torch() -> None:
    torch.backends.cudnn.deterministic = True
    for switch in ("enable_flash_sdp", "enable_mem_efficient_sdp", "enable_cudnn_sdp"):
        getattr(torch.backends.cuda, switch)(False)  # their backward adds in any order
    model, x = model_and_input()
    twin = copy.deepcopy(model)
    twin(x).square().sum().backward()
    for on_device in (False, True):
        model.zero_grad()
        history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=on_device)
        passed = history.log_backward(history["output"].tensor_contents.square().sum())
        assert passed.is_complete
        for name, parameter in twin.named_parameters():
            assert torch.equal(passed.param_grads[name], parameter.grad), name
            assert torch.equal(dict(model.named_parameters())[name].grad, parameter.grad), name


def times_are_those_of_the_device() -> None:
    model, x = Product(), big_input()
    real = seconds_of(backward_of(model, x))
    history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=True)
    y = history["output"].tensor_contents
    start = torch.ones_like(y)
    for _ in range(3):
        passed = history.log_backward(y, start, retain_graph=True)
    (node,) = [one for one in passed.operations if one.role == "result"]
    assert node.is_device_time
    assert 0.5 * real < node.time_elapsed < 1.5 * real, (node.time_elapsed, real)
    by_clock = torcheer.log_forward_pass(model, x, save_gradients=True)
    torch.cuda.synchronize()
    passed = by_clock.log_backward(by_clock["output"].tensor_contents, start)
    (clocked,) = [one for one in passed.operations if one.role == "result"]
    assert not clocked.is_device_time
    assert clocked.time_elapsed < 0.5 * node.time_elapsed, (clocked.time_elapsed, node.time_elapsed)
    told = f"by events {node.time_elapsed * 1e3:.2f} ms, by clock {clocked.time_elapsed * 1e3:.3f} ms"
    print(f"      plain {real * 1e3:.2f} ms, {told}")


def events_are_on_the_stream_that_the_node_runs_on() -> None:
    model, x = Product(), big_input()
    real = seconds_of(backward_of(model, x))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=True)
        y = history["output"].tensor_contents
        start = torch.ones_like(y)
    torch.cuda.synchronize()
    for _ in range(2):
        passed = history.log_backward(y, start, retain_graph=True)  # autograd runs it on the stream of the forward pass
        torch.cuda.synchronize()
    (node,) = [one for one in passed.operations if one.role == "result"]
    assert 0.5 * real < node.time_elapsed < 1.5 * real, (node.time_elapsed, real)


def nothing_waits_for_the_device() -> None:
    model, x = model_and_input()
    for on_device in (False, True):
        for _ in range(2):
            history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=on_device)
            loss = history["output"].tensor_contents.square().sum()
            torch.cuda.synchronize()
            with no_synchronisation():
                passed = history.log_backward(loss)
                assert passed.operations
    big, given = Product(), big_input()
    history = torcheer.log_forward_pass(big, given, save_gradients=True, time_on_device=True)
    y = history["output"].tensor_contents
    start = torch.ones_like(y)
    history.log_backward(y, start, retain_graph=True)
    torch.cuda.synchronize()
    history.log_backward(y, start)
    busy = not torch.cuda.current_stream().query()
    assert busy, "the device was idle when the backward call returned: something waited for it"


def a_recorded_step_is_timed_and_its_parts_add_up() -> None:
    model, x = model_and_input()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torcheer.recording(model, save_gradients=True, time_on_device=True) as history:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    cost = history.cost
    total = sum(passed.time_elapsed for passed in history.backward_passes)
    own = sum(cost.module(address).own.backward_seconds for address in history.modules)
    assert len(history.backward_passes) == 2
    assert abs(cost.backward_seconds - total) < 1e-9 < total
    assert abs(own + cost.elsewhere.backward_seconds - total) < 1e-9
    assert abs(cost.module("").total.backward_seconds + cost.elsewhere.backward_seconds - total) < 1e-9
    assert all(one.is_device_time for passed in history.backward_passes for one in passed.operations)
    assert cost.module("body.0").own.backward_seconds > 0
    assert "backward time" in str(history.summary(["self time", "time", "self backward time", "backward time"]))


def checkpointing_is_counted_once() -> None:
    class Checkpointed(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.reentrant = reentrant
            self.block = nn.Sequential(nn.Linear(4096, 4096), nn.Tanh(), nn.Linear(4096, 4096))

        def forward(self, t: Tensor) -> Tensor:
            return checkpoint(self.block, t, use_reentrant=self.reentrant)

    x = torch.rand(4096, 4096, device=DEVICE, requires_grad=True)
    for reentrant in (False, True):
        model = Checkpointed(reentrant).to(DEVICE)
        twin = copy.deepcopy(model)
        twin(x).sum().backward()
        x.grad = None
        with torcheer.recording(model, save_gradients=True, time_on_device=True) as history:
            loss = model(x).sum()
            torch.cuda.synchronize()
            started = time.perf_counter()
            loss.backward()
            torch.cuda.synchronize()
            real = time.perf_counter() - started
        x.grad = None
        (passed,) = history.backward_passes
        assert 0 < passed.time_elapsed < 1.1 * real, (passed.time_elapsed, real)
        for name, parameter in twin.named_parameters():
            assert torch.equal(passed.param_grads[name], parameter.grad), (reentrant, name)


def work_of_the_processor_is_timed_by_it() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.here, self.there = nn.Linear(64, 64), nn.Linear(64, 64).to(DEVICE)

        def forward(self, t: Tensor) -> Tensor:
            return self.there(self.here(t).tanh().to(DEVICE)).relu()

    history = torcheer.log_forward_pass(Mixed(), torch.rand(8, 64), save_gradients=True, time_on_device=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    by_name = {one.name: one.is_device_time for one in passed.operations}
    assert by_name["ReluBackward0"]
    assert not by_name["TanhBackward0"]
    assert all(one.time_elapsed >= 0 for one in passed.operations)


def scaling_is_noted_without_waiting() -> None:
    model, x = model_and_input()
    scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
    with torcheer.recording(model, save_gradients=True) as history:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaled = scaler.scale(loss)
        with no_synchronisation():
            scaled.backward()
    (passed,) = history.backward_passes
    assert passed.scale == 64.0
    assert set(passed.param_grads) == {name for name, _ in model.named_parameters()}


def second_order_nodes_are_known() -> None:
    x = torch.rand(64, 3, device=DEVICE, requires_grad=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(DEVICE)
    history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=True)
    (gradient,) = torch.autograd.grad(history["output"].tensor_contents.sum(), x, create_graph=True)
    passed = history.log_backward(gradient.square().sum())
    derivatives = {one.layer_label for one in passed.operations if one.role == "derivative"}
    assert derivatives == {"linear_1_1", "tanh_1_2", "linear_2_3"}, derivatives


def torch_vis_says_who_timed_what() -> None:
    model, x = model_and_input()
    tracker = track_computational_graph_execution(model, x)
    nodes = [node for node in tracker.nodes.values() if node.operation_type.value == "gradient_op"]
    assert nodes
    assert all((node.metadata or {}).get("timed_by") == "cuda" for node in nodes)
    assert tracker.get_graph_summary()["backward_time"] > 0


def memory_is_given_back() -> None:
    def once() -> None:
        model.zero_grad()
        history = torcheer.log_forward_pass(model, x, save_gradients=True, time_on_device=True)
        history.log_backward(history["output"].tensor_contents.square().sum())
        assert history.cost.backward_seconds > 0
        model.zero_grad()

    model, x = model_and_input()
    once()
    gc.collect()  # what other checks left
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    once()
    after = torch.cuda.memory_allocated()
    assert after == before, f"{before} bytes before, {after} after"


def speed() -> None:
    """Not a check: prints ratios to the plain training step."""
    layer = nn.TransformerEncoderLayer(1024, 8, 4096, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(DEVICE)
    x = torch.rand(16, 256, 1024, device=DEVICE)

    def step() -> None:
        model.zero_grad()
        model(x).square().mean().backward()

    def recorded(on_device: bool) -> None:
        with torcheer.recording(model, save_gradients=True, time_on_device=on_device):
            step()

    ways = {"plain": step, "recorded": lambda: recorded(False), "timed on the device": lambda: recorded(True)}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(18):
        for name, way in ways.items():
            torch.cuda.synchronize()
            started = time.perf_counter()
            way()
            torch.cuda.synchronize()
            if turn >= 3:
                taken[name].append(time.perf_counter() - started)
    middle = {name: statistics.median(some) for name, some in taken.items()}
    print("      " + ", ".join(f"{name} {one * 1e3:.1f} ms ({one / middle['plain']:.2f}×)" for name, one in middle.items()))


CHECKS = (
    gradients_are_those_of_plain_torch,
    times_are_those_of_the_device,
    events_are_on_the_stream_that_the_node_runs_on,
    nothing_waits_for_the_device,
    a_recorded_step_is_timed_and_its_parts_add_up,
    checkpointing_is_counted_once,
    work_of_the_processor_is_timed_by_it,
    scaling_is_noted_without_waiting,
    second_order_nodes_are_known,
    torch_vis_says_who_timed_what,
    memory_is_given_back,
    speed,
)


if __name__ == "__main__":
    sys.exit(run(CHECKS))
