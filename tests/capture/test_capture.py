"""Every kind of operation is logged, once, with the right parents; nothing that runs without us crashes with us."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import torcheer
from forked import in_a_copy_of_the_process
from models import Mlp, autograd_function, labels, log, made_of, relu_twice, same

x = torch.arange(12.0).reshape(3, 4) / 7 - 0.5


def parents(history, key):
    return history[key].parent_layers


def value(history, key):
    return history[key].tensor_contents


def test_a_functional_relu_is_one_relu():
    assert labels(log(relu_twice, x)) == ["relu_1", "add_1", "relu_2"]


def test_queries_are_not_logged():
    def model(t):
        assert t.shape == (3, 4)
        assert t.size(0) == 3
        assert t.dim() == 2
        assert t.dtype is torch.float32
        assert len(t) == 3
        assert not t.requires_grad
        assert t.numel() == 12
        assert "tensor" in repr(t)
        return t.view(t.size(1), t.shape[0]) if t.is_contiguous() else t

    assert labels(log(model, x)) == ["view_1"]


def test_operators_methods_and_functions_are_logged_alike():
    history = log(
        lambda t: (t + 1, 1 + t, t.add(1), torch.add(t, 1), t - 1, 1 - t, 2 / t, t @ t.T, -t, t**2, t[0], ~(t > 0)), x
    )
    assert labels(history) == [
        *("add_1", "add_2", "add_3", "add_4", "sub_1", "rsub_1", "rdiv_1", "t_1", "matmul_1"),
        *("neg_1", "pow_1", "getitem_1", "gt_1", "invert_1"),
    ]


def test_a_composite_is_opened_and_its_operations_know_it():
    history = log(lambda t: F.normalize(t, dim=-1), x)
    assert "normalize_1" not in labels(history)
    assert len(labels(history)) > 1
    assert {layer.composite for layer in history if layer.origin == "operation"} == {"normalize"}
    assert torch.equal(value(history, "output"), F.normalize(x, dim=-1))


def test_multi_head_attention_is_opened():
    attention = nn.MultiheadAttention(4, 2).eval()
    history = log(attention, x, x, x)
    assert "linear" in " ".join(labels(history))
    assert {layer.composite for layer in history if layer.composite} >= {"multi_head_attention_forward"}
    assert torch.allclose(value(history, "output_1"), attention(x, x, x)[0], atol=1e-6)


def test_python_methods_over_c_methods_are_logged_once():
    assert labels(log(lambda t: t.unflatten(1, (2, 2)), x)) == ["unflatten_1"]
    assert labels(log(lambda t: t.split(2, dim=1)[0] + 1, x)) == ["split_1", "split_2", "add_1"]


def test_tensors_born_inside_have_no_input_ancestor_until_they_meet_one():
    def model(t):
        mask = torch.ones(3, 4) * 2
        return t * mask

    history = log(model, x)
    assert labels(history) == ["ones_1", "mul_1", "mul_2"]
    assert history["ones_1"].initialized_inside_model
    assert not history["mul_1"].has_input_ancestor
    assert not history["mul_1"].initialized_inside_model
    assert history["mul_2"].has_input_ancestor
    assert history["mul_2"].parent_layers == ["input_1_0", "mul_1_2"]


def test_a_closed_over_tensor_is_a_source():
    constant = torch.full((4,), 3.0)
    history = log(lambda t: t + constant, x)
    assert parents(history, "add_1") == ["input_1_0", "source_1_1"]
    assert torch.equal(value(history, "source_1"), constant)


def test_a_plain_tensor_attribute_is_a_source_with_its_name():
    history = log(made_of(lambda self, t: t + self.offset, inner=nn.Module(), offset=torch.ones(4)), x)
    assert history["source_1"].io_role == "offset"


def test_a_numpy_round_trip_makes_a_source_and_is_noted_as_an_escape():
    history = log(lambda t: torch.from_numpy(t.numpy() * 2) + 1, x)
    assert labels(history) == ["source_1", "add_1"]
    assert [read.func_name for read in history.python_reads] == ["numpy"]


def test_memory_that_comes_back_from_numpy_is_known():
    history = log(lambda t: torch.from_numpy((t + 1).numpy()).reshape(-1) * 2, x)
    assert history["mul_1"].has_input_ancestor


@pytest.mark.parametrize("leave", [bool, float, int, lambda t: t.item(), lambda t: t.tolist(), np.asarray])
def test_data_that_leaves_for_python_is_written_down(leave):
    history = log(lambda t: t * (1 if leave(t.sum()) is not None else 2), x)
    (read,) = history.python_reads
    assert read.parent_layers == ["sum_1_1"]


def test_a_branch_on_data_is_noted_with_its_value():
    history = log(lambda t: t + 1 if t.sum() > 100 else t - 1, x)
    assert history.has_data_dependent_branching
    (read,) = history.python_reads
    assert read.is_truth_value
    assert read.value is False
    assert read.parent_layers == ["gt_1_2"]
    assert "if t.sum() > 100" in read.source.text
    assert "gt_1_2 left for Python by __bool__ gave False" in repr(read)


def test_parameters_and_buffers_are_facts_not_nodes():
    model = nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).eval()
    history = log(model, x)
    assert labels(history) == ["linear_1", "batchnorm_1"]
    assert [p.name for p in history["linear_1"].parent_params] == ["0.weight", "0.bias"]
    assert [p.shape for p in history["linear_1"].parent_params] == [(2, 4), (2,)]
    assert history["linear_1"].num_params == 10
    assert history["linear_1"].parent_params_fsize == 40
    assert [b.name for b in history["batchnorm_1"].parent_buffers] == ["1.running_mean", "1.running_var"]


def test_parameters_used_without_a_module_are_known():
    loose = nn.Parameter(torch.ones(4))
    history = log(lambda t: t * loose, x)
    assert [p.name for p in history["mul_1"].parent_params] == ["unregistered_1"]


def test_in_place_writes_are_operations_and_earlier_values_are_kept():
    def model(t):
        y = t + 1
        z = y.mul_(10)
        z += 1
        return z

    history = log(model, x)
    assert labels(history) == ["add_1", "mul_1", "add_2"]
    assert history["mul_1"].is_inplace
    assert history["add_2"].is_inplace
    assert not history["add_1"].is_inplace
    assert torch.equal(value(history, "add_1"), x + 1)
    assert torch.equal(value(history, "mul_1"), (x + 1) * 10)
    assert torch.equal(value(history, "add_2"), (x + 1) * 10 + 1)
    assert parents(history, "output") == ["add_2_3"]


def test_assignment_to_an_index_is_an_operation_on_the_tensor():
    def model(t):
        y = torch.zeros(3, 4)
        y[1:] = t[1:]
        return y

    history = log(model, x)
    assert labels(history) == ["zeros_1", "getitem_1", "setitem_1"]
    assert parents(history, "setitem_1") == ["zeros_1_1", "getitem_1_2"]
    assert parents(history, "output") == ["setitem_1_3"]
    assert torch.equal(value(history, "zeros_1"), torch.zeros(3, 4))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_a_write_through_a_view_reaches_the_base(mode):
    def model(t):
        with mode():
            y = t * 1
            y[0].add_(5)
            return y * 2

    history = log(model, x)
    assert labels(history) == ["mul_1", "getitem_1", "add_1", "mul_2"]
    assert parents(history, "mul_2") == ["mul_1_1", "add_1_3"]
    assert torch.equal(value(history, "mul_1"), x)


def test_a_write_to_the_base_reaches_its_views():
    def model(t):
        y = t * 1
        row = y[0]
        y.add_(5)
        return row * 2

    history = log(model, x)
    assert parents(history, "mul_2") == ["getitem_1_2", "add_1_3"]
    assert torch.equal(value(history, "getitem_1"), x[0])
    assert torch.equal(history["mul_2"].creation_args[0], x[0] + 5)


def test_writes_to_disjoint_parts_are_kept_apart():
    def model(t):
        y = t * 1
        first, second = y[0], y[1]
        first.add_(1)
        second.mul_(2)
        return second + 0, y + 0

    history = log(model, x)
    assert parents(history, "mul_2") == ["getitem_2_3"]
    assert parents(history, "add_2") == ["mul_2_5"]
    assert set(parents(history, "add_3")) == {"mul_1_1", "add_1_4", "mul_2_5"}


def test_out_arguments_are_written_to():
    def model(t):
        buffer = torch.empty(3, 4)
        torch.mul(t, 2, out=buffer)
        return buffer + 1

    history = log(model, x)
    assert labels(history) == ["empty_1", "mul_1", "add_1"]
    assert parents(history, "add_1") == ["mul_1_2"]


def test_a_buffer_overwritten_and_read_again_carries_data():
    norm = nn.BatchNorm1d(4).train()
    history = log(lambda t: norm(norm(t)), x)
    first, second = [one for one in history.operations if one.layer_type == "batchnorm"]
    assert first.label in second.parent_layers
    assert len(history.operations) == 4  # the counters of batches are orphans


def test_setting_data_moves_a_tensor():
    def model(t):
        y = t * 1
        y.data = t * 3
        return y + 1

    history = log(model, x)
    assert torch.equal(value(history, "output"), x * 3 + 1)
    assert history["add_1"].parent_layers == ["setdata_1_3"]


def test_a_call_that_returns_several_tensors_is_several_operations_that_share_it():
    history = log(lambda t: torch.max(t, dim=1).values, x)
    assert labels(history) == ["max_1", "max_2"]
    assert history["max_1"].same_call_layers == ["max_1_1", "max_2_2"]
    assert (history["max_1"].output_path, history["max_2"].output_path) == ("[0]", "[1]")


def test_the_same_tensor_twice_is_one_parent_in_two_positions():
    history = log(lambda t: t * t, x)
    assert parents(history, "mul_1") == ["input_1_0"]
    assert history["mul_1"].parent_arg_positions == {"args[0]": "input_1_0", "args[1]": "input_1_0"}


def test_nested_argument_positions_are_recorded():
    history = log(lambda t: torch.cat([t, t + 1], dim=0), x)
    assert history["cat_1"].parent_arg_positions == {"args[0][0]": "input_1_0", "args[0][1]": "add_1_1"}
    args, kwargs = history["cat_1"].creation_args, history["cat_1"].creation_kwargs
    assert torch.equal(torch.cat(*args, **kwargs), value(history, "cat_1"))


def test_named_arguments_are_recorded():
    history = log(lambda t: torch.add(t, other=t * 2, alpha=3), x)
    assert history["add_1"].parent_arg_positions == {"args[0]": "input_1_0", "kwargs['other']": "mul_1_1"}
    assert history["add_1"].creation_kwargs["alpha"] == 3


def test_tensor_indices_are_parents():
    rows = torch.tensor([0, 2])
    history = log(lambda t, i: t[i, 1:], x, rows)
    assert history["getitem_1"].parent_arg_positions == {"args[0]": "input_1_0", "args[1][0]": "input_2_1"}


def test_identity_modules_show_their_pass():
    model = nn.Sequential(nn.Linear(4, 2), nn.Identity(), nn.Dropout(0.5)).eval()
    history = log(model, x)
    assert labels(history) == ["linear_1", "dropout_1"]
    assert history["1"].label == "linear_1_1"
    assert history["linear_1"].modules_exited == ["0:1", "1:1"]


def test_functions_that_return_their_input_are_operations():
    history = log(lambda t: t.contiguous().to(torch.float32) + 1, x)
    assert labels(history) == ["contiguous_1", "to_1", "add_1"]
    assert parents(history, "add_1") == ["to_1_2"]


def test_a_model_that_returns_its_input():
    history = log(lambda t: t, x)
    assert [layer.label for layer in history] == ["input_1_0", "output_1_1"]
    assert parents(history, "output") == ["input_1_0"]


def test_a_model_that_returns_no_tensor():
    assert [layer.label for layer in log(lambda t: 3, x, keep_orphans=True)] == ["input_1_0"]


Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    tensor: Tensor
    name: str = "record"


class Holder:
    def __init__(self, tensor):
        self.tensor = tensor
        self.me = self  # a cycle


class Slotted:
    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor


CONTAINERS = {
    "list": (lambda t: [t], "args[0][0]"),
    "nested": (lambda t: {"a": [(t,)]}, "args[0]['a'][0][0]"),
    "named tuple": (lambda t: Pair(1, t), "args[0].right"),
    "ordered dict": (lambda t: OrderedDict(x=t), "args[0]['x']"),
    "dataclass": (Record, "args[0].tensor"),
    "object": (Holder, "args[0].tensor"),
    "slots": (Slotted, "args[0].tensor"),
}


def first_tensor(value):
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "tensor"):
        return value.tensor
    return first_tensor(next(v for v in (value.values() if isinstance(value, dict) else value) if not isinstance(v, int)))


@pytest.mark.parametrize("kind", CONTAINERS)
def test_inputs_and_outputs_are_found_in_any_nesting(kind):
    make, path = CONTAINERS[kind]
    history = torcheer.log_forward_pass(lambda value: make(first_tensor(value) + 1), make(x))
    assert [one.io_role for one in history.inputs] == [path]
    assert torch.equal(value(history, "output"), x + 1)
    assert parents(history, "output") == ["add_1_1"]


def test_inputs_of_hugging_face_outputs_are_found():
    from transformers.modeling_outputs import BaseModelOutput

    history = torcheer.log_forward_pass(lambda out: out.last_hidden_state + 1, BaseModelOutput(last_hidden_state=x))
    assert labels(history) == ["add_1"]


def test_one_tensor_in_two_places_is_one_input():
    history = torcheer.log_forward_pass(lambda a, b: a + b, (x, x))
    assert len(history.inputs) == 1
    assert history.inputs[0].io_role == "args[0], args[1]"


def test_a_tuple_is_the_arguments_and_a_list_is_one():
    assert len(torcheer.log_forward_pass(lambda a, b: a + b, (x, x + 1)).inputs) == 2
    assert labels(torcheer.log_forward_pass(torch.stack, [x, x])) == ["stack_1"]


Double = autograd_function("Double", lambda ctx, t: t * 2, lambda ctx, gradient: gradient * 2)


Same = autograd_function("Same", lambda ctx, t: t, lambda ctx, gradient: gradient)


def test_the_inside_of_a_custom_autograd_function_is_logged():
    history = log(lambda t: Double.apply(t) + 1, x.clone().requires_grad_())
    assert labels(history) == ["mul_1", "add_1"]
    assert parents(history, "add_1") == ["mul_1_1"]


def test_a_custom_autograd_function_that_returns_its_input_is_an_alias_of_it():
    history = log(lambda t: Same.apply(t) + 1, x.clone().requires_grad_())
    assert history["add_1"].has_input_ancestor


class Logged(Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Logged.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_tensor_subclasses_log_and_are_called_as_often_as_without_us():
    special = x.as_subclass(Logged)

    def model(t):
        return torch.relu(t + 1)

    Logged.calls = 0
    plain = model(special)
    without = Logged.calls
    Logged.calls = 0
    history = log(model, special)
    assert Logged.calls == without
    assert labels(history) == ["add_1", "relu_1"]
    assert torch.equal(torch.Tensor(plain), torch.Tensor(value(history, "output")))


def test_autocast_is_logged_with_its_dtype():
    linear = nn.Linear(4, 2)

    def model(t):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(t) + 1

    history = log(model, x)
    assert labels(history) == ["linear_1", "add_1"]
    assert history["linear_1"].tensor_dtype is torch.bfloat16
    assert [one._record.details.autocast for one in history.operations[1:3]] == [(("cpu", torch.bfloat16),)] * 2
    assert torch.equal(value(history, "output"), model(x))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradient_modes_log_alike(context):
    model = Mlp()
    with context():
        history = log(model, x)
        expected = model(x)
    assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    assert torch.equal(value(history, "output"), expected)


def test_vmap_connects_what_goes_in_with_what_comes_out():
    history = log(lambda t: torch.func.vmap(lambda row: row.sin() * 2)(t * 1) + 1, x)
    assert labels(history) == ["mul_1", "sin_1", "mul_2", "add_1"]
    assert parents(history, "sin_1") == ["mul_1_1"]
    assert parents(history, "add_1") == ["mul_2_3"]
    assert torch.equal(value(history, "mul_2"), x.sin() * 2)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_logs_the_forward_once(reentrant):
    linear = nn.Linear(4, 4)
    start = x.clone().requires_grad_()
    history = log(lambda t: checkpoint(lambda u: torch.relu(linear(u)), t, use_reentrant=reentrant) + 1, start)
    assert labels(history) == ["linear_1", "relu_1", "add_1"]


def test_sparse_tensors():
    history = log(lambda t: (t.to_sparse() @ torch.ones(4, 2)).relu(), x.relu())
    assert labels(history) == ["tosparse_1", "ones_1", "matmul_1", "relu_1"]
    assert history["tosparse_1"].tensor_contents.is_sparse
    assert "sparse" in str(history["tosparse_1"])


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_quantized_tensors():
    history = log(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.quint8).dequantize() + 1, x)
    assert labels(history) == ["quantizepertensor_1", "dequantize_1", "add_1"]
    assert "tensor" in str(history["quantizepertensor_1"])


def test_meta_tensors():
    with torch.device("meta"):
        model = Mlp()
    history = log(model, torch.empty(3, 4, device="meta"))
    assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1"]
    assert history["linear_1"].tensor_shape == (3, 8)
    assert "meta" in str(history["linear_1"])


def test_complex_and_conjugate_views():
    def model(t):
        z = torch.complex(t, t)
        y = z.conj()
        z.mul_(2)
        return y.real + z.imag

    history = log(model, x)
    assert torch.equal(value(history, "output"), model(x))
    assert torch.equal(value(history, "conj_1").resolve_conj(), torch.complex(x, -x))


def test_a_device_context_inside_the_model():
    def model(t):
        with torch.device("cpu"):
            return t + torch.ones(4)

    assert labels(log(model, x)) == ["ones_1", "add_1"]


def test_operators_reached_through_torch_ops():
    history = log(lambda t: torch.ops.aten.relu(torch.ops.aten.add.Tensor(t, t)), x)
    assert labels(history) == ["add_1", "relu_1"]


def test_random_functions_and_factories():
    history = log(lambda t: t + torch.rand(3, 4) + torch.rand_like(t) + t.new_ones(4) + torch.tensor(1.0), x)
    assert labels(history)[:1] == ["rand_1"]
    assert all(history[k].initialized_inside_model for k in ("rand_1", "tensor_1"))
    assert not history["randlike_1"].initialized_inside_model


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, t):
        return torch.relu(self.norm(self.fc(t)))


def scripted(trace: bool) -> nn.Module:
    model = Scripted().train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(model, x, check_trace=False) if trace else torch.jit.script(model)


@pytest.mark.parametrize("trace", [True, False])
def test_a_torchscript_module_is_one_opaque_operation_per_call(trace):
    inner = scripted(trace)
    before = {k: v.clone() for k, v in inner.named_buffers()}
    history = log(nn.Sequential(nn.ReLU(), inner, nn.Tanh()), x)
    assert labels(history) == ["relu_1", "scripted_1", "tanh_1"]
    assert history["scripted_1"].origin == "opaque"
    assert parents(history, "scripted_1") == ["relu_1_1"]
    assert parents(history, "tanh_1") == ["scripted_1_2"]
    assert same(before, dict(inner.named_buffers()))


def test_a_torchscript_model():
    history = log(scripted(False), x)
    assert [layer.label for layer in history] == ["input_1_0", "scripted_1_1", "output_1_2"]


def test_a_torchscript_function_is_explained_by_autograd():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.jit.script(_half)
    weight = nn.Parameter(torch.ones(4))
    history = log(lambda t: compiled(t * weight) + 1, x)
    (opaque,) = [one for one in history.operations if one.origin == "opaque"]
    assert opaque.parent_layers == ["mul_1_1"]


def _half(t: Tensor) -> Tensor:
    return t.sin() * 0.5


def test_compiled_models_log_as_eager_under_their_own_names():
    model = Mlp()
    compiled = torch.compile(nn.Sequential(torch.compile(model), nn.ReLU()))
    history = log(compiled, x)
    assert labels(history) == ["linear_1", "relu_1", "linear_2", "tanh_1", "relu_2"]
    assert history["linear_1"].containing_modules == ["0:1", "0.fc1:1"]
    assert history["0.fc1"].label == "linear_1_1"
    assert "_orig_mod" not in str(history)


def test_parallel_wrappers_are_looked_through():
    history = log(nn.DataParallel(nn.Sequential(nn.DataParallel(Mlp()), nn.ReLU())), x)
    assert history["0.fc1"].label == "linear_1_1"
    assert history.model_name == "Sequential"


@in_a_copy_of_the_process
def test_a_very_long_chain_with_gradients_can_be_dropped():
    """Torch frees nodes whose `grad_fn` was read by recursion; a process that overflows its stack is gone, so one is spent."""

    def model(t):
        for _ in range(100_000):
            t = t * 2
        return t

    history = torcheer.log_forward_pass(model, torch.ones(1, requires_grad=True), layers_to_save="none")
    assert {row[7] for row in history._log.rows[1:]} == {"MulBackward0"}
    del history


def test_a_tensor_detached_in_place_is_handed_on_and_nothing_is_written():
    def detached(t):
        made = t * 2
        row = made[0]
        made.detach_()
        return made + 1, row * 3

    given = torch.rand(3, 4)
    history = torcheer.log_forward_pass(detached, given)
    assert history["detach_1"].parent_layers == ["mul_1_1"]
    assert history["add_1"].parent_layers == ["detach_1_3"]
    assert history["mul_2"].parent_layers == ["getitem_1_2"]
    assert torcheer.validate_forward_pass(detached, given)
    given.requires_grad_()
    history = torcheer.log_forward_pass(detached, given, save_gradients=True)
    history.log_backward(history["output2"].activation.sum())
    assert torch.equal(history["input"].grad, torch.tensor([[6.0], [0.0], [0.0]]).expand(3, 4))


def test_frozen_torchscript_has_no_mode_and_is_logged():
    frozen = torch.jit.freeze(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()))
    given = torch.rand(3, 4)
    history = torcheer.log_forward_pass(frozen, given)
    assert torch.equal(history["output"].activation, frozen(given))
    assert torcheer.validate_forward_pass(frozen, given)
    with torcheer.watch_modules(frozen) as calls:
        frozen(given)
    assert len(calls) == 1
