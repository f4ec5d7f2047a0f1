"""U-Nets, autoencoders and diffusion transformers of diffusers, small and with random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from .cases import EVAL, FLOAT32, Built, Case
from .foreign import package

Inputs = Callable[[], dict[str, Any]]


def build(name: str, config: dict[str, Any], inputs: Inputs) -> Built:
    """A model of diffusers from its configuration, and its named arguments."""
    return getattr(package("diffusers"), name)(**config), (), inputs()


def picture(channels: int = 4, side: int = 16, count: int = 2) -> torch.Tensor:
    return torch.randn(count, channels, side, side)


def step(count: int = 2) -> torch.Tensor:
    return torch.randint(0, 100, (count,))


def text(width: int, length: int = 5, count: int = 2) -> torch.Tensor:
    return torch.randn(count, length, width)


SMALL = {"block_out_channels": (8, 16), "norm_num_groups": 4, "sample_size": 16}
DOWN, UP = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")
CONDITION = {
    **SMALL,
    "down_block_types": DOWN,
    "up_block_types": UP,
    "cross_attention_dim": 12,
    "attention_head_dim": 4,
    "layers_per_block": 1,
}
KL = {
    "block_out_channels": (8, 16),
    "norm_num_groups": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}

MODELS: list[tuple[str, str, dict[str, Any], Inputs]] = [
    (
        "unet",
        "UNet2DModel",
        {
            **SMALL,
            "in_channels": 3,
            "out_channels": 3,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
        },
        lambda: {"sample": picture(3), "timestep": step()},
    ),
    (
        "unet_conditioned",
        "UNet2DConditionModel",
        CONDITION,
        lambda: {"sample": picture(), "timestep": step(), "encoder_hidden_states": text(12)},
    ),
    (
        "unet_video",
        "UNet3DConditionModel",
        {
            **SMALL,
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
            "layers_per_block": 1,
        },
        lambda: {"sample": torch.randn(1, 4, 3, 16, 16), "timestep": step(1), "encoder_hidden_states": text(12, count=1)},
    ),
    (
        "controlnet",
        "ControlNetModel",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "down_block_types": DOWN,
            "cross_attention_dim": 12,
            "attention_head_dim": 4,
            "layers_per_block": 1,
            "conditioning_embedding_out_channels": (4, 8),
        },
        lambda: {"sample": picture(), "timestep": step(), "encoder_hidden_states": text(12), "controlnet_cond": picture(3, 32)},
    ),
    ("autoencoder_kl", "AutoencoderKL", KL, lambda: {"sample": picture(3, 32)}),
    ("autoencoder_kl_sampled", "AutoencoderKL", KL, lambda: {"sample": picture(3, 32), "sample_posterior": True}),
    (
        "autoencoder_tiny",
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        lambda: {"sample": picture(3, 32)},
    ),
    (
        "vq",
        "VQModel",
        {
            "block_out_channels": (8, 16),
            "norm_num_groups": 4,
            "down_block_types": ("DownEncoderBlock2D",) * 2,
            "up_block_types": ("UpDecoderBlock2D",) * 2,
            "num_vq_embeddings": 16,
        },
        lambda: {"sample": picture(3, 32)},
    ),
    (
        "dit",
        "DiTTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "num_layers": 2,
            "sample_size": 8,
            "patch_size": 2,
            "norm_num_groups": 4,
            "num_embeds_ada_norm": 10,
        },
        lambda: {"hidden_states": picture(4, 8), "timestep": step(), "class_labels": torch.tensor([1, 2])},
    ),
    (
        "pixart",
        "PixArtTransformer2DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "cross_attention_dim": 16,
            "sample_size": 8,
            "caption_channels": 12,
            "norm_num_groups": 4,
        },
        lambda: {
            "hidden_states": picture(4, 8),
            "timestep": step(),
            "encoder_hidden_states": text(12),
            "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
        },
    ),
    (
        "sd3",
        "SD3Transformer2DModel",
        {
            "sample_size": 8,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "joint_attention_dim": 12,
            "caption_projection_dim": 16,
            "pooled_projection_dim": 10,
            "in_channels": 4,
            "out_channels": 4,
        },
        lambda: {
            "hidden_states": picture(4, 8),
            "timestep": step(),
            "encoder_hidden_states": text(12),
            "pooled_projections": torch.randn(2, 10),
        },
    ),
    (
        "flux",
        "FluxTransformer2DModel",
        {
            "in_channels": 4,
            "num_layers": 1,
            "num_single_layers": 1,
            "attention_head_dim": 16,
            "num_attention_heads": 2,
            "joint_attention_dim": 12,
            "pooled_projection_dim": 10,
            "axes_dims_rope": [4, 4, 8],
        },
        lambda: {
            "hidden_states": torch.randn(2, 16, 4),
            "timestep": torch.rand(2),
            "encoder_hidden_states": text(12),
            "pooled_projections": torch.randn(2, 10),
            "img_ids": torch.zeros(16, 3),
            "txt_ids": torch.zeros(5, 3),
        },
    ),
    (
        "sana",
        "SanaTransformer2DModel",
        {
            "in_channels": 4,
            "out_channels": 4,
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": 12,
            "sample_size": 8,
        },
        lambda: {"hidden_states": picture(4, 8), "timestep": step(), "encoder_hidden_states": text(12)},
    ),
    (
        "wan",
        "WanTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": 4,
            "out_channels": 4,
            "text_dim": 12,
            "freq_dim": 16,
            "ffn_dim": 32,
            "num_layers": 2,
            "rope_max_seq_len": 32,
        },
        lambda: {"hidden_states": torch.randn(1, 4, 2, 8, 8), "timestep": step(1), "encoder_hidden_states": text(12, count=1)},
    ),
    (
        "cogvideox",
        "CogVideoXTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
            "text_embed_dim": 12,
            "num_layers": 2,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 9,
            "max_text_seq_length": 5,
            "time_embed_dim": 8,
        },
        lambda: {"hidden_states": torch.randn(1, 3, 4, 8, 8), "timestep": step(1), "encoder_hidden_states": text(12, count=1)},
    ),
    (
        "prior",
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 4,
            "num_layers": 2,
            "embedding_dim": 8,
            "num_embeddings": 5,
            "additional_embeddings": 4,
        },
        lambda: {
            "hidden_states": torch.randn(2, 8),
            "timestep": step(),
            "proj_embedding": torch.randn(2, 8),
            "encoder_hidden_states": text(8),
        },
    ),
]


def denoise() -> Built:
    """A scheduler's loop around a U-Net, with classifier-free guidance."""
    diffusers = package("diffusers")
    unet = diffusers.UNet2DConditionModel(**CONDITION).eval()

    def sample(noise: torch.Tensor, prompt: torch.Tensor) -> torch.Tensor:
        scheduler = diffusers.DDIMScheduler(num_train_timesteps=50)
        scheduler.set_timesteps(3)
        for moment in scheduler.timesteps:
            both = unet(
                torch.cat([noise, noise]), moment, encoder_hidden_states=torch.cat([prompt, torch.zeros_like(prompt)])
            ).sample
            with_text, without = both.chunk(2)
            noise = scheduler.step(without + 3 * (with_text - without), moment, noise).prev_sample
        return noise

    return sample, (picture(count=1), text(12, count=1)), {}


def cases() -> list[Case]:
    """The models above, and a loop of one."""
    found = [
        Case(f"diffusers/{name}", partial(build, model, config, inputs), dtypes=FLOAT32)
        for name, model, config, inputs in MODELS
    ]
    return [*found, Case("diffusers/denoising_loop", denoise, EVAL, FLOAT32)]
