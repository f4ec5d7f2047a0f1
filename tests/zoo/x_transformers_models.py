"""Transformers of x-transformers, each with one of the options people choose it for."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import FLOAT32, Built, Case
from .foreign import package

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "relative": {"rel_pos_bias": True},
    "dynamic_positions": {"dynamic_pos_bias": True, "dynamic_pos_bias_log_distance": False},
    "one_key_value_head": {"attn_one_kv_head": True},
    "grouped_queries": {"attn_kv_heads": 1},
    "gated_feedforward": {"ff_glu": True, "ff_swish": True},
    "squared_relu": {"ff_relu_squared": True},
    "memory_keys": {"attn_num_mem_kv": 3},
    "talking_heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
    "sparse_top_k": {"attn_sparse_topk": 3},
    "normed_queries": {"attn_qk_norm": True},
    "flash": {"attn_flash": True},
    "rms_norm": {"use_rmsnorm": True},
    "scale_norm": {"use_scalenorm": True},
    "sandwich_norm": {"sandwich_norm": True},
    "residual_gates": {"gate_residual": True},
    "macaron": {"macaron": True},
    "shifted_tokens": {"shift_tokens": 1},
    "gated_values": {"attn_gate_values": True},
    "layer_dropout": {"layer_dropout": 0.2, "attn_dropout": 0.1, "ff_dropout": 0.1},
    "hyper_connections": {"num_residual_streams": 2},
}


def build(stack: str, options: dict[str, Any]) -> Built:
    """A language model of two small layers."""
    x = package("x_transformers")
    layers = getattr(x, stack)(dim=16, depth=2, heads=2, attn_dim_head=8, **options)
    return x.TransformerWrapper(num_tokens=20, max_seq_len=16, attn_layers=layers), (torch.randint(0, 20, (2, 9)),), {}


def from_one_sequence_to_another() -> Built:
    x = package("x_transformers")
    model = x.XTransformer(
        dim=16, enc_num_tokens=20, enc_depth=2, enc_heads=2, enc_max_seq_len=9, enc_attn_dim_head=8,
        dec_num_tokens=20, dec_depth=2, dec_heads=2, dec_max_seq_len=9, dec_attn_dim_head=8,
    )  # fmt: skip
    return model, (torch.randint(0, 20, (2, 9)), torch.randint(0, 20, (2, 7))), {"mask": torch.ones(2, 9, dtype=torch.bool)}


def pictures() -> Built:
    x = package("x_transformers")
    encoder = x.Encoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    return (
        x.ViTransformerWrapper(image_size=16, patch_size=4, num_classes=5, attn_layers=encoder),
        (torch.rand(2, 3, 16, 16),),
        {},
    )


def next_token_loss() -> Built:
    x = package("x_transformers")
    model, (tokens,), _ = build("Decoder", {"rotary_pos_emb": True})
    return x.AutoregressiveWrapper(model), (tokens,), {}


def cases() -> list[Case]:
    """A decoder with each option, and the other wrappers."""
    found = [
        Case(f"x_transformers/{name}", partial(build, "Decoder", options), dtypes=FLOAT32) for name, options in OPTIONS.items()
    ]
    found.append(Case("x_transformers/encoder", partial(build, "Encoder", {}), dtypes=FLOAT32))
    found.append(Case("x_transformers/encoder_decoder", from_one_sequence_to_another, dtypes=FLOAT32))
    found.append(Case("x_transformers/pictures", pictures, dtypes=FLOAT32))
    found.append(Case("x_transformers/next_token_loss", next_token_loss, dtypes=FLOAT32))
    return found
