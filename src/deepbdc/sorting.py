"""Find a person's pictures, and move or copy them into one folder per class without ever losing one."""

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

from deepbdc._files import sync_folder
from deepbdc.data.images import IMAGE_SUFFIXES

FORBIDDEN = frozenset('/\\:*?"<>|')
"""Characters that some operating system does not allow in folder names."""
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)
"""Names that Windows reserves for devices."""
LONGEST_NAME = 200
"""The most bytes of a folder name; file systems allow 255."""


@dataclass(frozen=True)
class Found:
    """The pictures among the files and folders that a person named."""

    pictures: list[Path]
    others: int
    """How many files were skipped because their suffix is not that of an image format."""
    links: int = 0
    """How many symbolic links were skipped: links to folders, and links to pictures that are found anyway."""


def find_pictures(places: Iterable[str | Path]) -> Found:
    """List the given files, and all pictures in the given folders and their subfolders; each picture once.

    The order is that of ``places``, and sorted within each folder. In folders, this skips hidden files and folders,
    files without the suffix of an image format, and links to folders. If both a picture and links to it are found, the
    picture itself is listed.
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
    """Add a file unless it is known already, preferring a real file to a link; return whether a link was skipped."""
    known = pictures.setdefault(file.resolve(), file)
    if known.is_symlink() and not file.is_symlink():
        pictures[file.resolve()] = file
    return known != file and (known.is_symlink() or file.is_symlink())


def _walk(folder: Path) -> Iterator[Path]:
    """Yield the visible files below a folder, and the links to folders, which are not followed."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def _raise(error: OSError) -> None:
    """Report a folder that cannot be opened; `os.walk` would skip it silently."""
    raise error


def is_picture(file: Path) -> bool:
    """Whether a file has the suffix of an image format and is not hidden."""
    return file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".")


def not_there(path: Path) -> str:
    """Write the error message for a path that does not exist, with the most similar name in the same folder."""
    parent = path.parent
    if not parent.is_dir():
        return f"there is no file or folder {path}: its folder {parent} does not exist either"
    known = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    close = get_close_matches(path.name, known, n=1)
    return f"there is no file or folder {path}" + (f": did you mean {parent / close[0]}?" if close else "")


def safe_folder_name(label: Any) -> str:
    """Turn a class name into a folder name that every operating system allows and that cannot lead to another folder.

    >>> safe_folder_name("Tit, great/blue"), safe_folder_name("../../etc"), safe_folder_name("..")
    ('Tit, great_blue', '_.._etc', 'unnamed')
    """
    text = "".join("_" if sign in FORBIDDEN or not sign.isprintable() else sign for sign in str(label)).strip(". ")
    text = text.encode()[:LONGEST_NAME].decode(errors="ignore").strip(". ")
    return f"{text}_" if text.casefold().partition(".")[0] in RESERVED else text or "unnamed"


def folder_names(labels: Sequence[Any]) -> list[str]:
    """Give each label its own folder name; the names also differ on file systems that ignore case.

    >>> folder_names(["a/b", "a_b", "A_B"])
    ['a_b', 'a_b (2)', 'A_B (3)']
    """
    names: list[str] = []
    for label in labels:
        taken = {name.casefold() for name in names}
        names.append(next(name for name in numbered(safe_folder_name(label)) if name.casefold() not in taken))
    return names


def numbered(name: str) -> Iterator[str]:
    """Yield ``name``, ``name (2)``, ``name (3)``, ..., to find a name that is not taken."""
    yield name
    for number in count(2):
        yield f"{name} ({number})"


def _file_names(name: str) -> Iterator[str]:
    """Yield ``a.jpg``, ``a (2).jpg``, ``a (3).jpg``, ..."""
    stem, suffix = os.path.splitext(name)
    return (f"{text}{suffix}" for text in numbered(stem))


@dataclass
class Sorter:
    """Moves or copies files into subfolders of one target folder. It never replaces or renames an existing file."""

    target: Path
    copy: bool = False
    dry_run: bool = False
    """Only return where each file would go, and change nothing."""
    _promised: set[Path] = field(default_factory=set)

    def place(self, file: Path, folder: str) -> Path:
        """Put ``file`` into the subfolder ``folder`` and return its new path; a number is added if its name is taken.

        A file that is already in that subfolder stays where it is.
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
        raise AssertionError("file names never run out")

    def _promise(self, home: Path, name: str) -> Path:
        """Return where a file would go, given the existing files and those already planned in this dry run."""
        free = (home / name for name in _file_names(name))
        place = next(path for path in free if path not in self._promised and not os.path.lexists(path))
        self._promised.add(place)
        return place


def move(source: Path, target: Path) -> None:
    """Move a file to a path that must not exist yet (else FileExistsError).

    At every moment, and also after a power cut, the file is at one of the two paths or at both. A symbolic link still
    points to the same file after the move.
    """
    if source.is_symlink():
        target.symlink_to(source.resolve())
    else:
        _link_or_copy(source, target)
    sync_folder(target.parent)  # the new name must be on the disk before the old one is removed
    try:
        source.unlink()
    except FileNotFoundError:
        pass  # another program removed it; the file is at the target
    except OSError:
        target.unlink()  # the source cannot be removed, so undo the move
        raise


def _link_or_copy(source: Path, target: Path) -> None:
    """Create a hard link, which unlike a rename never replaces a file; copy if a hard link is not possible."""
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:  # the target is on another file system, or on one without hard links
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a file to a path that must not exist yet (else FileExistsError).

    The copy is flushed to the disk and compared with the original. If anything fails, no copy is left behind.
    """
    with source.open("rb") as reader, target.open("xb") as writer:
        try:
            shutil.copyfileobj(reader, writer)
            writer.flush()
            os.fsync(writer.fileno())
            if _digest(source) != _digest(target):
                raise OSError(f"the copy {target} differs from {source}: is the disk damaged?")
            with suppress(OSError):  # some file systems do not store times and permissions
                shutil.copystat(source, target)
            sync_folder(target.parent)
        except BaseException:  # also on Ctrl-C
            target.unlink(missing_ok=True)
            raise


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or lies below it, after following symbolic links."""
    return path.resolve().is_relative_to(folder.resolve())
