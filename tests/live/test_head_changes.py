"""Changes of attention heads in values whose shape does not say which they are: models edited by hand are the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import torcheer
from models import made_with
from tiny_transformers import IS_4
from torcheer import changes
from torcheer.analysis.attention import head_axis
from torcheer.changes import HeadAxis

HEADS, SIZE, WIDTH = 4, 8, 32
IDS = {"input_ids": torch.arange(12).reshape(2, 6) + 3}
SMALL = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 48,
    "vocab_size": 60,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


class Fairseq(nn.Module):
    """Attention on (batch × heads, length, size), the length first, as older libraries write it."""

    def __init__(self, merges: str = "view") -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.merges = merges

    def apart(self, x: Tensor) -> Tensor:
        length, batch, _ = x.shape
        if self.merges == "view":
            return x.contiguous().view(length, batch * HEADS, SIZE).transpose(0, 1)
        return x.view(length, batch, HEADS, SIZE).permute(1, 2, 0, 3).reshape(batch * HEADS, length, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.apart(one(x)) for one in (self.q, self.k, self.v))
        pattern = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / SIZE**0.5, -1)
        return self.out(torch.bmm(pattern, v).transpose(0, 1).contiguous().view(x.shape))


class Einsum(nn.Module):
    """Attention by equations, with heads behind the length."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (HEADS, SIZE)) for one in (self.q, self.k, self.v))
        pattern = torch.einsum("bqhd,bkhd->bhqk", q, k).div(SIZE**0.5).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", pattern, v).flatten(-2))


@made_with(attention=lambda: nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
def Torch(self, x: Tensor) -> Tensor:
    """torch's own attention, asked for its weights, which leaves its fused path."""
    return self.attention(x, x, x)[0]


def of_transformers(name: str, attention: str = "eager", **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        config = transformers.AutoConfig.for_model(name, **options)
        return transformers.AutoModel.from_config(config, attn_implementation=attention)

    return make


def rows(head: int, size: int = SIZE) -> slice:
    return slice(head * size, (head + 1) * size)


def zero_rows(address: str, *which: slice) -> Callable[[nn.Module], None]:
    """What a layer makes of these units is zero."""

    def edit(model: nn.Module) -> None:
        layer = model.get_submodule(address)
        for one in which:
            weight_of(layer)[one].zero_()
            if layer.bias is not None:
                layer.bias[one].zero_()

    return edit


def zero_columns(address: str, *which: slice) -> Callable[[nn.Module], None]:
    """What a layer is given in these units does not count."""

    def edit(model: nn.Module) -> None:
        for one in which:
            weight_of(model.get_submodule(address))[:, one].zero_()

    return edit


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer, outputs × inputs."""
    return layer.weight.T if isinstance(layer, Conv1D) else layer.weight


Case = tuple[Callable[[], nn.Module], Any, str, int, Callable[[nn.Module], None]]


def projection(make: Callable[[], nn.Module], inputs: Any, key: str, head: int, *units: slice) -> Case:
    """Zero a head of what a layer returns or (`input:…`) is given: by hand, zeros in its weight at these units of the head."""
    zero = zero_columns if key.startswith("input:") else zero_rows
    return make, inputs, key, head, zero(key.removeprefix("input:"), *(units or (rows(head),)))


GPT2 = {"n_layer": 2, "n_embd": WIDTH, "n_head": HEADS, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}
LLAMA = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
BLOOM = {"hidden_size": WIDTH, "n_layer": 2, "n_head": HEADS, "vocab_size": 60, "bos_token_id": 0, "eos_token_id": 0}
T5 = {"d_model": WIDTH, "d_kv": SIZE, "d_ff": 48, "num_layers": 2, "num_heads": HEADS, "vocab_size": 60}
DECODED = {**IDS, "decoder_input_ids": IDS["input_ids"][:, :3]}
QKV = [slice(at + 2 * SIZE, at + 3 * SIZE) for at in (0, WIDTH, 2 * WIDTH)]  # head 2 of queries, keys and values in one
X = torch.randn(5, 3, WIDTH)
# Model, input, the place, the head, and the edit by hand that is the same.
CASES: dict[str, Case] = {
    "fairseq q": projection(Fairseq, X, "q", 2),
    "fairseq v": projection(Fairseq, X, "v", 1),
    "fairseq pattern": (Fairseq, X, "softmax_1", 3, zero_columns("out", rows(3))),
    "fairseq what is projected": projection(Fairseq, X, "input:out", 0),
    "fairseq permuted, pattern": (lambda: Fairseq("permute"), X, "softmax_1", 3, zero_columns("out", rows(3))),
    "fairseq permuted, q": projection(lambda: Fairseq("permute"), X, "q", 3),
    "einsum k": projection(Einsum, X, "k", 2),
    "einsum pattern": (Einsum, X, "softmax_1", 2, zero_columns("out", rows(2))),
    "einsum product": (Einsum, X, "einsum_2", 2, zero_columns("out", rows(2))),
    "torch pattern": (Torch, X, "softmax_1", 2, zero_columns("attention.out_proj", rows(2))),
    "torch output": (Torch, X, "bmm_2", 1, zero_columns("attention.out_proj", rows(1))),
}
for attention in ("eager", "sdpa"):
    gpt2, llama = of_transformers("gpt2", attention, **GPT2), of_transformers("llama", attention, **LLAMA)
    t5 = of_transformers("t5", attention, **T5)
    CASES |= {
        f"gpt2 {attention} qkv": projection(gpt2, IDS, "h.1.attn.c_attn", 2, *QKV),
        f"gpt2 {attention} what is projected": projection(gpt2, IDS, "input:h.1.attn.c_proj", 3),
        f"llama {attention} q": projection(llama, IDS, "layers.0.self_attn.q_proj", 3),
        f"llama {attention} k, which two heads share": projection(llama, IDS, "layers.0.self_attn.k_proj", 1),
        f"llama {attention} v": projection(llama, IDS, "layers.1.self_attn.v_proj", 0),
    }
    if attention == "eager" or not IS_4:  # transformers 4 has no fused attention for it
        CASES[f"t5 {attention} q"] = projection(t5, DECODED, "encoder.block.1.layer.0.SelfAttention.q", 1)
bloom = of_transformers("bloom", **BLOOM)
CASES |= {
    "bloom qkv, interleaved": projection(bloom, IDS, "h.0.self_attention.query_key_value", 2, rows(2, 3 * SIZE)),
    "bloom what is projected": projection(bloom, IDS, "input:h.0.self_attention.dense", 2),
}


def output_of(model: nn.Module, inputs: Any) -> Tensor:
    found = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    return (found if isinstance(found, Tensor) else found.last_hidden_state).detach()


def logged(model: nn.Module, inputs: Any) -> torcheer.ModelHistory:
    named = {"input_kwargs": inputs} if isinstance(inputs, dict) else {"input_args": inputs}
    return torcheer.log_forward_pass(model, **named)


@pytest.mark.parametrize("name", CASES)
def test_a_head_is_changed_as_in_a_model_edited_by_hand(name):
    """Live, and on the log, whose inputs had another batch and length."""
    make, inputs, key, head, edit = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    edited = copy.deepcopy(model)
    with torch.no_grad():
        edit(edited)
    expected, plain = output_of(edited, inputs), output_of(model, inputs)
    history = logged(model, inputs)
    with torcheer.intervene(model, {key: changes.zero(heads=[head])}, like=history):
        live = output_of(model, inputs)
    assert not torch.allclose(expected, plain, atol=1e-4), "the head does nothing here"
    torch.testing.assert_close(live, expected, atol=1e-5, rtol=1e-4)
    tried = history.replay(changes={key: changes.zero(heads=[head])})
    torch.testing.assert_close(tried["output_1"].tensor_contents, live)


def test_another_batch_than_was_logged_is_fine_where_heads_and_batch_are_one_dimension():
    model, other = Fairseq().eval(), torch.randn(7, 2, WIDTH)
    history = torcheer.log_forward_pass(model, X)
    edited = copy.deepcopy(model)
    with torch.no_grad():
        zero_columns("out", rows(3))(edited)
        with torcheer.intervene(model, {"softmax_1": changes.zero(heads=[3])}, like=history):
            live = model(other)
        torch.testing.assert_close(live, edited(other), atol=1e-5, rtol=1e-4)


def test_several_heads_of_a_projection_are_a_dimension_of_what_is_changed():
    """So that one vector of a head's size is added to each."""
    model, vector = Fairseq().eval(), torch.randn(SIZE)
    history = torcheer.log_forward_pass(model, X)
    edited = copy.deepcopy(model)
    with torch.no_grad():
        for head in (0, 3):
            edited.q.bias[rows(head)] += vector
        with torcheer.intervene(model, {"q": changes.add(vector, heads=[0, -1])}, like=history):
            live = model(X)
        torch.testing.assert_close(live, edited(X), atol=1e-5, rtol=1e-4)


def test_where_nothing_tells_the_error_says_what_to_give():
    model = Fairseq().eval()
    history = torcheer.log_forward_pass(model, X)
    with (
        pytest.raises(torcheer.InvalidArgument, match=r"'out' .* is unknown: its shape \(5, 3, 32\).*at= takes any index"),
        torcheer.intervene(model, {"out": changes.zero(heads=[0])}, like=history),
    ):
        model(X)
    with (
        pytest.raises(torcheer.InvalidArgument, match=r"'q' .*like=history"),
        torcheer.intervene(model, {"q": changes.zero(heads=[0])}),
    ):
        model(X)
    with (
        pytest.raises(torcheer.InvalidArgument, match="has 4 attention heads, 0 to 3; got \\[4\\]"),
        torcheer.intervene(model, {"q": changes.zero(heads=[4])}, like=history),
    ):
        model(X)
    with pytest.raises(torcheer.InvalidArgument, match="is unknown"):
        history.replay(changes={"out": changes.zero(heads=[0])})


def test_other_sizes_than_were_logged_are_refused_where_heads_would_be_others():
    narrow = nn.Sequential(nn.Linear(6, WIDTH), Fairseq()).eval()
    history = torcheer.log_forward_pass(narrow, torch.randn(5, 3, 6))
    axis = head_axis(next(one for one in history.operations if one.layer_label == "linear_2_2"))
    assert axis is not None
    assert (axis.dim, axis.count) == (2, HEADS)
    with pytest.raises(torcheer.InvalidArgument, match="when it was logged"):
        changes.zero(heads=[0])(torch.rand(5, 3, 2 * WIDTH), "here", axis)


LAYOUTS = ["fairseq pattern", "fairseq permuted, pattern", "einsum pattern", "torch pattern", "bloom qkv, interleaved"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_heads_of_every_layout_are_batch_heads_length_size(name):
    """Queries and keys give the pattern, the pattern and values the outputs."""
    make, inputs, _, _, _ = CASES[name]
    history = logged(make().eval(), inputs)
    label = next(one.label for one in history.operations if one.heads is not None)
    heads = history[label].heads
    batch, length = (2, 6) if isinstance(inputs, dict) else (5, 3) if name.startswith(("einsum", "torch")) else (3, 5)
    assert heads.pattern.shape == (batch, HEADS, length, length)
    for value in (heads.queries, heads.keys, heads.values, heads.outputs):
        assert value.shape == (batch, HEADS, length, SIZE)
    torch.testing.assert_close(heads.pattern @ heads.values, heads.outputs, atol=1e-5, rtol=1e-4)
    if not name.startswith("bloom"):  # which adds a bias for the distance
        scores = heads.queries @ heads.keys.mT / (1 if name.startswith("torch") else SIZE**0.5)
        torch.testing.assert_close(F.softmax(scores, -1), heads.pattern, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("heads", "size", "expected"),
    [
        ((0, 1, 0, 1), 4, (0, 1, 0, 1)),
        ((0, 1, 0, 1), 6, (0, 1, 0, 1, 0, 1)),
        ((0, 1, 0, 1), 5, None),  # not whole samples
        ((0, 0, 1, 1), 8, None),  # heads are not counted fastest, so another size does not tell where they are
        ((0, 0, 1, 1), 4, (0, 0, 1, 1)),
        ((0,), 3, (0, 0, 0)),
        ((-1, -1), 4, None),
        ((), 2, None),
    ],
)
def test_the_heads_of_another_number_of_samples(heads, size, expected):
    assert HeadAxis(0, heads, 3).at(size) == expected
