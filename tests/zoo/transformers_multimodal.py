"""Multimodal models of transformers: pictures or sounds with text."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import EVAL, Built, Case
from .transformers_tiny import Generation, ids, small, tiny

PAIRS = """
    clip siglip chinese_clip altclip clipseg blip align flava owlvit groupvit metaclip_2 owlv2 aimv2
""".split()


def parts(name: str, **options: Any) -> dict[str, Any]:
    """The configurations of a model's text and vision parts, small."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    made = {}
    for key, kind in CONFIG_MAPPING[name].sub_configs.items():
        if model_type := getattr(kind, "model_type", ""):
            made[key] = small(model_type, **options).to_dict()
    return made


def pair(name: str) -> Built:
    """A model of a text and a picture in one space, with its contrastive loss where it has one."""
    sizes = {"projection_dim": 640} if name == "align" else {}
    model = tiny(name, **parts(name), **sizes)
    inputs = {"input_ids": ids(), "pixel_values": torch.randn(2, 3, 32, 32)}
    if name in ("owlvit", "owlv2"):
        inputs["attention_mask"] = torch.ones(2, 7, dtype=torch.long)
    return model, (), inputs


def single_stream() -> Built:
    """Text and patches in one transformer."""
    return tiny("vilt"), (), {"input_ids": ids(), "pixel_values": torch.randn(2, 3, 32, 32)}


def regions() -> Built:
    """Text and the features of regions, two streams that cross."""
    layers = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 12}
    visual = {"visual_feats": torch.randn(2, 4, 12), "visual_pos": torch.rand(2, 4, 4)}
    return tiny("lxmert", **layers), (), {"input_ids": ids(), **visual}


def visual_bert() -> Built:
    """Text and the features of regions in one stream."""
    return tiny("visual_bert", visual_embedding_dim=12), (), {"input_ids": ids(), "visual_embeds": torch.randn(2, 4, 12)}


def seeing(name: str = "llava", generate: bool = False, **options: Any) -> Built:
    """A language model that reads a picture's patches in the place of sixteen tokens."""
    vision = small("clip_vision_model", num_hidden_layers=3).to_dict()
    language = small("llama").to_dict()
    model = tiny(
        name, "AutoModelForImageTextToText", vision_config=vision, text_config=language, image_token_index=3, **options
    )
    tokens = torch.cat([torch.full((2, 16), 3), ids(length=4)], 1)
    inputs = {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 32, 32), "attention_mask": torch.ones_like(tokens)}
    return Generation(model) if generate else model, (), inputs


def paligemma() -> Built:
    """Patches before the text, seen by all of it."""
    vision = small("siglip_vision_model").to_dict()
    language = small("gemma").to_dict()
    model = tiny("paligemma", vision_config=vision, text_config=language, image_token_index=3, projection_dim=32)
    tokens = torch.cat([torch.full((2, 16), 3), ids(length=4)], 1)
    return model, (), {"input_ids": tokens, "pixel_values": torch.randn(2, 3, 32, 32)}


def captioner(name: str, generate: bool = False) -> Built:
    """A picture to a sentence."""
    import transformers

    if name == "git":
        vision = small("git_vision_model").to_dict()
        model = tiny("git", "GitForCausalLM", vision_config=vision)
    else:
        encoder, decoder = small("vit"), small("gpt2", is_decoder=True, add_cross_attention=True)
        config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder)
        config.decoder_start_token_id, config.pad_token_id = 1, 0
        model = transformers.VisionEncoderDecoderModel(config)
        model.generation_config.decoder_start_token_id = 1
    inputs = {"pixel_values": torch.randn(2, 3, 32, 32)}
    if generate:
        return Generation(model), (), inputs if name != "git" else {**inputs, "input_ids": ids(length=3)}
    return model, (), {**inputs, ("input_ids" if name == "git" else "decoder_input_ids"): ids()}


def encoder_decoder() -> Built:
    """Two BERTs, one of which decodes."""
    import transformers

    decoder = small("bert", is_decoder=True, add_cross_attention=True)
    config = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(small("bert"), decoder)
    return transformers.EncoderDecoderModel(config), (), {"input_ids": ids(), "decoder_input_ids": ids(length=5)}


def decisions() -> Built:
    """A transformer over returns, states and actions."""
    model = tiny("decision_transformer", state_dim=5, act_dim=3, max_ep_len=20)
    times = torch.arange(6).repeat(2, 1)
    rewards = {"returns_to_go": torch.rand(2, 6, 1), "rewards": torch.rand(2, 6, 1), "timesteps": times}
    return model, (), {"states": torch.randn(2, 6, 5), "actions": torch.randn(2, 6, 3), **rewards}


def forecast(name: str) -> Built:
    """A model of time series: patches of the past."""
    model = tiny(name, context_length=16, prediction_length=4, num_input_channels=2, patch_length=4, patch_stride=4)
    return model, (), {"past_values": torch.randn(2, 16, 2)}


def cases() -> list[Case]:
    """Multimodal and other composed models."""
    found = [Case(f"transformers/{name}", partial(pair, name)) for name in PAIRS]
    return [
        *found,
        Case("transformers/vilt", single_stream),
        Case("transformers/lxmert", regions),
        Case("transformers/visual_bert", visual_bert),
        Case("transformers/llava", seeing),
        Case("transformers/vipllava", partial(seeing, "vipllava", vision_feature_layers=[-1, -2])),
        Case("transformers/llava-generate", partial(seeing, generate=True), EVAL),
        Case("transformers/paligemma", paligemma),
        Case("transformers/git", partial(captioner, "git")),
        Case("transformers/git-generate", partial(captioner, "git", generate=True), EVAL),
        Case("transformers/vision-encoder-decoder", partial(captioner, "vit-gpt2")),
        Case("transformers/vision-encoder-decoder-generate", partial(captioner, "vit-gpt2", generate=True), EVAL),
        Case("transformers/encoder-decoder", encoder_decoder),
        Case("transformers/decision_transformer", decisions),
        Case("transformers/patchtst", partial(forecast, "patchtst")),
        Case("transformers/patchtsmixer", partial(forecast, "patchtsmixer")),
    ]
