"""What is printed reads well and its figures are right."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import torcheer
from models import Mlp, log
from torcheer._text import human_size, plural
from torcheer.demo import AlexNet
from torcheer.history.printing import module_hierarchy


@pytest.fixture(scope="module")
def alexnet():
    return torcheer.log_forward_pass(AlexNet(), torch.rand(1, 3, 224, 224), random_seed=0)


HISTORY = """\
Log of AlexNet forward pass:
	Model structure: purely feedforward, without branching; 23 total modules.
	24 tensors (4.8 MB) computed in forward pass; 24 tensors (4.8 MB) saved.
	8 parameter operations (61100840 params total; 233.1 MB).
	Random seed: 0
	Time elapsed: #s
	Module Hierarchy:
		features:
		    features.0, features.1, features.2, features.3, features.4, features.5, features.6, features.7,
		    features.8, features.9, features.10, features.11, features.12
		avgpool
		classifier:
		    classifier.0, classifier.1, classifier.2, classifier.3, classifier.4, classifier.5, classifier.6
	Layers:
		0: input_1_0                1×3×224×224
		1: conv2d_1_1               1×64×55×55   features.0
		2: relu_1_2                 1×64×55×55   features.1
		3: maxpool2d_1_3            1×64×27×27   features.2
		4: conv2d_2_4               1×192×27×27  features.3
		5: relu_2_5                 1×192×27×27  features.4
		6: maxpool2d_2_6            1×192×13×13  features.5
		7: conv2d_3_7               1×384×13×13  features.6
		8: relu_3_8                 1×384×13×13  features.7
		9: conv2d_4_9               1×256×13×13  features.8
"""

LAYER = """\
	Params: Computed from params with shape (384,), (384, 192, 3, 3); 663936 params total (2.5 MB)
	Parent Layers: maxpool2d_2_6
	Child Layers: relu_3_8
	Function: conv2d (gradfunc=ConvolutionBackward0)
	Computed inside module: features.6
"""

LAYER_END = """\
	Time elapsed:  #s
	Output of modules: features.6
	Output of bottom-level module: features.6
	Lookup keys: -17, 7, conv2d_3_7, conv2d_3_7:1, features.6, features.6:1"""


def masked(text):
    return re.sub(r"(Time elapsed: +)[0-9.E+-]+s", r"\1#s", text)


def test_a_history_reads_as_in_the_readme(alexnet):
    assert masked(str(alexnet)).startswith(HISTORY)


def test_a_layer_reads_as_in_the_readme(alexnet):
    text = masked(str(alexnet["conv2d_3_7"]))
    head, tensor, rest = text.split("\n\t", 2)
    assert head == "Layer conv2d_3_7, operation 8/24:"
    assert tensor == "Output tensor: shape=(1, 384, 13, 13), dtype=torch.float32, size=253.5 KB"
    assert rest.startswith("\ttensor([[")
    assert LAYER in text
    assert text.endswith(LAYER_END)
    assert "demo.py" in text


def test_the_figures_add_up(alexnet):
    operations = [one for one in alexnet.operations if not one.is_output_layer]
    assert alexnet.tensor_fsize_total == sum(one.tensor_contents.numel() * 4 for one in operations)
    assert alexnet.num_params_total == sum(p.numel() for p in AlexNet().parameters())
    assert alexnet.num_param_operations == sum(bool(one.parent_params) for one in alexnet.operations)
    assert alexnet.num_params_total == sum(one.num_params for one in alexnet.operations)


def test_what_was_not_saved_says_so():
    history = log(Mlp(), torch.rand(2, 4), layers_to_save=["fc1"])
    assert "1 tensor (64 B) saved" in str(history)
    assert "(not saved)" in str(history["relu_1"])


def test_ends_say_where_they_were():
    history = torcheer.log_forward_pass(lambda d: {"y": d["x"] + 1}, {"x": torch.rand(2)})
    assert "given to the model (args[0]['x'])" in str(history["input"])
    assert "returned by the model (output['y'])" in str(history["output"])


def test_long_lists_are_cut_with_a_count():
    text = str(log(nn.Sequential(*(nn.ReLU() for _ in range(1000))), torch.rand(2)))
    assert text.count("\n") < 260
    assert "… 1 … 999 (999 equal): 999 layers …" in text
    flat = str(log(lambda x: [x := x.sin() for _ in range(1000)][-1], torch.rand(2)))
    assert re.search(r"… \d+ layers? more …|1000 passes", flat)


def test_a_recurrent_model_says_how_many_passes():
    def model(t):
        for _ in range(1000):
            t = t + 1
        return t

    text = str(log(model, torch.rand(2)))
    assert "recurrent (at most 1000 passes)" in text
    assert "1: add_1_1 (1000 passes)" in text


def test_deep_hierarchies_are_nested_and_wrapped():
    block = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 4)), nn.ReLU())
    history = log(nn.Sequential(block, nn.ReLU()), torch.rand(1, 4))
    assert module_hierarchy(history._index) == ["0:", "    0.0", "    0.1:", "        0.1.0, 0.1.1", "    0.2", "1"]


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KB"), (259584, "253.5 KB"), (3 * 1024**3, "3.0 GB"), (5e15, "4547.5 TB")],
)
def test_sizes_are_in_units_of_1024(count, text):
    assert human_size(count) == text


def test_plurals():
    assert (plural(1, "pass"), plural(2, "pass"), plural(1, "tensor"), plural(0, "tensor")) == (
        "1 pass",
        "2 passes",
        "1 tensor",
        "0 tensors",
    )


def test_the_notebook_form_is_html_and_harmless():
    class Hostile(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<script>alert(1)</script>", nn.ReLU())

        def forward(self, t):
            return next(self.children())(t)

    html = log(Hostile(), torch.rand(2))._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert html.count("alert(1)") == html.count("&lt;script&gt;alert(1)")


@pytest.mark.parametrize(
    "tensor", [torch.tensor(3.0), torch.rand(0, 3), torch.rand(2, 0, 4), torch.tensor([True]), torch.rand(2, 3, 4, 5, 6)]
)
def test_any_shape_can_be_printed(tensor):
    history = log(lambda t: t.clone(), tensor)
    assert "Output tensor" in str(history["clone_1"])


def test_a_ragged_tensor_can_be_printed():
    def model(t):
        ragged = torch.nested.nested_tensor([t[:1], t])
        return torch.nested.to_padded_tensor(ragged * 2, 0.0)

    history = log(model, torch.rand(2, 3))
    assert "mul_1" in str(history)
    assert "(2, -1, 3)" in str(history["mul_1"])
    assert len(history.graph) == len(history.operations)
