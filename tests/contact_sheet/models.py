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
from zoo.torchvision_detection import without_compiled_operators
from zoo.transformers_experts import LATENT
from zoo.transformers_tiny import tiny

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


def llama_8b() -> Built:
    """The shape of Llama 3 with 8 billion parameters, without values."""
    with torch.device("meta"):
        model = llama(
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
            vocab_size=128256,
            dtype=torch.bfloat16,
        )
        return model, (torch.zeros(1, 128, dtype=torch.long),), {}


def mixtral() -> Built:
    return tiny("mixtral", "AutoModelForCausalLM", num_hidden_layers=4), (ids(60),), {}


def deepseek() -> Built:
    """DeepSeek V3: latent attention, the first layer dense, the others with experts."""
    options = {**LATENT, "num_hidden_layers": 5, "first_k_dense_replace": 1}
    return tiny("deepseek_v3", "AutoModelForCausalLM", **options), (ids(60),), {}


def qwen2_vl() -> Built:
    """A picture of 16 patches, merged to four tokens, within a text."""
    vision = {"depth": 4, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "patch_size": 8, "spatial_merge_size": 2}
    text = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4},
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    special = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **special)
    tokens = torch.tensor([[5, 62, 60, 60, 60, 60, 63, 7, 8, 9]])
    picture = {"pixel_values": torch.randn(16, 3 * 2 * 8 * 8), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    kinds = {"mm_token_type_ids": (tokens == 60).int(), "attention_mask": torch.ones_like(tokens)}
    return transformers.Qwen2VLForConditionalGeneration(config), (), {"input_ids": tokens, **kinds, **picture}


def swin() -> Built:
    config = transformers.SwinConfig(
        image_size=64, patch_size=4, embed_dim=24, depths=[2, 2, 6, 2], num_heads=[1, 2, 4, 8], window_size=2
    )
    return transformers.SwinForImageClassification(config), (torch.randn(1, 3, 64, 64),), {}


def resnet50() -> Built:
    return package("torchvision").models.resnet50(weights=None), (torch.randn(1, 3, 64, 64),), {}


def faster_rcnn() -> Built:
    detector = package("torchvision").models.detection.fasterrcnn_resnet50_fpn
    without_compiled_operators()
    model = detector(weights=None, weights_backbone=None, num_classes=5, min_size=64, max_size=96)
    return model, ([torch.rand(3, 64, 80)],), {}


class Translator(nn.Module):
    """Two LSTMs: one reads the sentence, the other writes its translation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_source = nn.Embedding(50, 16)
        self.embed_target = nn.Embedding(60, 16)
        self.encoder = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.decoder = nn.LSTM(16, 32, num_layers=2, batch_first=True)
        self.to_words = nn.Linear(32, 60)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(self.embed_source(source))
        written, _ = self.decoder(self.embed_target(target), state)
        return self.to_words(written)


def seq2seq_lstm() -> Built:
    return Translator(), (ids(50, 9), ids(60, 7)), {}


class Gnn(nn.Module):
    """Two rounds of messages along the edges of a graph."""

    def __init__(self) -> None:
        super().__init__()
        convolution = package("torch_geometric.nn").GCNConv
        self.conv1 = convolution(8, 16)
        self.conv2 = convolution(16, 16)
        self.classifier = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        x = self.conv1(x, edge_index).relu()
        x = self.conv2(x, edge_index).relu()
        return self.classifier(x.mean(0))


def gnn() -> Built:
    return Gnn(), (torch.randn(6, 8), torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])), {}


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


# The architectures by which the first view is judged, and two more.
ARCHITECTURES: dict[str, Callable[[], Built]] = {
    "GPT-2": gpt2,
    "Llama 8B": llama_8b,
    "Mixtral": mixtral,
    "DeepSeek": deepseek,
    "Qwen2-VL": qwen2_vl,
    "T5": t5,
    "Whisper": whisper,
    "Mamba": mamba,
    "Swin": swin,
    "ViT": vit,
    "ResNet-50": resnet50,
    "U-Net": unet,
    "Faster R-CNN": faster_rcnn,
    "seq2seq LSTM": seq2seq_lstm,
    "GNN": gnn,
}
MODELS = {**ARCHITECTURES, "AlexNet": alexnet, "BERT": bert}


def history_of(name: str) -> ModelHistory:
    """One forward pass of a model, in evaluation mode."""
    torch.manual_seed(0)
    model, args, kwargs = MODELS[name]()
    with torch.no_grad():
        return torcheer.log_forward_pass(model.eval(), args, kwargs)
