"""Read archives that strangers made: nothing leaves the folder, no links or devices, and a limit on what comes out.

Members are visited lazily, so that a preparer takes what it needs and unpacks nothing else. A folder can be visited in
the same way, which makes "the archive or the folder somebody unpacked it to" one case.
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

from deepbdc._files import temporary
from deepbdc.errors import UserError

_LARGEST_READ = 2**30
_COPY_BYTES = 2**20


class UnsafeArchive(UserError):
    """An archive holds something that a data set has no need of and that can do harm."""


class UnreadableArchive(UserError):
    """A file is not an archive, or is cut short or damaged."""


@dataclass(frozen=True)
class Limits:
    """How much an archive may hold, unpacked. The defaults fit all of ImageNet."""

    members: int = 5_000_000
    total_bytes: int = 400 * 2**30


@dataclass(frozen=True)
class Member:
    """One file of an archive or folder.

    Attributes:
        name: The path inside, with ``/``; never absolute, never leaving the folder.
        size: In bytes.
        open: Opens it for reading; for an archive only until the next member is asked for.
        path: Where it lies as a plain file, if it does.
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
        """The content, refused when it is larger than ``limit``."""
        if self.size > limit:
            raise UnsafeArchive(f"{self.name!r} is {self.size:,} bytes large, at most {limit:,} are sensible here.")
        with _in_words(self.name), self.open() as stream:
            return stream.read()

    def save(self, target: Path) -> None:
        """Write the content to ``target``, wholly or not at all; a plain file is linked where that can be done."""
        with temporary(target) as part:
            if self.path is not None and _link(self.path, part):
                return
            with _in_words(self.name), self.open() as stream, open(part, "wb") as out:
                shutil.copyfileobj(stream, out, _COPY_BYTES)


@contextmanager
def _in_words(name: object) -> Iterator[None]:
    """What the decoders raise on a damaged archive, as :class:`UnreadableArchive`."""
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # The disk, not the archive.
        raise UnreadableArchive(
            f"{name} cannot be read as (part of) a tar or zip archive ({error or type(error).__name__}). "
            "If the download was cut short, fetch it again."
        ) from error


def safe_name(name: str) -> str:
    """The name of a member in a plain form, or :class:`UnsafeArchive` when it could leave the folder.

    >>> safe_name("./images/a.jpg")
    'images/a.jpg'
    """
    reason = None
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/"):
        reason = "is an absolute path"
    elif "\\" in name:
        reason = "holds a backslash"
    elif re.match(r"[A-Za-z]:", name):
        reason = "names a drive"
    elif ".." in parts:
        reason = "leads out of the folder with '..'"
    elif re.search(r"[\x00-\x1f]", name):
        reason = "holds control characters"
    if reason:
        raise UnsafeArchive(f"the archive holds a member {name!r}, which {reason}. This member was not written.")
    return "/".join(parts)


def members(source: str | Path, limits: Limits | None = None) -> Iterator[Member]:
    """Visit the files of a tar (plain, gz, bz2, xz), a zip or a folder, one after the other.

    Raises:
        UnsafeArchive: A name leaves the folder, there is a link or a device, or there is more than ``limits`` allow.
        UnreadableArchive: It is no archive, or it is cut short or damaged.
    """
    source = Path(source)
    if source.is_dir():
        yield from _folder_members(source)
        return
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")
    with _in_words(source):
        if zipfile.is_zipfile(source):
            yield from _counted(_zip_members(source), limits or Limits(), source.name)
        else:
            with _open_tar(source) as stream:
                yield from tar_members(stream, source.name, limits)


def tar_members(stream: Any, title: str, limits: Limits | None = None) -> Iterator[Member]:
    """Visit the files of an open, uncompressed tar, such as one that lies in another tar."""
    with _in_words(title), tarfile.open(fileobj=_Cautious(stream, title), mode="r:") as archive:
        yield from _counted(_each_of_tar(archive), limits or Limits(), title)


def extract(source: str | Path, folder: str | Path, limits: Limits | None = None) -> list[Path]:
    """Unpack an archive into ``folder``. All names are checked before the first file is written.

    Raises:
        UnsafeArchive: See :func:`members`; nothing has been written then.
    """
    folder = Path(folder)
    for member in members(source, limits):
        _inside(folder, member.name)
    written = []
    for member in members(source, limits):
        target = _inside(folder, member.name)
        member.save(target)
        written.append(target)
    return written


def _inside(folder: Path, name: str) -> Path:
    """The place of a member; a link that already lies in ``folder`` must not lead it elsewhere."""
    target = folder / name
    if not target.parent.resolve().is_relative_to(folder.resolve()):
        raise UnsafeArchive(f"{name!r} would be written outside of {folder}, through a link that lies in it.")
    return target


def _counted(found: Iterator[Member], limits: Limits, title: str) -> Iterator[Member]:
    """Stop before a member that exceeds the limits, by the sizes that the archive declares (and reading keeps to)."""
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


def _each_of_tar(archive: tarfile.TarFile) -> Iterator[Member]:
    for info in archive:
        name = safe_name(info.name)
        if info.isdir():
            continue
        if not info.isreg():
            kind = "link" if info.issym() or info.islnk() else "device or other special file"
            raise UnsafeArchive(f"the archive holds {name!r}, a {kind}; only plain files and folders are taken.")
        if info.sparse is not None:
            raise UnsafeArchive(f"the archive holds {name!r}, a sparse file; only plain files and folders are taken.")
        yield Member(name, info.size, _tar_opener(archive, info))


def _tar_opener(archive: tarfile.TarFile, info: tarfile.TarInfo) -> Callable[[], AbstractContextManager[IO[bytes]]]:
    def opener() -> AbstractContextManager[IO[bytes]]:
        stream = archive.extractfile(info)
        assert stream is not None  # It is a regular file.
        return stream

    return opener


def _zip_members(source: Path) -> Iterator[Member]:
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            # The name as it is in the file: zipfile itself already turns a few tricks into something else.
            safe_name(info.orig_filename)
            name = safe_name(info.filename)
            if info.is_dir():
                continue
            # The upper half of the attributes is the Unix mode; 0 when another system made the archive.
            kind = (info.external_attr >> 16) & 0o170000
            if kind not in (0, 0o100000):
                what = "link" if kind == 0o120000 else "device or other special file"
                raise UnsafeArchive(f"the archive holds {name!r}, a {what}; only plain files and folders are taken.")
            yield Member(name, info.file_size, lambda info=info: archive.open(info))  # type: ignore[misc]


def _folder_members(source: Path) -> Iterator[Member]:
    """The files below a folder in sorted order; hidden ones are left out."""
    for parent, folders, file_names in os.walk(source, followlinks=False):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file_name in sorted(file_names):
            path = Path(parent, file_name)
            if not file_name.startswith(".") and path.is_file():
                yield plain_member(path, path.relative_to(source).as_posix())


def plain_member(path: Path, name: str | None = None) -> Member:
    """A file that lies on the disk, as a member."""
    return Member(name or path.name, path.stat().st_size, lambda: open(path, "rb"), path)


def _open_tar(source: Path) -> Any:
    """The uncompressed bytes of a tar, whatever it was compressed with."""
    with open(source, "rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(source, "rb")
    if start.startswith(b"BZh"):
        return bz2.open(source, "rb")
    if start == b"\xfd7zXZ\x00":
        return lzma.open(source, "rb")
    return open(source, "rb")


class _Cautious(io.RawIOBase):
    """A stream that refuses huge single reads: a header of a tar may ask for any amount of memory."""

    def __init__(self, stream: Any, title: str) -> None:
        self._stream, self._title = stream, title

    def seekable(self) -> bool:
        """Asked for by the reader of a tar that lies in a tar."""
        return bool(self._stream.seekable())

    def read(self, size: int = -1) -> bytes:
        """At most a sensible number of bytes."""
        if size > _LARGEST_READ:
            raise UnsafeArchive(f"{self._title} has a header of {size:,} bytes; that is no honest archive.")
        data: bytes = self._stream.read(size)
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of the stream."""
        place: int = self._stream.seek(offset, whence)
        return place

    def tell(self) -> int:
        """As of the stream."""
        place: int = self._stream.tell()
        return place


def _link(source: Path, target: Path) -> bool:
    """A hard link costs no space and no time, but not every file system has them, and never across two."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True
