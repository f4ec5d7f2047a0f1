"""What is printed, drawn and paged of a loaded history is the text of the saved one, for models whose logs differ in kind."""

from __future__ import annotations

import pytest
import torch

import torcheer
from saved_equality import differences
from zoo.cases import named

KINDS = (
    "torchvision/mobilenet_v3_small",  # buffers that change
    "transformers/gpt2",  # a cache among its outputs
    "transformers/bert-MaskedLM",  # parameters with two addresses
    "transformers/mixtral",  # experts that see a part of the rows
    "handwritten/lstm",
    "handwritten/seq2seq_attention",
    "handwritten/message_passing",
    "handwritten/gradient_penalty",  # a backward pass of a backward pass
    "handwritten/episode_of_a_policy",  # values that Python reads, and random draws
    "handwritten/in_place",
)

# Where torch has no grouped product for a device, as before 2.10 for the CPU, transformers brings an operator of its own.
FUNCTIONS = [torch.ops.transformers]


@pytest.mark.filterwarnings("default")  # what strangers' models warn of is theirs
@pytest.mark.parametrize("case", named(*KINDS), ids=lambda case: case.name)
def test_a_loaded_history_is_the_saved_one(case, tmp_path):
    model, args, kwargs = case.make(case.modes[0], torch.float32)
    follows = case.name != "handwritten/in_place"
    history = torcheer.log_forward_pass(model, args, kwargs, save_gradients=follows, random_seed=3)
    if follows:
        losses = [one.tensor_contents for one in history.outputs if one.tensor_contents.requires_grad]
        if losses:
            history.log_backward(sum(loss.float().sum() for loss in losses))
    history.save(tmp_path / "run.safetensors", params=True)
    loaded = torcheer.load(tmp_path / "run.safetensors", functions=FUNCTIONS)
    assert differences(history, loaded) == []
    report, again = history.validate(), loaded.validate()
    assert (bool(again), again.num_operations) == (bool(report), report.num_operations), str(again)
    bound = history.save(tmp_path / "bound.safetensors")
    assert bool(torcheer.load(bound, model=model, functions=FUNCTIONS).validate()) == bool(report)
