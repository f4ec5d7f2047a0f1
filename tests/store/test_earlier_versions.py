"""Files of earlier versions of the format stay readable."""

from __future__ import annotations

from pathlib import Path

import torch

import torcheer

DATA = Path(__file__).parents[1] / "data"
LABELS = (
    "input_1_0 conv2d_1_1 batchnorm_1_2 relu_1_3 flatten_1_4 linear_1_5 tanh_1_6 mul_1_7 chunk_1_8 chunk_2_9 sum_1_10 gt_1_11 "
    "bfloat16_1_12 max_1_13 max_2_14"
)


def test_a_file_of_version_1_is_read():
    history = torcheer.load(DATA / "history_v1.safetensors")
    assert history.model_name == "Small"
    assert [label for label in history.layer_labels if label in LABELS.split()] == LABELS.split()
    assert (history["linear_1"].num_passes, history.random_seed, history.num_params_total) == (3, 7, 96)
    assert history["linear_1:1"].activation.shape == (2, 8)
    assert history["bfloat16"].activation.dtype is torch.bfloat16
    assert history["flatten_1"].activation.untyped_storage()._cdata == history["relu_1"].activation.untyped_storage()._cdata
    assert history["chunk_2"].activation.stride() == (8, 1)
    assert any(one.activation.is_sparse for one in history.operations if isinstance(one.activation, torch.Tensor))
    assert torch.equal(history["linear_1:3"].creation_args[0], history["mul_1:2"].activation)
    assert history["mul_1:1"].creation_args[1] == 1.5
    assert (len(history.backward_passes), history["linear_1:1"].grad.shape) == (1, (2, 8))
    assert sorted(history.param_grads) == ["conv.bias", "conv.weight", "fc.bias", "fc.weight", "norm.bias", "norm.weight"]
    assert history["linear_1:1"].source.file == "make_history.py"
    assert [read.func_name for read in history.python_reads] == ["__bool__"]
    assert "linear_1_5" in str(history)
    again = history.replay()["output_1"].activation  # another processor may give other bits
    assert torch.allclose(again, history["output_1"].activation, atol=1e-5)
