"""Models of transformers, small enough for tests."""

from __future__ import annotations

import torch
import transformers

IS_4 = transformers.__version__.startswith("4.")

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 60,
    "max_position_embeddings": 64,
}
IDS = {"input_ids": torch.arange(12).reshape(2, 6) + 3}


def tiny(name: str, **options):
    config = transformers.AutoConfig.for_model(name, **options)
    return transformers.AutoModel.from_config(config, attn_implementation="eager")
