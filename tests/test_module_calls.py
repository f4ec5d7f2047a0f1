"""Module calls: what is watched is what plain hooks see, the same as a history tells, and nothing is left behind."""

from __future__ import annotations

import gc
import time
import weakref
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import torcheer
from models import Convolutional, made_of, unchanged
from torcheer import InvalidArgument
from torcheer.live.module_calls import ModuleInput


def residual(self, x: torch.Tensor) -> torch.Tensor:
    """A layer that runs twice, a layer that only hands on, code between layers, a result of the module's own code."""
    return x + self.norm(self.shared(self.drop(self.shared(x) * 2)))


def model() -> nn.Module:
    return nn.Sequential(
        made_of(residual, shared=nn.Linear(4, 4), drop=nn.Dropout(0.5).eval(), norm=nn.LayerNorm(4)), nn.Linear(4, 2)
    )


def given() -> torch.Tensor:
    return torch.rand(3, 4, requires_grad=True)


def test_every_call_is_there_as_plain_hooks_see_it():
    net, x = model(), given()
    seen = []

    def see(module, args, result):
        seen.append((type(module).__name__, tuple(args[0].shape), tuple(result.shape), result.nbytes))

    handles = [module.register_forward_hook(see) for module in net.modules()]
    with torcheer.watch_modules(net) as calls:
        net(x).sum().backward()
    for handle in handles:
        handle.remove()
    told = [(one.class_name, *one.input_shapes, *one.output_shapes, one.bytes) for one in calls]
    assert sorted(told) == sorted(seen)
    assert [one.label for one in calls] == [":1", "0:1", "0.shared:1", "0.drop:1", "0.shared:2", "0.norm:1", "1:1"]
    assert [one.outer.label if one.outer else None for one in calls] == [None, ":1", *["0:1"] * 4, ":1"]
    assert calls.started < calls[0].started <= calls[-1].started <= calls[-1].ended <= calls[0].ended < calls.ended


def test_backward_passes_go_against_the_forward_order_and_inside_each_other():
    net, x = model(), given()
    with torcheer.watch_modules(net) as calls:
        loss = net(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    by_label = {one.label: one for one in calls}
    assert {label: len(one.backward) for label, one in by_label.items()} == {
        **dict.fromkeys([":1", "0:1", "0.shared:1", "0.shared:2", "0.norm:1", "1:1"], 2),
        "0.drop:1": 0,  # in evaluation it returns its argument
    }
    for task, whole in by_label[":1"].backward.items():
        order = [by_label[label].backward[task] for label in ("1:1", "0.norm:1", "0.shared:2", "0.shared:1")]
        assert [one.started for one in order] == sorted(one.started for one in order)
        assert all(whole.started <= one.started <= one.ended <= whole.ended for one in order)
        assert order[0].grad_output_shapes == [(3, 2)]
        assert order[0].grad_input_shapes == [(3, 4)]
        assert order[0].bytes == 48


@pytest.mark.parametrize(
    "make", [lambda: (model(), given()), lambda: (Convolutional(), torch.rand(2, 3, 8, 8).requires_grad_())]
)
def test_a_history_tells_the_same_calls_as_watching(make):
    step = torcheer.TrainingStep(*make())
    logged, watched = step.log(save_gradients=True).module_calls, step.watch_modules()

    def told(calls):
        names = {id(one): f"input {place}" for place, one in enumerate(calls.inputs)}
        return [
            (
                *(
                    one.label,
                    one.class_name,
                    one.training,
                    one.has_inner,
                    one.input_shapes,
                    one.output_shapes,
                    one.bytes,
                    one.params,
                ),
                {names.get(id(source), source.label): shape for source, shape in one.sources.items()},
                [(p.grad_output_shapes, p.grad_input_shapes, p.bytes) for p in one.backward.values()],
            )
            for one in calls
        ]

    assert told(logged) == told(watched)
    assert [(one.shape, one.dtype, one.bytes) for one in logged.inputs] == [(o.shape, o.dtype, o.bytes) for o in watched.inputs]


def test_sources_are_calls_and_inputs():
    with torcheer.watch_modules(net := model()) as calls:
        net(given())
    (source,) = calls[2].sources
    assert isinstance(source, ModuleInput)
    assert source is calls.inputs[0]
    assert [one.label for one in calls[4].sources] == ["0.drop:1"]
    assert list(calls[6].sources) == [calls[1]]


def test_modules_that_belong_to_no_model_are_named_after_their_classes():
    with torcheer.watch_modules(nn.Identity()) as calls:
        nn.Sequential(made_of(lambda self, x: nn.ReLU()(nn.ReLU()(x))))(torch.ones(1))
    assert [one.address for one in calls] == ["Sequential", "Sequential.0", "Sequential.0.ReLU", "Sequential.0.ReLU_2"]


def test_while_the_block_runs_nothing_is_told():
    with torcheer.watch_modules(net := model()) as calls:
        net(given())
        assert "running" in repr(calls)
        with pytest.raises(InvalidArgument, match="leave the `with` block"):
            len(calls)
    assert len(calls) == 7
    assert "0.norm:1 of LayerNorm: (3, 4) → (3, 4)" in repr(calls)


def test_something_else_than_a_module_is_refused():
    with pytest.raises(InvalidArgument, match=r"takes an nn\.Module; got function"), torcheer.watch_modules(given):
        pass


def test_a_call_that_raised_is_there_and_no_hook_stays():
    before = dict(module_hooks._global_forward_hooks), dict(module_hooks._global_forward_pre_hooks)
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), torcheer.watch_modules(net) as calls:
        net(given())
    assert [one.label for one in calls] == [":1", "0:1", "1:1"]
    assert all(one.time_elapsed >= 0 for one in calls)
    assert (dict(module_hooks._global_forward_hooks), dict(module_hooks._global_forward_pre_hooks)) == before


def test_calls_that_an_interrupt_left_do_not_take_the_place_of_others():
    """Torch calls no hook of a module that `KeyboardInterrupt` leaves, so the calls around it end for it."""

    class Interrupted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyboardInterrupt

    def catching(self, x: torch.Tensor) -> torch.Tensor:
        try:
            self.inner(x)
        except KeyboardInterrupt:
            return x * 2

    net = nn.Sequential(made_of(catching, inner=nn.Sequential(Interrupted()), last=nn.Linear(4, 2)), nn.Linear(4, 2))
    with torcheer.watch_modules(net) as calls:
        net(given()).sum().backward()
    told = [(one.label, one.outer.label if one.outer else None, one.output_shapes, one.ended > 0) for one in calls]
    assert told == [
        (":1", None, [(3, 2)], True),
        ("0:1", ":1", [(3, 4)], True),
        ("0.inner:1", "0:1", [], False),
        ("0.inner.0:1", "0.inner:1", [], False),
        ("1:1", ":1", [(3, 2)], True),
    ]
    assert [source.label for source in calls[4].sources] == ["0:1"]
    assert [(one.time_elapsed, one.bytes, one.ended) for one in calls[2:4]] == [(0, 0, 0)] * 2
    assert repr(calls[3]) == "<ModulePass 0.inner.0:1 of Interrupted: (3, 4) → , 0.000E+00s>"


class Slow(torch.autograd.Function):
    """Notes when its backward pass is over."""

    ended: ClassVar[list[int]] = []

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(0.002)
        Slow.ended.append(time.perf_counter_ns())
        return gradient


@pytest.mark.parametrize("operations", [1, 2, 7, 12])
@pytest.mark.parametrize("onward", ["to a layer", "to a layer, before its parameters", "to an input", "to parameters alone"])
def test_the_backward_pass_of_a_layer_ends_with_its_first_operation(operations, onward):
    """However many operations come after it, wherever gradients go on to from there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Slow.apply(x) * self.weight if onward.endswith("before its parameters") else Slow.apply(x * self.weight)
        for _ in range(operations):
            x = x * 2
        return x

    net = nn.Sequential(
        nn.Linear(4, 4) if onward.startswith("to a layer") else nn.Identity(),
        made_of(forward, weight=nn.Parameter(torch.rand(4))),
    )
    Slow.ended.clear()
    with torcheer.watch_modules(net) as calls:
        net(torch.rand(3, 4, requires_grad=onward == "to an input")).sum().backward()
    (passed,) = calls[-1].backward.values()
    assert passed.started <= Slow.ended[0] - 2_000_000
    assert passed.ended >= Slow.ended[0]
    assert passed.time_elapsed == (passed.ended - passed.started) / 1e9 >= 0.002


def test_tensors_are_not_kept():
    with torcheer.watch_modules(net := model()) as calls:
        result = net(x := given())
        result.sum().backward()
    held = [weakref.ref(result), weakref.ref(x)]
    del result, x
    gc.collect()
    assert [one() for one in held] == [None, None]
    assert len(calls) == 7


@pytest.mark.parametrize("run", [lambda step: step.log(), lambda step: step.watch_modules()])
def test_a_step_leaves_everything_as_it_was(run):
    net, x = Convolutional(), torch.rand(2, 3, 8, 8)
    with unchanged(net):
        run(torcheer.TrainingStep(net, x))
    assert all(parameter.grad is None for parameter in net.parameters())


def test_a_step_that_raised_still_tells_its_module_calls():
    step = torcheer.TrainingStep(nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4)), given())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        step.watch_modules()
    assert [one.label for one in step.module_calls] == [":1", "0:1", "1:1"]


def test_a_step_shows_the_lines_of_the_program_as_a_log_does():
    net, x = model(), given()
    logged = torcheer.log_forward_pass(net, x).operations
    stepped = torcheer.TrainingStep(net, x, include_loss=True).log().operations
    told = {one.label: str(one.source) for one in stepped if one.label.partition("_")[0] not in ("sum", "output")}
    assert told == {one.label: str(one.source) for one in logged if not one.is_output_layer}
    assert [one.source for one in stepped if one.layer_type == "sum"] == [None]


def test_without_gradients_a_step_is_the_forward_pass():
    with torch.no_grad():
        calls = torcheer.TrainingStep(model(), given()).watch_modules()
    assert not any(one.backward for one in calls)


@pytest.mark.parametrize("run", [lambda step: step.log(), lambda step: step.watch_modules()])
def test_what_a_model_does_not_take_is_explained_with_the_call_that_was_made(run):
    with pytest.raises(InvalidArgument, match=r"my_call\(model, items\[0\]\)"):
        run(torcheer.TrainingStep(model(), [given()], called="my_call"))
    with pytest.raises(InvalidArgument, match=r"model must be an nn\.Module"):
        torcheer.TrainingStep(given, given())


def test_operations_know_their_call_their_number_and_when_they_began():
    history = torcheer.log_forward_pass(model(), given())
    assert [one.module_call.label for one in history.operations if one.func_applied] == [
        *("0.shared:1", "0:1", "0.drop:1", "0.shared:2", "0.norm:1", "0:1", "1:1")
    ]
    assert history["input_1"].module_call is None
    numbers = {number: node.key for node in history.graph.nodes for number in node.operations}
    assert [numbers[one.number] for one in history.operations] == [one.layer_label_w_pass for one in history.operations]
    began = [one.started for one in history.operations if one.func_applied]
    assert began == sorted(began)
    assert history["input_1"].started is None


def test_the_edges_of_a_backward_pass_are_autograds_own():
    net, x = model(), given()
    with torcheer.recording(net, save_gradients=True) as history:
        y = net(x)
        loss = (y * y).sum()
    names, waiting, seen = [], [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            following = [one for one, _ in node.next_functions if one is not None]
            names += [(node.name(), one.name()) for one in following]
            waiting += following
    loss.backward()
    passed = history.backward_passes[0]
    ran = passed.operations
    told = [(ran[a].name, ran[b].name) for a, b in passed.edges]
    assert sorted(told) == sorted((a.rpartition("::")[2], b.rpartition("::")[2]) for a, b in names)
    assert all(a < b for a, b in passed.edges)
    first = next(one for one in ran if one.layer_label == history["1"].label)
    assert first.operation.module_call.label == "1:1"
    assert first.grad_input_fsize == sum(
        4 * torch.Size(shape).numel() for shape in first.grad_input_shapes if shape is not None
    )
    assert [one.started for one in ran] == sorted(one.started for one in ran)


def test_backward_passes_are_numbered_within_the_run():
    """However many backward passes the process ran before, and as a history numbers them."""
    for _ in range(2):
        with torcheer.watch_modules(net := model()) as calls:
            for _ in range(2):
                net(given()).sum().backward()
        assert [list(call.backward) for call in calls if call.address == "1"] == [[1], [2]]
    history = torcheer.TrainingStep(net, given()).log(save_gradients=True)
    assert [list(call.backward) for call in history.module_calls if call.address == "1"] == [[1]]


def test_a_step_says_what_it_is_of_and_whether_it_ran():
    step = torcheer.TrainingStep(nn.Linear(4, 2), given())
    assert repr(step) == "<TrainingStep of Linear, not run yet>"
    step.log()
    step.watch_modules()
    assert repr(step) == "<TrainingStep of Linear, logged and watched>"
