"""Backward passes where they are odd: nested, batched, of second order, foreign, very long, through what autograd hides."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import torcheer
from forked import in_a_copy_of_the_process
from models import Mlp, autograd_function, log, made_of

x = torch.rand(3, 4)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        ctx.save_for_backward(tensor)
        return tensor * tensor

    @staticmethod
    def backward(ctx, gradient):
        (tensor,) = ctx.saved_tensors
        return 2 * tensor * gradient


class Checkpointed(nn.Module):
    """A block that runs again in the backward pass, twice, and a head."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, t):
        for _ in range(2):
            t = checkpoint(self.block, t, use_reentrant=self.reentrant)
        return self.head(t)


def plain_gradients(model: nn.Module, *args) -> dict[str, torch.Tensor]:
    twin = copy.deepcopy(model)
    twin(*args).square().sum().backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert set(ours) == set(theirs)
    for name, gradient in theirs.items():
        assert torch.equal(ours[name], gradient), name


def by_role(passed) -> dict[str, list[tuple[str, str | None]]]:
    found: dict[str, list[tuple[str, str | None]]] = {}
    for one in passed.operations:
        found.setdefault(one.role, []).append((one.name, one.layer_label or one.param))
    return found


def test_the_node_of_a_custom_function_belongs_to_the_operation_that_made_its_result():
    given = torch.rand(3, requires_grad=True)
    history = log(lambda t: Square.apply(t + 1).sum(), given, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents)
    assert ("SquareBackward", "mul_1_2") in by_role(passed)["result"]
    assert torch.equal(history["mul_1"].grad_contents, torch.ones(3))


def test_the_node_of_a_custom_function_that_is_the_last_thing_is_known():
    given = torch.rand(3, requires_grad=True)
    history = log(lambda t: Square.apply(t + 1), given, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert by_role(passed)["result"] == [("SquareBackward", "mul_1_2"), ("AddBackward0", "add_1_1")]


def test_a_write_through_a_view_is_the_node_of_that_write():
    def model(t):
        y = t * 2
        y[0].mul_(3)
        return y.relu()

    history = log(model, torch.rand(3, 4, requires_grad=True), save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert ("CopySlices", "mul_2_3") in by_role(passed)["inside"]


def test_a_view_whose_memory_was_written_keeps_its_node():
    def model(t):
        y = t * 2
        view = y[0]
        y.mul_(3)
        return view.relu()

    history = log(model, torch.rand(3, 4, requires_grad=True), save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert by_role(passed)["inside"] == [("AsStridedBackward0", "getitem_1_2")]


def test_all_nodes_of_one_call_name_the_same_operation():
    history = log(nn.LSTM(4, 5, num_layers=2), torch.rand(3, 2, 4), save_gradients=True)
    passed = history.log_backward(history.outputs[0].tensor_contents.sum())
    labels = {one.layer_label for one in passed.operations if one.role in ("result", "inside")}
    assert labels == {"lstm_1_3"}


def test_nodes_under_transforms_belong_to_the_operations_inside():
    layer = nn.Linear(3, 3)
    history = log(lambda t: torch.func.vmap(lambda row: layer(row).tanh())(t), torch.rand(2, 3), save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert ("TanhBackward0", "tanh_1_2") in by_role(passed)["result"]
    assert history["tanh_1"].grad_contents.shape == (2, 3)


def test_parameters_that_functional_call_hands_over_keep_their_names():
    layer = nn.Linear(3, 3)
    twin = copy.deepcopy(layer)

    def penalty(model):
        def loss(parameters, t):
            return torch.func.functional_call(model, parameters, (t,)).square().sum()

        return lambda t: torch.func.grad(loss)(dict(model.named_parameters()), t)["weight"].sum()

    given = torch.rand(2, 3)
    penalty(twin)(given).backward()
    with torcheer.recording(layer, save_gradients=True) as history:
        penalty(layer)(given).backward()
    assert_same(history.param_grads, {name: parameter.grad for name, parameter in twin.named_parameters()})


def test_what_ran_before_the_recording_is_not_followed():
    before = nn.Linear(4, 4)
    model = nn.Linear(4, 2)
    features = before(x)
    history = log(model, features, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert set(passed.param_grads) == {"weight", "bias"}
    assert torch.equal(history["input"].grad_contents, torch.ones(3, 2) @ model.weight)


def test_kept_gradients_do_not_change_with_the_gradients_of_parameters():
    model, weights = made_of(lambda self, t: t + self.by, by=nn.Parameter(torch.zeros(3))), torch.tensor([1.0, 2.0, 3.0])
    history = log(model, torch.rand(3), save_gradients=True)
    history.log_backward((history["output"].tensor_contents * weights).sum())
    model.by.grad.zero_()
    assert torch.equal(history["add_1"].grad_contents, weights)
    assert torch.equal(history.param_grads["by"], weights)


def test_kept_gradients_do_not_change_with_what_the_user_was_given_or_gave():
    given = torch.rand(3, requires_grad=True)
    history = log(lambda t: (t * 2) + 1, given, save_gradients=True)
    start = torch.ones(3)
    (gradient,) = torch.autograd.grad(history["output"].tensor_contents, given, start)
    start.zero_()
    gradient.zero_()
    assert torch.equal(history["add_1"].grad_contents, torch.ones(3))
    assert torch.equal(history["input"].grad_contents, torch.full((3,), 2.0))


def test_gradients_of_parameters_are_known_in_every_step_of_a_recording():
    model = Mlp()
    twin = copy.deepcopy(model)
    expected = []
    for one, kept in ((twin, expected), (model, None)):
        optimizer = torch.optim.Adam(one.parameters(), 0.1)
        with torcheer.recording(one, save_gradients=True) as history:
            for _ in range(3):
                optimizer.zero_grad()
                one(x).square().sum().backward()
                if kept is not None:
                    kept.append({name: parameter.grad.clone() for name, parameter in one.named_parameters()})
                optimizer.step()
    for passed, gradients in zip(history.backward_passes, expected, strict=True):
        assert_same(passed.param_grads, gradients)
        assert len(passed.gradients) == 6  # of two linear layers, ReLU, tanh, square and sum


def test_a_gradient_that_was_asked_for_at_an_operation_is_known_there():
    with torcheer.recording(save_gradients=True) as history:
        start = torch.rand(3, requires_grad=True)
        middle = start * 2
        (gradient,) = torch.autograd.grad((middle.exp() + middle.sin()).sum(), middle)
    assert torch.equal(history["mul_1"].grad_contents, gradient)


def test_a_gradient_that_was_asked_for_at_an_input_with_a_past_is_known():
    features = torch.rand(3, 4, requires_grad=True) * 2
    history = log(Mlp(), features, save_gradients=True)
    (gradient,) = torch.autograd.grad(history["output"].tensor_contents.sum(), features)
    assert torch.equal(history["input"].grad_contents, gradient)


def test_a_parameter_the_model_returns_has_its_gradient():
    model = made_of(lambda self, t: (self.by * t, self.by), by=nn.Parameter(torch.ones(3)))
    twin = copy.deepcopy(model)
    sum(part.sum() for part in twin(x[:, :3])).backward()
    history = log(model, x[:, :3], save_gradients=True)
    history.log_backward(sum(one.tensor_contents.sum() for one in history.outputs))
    assert torch.equal(history.param_grads["by"], twin.by.grad)


def test_a_call_that_hands_back_its_argument_has_its_gradient():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Tanh()).eval()
    history = log(model, x, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum())
    assert torch.equal(history["dropout_1"].grad_contents, history["linear_1"].grad_contents)


def test_gradients_inside_transforms_leave_nothing_behind():
    def model(t):
        return torch.func.vjp(torch.sin, t)[1](torch.ones_like(t))[0] + torch.func.hessian(lambda u: u.pow(3).sum())(t).sum(0)

    given = torch.rand(3, requires_grad=True)
    history = log(model, given, save_gradients=True, layers_to_save="none")
    history.log_backward(history["output"].tensor_contents.sum())
    expected = torch.autograd.grad(model(given).sum(), given)[0]
    assert torch.equal(history["input"].grad_contents, expected)
    for passed in history.backward_passes:
        for gradient in passed.gradients.values():
            assert gradient.isfinite().all()  # of a transform that is over, reading it would raise


def test_passes_of_other_graphs_are_not_ours():
    model = Mlp()
    history = log(model, x, save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum())
    before = history.param_grads
    (model(x) * 100).sum().backward()
    assert len(history.backward_passes) == 1
    assert_same(history.param_grads, before)


def test_passes_that_only_lead_to_the_same_input_are_not_ours():
    features = nn.Linear(4, 4)(x)
    history = log(Mlp(), features, save_gradients=True)
    features.sum().backward(retain_graph=True)
    assert history.backward_passes == []
    history.log_backward(history["output"].tensor_contents.sum() + features.sum())
    assert len(history.backward_passes) == 1


def test_parameters_are_free_of_hooks_when_the_history_is_gone():
    model = Mlp()
    edge = torch.autograd.graph.get_gradient_edge(model.fc1.weight)  # keeps the node, and what hangs on it, alive
    history = log(model, x, save_gradients=True)
    history["output"].tensor_contents.sum().backward()
    hooks = []
    handle = edge.node.register_hook(lambda *_: hooks.extend(handle.hooks_dict_ref()))
    model(x).sum().backward()
    assert len(hooks) == 2
    del history
    gc.collect()
    hooks.clear()
    model(x).sum().backward()
    assert len(hooks) == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_blocks_have_their_gradients_in_one_pass(reentrant):
    model, given = Checkpointed(reentrant), torch.rand(3, 4, requires_grad=True)
    expected = plain_gradients(model, given)
    history = log(model, given, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.square().sum())
    assert_same(passed.param_grads, expected)
    assert len(history.backward_passes) == 1
    with torcheer.recording(model, save_gradients=True) as recorded:
        model(given).square().sum().backward()
    assert_same(recorded.param_grads, expected)
    assert len(recorded.backward_passes) == 1
    (gradient,) = torch.autograd.grad(model.head(model.block(model.block(given))).square().sum(), given)
    for one in (history, recorded):
        assert torch.equal(one["input"].grad_contents, gradient)


def test_the_time_of_a_pass_inside_a_node_is_counted_once():
    model, given = Checkpointed(True), torch.rand(3, 4, requires_grad=True)
    with torcheer.recording(model, save_gradients=True) as history:
        model(given).sum().backward()
    (passed,) = history.backward_passes
    records = passed._record.nodes
    outer = [record for record in records if record.name == "CheckpointFunctionBackward"]
    assert len(outer) == 2
    for record in outer:
        inner = [one for one in records if record.started < one.started < record.started + record.span]
        assert len(inner) >= 4
        assert record.elapsed == record.span - sum(one.span for one in inner)


def test_a_function_that_differentiates_in_its_backward_counts_its_own_result_only():
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor, weight):
            ctx.save_for_backward(tensor, weight)
            return tensor * weight

        @staticmethod
        def backward(ctx, gradient):
            tensor, weight = (one.detach().requires_grad_() for one in ctx.saved_tensors)
            with torch.enable_grad():
                return torch.autograd.grad(tensor * weight, (tensor, weight), gradient)

    given, weight = torch.rand(3, requires_grad=True), nn.Parameter(torch.rand(3))
    with torcheer.recording(save_gradients=True) as history:
        (gradient,) = torch.autograd.grad(Again.apply(given, weight).sum(), weight)
    assert torch.equal(next(iter(history.backward_passes[0].param_grads.values())), gradient)


def test_a_pass_that_failed_says_so_and_one_in_which_nothing_ran_is_none():
    def failing_backward(ctx, gradient):
        raise ValueError("no way back")

    Failing = autograd_function("Failing", lambda ctx, tensor: tensor * 1, failing_backward)

    model = Mlp()
    history = log(lambda t: model(Failing.apply(t)), torch.rand(3, 4, requires_grad=True), save_gradients=True)
    loss = history["output"].tensor_contents.sum()
    with pytest.raises(ValueError, match="no way back"):
        history.log_backward(loss)
    (failed,) = history.backward_passes
    assert not failed.is_complete
    assert "did not finish" in repr(failed)
    assert history["tanh_1"].grad_contents is not None
    with pytest.raises(RuntimeError, match="second time"):
        history.log_backward(loss)
    assert len(history.backward_passes) == 1
    second = log(model, x, save_gradients=True)
    assert second.log_backward(second["output"].tensor_contents.sum()).is_complete


def test_a_pass_after_one_that_failed_stands_for_itself():
    fails = True

    def refuse(gradient):
        if fails:
            raise ValueError("not now")

    model = Mlp()
    history = log(model, x, save_gradients=True)
    output = history["output"].tensor_contents
    middle = output.grad_fn.next_functions[0][0]
    middle.register_prehook(lambda gradients: refuse(gradients[0]))
    with pytest.raises(ValueError, match="not now"):
        output.sum().backward(retain_graph=True)
    fails = False
    passed = history.log_backward(output.sum())
    assert [one.is_complete for one in history.backward_passes] == [False, True]
    assert set(passed.param_grads) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}


def test_nodes_of_second_order_belong_to_the_operation_whose_backward_made_them():
    given = torch.rand(2, 3, requires_grad=True)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    history = log(model, given, save_gradients=True)
    (gradient,) = torch.autograd.grad(history["output"].tensor_contents.sum(), given, create_graph=True)
    passed = history.log_backward(gradient.square().sum())
    derivatives = by_role(passed)["derivative"]
    assert ("TanhBackwardBackward0", "tanh_1_2") in derivatives
    assert {label for _, label in derivatives} == {"linear_1_1", "tanh_1_2", "linear_2_3"}
    twin = copy.deepcopy(model)
    twin.zero_grad()
    (plain,) = torch.autograd.grad(twin(given).sum(), given, create_graph=True)
    plain.square().sum().backward()
    assert_same(passed.param_grads, {name: p.grad for name, p in twin.named_parameters() if p.grad is not None})


def test_a_gradient_of_a_gradient_in_a_recording_is_kept_where_it_was_asked_for():
    given = torch.rand(3, requires_grad=True)
    with torcheer.recording(save_gradients=True) as history:
        (gradient,) = torch.autograd.grad((given**3).sum(), given, create_graph=True)
        gradient.square().sum().backward()
    assert torch.equal(history["grad_1"].grad_contents, 2 * gradient.detach())
    assert {one.layer_label for one in history.backward_passes[1].operations if one.role == "derivative"} == {"pow_1_1"}


def test_batched_gradients_have_nodes_and_no_tensors():
    given = torch.rand(3, requires_grad=True)
    history = log(nn.Linear(3, 2), given, save_gradients=True)
    output = history["output"].tensor_contents
    (jacobian,) = torch.autograd.grad(output, given, torch.eye(2), is_grads_batched=True)
    assert jacobian.shape == (2, 3)
    (passed,) = history.backward_passes
    assert passed.operations
    assert passed.gradients == {}


def test_gradients_of_nested_and_sparse_tensors():
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], requires_grad=True)
    layer = nn.Linear(3, 2)
    history = log(layer, nested, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.to_padded_tensor(0.0).sum())
    assert passed.operations[0].grad_output_shapes == [(2, -1, 2)]
    assert torch.equal(history.param_grads["bias"], layer.bias.grad)
    table = nn.Embedding(10, 3, sparse=True)
    history = log(table, torch.tensor([1, 2, 2]), save_gradients=True)
    history.log_backward(history["output"].tensor_contents.sum())
    expected = table.weight.grad.to_dense()
    table.weight.grad.zero_()
    assert history.param_grads["weight"].is_sparse
    assert torch.equal(history.param_grads["weight"].to_dense(), expected)


def test_the_scale_is_that_of_its_own_pass():
    model = Mlp()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with torcheer.recording(model, save_gradients=True) as history:
        loss = model(x).sum()
        torch.autograd.grad(loss, model.fc1.bias, retain_graph=True)
        scaler.scale(loss).backward(retain_graph=True)
        torch.autograd.grad(loss, model.fc1.bias, retain_graph=True)
        scaler.scale(loss).backward(retain_graph=True)
    loss.backward()
    assert [one.scale for one in history.backward_passes] == [None, 8.0, None, 8.0, None]
    assert "loss scaled by 8" in repr(history.backward_passes[1])


def test_a_long_recording_of_short_graphs_is_followed_to_its_end(monkeypatch):
    monkeypatch.setattr("torcheer.capture.gradients.FOLLOWED", 60)
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torcheer.recording(model, save_gradients=True) as history:
        for _ in range(20):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert len(history.backward_passes) == 20
    assert {len(passed.gradients) for passed in history.backward_passes} == {6}
    assert {len(passed.param_grads) for passed in history.backward_passes} == {4}
    assert not history.notes


class OwnNorm(nn.BatchNorm1d):
    """Normalises by its running statistics, and updates these first."""

    def forward(self, t):
        with torch.no_grad():
            self.running_mean.lerp_(t.mean(0), 0.1)
            self.running_var.lerp_(t.var(0), 0.1)
        return (t - self.running_mean) * self.running_var * self.weight


class Settling(nn.BatchNorm1d):
    """Runs in training mode, then in evaluation mode."""

    def forward(self, t):
        self.train()
        t = super().forward(t)
        self.eval()
        return super().forward(t)


@pytest.mark.parametrize("norm", [OwnNorm, Settling, nn.BatchNorm1d])
def test_running_statistics_that_the_backward_pass_reads_are_those_of_the_pass(norm):
    model = nn.Sequential(nn.Linear(4, 4), norm(4), nn.Linear(4, 2))
    plain = copy.deepcopy(model)
    plain(x).square().sum().backward()
    history = log(model, x, save_gradients=True)
    history.log_backward(history["output"].activation.square().sum())
    assert torch.equal(model[1].running_var, torch.ones(4))
    for name, parameter in plain.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(history.param_grads[name], parameter.grad)


def test_what_was_not_reached_has_no_gradient():
    history = log(
        made_of(lambda self, t: (self.one(t), self.two(t)), one=nn.Linear(4, 2), two=nn.Linear(4, 2)), x, save_gradients=True
    )
    passed = history.log_backward(history.outputs[1].tensor_contents.sum())
    assert set(passed.param_grads) == {"two.weight", "two.bias"}
    assert set(passed.gradients) == {"linear_2_2"}
    assert history["one"].grad_contents is None


@in_a_copy_of_the_process
def test_a_very_long_graph_is_followed_in_part_and_says_so():
    start = torch.ones(2, requires_grad=True)

    def model(t):
        for _ in range(60_000):
            t = t + 1
        return t * start

    history = log(model, start, save_gradients=True, layers_to_save="none")
    passed = history.log_backward(history["output"].tensor_contents.sum())
    assert 10_000 < len(passed.operations) < 30_000
    assert history["input"].grad_contents.tolist() == [60002.0, 60002.0]
    assert "autograd nodes" in str(history.notes)
    del history, passed  # the stack is not overflown


def test_from_a_layer_to_its_nodes_and_back():
    history = log(nn.LSTM(4, 5), torch.rand(3, 2, 4), save_gradients=True)
    passed = history.log_backward(sum(one.tensor_contents.sum() for one in history.outputs))
    for one in passed.operations:
        assert one.layer_label is not None or one.param is not None
        assert any(other._record is one._record for other in passed.of(one.layer_label or one.param))
    model = Mlp()
    history = log(model, x, save_gradients=True)
    passed = history.log_backward(history["output"].tensor_contents.sum())
    for label in ("linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4"):
        layer = history[label]
        nodes = passed.of(label)
        assert nodes[0].name == layer.gradfunc
        assert {history[one.layer_label] for one in nodes} == {layer}
        assert {one.containing_module for one in nodes} == {layer.containing_module}
    assert [one.param for one in passed.of("fc1.bias")] == ["fc1.bias"]
    with pytest.raises(torcheer.LayerNotFound):
        passed.of("nothing")
