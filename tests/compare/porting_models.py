"""A small decoder written twice, with every kind of mistake that people make when they port one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def rotated(x: Tensor, pairing: str) -> Tensor:
    """Rotary embedding: pairs of neighbours, or of the two halves."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[-2])[:, None] / 100 ** (torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if pairing == "halves":
        first, second = x[..., :half], x[..., half:]
    else:
        first, second = x[..., 0::2], x[..., 1::2]
    turned = first * cos - second * sin, second * cos + first * sin
    return torch.cat(turned, -1)


class Attention(nn.Module):
    """Causal attention, with options for what may go wrong in it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.drop = nn.Dropout(0.1)
        self.pairing = "halves"
        self.has_scale = True
        self.is_fused = False
        self.head_order: list[int] | None = None

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = rotated(q, self.pairing), rotated(k, self.pairing)
        if self.head_order is not None:
            q = q[:, self.head_order]
        if self.is_fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-2, -1)
            if self.has_scale:
                scores = scores / math.sqrt(q.shape[-1])
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            mixed = self.drop(scores.masked_fill(later, -math.inf).softmax(-1)) @ v
        return self.o(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a feed-forward part, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Decoder(nn.Module):
    """Eight blocks."""

    def __init__(self, width: int = 32, heads: int = 4, depth: int = 8) -> None:
        super().__init__()
        self.tokens = nn.Embedding(50, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 50, bias=False)
        self.skipped: int | None = None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for place, block in enumerate(self.blocks):
            if place != self.skipped:
                x = block(x)
        return self.head(self.norm(x))


class Refactored(nn.Module):
    """The same decoder as one module: fused projection, scale applied to the queries, norms and activation written out."""

    def __init__(self, like: Decoder) -> None:
        super().__init__()
        self.heads = like.blocks[0].attention.heads
        self.embedding = nn.Parameter(like.tokens.weight.detach().clone())
        self.layers = nn.ModuleList()
        for block in like.blocks:
            layer = nn.Module()
            attention = block.attention
            layer.qkv = nn.Parameter(torch.cat([attention.q.weight, attention.k.weight, attention.v.weight]).detach())
            layer.qkv_bias = nn.Parameter(torch.cat([attention.q.bias, attention.k.bias, attention.v.bias]).detach())
            layer.out, layer.fc1, layer.fc2 = attention.o, block.up, block.down
            layer.ln1, layer.ln2 = block.norm1, block.norm2
            self.layers.append(layer)
        self.final, self.scores = like.norm, like.head
        self.eps = 1e-5

    def written_out_norm(self, x: Tensor, norm: nn.LayerNorm) -> Tensor:
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).pow(2).mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * norm.weight + norm.bias

    def forward(self, ids: Tensor) -> Tensor:
        x = F.embedding(ids, self.embedding)
        batch, length, width = x.shape
        mask = torch.full((length, length), -1e9).triu(1)
        for layer in self.layers:
            mixed = F.linear(self.written_out_norm(x, layer.ln1), layer.qkv, layer.qkv_bias)
            q, k, v = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            q, k = rotated(q, "halves") * (q.shape[-1] ** -0.5), rotated(k, "halves")
            weights = torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) + mask, dim=-1)
            x = x + layer.out(torch.einsum("bhij,bhjd->bihd", weights, v).reshape(batch, length, width))
            hidden = layer.fc1(self.written_out_norm(x, layer.ln2))
            x = x + layer.fc2(0.5 * hidden * (1 + torch.erf(hidden / math.sqrt(2))))
        return self.scores(self.written_out_norm(x, self.final))
