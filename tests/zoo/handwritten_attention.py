"""Attention and routing: by hand and from the library, mixtures of experts, capsules, slots."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import Buffer, made_with

from .cases import Case


class HandAttention(nn.Module):
    """Causal multi-head attention with rotary positions, written out."""

    def __init__(self, size: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(size, 3 * size), nn.Linear(size, size)

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        frequency = 1.0 / 100 ** (torch.arange(half) / half)
        angle = torch.outer(torch.arange(x.shape[-2]), frequency).to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, size = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = self.rotate(q) @ self.rotate(k).transpose(-2, -1) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
        weights = F.dropout(scores.softmax(-1), 0.1, self.training)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, size)), weights


@made_with(q=lambda: nn.Linear(8, 8), kv=lambda: nn.Linear(8, 8), bias=lambda: nn.Parameter(torch.randn(5, 5)))
def FusedAttention(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Grouped queries through `scaled_dot_product_attention`, with a bias and causally."""
    q = self.q(x).unflatten(-1, (4, 2)).transpose(1, 2)
    k, v = self.kv(x).unflatten(-1, (4, 2)).transpose(1, 2).chunk(2, 1)
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    causal = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    biased = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias, dropout_p=0.1 if self.training else 0.0)
    return causal, biased


@made_with(embed=lambda: nn.Embedding(11, 8), qkv=lambda: nn.Linear(8, 24), out=lambda: nn.Linear(8, 11))
def CachedDecoder(self, token: Tensor) -> Tensor:
    """Decodes greedily with a cache written into a buffer made in advance."""
    cache = self.embed.weight.new_zeros(2, len(token), 6, 8)
    tokens = [token]
    for position in range(6):
        q, k, v = self.qkv(self.embed(tokens[-1])).chunk(3, -1)
        cache[0, :, position] = k
        cache[1, :, position] = v
        keys, values = cache[:, :, : position + 1].unbind(0)
        weights = torch.einsum("bd,btd->bt", q, keys).softmax(-1)
        tokens.append(self.out(torch.einsum("bt,btd->bd", weights, values)).argmax(-1))
    return torch.stack(tokens, 1)


@made_with(attention=lambda: nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True, add_bias_kv=True, kdim=6, vdim=6))
def MultiheadAttention(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """The library's attention with a key mask and returned weights."""
    hidden = torch.zeros(memory.shape[:2], dtype=torch.bool)
    hidden[0, -1] = True
    return self.attention(x, memory, memory, key_padding_mask=hidden, average_attn_weights=False)


class PaddedEncoder(nn.Module):
    """The library's encoder with padding: its fused path in eval mode uses nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.zeros(x.shape[:2], dtype=torch.bool)
        hidden[0, 3:] = True
        return self.encoder(x, src_key_padding_mask=hidden)


@made_with(
    router=lambda: nn.Linear(6, 4),
    experts=lambda: nn.ModuleList(nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6)) for _ in range(4)),
)
def TopKExperts(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """A mixture of experts: each token goes to its two best, by indexing, with a balance loss."""
    p = self.router(x).softmax(-1)
    weights, chosen = p.topk(2, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    out = torch.zeros_like(x)
    for number, expert in enumerate(self.experts):
        token, place = (chosen == number).nonzero(as_tuple=True)
        if len(token):
            out[token] += weights[token, place, None] * expert(x[token])
    load = F.one_hot(chosen, 4).to(p.dtype).mean((0, 1))
    return out, (load * p.mean(0)).sum() * 4


@made_with(router=lambda: nn.Linear(6, 3), weight=lambda: nn.Parameter(torch.randn(3, 6, 6) / 3))
def SwitchExperts(self, x: Tensor) -> Tensor:
    """A mixture of experts in one batched product: tokens sorted, a capacity, the rest dropped."""
    p, chosen = self.router(x).softmax(-1).max(-1)
    one_hot = F.one_hot(chosen, 3)
    place = (one_hot.cumsum(0) * one_hot).sum(-1) - 1
    keep = place < 4
    slots = x.new_zeros(3, 4, 6).index_put((chosen[keep], place[keep]), x[keep])
    done = torch.bmm(slots, self.weight)
    return torch.where(keep[:, None], done[chosen, place.clamp(max=3)] * p[:, None], x)


class Capsules(nn.Module):
    """Dynamic routing between capsules."""

    def __init__(self) -> None:
        super().__init__()
        self.primary, self.weight = nn.Conv2d(1, 8, 5, stride=2), nn.Parameter(torch.randn(1, 18, 3, 6, 4) * 0.1)

    @staticmethod
    def squash(x: Tensor) -> Tensor:
        norm = x.pow(2).sum(-1, keepdim=True)
        return x * norm / (1 + norm) / (norm + 1e-8).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.primary(x).view(len(x), -1, 4))
        votes = (self.weight @ u[:, :, None, :, None]).squeeze(-1)
        logits = votes.new_zeros(votes.shape[:3])
        for step in range(3):
            coupling = logits.softmax(-1)[..., None]
            v = self.squash((coupling * votes).sum(1))
            if step < 2:
                logits = logits + (votes.detach() * v[:, None]).sum(-1)
        return v.norm(dim=-1)


class Slots(nn.Module):
    """Slot attention: random slots compete for the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_scale = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.zeros(1, 1, 6))
        self.q, self.k, self.v = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.gru, self.norm = nn.GRUCell(6, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        slots = self.mean + self.log_scale.exp() * torch.randn(len(x), 3, 6, dtype=x.dtype)
        k, v = self.k(self.norm(x)), self.v(x)
        for _ in range(3):
            share = torch.einsum("bsd,btd->bst", self.q(self.norm(slots)), k).softmax(1) + 1e-6
            updates = torch.einsum("bst,btd->bsd", share / share.sum(-1, keepdim=True), v)
            slots = self.gru(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


@made_with(qkv=lambda: nn.Linear(6, 18), features=lambda: Buffer(torch.randn(6, 10)))
def LinearAttention(self, x: Tensor) -> tuple[Tensor, Tensor]:
    """Causal linear attention by cumulative sums, and random features."""
    q, k, v = self.qkv(x).chunk(3, -1)
    fq, fk = F.elu(q) + 1, F.elu(k) + 1
    state = torch.einsum("btd,bte->btde", fk, v).cumsum(1)
    causal = torch.einsum("btd,btde->bte", fq, state) / torch.einsum("btd,btd->bt", fq, fk.cumsum(1))[..., None]
    rq, rk = (q @ self.features).exp(), (k @ self.features).exp()
    return causal, (rq @ (rk.mT @ v)) / (rq @ rk.sum(1)[..., None])


@made_with(
    table=lambda: nn.Parameter(torch.randn(7, 2)),
    offsets=lambda: Buffer(torch.arange(4)[:, None] - torch.arange(4) + 3, persistent=False),
    qkv=lambda: nn.Linear(8, 24),
)
def WindowAttention(self, x: Tensor) -> Tensor:
    """Attention in windows cut out with `unfold`, shifted with `roll`, with relative positions from a table."""
    x = x.roll(-2, 1)
    windows = x.unfold(1, 4, 4).transpose(2, 3)
    q, k, v = self.qkv(windows).unflatten(-1, (3, 2, 4)).permute(3, 0, 1, 4, 2, 5)
    bias = self.table[self.offsets].permute(2, 0, 1)
    out = ((q @ k.mT) / 2 + bias).softmax(-1) @ v
    return out.transpose(2, 3).reshape(x.shape).roll(2, 1)


class Mixer(nn.Module):
    """A token and channel mixer by einsum, with gated units."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.channels = nn.Parameter(torch.randn(9, 9) / 3), nn.Parameter(torch.randn(12, 12) / 3)
        self.patches, self.norm, self.head = nn.Conv2d(3, 12, 4, stride=4), nn.LayerNorm(12), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.einsum("bchw->bhwc", self.patches(x)).flatten(1, 2)
        x = x + torch.einsum("btc,ts->bsc", self.norm(x), self.tokens)
        gate, value = torch.einsum("btc,cd->btd", self.norm(x), self.channels).chunk(2, -1)
        return self.head(F.pad(F.silu(gate) * value, (0, 6)).mean(1))


def cases() -> list[Case]:
    """Attention and routing on a handful of tokens."""

    def case(name: str, model: Any, *shapes: tuple[int, ...], **options: Any) -> Case:
        return Case(f"handwritten/{name}", lambda: (model(), tuple(torch.randn(shape) for shape in shapes), {}), **options)

    def layer(**options: Any) -> nn.Module:
        return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)

    return [
        case("attention_by_hand", HandAttention, (2, 5, 8)),
        case("attention_fused", FusedAttention, (2, 5, 8)),
        Case("handwritten/decoder_with_cache", lambda: (CachedDecoder(), (torch.tensor([3, 5]),), {})),
        case("multihead_attention", MultiheadAttention, (2, 5, 8), (2, 4, 6)),
        case("transformer_encoder_layer", layer, (2, 5, 8)),
        case(
            "transformer_encoder",
            lambda: nn.TransformerEncoder(layer(norm_first=True), 2, enable_nested_tensor=False),
            (2, 5, 8),
        ),
        case("transformer_encoder_padded", PaddedEncoder, (2, 5, 8)),
        case(
            "transformer_decoder", lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16), 2), (5, 2, 8), (4, 2, 8)
        ),
        case("transformer", lambda: nn.Transformer(8, 2, 1, 1, 16, batch_first=True), (2, 5, 8), (2, 4, 8)),
        case("experts_by_indexing", TopKExperts, (10, 6)),
        case("experts_with_capacity", SwitchExperts, (10, 6)),
        case("capsule_routing", Capsules, (2, 1, 9, 9)),
        case("slot_attention", Slots, (2, 7, 6)),
        case("linear_attention", LinearAttention, (2, 5, 6)),
        case("window_attention", WindowAttention, (2, 12, 8)),
        case("mixer", Mixer, (2, 3, 12, 12)),
    ]
