"""Text encoders of transformers, and their usual heads."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import BOTH, EVAL, FLOAT32, FLOATS, Built, Case
from .transformers_tiny import ids, text, tiny

PLAIN = """
    albert bert bert-generation big_bird camembert convbert data2vec-text deberta deberta-v2 distilbert electra ernie esm
    eurobert flaubert fnet ibert longformer luke markuplm megatron-bert mobilebert modernbert mpnet mra nomic_bert
    nystromformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert tapas xlm xlm-roberta
    xlm-roberta-xl xlnet yoso canine layoutlm gte jina_embeddings_v3 dpr
""".split()
EXACT = ("fnet", "mra")  # these do not run in bfloat16
FUSED = "bert roberta distilbert electra modernbert camembert".split()
HEADS = {
    "bert": ("AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModelForTokenClassification"),
    "roberta": ("AutoModelForQuestionAnswering", "AutoModelForMultipleChoice"),
    "electra": ("AutoModelForPreTraining",),
    "distilbert": ("AutoModelForMaskedLM",),
}


def blocks(name: str, **options: Any) -> Built:
    """An encoder whose attention is sparse in blocks: enough tokens for several of them."""
    return text(name, length=32, **options)


def boxes(name: str, **options: Any) -> Built:
    """A document encoder: tokens with their places on the page."""
    corners = torch.rand(2, 7, 4) if name == "bros" else torch.randint(0, 30, (2, 7, 4)).sort(-1).values
    return tiny(name, **options), (), {"input_ids": ids(), "bbox": corners}


def head(name: str, kind: str) -> Built:
    """A model for a task, with labels, so that the last step is the loss."""
    model, _, inputs = text(name, kind)
    if "MultipleChoice" in kind:
        return model, (), {"input_ids": ids(6).view(2, 3, 7), "labels": torch.tensor([0, 2])}
    if "Question" in kind:
        return model, (), {**inputs, "start_positions": torch.tensor([1, 2]), "end_positions": torch.tensor([3, 4])}
    labels = ids() if "Masked" in kind else torch.randint(0, 2, (2,) if "Sequence" in kind else (2, 7))
    return model, (), {**inputs, "labels": labels}


def xmod() -> Built:
    """A model with adapters by language."""
    model = tiny("xmod", default_language="en_XX")
    return model, (), {"input_ids": ids()}


def perceiver() -> Built:
    """Latents that attend to any input."""
    model = tiny("perceiver", d_model=16, d_latents=24, num_latents=6, num_self_attends_per_block=2, num_self_attention_heads=4)
    return model, (), {"inputs": torch.randn(2, 9, 16)}


def cases() -> list[Case]:
    """Encoders, with eager and with fused attention, and with heads."""
    found = [Case(f"transformers/{name}", partial(text, name), dtypes=FLOAT32 if name in EXACT else FLOATS) for name in PLAIN]
    found += [Case(f"transformers/{name}-sdpa", partial(text, name, attention="sdpa")) for name in FUSED]
    found += [
        Case(f"transformers/{name}-{kind.removeprefix('AutoModelFor')}", partial(head, name, kind), BOTH, FLOAT32)
        for name, kinds in HEADS.items()
        for kind in kinds
    ]
    funnel = {"block_sizes": [1, 1], "block_repeats": [1, 1], "num_hidden_layers": ...}
    reformer = {"axial_pos_embds": False, "attn_layers": ["local", "lsh"], "num_buckets": 4, "num_hashes": 1}
    chunks = {"lsh_attn_chunk_length": 8, "local_attn_chunk_length": 8, "attention_head_size": 8, "is_decoder": False}
    return [
        *found,
        Case("transformers/funnel", partial(text, "funnel", "FunnelModel", length=8, **funnel)),
        Case("transformers/big_bird-sparse", partial(blocks, "big_bird", block_size=4, num_random_blocks=1), EVAL),
        Case("transformers/longformer-windows", partial(blocks, "longformer", attention_window=8)),
        Case("transformers/reformer", partial(blocks, "reformer", **reformer, **chunks), EVAL),
        Case("transformers/bros", partial(boxes, "bros", dim_bbox=4)),
        Case("transformers/lilt", partial(boxes, "lilt", hidden_size=48)),
        Case("transformers/layoutlm-boxes", partial(boxes, "layoutlm", max_2d_position_embeddings=32)),
        Case("transformers/xmod", xmod),
        Case("transformers/perceiver", perceiver),
    ]
