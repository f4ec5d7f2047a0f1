"""Products of samples, of which there are samples × samples: tile by tile, from a few columns at a time."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .rows import BYTES_READ, Rows


class Prepared(Protocol):
    """Rows that are centred or scaled when they are read."""

    rows: Rows

    def read(self, begin: int, end: int, columns: slice | None = None) -> Tensor: ...


def product_tile(layer: Prepared, begin: int, other: int, size: int, memory: int) -> Tensor:
    """The products of `size` rows from `begin` on with `size` rows from `other` on."""
    count = layer.rows.count
    tile = torch.zeros(min(size, count - begin), min(size, count - other), dtype=torch.float64)
    for columns in layer.rows.column_parts(memory // (2 * BYTES_READ * size)):
        one = layer.read(begin, begin + size, columns)
        tile.addmm_(one, (one if other == begin else layer.read(other, other + size, columns)).T)
    return tile
