"""In each way that two models may differ, the operation that is named is the planted one."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.compare.porting_models import Decoder, Refactored
from torch import nn

import torcheer as tl


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Decoder().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def changed(model, address, **attributes):
    other = copy.deepcopy(model)
    for name, value in attributes.items():
        setattr(other.get_submodule(address), name, value)
    return other


@pytest.mark.parametrize("eps", [1e-3, 1e-6])
def test_another_eps_in_one_norm_is_named(model, ids, eps):
    culprit = tl.compare_models(model, changed(model, "blocks.4.norm1", eps=eps), ids).culprit
    assert (culprit.module, culprit.a.layer_type) == ("blocks.4.norm1", "layernorm")
    assert culprit.arguments == (("eps", 1e-5, eps),)


def test_an_approximate_gelu_is_named(model, ids):
    other = copy.deepcopy(model)
    other.blocks[7].act = nn.GELU(approximate="tanh")
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.label == comparison.culprit.b.label
    assert comparison.culprit.module == "blocks.7.act"
    assert comparison.culprit.arguments == (("approximate", "none", "tanh"),)
    assert len(comparison.culprits) == 1
    assert str(comparison).startswith("different: gelu_8_")


def test_a_transposed_weight_is_named_and_said_to_look_transposed(model, ids):
    other = copy.deepcopy(model)
    other.blocks[3].attention.o.weight.data = model.blocks[3].attention.o.weight.data.T.contiguous()
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module == "blocks.3.attention.o"
    assert comparison.culprit.is_explained_by_parameters
    assert [(one.name, one.looks) for one in comparison.parameters] == [("blocks.3.attention.o.weight", "transposed")]
    assert "1 parameter differs, nothing else does" in comparison.headline


def test_heads_swapped_in_a_weight_are_said_to_be_permuted(model, ids):
    other = copy.deepcopy(model)
    for name in ("q", "k"):
        weight, bias = getattr(other.blocks[6].attention, name).weight, getattr(other.blocks[6].attention, name).bias
        weight[:16] = torch.cat([weight[8:16], weight[:8]])
        bias[:16] = torch.cat([bias[8:16], bias[:8]])
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module == "blocks.6.attention.q"
    looks = {one.name: one.looks for one in comparison.parameters}
    assert looks["blocks.6.attention.k.weight"] == "rows permuted (16 of 32)"
    assert len(looks) == 4


def test_heads_swapped_in_the_program_are_named(model, ids):
    culprit = tl.compare_models(model, changed(model, "blocks.6.attention", head_order=[1, 0, 2, 3]), ids).culprit
    assert culprit.a is None
    assert culprit.b.layer_type == "getitem"
    assert "head_order" in culprit.b.source.text
    assert culprit.module == "blocks.6.attention"


def test_swapped_projections_are_named_at_the_first(model, ids):
    other = copy.deepcopy(model)
    attention = other.blocks[4].attention
    attention.q, attention.k = attention.k, attention.q
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module == "blocks.4.attention.q"
    assert len(comparison.parameters) == 4


def test_another_rotary_pairing_is_named_at_the_index(model, ids):
    culprit = tl.compare_models(model, changed(model, "blocks.2.attention", pairing="neighbours"), ids).culprit
    assert culprit.a.layer_type == "getitem"
    assert "first, second" in culprit.a.source.text
    assert "0::2" in culprit.b.source.text
    assert [name for name, _, _ in culprit.arguments] == ["index"]


def test_a_missing_scale_is_named_though_only_one_side_runs_it(model, ids):
    comparison = tl.compare_models(model, changed(model, "blocks.6.attention", has_scale=False), ids)
    assert comparison.culprit.b is None
    assert comparison.culprit.a.layer_type == "div"
    assert comparison.culprit.module == "blocks.6.attention"
    assert [one.label for one in comparison.unmatched.a] == [comparison.culprit.label]


def test_a_scale_that_only_b_has_is_named(model, ids):
    culprit = tl.compare_models(changed(model, "blocks.6.attention", has_scale=False), model, ids).culprit
    assert culprit.a is None
    assert culprit.b.layer_type == "div"


@pytest.mark.parametrize("side", ["a", "b"])
def test_a_culprit_that_one_side_runs_is_printed_with_its_one_line(model, ids, side):
    without = changed(model, "blocks.6.attention", has_scale=False)
    pair = (model, without) if side == "a" else (without, model)
    comparison = tl.compare_models(*pair, ids)
    lines = [line.strip() for line in str(comparison).splitlines() if line.strip().startswith("In ")]
    culprit = comparison.culprit.a if side == "a" else comparison.culprit.b
    assert lines == [f"In {side}: {culprit.label} ({culprit.source})"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_copy_in_another_dtype_has_no_culprit(model, ids, dtype):
    comparison = tl.compare_models(model, copy.deepcopy(model).to(dtype), ids)
    assert comparison.culprit is None
    assert comparison.verdict == "equal within tolerance"
    assert not comparison.parameters
    backwards = tl.compare_models(copy.deepcopy(model).to(dtype), model, ids)
    assert backwards.culprit is None


def test_an_error_is_found_across_dtypes(model, ids):
    other = changed(model, "blocks.5.attention", has_scale=False).bfloat16()
    assert tl.compare_models(model, other, ids).culprit.a.layer_type == "div"


def test_fused_attention_agrees_with_eager_attention(model, ids):
    other = copy.deepcopy(model)
    for block in other.blocks:
        block.attention.is_fused = True
    comparison = tl.compare_models(model, other, ids)
    assert comparison.verdict == "equal within tolerance"
    assert comparison.unmatched.a


def test_an_error_next_to_fused_attention_is_found(model, ids):
    other = copy.deepcopy(model)
    for block in other.blocks:
        block.attention.is_fused = True
    other.blocks[3].norm2.eps = 1e-3
    assert tl.compare_models(model, other, ids).culprit.module == "blocks.3.norm2"


def test_a_block_that_is_skipped_is_named(model, ids):
    other = copy.deepcopy(model)
    other.skipped = 5
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.b is None
    assert comparison.culprit.module.startswith("blocks.5")
    assert "'blocks.5'" in comparison.headline


@pytest.mark.parametrize("place", [1, 5, 6])
def test_a_block_that_is_not_there_is_named_though_the_others_moved_up(model, ids, place):
    other = copy.deepcopy(model)
    del other.blocks[place]
    comparison = tl.compare_models(model, other, ids)
    assert comparison.culprit.module.startswith(f"blocks.{place}")
    assert not [one for one in comparison.parameters if one.is_in_both]


def test_dropout_that_was_left_on_is_named(model, ids):
    other = copy.deepcopy(model)
    other.blocks[4].attention.drop.train()
    culprit = tl.compare_models(model, other, ids).culprit
    assert culprit.module == "blocks.4.attention.drop"
    assert culprit.arguments == (("training", False, True),)


def test_a_refactored_forward_that_computes_the_same_has_no_culprit(model, ids):
    comparison = tl.compare_models(model, Refactored(model).eval(), ids)
    assert comparison.verdict == "equal within tolerance"
    assert comparison.unmatched.a
    assert comparison.unmatched.b


def test_another_eps_is_found_in_a_norm_that_is_written_out(model, ids):
    other = Refactored(model).eval()
    other.eps = 1e-3
    culprit = tl.compare_models(model, other, ids).culprit
    assert culprit.a.layer_type == "layernorm"
    assert "rsqrt" in culprit.b.source.text


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x) * 1


@pytest.mark.parametrize(
    ("a", "b", "arguments"),
    [
        (lambda x: F.softmax(x, 1), lambda x: x.softmax(0), (("dim", 1, 0),)),
        (lambda x: x.softmax(0), lambda x: torch.softmax(x, dim=1), (("dim", 0, 1),)),
        (lambda x: x.cumsum(0), lambda x: torch.cumsum(input=x, dim=1), (("dim", 0, 1),)),
        (lambda x: F.layer_norm(x, (4,)), lambda x: F.layer_norm(x, [4], eps=0.1), (("eps", 1e-5, 0.1),)),
    ],
)
def test_arguments_of_a_function_and_of_a_method_have_the_same_names(a, b, arguments):
    assert tl.compare_models(Calls(a), Calls(b), torch.randn(3, 4)).culprit.arguments == arguments


@pytest.mark.parametrize(
    ("a", "b"),
    [(lambda x: F.softmax(x, -1), lambda x: x.softmax(-1)), (F.relu, torch.relu), (lambda x: torch.mean(input=x), torch.mean)],
)
def test_a_method_in_place_of_a_function_is_no_difference_of_arguments(a, b):
    comparison = tl.compare_models(Calls(a), Calls(b), torch.randn(3, 4))
    assert comparison.verdict == "equal"
    assert comparison.notes == ()


def test_of_operations_that_are_others_the_shape_is_not_said():
    a, b = Calls(lambda x: x + x.tanh()), Calls(lambda x: x + torch.ones(4).sin())
    assert tl.compare_models(a, b, torch.randn(3, 4)).culprit.reason == "a runs tanh where b runs ones, sin"


def test_equal_models_are_equal(model, ids):
    comparison = tl.compare_models(model, copy.deepcopy(model), ids)
    assert comparison.verdict == "equal"
    assert comparison
    assert not comparison.parameters
    assert not len(comparison.unmatched)
    assert all(row.own_error.is_none for row in comparison.rows if row.own_error is not None)


def test_models_with_other_weights_are_told_by_the_number_of_parameters(model, ids):
    torch.manual_seed(3)
    comparison = tl.compare_models(model, Decoder().eval(), ids)
    assert comparison.headline.startswith("different: ")
    assert "parameters differ, nothing else does" in comparison.headline


def test_a_difference_beside_other_weights_is_named_too(model, ids):
    torch.manual_seed(3)
    other = changed(Decoder(), "blocks.6.norm2", eps=1e-2).eval()
    comparison = tl.compare_models(model, other, ids)
    assert "parameters differ, and layernorm" in comparison.headline
    assert "blocks.6.norm2" in comparison.headline


class Gpt2ByHand(nn.Module):
    """GPT-2 with weights of transformers' one: other names, fewer modules, Linear for Conv1D, fused attention."""

    def __init__(self, like):
        super().__init__()
        self.heads = like.config.n_head
        self.wte, self.wpe = like.transformer.wte.weight, like.transformer.wpe.weight
        self.layers = nn.ModuleList()
        for block in like.transformer.h:
            parts = {"qkv": block.attn.c_attn, "out": block.attn.c_proj, "up": block.mlp.c_fc, "down": block.mlp.c_proj}
            layer = nn.ModuleDict({name: self.linear(conv) for name, conv in parts.items()})
            layer["norm1"], layer["norm2"] = copy.deepcopy(block.ln_1), copy.deepcopy(block.ln_2)
            self.layers.append(layer)
        self.norm = copy.deepcopy(like.transformer.ln_f)
        self.approximate = "tanh"

    @staticmethod
    def linear(conv):
        made = nn.Linear(*conv.weight.shape)
        made.weight.data, made.bias.data = conv.weight.data.T.contiguous(), conv.bias.data.clone()
        return made

    def forward(self, ids):
        x = self.wte[ids] + self.wpe[torch.arange(ids.shape[1])]
        batch, length, width = x.shape
        for layer in self.layers:
            parts = layer["qkv"](layer["norm1"](x)).chunk(3, -1)
            q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer["out"](mixed.transpose(1, 2).reshape(batch, length, width))
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x)), approximate=self.approximate))
        return self.norm(x) @ self.wte.T


@pytest.fixture(scope="module")
def gpt2():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=4, n_embd=32, n_head=4, vocab_size=60, n_positions=32, use_cache=False)
    return transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)


def test_gpt2_by_hand_agrees_with_that_of_transformers(gpt2, ids):
    comparison = tl.compare_models(gpt2, Gpt2ByHand(gpt2), ids)
    assert comparison.culprit is None, comparison
    assert comparison.output_error < 1e-5
    assert not comparison.parameters
    assert {row.a.layer_type for row in comparison.rows if row.b.layer_type == "linear"} == {"view"}


@pytest.mark.parametrize("names", [None, {"transformer.h": "layers", "ln_1": "norm1", "ln_2": "norm2", "attn.c_attn": "qkv"}])
def test_a_mistake_in_gpt2_by_hand_is_named(gpt2, ids, names):
    other = Gpt2ByHand(gpt2)
    other.layers[2]["norm2"].eps = 1e-3
    culprit = tl.compare_models(gpt2, other, ids, names=names).culprit
    assert culprit.module == "transformer.h.2.ln_2"
    assert culprit.b.containing_module == "layers.2.norm2"


def test_exact_gelu_in_gpt2_by_hand_is_named(gpt2, ids):
    other = Gpt2ByHand(gpt2)
    other.approximate = "none"
    culprit = tl.compare_models(gpt2, other, ids).culprit
    assert culprit.b.layer_type == "gelu"
    assert culprit.module.startswith("transformer.h.0.mlp")
