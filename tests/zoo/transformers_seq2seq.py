"""Encoder-decoders of transformers: one pass, the loss, generating."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import BOTH, EVAL, FLOAT32, Built, Case
from .transformers_tiny import Generation, ids, tiny

ADAPTED: dict[str, dict[str, Any]] = {
    "t5": {},
    "mt5": {},
    "umt5": {},
    "longt5": {"local_radius": 3},
    "bart": {},
    "pegasus": {},
    "pegasus_x": {"num_global_tokens": 2, "block_size": 4},
    "mbart": {},
    "marian": {},
    "m2m_100": {},
    "blenderbot": {},
    "blenderbot-small": {},
    "led": {"attention_window": 4},
    "prophetnet": {},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "mvp": {},
    "plbart": {},
    "fsmt": {"src_vocab_size": 64, "tgt_vocab_size": 64, "langs": ["en", "de"]},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 8},
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2, "expert_capacity": 8},
}


def sequences(name: str, **options: Any) -> Built:
    """Both sides of an encoder-decoder."""
    return tiny(name, **options), (), {"input_ids": ids(length=8), "decoder_input_ids": ids(length=5)}


def loss(name: str) -> Built:
    """A sequence-to-sequence model with labels: the decoder's input is made from them."""
    return tiny(name, "AutoModelForSeq2SeqLM", decoder_start_token_id=1), (), {"input_ids": ids(), "labels": ids(length=5)}


def generation(name: str, **options: Any) -> Built:
    """Encodes once and decodes four tokens."""
    model = tiny(name, "AutoModelForSeq2SeqLM", decoder_start_token_id=1)
    return Generation(model, **options), (), {"input_ids": ids(), "attention_mask": torch.ones(2, 7, dtype=torch.long)}


def cases() -> list[Case]:
    """Encoder-decoders."""
    found = [Case(f"transformers/{name}", partial(sequences, name, **options)) for name, options in ADAPTED.items()]
    found += [Case(f"transformers/{name}-sdpa", partial(sequences, name, attention="sdpa")) for name in ("bart", "mbart")]
    found += [Case(f"transformers/{name}-loss", partial(loss, name), BOTH, FLOAT32) for name in ("t5", "bart", "pegasus")]
    found += [
        Case(f"transformers/{name}-generate", partial(generation, name), EVAL) for name in ("t5", "bart", "marian", "m2m_100")
    ]
    found += [
        Case(f"transformers/{name}-beams", partial(generation, name, num_beams=2), EVAL, FLOAT32) for name in ("t5", "bart")
    ]
    return found
