"""Shared by the preparers: the official files that the user gave, and the placement of one image."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deepbdc.data.archives import Member, members, plain_member
from deepbdc.data.benchmarks import Archive, Benchmark
from deepbdc.errors import UserError


class PrepareError(UserError):
    """The source is not the official data, or not all of it; the message says what is missing."""


@dataclass(frozen=True)
class Placement:
    """One image: its split, its official class name, its file name, and a function that writes it to a path."""

    split: str
    class_name: str
    file_name: str
    save: Callable[[Path], None]


class Source:
    """The official archives of a benchmark, or the folder that they were unpacked to.

    ``path`` may also be a folder that contains the archives. If a benchmark has several archives, ``path`` may be one
    of them; the others are looked for in the same folder.
    """

    def __init__(self, path: str | Path, benchmark: Benchmark) -> None:
        self.path, self.benchmark = Path(path).expanduser(), benchmark
        if not self.path.exists():
            raise FileNotFoundError(f"there is no file or folder {self.path}. {how_to_get(benchmark)}")
        self.files = self._official_files()

    def _official_files(self) -> list[Archive]:
        """Find the first complete set of official files, else the largest incomplete one."""
        folder = self.path if self.path.is_dir() else self.path.parent
        groups = [[archive for archive in group if (folder / archive.name).is_file()] for group in self._groups()]
        for found, group in zip(groups, self._groups(), strict=True):
            if len(found) == len(group):
                return found
        return max(groups, key=len, default=[])

    def _groups(self) -> list[tuple[Archive, ...]]:
        """List the sets of official files that may be meant; if one file was given, only the sets that include it."""
        groups = list(self.benchmark.archives)
        return groups if self.path.is_dir() else [g for g in groups if self.path.name in {a.name for a in g}]

    def _is_complete(self) -> bool:
        return any(len(self.files) == len(group) for group in self._groups())

    def paths(self) -> list[Path]:
        """List the archives and folders to read. A folder itself is read only if it lacks some of the archives."""
        folder = self.path if self.path.is_dir() else self.path.parent
        found = [folder / archive.name for archive in self.files]
        if self.path.is_dir() and not self._is_complete():
            return [*found, self.path]
        return found or [self.path]

    def members(self) -> Iterator[Member]:
        """Iterate over the files of all archives and folders."""
        for path in self.paths():
            if path.is_file() and path.suffix == ".mat":
                yield plain_member(path)
            else:
                yield from members(path)

    def read(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """Read the files with these base names; those that do not exist are left out."""
        left, found = set(wanted), {}
        for member in self.members():
            if member.base in left:
                found[member.base] = member.read()
                left.remove(member.base)
            if not left:
                break
        return found

    def require(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """Read the files with these base names; raise an error that names the missing ones."""
        found = self.read(wanted := list(wanted))
        missing = [name for name in wanted if name not in found]
        if missing:
            raise PrepareError(f"{self.path} does not contain {', '.join(missing)}. {how_to_get(self.benchmark)}")
        return found

    def verify_checksums(self) -> None:
        """Compare the official files with their MD5 sums, if these are known."""
        folder = self.path if self.path.is_dir() else self.path.parent
        for archive in self.files:
            if archive.md5 is None:
                continue
            found = _md5(folder / archive.name)
            if found != archive.md5:
                raise PrepareError(
                    f"{folder / archive.name} is damaged or another version: its MD5 sum is {found}, that of the "
                    f"official file is {archive.md5}. Download it again. If it is a repacked copy of the same images, "
                    "unpack it and give the folder."
                )


def how_to_get(benchmark: Benchmark) -> str:
    """Say in one sentence which files are needed and where to get them."""
    groups = [" + ".join(archive.name for archive in group) for group in benchmark.archives]
    return f"Needed: {' or '.join(groups)}, or the folder they unpack to, from {benchmark.home}."


def _md5(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
