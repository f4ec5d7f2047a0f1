"""What pages and pictures show is a key: names of inputs and outputs, ends of addresses."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torcheer
from torcheer.errors import LayerNotFound


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(self.proj(x), x, x)


class Language(nn.Module):
    """A model in a wrapper, with named inputs and outputs, and eleven blocks, so that h.1 begins h.10."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding(9, 4)
        self.transformer.h = nn.ModuleList(nn.Sequential(Attention(), nn.ReLU()) for _ in range(11))
        self.lm_head = nn.Linear(4, 9)

    def forward(self, input_ids, scale=None):
        x = self.transformer.wte(input_ids)
        for block in self.transformer.h:
            x = block(x)
        return {"logits": self.lm_head(x), "states": [x, x + 1]}


@pytest.fixture(scope="module")
def history() -> torcheer.ModelHistory:
    return torcheer.log_forward_pass(Language(), torch.zeros(1, 3, dtype=torch.long))


def test_inputs_and_outputs_have_the_names_that_people_know(history, tmp_path):
    assert history["input_ids"] == history["input_1"]
    assert history["logits"] == history["output.logits"] == history["output_1"]
    assert history["states[1]"] == history["output.states[1]"] == history["output3"]
    assert [one.io_name for one in history.inputs] == ["input_ids"]
    history.save(tmp_path / "named.torcheer")
    assert torcheer.load(tmp_path / "named.torcheer")["input_ids"].label == "input_1_0"
    assert history.graph.node("logits").label == history["logits"].label


def test_the_end_of_an_address_is_a_key_if_no_other_address_ends_so(history):
    assert history["h.1"] == history["transformer.h.1"]
    assert history["h.10.0.proj"] == history["transformer.h.10.0.proj"]
    assert torch.equal(history.attention("h.3.0"), history.attention("transformer.h.3.0"))


def test_an_end_of_several_addresses_is_refused_with_their_names(history):
    with pytest.raises(LayerNotFound, match=r"end of 11 addresses: 'transformer\.h\.0\.0\.proj', 'transformer\.h\.1\.0\.proj'"):
        history["proj"]
    with pytest.raises(LayerNotFound, match=r"end of 11 addresses"):
        history.attention("0.proj")
