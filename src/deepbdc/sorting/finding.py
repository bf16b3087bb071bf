"""Find the pictures among the files and folders that a person named."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from deepbdc.data.images import IMAGE_SUFFIXES
from deepbdc.sorting.log import is_log


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
    """Yield the visible files below a folder except our logs, and the links to folders, which are not followed."""
    for parent, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith(".") and not is_log(name))


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


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or lies below it, after following symbolic links."""
    return path.resolve().is_relative_to(folder.resolve())
