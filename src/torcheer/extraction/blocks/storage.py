"""The folder that features are in: files that are there whole or not at all.

Names are relative, without folders. Whoever writes a name twice writes the same bytes, so it does not matter who is first.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...errors import InvalidArgument, NotWritten, UnreadableFile
from ...files import WholeFile, make_folder, read_regular, write_whole
from ...tensor_files import ALIGNED, Place, TensorFile, TensorWriter, write_tensors

_LARGE = 4096  # bytes


class TensorsInWork:
    """A file of tensors that is written piece by piece, and has no name until it is whole.

    Large tensors are aligned as torch's own memory is, so that they can be used without a copy when the file is mapped: the gap
    before them is filled with a tensor of zeros whose name begins with a dot.
    """

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder
        self._file = WholeFile(folder / "block", "block of features", follows=False).__enter__()
        self._writer = TensorWriter(self._file, room)
        self._places: dict[str, Place] = {}
        self.size = 0  # of the tensors so far, in bytes
        self._is_over = False

    def add(self, name: str, tensor: Tensor) -> None:
        """Write one more tensor."""
        if self.size % ALIGNED and tensor.nbytes >= _LARGE:
            filling = torch.zeros(ALIGNED - self.size % ALIGNED, dtype=torch.uint8, device="cpu")
            self._add(f".{len(self._places)}", filling)
        self._add(name, tensor)

    def _add(self, name: str, tensor: Tensor) -> None:
        self._places[name] = place = self._writer.add(tensor)
        self.size = place.end

    def finish(self, name: str, metadata: Mapping[str, str]) -> int:
        """Write the header and give the file its name, replacing an earlier one. Returns its size in bytes."""
        try:
            self._writer.finish(self._places, metadata, closes_up=False)
        except BaseException:
            self.abandon()
            raise
        self._is_over = True
        self._file.path = path = self._folder / name
        self._file.__exit__(None, None, None)
        return path.stat().st_size

    def abandon(self) -> None:
        """Give the file up, unless it is finished."""
        if not self._is_over:
            self._is_over = True
            self._writer.abandon()
            error = OSError("abandoned")
            self._file.__exit__(type(error), error, None)


class Storage(ABC):
    """Files in one folder, wherever that is."""

    location: str  # the folder, for people

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The names of the files, and how many bytes each has. Empty where there is no folder; hidden files are left out."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """What is in a file; None where there is none."""

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return self.read(name) is not None

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, in the place of an earlier one. Makes the folder."""

    @abstractmethod
    def read_tensors(self, name: str) -> TensorFile:
        """Open a file of tensors, which are read when they are asked for. Raises FileNotFoundError where there is none."""

    @abstractmethod
    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write a whole file of tensors, in the place of an earlier one. Makes the folder."""

    @abstractmethod
    def new_tensors(self, room: int) -> TensorsInWork:
        """Begin a file of tensors, which gets its name when it is whole. `room` bytes are left for its header."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file, if it is there."""

    def names(self) -> list[str]:
        """The names of the files, in order."""
        return sorted(self.sizes())


class LocalStorage(Storage):
    """A folder of this machine, or one that is mounted on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = str(folder)
        if os.path.exists(folder) and not os.path.isdir(folder):
            raise InvalidArgument(f"features are written into a folder; {folder} is a file.")

    def sizes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        try:
            entries = list(os.scandir(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return found
        except OSError as error:
            raise UnreadableFile(f"the folder {self.folder} cannot be read: {error.strerror}.") from error
        for entry in entries:
            if not entry.name.startswith("."):
                with contextlib.suppress(OSError):  # deleted since, or a link that leads nowhere
                    found[entry.name] = entry.stat().st_size
        return found

    def read(self, name: str) -> bytes | None:
        try:
            return read_regular(self.folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # a folder or a pipe has that name, or it may not be read
            raise UnreadableFile(f"{self.folder / name} cannot be read: {error.strerror or error}.") from error
        except UnreadableFile as error:
            raise UnreadableFile(f"{self.folder / name} cannot be read: {error}.") from None

    def has(self, name: str) -> bool:
        return os.path.isfile(self.folder / name)

    def write(self, name: str, data: bytes) -> None:
        make_folder(self.folder, "features")
        write_whole(self.folder / name, data, "file of features", follows=False)

    def read_tensors(self, name: str) -> TensorFile:
        path = self.folder / name
        try:
            return TensorFile(path)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UnreadableFile(f"{path} cannot be read: {error.strerror or error}.") from error
        except UnreadableFile as error:
            raise UnreadableFile(f"{path} cannot be read: {error}.") from None

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        make_folder(self.folder, "features")
        write_tensors(self.folder / name, tensors, metadata, "block of features", follows=False)

    def new_tensors(self, room: int) -> TensorsInWork:
        make_folder(self.folder, "features")
        return TensorsInWork(self.folder, room)

    def delete(self, name: str) -> None:
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:  # a folder has that name, or the folder is read-only
            raise NotWritten(f"{self.folder / name} cannot be deleted: {error.strerror or error}.") from error
