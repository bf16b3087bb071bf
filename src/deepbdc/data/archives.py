"""Read downloaded archives without trusting them.

Paths that lead out of the target folder, links and device files are refused, and the unpacked size is limited. Members
are read lazily, so that a preparer unpacks only the files that it needs. A folder is read in the same way as an
archive, so preparers need not know whether somebody has unpacked the archive already.
"""

import bz2
import gzip
import io
import lzma
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from deepbdc._files import make_folder, temporary
from deepbdc.errors import UserError

_LARGEST_READ = 2**30
_COPY_BYTES = 2**20


class UnsafeArchive(UserError):
    """An archive holds something that could do harm and that no data set needs."""


class UnreadableArchive(UserError):
    """A file is not an archive, or it is truncated or damaged."""


@dataclass(frozen=True)
class ArchiveLimits:
    """The most files and unpacked bytes that an archive may hold. The defaults are large enough for all of ImageNet."""

    members: int = 5_000_000
    total_bytes: int = 400 * 2**30


@dataclass(frozen=True)
class Member:
    """One file of an archive or folder.

    Attributes:
        name: The relative path inside the archive, with ``/``; it never leads out of the folder.
        size: The size in bytes.
        open: Opens the file for reading. Members of an archive can be opened only until the next member is requested.
        path: The path on disk, if the source is a folder.
    """

    name: str
    size: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]
    path: Path | None = None

    @property
    def base(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]

    def read(self, limit: int = _LARGEST_READ) -> bytes:
        """Read the content; raise `UnsafeArchive` if it is larger than ``limit`` bytes."""
        if self.size > limit:
            raise UnsafeArchive(f"{self.name!r} has {self.size:,} bytes; at most {limit:,} are allowed here.")
        with _readable_errors(self.name), self.open() as stream:
            return stream.read()

    def save(self, target: Path) -> None:
        """Write the content to ``target`` atomically. A file on disk is hard-linked if the file system can do that."""
        if self.path is not None and _link(self.path, target):
            return
        with temporary(target) as part, _readable_errors(self.name), self.open() as stream, open(part, "wb") as out:
            shutil.copyfileobj(stream, out, _COPY_BYTES)


@contextmanager
def _readable_errors(name: object) -> Iterator[None]:
    """Turn the errors that decoders raise on a damaged archive into `UnreadableArchive`."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the operating system reports a problem of the disk, not of the archive
        raise UnreadableArchive(
            f"{name} cannot be read as (part of) a tar or zip archive ({error or type(error).__name__}). "
            "If the download was interrupted, download it again."
        ) from error


def safe_name(name: str) -> str:
    """Normalise the path of a member; raise `UnsafeArchive` if it could lead out of the target folder.

    >>> safe_name("./images/a.jpg")
    'images/a.jpg'
    """
    reason = None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/"):
        reason = "is an absolute path"
    elif "\\" in name:
        reason = "contains a backslash"
    elif re.match(r"[A-Za-z]:", name):
        reason = "begins with a drive letter"
    elif ".." in parts:
        reason = "leads out of the folder with '..'"
    elif re.search(r"[\x00-\x1f]", name):
        reason = "contains control characters"
    if reason:
        raise UnsafeArchive(f"the archive holds a member {name!r}, which {reason}. This member was not written.")
    return "/".join(parts)


def members(source: str | Path, limits: ArchiveLimits | None = None) -> Iterator[Member]:
    """Iterate over the files of a tar (plain, gz, bz2, xz), a zip or a folder.

    Raises:
        UnsafeArchive: A path leads out of the folder, a member is a link or a device, or ``limits`` are exceeded. The
            members before it have been yielded by then.
        UnreadableArchive: The file is not an archive, or it is truncated or damaged.
    """
    source = Path(source)
    if source.is_dir():
        yield from _folder_members(source)
        return
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")
    with _readable_errors(source):
        if zipfile.is_zipfile(source):
            yield from _limited(_zip_members(source), limits or ArchiveLimits(), source.name)
        else:
            with _open_tar(source) as stream:
                yield from tar_members(stream, source.name, limits)


def tar_members(stream: Any, title: str, limits: ArchiveLimits | None = None) -> Iterator[Member]:
    """Iterate over the files of an open, uncompressed tar, for example one inside another tar."""
    with _readable_errors(title), tarfile.open(fileobj=_LimitedReads(stream, title), mode="r:") as archive:
        yield from _limited(_tar_files(archive), limits or ArchiveLimits(), title)


def _limited(found: Iterator[Member], limits: ArchiveLimits, title: str) -> Iterator[Member]:
    """Raise before the first member that exceeds the limits.

    The declared sizes can be trusted: reading a member never yields more bytes than its header declares.
    """
    total = 0
    for count, member in enumerate(found, start=1):
        total += member.size
        if count > limits.members:
            raise UnsafeArchive(f"{title} holds more than {limits.members:,} files, the limit for this archive.")
        if total > limits.total_bytes:
            raise UnsafeArchive(
                f"{title} holds more than {limits.total_bytes:,} bytes unpacked, the limit for this archive."
            )
        yield member


def _tar_files(archive: tarfile.TarFile) -> Iterator[Member]:
    for info in archive:
        name = safe_name(info.name)
        if info.isdir():
            continue
        if not info.isreg():
            kind = "link" if info.issym() or info.islnk() else "device or other special file"
            raise UnsafeArchive(f"the archive holds {name!r}, a {kind}; only regular files are allowed.")
        if info.sparse is not None:
            raise UnsafeArchive(f"the archive holds {name!r}, a sparse file; only regular files are allowed.")
        yield Member(name, info.size, _tar_opener(archive, info))


def _tar_opener(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], AbstractContextManager[IO[bytes]]]:
    def opener() -> AbstractContextManager[IO[bytes]]:
        stream = archive.extractfile(info)
        assert stream is not None  # extractfile returns None only for members that are not regular files
        return stream

    return opener


def _zip_members(source: Path) -> Iterator[Member]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            # orig_filename is the name as stored; zipfile has already altered some hostile names in filename.
            safe_name(info.orig_filename)
            name = safe_name(info.filename)
            if info.is_dir():
                continue
            # The upper 16 bits are the Unix mode, or 0 if the archive was made on another system.
            kind = (info.external_attr >> 16) & 0o170000
            if kind not in (0, 0o100000):
                what = "link" if kind == 0o120000 else "device or other special file"
                raise UnsafeArchive(f"the archive holds {name!r}, a {what}; only regular files are allowed.")
            yield Member(name, info.file_size, lambda info=info: archive.open(info))  # type: ignore[misc]


def _folder_members(source: Path) -> Iterator[Member]:
    """Iterate over all files below a folder in sorted order, without hidden files and folders."""
    for parent, folders, file_names in os.walk(source, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file_name in sorted(file_names):
            path = Path(parent, file_name)
            if not file_name.startswith(".") and path.is_file():
                yield plain_member(path, path.relative_to(source).as_posix())


def plain_member(path: Path, name: str | None = None) -> Member:
    """Return a file on disk as a `Member`."""
    return Member(name or path.name, path.stat().st_size, lambda: open(path, "rb"), path)


def _open_tar(source: Path) -> Any:
    """Open a tar for reading, decompressed if its first bytes are those of gzip, bzip2 or xz."""
    with open(source, "rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(source, "rb")
    if start.startswith(b"BZh"):
        return bz2.open(source, "rb")
    if start == b"\xfd7zXZ\x00":
        return lzma.open(source, "rb")
    return open(source, "rb")


class _LimitedReads(io.RawIOBase):
    """A stream that refuses huge single reads, because the header of a tar can request any amount of memory."""

    def __init__(self, stream: Any, title: str) -> None:
        self._stream, self._title = stream, title

    def seekable(self) -> bool:
        """Whether the wrapped stream can seek; needed to read a tar inside a tar."""
        return bool(self._stream.seekable())

    def read(self, size: int = -1) -> bytes:
        """Read ``size`` bytes; raise `UnsafeArchive` if that is more than any honest archive needs."""
        if size > _LARGEST_READ:
            raise UnsafeArchive(f"{self._title} has a header of {size:,} bytes; no honest archive needs that.")
        data: bytes = self._stream.read(size)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Seek in the wrapped stream."""
        position: int = self._stream.seek(offset, whence)
        return position

    def tell(self) -> int:
        """Return the position in the wrapped stream."""
        position: int = self._stream.tell()
        return position


def _link(source: Path, target: Path) -> bool:
    """Create a hard link, which takes no space; return False if the file system cannot do that or ``target`` exists."""
    make_folder(target.parent)
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True
