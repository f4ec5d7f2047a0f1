"""torchvision's segmentation, video and optical-flow models."""

from __future__ import annotations

from functools import partial
from unittest import mock

import torch

from .cases import EVAL, FLOAT32, Built, Case

SEGMENTATION = """
    deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50 lraspp_mobilenet_v3_large
""".split()


def segmentation(name: str) -> Built:
    """A segmentation model; the auxiliary head too, where there is one."""
    import torchvision

    aux = {} if name.startswith("lraspp") else {"aux_loss": True}
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=4, **aux)
    return model, (torch.rand(2, 3, 64, 64),), {}


def video(name: str, frames: int = 4, size: int = 32, batch: int = 2) -> Built:
    """A video classifier on a few small frames."""
    import torchvision

    return torchvision.models.get_model(name, num_classes=10), (torch.rand(batch, 3, frames, size, size),), {}


def mvit(name: str) -> Built:
    """The builder's own blocks on a small clip."""
    from torchvision.models.video import mvit

    original = mvit._mvit
    small = {"spatial_size": (64, 64), "temporal_size": 4}
    with mock.patch.object(mvit, "_mvit", lambda **options: original(**{**options, **small})):
        model = getattr(mvit, name)(num_classes=10)
    return model, (torch.rand(2, 3, 4, 64, 64),), {}


def flow(name: str) -> Built:
    """A recurrent optical-flow model, three updates."""
    import torchvision

    images = torch.rand(2, 1, 3, 128, 128) * 2 - 1
    return torchvision.models.get_model(name), (images[0], images[1]), {"num_flow_updates": 3}


def cases() -> list[Case]:
    """One case per builder."""
    found = [Case(f"torchvision/{name}", partial(segmentation, name)) for name in SEGMENTATION]
    found += [Case(f"torchvision/{name}", partial(video, name)) for name in ("r3d_18", "mc3_18", "r2plus1d_18")]
    found += [Case(f"torchvision/{name}", partial(video, name, 4, 32), dtypes=FLOAT32) for name in ("swin3d_t", "swin3d_s")]
    found += [
        Case("torchvision/swin3d_b", partial(video, "swin3d_b"), EVAL, FLOAT32, slow=True),
        Case("torchvision/s3d", partial(video, "s3d", 16, 224, 1), dtypes=FLOAT32, slow=True),
    ]
    found += [Case(f"torchvision/{name}", partial(mvit, name), note="clips of 4×64×64") for name in ("mvit_v1_b", "mvit_v2_s")]
    found += [Case(f"torchvision/{name}", partial(flow, name), dtypes=FLOAT32) for name in ("raft_small", "raft_large")]
    return found
