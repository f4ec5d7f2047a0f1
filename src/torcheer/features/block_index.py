"""Finds the rows of each column in the blocks of a folder."""

from __future__ import annotations

import contextlib
import json
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._files.tensor_files import TensorFile, enough_memory
from .._text import few
from .._torch.memory import indexed
from ..errors import UnreadableFile
from .data import texts_of_bytes
from .storage import FORMAT, LAYERS, ODD, TEXTS, TOKEN_POSITIONS, TOKEN_SAMPLES, BlockName, Storage, blocks_among

# the number of samples in a file's name must be wrong if it is larger than this and than the file's size in bytes
_MOST_UNSEEN = 1 << 22
_MOST_TEXTS = 1 << 28  # a text column of a block is read only if it has at most this many bytes


def _as_number(text: str) -> int:
    """The number at the end of a name; -1 if it is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1


_OPEN = 64  # at most this many files of an index are kept open


class Piece(NamedTuple):
    """Some rows of a column, stored as one tensor of a file."""

    file: str
    name: str
    rows: int
    shape: tuple[int, ...]  # shape of one row
    dtype: torch.dtype


class Column:
    """The rows of a column, as consecutive pieces."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.starts: list[int] = []
        self.rows = 0
        self.shapes: set[tuple[int, ...]] = set()
        self.dtypes: set[torch.dtype] = set()

    def add(self, piece: Piece) -> None:
        if piece.rows:
            self.pieces.append(piece)
            self.starts.append(self.rows)
            self.rows += piece.rows
            self.shapes.add(piece.shape)
            self.dtypes.add(piece.dtype)

    def between(self, first: int, end: int) -> Iterator[tuple[Piece, int, int]]:
        """Yield the pieces that contain rows `first` to `end`, with the range of rows in each piece."""
        at = bisect_right(self.starts, first) - 1
        while first < end:
            piece, start = self.pieces[at], self.starts[at]
            last = min(end, start + piece.rows)
            yield piece, first - start, last - start
            first, at = last, at + 1


class BlockIndex:
    """The blocks of a folder and their columns. Pickled without its open files."""

    def __init__(self, storage: Storage, layers: Iterable[str]) -> None:
        self.storage = storage
        self._layers = {f"{LAYERS}{name}" for name in layers}  # columns that every block must have
        self.blocks: list[BlockName] = []
        self.samples = 0
        self._columns: dict[str, Column] = {}
        self._texts: dict[str, list[str]] = {}
        self._files: OrderedDict[str, TensorFile] = OrderedDict()
        self.refresh()

    def refresh(self) -> None:
        """Look for new blocks."""
        blocks = blocks_among(self.storage.names())
        if blocks == self.blocks:
            return
        columns: dict[str, Column] = {}
        texts: dict[str, list[str]] = {}
        first: set[str] | None = None
        for block in blocks:
            names = self._read(block, columns, texts)
            first = names if first is None else first
            if names != first or not names >= self._layers:
                odd = sorted((names ^ first) or self._layers - names)
                self._refuse(block, f"its columns are not those of the other blocks: {few(odd, 5)}")
        self.blocks, self._columns, self._texts = blocks, columns, texts
        self.samples = sum(block.samples for block in blocks)

    def column(self, name: str) -> Column:
        return self._columns.get(name) or Column()

    def has(self, name: str) -> bool:
        return name in self._columns or name in self._texts

    def names(self, start: str) -> list[str]:
        """Return the names of the columns that begin with `start`, without this prefix. Includes text columns."""
        return [name.removeprefix(start) for name in (*self._columns, *self._texts) if name.startswith(start)]

    def texts(self, name: str) -> list[str] | None:
        """The texts of a text column; None for other columns."""
        return self._texts.get(name)

    def rows(self, piece: Piece, which: int | slice | Tensor) -> Tensor:
        """Rows of a piece: mapped, or read from a remote file. Do not write to them."""
        if isinstance(which, slice):
            first, end = which.start, which.stop
        elif isinstance(which, int):
            first, end = which, which + 1
        else:
            first, end = (int(which.min()), int(which.max()) + 1) if len(which) else (0, 0)
        size = math.prod(piece.shape) * piece.dtype.itemsize
        with enough_memory(f"{piece.name[:80]!r} in {self.storage.location}"):
            memory = self._file(piece.file).part(piece.name, first * size, end * size)
            found = memory.view(piece.dtype).view(end - first, *piece.shape)
            return found if isinstance(which, slice) else indexed(found, which - first)

    # Reading blocks -------------------------------------------------------------------------------------------------

    def _read(self, block: BlockName, columns: dict[str, Column], texts: dict[str, list[str]]) -> set[str]:
        """Find the columns in a block. Returns their names."""
        file = self._file(block.file)
        if any(file.metadata.get(name) != value for name, value in FORMAT.items()):
            self._refuse(block, "it is not a block of features")
        if block.samples > max(_MOST_UNSEEN, file.size):
            self._refuse(block, f"its name says that it has {block.samples:,} samples, which {file.size:,} bytes cannot hold")
        odd = self._unnamed_dtypes(block, file)
        found: dict[str, dict[int, Piece]] = {}
        for full in file.places:
            name, mark, number = full.rpartition("#")
            if full.startswith("."):
                continue
            if not mark or number != str(_as_number(number)):
                self._refuse(block, f"it has a tensor {full[:80]!r}, which belongs to no column")
            found.setdefault(name, {})[int(number)] = self._piece(block, file, full, odd.get(name))
        for name, pieces in found.items():
            ordered = [piece for _, piece in sorted(pieces.items())]
            if name.startswith(TEXTS):
                self._add_texts(block, file, name, ordered, texts)
                continue
            if sorted(pieces) != list(range(len(pieces))):
                self._refuse(block, f"pieces of {name!r} are missing")
            is_by_token = TOKEN_SAMPLES in found and (name.startswith(LAYERS) or name in (TOKEN_SAMPLES, TOKEN_POSITIONS))
            rows = sum(piece.rows for piece in ordered)
            expected = sum(piece.rows for piece in found[TOKEN_SAMPLES].values()) if is_by_token else block.samples
            if rows != expected:
                self._refuse(block, f"{name!r} has {rows} rows instead of {expected}")
            for piece in ordered:
                columns.setdefault(name, Column()).add(piece)
        return set(found)

    def _piece(self, block: BlockName, file: TensorFile, name: str, odd: torch.dtype | None) -> Piece:
        dtype, shape = file.type_of(name)
        if odd is not None and odd.is_complex and shape[-1:] == (2,) and odd.to_real() == dtype:
            dtype, shape = odd, shape[:-1]
        elif odd is not None:
            if odd.itemsize != dtype.itemsize:
                self._refuse(block, f"the dtype of {name[:80]!r} is invalid")
            dtype = odd
        if not shape:
            self._refuse(block, f"{name[:80]!r} has no rows")
        return Piece(block.file, name, shape[0], shape[1:], dtype)

    def _unnamed_dtypes(self, block: BlockName, file: TensorFile) -> dict[str, torch.dtype]:
        try:
            given = json.loads(file.metadata.get(ODD, "{}"))
            types = {name: getattr(torch, value) for name, value in given.items()}
            if not all(isinstance(value, torch.dtype) for value in types.values()):
                raise TypeError
        except (ValueError, AttributeError, TypeError, RecursionError):
            self._refuse(block, "its dtypes are invalid")
        return types

    def _add_texts(
        self, block: BlockName, file: TensorFile, name: str, pieces: list[Piece], texts: dict[str, list[str]]
    ) -> None:
        is_short = len(pieces) == 1 and math.prod(file.places[pieces[0].name].shape) <= _MOST_TEXTS
        read = texts_of_bytes(bytes(file.bytes(pieces[0].name)), block.samples) if is_short else None
        if read is None:
            self._refuse(block, f"{name!r} is not a list of {block.samples} texts")
        else:
            texts.setdefault(name.removeprefix(TEXTS), []).extend(read)

    def _refuse(self, block: BlockName, what: str) -> Any:
        raise UnreadableFile(f"{block.file} in {self.storage.location} is damaged: {what}.")

    def _file(self, name: str) -> TensorFile:
        found = self._files.get(name)  # read without a lock: if another thread held it, a forked process would wait for ever
        if found is None:
            try:
                found = self._files[name] = self.storage.read_tensors(name)
            except FileNotFoundError:
                raise UnreadableFile(f"{name} in {self.storage.location} is missing: it was deleted or moved.") from None
        with contextlib.suppress(KeyError):  # another thread closed the file
            self._files.move_to_end(name)
        while len(self._files) > _OPEN:
            with contextlib.suppress(KeyError):
                self._files.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_files"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._files = OrderedDict()
