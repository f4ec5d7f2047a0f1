"""Stores features in a folder, local or remote: names of blocks and columns, and whole files."""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import secrets
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._files.files import WholeFile, delete_unfinished, is_link, make_folder, read_regular, write_whole
from .._files.tensor_files import ALIGNED, Place, TensorFile, TensorWriter, write_tensors
from .._torch.inputs import described
from ..errors import InvalidArgument, NotWritten, UnreadableFile

_BLOCK = re.compile(r"block-(\d{8,12})-(\d{12,15})-(\d{9,12})\.safetensors", re.ASCII)

LAYERS, LABELS, IDS = "layers/", "labels/", "ids"
# name of the column with the samples' numbers in the dataset; it exists only if samples do not come in the dataset's order
SAMPLES = "samples"
TOKEN_SAMPLES, TOKEN_POSITIONS = "tokens/samples", "tokens/positions"
TEXTS = "texts/"  # prefix of the name of a text column
ODD = "dtypes"  # key of the metadata for the dtypes of columns that safetensors has no name for
FORMAT = {"format": "torcheer features"}


class BlockName(NamedTuple):
    """The name of a block's file: its number, its first sample, and its number of samples."""

    number: int
    first: int
    samples: int

    @property
    def file(self) -> str:
        return f"block-{self.number:08d}-{self.first:012d}-{self.samples:09d}.safetensors"


def blocks_among(names: Iterable[str]) -> list[BlockName]:
    """The blocks among file names, in order."""
    found = (_BLOCK.fullmatch(name) for name in names)
    blocks = {BlockName(int(match[1]), int(match[2]), int(match[3])): match[0] for match in found if match is not None}
    return sorted(block for block, name in blocks.items() if block.file == name)  # leaves out names with extra zeros


# A folder of features, whose files are written whole or not at all.
#
# Names are relative, without folders. Two processes that write the same name write the same bytes, so their order does not
# matter.

_LARGE = 4096  # a tensor is aligned if it has at least this many bytes


class TensorsInWork:
    """A file of tensors that is written piece by piece, and gets its name when it is complete.

    Large tensors are aligned like torch's own memory, so that the mapped file can be used without a copy: the gap before
    them is filled by a tensor of zeros whose name begins with a dot.
    """

    def __init__(self, folder: Path, room: int) -> None:
        self._folder = folder
        self._file = WholeFile(folder / "block", "block of features", follows=False).__enter__()
        self._writer = TensorWriter(self._file, room)
        self._places: dict[str, Place] = {}
        self.size = 0  # number of bytes of the tensors so far
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
        """Write the header and give the file its name, replacing an existing file. Returns its size in bytes."""
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
        """Delete the unfinished file; does nothing if it is finished."""
        if not self._is_over:
            self._is_over = True
            self._writer.abandon()
            error = OSError("abandoned")
            self._file.__exit__(type(error), error, None)


class Storage(ABC):
    """The files in one folder, local or remote."""

    location: str  # the folder, as text for messages

    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The names of the files and their sizes in bytes. Empty if there is no folder; hidden files are left out."""

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is no such file."""

    def has(self, name: str) -> bool:
        """True if there is a file of this name."""
        return self.read(name) is not None

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a whole file, replacing an existing one. Makes the folder."""

    @abstractmethod
    def read_tensors(self, name: str) -> TensorFile:
        """Open a file of tensors, which are read when accessed. Raises FileNotFoundError if there is no such file."""

    @abstractmethod
    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write a whole file of tensors, replacing an existing one. Makes the folder."""

    @abstractmethod
    def new_tensors(self, room: int) -> TensorsInWork:
        """Begin a file of tensors, which gets its name when it is complete. `room` bytes are reserved for its header."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a file, if it exists."""

    def clean_up(self) -> None:  # noqa: B027 - a remote folder has no unfinished files
        """Delete what killed processes left half-written."""

    def names(self) -> list[str]:
        """The names of the files, in order."""
        return sorted(self.sizes())


class LocalStorage(Storage):
    """A local or mounted folder."""

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
                with contextlib.suppress(OSError):  # the file was deleted meanwhile, or is a dead link
                    found[entry.name] = entry.stat().st_size
        return found

    def read(self, name: str) -> bytes | None:
        try:
            return read_regular(self.folder / name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:  # the name is a folder or a pipe, or the file is unreadable
            raise UnreadableFile(f"{self.folder / name} cannot be read: {error.strerror or error}.") from error
        except UnreadableFile as error:
            raise UnreadableFile(f"{self.folder / name} cannot be read: {error}.") from None

    def clean_up(self) -> None:
        if not is_link(self.folder):
            delete_unfinished(self.folder, r"block|(block|reduced)-.*|(plan|end)\.json", abandoned=True)

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
        except OSError as error:  # the name is a folder, or the folder is read-only
            raise NotWritten(f"{self.folder / name} cannot be deleted: {error.strerror or error}.") from error


# Remote folders: everything that `fsspec` opens, such as `s3://…`, `gs://…`, `sftp://…`, `memory://…`.
#
# A file is written whole or not at all. It is made in a local temporary file and then sent. An object store shows an object
# only when its last byte has arrived, so there it is sent under its name. Other systems (SFTP, SMB, HDFS) could show half a
# file, so there it is sent under a hidden name and renamed at the end.
#
# Tensors are read by byte ranges: reading a few rows of a layer does not read the whole block.

_SHOWS_WHOLE = frozenset("s3 s3a gs gcs az abfs abfss adl oss obs cos r2 tos hf memory".split())  # protocols of object stores
_AT_FIRST = 1 << 16  # this many bytes are read first from a file; they usually contain the whole header


class RemoteStorage(Storage):
    """A folder that `fsspec` opens, with its files."""

    def __init__(self, url: str) -> None:
        self.location = url.rstrip("/")
        self._process = 0
        self._opened: Any = None
        self._open()
        try:
            is_file = self._files.isfile(self._root)
        except OSError:
            raise
        except Exception as error:  # each library has its own errors: no credentials, no such host
            raise InvalidArgument(f"{url} cannot be reached: {type(error).__name__}: {error}") from error
        if is_file:
            raise InvalidArgument(f"features are written into a folder; {url} is a file.")

    def _open(self) -> None:
        import fsspec  # comes with torch; imported when a URL is given

        try:
            self._opened, self._root = fsspec.core.url_to_fs(self.location)
        except (ImportError, ValueError) as error:  # an unknown protocol, or a missing library
            raise InvalidArgument(f"{self.location} cannot be opened: {error}.") from error
        self._process = os.getpid()

    @property
    def _files(self) -> Any:
        """The file system. A forked process opens its own, because it must not use its parent's connections."""
        if self._process != os.getpid():
            self._open()
        return self._opened

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    # Reading --------------------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        self._files.invalidate_cache()
        try:
            entries = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        named = [(one["name"].rstrip("/").rpartition("/")[2], one) for one in entries]
        return {name: one["size"] or 0 for name, one in named if one["type"] == "file" and not name.startswith(".")}

    def read(self, name: str) -> bytes | None:
        try:
            return bytes(self._files.cat_file(self._path(name)))
        except FileNotFoundError:
            return None

    def read_tensors(self, name: str) -> TensorFile:
        try:
            return RemoteTensorFile(self, name)
        except UnreadableFile as error:
            raise UnreadableFile(f"{self.location}/{name} cannot be read: {error}.") from None

    def size(self, name: str) -> int:
        """The size of a file in bytes. Raises FileNotFoundError if there is no such file."""
        self._files.invalidate_cache()
        return int(self._files.size(self._path(name)))

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Read a range of bytes of a file."""
        return bytes(self._files.cat_file(self._path(name), start=begin, end=end))

    # Writing --------------------------------------------------------------------------------------------------------

    def write(self, name: str, data: bytes) -> None:
        self._send(name, lambda path: self._files.pipe_file(path, data))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix="torcheer-") as folder:
            path = Path(folder) / name
            write_tensors(path, tensors, metadata, "block of features")
            self.send_file(path)

    def new_tensors(self, room: int) -> TensorsInWork:
        return RemoteTensorsInWork(self, room)

    def send_file(self, path: Path) -> None:
        """Send a local file under its own name."""
        if "memory" in self._protocols:  # a memory file opened for writing would be visible at once
            self.write(path.name, path.read_bytes())
        else:
            self._send(path.name, lambda target: self._files.put_file(str(path), target))

    @property
    def _protocols(self) -> set[str]:
        given = self._files.protocol
        return {given} if isinstance(given, str) else set(given)

    def _send(self, name: str, send: Any) -> None:
        files, path = self._files, self._path(name)
        if self._protocols & _SHOWS_WHOLE:
            send(path)
            return
        hidden = self._path(f".{name}.{secrets.token_hex(6)}")
        files.makedirs(self._root, exist_ok=True)
        try:
            send(hidden)
            try:
                files.mv(hidden, path)
            except OSError:  # some systems do not rename over an existing file
                if not files.exists(path):
                    raise
                files.rm_file(path)
                files.mv(hidden, path)
        except BaseException:
            with contextlib.suppress(Exception):
                files.rm_file(hidden)
            raise

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def __getstate__(self) -> dict[str, Any]:
        return {"location": self.location}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.location = state["location"]
        self._open()


class RemoteTensorsInWork(TensorsInWork):
    """A file of tensors that is made in a local temporary folder, and sent when it is complete."""

    def __init__(self, storage: RemoteStorage, room: int) -> None:
        self._storage = storage
        folder = Path(tempfile.mkdtemp(prefix="torcheer-"))
        try:
            super().__init__(folder, room)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def finish(self, name: str, metadata: Mapping[str, str]) -> int:
        try:
            size = super().finish(name, metadata)
            self._storage.send_file(self._folder / name)
            return size
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        super().abandon()
        shutil.rmtree(self._folder, ignore_errors=True)


class RemoteTensorFile(TensorFile):
    """A remote file of tensors. Each tensor, or part of it, is read when accessed."""

    def __init__(self, storage: RemoteStorage, name: str) -> None:
        self._storage, self._name = storage, name
        size = storage.size(name)
        start = storage.read_range(name, 0, min(size, _AT_FIRST))

        def read(begin: int, end: int) -> bytes:
            return start[begin:end] if end <= len(start) else start[begin:] + storage.read_range(name, len(start), end)

        self._read_header(start[:8], read, size)

    def bytes(self, name: str) -> memoryview:
        place = self._place(name)
        return memoryview(self._read(place.begin, place.end))

    def memory(self, name: str) -> Tensor:
        found = self._memory.get(name)
        if found is None:
            place = self._place(name)
            found = self.part(name, 0, place.end - place.begin)
            self._memory.keep(name, found)
        return found

    def part(self, name: str, begin: int, end: int) -> Tensor:
        first = self._place(name).begin
        found = torch.empty(end - begin, dtype=torch.uint8, device="cpu")
        if end > begin:
            found.copy_(torch.frombuffer(bytearray(self._read(first + begin, first + end)), dtype=torch.uint8))
        return found

    def _read(self, begin: int, end: int) -> builtins.bytes:
        if begin == end:
            return b""
        data = self._storage.read_range(self._name, self._begin + begin, self._begin + end)
        if len(data) != end - begin:
            raise UnreadableFile(f"{self._storage.location}/{self._name} cannot be read: it was cut while it was being read.")
        return data


# Chooses the storage: a local folder, or a URL that `fsspec` opens.

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(::|://)")
_HERE = re.compile(r"(file|local)://", re.IGNORECASE)


def open_storage(folder: str | os.PathLike[str]) -> Storage:
    """The storage for a path or URL."""
    if not isinstance(folder, (str, os.PathLike)) or not str(folder):
        raise InvalidArgument(f"a folder is given by its path or URL; got {described(folder)}.")
    text = str(folder)
    if (here := _HERE.match(text)) is not None:
        return LocalStorage(Path(text[here.end() :]))
    return RemoteStorage(text) if _URL.match(text) else LocalStorage(Path(folder))
