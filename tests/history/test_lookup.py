"""Every key a person may type finds the layer it means, or says why not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import Branching, Mlp, log, made_of
from torcheer import AmbiguousKey, Layer, LayerNotFound, Operation
from torcheer.demo import AlexNet

x = torch.rand(3, 4)


@pytest.fixture(scope="module")
def alexnet():
    return log(AlexNet(), torch.rand(1, 3, 64, 64), random_seed=0)


@pytest.fixture(scope="module")
def mlp():
    return log(Mlp(), x)


@pytest.mark.parametrize("key", ["conv2d_3_7", "conv2d_3", "conv2d_3_7:1", "conv2d_3:1", "features.6", "features.6:1", 7, -17])
def test_the_keys_of_the_readme_find_the_same_layer(alexnet, key):
    assert len(alexnet) == 24
    assert alexnet[key].label == "conv2d_3_7"
    assert key in alexnet


def test_every_key_a_layer_lists_finds_it(alexnet):
    for layer in alexnet:
        for key in layer.lookup_keys:
            assert alexnet[key] == layer
            assert alexnet[key].label == layer.label


def test_listed_keys_are_those_of_the_readme(alexnet):
    assert alexnet["conv2d_3_7"].lookup_keys == [-17, 7, "conv2d_3_7", "conv2d_3_7:1", "features.6", "features.6:1"]


def test_a_container_means_what_leaves_it(alexnet):
    assert alexnet["features"].label == "maxpool2d_3_13"
    assert alexnet["classifier"].label == "linear_3_22"


def test_slices_and_lists(mlp):
    assert [layer.label for layer in mlp[1:4]] == ["linear_1_1", "relu_1_2", "linear_2_3"]
    assert [layer.label for layer in mlp[::-1]][0] == "output_1_5"
    assert [layer.label for layer in mlp[["fc2", 0, "tanh"]]] == ["linear_2_3", "input_1_0", "tanh_1_4"]


@pytest.mark.parametrize(
    ("key", "label"),
    [
        ("input", "input_1_0"),
        ("input_1", "input_1_0"),
        ("input1", "input_1_0"),
        ("output", "output_1_5"),
        ("output1", "output_1_5"),
        ("tan", "tanh_1_4"),
        ("fc2", "linear_2_3"),
        ("act", "relu_1_2"),
    ],
)
def test_ends_and_unambiguous_parts(mlp, key, label):
    assert mlp[key].label == label


def test_several_outputs():
    history = log(Branching(), x)
    assert [one.label for one in history.outputs] == [history[f"output{n}"].label for n in (1, 2, 3)]
    assert [one.io_role for one in history.outputs] == ["output[0]", "output[1]['where']", "output[1]['sum']"]
    with pytest.raises(AmbiguousKey, match=r"3 outputs: output_1_.* Use one of these labels, or output1, output2"):
        history["output"]


def test_a_key_that_fits_nothing_names_the_nearest(mlp):
    with pytest.raises(LayerNotFound, match=r"no layer fits 'linear_3'.*6 layers.*'linear_2_3'"):
        mlp["linear_3"]
    assert "linear_3" not in mlp
    with pytest.raises(KeyError):
        mlp["linear_3"]


def test_a_key_that_fits_several_lists_them(mlp):
    with pytest.raises(AmbiguousKey, match="2 layers: linear_1_1, linear_2_3"):
        mlp["linear"]


@pytest.mark.parametrize("key", [6, -7, 100])
def test_a_position_out_of_range_says_the_range(mlp, key):
    with pytest.raises(LayerNotFound, match="6 layers, 0 to 5"):
        mlp[key]
    assert key not in mlp


@pytest.mark.parametrize("key", [1.5, None, True, object()])
def test_other_kinds_of_key_are_refused(mlp, key):
    with pytest.raises(LayerNotFound, match="looked up by"):
        mlp[key]


def test_a_pass_that_does_not_exist(mlp):
    with pytest.raises(LayerNotFound, match="linear_1_1 has 1 pass"):
        mlp["linear_1:2"]
    with pytest.raises(LayerNotFound, match="'fc1' was called 1 times"):
        mlp["fc1:2"]


def test_a_module_that_was_not_called_says_so():
    with pytest.raises(LayerNotFound, match="was not called"):
        log(made_of(lambda self, t: self.used(t), used=nn.ReLU(), idle=nn.ReLU()), x)["idle"]


def test_a_module_named_like_another_layers_label_is_ambiguous():
    history = log(made_of(lambda self, t: self.relu_1(torch.relu(t)), relu_1=nn.ReLU()), x)
    with pytest.raises(AmbiguousKey, match="short label and a module address"):
        history["relu_1"]
    for layer in history:
        for key in layer.lookup_keys:
            assert history[key] == layer


def test_shared_modules_are_found_by_call():
    shared = nn.Linear(4, 4)
    history = log(nn.Sequential(shared, nn.ReLU(), shared), x)
    assert history["0:1"].tensor_shape == (3, 4)
    assert not torch.equal(history["0:1"].tensor_contents, history["0:2"].tensor_contents)
    assert history._log.registered["0"].other_addresses == ("2",)


def test_kinds_of_result(mlp):
    assert isinstance(mlp["fc1"], Layer)
    assert isinstance(mlp["fc1"][1], Operation)
    assert mlp["fc1"].passes[0] == mlp["fc1"][1]
    with pytest.raises(IndexError, match="passes 1 to 1"):
        mlp["fc1"][2]


def test_iteration_length_and_completion(mlp):
    assert [layer.label for layer in mlp] == mlp.layer_labels
    assert len(mlp) == 6
    assert mlp["fc1"] in mlp
    assert set(mlp._ipython_key_completions_()) == {*mlp.layer_labels, "fc1", "act", "fc2"}


def test_an_attribute_that_does_not_exist_is_an_attribute_error(mlp):
    with pytest.raises(AttributeError, match=r"a Layer has no attribute 'shap'\. Did you mean shape"):
        mlp["fc1"].shap
    assert "tensor_shape" in dir(mlp["fc1"])
