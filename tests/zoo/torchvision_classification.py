"""Every classification builder of torchvision, and the quantizable variants in float."""

from __future__ import annotations

from functools import partial
from unittest import mock

import torch

from .cases import EVAL, FLOAT32, TRAIN, Built, Case

DEFAULT = """
    alexnet convnext_base convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_v2_s
    mnasnet0_5 mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
    regnet_x_16gf regnet_x_1_6gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf
    regnet_y_16gf regnet_y_1_6gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf
    resnet101 resnet152 resnet18 resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d
    shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1
    swin_s swin_t swin_v2_s swin_v2_t wide_resnet101_2 wide_resnet50_2
    quantized_mobilenet_v2 quantized_mobilenet_v3_large quantized_resnet18 quantized_resnet50
    quantized_shufflenet_v2_x0_5 quantized_shufflenet_v2_x1_0 quantized_shufflenet_v2_x1_5 quantized_shufflenet_v2_x2_0
    quantized_resnext101_32x8d quantized_resnext101_64x4d
""".split()
VGG = "vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn".split()
LARGE = """
    convnext_large efficientnet_b5 efficientnet_b6 efficientnet_b7 efficientnet_v2_m efficientnet_v2_l regnet_x_32gf
    regnet_y_32gf regnet_y_128gf swin_b swin_v2_b
""".split()
VIT = "vit_b_16 vit_b_32 vit_l_16 vit_l_32".split()


def build(name: str, size: int = 64, batch: int = 2, **options: object) -> Built:
    """A torchvision model by its registered name, on small images."""
    import torchvision

    model = torchvision.models.get_model(name, num_classes=10, **options)
    return model, (torch.rand(batch, 3, size, size),), {}


def build_maxvit() -> Built:
    """The builder's own blocks on a small image: windows of 2 instead of 7."""
    from torchvision.models import maxvit

    original = maxvit._maxvit
    with mock.patch.object(maxvit, "_maxvit", lambda **options: original(**{**options, "partition_size": 2})):
        model = maxvit.maxvit_t(input_size=(64, 64), num_classes=10)
    return model, (torch.rand(2, 3, 64, 64),), {}


def cases() -> list[Case]:
    """One case per builder; where a model differs between eval and training (auxiliary heads), both run."""
    found = [Case(f"torchvision/{name}", partial(build, name)) for name in DEFAULT]
    found += [Case(f"torchvision/{name}", partial(build, name, size=32, init_weights=False)) for name in VGG]
    found += [Case(f"torchvision/{name}", partial(build, name), EVAL, FLOAT32, slow=True) for name in LARGE]
    found += [Case(f"torchvision/{name}", partial(build, name, image_size=64), dtypes=FLOAT32) for name in VIT]
    found += [
        Case("torchvision/vit_h_14", partial(build, "vit_h_14", 56, image_size=56), EVAL, FLOAT32, slow=True),
        Case("torchvision/maxvit_t", build_maxvit, note="windows of 2 instead of 7, images of 64"),
    ]
    for prefix in ("", "quantized_"):
        small = {"aux_logits": False, "init_weights": False}
        aux = {"init_weights": False}
        found += [
            Case(f"torchvision/{prefix}googlenet", partial(build, f"{prefix}googlenet", **aux)),
            Case(f"torchvision/{prefix}inception_v3", partial(build, f"{prefix}inception_v3", 80, **small)),
            Case(f"torchvision/{prefix}inception_v3_aux", partial(build, f"{prefix}inception_v3", 299, **aux), TRAIN, FLOAT32),
        ]
    return found
