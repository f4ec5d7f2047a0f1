"""torch_vis: what is tracked is what happened, and everything is left as it was."""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from models import autograd_function, made_of, made_with
from torch_vis import (
    ComputationalGraphTracker,
    OperationType,
    analyze_computational_graph_execution,
    track_computational_graph_execution,
)
from torcheer import InvalidArgument


def both(ops: bool) -> dict[str, bool]:
    return {"track_tensor_ops": ops}


@made_with(shared=lambda: nn.Linear(4, 4), norm=lambda: nn.LayerNorm(4))
def Block(self, x: torch.Tensor) -> torch.Tensor:
    """A shared layer, functional code between layers, an in-place operation, a residual."""
    y = F.relu_(self.shared(x) * 2)
    return x + self.norm(self.shared(y))


@made_with(block=Block, head=lambda: nn.Linear(4, 2))
def Pair(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    y = self.head(self.block(x)).flatten(0)
    return {"result": y if scale is None else y * scale, "where": y.argmax()}


def pairs(tracker: ComputationalGraphTracker, kind: str, level: str | None = None) -> set[tuple[str, str]]:
    edges = [edge for edge in tracker.edges if edge.edge_type == kind]
    return {(e.source_id, e.target_id) for e in edges if level is None or (e.metadata or {}).get("level") == level}


@pytest.mark.parametrize("ops", [True, False])
def test_modules_are_connected_by_what_flows_between_them(ops):
    tracker = track_computational_graph_execution(Pair(), torch.ones(3, 4), **both(ops))
    given = "input:input_1_0:1" if ops else "input:1"
    assert pairs(tracker, "data_flow", "layer") == {
        (given, "module:block.shared:1"),
        ("module:block.shared:1", "module:block.shared:2"),
        ("module:block.shared:2", "module:block.norm:1"),
        *({(given, "module:block:1")} if ops else ()),  # the input requires no gradient, so only operations tell
        ("module:block.norm:1", "module:block:1"),
        ("module:block:1", "module:head:1"),
        ("module:head:1", "module::1"),
    }
    assert pairs(tracker, "gradient_flow", "layer") == {
        ("backward:block.shared:2", "backward:block.shared:1"),
        ("backward:block.norm:1", "backward:block.shared:2"),
        ("backward:block:1", "backward:block.norm:1"),
        ("backward:head:1", "backward:block:1"),
        ("backward::1", "backward:head:1"),
    }
    called = pairs(tracker, "calls")
    assert {("module::1", "module:block:1"), ("module:block:1", "module:block.norm:1")} <= called
    assert {("backward::1", "backward:block:1"), ("backward:block:1", "backward:block.shared:1")} <= called
    kinds = {node.id: node.operation_type for node in tracker.nodes.values()}
    assert kinds["module::1"] is kinds["module:block:1"] is OperationType.FORWARD
    assert kinds["module:head:1"] is OperationType.LAYER_OP
    assert tracker.nodes["module:block.shared:1"].parameters == {
        "block.shared.weight": {"shape": [4, 4], "dtype": "float32", "trainable": True, "bytes": 64},
        "block.shared.bias": {"shape": [4], "dtype": "float32", "trainable": True, "bytes": 16},
    }


def test_with_gradients_at_the_input_layers_alone_know_the_same_flow():
    x = torch.ones(3, 4, requires_grad=True)
    whole, layers = (track_computational_graph_execution(Pair(), x, **both(ops)) for ops in (True, False))
    renamed = {tuple(name.replace("input:1", "input:input_1_0:1") for name in pair) for pair in pairs(layers, "data_flow")}
    assert renamed == pairs(whole, "data_flow", "layer")
    for name, node in layers.nodes.items():
        if not name.startswith("input"):
            twin = whole.nodes[name]
            assert (node.operation_type, node.module_name, node.name) == (twin.operation_type, twin.module_name, twin.name)
            assert (node.input_shapes, node.output_shapes) == (twin.input_shapes, twin.output_shapes), name
            assert (node.memory_usage, node.parameters) == (twin.memory_usage, twin.parameters), name


@pytest.mark.parametrize("ops", [True, False])
def test_named_inputs_lead_to_the_layers_that_read_them(ops):
    tracker = track_computational_graph_execution(
        made_of(lambda self, *, ids: self.words(ids.view(-1)), words=nn.Embedding(5, 3)),
        {"ids": torch.ones(2, 2, dtype=torch.long)},
        **both(ops),
    )
    (source,) = [a for a, b in pairs(tracker, "data_flow", "layer") if b == "module:words:1"]
    assert source.startswith("input:")


@pytest.mark.parametrize("ops", [True, False])
def test_a_compiled_model_is_followed_as_it_is_written(ops):
    model = torch.compile(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    tracker = track_computational_graph_execution(model, torch.ones(1, 2), **both(ops))
    assert [name for name in tracker.nodes if name.startswith("module:")] == ["module::1", "module:0:1", "module:1:1"]


def true_autograd_edges(loss: torch.Tensor) -> list[tuple[str, str]]:
    seen, waiting, found = set(), [loss.grad_fn], []
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        for following, _ in node.next_functions:
            if following is not None:
                found.append((type(node).__name__, type(following).__name__))
                waiting.append(following)
    return sorted(set(found))


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)), torch.randn(3, 5, requires_grad=True)),
    "cnn": lambda: (nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()), torch.randn(2, 2, 6, 6)),
    "block": lambda: (Block(), torch.randn(3, 4)),
    "gelu": lambda: (nn.Sequential(nn.LayerNorm(6), nn.GELU(), nn.Softmax(-1)), torch.randn(2, 6, requires_grad=True)),
}


@pytest.mark.parametrize("name", MODELS)
def test_gradients_flow_as_in_autograds_own_graph(name):
    model, x = MODELS[name]()
    tracker = track_computational_graph_execution(model, x)
    names = {node.id: node.name for node in tracker.nodes.values()}
    found = {(names[a], names[b]) for a, b in pairs(tracker, "gradient_flow", "operation")}
    assert sorted(found) == true_autograd_edges(model(x))
    assert (
        sum(name.startswith("grad:") for name in tracker.nodes) == tracker.get_graph_summary()["operation_types"]["gradient_op"]
    )


def test_the_types_of_operation():
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Double.apply(x.clone() + torch.zeros(2))

    Double = autograd_function("Double", lambda ctx, x: x * 2, lambda ctx, gradient: gradient * 2)

    tracker = track_computational_graph_execution(Mixed(), torch.ones(2, requires_grad=True))
    by_type: dict[OperationType, set[str]] = {}
    for node in tracker.nodes.values():
        by_type.setdefault(node.operation_type, set()).add(node.name)
    assert by_type[OperationType.MEMORY_OP] >= {"input_1_0", "clone_1_1"}
    assert any(name.startswith("zeros") for name in by_type[OperationType.MEMORY_OP])
    assert by_type[OperationType.CUSTOM] == {"DoubleBackward"}
    assert "AddBackward0" in by_type[OperationType.GRADIENT_OP]
    assert by_type[OperationType.LAYER_OP] == {"Mixed"}
    assert by_type[OperationType.BACKWARD] == {"backward of Mixed"}


def test_a_call_that_returns_several_tensors_is_one_node():
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = x.split(2, dim=-1)
        return a * b + c

    tracker = track_computational_graph_execution(made_of(forward), torch.ones(1, 6))
    split = next(node for node in tracker.nodes.values() if node.name.startswith("split"))
    assert split.output_shapes == [(1, 2)] * 3
    assert split.memory_usage == 24
    assert len(split.child_ids or ()) == 2


def test_neighbours_follow_from_the_edges():
    tracker = track_computational_graph_execution(Pair(), torch.ones(3, 4))
    for edge in tracker.edges:
        assert edge.target_id in (tracker.nodes[edge.source_id].child_ids or ())
        assert edge.source_id in (tracker.nodes[edge.target_id].parent_ids or ())
    listed = sum(len(node.child_ids or ()) for node in tracker.nodes.values())
    assert listed == len({(edge.source_id, edge.target_id) for edge in tracker.edges})


def test_nodes_come_in_the_order_they_ran():
    tracker = track_computational_graph_execution(Pair(), torch.ones(3, 4))
    times = [node.timestamp for node in tracker.nodes.values() if node.timestamp is not None]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= tracker.execution_time + 0.01


@pytest.mark.parametrize("ops", [True, False])
def test_recurrence_every_call_is_a_node(ops):
    def forward(self, xs: torch.Tensor) -> torch.Tensor:
        h = xs.new_zeros(1, 3)
        for x in xs:
            h = self.cell(x[None], h)
        return h

    tracker = track_computational_graph_execution(made_of(forward, cell=nn.GRUCell(2, 3)), torch.ones(4, 2), **both(ops))
    calls = [node for node in tracker.nodes.values() if node.id.startswith("module:cell:")]
    assert [node.metadata["call"] for node in calls if node.metadata] == [1, 2, 3, 4]
    assert ("module:cell:3", "module:cell:4") in pairs(tracker, "data_flow", "layer")
    assert ("backward:cell:4", "backward:cell:3") in pairs(tracker, "gradient_flow", "layer")
    assert len(pairs(tracker, "parameter", "layer")) == 4 * 4


@pytest.mark.parametrize("ops", [True, False])
def test_without_gradients_there_is_no_backward(ops):
    with torch.no_grad():
        tracker = track_computational_graph_execution(Pair(), torch.ones(3, 4), **both(ops))
    assert not {"backward", "gradient_op"} & set(tracker.get_graph_summary()["operation_types"])
    assert tracker.get_graph_summary()["backward_time"] == 0
    whole = track_computational_graph_execution(nn.Embedding(4, 2).requires_grad_(False), torch.tensor([1]), **both(ops))
    assert "backward" not in whole.get_graph_summary()["operation_types"]
    with torch.inference_mode():
        track_computational_graph_execution(Pair(), torch.ones(3, 4), **both(ops)).get_graph_data()


@pytest.mark.parametrize("ops", [True, False])
def test_figures_that_were_not_asked_for_are_left_out(ops):
    x = torch.ones(3, 4)
    tracker = track_computational_graph_execution(Pair(), x, track_memory=False, track_timing=False, track_tensor_ops=ops)
    assert all(node.memory_usage is None and node.execution_time is None for node in tracker.nodes.values())
    summary = tracker.get_graph_summary()
    assert summary["memory_usage"] is None
    assert summary["forward_time"] is None
    assert summary["execution_time"] > 0


@pytest.mark.parametrize("ops", [True, False])
@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_inputs_may_be_a_tuple_or_a_dictionary(form, ops):
    x, scale = torch.ones(3, 4), torch.full((6,), 2.0)
    given = (x, scale) if form == "tuple" else {"x": x, "scale": scale}
    tracker = track_computational_graph_execution(Pair(), given, **both(ops))
    assert tracker.nodes["module::1"].input_shapes == [(3, 4), (6,)]
    analyze_computational_graph_execution(Pair(), given, detailed=False)


def test_a_dictionary_of_something_else_is_refused():
    with pytest.raises(InvalidArgument, match="does not take a dict with the keys 1"):
        track_computational_graph_execution(Pair(), {1: torch.ones(2)})
    with pytest.raises(InvalidArgument, match=r"nn\.Module"):
        track_computational_graph_execution(torch.relu, torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"nn\.Module"):
        ComputationalGraphTracker(3)  # type: ignore[arg-type]


def restless(self, x: torch.Tensor) -> torch.Tensor:
    """Draws random numbers, counts, writes to its parameter, its buffer and its input, and turns a mode around."""
    self.count += 1
    self.seen.append(random.randrange(9) + int(np.random.rand() > 2))
    with torch.no_grad():
        self.line.weight.clamp_(-0.1, 0.1)
        x.add_(1)
    self.drop.train(False)
    return self.line(self.norm(self.drop(x))) * torch.rand(())


@pytest.mark.parametrize("ops", [True, False])
def test_a_tracked_pass_leaves_everything_as_it_was(ops):
    model, x = (
        made_of(restless, norm=nn.BatchNorm1d(4), drop=nn.Dropout(0.5), line=nn.Linear(4, 4), count=0, seen=[]),
        torch.randn(5, 4),
    )
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 7.0) if number else None
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grads = [(p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    given, states = x.clone(), (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())
    tracker = track_computational_graph_execution(model, x, **both(ops))
    assert tracker.get_graph_summary()["operation_types"]["backward"] == 3
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    for parameter, (grad, value) in zip(model.parameters(), grads, strict=True):
        assert parameter.grad is grad
        assert grad is None or torch.equal(grad, value)
    assert torch.equal(x, given)
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])
    assert (model.count, model.seen, model.drop.training) == (0, [], True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    hooks = nn.modules.module
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


@pytest.mark.parametrize("ops", [True, False])
def test_lazy_modules_stay_lazy(ops):
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    tracker = track_computational_graph_execution(model, torch.ones(2, 5), **both(ops))
    assert model[0].has_uninitialized_params()
    assert tracker.nodes["module:0:1"].output_shapes == [(2, 3)]


@pytest.mark.parametrize("ops", [True, False])
def test_a_model_that_raises_leaves_nothing_behind(ops):
    class Broken(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise RuntimeError("on purpose")

    model = Broken(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="on purpose"):
        track_computational_graph_execution(model, torch.ones(1, 2), **both(ops))
    tracker = ComputationalGraphTracker(model, track_tensor_ops=ops)
    with pytest.raises(RuntimeError, match="on purpose"), tracker:
        model(torch.ones(1, 2))
    assert not tracker.is_tracking
    assert "module:0:1" in tracker.nodes
    json.dumps(tracker.get_graph_data(), allow_nan=False)
    assert not nn.modules.module._global_forward_hooks


def test_a_backward_pass_that_raises_says_whose_it_is():
    def stubborn_backward(ctx, gradient):
        raise ValueError("no way back")

    Stubborn = autograd_function("Stubborn", lambda ctx, x: x.clone(), stubborn_backward)

    with pytest.raises(ValueError, match="no way back") as caught:
        track_computational_graph_execution(made_of(lambda self, x: Stubborn.apply(x)), torch.ones(2, requires_grad=True))
    assert any("torch.no_grad()" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("ops", [True, False])
def test_a_tracker_is_a_context_manager_and_can_be_used_again(ops):
    model, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.ones(1, 2)
    tracker = ComputationalGraphTracker(model, track_tensor_ops=ops)
    assert "empty" in repr(tracker)
    for times in (1, 2):
        with tracker as same:
            assert same is tracker
            assert tracker.is_tracking
            assert "tracking" in repr(tracker)
            for _ in range(times):
                model(x).sum().backward()
        assert sum(name.startswith("module:0:") for name in tracker.nodes) == times
        assert tracker.get_graph_summary()["operation_types"]["backward"] == 3 * times
    assert "nodes" in repr(tracker)


@pytest.mark.parametrize("ops", [True, False])
def test_two_backward_passes_through_one_forward_are_kept_apart(ops):
    model = nn.Linear(2, 3)
    with ComputationalGraphTracker(model, track_tensor_ops=ops) as tracker:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    assert [name for name in tracker.nodes if name.startswith("backward:")] == ["backward::1", "backward::1#2"]


def test_a_tracker_says_what_to_do():
    tracker = ComputationalGraphTracker(nn.ReLU())
    with pytest.raises(InvalidArgument, match="start_tracking"):
        tracker.stop_tracking()
    with pytest.raises(InvalidArgument, match="nothing was tracked"):
        tracker.get_graph_summary()
    tracker.start_tracking()
    with pytest.raises(InvalidArgument, match="already"):
        tracker.start_tracking()
    with pytest.raises(InvalidArgument, match="still tracking"):
        tracker.get_graph_data()
    tracker.stop_tracking()
    assert tracker.get_graph_summary()["total_nodes"] == 0


def test_other_modules_are_named_after_their_class():
    model, loss = nn.Linear(2, 3), nn.MSELoss()
    for ops in (True, False):
        with ComputationalGraphTracker(model, track_tensor_ops=ops) as tracker:
            loss(model(torch.ones(1, 2)), torch.zeros(1, 3)).backward()
        assert tracker.nodes["module:MSELoss:1"].operation_type is OperationType.LAYER_OP
        assert ("module::1", "module:MSELoss:1") in pairs(tracker, "data_flow", "layer")


def test_following_layers_keeps_no_tensor_alive():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    with ComputationalGraphTracker(model, track_tensor_ops=False) as tracker:
        y = model(torch.ones(1, 2))
        gone = weakref.ref(y)
        del y
        gc.collect()
        assert gone() is None
    assert "backward" not in tracker.get_graph_summary()["operation_types"]


def test_following_operations_keeps_no_tensor_of_the_pass():
    """Not even an argument that was overwritten through another view, which a replay would need."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(5, 7, 11)
        view = y[:]
        y[1] = x
        view.mul_(2)
        return (y * view).sum() + x.sum()

    with ComputationalGraphTracker(made_of(forward)) as tracker:
        tracker.model(torch.ones(7, 11))
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one) is torch.Tensor and not one.is_nested and one.shape == (5, 7, 11)]
    assert tracker.nodes
    assert kept == []


def test_a_backward_after_the_end_is_not_tracked():
    model = nn.Linear(2, 3)
    with ComputationalGraphTracker(model, track_tensor_ops=False) as tracker:
        loss = model(torch.ones(1, 2)).sum()
    loss.backward()
    assert "backward" not in tracker.get_graph_summary()["operation_types"]


def test_gradients_of_gradients_are_nodes_of_the_operations_they_came_from():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    x = torch.rand(2, 3, requires_grad=True)
    with ComputationalGraphTracker(model) as tracker:
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        gradient.square().sum().backward()
    second = [node for node in tracker.nodes.values() if (node.metadata or {}).get("role") == "derivative"]
    assert {node.metadata["operation"] for node in second} == {"linear_1_1", "tanh_1_2", "linear_2_3"}
    (tanh,) = [node.id for node in second if node.name == "TanhBackwardBackward0"]
    assert any(target == tanh for _, target in pairs(tracker, "gradient_flow"))
    assert "backward:1:1#2" in tracker.nodes


def test_backward_times_of_a_device_are_those_of_its_events():
    class Event:
        def __init__(self, milliseconds: float) -> None:
            self.milliseconds = milliseconds

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, after: Event) -> float:
            return after.milliseconds - self.milliseconds

    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    tracker = track_computational_graph_execution(model, torch.rand(2, 3))
    for record in tracker.history._log.backward.passes[0].nodes:
        record.time_by(Event(1.0), Event(3.0))
    tanh = next(node for node in tracker.nodes.values() if node.name == "TanhBackward0")
    assert (tanh.execution_time, tanh.metadata["timed_by"]) == (2e-3, "cuda")
    whole = tracker.nodes["backward:1:1"]
    assert (whole.execution_time, whole.metadata["timed_by"]) == (2e-3, "cuda")
    assert tracker.nodes["backward:0:1"].execution_time == 4e-3  # the product and the transpose inside it


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Closed(Exception):
    def __setattr__(self, name, value):
        raise TypeError("closed")


@pytest.mark.parametrize("error", [Frozen(3), Closed("no")], ids=["frozen", "closed"])
@pytest.mark.parametrize("ops", [True, False], ids=["operations", "layers"])
def test_an_exception_that_takes_no_attributes_leads_to_the_partial_record_too(error, ops):
    @made_with(fc=lambda: nn.Linear(2, 2))
    def Fails(self, t):
        self.fc(t)
        raise error

    def within(model, t):
        with ComputationalGraphTracker(model, track_tensor_ops=ops):
            model(t)

    for track in (lambda *given: track_computational_graph_execution(*given, track_tensor_ops=ops), within):
        with pytest.raises(type(error)) as caught:
            track(Fails(), torch.ones(1, 2))
        assert caught.value is error
        assert any(node.module_name == "fc" for node in error.tracker.nodes.values())
        assert any("error.tracker" in note for note in error.__notes__)
    for run in (torcheer.log_forward_pass, torcheer.validate_forward_pass, torcheer.summary):
        with pytest.raises(type(error)) as caught:
            run(Fails(), torch.ones(1, 2))
        assert caught.value is error
        assert error.history["linear_1"].shape == (1, 2)


def test_layers_alone_on_a_device_are_timed_by_its_events(monkeypatch):
    """Each event is a millisecond later than the one before; the model lasts from its first to its last."""
    clock = iter(range(1000))

    class Event:
        def __init__(self, enable_timing: bool = False) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = next(clock)

        def elapsed_time(self, after: Event) -> float:
            return after.at - self.at

    monkeypatch.setattr("torcheer.live.module_calls.cuda_is_used", lambda: True)
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: None)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    tracker = track_computational_graph_execution(model, torch.rand(2, 3), track_tensor_ops=False)
    layers = [node for name, node in tracker.nodes.items() if name.startswith(("module:", "backward:"))]
    assert {node.metadata["timed_by"] for node in layers} == {"cuda"}
    seconds = {node.id: node.execution_time for node in layers}
    forward = [seconds[f"module:{address}:1"] for address in ("", "0", "1")]
    assert forward == [5e-3, 1e-3, 1e-3]
    whole, first, last = (seconds[f"backward:{address}:1"] for address in ("", "0", "1"))
    assert min(first, last) > 0
    assert whole >= first + last


def test_values_that_are_used_twice_again_and_again_are_followed_once():
    """Sixty doublings have 2^60 ways from the first layer to the last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        for _ in range(60):
            y = y + y
        return self.last(y)

    tracker = track_computational_graph_execution(
        made_of(forward, first=nn.Linear(2, 2), last=nn.Linear(2, 2)), torch.ones(1, 2)
    )
    assert ("module:first:1", "module:last:1") in pairs(tracker, "data_flow")


def test_memory_that_cannot_be_read_is_left_out(monkeypatch):
    monkeypatch.setattr("torcheer.analysis.device._resident", lambda: None)
    tracker = track_computational_graph_execution(nn.ReLU(), torch.ones(2))
    assert tracker.memory == {}
    assert "process_resident" not in tracker.get_graph_summary()["memory_usage"]


def test_memory_of_a_device_is_that_of_all_devices_where_one_is_used(monkeypatch):
    def held() -> set[str]:
        return set(track_computational_graph_execution(nn.ReLU(), torch.ones(2), track_timing=False).memory["after"])

    assert held() == {"process_resident"}
    monkeypatch.setattr("torcheer.analysis.device.cuda_is_used", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for name, size in (("memory_allocated", 1), ("memory_reserved", 10), ("max_memory_allocated", 100)):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda device, size=size: size * ((device or 0) + 1))
    tracker = track_computational_graph_execution(nn.ReLU(), torch.ones(2), track_timing=False)
    told = {name: size for name, size in tracker.memory["before"].items() if name != "process_resident"}
    assert told == {"cuda_allocated": 3, "cuda_reserved": 30, "cuda_peak_allocated": 300}
