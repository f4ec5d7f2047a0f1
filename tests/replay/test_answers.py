"""What single models of the catalogue answer beyond the promises: errors by name, gradients that are shown, the compiler."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
import torch

import torcheer
from catalogue import CATALOGUE
from models import log
from torcheer import changes
from torcheer._torch.memory import has_memory

pytestmark = pytest.mark.filterwarnings("ignore")


def logged(name, **options):
    entry = CATALOGUE[name]
    return torcheer.log_forward_pass(entry.make(), entry.given(), **options)


@pytest.mark.parametrize("name", ["attention on meta", "given a jagged tensor", "traced in forward"])
def test_a_history_with_gradients_is_shown(name, tmp_path):
    history = logged(name, save_gradients=True)
    out = history.outputs[0].tensor_contents
    history.log_backward((out.values() if out.is_nested else out).sum())
    assert all(str(one) for one in history.operations)
    history.to_html(tmp_path / "page.html")


def test_a_gradient_through_a_custom_function_is_not_replayed_with_changes():
    history = logged("custom function, differentiated")
    with pytest.raises(torcheer.ReplayFailed, match=r"grad_1_\d+.* gradient through a torch\.autograd\.Function"):
        history.replay(changes={"linear_1": changes.scale(2)})


def test_a_loaded_history_knows_gradients_through_custom_functions(tmp_path):
    history = logged("custom function, differentiated")
    loaded = torcheer.load(history.save(tmp_path / "log.safetensors", params=True))
    assert loaded.validate()
    with pytest.raises(torcheer.ReplayFailed, match="gradient through"):
        loaded.replay(changes={"linear_1": changes.scale(2)})


def test_a_quantised_tensor_with_other_scales_has_other_values():
    history = log(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8), torch.rand(4, 3))
    number = history.operations[1]._number
    history._log.values[number] = torch._make_per_tensor_quantized_tensor(history._log.values[number].int_repr(), 0.2, 0)
    history._log.versions[number] = history._log.values[number]._version
    assert not history.validate()


def test_a_tensor_of_four_bits_has_its_memory():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.quantize_per_channel(torch.ones(4, 4), torch.rand(4) + 0.1, torch.rand(4), 0, torch.quint4x2)
    assert has_memory(packed)


_COMPILES = """
import sys, torch, torcheer
from torch import nn

class Compiles(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, t):
        return torch.compile(self.fc, backend="eager")(t) * torch.rand(3)

model, x = Compiles(), torch.rand(2, 3)
assert "torch._dynamo" not in sys.modules
torch.manual_seed(0)
history = torcheer.log_forward_pass(model, x)
torch.manual_seed(0)
assert torch.equal(history.outputs[0].tensor_contents, model(x))
print([one.layer_type for one in history.operations], bool(history.validate()))
"""


def test_a_model_that_loads_the_compiler_in_forward_is_logged():
    done = subprocess.run([sys.executable, "-c", _COMPILES], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("['input', 'linear', 'rand', 'mul', 'output'] True")
