"""For every model of the default zoo, what is printed, drawn and paged of a loaded history is the text of the saved one."""

from __future__ import annotations

import pytest
import torch

import torcheer
from saved_equality import differences
from zoo.cases import QUICK, named

NO_WAY_BACK = ("transformers/llama-generate", "handwritten/in_place", "torchvision/raft_small")


@pytest.mark.filterwarnings("default")  # what strangers' models warn of is theirs
@pytest.mark.parametrize("case", named(*QUICK), ids=lambda case: case.name)
def test_a_loaded_history_is_the_saved_one(case, tmp_path):
    model, args, kwargs = case.make(case.modes[0], torch.float32)
    follows = case.name not in NO_WAY_BACK
    history = torcheer.log_forward_pass(model, args, kwargs, save_gradients=follows, random_seed=3)
    if follows:
        losses = [one.tensor_contents for one in history.outputs if one.tensor_contents.requires_grad]
        if losses:
            history.log_backward(sum(loss.float().sum() for loss in losses))
    history.save(tmp_path / "run.safetensors", params=True)
    loaded = torcheer.load(tmp_path / "run.safetensors")
    assert differences(history, loaded) == []
    report, again = history.validate(), loaded.validate()
    assert (bool(again), again.num_operations) == (bool(report), report.num_operations), str(again)
    bound = history.save(tmp_path / "bound.safetensors")
    assert bool(torcheer.load(bound, model=model).validate()) == bool(report)
