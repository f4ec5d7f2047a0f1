"""torchvision's detectors, whole, and their backbones.

They need two compiled operators. Where those are not installed, non-maximum suppression is the plain-torch one below, and
`roi_align` is torchvision's own one in Python, uncompiled.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .cases import EVAL, FLOAT32, Built, Case

DETECTORS = """
    fasterrcnn_mobilenet_v3_large_320_fpn fasterrcnn_mobilenet_v3_large_fpn fasterrcnn_resnet50_fpn fasterrcnn_resnet50_fpn_v2
    fcos_resnet50_fpn keypointrcnn_resnet50_fpn maskrcnn_resnet50_fpn maskrcnn_resnet50_fpn_v2
    retinanet_resnet50_fpn retinanet_resnet50_fpn_v2 ssd300_vgg16 ssdlite320_mobilenet_v3_large
""".split()


def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression: the best box, then the best that overlaps none of those kept, and so on."""
    from torchvision.ops import box_iou

    overlaps = box_iou(boxes, boxes) > iou_threshold
    alive = torch.ones(len(boxes), dtype=torch.bool)
    kept = []
    for index in scores.argsort(descending=True, stable=True).tolist():
        if alive[index]:
            kept.append(index)
            alive &= ~overlaps[index]
    return torch.tensor(kept, dtype=torch.int64)


def without_compiled_operators() -> None:
    """Let the detectors run in Python, where the compiled operators are missing."""
    import importlib

    import torchvision.extension

    if not torchvision.extension._has_ops():
        torchvision.ops.boxes.nms = suppress
        roi_align = importlib.import_module("torchvision.ops.roi_align")
        roi_align._roi_align = getattr(roi_align._roi_align, "__wrapped__", roi_align._roi_align)


def detector(name: str) -> Built:
    """A whole detector on two images of different sizes, with targets for its losses."""
    import torchvision

    without_compiled_operators()
    sizes = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 96}
    if "rcnn" in name:
        sizes |= {f"rpn_{when}_nms_top_n_{mode}": 4 for when in ("pre", "post") for mode in ("test", "train")}
        sizes |= {"box_detections_per_img": 3, "box_score_thresh": 0.0, "box_batch_size_per_image": 4}
    else:
        sizes |= {"detections_per_img": 5, "topk_candidates": 20}
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=4, **sizes)
    boxes = torch.tensor([[4.0, 4.0, 30.0, 40.0], [10.0, 12.0, 50.0, 44.0]])
    target = {
        "boxes": boxes,
        "labels": torch.tensor([1, 1]),
        "masks": torch.ones(2, 64, 64, dtype=torch.uint8),
        "keypoints": torch.rand(2, 17, 3) * 20 + 10,
    }
    images = [torch.rand(3, 64, 64), torch.rand(3, 64, 80)]
    return model, (images, [dict(target), dict(target, masks=torch.ones(2, 64, 80, dtype=torch.uint8))]), {}


def resnet_pyramid(name: str) -> Built:
    """A feature-pyramid backbone."""
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return resnet_fpn_backbone(backbone_name=name, weights=None), (torch.rand(2, 3, 64, 64),), {}


def mobilenet_backbone(pyramid: bool) -> Built:
    """MobileNet as a backbone, with and without a pyramid."""
    from torchvision.models.detection import backbone_utils

    model = backbone_utils.mobilenet_backbone(backbone_name="mobilenet_v3_large", weights=None, fpn=pyramid)
    return model, (torch.rand(2, 3, 64, 64),), {}


def cases() -> list[Case]:
    """Every detector, and backbones alone."""
    note = "suppression in plain torch where the compiled operators are missing"
    found = [Case(f"torchvision/{name}", partial(detector, name), dtypes=FLOAT32, note=note) for name in DETECTORS]
    pyramids = ("resnet18", "resnet50", "resnext50_32x4d")
    found += [Case(f"torchvision/pyramid_{name}", partial(resnet_pyramid, name)) for name in pyramids]
    found += [
        Case("torchvision/pyramid_mobilenet_v3_large", partial(mobilenet_backbone, True)),
        Case("torchvision/backbone_mobilenet_v3_large", partial(mobilenet_backbone, False), EVAL),
    ]
    return found
