"""Vision models of transformers: classifiers, dense predictors, detectors, video."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .cases import EVAL, FLOAT32, Built, Case
from .transformers_tiny import small, tiny

PLAIN = """
    aimv2_vision_model beit bit clip_vision_model data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit dinov3_convnext
    dpt efficientnet focalnet hgnet_v2 ijepa mobilenet_v1 mobilenet_v2 mobilevit poolformer regnet resnet siglip_vision_model
    swiftformer textnet vit vit_mae vit_msn vitdet sam_vision_model mlcd_vision_model pixtral internvl_vision pixio
""".split()
ADAPTED: dict[str, dict[str, Any]] = {
    "convnext": {"patch_size": 4, "depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 24, 32]},
    "convnextv2": {"patch_size": 4, "depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 24, 32]},
    "cvt": {"embed_dim": [12, 24, 36], "depth": [1, 2, 3], "num_heads": [1, 2, 3]},
    "donut-swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4},
    "glpn": {"patch_size": ...},
    "hiera": {"image_size": [64, 64], "embed_dim": 16},
    "levit": {
        "patch_size": 16,
        "hidden_sizes": [16, 24, 32],
        "num_attention_heads": [2, 3, 4],
        "depths": [1, 1, 1],
        "image_size": 64,
    },
    "mobilevitv2": {"patch_size": 2},
    "pvt": {
        "image_size": 64,
        "num_attention_heads": [1, 2, 3, 4],
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "patch_size": ...,
    },
    "pvt_v2": {"image_size": 64, "num_attention_heads": [1, 2, 3, 4], "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]},
    "segformer": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 3, 4]},
    "swin": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4, "image_size": 64},
    "swinv2": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "patch_size": 4, "window_size": 4, "image_size": 64},
    "swin2sr": {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 2], "patch_size": 1, "window_size": 4, "image_size": 16},
    "yolos": {"image_size": [64, 64], "num_detection_tokens": 4},
}
VIDEO = "timesformer videomae vivit".split()


def pictures(name: str, size: int = 64, head: str = "AutoModel", **options: Any) -> Built:
    """A vision model on two small pictures."""
    if "image_size" not in options and size != 32:
        options["image_size"] = size
    return tiny(name, head, **options), (), {"pixel_values": torch.randn(2, 3, size, size)}


def video(name: str) -> Built:
    """A video model on four frames of 16×16."""
    options = {"tubelet_size": [2, 8, 8]} if name == "vivit" else {}
    model = tiny(name, num_frames=4, image_size=16, **options)
    return model, (), {"pixel_values": torch.randn(2, 4, 3, 16, 16)}


def foresight() -> Built:
    """A video encoder with a predictor."""
    sizes = {"crop_size": 16, "frames_per_clip": 4, "patch_size": 8, "pred_hidden_size": 24, "pred_num_attention_heads": 2}
    model = tiny("vjepa2", **sizes, pred_num_hidden_layers=1, pred_num_mask_tokens=2, hidden_size=48)
    return model, (), {"pixel_values_videos": torch.randn(1, 4, 3, 16, 16)}


def pixels() -> Built:
    """An autoregressive model of quantised pixels."""
    return tiny("imagegpt"), (), {"input_ids": torch.randint(0, 60, (2, 9))}


def detector(name: str, head: str) -> Built:
    """A detector with a small convolutional backbone of the library's own; its loss would need SciPy."""
    backbone = small(
        "resnet",
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 24, 32],
        embedding_size=8,
        out_features=["stage2", "stage3", "stage4"],
    )
    sizes = {"num_queries": 5, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone_config": backbone}
    if name in ("detr", "conditional_detr", "table-transformer"):
        backbone.out_features = ["stage4"]
    model = tiny(name, head, **sizes, backbone=None)
    return model, (), {"pixel_values": torch.randn(2, 3, 64, 64)}


def segmenter(name: str, head: str) -> Built:
    """A segmentation model on two small pictures."""
    return tiny(name, head), (), {"pixel_values": torch.randn(2, 3, 64, 64)}


def cases() -> list[Case]:
    """Vision models."""
    found = [Case(f"transformers/{name}", partial(pictures, name, 32)) for name in PLAIN]
    found += [
        Case(f"transformers/{name}", partial(pictures, name, 16 if name == "swin2sr" else 64, **options))
        for name, options in ADAPTED.items()
    ]
    found += [Case(f"transformers/{name}", partial(video, name)) for name in VIDEO]
    found += [
        Case(f"transformers/{name}-sdpa", partial(pictures, name, 32, attention="sdpa")) for name in ("vit", "dinov2", "deit")
    ]
    heads = {"vit": "AutoModelForImageClassification", "segformer": "AutoModelForSemanticSegmentation"}
    found += [Case(f"transformers/{name}-{head[12:]}", partial(pictures, name, 64, head)) for name, head in heads.items()]
    found += [
        Case(f"transformers/{name}", partial(detector, name, "AutoModelForObjectDetection"), dtypes=FLOAT32)
        for name in ("detr", "conditional_detr", "deformable_detr", "rt_detr", "table-transformer")
    ]
    found += [
        Case("transformers/vjepa2", foresight),
        Case("transformers/imagegpt", pixels),
        Case("transformers/maskformer", partial(segmenter, "maskformer", "AutoModel"), EVAL, FLOAT32, slow=True),
        Case("transformers/mask2former", partial(segmenter, "mask2former", "AutoModel"), EVAL, FLOAT32, slow=True),
        Case("transformers/superpoint", partial(segmenter, "superpoint", "SuperPointForKeypointDetection"), EVAL, FLOAT32),
    ]
    return found
