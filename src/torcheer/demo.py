"""The models of the README. They are defined here so that the demo needs only torch."""

from __future__ import annotations

import math

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
    """A recurrent model of three layers with four passes each; pictures in the docs show it."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.fc(x)
            x = x + 1
            x = x * 2
        return x


class CausalAttention(nn.Module):
    """Attention in which every token looks at itself and the tokens before it, in several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        mixed = self.queries_keys_values(x).view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = mixed.permute(2, 0, 3, 1, 4).unbind(0)
        scores = queries @ keys.transpose(-2, -1) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(-1)
        together: Tensor = self.out((weights @ values).transpose(1, 2).reshape(batch, length, width))
        return together


class DecoderBlock(nn.Module):
    """Attention, then a two-layer MLP for each token, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        changed: Tensor = x + self.mlp(self.norm2(x))
        return changed


class Gpt2(nn.Module):
    """A transformer decoder; by default the smallest GPT-2 (Radford 2019): twelve blocks, 124 million parameters."""

    def __init__(self, vocabulary: int = 50257, length: int = 1024, width: int = 768, heads: int = 12, depth: int = 12) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, vocabulary, bias=False)
        self.scores.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.scores(self.norm(x))
        return scores
