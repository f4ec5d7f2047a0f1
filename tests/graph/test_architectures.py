"""What is seen first of fifteen real architectures is what their authors would draw."""

from __future__ import annotations

import pytest
import torch

import torcheer
import torchvision_operators
from torcheer.graph import Node, first_view
from torcheer.pictures import PictureOptions
from torcheer.pictures.views import views
from zoo.cases import Unavailable

torchvision_operators.declare()
models = pytest.importorskip("contact_sheet.models")

# What is open, and every box that is seen besides inputs, outputs and plumbing; the last, after `|`.
SEEN = {
    "GPT-2": "transformer | transformer.wte transformer.wpe add transformer.h.0×12 transformer.ln_f lm_head",
    "Llama 8B": "model | model.embed_tokens model.layers.0×32 model.norm lm_head | rotary",
    "Mixtral": "model | model.embed_tokens model.layers.0×4 model.norm lm_head | rotary mask",
    "DeepSeek": "model model.layers | model.embed_tokens model.layers.0 model.layers.1×4 model.norm lm_head | rotary mask",
    "Qwen2-VL": (
        "model model.language_model model.visual | model.language_model.embed_tokens model.visual.patch_embed.proj "
        "model.visual.blocks.0×4 model.visual.merger split masked_scatter model.language_model.layers.0×4 "
        "model.language_model.norm lm_head | rotary indices mask rotary"
    ),
    "T5": (
        "encoder encoder.block decoder decoder.block | encoder.embed_tokens encoder.block.0 encoder.block.1×5 "
        "encoder.final_layer_norm decoder.embed_tokens decoder.block.0 decoder.block.1×5 decoder.final_layer_norm mul lm_head"
    ),
    "Whisper": (
        "model model.encoder model.decoder | model.encoder.conv1 gelu model.encoder.conv2 gelu model.encoder.embed_positions "
        "add model.encoder.layers.0×4 model.encoder.layer_norm model.decoder.embed_tokens model.decoder.embed_positions add "
        "model.decoder.layers.0×4 model.decoder.layer_norm proj_out"
    ),
    "Mamba": "backbone | backbone.embeddings backbone.layers.0×6 backbone.norm_f lm_head",
    "Swin": (
        "swin swin.encoder | swin.embeddings swin.encoder.layers.0 swin.encoder.layers.1 swin.encoder.layers.2 "
        "swin.encoder.layers.3 swin.layernorm swin.pooler classifier"
    ),
    "ViT": "vit | vit.embeddings vit.layers.0×12 vit.layernorm getitem classifier",
    "ResNet-50": " | conv1 bn1 relu maxpool layer1 layer2 layer3 layer4 avgpool fc",
    "U-Net": (
        "down_blocks up_blocks | time_embedding conv_in down_blocks.0 down_blocks.1 down_blocks.2 mid_block up_blocks.0 "
        "up_blocks.1 up_blocks.2 conv_norm_out conv_act conv_out"
    ),
    # the last six bring the boxes to the size of the image
    "Faster R-CNN": "backbone | transform backbone.body backbone.fpn rpn roi_heads unbind mul mul mul mul stack",
    "seq2seq LSTM": " | embed_source encoder embed_target decoder to_words",
    "GNN": (
        "conv1 conv2 | conv1.lin index_select mul conv1.aggr_module conv1 relu conv2.lin index_select mul conv2.aggr_module "
        "conv2 relu mean classifier | indices indices"
    ),
}


def name_of(node: Node) -> str:
    if node.kind == "module":
        return node.label + (f"×{node.repeats}" if node.repeats > 1 else "")
    return node.exits[0].rpartition(":")[0] if node.exits else node.title


@pytest.mark.parametrize("name", SEEN)
def test_the_first_view_is_as_a_person_would_draw_it(name: str) -> None:
    torch.manual_seed(0)
    try:
        model, args, kwargs = models.ARCHITECTURES[name]()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with torch.no_grad():
        history = torcheer.log_forward_pass(model.eval(), args, kwargs, layers_to_save="none")
    opened, boxes, *chips = SEEN[name].split("|")
    assert sorted(key.partition(":")[0] for key in first_view(history.graph).open) == sorted(opened.split())
    seen = next(iter(views(history.graph, PictureOptions()))).graph.nodes
    assert [name_of(node) for node in seen if node.kind not in ("input", "output", "plumbing")] == boxes.split()
    assert [node.type for node in seen if node.kind == "plumbing"] == (chips[0].split() if chips else [])
