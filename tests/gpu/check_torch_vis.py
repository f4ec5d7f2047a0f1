"""torch_vis on CUDA: times come from the device, memory from its allocator, and following layers waits for nothing.

A plain script:  PYTHONPATH=src python tests/gpu/check_torch_vis.py  It prints what tracking costs as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

import torch
from checking import no_synchronisation, run
from torch import nn

from torch_vis import ComputationalGraphTracker, analyze_computational_graph_execution, track_computational_graph_execution


def model_and_input(width: int = 256) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda()
    return model, torch.randn(16, 128, width, device="cuda")


def test_times_are_measured_where_the_work_is_done() -> None:
    model, x = model_and_input()
    for ops in (True, False):
        tracker = track_computational_graph_execution(model, x, track_tensor_ops=ops)
        layers = [node for node in tracker.nodes.values() if node.operation_type.value == "layer_op"]
        assert layers
        assert all(node.metadata is not None and node.metadata["timed_by"] == "cuda" for node in layers)
        inner = sum(node.execution_time or 0.0 for node in layers)
        assert 0 < inner <= 1.5 * (tracker.get_graph_summary()["forward_time"] or 0.0)
    assert tracker.get_graph_summary()["backward_time"] > 0


def test_what_the_device_holds_is_told() -> None:
    model, x = model_and_input()
    for ops in (True, False):
        memory = track_computational_graph_execution(model, x, track_tensor_ops=ops).get_graph_summary()["memory_usage"]
        assert memory["cuda_reserved"] >= memory["cuda_allocated"] > memory["parameter_bytes"]
        assert memory["cuda_peak_allocated"] > memory["cuda_allocated_before"]
    assert analyze_computational_graph_execution(model, x)["performance"]["memory_usage"]["cuda_allocated"] > 0


def test_a_pass_leaves_the_model_and_the_random_state_as_they_were() -> None:
    model, x = model_and_input()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.cuda.get_rng_state()
    for ops in (True, False):
        track_computational_graph_execution(model, x, track_tensor_ops=ops)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_following_layers_waits_for_nothing() -> None:
    model, x = model_and_input()
    tracker = ComputationalGraphTracker(model, track_tensor_ops=False)
    tracker.start_tracking()
    with no_synchronisation():
        model(x).sum().backward()
        tracker.stop_tracking()
    assert tracker.get_graph_summary()["operation_types"]["backward"] > 4


def report() -> None:
    """What a training step costs with layers followed, and with everything followed."""

    def step(model: nn.Module, x: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        torch.cuda.synchronize()

    for width in (256, 1024):
        model, x = model_and_input(width)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)

        def plain(model=model, x=x, optimizer=optimizer) -> None:
            step(model, x, optimizer)

        def tracked(ops: bool, model=model, plain=plain) -> None:
            with ComputationalGraphTracker(model, track_tensor_ops=ops):
                plain()

        ways: dict[str, Callable[[], None]] = {"plain": plain, "layers": lambda: tracked(False), "all": lambda: tracked(True)}
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(25):
            for name, way in ways.items():
                began = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - began)
        middle = {name: statistics.median(some[5:]) for name, some in seconds.items()}
        ratios = {name: f"{value * 1e3:.2f} ms, {value / middle['plain']:.3f}×" for name, value in middle.items()}
        print(f"encoder of 4 layers, width {width}: {ratios}")


if __name__ == "__main__":
    failed = run([check for name, check in list(globals().items()) if name.startswith("test_")])
    report()
    sys.exit(failed)
