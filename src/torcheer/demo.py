"""The models of the README, so that the demo needs nothing but torch."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class AlexNet(nn.Module):
    """Five convolutions and three fully connected layers, for 224×224 pictures (Krizhevsky 2014)."""

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        super().__init__()
        stages: list[nn.Module] = []
        channels = 3
        # width, kernel, stride, padding, pooled afterwards
        for width, kernel, stride, padding, pooled in (
            (64, 11, 4, 2, True),
            (192, 5, 1, 2, True),
            (384, 3, 1, 1, False),
            (256, 3, 1, 1, False),
            (256, 3, 1, 1, True),
        ):
            stages += [nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU(inplace=True)]
            if pooled:
                stages.append(nn.MaxPool2d(kernel_size=3, stride=2))
            channels = width
        self.features = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(channels * 6 * 6, 4096),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            nn.ReLU(inplace=True),
            nn.Linear(4096, num_classes),
        )

    def forward(self, pictures: Tensor) -> Tensor:
        features: Tensor = self.avgpool(self.features(pictures))
        scores: Tensor = self.classifier(torch.flatten(features, 1))
        return scores


class SimpleRecurrent(nn.Module):
    """Three layers, four passes each: the recurrent model of the pictures."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.fc(x)
            x = x + 1
            x = x * 2
        return x
