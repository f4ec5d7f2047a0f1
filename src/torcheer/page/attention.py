"""Attention patterns for the page: for the first sample, a small map per head with eight bits per pixel."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from .._torch.measure import real, short
from ..analysis.attention import Attention, AttentionPart, attention_of, is_attention
from ..errors import TorcheerError
from ..graph import Node
from ..log.operation import OperationFacts
from ..log.run import Index
from .document import packed
from .schema import Plain, lean

_SIDES = (48, 40, 32, 24, 16)  # possible sides of a map, in pixels
_HEADS = (64, 32, 16, 8, 4, 2, 1)  # possible numbers of heads shown per attention
_PIXELS = 160_000  # the maps of a page have at most this many pixels together
_READ = 4  # one row of pixels averages at most this many queries
_MOST_SCORES = 1 << 27  # an attention has no map if more scores than this would have to be computed


@dataclass(frozen=True, slots=True)
class _Planned:
    plain: Plain
    attention: Attention

    def pixels(self, side: int, heads: int) -> int:
        _, count, queries, keys = self.attention.shape
        return min(count, heads) * min(queries, side) * min(keys, side)


def add_patterns(index: Index, nodes: tuple[Node, ...], plains: list[Plain], room: int) -> tuple[int, int]:
    """Add the patterns of every attention whose activations were kept, as long as they fit into `room` bytes of a page.

    Returns the bytes they take, and the number of attentions left out.
    """
    planned = [found for node, plain in zip(nodes, plains, strict=True) if (found := _planned(index, node, plain)) is not None]
    side, heads = _fitting(planned)
    taken = drawn = left_out = 0
    for one in planned:
        drawn += one.pixels(side, heads)
        made = _patterns(one.attention, side, heads) if drawn <= _PIXELS and taken < room else None
        size = len(packed(json.dumps(made).encode()))
        if made is None or taken + size > room:
            left_out += 1
            continue
        taken += size
        one.plain["attention"] = made
    return taken, left_out


def _planned(index: Index, node: Node, plain: Plain) -> _Planned | None:
    if not node.operations:
        return None
    operation = OperationFacts(index, node.operations[0])
    try:
        found = attention_of(operation) if is_attention(operation) else None
    except TorcheerError:  # an activation that the attention needs was not kept, or changed since
        return None
    if found is None or operation.tensor_contents.is_meta:
        return None
    return _Planned(plain, found) if min(found.shape) > 0 and max(found.shape[2:]) > 1 else None


def _fitting(planned: list[_Planned]) -> tuple[int, int]:
    """Choose the side of the maps and the number of heads, so that all maps fit into a page."""
    sizes = [(side, _HEADS[0]) for side in _SIDES] + [(_SIDES[-1], heads) for heads in _HEADS[1:]]
    fitting = (size for size in sizes if sum(one.pixels(*size) for one in planned) <= _PIXELS)
    return next(fitting, sizes[-1])


def _patterns(attention: Attention, side: int, heads: int) -> Plain | None:
    samples, count, queries, keys = attention.shape
    height, width = min(queries, side), min(keys, side)
    step = max(1, queries // (height * _READ))
    if count * (queries // step) * keys > _MOST_SCORES:
        return None
    try:
        pattern = real(attention.heads(AttentionPart(is_first_only=True, step=step)).pattern[0, :heads]).nan_to_num(0).cpu()
    except TorcheerError:  # the tensors of the attention do not fit together: a saved file may say anything
        return None
    maps = _summed(pattern, queries, step, height, width).clamp_(min=0)
    high = float(maps.max())
    codes = (maps / high).sqrt_().mul_(255).round_().to(torch.uint8) if high > 0 else maps.to(torch.uint8)
    return lean(
        "attention",
        {
            "heads": count,
            "shown": maps.shape[0],
            "queries": queries,
            "keys": keys,
            "width": width,
            "height": height,
            "data": base64.b64encode(bytes(codes.flatten().tolist())).decode(),
            "high": short(high),
            "samples": samples,
        },
    )


def _summed(pattern: Tensor, queries: int, step: int, height: int, width: int) -> Tensor:
    """Averages neighbouring queries into rows and sums neighbouring keys into columns, so that rows still sum to 1."""
    rows = [-(-edge // step) for edge in _edges(queries, height)]
    columns = _edges(pattern.shape[-1], width)
    by_keys = torch.stack([pattern[..., a:b].sum(-1) for a, b in pairwise(columns)], -1)
    return torch.stack([by_keys[:, a:b].mean(1) for a, b in pairwise(rows)], 1)


def _edges(size: int, count: int) -> list[int]:
    return [at * size // count for at in range(count + 1)]
