"""Pictures in folders: find them, name folders after classes, and sort them without ever losing one."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import Any

from deepbdc.data.images import IMAGE_SUFFIXES

FORBIDDEN = frozenset('/\\:*?"<>|')
"""What no folder name may hold on some system or other."""
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)
"""Names that Windows keeps for devices."""
LONGEST_NAME = 200
"""Bytes of a folder name; file systems take 255."""


@dataclass(frozen=True)
class Found:
    """What lies in the files and folders that a person named."""

    pictures: list[Path]
    others: int
    """How many files are left out because they do not end like a picture."""
    links: int = 0
    """How many links are left out: to pictures that are found anyway, or to folders."""


def find_pictures(places: Iterable[str | Path]) -> Found:
    """The files named, and all pictures in the folders named and in the folders within, each once, sorted by folder.

    In folders, hidden files and folders, files that do not end like a picture, and links to folders are left out. Of a
    picture and links to it, the picture itself is taken.
    """
    pictures: dict[Path, Path] = {}
    others = links = 0
    for place in map(Path, places):
        if not place.exists():
            raise FileNotFoundError(not_there(place))
        for file in _walk(place) if place.is_dir() else [place]:
            if file.is_dir():
                links += 1
            elif place.is_dir() and not is_picture(file):
                others += 1
            else:
                links += _add(pictures, file)
    return Found(list(pictures.values()), others, links)


def _add(pictures: dict[Path, Path], file: Path) -> bool:
    """Add a file; whether a link was left out for it, or is left out."""
    known = pictures.setdefault(file.resolve(), file)
    if known.is_symlink() and not file.is_symlink():
        pictures[file.resolve()] = file
    return known != file and (known.is_symlink() or file.is_symlink())


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder, onerror=_refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _refused(error: OSError) -> None:
    """A folder that cannot be opened is said, not skipped."""
    raise error


def is_picture(file: Path) -> bool:
    """Whether a file is named like a picture, and not hidden."""
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


def not_there(path: Path) -> str:
    """Say that a path does not exist, and which one was probably meant."""
    parent = path.parent
    if not parent.is_dir():
        return f"there is no file or folder {path}: its folder {parent} does not exist either"
    known = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    close = get_close_matches(path.name, known, n=1)
    return f"there is no file or folder {path}" + (f": did you mean {parent / close[0]}?" if close else "")


def folder_name(label: Any) -> str:
    """The name of a class as that of a folder, on any system: no slashes, no leading dots, nothing invisible.

    >>> folder_name("Tit, great/blue"), folder_name("../../etc"), folder_name("..")
    ('Tit, great_blue', '_.._etc', 'unnamed')
    """
    text = "".join("_" if sign in FORBIDDEN or not sign.isprintable() else sign for sign in str(label)).strip(". ")
    text = text.encode()[:LONGEST_NAME].decode(errors="ignore").strip(". ")
    return f"{text}_" if text.casefold().partition(".")[0] in RESERVED else text or "unnamed"


def folder_names(labels: Sequence[Any]) -> list[str]:
    """A folder name for each label. No two are the same, even where big and small letters are.

    >>> folder_names(["a/b", "a_b", "A_B"])
    ['a_b', 'a_b (2)', 'A_B (3)']
    """
    names: list[str] = []
    for label in labels:
        taken = {name.casefold() for name in names}
        names.append(next(name for name in numbered(folder_name(label)) if name.casefold() not in taken))
    return names


def numbered(name: str) -> Iterator[str]:
    """``name``, then ``name (2)``, ``name (3)``, ...: where something is called so already."""
    yield name
    for number in count(2):
        yield f"{name} ({number})"


def _file_names(name: str) -> Iterator[str]:
    """``a.jpg``, then ``a (2).jpg``, ``a (3).jpg``, ..."""
    stem, suffix = os.path.splitext(name)
    return (f"{text}{suffix}" for text in numbered(stem))


@dataclass
class Sorter:
    """Puts files into folders of one target folder. What is there already keeps its place and its name."""

    target: Path
    copy: bool = False
    dry_run: bool = False
    """Only say where a file would go."""
    _promised: set[Path] = field(default_factory=set)

    def place(self, file: Path, folder: str) -> Path:
        """Put ``file`` into ``folder`` of the target, under a new name if its own is taken; returns where it is.

        A file that is in that folder already stays as it is.
        """
        home = self.target / folder
        if home.exists() and not home.is_dir():
            raise NotADirectoryError(f"{home} is a file, but a folder of that name is needed")
        if home.exists() and file.parent.samefile(home):
            return file
        if self.dry_run:
            return self._promise(home, file.name)
        home.mkdir(parents=True, exist_ok=True)
        for name in _file_names(file.name):
            with suppress(FileExistsError):
                (copy if self.copy else move)(file, home / name)
                return home / name
        raise AssertionError("there is always another number")

    def _promise(self, home: Path, name: str) -> Path:
        """Where a file would go after all those before it."""
        free = (home / name for name in _file_names(name))
        place = next(path for path in free if path not in self._promised and not os.path.lexists(path))
        self._promised.add(place)
        return place


def move(source: Path, target: Path) -> None:
    """Give a file another place, which must be free (else FileExistsError). At every moment it is in one of both.

    A link that is moved leads to the same file as before.
    """
    if source.is_symlink():
        target.symlink_to(source.resolve())
    else:
        _link_or_copy(source, target)
    try:
        source.unlink()
    except FileNotFoundError:
        pass  # somebody else removed it: the target is now the only one
    except OSError:
        target.unlink()  # it may not be taken from its folder, so it stays there
        raise


def _link_or_copy(source: Path, target: Path) -> None:
    """A second name for the same file, which unlike a renaming never replaces another; a copy where that cannot be."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # another file system, or one without hard links
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a file to a place which must be free (else FileExistsError): compared and on the disk, or not at all."""
    with source.open("rb") as reader, target.open("xb") as writer:
        try:
            shutil.copyfileobj(reader, writer)
            writer.flush()
            os.fsync(writer.fileno())
            if _digest(source) != _digest(target):
                raise OSError(f"the copy {target} is not the same as {source}: is the disk damaged?")
            with suppress(OSError):  # not every file system keeps times and permissions
                shutil.copystat(source, target)
            _sync_folder(target.parent)
        except BaseException:  # also Ctrl-C
            target.unlink(missing_ok=True)
            raise


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _sync_folder(folder: Path) -> None:
    """See the entry of a new file on the disk; systems that cannot open a folder do that by themselves."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or lies in it, links followed."""
    return path.resolve().is_relative_to(folder.resolve())
