"""Patterns of attention, per head, compared with what eager attention returns."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import torcheer
from models import Buffer, made_of
from tiny_transformers import IS_4

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
}
IDS = {"input_ids": torch.arange(12).reshape(2, 6) + 3}
PADDED = {**IDS, "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])}
ENDS = {"bos_token_id": 0, "eos_token_id": 0}

MODELS = {
    "gpt2": ({"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 60, **ENDS}, IDS, "h.{}.attn", "attentions"),
    "gpt2 padded": ({"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 60, **ENDS}, PADDED, "h.{}.attn", "attentions"),
    "llama": ({"num_key_value_heads": 2, **SMALL, **ENDS}, IDS, "layers.{}.self_attn", "attentions"),
    "bert": (SMALL, PADDED, "encoder.layer.{}.attention", "attentions"),
    "vit": (
        {**SMALL, "image_size": 16, "patch_size": 8},
        {"pixel_values": torch.rand(2, 3, 16, 16)},
        "encoder.layer.{}.attention" if IS_4 else "layers.{}.attention",
        "attentions",
    ),
    "t5": (
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "vocab_size": 60, "decoder_start_token_id": 0},
        {**PADDED, "decoder_input_ids": IDS["input_ids"][:, :3]},
        "encoder.block.{}.layer.0.SelfAttention",
        "encoder_attentions",
    ),
}


@pytest.mark.parametrize("fused", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_the_pattern_of_a_module_is_what_eager_attention_returns(name, fused):
    """Padding, causal masks and heads that share keys included."""
    options, inputs, address, attentions = MODELS[name]
    if name == "t5" and IS_4:
        fused = "eager"  # transformers 4 has no fused attention for it
    config = transformers.AutoConfig.for_model(name.split()[0], **options)
    eager = transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation="eager").eval()
    model = transformers.AutoModel.from_config(config, attn_implementation=fused).eval()
    model.load_state_dict(eager.state_dict())
    with torch.no_grad():
        expected = getattr(eager(**inputs, output_attentions=True), attentions)
        history = torcheer.log_forward_pass(model, input_kwargs=inputs)
    for layer, pattern in enumerate(expected):
        found = history.attention(address.format(layer))
        seen = inputs["attention_mask"].bool()[:, None, :, None] if "attention_mask" in inputs else torch.tensor(True)
        torch.testing.assert_close(found * seen, pattern * seen, atol=1e-5, rtol=1e-4)  # padded queries may look anywhere


Q, K, V = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 6, 8), torch.randn(2, 4, 6, 8)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.7},
        {"attn_mask": torch.rand(5, 6) > 0.3},
        {"attn_mask": torch.randn(2, 1, 5, 6)},
        {"attn_mask": torch.tensor([[True] * 6] * 4 + [[False] * 6])},
    ],
    ids=["plain", "causal", "scale", "mask", "bias", "a row without keys"],
)
def test_the_pattern_of_a_fused_call_weighs_its_values_as_the_call_did(options):
    """Its product with the values is what the call returned; each query's weights add up to one, or to zero if it is blind."""
    history = torcheer.log_forward_pass(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, **options), (Q, K, V))
    heads = history["scaleddotproductattention_1"].heads
    torch.testing.assert_close(heads.pattern @ V, history["output"].tensor_contents)
    assert torch.equal(heads.queries, Q)
    assert torch.equal(heads.keys, K)
    assert torch.equal(heads.values, V)
    assert torch.equal(heads.outputs, history["output"].tensor_contents)
    assert ((heads.pattern.sum(-1) - 1).abs().lt(1e-5) | (heads.pattern.sum(-1) == 0)).all()
    assert "pattern (2, 4, 5, 6)" in repr(heads)


def test_heads_that_share_keys_and_tensors_without_heads():
    few = torch.randn(2, 2, 6, 8)
    history = torcheer.log_forward_pass(lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True), (Q, few))
    pattern = history["scaleddotproductattention_1"].heads.pattern
    torch.testing.assert_close(pattern @ few.repeat_interleave(2, 1), history["output"].tensor_contents)
    flat = torch.randn(2, 5, 8)
    history = torcheer.log_forward_pass(lambda q: F.scaled_dot_product_attention(q, q, q), flat)
    assert history.attention("scaleddotproductattention_1").shape == (2, 1, 5, 5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # said once in a process
def test_flex_attention_with_its_functions(tmp_path):
    """Scores that a function changes, with a table it looks up, and a mask of blocks."""
    slopes = torch.rand(4)

    def forward(self, q, k, v):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * slopes[h], block_mask=mask, scale=0.3)

    history = torcheer.log_forward_pass(made_of(forward), (Q[:, :, :5], K[:, :, :5], V[:, :, :5]))
    i, j = torch.arange(5)[:, None], torch.arange(5)
    scores = Q @ K[:, :, :5].mT * 0.3 + (i - j) * slopes[:, None, None]
    expected = scores.masked_fill(i < j, -math.inf).softmax(-1)
    torch.testing.assert_close(history.attention("flexattention_1"), expected)
    torch.testing.assert_close(history.attention(""), expected)

    loaded = torcheer.load(history.save(tmp_path / "flex.safetensors"))
    with pytest.raises(torcheer.InvalidArgument, match="score_mod and mask_mod, which no file can give back"):
        loaded.attention("flexattention_1")
    loaded.to_html(tmp_path / "flex.html")  # without the pattern


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "both"])
def test_multihead_attention_on_both_of_its_paths(mask):
    """The fused call has its projections inside; the other path returns its pattern when asked."""
    model, x = nn.MultiheadAttention(8, 2, batch_first=True).eval(), torch.rand(2, 5, 8)
    masks = {}
    if mask in ("padding", "both"):
        masks["key_padding_mask"] = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    if mask in ("causal", "both"):
        masks["attn_mask"] = torch.ones(5, 5).triu(1).bool()
    _, expected = model(x, x, x, average_attn_weights=False, **masks)
    eager = torcheer.log_forward_pass(model, (x, x, x), masks)
    torch.testing.assert_close(eager.attention(""), expected.detach())
    unweighted = torcheer.log_forward_pass(model, (x, x, x), {"need_weights": False, **masks})
    torch.testing.assert_close(unweighted.attention(""), expected.detach())
    with torch.no_grad():
        fused = torcheer.log_forward_pass(model, (x, x, x), masks)
    assert fused["nativemultiheadattention_1"].heads is not None
    torch.testing.assert_close(fused.attention(""), expected.detach())


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_fused_encoder_layer(norm_first):
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first).eval(), torch.rand(2, 5, 8)
    expected = torcheer.log_forward_pass(model, x).attention("self_attn")
    with torch.no_grad():
        fused = torcheer.log_forward_pass(model, x)
    assert fused["transformerencoderlayerfwd_1"].heads is not None
    torch.testing.assert_close(fused.attention(""), expected)


def test_attention_that_is_written_out_has_heads():
    def attend(q, k, v):
        scores = q @ k.transpose(-1, -2) / 3
        scores = scores.masked_fill(torch.ones(5, 6).triu(1).bool(), -1e9)
        return F.dropout(torch.softmax(scores, -1), 0.0) @ v

    heads = torcheer.log_forward_pass(attend, (Q, K, V))["softmax_1"].heads
    assert torch.equal(heads.queries, Q)
    assert torch.equal(heads.keys, K)
    assert torch.equal(heads.values, V)
    assert torch.equal(heads.outputs, attend(Q, K, V))


EQUATIONS = {
    "heads first": ("bhqd", "bhkd", "bhkd", "bhqk", "bhqd"),
    "heads after positions": ("bqhd", "bkhd", "bkhd", "bhqk", "bqhd"),
    "other letters": ("nihc", "njhc", "njhc", "nhij", "nihc"),
    "keys first": ("bqhd", "kbhd", "kbhd", "bhqk", "qbhd"),
    "keys that heads share": ("bhqd", "bkd", "bkd", "bhqk", "bhqd"),
}


@pytest.mark.parametrize("name", EQUATIONS)
def test_attention_that_is_written_as_equations_has_heads(name):
    *inputs, scores, out = EQUATIONS[name]
    b, h, q, k, d = inputs[0][0] if name != "keys first" else "b", scores[1], scores[2], scores[3], inputs[0][-1]
    sizes = {b: 2, h: 3, q: 5, k: 6, d: 4}
    queries, keys, values = (torch.randn([sizes[letter] for letter in letters]) for letters in inputs)

    def attend(queries, keys, values):
        pattern = torch.softmax(torch.einsum(f"{inputs[0]},{inputs[1]}->{scores}", queries, keys) / 2, -1)
        return torch.einsum(f"{scores},{inputs[2]}->{out}", pattern, values)

    heads = torcheer.log_forward_pass(attend, (queries, keys, values))["softmax_1"].heads
    assert heads.pattern.shape == (2, 3, 5, 6)
    assert torch.equal(heads.queries, torch.einsum(f"{inputs[0]}->{b}{h}{q}{d}", queries))
    shared = {letter for letter in h if letter not in inputs[1]}
    for found, given in ((heads.keys, keys), (heads.values, values)):
        if shared:
            assert torch.equal(found.squeeze(1), given)
        else:
            assert torch.equal(found, torch.einsum(f"{inputs[1]}->{b}{h}{k}{d}", given))
    made = torch.einsum(f"{out}->{b}{h}{q}{d}", attend(queries, keys, values))
    assert torch.equal(heads.outputs, made)


def test_equations_whose_letters_do_not_tell_give_the_pattern_alone():
    def attend(x, y):
        scores = torch.einsum("qd,kd->qk", x, y)[None, None]
        return torch.einsum("bbqk,kd->bqd", torch.softmax(scores, -1), y)

    heads = torcheer.log_forward_pass(attend, (torch.randn(3, 4), torch.randn(5, 4)))["softmax_1"].heads
    assert heads.pattern.shape == (1, 1, 3, 5)
    assert (heads.queries, heads.keys, heads.values, heads.outputs) == (None, None, None, None)


def test_a_module_with_several_attentions_gives_a_list():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    history = torcheer.log_forward_pass(model, (torch.rand(2, 3, 8), torch.rand(2, 4, 8)))
    assert [tuple(one.shape) for one in history.attention("decoder")] == [(2, 2, 4, 4), (2, 2, 4, 3)]


@pytest.mark.parametrize("is_fused", [True, False])
def test_a_cache_that_is_filled_through_a_view_has_the_pattern_of_what_was_read(is_fused):
    def forward(self, q):
        self.k[:, :, :4].copy_(q + 1)
        self.v[:, :, :4].copy_(q * 2)
        if is_fused:
            return F.scaled_dot_product_attention(q, self.k, self.v)
        return (q @ self.k.transpose(-1, -2) / 2).softmax(-1) @ self.v

    q = torch.rand(1, 2, 4, 4)
    keys = F.pad(q + 1, (0, 0, 0, 2))
    history = torcheer.log_forward_pass(
        made_of(forward, k=Buffer(torch.zeros(1, 2, 6, 4)), v=Buffer(torch.zeros(1, 2, 6, 4))), q
    )
    pattern = history.attention("")
    assert torch.allclose(pattern, (q @ keys.mT / 2).softmax(-1))
    (heads,) = [one.heads for one in history if one.heads is not None]
    assert torch.equal(heads.keys, keys)
    assert torch.equal(heads.values, F.pad(q * 2, (0, 0, 0, 2)))


def test_what_is_no_attention_is_told():
    history = torcheer.log_forward_pass(nn.Sequential(nn.Linear(2, 3), nn.Softmax(-1)), torch.rand(1, 2))
    assert history["linear_1"].heads is None
    assert history["softmax_1"].heads is None
    with pytest.raises(torcheer.LayerNotFound, match="no attention ran in '0'"):
        history.attention("0")


def test_attention_without_heads_has_one_however_its_result_is_flattened():
    """As many positions as samples, so that sizes alone would fit."""

    def attend(x):
        return (torch.softmax(x @ x.mT, -1) @ x).flatten(1)

    assert torcheer.log_forward_pass(attend, torch.randn(4, 4, 6)).attention("softmax_1").shape == (4, 1, 4, 4)


def test_scaled_dot_product_attention_with_several_dimensions_of_a_batch():
    q, mask = torch.randn(2, 3, 4, 5, 8), torch.rand(2, 1, 1, 5, 5) > 0.3
    mask[..., 0] = True
    history = torcheer.log_forward_pass(lambda q: F.scaled_dot_product_attention(q, q, q, attn_mask=mask), q)
    heads = history["scaleddotproductattention_1"].heads
    assert heads.pattern.shape == (6, 4, 5, 5)
    torch.testing.assert_close((heads.pattern @ heads.values).view(q.shape), history["output"].tensor_contents)


def test_gates_of_experts_are_no_attention():
    """A softmax of a layer's outputs, though values are weighed by it."""

    def forward(self, x):
        made = torch.stack([expert(x) for expert in self.experts], 2)
        return (self.gate(x).softmax(-1)[:, :, None] @ made).squeeze(2)

    history = torcheer.log_forward_pass(
        made_of(forward, gate=nn.Linear(8, 3), experts=nn.ModuleList(nn.Linear(8, 8) for _ in range(3))), torch.randn(2, 5, 8)
    )
    assert history["softmax_1"].heads is None


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch calls nested tensors a prototype
def test_attention_on_nested_tensors_is_refused_and_its_page_is_made(tmp_path):
    def model(one, other):
        heads = torch.nested.nested_tensor([one, other], layout=torch.jagged).unflatten(-1, [2, 2]).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(-2).values()

    history = torcheer.log_forward_pass(model, (torch.rand(2, 4), torch.rand(3, 4)))
    with pytest.raises(torcheer.InvalidArgument, match="patterns of different sizes"):
        history.attention("scaleddotproductattention_1")
    history.to_html(tmp_path / "page.html")
