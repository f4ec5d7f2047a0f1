"""A history answers, copies, compares and converts."""

from __future__ import annotations

import copy
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import torcheer
from models import Branching, Convolutional, Mlp, log, made_of
from torcheer import GraphChanged, NotPicklable

x = torch.rand(3, 4)


def test_totals_and_structure():
    history = log(Branching(), x)
    assert history.is_branching
    assert not history.is_recurrent
    assert history.num_modules == 2
    assert set(history.params) == {"a.weight", "a.bias", "b.weight", "b.bias"}
    assert history.params["a.weight"].is_trainable
    assert history.time_by_phase["functions"] <= history.time_by_phase["forward"] <= history.time_elapsed


def test_buffers_are_listed():
    history = log(Convolutional().eval(), torch.rand(1, 3, 8, 8))
    assert set(history.buffers) == {f"features.1.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")}


def test_shared_parameters_count_once_and_know_their_names():
    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    two.weight = one.weight
    history = log(nn.Sequential(one, two), x)
    assert set(history.params) == {"0.weight", "0.bias", "1.bias"}
    assert history.params["0.weight"].other_names == ("1.weight",)
    assert history.num_params_total == 24
    assert history["linear_2"].parent_params[0].name == "0.weight"


def test_frozen_parameters_are_marked():
    model = nn.Linear(4, 2)
    model.weight.requires_grad_(False)
    history = log(model, x)
    assert [p.is_trainable for p in history["linear_1"].parent_params] == [False, True]


def test_a_deep_copy_is_a_history_of_its_own():
    history = log(Mlp(), x)
    twin = copy.deepcopy(history)
    assert twin.layer_labels == history.layer_labels
    twin["linear_1"].tensor_contents.zero_()
    assert history["linear_1"].tensor_contents.abs().sum() > 0
    history.clear_activations()
    assert torch.equal(twin["relu_1"].tensor_contents, twin["relu_1"].tensor_contents)
    assert str(twin).splitlines()[0] == str(history).splitlines()[0]


def test_pickle_says_why_not():
    with pytest.raises(NotPicklable, match=r"runs whatever code.* Use history\.save\(path\)"):
        pickle.dumps(log(Mlp(), x))


def test_new_activations_replace_the_old_ones():
    model = Mlp()
    history = log(model, x)
    first = history["tanh_1"].tensor_contents
    history.save_new_activations(model, x * 2)
    assert torch.equal(history["tanh_1"].tensor_contents, model(x * 2))
    assert not torch.equal(first, history["tanh_1"].tensor_contents)


def test_new_activations_for_some_layers():
    model = Mlp()
    history = log(model, x, layers_to_save="none")
    history.save_new_activations(model, x, layers_to_save=["fc2"])
    assert [one.label for one in history.saved] == ["linear_2_3"]


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (lambda m, t: torch.sigmoid(m.fc2(m.act(m.fc1(t)))), "tanh_1_4, now 'sigmoid' ran"),
        (lambda m, t: torch.tanh(m.fc2(m.act(m.fc1(t)))) + 1, "7 operations instead of 6|output_1_5, now 'add' ran"),
        (lambda m, t: torch.tanh(m.fc2(m.fc1(t).relu())), "ran in module"),
    ],
)
def test_a_pass_that_differs_is_refused_and_nothing_is_lost(other, difference):
    model = Mlp()

    class Other(Mlp):
        def forward(self, t):
            return other(self, t)

    history = log(model, x)
    before = history["tanh_1"].tensor_contents
    with pytest.raises(GraphChanged, match=difference):
        history.save_new_activations(Other(), x)
    assert history["tanh_1"].tensor_contents is before


def test_pandas_has_a_row_per_operation():
    table = log(Mlp(), x).to_pandas()
    assert list(table["label"]) == ["input_1_0", "linear_1_1", "relu_1_2", "linear_2_3", "tanh_1_4", "output_1_5"]
    assert list(table["module"])[1] == "fc1"
    assert table["bytes"].sum() == 4 * (12 + 24 + 24 + 9 + 9 + 9)


def test_without_pandas_the_error_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        log(Mlp(), x).to_pandas()


def test_each_operation_knows_its_facts():
    history = log(Mlp(), x)
    one = history["linear_1"]
    assert one.func_applied is torch.nn.functional.linear
    assert (one.func_applied_name, one.layer_type) == ("linear", "linear")
    assert (one.tensor_shape, one.tensor_dtype, one.tensor_fsize) == ((3, 8), torch.float32, 96)
    assert one.tensor_device == torch.device("cpu")
    assert one.func_time_elapsed > 0
    assert one.gradfunc == "AddmmBackward0"
    assert one.source.file.endswith("models.py")
    assert one.source.text == "return torch.tanh(self.fc2(self.act(self.fc1(x))))"
    assert one.stack[-1].function.endswith("forward")
    assert one.containing_module == "fc1"
    assert one.modules_exited == ["fc1:1"]
    assert one.modules_entered == ["act:1"]
    assert one.bottom_level_module == "fc1"
    assert (one.operation_num, one.layer_number, one.pass_num, one.num_passes) == (2, 1, 1, 1)
    assert history["tanh_1"].containing_module is None
    assert history["tanh_1"].source.text == one.source.text


def test_the_source_of_an_operation_in_torchs_own_modules_is_the_line_that_calls_the_function():
    """Not the line inside the function that hands the call on to whoever watches."""
    history = torcheer.log_forward_pass(nn.Sequential(nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 4)), torch.ones(2, 4))
    assert history["layernorm_1"].source.text == "return F.layer_norm("
    assert history["relu_1"].source.text == "return F.relu(input, inplace=self.inplace)"
    assert history["linear_1"].source.text == "return F.linear(input, self.weight, self.bias)"


def test_a_bottom_level_module_is_one_with_one_operation_inside():
    history = log(made_of(lambda self, t: self.inner(t) + 1, inner=nn.Sequential(nn.Linear(4, 4))), x)
    assert history["linear_1"].bottom_level_module == "inner.0"
    assert history["add_1"].bottom_level_module is None


def test_dir_lists_the_public_names_of_the_page_and_no_others():
    page = (Path(__file__).parents[2] / "docs" / "names.md").read_text(encoding="utf-8").partition("## Errors")[0]
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(dir(torcheer)) == named | {"__version__", "errors"}
    assert all(hasattr(torcheer, name) for name in dir(torcheer))


def test_every_error_is_importable_from_the_top():
    errors = [value for value in vars(torcheer.errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    hidden = {error.__name__ for error in errors if not hasattr(torcheer, error.__name__)}
    assert not hidden, hidden


def test_the_public_names_are_these():
    assert sorted(n for n in vars(torcheer) if not n.startswith("_") and n[0].isupper()) == [
        *("ActivationLost", "ActivationNotSaved", "AmbiguousKey", "ArchitectureTracer", "BackwardFailed", "Call"),
        *("CannotBeSaved", "Comparison", "Culprit", "Diagnosis", "DrawingFailed", "Edits"),
        *("EmptyLogWarning", "Extractor", "Features", "FeaturesExist", "FeaturesMismatch"),
        *("FeaturesNotFound", "FileManager", "Finding", "FolderNotFound", "FunctionNotFound", "GradientNotSaved"),
        *("GraphChanged", "GraphvizNotFound", "HistoryNotFound", "InvalidArgument", "Layer", "LayerNotFound"),
        *(
            "MissingInTorch",
            "ModelHistory",
            "ModelInUse",
            "ModelMismatch",
            "Module",
            "ModuleCalls",
            "NotFinite",
            "NotFiniteWarning",
            "NotPicklable",
            "NotWritten",
        ),
        *("Operation", "ParameterChanged", "ParameterNotSaved", "Picture"),
        *("PictureOptions", "Place", "PlaceNotReached", "RandomFilterSelectorType", "RecordingsOverlap", "ReplayFailed"),
        *("RunExists", "RunInUse", "RunMismatch", "RunNotFound", "SeveralPasses"),
        *("Similarity", "SnapshotLost", "SnapshotNotFound", "StateNotRestored", "TappedValues"),
        *("TorcheerError", "TrainingModeWarning", "TrainingStep", "UnreadableFile", "UnseenWork"),
        *("UnseenWorkWarning", "ValidationReport", "ViewerNotBuilt", "Xray"),
    ]
    assert {"log_forward_pass", "recording", "show_model_graph", "validate_forward_pass", "watch_modules"} <= set(
        vars(torcheer)
    )


def _gradients(history, net, folder):
    logged = log(net, torch.rand(2, 3, 8, 8, device="cpu"), save_gradients=True)
    logged.log_backward(logged.outputs[0].tensor_contents.sum())
    assert logged["features.0"].grad_contents is not None


def _training(history, net, folder):
    xray = torcheer.Xray(net, (2, 3, 8, 8), folder=folder / "run")
    for _ in range(4):
        xray.take_graphs()
    xray.report(folder / "report.html")
    xray.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda history, net, folder: str(history) + str(history[1]) + str(history.cost) + str(history.memory),
        lambda history, net, folder: history.summary(),
        lambda history, net, folder: history.draw(folder / "graph.svg"),
        lambda history, net, folder: history.to_html(folder / "page.html"),
        lambda history, net, folder: history.replay(changes={"features.2": torch.zeros_like}),
        _gradients,
        _training,
    ],
)
def test_everything_works_where_new_tensors_go_to_another_device(use, tmp_path):
    net, image = Convolutional(), torch.rand(2, 3, 8, 8)
    torch.set_default_device("meta")  # what is made by mistake where the user's tensors go holds no values, and shows
    try:
        history = log(net, image, random_seed=3)
        use(history, net, tmp_path)
        report = torcheer.validate_forward_pass(net, image)
    finally:
        torch.set_default_device(None)
    assert report, report


@pytest.mark.parametrize("save_gradients", [False, True])
def test_parts_of_a_history_can_be_copied_with_their_tensors_and_are_not_pickled(save_gradients):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    history = torcheer.log_forward_pass(model, torch.ones(1, 2), save_gradients=save_gradients)
    if save_gradients:
        history.log_backward(history.outputs[0].activation.sum())
    layer, operation, module = history["0"], history["0"][1], history.modules["0"]
    for one in (layer, operation):
        copied = copy.deepcopy(one)
        assert copied.label == one.label
        assert copied.parents[0].label == "input_1_0"
        assert torch.equal(copied.activation, one.activation)
        assert copied.activation.data_ptr() != one.activation.data_ptr()
        assert not save_gradients or torch.equal(copied.grad, one.grad)
        assert copied != one
        assert copied.inputs[1] is model[0].weight
    assert copy.deepcopy(module).address == "0"
    assert copy.deepcopy(history.modules["0:1"]).input_shapes == history.modules["0:1"].input_shapes
    first, second = copy.deepcopy([layer, operation])
    assert first[1] == second  # of one copy
    assert copy.deepcopy(history.graph) == history.graph
    for one in (layer, operation, module, history.cost, history.graph):
        with pytest.raises(torcheer.NotPicklable, match="pickle"):
            pickle.dumps(one)


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_a_copy_of_a_history_says_where_a_backward_pass_is_to_be_run(make):
    """The autograd graph belongs to the original; what ran before the copy is in both."""
    model = torch.nn.Linear(2, 2)
    history = torcheer.log_forward_pass(model, torch.ones(1, 2), save_gradients=True)
    with pytest.raises(torcheer.InvalidArgument, match="call log_backward on that"):
        make(history).log_backward(history.outputs[0].activation.sum())
    history.log_backward(history.outputs[0].activation.sum())
    assert torch.equal(make(history)["linear_1"].grad, torch.ones(1, 2))


def test_a_shallow_copy_of_a_history_shares_its_tensors_and_can_be_cleared_alone():
    history = torcheer.log_forward_pass(torch.nn.Linear(2, 2), torch.ones(1, 2), save_gradients=True)
    history.log_backward(history.outputs[0].activation.sum())
    copied = copy.copy(history)
    assert type(copied) is type(history)
    assert copied["linear_1"].activation.data_ptr() == history["linear_1"].activation.data_ptr()
    assert copy.copy(history.graph) == history.graph
    copied.clear_activations()
    assert history["linear_1"].activation.shape == history["linear_1"].grad.shape == (1, 2)
    with pytest.raises(torcheer.ActivationNotSaved):
        copied["linear_1"].activation  # it is asked for


def test_a_backward_pass_counts_in_words():
    history = torcheer.log_forward_pass(torch.nn.Linear(2, 2), torch.ones(1, 2), save_gradients=True)
    said = repr(history.log_backward(history.outputs[0].activation.sum()))
    assert ", 1 gradient of operations, 2 of parameters, " in said
