"""Makes any architecture of transformers tiny: a default configuration with its sizes cut down, and random weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .cases import Built

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "embedding_size": 32,
    "d_model": 32,
    "d_ff": 48,
    "d_kv": 8,
    "d_inner": 48,
    "d_head": 8,
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 32,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "ffn_dim": 48,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "image_size": 32,
    "patch_size": 8,
    "projection_dim": 16,
}


def small(name: str, **options: Any) -> Any:
    """A configuration of this model type, small in every size known here; an option that is `...` keeps its default."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    kind = CONFIG_MAPPING[name]
    default = kind()
    known = {*default.to_dict(), *kind.attribute_map}
    listed = {key for key in known if isinstance(getattr(default, key, None), (list, tuple, dict))}
    sizes = {key: value for key, value in SMALL.items() if key in known and key not in listed}
    return kind(**{key: value for key, value in {**sizes, **options}.items() if value is not ...})


def tiny(name: str, head: str = "AutoModel", attention: str | None = "eager", **options: Any) -> nn.Module:
    """A tiny model of this type with random weights, with the head of this `Auto` class or class name."""
    import transformers

    config = small(name, **options)
    kind = getattr(transformers, head)
    if attention is not None:
        config._attn_implementation = attention
    return kind.from_config(config) if head.startswith("Auto") else kind(config)


def ids(batch: int = 2, length: int = 7, vocabulary: int = 60) -> Tensor:
    """Token ids that are no special token."""
    return torch.randint(5, vocabulary, (batch, length))


def text(name: str, head: str = "AutoModel", length: int = 7, **options: Any) -> Built:
    """A tiny text model on a few tokens, the last of the second sentence padded."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, -1] = 0
    return tiny(name, head, **options), (), {"input_ids": ids(length=length), "attention_mask": mask}


class Generation(nn.Module):
    """A whole call of `generate`, as a module so that it has modes, a dtype and parameters."""

    def __init__(self, model: nn.Module, **options: Any) -> None:
        super().__init__()
        self.model = model
        self.options = {"max_new_tokens": 4, "pad_token_id": 0, "eos_token_id": None, "do_sample": False, **options}

    def forward(self, **inputs: Tensor) -> Any:
        return self.model.generate(**inputs, **self.options)
