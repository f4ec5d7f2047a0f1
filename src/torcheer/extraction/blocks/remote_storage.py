"""Folders of features that are elsewhere: whatever `fsspec` opens, such as `s3://…`, `gs://…`, `sftp://…`, `memory://…`.

A file is there whole or not at all. It is made in a temporary file of this machine and then sent. An object store shows an
object when its last byte has arrived, so there it is sent under its name. Where half a file could be seen (SFTP, SMB, HDFS) it
is sent under a hidden name, and renamed when it is whole.

Tensors are read by ranges of bytes: a few rows of a layer do not need the block they are in.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import InvalidArgument, UnreadableFile
from ...tensor_files import TensorFile, write_tensors
from .storage import Storage, TensorsInWork

_SHOWS_WHOLE = frozenset(
    "s3 s3a gs gcs az abfs abfss adl oss obs cos r2 tos hf memory".split()
)  # and what else is an object store
_AT_FIRST = 1 << 16  # bytes that are read of a file to see what is in it


class RemoteStorage(Storage):
    """Files in one folder that `fsspec` opens."""

    def __init__(self, url: str) -> None:
        self.location = url.rstrip("/")
        self._process = 0
        self._opened: Any = None
        self._open()
        try:
            is_file = self._files.isfile(self._root)
        except OSError:
            raise
        except Exception as error:  # each library has errors of its own: no credentials, no such host
            raise InvalidArgument(f"{url} cannot be reached: {type(error).__name__}: {error}") from error
        if is_file:
            raise InvalidArgument(f"features are written into a folder; {url} is a file.")

    def _open(self) -> None:
        import fsspec  # comes with torch; imported when a URL is given

        try:
            self._opened, self._root = fsspec.core.url_to_fs(self.location)
        except (ImportError, ValueError) as error:  # a protocol that is not known, or whose library is missing
            raise InvalidArgument(f"{self.location} cannot be opened: {error}.") from error
        self._process = os.getpid()

    @property
    def _files(self) -> Any:
        """The file system; another one in a process that was forked, where the connections of this one are not to be used."""
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
        """How many bytes a file has. Raises FileNotFoundError where there is none."""
        self._files.invalidate_cache()
        return int(self._files.size(self._path(name)))

    def read_range(self, name: str, begin: int, end: int) -> bytes:
        """Bytes of a file, from a place to another."""
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
        """Send a file of this machine; it keeps its name."""
        if "memory" in self._protocols:  # opened to be written to, a file would be there at once
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
            except OSError:  # some do not rename in the place of another file
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
    """A file of tensors that is made in a temporary folder of this machine, and sent when it is whole."""

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
    """A file of tensors that is elsewhere. Each tensor, or part of one, is read when it is asked for."""

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
