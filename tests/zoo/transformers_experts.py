"""Mixtures of experts, state spaces, and hybrids of both with attention, of transformers."""

from __future__ import annotations

from functools import partial
from typing import Any

from .cases import EVAL, FLOAT32, FLOATS, Case
from .transformers_decoders import generation
from .transformers_tiny import text

EXPERTS = """
    mixtral qwen2_moe qwen3_moe olmoe phimoe granitemoe granitemoeshared gpt_oss glm4_moe ernie4_5_moe flex_olmo minimax
    minimax_m2 jetmoe afmoe exaone_moe hunyuan_v1_moe
""".split()
STATES = "mamba falcon_mamba rwkv olmo_hybrid nemotron_h falcon_h1".split()
LATENT: dict[str, Any] = {
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "head_dim": 4,
    "num_key_value_heads": 4,
    "n_group": 1,
    "topk_group": 1,
}
MAMBA: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 4, "mamba_n_groups": 1}
ADAPTED: dict[str, dict[str, Any]] = {
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "deepseek_v2": LATENT,
    "deepseek_v3": LATENT,
    "dots1": {"n_shared_experts": 1, "n_group": 1, "topk_group": 1},
    "longcat_flash": {**LATENT, "num_layers": 1, "zero_expert_num": 1, "expert_ffn_hidden_size": 16, "ffn_hidden_size": 32},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "qwen3_next": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "mamba2": {"num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "chunk_size": 4},
    "zamba2": {
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "mamba", "hybrid"],
        "num_mem_blocks": 1,
        "hybrid_layer_ids": [2],
    },
    "xlstm": {"hidden_size": 64, "head_dim": ..., "chunk_size": 4, "return_last_states": False, "use_cache": False},
}


def cases() -> list[Case]:
    """Experts and state spaces, and two of them generating."""
    found = [Case(f"transformers/{name}", partial(text, name)) for name in EXPERTS + STATES]
    found += [
        Case(f"transformers/{name}", partial(text, name, **options), dtypes=FLOAT32 if name == "xlstm" else FLOATS)
        for name, options in ADAPTED.items()
    ]
    found += [
        Case(f"transformers/{name}-generate", partial(generation, name), EVAL) for name in ("mixtral", "olmoe", "falcon_mamba")
    ]
    return found
