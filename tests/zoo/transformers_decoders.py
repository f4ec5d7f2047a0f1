"""Text decoders of transformers: with a cache, step by step, and whole calls of `generate`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .cases import BOTH, EVAL, FLOAT32, Built, Case
from .transformers_tiny import Generation, ids, text, tiny

PLAIN = """
    gpt2 gpt_neox gpt_neox_japanese gpt_bigcode opt bloom llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 falcon
    stablelm starcoder2 olmo olmo2 olmo3 cohere cohere2 ctrl openai-gpt biogpt xglm mpt persimmon granite helium glm glm4
    nemotron exaone4 smollm3 arcee apertus diffllama ernie4_5 hunyuan_v1_dense bitnet seed_oss vaultgemma doge nanochat
    modernbert-decoder ministral llama4_text lfm2 cwm jais2 hyperclovax granite_swa
""".split()
ADAPTED: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 4},
    "gptj": {"rotary_dim": 4},
    "codegen": {"rotary_dim": 4},
    "minicpm3": {
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "num_key_value_heads": 4,
    },
    "youtu": {
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "num_key_value_heads": 4,
        "head_dim": 4,
    },
    "recurrent_gemma": {"lru_width": 32, "attention_window_size": 8, "num_hidden_layers": 3},
}
FUSED = "gpt2 llama qwen2 gemma opt falcon phi3 mistral".split()
GENERATING = "gpt2 llama qwen2 gemma2 mistral opt bloom falcon phi gptj mamba recurrent_gemma".split()
LOSS = "gpt2 llama bloom qwen3 gemma2".split()


def language_model(name: str) -> Built:
    """A language model with its loss."""
    model, _, inputs = text(name, "AutoModelForCausalLM", **ADAPTED.get(name, {}))
    return model, (), {**inputs, "labels": inputs["input_ids"]}


def generation(name: str, **options: Any) -> Built:
    """Four new tokens, with the cache that the model uses by default."""
    model = tiny(name, "AutoModelForCausalLM", **ADAPTED.get(name, {}))
    return Generation(model, **options), (), {"input_ids": ids(length=5), "attention_mask": torch.ones(2, 5, dtype=torch.long)}


class StepByStep(nn.Module):
    """Feeds a decoder one token at a time and hands its cache on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        cache, logits = None, []
        for token in tokens.split(1, 1):
            made = self.model(input_ids=token, past_key_values=cache, use_cache=True)
            cache = made.past_key_values
            logits.append(made.logits)
        return torch.cat(logits, 1)


def steps(name: str) -> Built:
    """A decoder with its cache, by hand."""
    return StepByStep(tiny(name, "AutoModelForCausalLM")), (ids(length=4),), {}


def cases() -> list[Case]:
    """Decoders with eager and with fused attention, with a loss, with a cache, generating."""
    found = [Case(f"transformers/{name}", partial(text, name)) for name in PLAIN]
    found += [Case(f"transformers/{name}", partial(text, name, **options)) for name, options in ADAPTED.items()]
    found += [Case(f"transformers/{name}-sdpa", partial(text, name, attention="sdpa")) for name in FUSED]
    found += [Case(f"transformers/{name}-loss", partial(language_model, name), BOTH, FLOAT32) for name in LOSS]
    found += [Case(f"transformers/{name}-generate", partial(generation, name), EVAL) for name in GENERATING]
    found += [Case(f"transformers/{name}-cache", partial(steps, name), EVAL) for name in ("gpt2", "llama", "qwen3")]
    strategies: dict[str, dict[str, Any]] = {
        "beams": {"num_beams": 3},
        "sampling": {"do_sample": True, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
        "static-cache": {"cache_implementation": "static", "disable_compile": True},
        "no-cache": {"use_cache": False},
        "scores": {"return_dict_in_generate": True, "output_scores": True, "output_attentions": True},
        "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 3},
    }
    found += [
        Case(f"transformers/{name}-generate-{way}", partial(generation, name, **options), EVAL, FLOAT32)
        for way, options in strategies.items()
        for name in ("gpt2", "llama")
    ]
    return found
