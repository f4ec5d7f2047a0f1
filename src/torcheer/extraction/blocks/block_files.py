"""The names of blocks and of what is in them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_BLOCK = re.compile(r"block-(\d{8,12})-(\d{12,15})-(\d{9,12})\.safetensors", re.ASCII)

LAYERS, LABELS, IDS = "layers/", "labels/", "ids"
SAMPLES = "samples"  # the numbers of samples in the dataset, where they do not come in its order
TOKEN_SAMPLES, TOKEN_POSITIONS = "tokens/samples", "tokens/positions"
TEXTS = "texts/"  # before the name of a column that is texts
ODD = "dtypes"  # in the metadata: the types of columns that safetensors has no name for
FORMAT = {"format": "torcheer features"}


class BlockName(NamedTuple):
    """Which block a file is, and which samples are in it."""

    number: int
    first: int
    samples: int

    @property
    def file(self) -> str:
        return f"block-{self.number:08d}-{self.first:012d}-{self.samples:09d}.safetensors"


def blocks_among(names: Iterable[str]) -> list[BlockName]:
    """The blocks that file names are of, in order."""
    found = (_BLOCK.fullmatch(name) for name in names)
    blocks = {BlockName(int(match[1]), int(match[2]), int(match[3])): match[0] for match in found if match is not None}
    return sorted(block for block, name in blocks.items() if block.file == name)  # not with more zeros than it has
