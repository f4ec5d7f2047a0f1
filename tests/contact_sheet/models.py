"""The models whose pages are looked at: real architectures with random weights, small but for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

import torcheer
from torcheer import ModelHistory
from torcheer.demo import AlexNet
from zoo.foreign import package

Built = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]

TOKENS = 16


def ids(size: int, length: int = TOKENS) -> torch.Tensor:
    return torch.arange(length)[None] % size


def alexnet() -> Built:
    return AlexNet(), (torch.randn(1, 3, 224, 224),), {}


def gpt2() -> Built:
    config = transformers.GPT2Config(n_embd=96, n_head=4, n_positions=64, vocab_size=100, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config), (ids(100),), {}


def llama(**more: Any) -> nn.Module:
    small = {"hidden_size": 64, "intermediate_size": 172, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**small, **more}))


def llama_8_layers() -> Built:
    return llama(num_hidden_layers=8), (ids(100),), {}


def llama_70b() -> Built:
    """The shape of Llama 3 with 70 billion parameters, without values."""
    with torch.device("meta"):
        model = llama(
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
            vocab_size=128256,
            dtype=torch.bfloat16,
        )
        return model, (torch.zeros(1, 128, dtype=torch.long),), {}


def t5() -> Built:
    config = transformers.T5Config(d_model=64, d_kv=16, d_ff=128, num_layers=6, num_heads=4, vocab_size=100)
    return transformers.T5ForConditionalGeneration(config), (), {"input_ids": ids(100), "decoder_input_ids": ids(100, 8)}


def whisper() -> Built:
    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        vocab_size=100,
        max_source_positions=60,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    features = torch.randn(1, config.num_mel_bins, 120)
    return transformers.WhisperForConditionalGeneration(config), (features,), {"decoder_input_ids": ids(100, 8)}


def mamba() -> Built:
    config = transformers.MambaConfig(hidden_size=64, num_hidden_layers=6, vocab_size=100, state_size=8)
    return transformers.MambaForCausalLM(config), (ids(100, 8),), {}


def bert() -> Built:
    config = transformers.BertConfig(hidden_size=96, num_attention_heads=4, intermediate_size=192, vocab_size=100)
    return transformers.BertForMaskedLM(config), (ids(100),), {"attention_mask": torch.ones(1, TOKENS)}


def vit() -> Built:
    config = transformers.ViTConfig(hidden_size=96, num_attention_heads=4, intermediate_size=192, image_size=64, patch_size=8)
    return transformers.ViTForImageClassification(config), (torch.randn(1, 3, 64, 64),), {}


def unet() -> Built:
    model = package("diffusers").UNet2DConditionModel(
        block_out_channels=(16, 32, 64),
        norm_num_groups=4,
        sample_size=16,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=4,
    )
    named = {
        "sample": torch.randn(1, 4, 16, 16),
        "timestep": torch.tensor([10]),
        "encoder_hidden_states": torch.randn(1, 7, 32),
    }
    return model, (), named


MODELS: dict[str, Callable[[], Built]] = {
    "AlexNet": alexnet,
    "GPT-2": gpt2,
    "Llama, 8 layers": llama_8_layers,
    "Llama 70B": llama_70b,
    "T5": t5,
    "Whisper": whisper,
    "Mamba": mamba,
    "BERT": bert,
    "ViT": vit,
    "U-Net": unet,
}


def history_of(name: str) -> ModelHistory:
    """One forward pass of a model, in evaluation mode."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    with torch.no_grad():
        return torcheer.log_forward_pass(model.eval(), args, kwargs)
