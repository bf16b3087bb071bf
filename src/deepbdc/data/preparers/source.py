"""What the preparers share: the official files that a person gave, and where one image of them belongs."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from deepbdc.data.archives import Member, members, plain_member
from deepbdc.data.benchmarks import Archive, Benchmark
from deepbdc.errors import UserError


class PrepareError(UserError):
    """What was given is not (all of) the official data; the message says what is missing."""


@dataclass(frozen=True)
class Placement:
    """One image: its split, its class by the official name, its file name, and how to write it to a path."""

    split: str
    class_name: str
    file_name: str
    save: Callable[[Path], None]


class Source:
    """The official archives of a benchmark, or the folder that somebody unpacked them to.

    A folder may also hold the archives themselves; of a benchmark with several archives one may be named, and the
    others are looked for beside it.
    """

    def __init__(self, path: str | Path, benchmark: Benchmark) -> None:
        self.path, self.benchmark = Path(path).expanduser(), benchmark
        if not self.path.exists():
            raise FileNotFoundError(f"there is no file or folder {self.path}. {how_to_get(benchmark)}")
        self.files = self._official_files()

    def _official_files(self) -> list[Archive]:
        """The first complete set of official files that is there, else whatever there is of them."""
        folder = self.path if self.path.is_dir() else self.path.parent
        groups = [[archive for archive in group if (folder / archive.name).is_file()] for group in self._groups()]
        for found, group in zip(groups, self._groups(), strict=True):
            if len(found) == len(group):
                return found
        return max(groups, key=len, default=[])

    def _groups(self) -> list[tuple[Archive, ...]]:
        """The sets of official files that may be meant: when one file was named, those with it."""
        groups = list(self.benchmark.archives)
        return groups if self.path.is_dir() else [g for g in groups if self.path.name in {a.name for a in g}]

    def _is_complete(self) -> bool:
        return any(len(self.files) == len(group) for group in self._groups())

    def paths(self) -> list[Path]:
        """What to read. A folder is searched itself only when the archives in it are not all there."""
        folder = self.path if self.path.is_dir() else self.path.parent
        found = [folder / archive.name for archive in self.files]
        if self.path.is_dir() and not self._is_complete():
            return [*found, self.path]
        return found or [self.path]

    def members(self) -> Iterator[Member]:
        """Every file of all archives and folders, one after the other."""
        for path in self.paths():
            if path.is_file() and path.suffix == ".mat":
                yield plain_member(path)
            else:
                yield from members(path)

    def read(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """The content of the files with these last parts of their names, as far as they are there."""
        left, found = set(wanted), {}
        for member in self.members():
            if member.base in left:
                found[member.base] = member.read()
                left.remove(member.base)
            if not left:
                break
        return found

    def require(self, wanted: Iterable[str]) -> dict[str, bytes]:
        """As :meth:`read`, and an error that names the missing files."""
        found = self.read(wanted := list(wanted))
        missing = [name for name in wanted if name not in found]
        if missing:
            raise PrepareError(f"{self.path} does not hold {', '.join(missing)}. {how_to_get(self.benchmark)}")
        return found

    def verify_checksums(self) -> None:
        """Compare the official files with their MD5 sums, where these are known."""
        folder = self.path if self.path.is_dir() else self.path.parent
        for archive in self.files:
            if archive.md5 is None:
                continue
            found = _md5(folder / archive.name)
            if found != archive.md5:
                raise PrepareError(
                    f"{folder / archive.name} is damaged or another version: its MD5 sum is {found}, that of the "
                    f"official file is {archive.md5}. Fetch it again; a version that somebody packed anew can be "
                    "unpacked and given as a folder."
                )


def how_to_get(benchmark: Benchmark) -> str:
    """One sentence: which files a person needs, and where they are."""
    groups = [" + ".join(archive.name for archive in group) for group in benchmark.archives]
    return f"Needed: {' or '.join(groups)}, or the folder they unpack to, from {benchmark.home}."


def _md5(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
