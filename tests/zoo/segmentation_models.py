"""Every decoder of segmentation-models-pytorch on a small encoder."""

from __future__ import annotations

from functools import partial

import torch

from .cases import FLOAT32, Built, Case
from .foreign import package

DECODERS = (
    "Unet",
    "UnetPlusPlus",
    "MAnet",
    "Linknet",
    "FPN",
    "PSPNet",
    "PAN",
    "DeepLabV3",
    "DeepLabV3Plus",
    "UPerNet",
    "Segformer",
)
ENCODERS = ("resnet18", "mobilenet_v2", "efficientnet-b0")


def build(decoder: str, encoder: str) -> Built:
    """A segmentation network with random weights."""
    model = getattr(package("segmentation_models_pytorch"), decoder)(encoder, encoder_weights=None, classes=2)
    side = 128 if decoder == "PAN" else 64  # its pyramid pools more often
    return model, (torch.rand(2, 3, side, side),), {}


def cases() -> list[Case]:
    """Every decoder on a ResNet, and a U-Net on the other encoders."""
    pairs = [*((decoder, "resnet18") for decoder in DECODERS), *(("Unet", encoder) for encoder in ENCODERS[1:])]
    return [Case(f"segmentation/{d}_{e}", partial(build, d, e), dtypes=FLOAT32) for d, e in pairs]
