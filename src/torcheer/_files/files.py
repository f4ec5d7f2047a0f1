"""Writes whole files or none, checks paths and their endings, and opens files of unknown origin."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import FolderNotFound, InvalidArgument, NotWritten, UnreadableFile

_SAME = {"gv": "dot", "htm": "html", "jpeg": "jpg", "tiff": "tif", "text": "txt"}
_KNOWN = frozenset(
    "svg png pdf tex dot gif webp jpg bmp tif eps ps "  # pictures
    "html css js json jsonl csv tsv xml yaml xls xlsx parquet md py ipynb "
    "npy npz pt pth pkl safetensors onnx zarr gz bz2 xz zip tar mp4 webm".split()
)


def kind_of(path: str | os.PathLike[str], forms: Collection[str] = ()) -> str:
    """The kind of file that the ending of a path names, such as "html" for `page.HTM`; empty if neither known nor in `forms`.

    >>> kind_of("page.HTM"), kind_of("model.v2")
    ('html', '')
    """
    ending = Path(path).suffix.removeprefix(".").lower()
    kind = _SAME.get(ending, ending)
    return kind if kind in _KNOWN or kind in forms else ""


def check_ending(path: Any, kind: str, what: str) -> None:
    """Raise if the ending of a path names another kind of file than `kind`."""
    if isinstance(path, (str, os.PathLike)) and (named := kind_of(path)) and named != kind:
        raise InvalidArgument(f"the {what} is written as .{kind}, and {str(path)!r} has the ending of another kind of file.")


def form_of(target: Any, given: Any, forms: Collection[str], what: str, default: str | None = None) -> str:
    """The format of a file: `given`, else the ending of the path, else `default`.

    Raises if it is not among `forms`, or if `given` and the ending contradict each other.

    >>> form_of("model.svg", None, ("svg", "png"), "picture")
    'svg'
    """
    if given is not None:
        form = check_form(given, forms, what)
    path = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    named = kind_of(path, forms) if isinstance(path, (str, os.PathLike)) else ""
    if given is not None and named in ("", form):
        return form
    if given is not None:
        raise InvalidArgument(
            f"format={given!r} and the ending of {str(path)!r} contradict each other. Leave format out, or give a path "
            f"that ends with .{form}."
        )
    if named in forms:
        return named
    if default is None or named:
        endings = ", ".join(f".{one}" for one in forms)
        raise InvalidArgument(f"the ending of a {what}'s path is one of {endings}; got {str(path)!r}.")
    return default


def check_form(given: Any, forms: Collection[str], what: str) -> str:
    """The user's name of a format, normalised. Raises if it is not among `forms`."""
    form = given.lower().removeprefix(".") if isinstance(given, str) else ""
    form = _SAME.get(form, form)
    if form not in forms:
        raise InvalidArgument(f"the formats of a {what} are {', '.join(forms)}; got {given!r:.80}.")
    return form


# Writes whole files, or none, and opens files of unknown origin.

_PIECE = 1 << 24  # copy this many bytes at once
_LARGE = 1 << 20  # after a write of at least this many bytes, tell the operating system to begin writing to disk
_ANONYMOUS = getattr(os, "O_TMPFILE", 0)  # a file without a name, which disappears with its process
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)  # O_BINARY exists on Windows
# Matches the final name, the host, the process and a random number; in earlier versions, twelve random digits after the name.
_UNFINISHED = re.compile(r"\.(.{1,40})\.torcheer-(?:[0-9a-f]{12}|([0-9a-f]{6})([0-9a-f]{6})[0-9a-f]{8})", re.DOTALL)
# Flags for reading: no newline conversion, no waiting for the writer of a pipe, no controlling terminal.
_TO_READ = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_BINARY", "O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY"))
_TO_ADD = _TO_READ | os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
MOST_TEXT = 1 << 26  # refuse a JSON file of more bytes than this


def output_path(path: str | os.PathLike[str], what: str, example: str, kind: str | None = None) -> Path:
    """Check the user's path for output before the work begins. Errors name `what` and the file name `example`.

    With a `kind`, such as "html", a path whose ending names another kind raises.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise InvalidArgument(f"path says where the {what} is written, such as {example!r}; got {path!r:.80}.")
    target = Path(path)
    if _is_no_file(target) or _is_read_only(target) or not os.path.isdir(target.parent):
        raise _not_written(target, what, example=example)
    if kind is not None:
        check_ending(target, kind, what)
    return target


def _is_no_file(path: Path) -> bool:
    """True if the path is a folder, device or pipe, which a file must not replace."""
    return os.path.exists(path) and not os.path.isfile(path)


def _is_read_only(path: Path) -> bool:
    """True for an existing read-only file. It could be replaced, but somebody wants to keep it."""
    return os.path.isfile(path) and not os.access(path, os.W_OK)


def make_folder(path: Path, what: str) -> None:
    """Make a folder and its parents, unless it exists. Errors name `what`, the thing that will be written into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError("Permission denied")
    except OSError as error:
        reason = error.strerror or error
        raise NotWritten(f"{what} cannot be written to the folder {str(path)!r}: {reason}. Give another folder.") from error


def write_whole(path: Path, data: bytes, what: str = "file", *, follows: bool = True) -> Path:
    """Write a file under a temporary name, flush it to disk and rename it, so that nobody sees a half-written file.

    Returns the path. Raises NotWritten with `what` in its message. `follows`: see `WholeFile`.
    """
    with WholeFile(path, what, follows=follows) as file:
        file.write(data)
    return path


class WholeFile:
    """A file that is flushed and gets its name when the block ends without an error. Until then the old file stays.

    A link is followed. If `follows` is False, it is replaced: in a folder of unknown origin, a link may lead to a file that
    belongs to somebody else. Raises NotWritten with `what` in its message.
    """

    def __init__(self, path: Path, what: str = "file", *, follows: bool = True) -> None:
        self.path = path
        self._follows = follows
        self._what = what
        self._handle = -1
        self._name: str | None = None  # the temporary name; None for a file that has no name yet

    @property
    def _place(self) -> Path:
        """The path of the file to replace, with links resolved."""
        if not self._follows:
            return Path(os.path.realpath(self.path.parent), self.path.name)
        return Path(os.path.realpath(self.path))

    def __enter__(self) -> WholeFile:
        if _is_no_file(self.path) or _is_read_only(self.path):
            raise _not_written(self.path, self._what)
        with self._explained():
            self._handle = _without_name(self._place.parent)
            if self._handle < 0:
                self._name = unfinished_name(self._place)
                try:
                    self._handle = os.open(self._name, _NEW, 0o666)
                except OSError:
                    self._name = None
                    raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                with self._explained():
                    os.fsync(self._handle)
                    if self._name is None:
                        self._give_name()
        finally:
            handle, self._handle = self._handle, -1  # a thread that still writes must not write into another file
            os.close(handle)
            if self._name is not None:
                try:
                    if error is None:
                        with self._explained():
                            # the file was closed before, because Windows does not rename open files
                            os.replace(self._name, self._place)
                finally:
                    with contextlib.suppress(OSError):
                        os.unlink(self._name)

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` after the last write."""
        rest = memoryview(data)
        with self._explained():
            while rest:
                rest = rest[os.write(self._handle, rest) :]

    def write_at(self, place: int, data: bytes | memoryview) -> None:
        """Write all of `data` at an offset."""
        rest = memoryview(data)
        with self._explained():
            while rest:
                count = _write_at(self._handle, rest, place)
                if count >= _LARGE:
                    _begin_writing_back(self._handle, place, count)
                rest, place = rest[count:], place + count

    def read_at(self, place: int, size: int) -> bytes:
        """Read bytes at an offset."""
        with self._explained():
            return _read_at(self._handle, size, place)

    def cut(self, size: int) -> None:
        """Cut the file to `size` bytes."""
        with self._explained():
            os.ftruncate(self._handle, size)

    def _give_name(self) -> None:
        """Give a nameless file its final name, or a temporary name if another file has the final name."""
        if self._linked_to(str(self._place)):
            return
        self._name = unfinished_name(self._place)
        if not self._linked_to(self._name):
            self._copy_to(self._name)

    def _linked_to(self, name: str) -> bool:
        """Link a nameless file to this name. Returns False if the name is taken or the file system refuses."""
        try:
            # Python follows the link in /proc only with a `src_dir_fd`, which an absolute path leaves unused.
            os.link(f"/proc/self/fd/{self._handle}", name, src_dir_fd=self._handle, follow_symlinks=True)
        except OSError:
            return False
        return True

    def _copy_to(self, name: str) -> None:
        with open(name, "xb") as copy:
            place = 0
            while data := _read_at(self._handle, _PIECE, place):
                copy.write(data)
                place += len(data)
            copy.flush()
            os.fsync(copy.fileno())

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _not_written(self.path, self._what, error) from error


def unfinished_name(place: Path) -> str:
    """A new, unique temporary name beside a file; it contains the number of this process."""
    owner = f"{_host()}{os.getpid() & 0xFFFFFF:06x}"
    return str(place.parent / f".{place.name[:40]}.torcheer-{owner}{secrets.token_hex(4)}")


@cache
def _host() -> str:
    """Six digits that identify this machine since it was started, and the namespace of its process numbers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):  # only Linux has these files
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:6]


def _is_abandoned(host: str | None, process: str | None) -> bool:
    """True if the process of an unfinished file ran on this machine and has ended."""
    if host != _host() or process is None or sys.platform == "win32":  # on Windows, asking for a process may end the process
        return False
    try:
        os.kill(int(process, 16), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def delete_unfinished(folder: Path, names: str, *, abandoned: bool = False) -> None:
    """Delete unfinished files, left by killed processes, whose final names match a pattern.

    Only files with names made by `unfinished_name` are deleted; links and everything else stay. With `abandoned`, for folders
    that several processes write to, only files are deleted whose process ran on this machine and has ended.
    """
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _UNFINISHED.fullmatch(entry.name)
            if found is None or (abandoned and not _is_abandoned(found[2], found[3])):
                continue
            if re.fullmatch(names, found[1], re.ASCII) and entry.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def is_link(path: Path) -> bool:
    """True if a file or folder is a link; on Windows, also if it is a junction."""
    return os.path.realpath(path) != os.path.join(os.path.realpath(path.parent), path.name)


_seeking = threading.Lock()  # protects seek and write on systems without `pread` and `pwrite` (Windows)


def _write_at(handle: int, data: memoryview, place: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(handle, data, place)
    with _seeking:
        os.lseek(handle, place, os.SEEK_SET)
        return os.write(handle, data)


def _read_at(handle: int, size: int, place: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, place)
    with _seeking:
        os.lseek(handle, place, os.SEEK_SET)
        return os.read(handle, size)


def _begin_writing_back(handle: int, place: int, size: int) -> None:
    """Start writing these bytes to disk now, while the program computes, instead of at the final flush."""
    if sys.platform == "linux":  # on Linux this advice starts writing dirty pages, and keeps them
        with contextlib.suppress(OSError):  # a file system without support
            os.posix_fadvise(handle, place, size, os.POSIX_FADV_DONTNEED)


def _not_written(path: Path, what: str, error: OSError | None = None, example: str = "") -> NotWritten:
    """The error for a path that cannot be written to. Its message says why."""
    cls = NotWritten
    if os.path.isdir(path):
        reason = f"it is a folder. Give the path of a file in it{f', such as {str(path / example)!r}' if example else ''}"
    elif _is_no_file(path):
        reason = "it is a device, a pipe or a socket. Give the path of a file"
    elif _is_read_only(path):
        reason = "the file there is read-only. Choose another path, or make it writable"
    elif not os.path.isdir(path.parent):
        cls, reason = FolderNotFound, f"there is no folder {str(path.parent)!r}. Make it first, or choose another path"
    else:
        reason = f"{error.strerror or error if error is not None else 'unknown'}. Choose another path"
    made = cls(f"the {what} cannot be written to {str(path)!r}: {reason}.")
    made.errno = error.errno if error is not None else None
    return made


def _without_name(folder: Path) -> int:
    """Open a new file without a name. Returns its handle; -1 if the system cannot make such a file."""
    if not _ANONYMOUS or not os.path.isdir("/proc/self/fd"):
        return -1
    try:
        return os.open(folder, _ANONYMOUS | os.O_RDWR, 0o666)
    except OSError:  # the file system does not support this, or the error will occur again when the file gets a name
        return -1


# Reading ------------------------------------------------------------------------------------------------------------------


def open_regular(path: str | os.PathLike[str], *, adds: bool = False) -> IO[bytes]:
    """Open a file of unknown origin for reading, or, if `adds`, for appending (made if missing, links not followed).

    Raises OSError for a folder, pipe, socket or device.
    """
    if not adds or os.path.lexists(path):
        # checked before opening, because opening a pipe or a tape has effects
        _refuse_irregular(os.stat(path, follow_symlinks=not adds), path)
    handle = os.open(path, _TO_ADD if adds else _TO_READ, 0o666)
    try:
        _refuse_irregular(os.fstat(handle), path)  # checked again, because another file may have the name by now
        return os.fdopen(handle, "ab" if adds else "rb")
    except BaseException:
        os.close(handle)
        raise


def _refuse_irregular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is a link, a device, a pipe or a socket", str(path))


def read_regular(path: str | os.PathLike[str], most: int = MOST_TEXT) -> bytes:
    """The content of a file of unknown origin. Raises `UnreadableFile` if it has more than `most` bytes.

    Raises OSError like `open_regular`.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if max(size, len(data)) > most:
        raise UnreadableFile(f"it has {max(size, len(data)):,} bytes or more; at most {most:,} are read")
    return data


def file_name(title: str) -> str:
    """Convert a title to a part of the name of a file or folder.

    >>> file_name("My model, v2")
    'My_model_v2'
    """
    return re.sub(r"[^\w.-]+", "_", title).strip("._")[:60] or "model"
