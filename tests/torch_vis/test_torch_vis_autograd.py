"""torch_vis against autograd: every edge of `next_functions` is in the graph, and no other."""

from __future__ import annotations

import copy
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
import transformers
from torch import Tensor, nn

import torcheer
from models import autograd_function, made_of, made_with
from torch_vis import ComputationalGraphTracker, analyze_computational_graph_execution, track_computational_graph_execution
from torch_vis.scene import make_scene

IMAGE = torch.rand(2, 3, 64, 64)
IDS = torch.arange(12).reshape(2, 6) + 3
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "vocab_size": 30}


@made_with(
    a=lambda: nn.Linear(4, 4),
    b=lambda: nn.Linear(4, 4),
    c=lambda: nn.Linear(4, 4),
    identity=nn.Identity,
    drop=lambda: nn.Dropout(0.5),
)
def Unchanged(self, t: Tensor) -> Tensor:
    """Everything that may return its argument, between layers."""
    t = F.dropout(self.a(t), 0.5, self.training).contiguous()
    t = self.drop(self.b(t).to(torch.float32)).float()
    t = self.identity(torch.relu(t).to("cpu")).type_as(t).expand_as(t)
    return self.drop(self.c(t)).contiguous().requires_grad_()


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=30, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2Model(config)


@made_with(fc=lambda: nn.Linear(4, 4), body=lambda: nn.Linear(4, 4), head=lambda: nn.Linear(12, 2))
def Squares(self, t: Tensor) -> Tensor:
    """Functions that use one tensor several times."""
    t = self.fc(t)
    t = self.body(t * t)
    return self.head(torch.cat([t * t, torch.where(t > 0, t, t), t + t], 1))


MODELS: dict[str, tuple[Any, Any]] = {
    "squares": (Squares, torch.rand(2, 4)),
    "unchanged": (Unchanged, torch.rand(2, 4)),
    "squeezenet": (lambda: torchvision.models.squeezenet1_1(num_classes=5), IMAGE),
    "vit": (lambda: torchvision.models.VisionTransformer(64, 16, 2, 2, 32, 48, num_classes=5), IMAGE),
    "resnet": (lambda: torchvision.models.resnet18(num_classes=5), IMAGE),
    "bert": (lambda: transformers.BertModel(transformers.BertConfig(**SMALL)), {"input_ids": IDS}),
    "gpt2": (gpt2, {"input_ids": IDS, "use_cache": False}),
}
every_model = pytest.mark.parametrize("name", MODELS)
both_modes = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def made(name: str, training: bool) -> tuple[nn.Module, Any]:
    build, given = MODELS[name]
    torch.manual_seed(0)
    return build().train(training), given


@dataclass
class Plain:
    """Autograd's nodes in the order they ran, their edges, and the module calls they were made in."""

    names: list[str] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)  # each as often as it is in `next_functions`
    calls: list[str] = field(default_factory=list)  # by node: the innermost call, as `backward:…`; empty outside of all
    inner: set[str] = field(default_factory=set)  # the calls that call others


def plain(model: nn.Module, given: Any) -> Plain:
    """One step of a copy of the model, followed by nothing but hooks."""
    model = copy.deepcopy(model)
    spans, found = [], Plain()
    stack: list[list[Any]] = []
    counts: dict[str, int] = defaultdict(int)
    sequence = torch.autograd._get_sequence_nr

    def enter(address: str) -> Any:
        def hook(module: nn.Module, args: Any) -> None:
            counts[address] += 1
            if stack:
                found.inner.add(stack[-1][0])
            stack.append([f"backward:{address}:{counts[address]}", sequence()])

        return hook

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        name, first = stack.pop()
        spans.append((first, sequence(), name))  # inner calls come before those around them

    for address, module in model.named_modules():
        module.register_forward_pre_hook(enter(address))
        module.register_forward_hook(leave)
    result = model(**given) if isinstance(given, dict) else model(given)
    tensors = list(result.values()) if isinstance(result, dict) else [result]
    nodes: dict[Any, None] = {}
    waiting = [tensor.grad_fn for tensor in tensors if tensor.requires_grad]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            waiting += [following for following, _ in node.next_functions]
    ran: dict[Any, int] = {}

    def note(node: Any) -> Any:
        def hook(made: Any, given: Any) -> None:
            ran[node] = len(ran)

        return hook

    for node in nodes:
        node.register_hook(note(node))
    sum(tensor.sum() for tensor in tensors if tensor.requires_grad).backward()
    for node in ran:
        found.names.append(type(node).__name__)
        number = node._sequence_nr()
        found.calls.append(next((name for first, end, name in spans if first <= number < end), ""))
        found.edges += [(ran[node], ran[following]) for following, _ in node.next_functions if following in ran]
    return found


@both_modes
@every_model
def test_every_edge_of_autograd_is_in_the_graph_and_no_other(name, training):
    model, given = made(name, training)
    tracker = track_computational_graph_execution(model, given)
    expected = plain(model, given)
    nodes = [node for node in tracker.nodes if node.startswith("grad:")]
    assert [tracker.nodes[node].name for node in sorted(nodes, key=lambda node: int(node.split(":")[2]))] == expected.names
    place = {node: int(node.split(":")[2]) for node in nodes}
    flows = [edge for edge in tracker.edges if edge.edge_type == "gradient_flow" and edge.metadata["level"] == "operation"]
    assert sorted((place[edge.source_id], place[edge.target_id]) for edge in flows) == sorted(expected.edges)


def between_layers(step: Plain) -> set[tuple[str, str]]:
    """Pairs of innermost calls between which a gradient went directly, or through nodes of the code around them."""
    onward: dict[int, list[int]] = defaultdict(list)
    for source, target in step.edges:
        onward[source].append(target)
    found: set[tuple[str, str]] = set()
    for start, call in enumerate(step.calls):
        if not call or call in step.inner:
            continue
        seen, waiting = set(), list(onward[start])
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            other = step.calls[node]
            if other and other not in step.inner:
                found.add((call, other))
            else:
                waiting += onward[node]
    return {(a, b) for a, b in found if a != b}


def reachable(start: str, edges: dict[str, list[str]]) -> set[str]:
    seen, waiting = set(), [start]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += edges[node]
    return seen


@pytest.mark.parametrize("ops", [True, False], ids=["operations", "layers"])
@both_modes
@every_model
def test_gradients_flow_between_layers_as_in_autograd(name, training, ops):
    model, given = made(name, training)
    tracker = track_computational_graph_execution(model, given, track_tensor_ops=ops)
    step = plain(model, given)
    pairs = between_layers(step)
    assert len(pairs) > 1
    onward: dict[str, list[str]] = defaultdict(list)
    for edge in tracker.edges:
        if edge.edge_type == "gradient_flow" and edge.metadata["level"] == "layer":
            onward[edge.source_id].append(edge.target_id)
    for source in {source for source, _ in pairs}:
        expected = {target for one, target in pairs if one == source}
        assert expected <= reachable(source, onward), source
    layers = {call for call in step.calls if call and call not in step.inner}
    direct = {(a, b) for a in layers for b in onward[a] if b in layers}
    assert direct <= pairs


@pytest.mark.parametrize("name", ["unchanged", "squeezenet"])
def test_the_gradients_of_a_picture_are_one_piece(name):
    model, given = made(name, False)
    scene = make_scene(track_computational_graph_execution(model, given))
    gradients = [node for node in scene.nodes if node.key.startswith("gradient of")]
    arrows = [edge for edge in scene.edges["gradient_flow"] if edge.line == "solid"]
    assert len(arrows) >= len(gradients) - 1 > 3


@made_with(fc=lambda: nn.Linear(4, 4))
def Several(self, t: Tensor) -> dict[str, Any]:
    """Returns a real tensor, a complex one, one without gradients, and one twice."""
    t = self.fc(t)
    return {"real": t, "complex": torch.fft.fft(t), "where": t.argmax(-1), "again": [t], "double": t.double().mean()}


def plain_sum(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result.sum()
    turned = torch.view_as_real(result["complex"])
    return result["real"].sum() + turned.sum() + result["double"]


@pytest.mark.parametrize("ops", [True, False], ids=["operations", "layers"])
@pytest.mark.parametrize("include_loss", [False, True])
@pytest.mark.parametrize("build", [Unchanged, Several])
def test_gradients_are_those_of_the_sum_of_the_outputs(build, include_loss, ops):
    torch.manual_seed(0)
    model, t = build().eval(), torch.rand(3, 4)
    plain_sum(model(t)).backward()
    expected = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    seen: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda gradient, name=name: seen.__setitem__(name, gradient.clone()))
    track_computational_graph_execution(model, t, track_tensor_ops=ops, include_loss=include_loss)
    assert seen.keys() == expected.keys()
    assert all(torch.allclose(seen[name], expected[name]) for name in expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_gradients_that_were_there_are_left_alone():
    model, t = nn.Linear(4, 4), torch.rand(3, 4)
    model(t).sum().backward()
    before = model.weight.grad.clone()
    for ops in (True, False):
        track_computational_graph_execution(model, t, track_tensor_ops=ops)
        assert torch.equal(model.weight.grad, before)


@pytest.mark.parametrize("build", [Unchanged, Several])
def test_the_loss_is_counted_nowhere_unless_asked_for(build):
    model, t = build().eval(), torch.rand(3, 4)
    logged = torcheer.log_forward_pass(model, t)
    analysis = analyze_computational_graph_execution(model, t)["performance"]
    with_loss = analyze_computational_graph_execution(model, t, include_loss=True)["performance"]
    assert analysis["flops"] == logged.cost.flops < with_loss["flops"]
    tracker = track_computational_graph_execution(model, t)
    assert [one.label for one in tracker.history.operations] == [one.label for one in logged.operations]
    names = [node.name for node in tracker.nodes.values()]
    assert not any(name.startswith(("sum_", "SumBackward", "ViewAsReal")) for name in names)
    drawn = {line for node in make_scene(tracker).nodes for line in node.lines}
    assert not any("sum" in line.lower() for line in drawn)
    asked = track_computational_graph_execution(model, t, include_loss=True)
    names = [node.name for node in asked.nodes.values()]
    assert any(name.startswith("sum_") for name in names)
    assert "SumBackward0" in names
    assert any("SumBackward0" in line for node in make_scene(asked).nodes for line in node.lines)


@made_with(a=lambda: nn.Linear(4, 4), b=lambda: nn.Linear(5, 4))
def Fails(self, t: Tensor) -> Tensor:
    return self.b(torch.relu(self.a(t)))


CALLS = {
    "operations": lambda model, t: track_computational_graph_execution(model, t),
    "layers": lambda model, t: track_computational_graph_execution(model, t, track_tensor_ops=False),
    "analysis": lambda model, t: analyze_computational_graph_execution(model, t),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_model_that_fails_leaves_what_was_tracked_on_the_exception(call):
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        CALLS[call](Fails(), torch.rand(2, 4))
    tracker = caught.value.tracker
    assert {"module::1", "module:a:1", "module:b:1"} <= set(tracker.nodes)
    assert any("error.tracker" in note for note in caught.value.__notes__)
    assert tracker.execution_time > 0
    json.dumps(tracker.get_graph_data(), allow_nan=False)
    if call != "layers":
        assert tracker.history is caught.value.history
        assert [one.label for one in tracker.history.operations] == ["input_1_0", "linear_1_1", "relu_1_2"]
        failed = [node for node in tracker.nodes.values() if (node.metadata or {}).get("role") == "failed"]
        assert "shapes cannot be multiplied" in failed[0].metadata["error"]
        assert make_scene(tracker).nodes


@pytest.mark.parametrize("ops", [True, False], ids=["operations", "layers"])
def test_your_own_code_that_fails_leaves_it_there_too(ops):
    tracker = ComputationalGraphTracker(Fails(), track_tensor_ops=ops)
    with pytest.raises(RuntimeError) as caught, tracker:
        tracker.model(torch.rand(2, 4))
    assert caught.value.tracker is tracker
    assert "module:a:1" in tracker.nodes


def no_way_back_backward(ctx, gradient):
    raise ValueError("no way back")


NoWayBack = autograd_function("NoWayBack", lambda ctx, t: t.clone(), no_way_back_backward)


@pytest.mark.parametrize("ops", [True, False], ids=["operations", "layers"])
def test_a_backward_pass_that_fails_leaves_the_part_that_ran(ops):
    with pytest.raises(ValueError, match="no way back") as caught:
        track_computational_graph_execution(
            made_of(lambda self, t: self.b(NoWayBack.apply(self.a(t))), a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
            torch.rand(2, 4),
            track_tensor_ops=ops,
        )
    nodes = caught.value.tracker.nodes
    assert {"module:a:1", "module:b:1", "backward:b:1"} <= set(nodes)
    assert "backward:a:1" not in nodes


def test_an_exception_that_takes_no_attributes_is_raised_as_it_is():
    class Closed(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("__"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    def forward(self, t: Tensor) -> Tensor:
        raise Closed("shut")

    for ops in (True, False):
        with pytest.raises(Closed, match="shut"):
            track_computational_graph_execution(made_of(forward), torch.rand(2), track_tensor_ops=ops)
