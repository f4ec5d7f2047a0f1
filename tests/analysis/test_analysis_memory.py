"""Memory: the timeline equals one computed by hand, and the storages that are really alive in a plain run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import torcheer
from models import Branching, Convolutional, Mlp, autograd_function, log, made_of
from test_real_models import IDS, IMAGE, LANGUAGE, VISION
from torcheer.analysis import device_memory, memory_of


class Living(TorchDispatchMode):
    def __init__(self, excluded: list[Tensor], given: list[Tensor]) -> None:
        super().__init__()
        self._excluded = {tensor.untyped_storage()._cdata for tensor in excluded}
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        for tensor in given:
            self._note(tensor)

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._excluded and (key not in self._seen or self._seen[key][0].expired()):
            self._seen[key] = (StorageWeakRef(storage), storage.nbytes())

    def bytes(self) -> int:
        self._seen = {key: pair for key, pair in self._seen.items() if not pair[0].expired()}
        return sum(size for _, size in self._seen.values())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return result


class Sampler(TorchFunctionMode):
    def __init__(self, living: Living, log: Any, samples: dict[int, int]) -> None:
        super().__init__()
        self.living, self.log, self.samples = living, log, samples

    def __torch_function__(self, func, types, args=(), kwargs=None):
        before = len(self.log.rows)
        result = func(*args, **(kwargs or {}))
        if len(self.log.rows) > before:
            self.samples[len(self.log.rows) - 1] = self.living.bytes()
        return result


def measured(model, *args, **kwargs) -> tuple[torcheer.ModelHistory, list[tuple[str, int, int]]]:
    """A graph-only history, and for each operation its label, the bytes the timeline says, and the bytes really alive."""
    samples: dict[int, int] = {}
    is_module = isinstance(model, nn.Module)
    states = [*model.parameters(), *model.buffers()] if is_module else []
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    living = Living(states, given)
    history = torcheer.recording(*([model] if is_module else []), layers_to_save="none")
    with history as history, living, Sampler(living, history._log, samples):
        result = model(*args, **kwargs)
    del result
    positions, live = history._index.positions, memory_of(history).live
    return history, [(history._index.label(n), live[positions[n]], real) for n, real in samples.items() if n in positions]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["mlp", "convolutional", "alexnet", "mobilenet_v3_small", "resnet18"])
def test_the_timeline_is_what_is_really_alive(name, training, gradients):
    small = {"mlp": (Mlp, (torch.rand(2, 4),)), "convolutional": (Convolutional, (torch.rand(2, 3, 8, 8),))}
    make, args = small[name] if name in small else (VISION[name], IMAGE)
    with torch.set_grad_enabled(gradients):
        history, compared = measured(make().train(training), *args)
    if name == "resnet18":  # a local variable holds the shortcut during the last activation of three blocks
        assert max(ours for _, ours, _ in compared) == max(real for _, _, real in compared)
        assert sum(ours != real for _, ours, real in compared) == 3
    else:
        assert all(ours == real for _, ours, real in compared), [one for one in compared if one[1] != one[2]]
    assert len(compared) > 3
    assert not memory_of(history).unknown


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["densenet121", "vit", "swin", "gpt2", "bert", "llama"])
def test_the_timeline_is_never_more_than_what_is_really_alive(name, gradients):
    model = {**VISION, **LANGUAGE}[name]().eval()
    args, kwargs = (IMAGE, {}) if name in VISION else ((), IDS)
    with torch.set_grad_enabled(gradients):
        history, compared = measured(model, *args, **kwargs)
    assert all(ours <= real for _, ours, real in compared), [one for one in compared if one[1] > one[2]]
    assert not memory_of(history).unknown
    if gradients:  # what autograd keeps outweighs what local variables hold a little longer
        assert max(ours for _, ours, _ in compared) >= 0.94 * max(real for _, _, real in compared)


STEPS = {
    "relu": F.relu,
    "in place": lambda x: F.hardswish(x, inplace=True),
    "sigmoid": torch.sigmoid,
    "scale": lambda x: x * 0.5,
    "by itself": lambda x: x * x,
    "power": lambda x: x.pow(2),
    "divide": lambda x: x / (x + 3),
    "transpose": lambda x: x.transpose(0, 1),
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(4, 4),
    "clone": torch.clone,
    "softmax": lambda x: F.softmax(x, -1),
    "halves": lambda x: torch.cat(x.chunk(2), 0),
    "rows": lambda x: x[[0, 1, 2, 3]],
    "mask rows": lambda x: x[torch.ones(4, dtype=torch.bool)],
    "slice": lambda x: torch.stack([x[0], x[1], x[2], x[3]]),
    "product": lambda x: x @ x,
    "drop": lambda x: F.dropout(x, 0.5, True),
    "keep": lambda x: F.dropout(x, 0.5, False),
    "to": lambda x: x.to(torch.float32),
    "norm": lambda x: F.layer_norm(x, (4,)),
    "mask": lambda x: x.masked_fill(x > 0, 0.0),
    "expand": lambda x: x[:1].expand(4, 4) + 1,
}


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=8), st.booleans())
@example(["transpose", "mask", "contiguous"], False)
def test_any_chain_of_steps_has_the_timeline_that_is_real(names, gradients):
    weight = nn.Parameter(torch.rand(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.weight
        for name in names:
            x = STEPS[name](x)
        return x

    with torch.set_grad_enabled(gradients):
        _, compared = measured(made_of(forward, weight=weight), torch.rand(4, 4))
    assert all(ours == real for _, ours, real in compared), [one for one in compared if one[1] != one[2]]


KEPT_FOR_BACKWARD = {
    "group norm": (lambda x: F.group_norm(x, 2), (2, 4, 3)),
    "rms norm": (lambda x: F.rms_norm(x, (3,)), (2, 4, 3)),
    "rms norm with weights": (lambda x: F.rms_norm(x, (3,), torch.ones(3)), (2, 4, 3)),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([0, 1])), (2, 4)),
    "pooling": (lambda x: F.max_pool2d(x, 2), (2, 3, 4, 4)),
    "pooling with indices": (lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (2, 3, 4, 4)),
    "pooling of signals": (lambda x: F.max_pool1d(x, 2), (2, 3, 4)),
    "einsum": (lambda x: torch.einsum("ij,kj->ik", x, x), (4, 4)),
    "nested lists of indices": (lambda x: x[([[0, 1], [2, 3]],)], (4, 4)),
    "fused attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (1, 2, 3, 4)),
    "dropout": (lambda x: F.dropout(x, 0.5, True), (2, 3, 4, 4)),
    "dropout of channels": (lambda x: F.dropout2d(x, 0.5, True), (2, 3, 4, 4)),
    "dropout of volumes": (lambda x: F.dropout3d(x, 0.5, True), (2, 3, 2, 2, 2)),
    "feature dropout": (lambda x: torch.feature_dropout(x, 0.5, True), (2, 3, 4, 4)),
    "attention with a mask": (lambda x: F.scaled_dot_product_attention(x, x, x, torch.zeros(3, 3)), (1, 2, 3, 4)),
}


class Scaled(nn.Module):
    def __init__(self, function: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(shape))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.weight) * 2


@pytest.mark.parametrize("name", KEPT_FOR_BACKWARD)
def test_what_autograd_keeps_is_what_is_really_alive(name):
    function, shape = KEPT_FOR_BACKWARD[name]
    _, compared = measured(Scaled(function, shape), torch.rand(shape))
    assert all(ours == real for _, ours, real in compared), compared


def test_what_plain_attention_keeps_is_told_without_its_dropout():
    """Arguments, scaled copies and scores: less than with the masks that only the kernel knows, more than the fused one."""
    shape = (1, 2, 3, 4)
    dropping, fused = (
        measured(Scaled(lambda x, p=p: F.scaled_dot_product_attention(x, x, x, dropout_p=p), shape), torch.rand(shape))[1][1]
        for p in (0.5, 0.0)
    )
    assert fused[1] < dropping[1] <= dropping[2]
    assert dropping[1] == 2 * 96 + 96 + 2 * 96 + 2 * 3 * 3 * 4  # the input and its product, the result, the copies, the scores


def live(function, *args) -> dict[str, int]:
    with torch.no_grad():
        history = log(function, *args)
    return dict(zip([one.layer_label_short for one in history.operations], memory_of(history).live, strict=True))


def test_a_tensor_lives_until_its_last_use():
    def f(x: Tensor) -> Tensor:
        big = torch.cat([x] * 10)
        return (big.sum() + big.mean()) * x

    assert live(f, torch.ones(4)) == {
        "input_1": 16,
        "cat_1": 16 + 160,
        "sum_1": 16 + 160 + 4,
        "mean_1": 16 + 160 + 4 + 4,
        "add_1": 16 + 4 + 4 + 4,
        "mul_1": 16 + 4 + 16,
        "output_1": 16 + 16,
    }


def test_views_and_in_place_results_cost_nothing():
    def f(x: Tensor) -> Tensor:
        y = x + 1
        return y.view(2, 2).T.add_(1)[0]

    assert live(f, torch.ones(4)) == {
        "input_1": 16,
        **dict.fromkeys(["add_1", "view_1", "t_1", "add_2", "getitem_1", "output_1"], 32),
    }


def test_a_module_holds_its_arguments_while_it_runs():
    model = nn.Sequential(nn.Linear(2, 100), made_of(lambda self, x: x.sum() + 1))
    with torch.no_grad():
        memory = memory_of(torcheer.log_forward_pass(model, torch.ones(1, 2)))
    assert memory.live == (8, 408, 412, 416, 12)


def test_the_peak_names_the_operation_and_what_was_alive():
    with torch.no_grad():
        history = log(lambda x: torch.cat([x] * 10).relu().sum(), torch.ones(4))
    memory = memory_of(history)
    assert memory.peak == 16 + 160 + 160 == max(memory.live)
    assert memory.peak_operation == "relu_1_2"
    assert [(one.label, one.bytes) for one in memory.at_peak] == [("cat_1_1", 160), ("relu_1_2", 160), ("input_1_0", 16)]
    assert sum(one.bytes for one in memory.at_peak) == memory.peak
    assert "Peak 336 B at relu_1_2" in repr(memory)


def test_what_autograd_keeps_is_what_its_hooks_see():
    for model, args in ((Mlp(), (torch.rand(2, 4),)), (Branching(), (torch.rand(2, 4),)), (VISION["resnet18"](), IMAGE)):
        states = {state.untyped_storage()._cdata for state in (*model.parameters(), *model.buffers())}
        kept: dict[int, int] = {}

        def pack(tensor: Tensor, states=states, kept=kept) -> Tensor:
            storage = tensor.untyped_storage()
            if storage._cdata not in states:
                kept[storage._cdata] = storage.nbytes()
            return tensor

        history = torcheer.log_forward_pass(model, args)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = model(*args)
        assert memory_of(history).saved_for_backward == sum(kept.values())
        del result


def test_nothing_is_kept_for_backward_without_gradients():
    with torch.no_grad():
        assert memory_of(torcheer.log_forward_pass(Mlp(), torch.rand(2, 4))).saved_for_backward == 0


def test_a_branch_that_is_not_returned_keeps_nothing_for_long():
    weight = nn.Parameter(torch.ones(100))

    def f(x: Tensor) -> Tensor:
        side = float((x * weight).exp().sum().detach())
        return x * side

    history = log(f, torch.ones(100))
    memory = memory_of(history)
    assert memory.saved_for_backward == 0
    assert memory.live[-1] == 800


def test_parameters_are_counted_apart():
    model = nn.Linear(4, 8)
    memory = memory_of(torcheer.log_forward_pass(model, torch.ones(2, 4)))
    assert memory.states == 4 * (32 + 8)
    assert memory.peak == 32 + 64


def test_what_a_custom_function_saves_is_not_in_the_timeline():
    """A limit: its node belongs to no recorded call, so the timeline is below what is alive, never above."""

    def twice_forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    Twice = autograd_function("Twice", twice_forward, lambda ctx, grad: grad * 2)

    history, compared = measured(
        made_of(lambda self, x: Twice.apply(x * self.weight) + 1, weight=nn.Parameter(torch.ones(3))), torch.ones(3)
    )
    assert all(ours <= real for _, ours, real in compared)
    assert memory_of(history).saved_for_backward == 0


def test_device_memory_reads_the_process():
    memory = device_memory()
    assert memory.process is None or memory.process > 2**20
    assert device_memory("cpu").allocated is None


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
@pytest.mark.parametrize("save", ["all", "none"])
def test_nested_tensors_take_the_bytes_of_their_samples(layout, save):
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    given = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(3, 4)], layout=layout)
    history = torcheer.log_forward_pass(model, given, layers_to_save=save, save_gradients=save == "all")
    sizes = [layer.tensor_fsize for layer in history]
    assert sizes == [4 * 5 * width for width in (4, 5, 5, 3, 3)]
    assert history.tensor_fsize_total == sum(sizes[:-1])
    assert memory_of(history).peak >= sum(sizes[1:4])
    assert [node.bytes for node in history.graph.nodes] == sizes
    if save == "all":
        parts = history["output"].tensor_contents.unbind()
        history.log_backward(sum(part.sum() for part in parts))
        made = {node.name: node.grad_input_fsize for node in history.backward_passes[0].operations}
        assert made["ReluBackward0"] == 4 * 5 * 5


def test_reshape_copies_where_strides_demand_it():
    def f(x: Tensor) -> Tensor:
        return x.reshape(4).reshape(2, 2).T.reshape(4)

    history = log(f, torch.ones(2, 2), layers_to_save="none")
    assert memory_of(history).live == (16, 16, 16, 16, 32, 32)
    assert memory_of(log(f, torch.ones(2, 2))).live == (16, 16, 16, 16, 32, 32)


def test_the_layout_of_elementwise_results_is_followed():
    def f(x: Tensor) -> Tensor:
        return torch.relu(x.T).T.reshape(6)  # relu's result is laid out like its argument

    assert memory_of(log(f, torch.ones(2, 3), layers_to_save="none")).live == (24, 24, 48, 48, 48, 48)


MAYBE_COPIES = {
    "a contiguous tensor": lambda x: x.reshape(-1),
    "transposed": lambda x: x.transpose(1, 2).reshape(-1),
    "transposed and back": lambda x: x.transpose(1, 2).transpose(1, 2).reshape(-1),
    "transposed, and two dimensions joined that lie together": lambda x: x.permute(2, 0, 1).reshape(4, 6),
    "transposed, and two dimensions joined that do not": lambda x: x.permute(1, 0, 2).reshape(6, 4),
    "every second": lambda x: x[:, :, ::2].reshape(-1),
    "a part": lambda x: x[1].reshape(-1),
    "contiguous already": lambda x: x.contiguous(),
    "made contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "contiguous after a dimension of one": lambda x: x[:1].transpose(0, 1).contiguous(),
    "contiguous as asked": lambda x: x.contiguous(memory_format=torch.contiguous_format),
    "channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last),
    "channels last already": lambda x: x[None].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last),
    "flattened after channels last": lambda x: x[None].contiguous(memory_format=torch.channels_last).reshape(-1)[:1],
    "flattened after a copy with channels last": lambda x: x[None].clone(memory_format=torch.channels_last).reshape(-1)[:1],
    "of the same type": lambda x: x.transpose(0, 1).to(torch.float32),
    "of the same type, as a copy": lambda x: x.to(torch.float32, copy=True),
    "of the same type, channels last": lambda x: x[None].to(memory_format=torch.channels_last),
    "of the same type, channels last already": lambda x: x[None].permute(0, 3, 1, 2).to(memory_format=torch.channels_last),
    "flattened without elements": lambda x: x[:0].transpose(1, 2).reshape(-1),
}


@pytest.mark.parametrize("kept", ["all", "none"])
@pytest.mark.parametrize("name", MAYBE_COPIES)
def test_a_copy_is_counted_exactly_where_torch_makes_one(name, kept):
    """Torch tells by the memory of what comes out; the log, which may hold no values, by how the views are laid out."""
    x = torch.rand(2, 3, 4)
    result = MAYBE_COPIES[name](x)
    memory = result.untyped_storage()
    copied = 0 if memory.data_ptr() == x.untyped_storage().data_ptr() else memory.nbytes()
    with torch.no_grad():
        history = log(MAYBE_COPIES[name], x, layers_to_save=kept)
    assert memory_of(history).live[-1] == x.nbytes + copied
