"""The words people type: attributes of layers and operations, what is said of those that are missing, one-line questions."""

from __future__ import annotations

import copy
import csv
import io
import operator
import threading
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torcheer
from models import Mlp, log, made_of, made_with
from torcheer import (
    ActivationNotSaved,
    GradientNotSaved,
    InvalidArgument,
    Layer,
    LayerNotFound,
    Operation,
    PictureOptions,
    SeveralPasses,
    UnseenWork,
    UnseenWorkWarning,
)
from torcheer.analysis import cost_of
from torcheer.history.table import write_csv

x = torch.rand(3, 4)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Mlp()


@pytest.fixture
def history(model):
    return log(model, x)


def loop_forward(self, t):
    for _ in range(3):
        t = torch.tanh(self.cell(t))
    return t


@pytest.fixture
def loop():
    return log(made_of(loop_forward, cell=nn.Linear(4, 4)), x)


def both(history, key):
    """A layer of one pass, and that pass."""
    layer = history[key]
    assert isinstance(layer, Layer)
    return layer, layer[1]


def test_shape_dtype_and_device_are_those_of_the_tensor(model, history):
    plain = model.fc1(x)
    for one in both(history, "fc1"):
        assert (one.shape, one.dtype, one.device) == (tuple(plain.shape), plain.dtype, plain.device)
        assert (one.shape, one.dtype, one.device) == (one.tensor_shape, one.tensor_dtype, one.tensor_device)


def test_activation_is_the_tensor(model, history):
    for one in both(history, "fc1"):
        assert torch.equal(one.activation, model.fc1(x))
        assert one.activation is one.tensor_contents


def test_grad_is_the_gradient_of_the_output(model):
    history = torcheer.log_forward_pass(model, x, save_gradients=True)
    history.log_backward(history["output"].activation.sum())
    hidden = model.fc1(x).detach().requires_grad_()
    torch.tanh(model.fc2(model.act(hidden))).sum().backward()
    for one in both(history, "fc1"):
        assert torch.equal(one.grad, hidden.grad)
    assert history["output"].grad is not None


def test_parents_and_children_are_layers_of_a_layer_and_operations_of_an_operation(history):
    layer, operation = both(history, "act")
    assert layer.parents == [history["linear_1"]]
    assert layer.children == [history["linear_2"]]
    assert operation.parents == [history["linear_1"][1]]
    assert operation.children == [history["linear_2"][1]]
    assert [one.name for one in layer.parents] == layer.parent_layers
    assert history["input"].parents == [] == history["output"].children


def test_parents_of_several_passes_are_each_there_once(loop):
    cell = loop["linear_1"]
    assert [one.label for one in cell.parents] == ["input_1_0", "tanh_1_2"]
    assert [one.label for one in cell[2].parents] == ["tanh_1_2:1"]
    assert [one.label for one in loop["tanh_1"].children] == ["linear_1_1", "output_1_3"]


def test_module_is_the_module_around_the_operation(history):
    for one in both(history, "fc1"):
        assert one.module.address == "fc1"
        assert one.module == history.modules["fc1"]
    assert history["tanh_1"].module.address == ""  # the model's own forward
    assert history["input"].module is None


def test_inputs_are_the_argument_tensors(model, history):
    for one in both(history, "fc1"):
        given, weight, bias = one.inputs
        assert torch.equal(given, x)
        assert weight is model.fc1.weight
        assert bias is model.fc1.bias


def test_params_and_name(history, loop):
    for one in both(history, "fc1"):
        assert [param.name for param in one.params] == ["fc1.weight", "fc1.bias"]
        assert one.name == "linear_1_1" == one.label
    assert loop["linear_1"].name == "linear_1_1"
    assert loop["linear_1"][2].name == "linear_1_1:2"
    assert [param.name for param in loop["linear_1"].params] == ["cell.weight", "cell.bias"]


def test_flops_are_those_of_the_cost(history, loop):
    for one in both(history, "fc1"):
        assert one.flops == 2 * 3 * 4 * 8 == cost_of(history).operation("fc1").flops
    assert loop["linear_1"][1].flops == 2 * 3 * 4 * 4
    assert loop["linear_1"].flops == 3 * 2 * 3 * 4 * 4
    assert history.flops == history.cost.flops == sum(one.flops for one in history.operations)
    for one in both(log(torch.linalg.matrix_exp, torch.eye(3)), "linalgmatrixexp_1"):
        assert one.flops is None  # no formula is known


def test_flops_without_a_formula_are_none():
    history = log(lambda t: torch.linalg.matrix_exp(t @ t.t()) + 1, x)
    assert history.cost.unknown
    assert history.filter(type="linalg_matrix_exp")[0].flops is None


def test_every_attribute_of_an_operation_is_one_of_a_layer(history):
    words = {name for name in dir(Operation) if not name.startswith("_")}
    assert words <= {name for name in dir(Layer) if not name.startswith("_")}
    for name in words:
        assert isinstance(getattr(Layer, name), property), name
        assert getattr(Layer, name).__doc__ == getattr(Operation, name).__doc__ or name in vars(Layer), name
        assert getattr(history["fc1"], name) is not NotImplemented if name not in ("grad",) else True


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("shpae", "shape"),
        ("tensor_contens", "tensor_contents"),
        ("tensor", "activation"),
        ("gradient", "grad"),
        ("weight", "params"),
    ],
)
def test_an_unknown_attribute_names_the_nearest_ones(history, name, near):
    for one in both(history, "fc1"):
        with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\. Did you mean .*{near}"):
            getattr(one, name)
        assert not hasattr(one, name)
    with pytest.raises(AttributeError, match=r"a Module has no attribute 'adress'.*address"):
        history.modules["fc1"].adress
    with pytest.raises(AttributeError, match=r"a Call has no attribute 'input_shape'.*input_shapes"):
        history.modules["fc1:1"].input_shape


def test_a_gradient_that_was_not_asked_for_names_the_argument(model, history):
    for one in both(history, "fc1"):
        with pytest.raises(GradientNotSaved, match=r"linear_1_1.*save_gradients=True"):
            one.grad
    some = torcheer.log_forward_pass(model, x, save_gradients=["fc2"])
    some.log_backward(some["output"].activation.sum())
    assert some["fc2"].grad is not None
    with pytest.raises(GradientNotSaved, match=r"save_gradients=True, or with 'linear_1_1' in the list"):
        some["fc1"].grad


def test_a_gradient_before_any_backward_pass_says_what_to_run(model):
    history = torcheer.log_forward_pass(model, x, save_gradients=True)
    for one in both(history, "fc1"):
        with pytest.raises(GradientNotSaved, match=r"linear_1_1.*no backward pass.*history\.log_backward\(loss\)"):
            one.grad


def test_a_gradient_that_no_backward_pass_reached_is_none():
    history = torcheer.log_forward_pass(
        made_of(lambda self, t: (self.one(t), self.other(t)), one=nn.Linear(4, 2), other=nn.Linear(4, 2)),
        x,
        save_gradients=True,
    )
    history.log_backward(history["output_1"].activation.sum())
    assert torch.equal(history["one"].grad, torch.ones(3, 2))
    assert history["other"].grad is None


def test_what_was_cleared_is_called_cleared(model):
    history = torcheer.log_forward_pass(model, x, save_gradients=True)
    history.log_backward(history["output"].activation.sum())
    history.clear_activations()
    for one in both(history, "fc1"):
        for ask in (lambda it: it.activation, np.asarray, lambda it: it.inputs, lambda it: it.creation_args):
            with pytest.raises(ActivationNotSaved, match=r"cleared by history\.clear_activations\(\).*[Ll]og again"):
                ask(one)
        with pytest.raises(GradientNotSaved, match=r"cleared by history\.clear_activations\(\)"):
            one.grad
    history.save_new_activations(model, x)
    assert torch.equal(history["fc1"].activation, model.fc1(x))


@pytest.mark.parametrize(
    ("name", "near"), [("layrs", "layers"), ("operation", "operations"), ("parameters", "params"), ("sumary", "summary")]
)
def test_an_unknown_attribute_of_a_history_names_the_nearest_ones(history, name, near):
    with pytest.raises(AttributeError, match=rf"a ModelHistory has no attribute '{name}'\. Did you mean .*{near}"):
        getattr(history, name)
    assert not hasattr(history, name)
    assert copy.deepcopy(history).num_operations == history.num_operations


def test_an_activation_that_was_not_saved_names_the_argument(model):
    history = log(model, x, layers_to_save=["fc2"])
    for one in both(history, "fc1"):
        for ask in (lambda it: it.activation, np.asarray, torch.as_tensor):
            with pytest.raises(ActivationNotSaved, match=r"linear_1_1.*layers_to_save='all'"):
                ask(one)


def test_the_activation_of_several_passes_names_the_passes_and_history_operations(loop):
    with pytest.raises(SeveralPasses, match=r"3 passes of linear_1_1.*linear_1_1:1.*history\.operations"):
        loop["linear_1"].activation
    assert loop["linear_1"].shape == (3, 4)
    with pytest.raises(SeveralPasses):
        np.asarray(loop["linear_1"])


class Attention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.weights = weights

    def forward(self, t):
        return self.attention(t, t, t, need_weights=self.weights)[0]


@pytest.mark.parametrize("key", ["softmax", "softmax_1", F.softmax, torch.softmax, nn.Softmax])
def test_looking_for_softmax_says_that_attention_is_fused_and_how_to_see_inside(key):
    given = torch.rand(1, 3, 4)
    history = log(Attention(False), given)
    with pytest.raises(
        LayerNotFound, match=r"Attention is fused here: scaleddotproductattention_1_\d+.*need_weights=True"
    ) as caught:
        history[key]
    assert "attn_implementation='eager'" in str(caught.value)
    assert "torch.backends.mha.set_fastpath_enabled(False)" in str(caught.value)
    assert log(Attention(True), given)["softmax"].layer_type == "softmax"  # what the message says is true


def test_the_fast_path_of_attention_is_called_fused_too_and_can_be_left():
    given, model = torch.rand(1, 3, 4), Attention(True).eval()
    was_enabled = torch.backends.mha.get_fastpath_enabled()
    try:
        with torch.no_grad():
            torch.backends.mha.set_fastpath_enabled(True)
            with pytest.raises(LayerNotFound, match=r"Attention is fused here: \w*multiheadattention"):
                log(model, given)["softmax"]
            torch.backends.mha.set_fastpath_enabled(False)
            assert log(model, given)["softmax"].layer_type == "softmax"
    finally:
        torch.backends.mha.set_fastpath_enabled(was_enabled)


def test_looking_for_softmax_without_attention_says_nothing_of_it(history):
    with pytest.raises(LayerNotFound) as caught:
        history["softmax"]
    assert "fused" not in str(caught.value)


def test_filter_returns_operations_that_fit_everything_asked(loop, history):
    assert loop.filter(type="linear") == loop["linear_1"].passes
    assert loop.filter(type=[torch.tanh, "linear"]) == [one for one in loop.operations if one.origin == "operation"]
    assert loop.filter(module="cell") == loop["linear_1"].passes
    assert loop.filter(module=nn.Linear, where=lambda one: one.pass_num > 1) == loop["linear_1"].passes[1:]
    assert history.filter(type="linear", module="fc2") == [history["fc2"][1]]
    assert history.filter(module=["fc*", nn.ReLU]) == [history[key][1] for key in ("fc1", "act", "fc2")]
    assert history.filter(type="conv2d") == []
    assert history.filter() == history.operations
    assert all(isinstance(one, Operation) for one in history.filter(where=lambda one: True))
    with pytest.raises(LayerNotFound, match="'fc1'"):
        history.filter(module="fc9")
    with pytest.raises(InvalidArgument, match="layer type"):
        history.filter(type=3)


def test_a_type_that_torch_has_and_that_did_not_run_means_nothing_and_another_is_refused():
    history = log(lambda t: torch.linalg.norm(t), x)
    assert [one.label for one in history.filter(type="linalg_norm")] == ["linalgnorm_1_1"]
    for name in ("linalg_svd", "linalgsvd", "special_erf", "fft_rfft", "svd", "conv2d", "source", "__matmul__"):
        assert history.filter(type=name) == [], name
    with pytest.raises(LayerNotFound, match=r"no type of layers is called 'linalg_nrom'\. The nearest are 'linalgnorm'"):
        history.filter(type="linalg_nrom")


def test_operators_of_python_mean_what_they_do_to_tensors():
    history = log(lambda t: -(t / 2 + 1) @ t.t(), x)
    for function, label in (
        (operator.truediv, "div_1_1"),
        (operator.add, "add_1_2"),
        (operator.__add__, "add_1_2"),
        (operator.neg, "neg_1_3"),
        (operator.matmul, "matmul_1_5"),
        (torch.div, "div_1_1"),
        (torch.Tensor.__truediv__, "div_1_1"),
    ):
        assert [layer.layer_label for layer in history[function]] == [label], function
        assert [one.label for one in log(lambda t: -(t / 2 + 1) @ t.t(), x, layers_to_save=[function]).saved] == [label]


def test_filter_takes_classes_as_keys_do(history, loop):
    """A class means what its modules returned, here as everywhere."""
    assert history.filter(type=nn.ReLU) == history.filter(nn.ReLU) == [history["act"][1]]
    assert loop.filter(type=[nn.Linear, "tanh"]) == [one for one in loop.operations if one.origin == "operation"]
    assert history.filter(type=nn.Conv2d) == []


@pytest.mark.parametrize(("name", "near"), [("rleu", "relu"), ("linaer", "linear"), ("avg_pol2d", "avgpool2d")])
def test_filter_refuses_a_type_that_there_is_not_and_names_the_nearest(history, name, near):
    for given in (name, ["tanh", name]):
        with pytest.raises(LayerNotFound, match=rf"no type of layers is called '{name}'.*{near}"):
            history.filter(type=given)


@pytest.mark.parametrize("name", ["conv2d", "max_pool2d", "add_", "input", "setitem", "getitem", "rsub", "source"])
def test_a_type_that_did_not_run_is_no_error(history, name):
    assert history.filter(type=name) == [one for one in history.operations if one.layer_type == name]


@pytest.mark.parametrize("given", ["softmax", F.softmax, torch.softmax, ["softmax", "linear"]])
def test_filter_for_softmax_says_that_attention_is_fused(given):
    fused = log(Attention(False), torch.rand(2, 3, 4))
    with pytest.raises(LayerNotFound, match=r"Attention is fused here: scaleddotproductattention_1_\d+.*To see inside"):
        fused.filter(type=given)
    assert log(Attention(True), torch.rand(2, 3, 4)).filter(type=given)


def test_filter_by_a_module_finds_what_ran_inside_it_at_any_depth():
    inner = log(nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Tanh()), x)
    assert [one.layer_type for one in inner.filter(module="0")] == ["linear", "relu"]


def test_to_csv_writes_one_row_per_operation(history, tmp_path):
    path = history.to_csv(tmp_path / "table.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [one.label for one in history.operations]
    assert list(rows[0]) == list(history.to_rows()[0])


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0"])
def test_no_cell_of_a_csv_is_a_formula_and_numbers_are_numbers(name, tmp_path):
    model = torch.nn.Sequential()
    model.add_module(name, torch.nn.Linear(2, 2))
    history = torcheer.log_forward_pass(model, torch.ones(1, 2))
    with open(history.to_csv(tmp_path / "table.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert f"'{name}" in [row["module"] for row in rows]
    assert not [cell for row in rows for cell in row.values() if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))]
    assert [int(row["pass"]) for row in rows] == [one.pass_num for one in history.operations]
    text = io.StringIO()
    write_csv([{"change": -1.5, "name": "-1.5"}], text)
    assert text.getvalue().splitlines()[1] == "-1.5,'-1.5"


def test_to_csv_writes_to_file_objects(history, tmp_path):
    text = io.StringIO()
    assert history.to_csv(text) is None
    path = history.to_csv(tmp_path / "table.csv")
    assert text.getvalue().replace("\r\n", "\n") == path.read_text(encoding="utf-8")
    with (tmp_path / "open.csv").open("wb") as file:
        history.to_csv(file)
    assert (tmp_path / "open.csv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("path", [3, None, ["a.csv"]])
def test_to_csv_refuses_what_is_no_file(history, path):
    with pytest.raises(InvalidArgument, match=r"to_csv takes a path or a file object; got"):
        history.to_csv(path)


def test_summary_is_that_of_a_history(model, history):
    assert torcheer.summary(model, x).totals["params"] == history.summary().totals["params"] == 67
    assert str(torcheer.summary(model, x, columns=("params", "flops"), depth=1)) == str(
        history.summary(("params", "flops"), depth=1)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"color_by": "flops"},
        {"color_by": "params"},
        {"color_by": lambda one: one.tensor_fsize},
        {"collapse": nn.Linear, "direction": "right"},
        {"rolled": True, "theme": "dark"},
        {"label": "{type}"},
    ],
)
def test_picture_options_as_an_object_and_as_keywords_mean_the_same(model, options):
    history = log(model, x)
    by_name = history.draw(io.BytesIO(), format="dot", **options)
    by_object = history.draw(io.BytesIO(), format="dot", options=PictureOptions(**options))
    assert by_object.dot == by_name.dot
    shown = torcheer.show_model_graph(model, x, path=io.BytesIO(), format="dot", options=PictureOptions(**options))
    assert shown.title == by_name.title


@pytest.mark.parametrize(("name", "near"), [("colour_by", "color_by"), ("directoin", "direction"), ("vis_op", "")])
def test_an_unknown_picture_option_names_the_nearest(history, name, near):
    for ask in (PictureOptions, lambda **options: history.draw(io.BytesIO(), **options)):
        with pytest.raises(
            InvalidArgument, match=rf"a picture has no option '{name}'\.( Did you mean '{near}'.)?.*There are: rolled"
        ):
            ask(**{name: "flops"})
    assert (
        copy.deepcopy(PictureOptions(theme="dark")) == copy.copy(PictureOptions(theme="dark")) == PictureOptions(theme="dark")
    )


def test_color_by_gradients_as_an_object(model):
    history = torcheer.log_forward_pass(model, x, save_gradients=True)
    history.log_backward(history["output"].activation.sum())
    by_name = history.draw(io.BytesIO(), format="svg", color_by="grad").svg
    assert history.draw(io.BytesIO(), format="svg", options=PictureOptions(color_by="grad")).svg == by_name


def test_keywords_go_before_the_object(model):
    history = log(model, x)
    both = history.draw(io.BytesIO(), format="svg", options=PictureOptions(theme="dark", direction="right"), theme="light")
    assert both.svg == history.draw(io.BytesIO(), format="svg", direction="right").svg


@made_with(fc=lambda: nn.Linear(4, 4))
def Threaded(self, t):
    found = []
    thread = threading.Thread(target=lambda: found.append(self.fc(t)))
    thread.start()
    thread.join()
    return found[0] + 1


def test_unseen_work_warns_raises_or_is_ignored():
    model = Threaded()
    with pytest.warns(UnseenWorkWarning, match="another thread"):
        log(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UnseenWork, match=r"another thread.*unseen='ignore'") as caught:
            log(model, x, unseen="raise")
        ignored = log(model, x, unseen="ignore")
    assert caught.value.history.is_complete
    assert ["another thread" in note for note in ignored.notes] == [True]
    assert torch.equal(ignored["output"].activation, model(x))


class WritesFromAThread(nn.Module):
    """A thread writes in place to a tensor of the model, and hands nothing back."""

    def __init__(self, what):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("buffer", torch.zeros(3, 4))
        self.what = what

    def forward(self, t):
        h = self.fc(t)
        target = {"activation": h, "view": h[:1], "input": t, "buffer": self.buffer, "parameter": self.fc.weight}[self.what]

        def work():
            with torch.no_grad():
                target.add_(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return h + self.buffer


@pytest.mark.parametrize("what", ["activation", "view"])
def test_a_thread_that_writes_to_an_activation_is_noticed(what):
    model = WritesFromAThread(what)
    with pytest.raises(UnseenWork, match=r"linear_1_1.* was written to .*another thread.*unseen='ignore'") as caught:
        log(model, x, unseen="raise")
    assert caught.value.history.is_complete
    with pytest.warns(UnseenWorkWarning, match="linear_1_1"):
        log(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ignored = log(model, x, unseen="ignore")
    assert ["was written to" in note for note in ignored.notes] == [True]
    with pytest.raises(torcheer.ActivationLost):
        ignored["fc"].activation


@pytest.mark.parametrize(("what", "name"), [("input", "an input"), ("buffer", "'buffer'"), ("parameter", "fc.weight")])
@pytest.mark.filterwarnings("ignore::torcheer.StateNotRestored")
def test_a_thread_that_writes_to_what_was_there_before_the_pass_is_noticed(what, name):
    with pytest.raises(UnseenWork, match=rf"{name}.* was written to"):
        log(WritesFromAThread(what), x.clone(), unseen="raise")
    log(WritesFromAThread(what), x.clone(), unseen="ignore")


def in_threads(modules, parts):
    """What `torch.nn.parallel.parallel_apply` does on several devices: no thread is there any more when the results are."""
    found = {}
    enabled = torch.is_grad_enabled()

    def work(place, module, part):
        with torch.set_grad_enabled(enabled):
            found[place] = module(part)

    threads = [
        threading.Thread(target=work, args=(place, *pair)) for place, pair in enumerate(zip(modules, parts, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[place] for place in range(len(modules))]


@made_with(module=lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
def Replicated(self, t):
    """Runs replicas of a module on parts of a batch, a thread for each, as `nn.DataParallel` does."""
    replicas = [self.module._replicate_for_data_parallel() for _ in range(2)]
    for replica in replicas:
        replica._modules = {name: copy.copy(module) for name, module in self.module._modules.items()}
    return torch.cat(in_threads(replicas, t.chunk(2)))


@pytest.mark.parametrize("gradients", [True, False])
def test_replicas_on_other_threads_are_noticed(gradients):
    with torch.set_grad_enabled(gradients):
        for model in (Replicated(), nn.Sequential(nn.Linear(4, 4), Replicated())):
            with pytest.raises(UnseenWork, match="no operation on this thread made"):
                log(model, torch.rand(6, 4), unseen="raise")


def test_a_model_in_data_parallel_runs_on_one_thread_and_is_all_seen():
    history = log(nn.DataParallel(nn.Linear(4, 4)), x, unseen="raise")
    assert [one.layer_type for one in history] == ["input", "linear", "output"]


def test_unseen_work_in_a_recording():
    model = Threaded()
    with pytest.raises(UnseenWork), torcheer.recording(model, unseen="raise"):
        model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torcheer.recording(model, unseen="ignore") as history:
            model(x)
    assert history.notes


def test_what_is_all_seen_is_not_refused(model):
    assert log(model, x, unseen="raise").notes == []
    with pytest.raises(InvalidArgument, match="unseen is one of 'warn', 'raise', 'ignore'; got 'shout'"):
        log(model, x, unseen="shout")


def test_a_pass_is_repeated_from_its_random_state():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.5)).train()
    first = log(model, x)
    torch.rand(7)
    before = torch.get_rng_state()
    again = log(model, x, random_state=first.random_state)
    assert torch.equal(torch.get_rng_state(), before)
    for one, other in zip(first.operations, again.operations, strict=True):
        assert torch.equal(one.activation, other.activation)
    assert torch.equal(log(model, x, random_state=again.random_state)["output"].activation, first["output"].activation)
    assert not torch.equal(log(model, x)["output"].activation, first["output"].activation)


def test_new_activations_are_repeated_from_a_random_state():
    model = nn.Dropout(0.5).train()
    first = log(model, x)
    torch.rand(7)
    other = log(model, x)
    assert not torch.equal(first["output"].activation, other["output"].activation)
    other.save_new_activations(model, x, random_state=first.random_state)
    assert torch.equal(first["output"].activation, other["output"].activation)


def test_a_seeded_pass_is_repeated_too():
    model = nn.Dropout(0.5).train()
    first = log(model, x, random_seed=3)
    assert torch.equal(log(model, x, random_state=first.random_state)["output"].activation, first["output"].activation)


def test_the_printed_line_says_how_to_repeat(model):
    assert "Random seed: none given; random_state=history.random_state repeats it" in str(log(model, x))
    assert "Random seed: 3\n" in str(log(model, x, random_seed=3))


def test_a_random_state_is_that_of_a_history(model, history):
    with pytest.raises(InvalidArgument, match="random_state is the random_state of a history; got int"):
        log(model, x, random_state=3)
    with pytest.raises(InvalidArgument, match="give one of them"):
        log(model, x, random_state=history.random_state, random_seed=3)


@pytest.mark.parametrize("where", [nn.ReLU, torch.relu, "relu", 3])
def test_where_takes_a_function_of_an_operation_and_nothing_else(where):
    """A class would say yes to every operation, and a torch function would be called with one."""
    with pytest.raises(torcheer.InvalidArgument, match="module="):
        torcheer.log_forward_pass(nn.ReLU(), torch.ones(2)).filter(where=where)


@pytest.mark.parametrize(
    "options",
    [{"color_by": nn.ReLU}, {"color_by": torch.relu}, {"label": nn.ReLU}, {"label": torch.relu}, {"collapse": torch.relu}],
)
def test_pictures_refuse_classes_and_torch_functions_where_a_function_is_meant(options):
    with pytest.raises(torcheer.InvalidArgument, match=next(iter(options))):
        torcheer.PictureOptions(**options)


@pytest.mark.parametrize("size", [2, 3000])
def test_parameters_that_were_moved_to_shared_memory_are_what_they_were(size):
    """Nothing was written to them; what is written later is noticed."""
    model, x = nn.Linear(size, 3), torch.rand(2, size)
    before = model.weight.detach().clone()
    history = torcheer.log_forward_pass(model, x)
    model.share_memory()
    assert torch.equal(history["linear_1"].creation_args[1], before)
    model.weight.data[0, 0] += 1
    with pytest.raises(torcheer.ParameterChanged):
        history["linear_1"].creation_args


def test_parameters_that_were_given_other_shared_memory_are_changed():
    model, x = nn.Linear(3000, 3), torch.rand(2, 3000)
    history = torcheer.log_forward_pass(model, x)
    other = model.weight.detach().clone()
    other[1, 1000] += 1
    model.weight.data = other.share_memory_()
    with pytest.raises(torcheer.ParameterChanged):
        history["linear_1"].creation_args


def test_no_flops_are_known_of_a_layer_without_a_formula():
    history = torcheer.log_forward_pass(lambda x: torch.linalg.matrix_exp(x), torch.rand(3, 3))
    assert history[1].flops is None
    assert history[1][1].flops is None
