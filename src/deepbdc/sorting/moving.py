"""Move or copy files into one folder per class without ever losing one."""

import filecmp
import hashlib
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deepbdc._files import sync_folder
from deepbdc.sorting.log import SortingLog
from deepbdc.sorting.names import file_names


@dataclass
class Sorter:
    """Moves or copies files into subfolders of one target folder. It never replaces or renames an existing file.

    A log in the target folder tells what was done, so that it can be undone (see `deepbdc.sorting.undo`).
    """

    target: Path
    copy: bool = False
    dry_run: bool = False
    """Only return where each file would go, and change nothing."""
    already_there: int = 0
    """How many files needed nothing: they were in their folder, or an identical copy of them was."""
    _promised: set[Path] = field(default_factory=set)
    _log: SortingLog | None = None

    @property
    def log(self) -> Path | None:
        """The log of what was moved or copied; None if nothing was."""
        return None if self._log is None else self._log.path

    def place(self, file: Path, folder: str) -> Path:
        """Put ``file`` into the subfolder ``folder`` and return its new path; a number is added if its name is taken.

        A file that is already in that subfolder stays where it is. A copy is not made again if the subfolder has an
        identical file under one of these names.
        """
        home = self.target / folder
        if home.exists() and not home.is_dir():
            raise NotADirectoryError(f"{home} is a file, but a folder of that name is needed")
        if home.exists() and file.parent.samefile(home):
            self.already_there += 1
            return file
        if not self.dry_run:
            home.mkdir(parents=True, exist_ok=True)
        for name in file_names(file.name):
            place = home / name
            if place in self._promised:
                continue
            if os.path.lexists(place):
                if self.copy and same_content(file, place):
                    self.already_there += 1
                    return place
            elif self.dry_run:
                self._promised.add(place)
                return place
            else:
                with suppress(FileExistsError):  # another program may take the name at any moment
                    self._do(file, place)
                    return place
        raise AssertionError("file names never run out")

    def _do(self, file: Path, place: Path) -> None:
        """Write into the log what comes next, and do it: so the log misses nothing, whenever the program is killed."""
        if self._log is None:
            self._log = SortingLog.new(self.target, "copy" if self.copy else "move")
        self._log.add(file, place)
        act: Callable[[Path, Path], None] = copy if self.copy else move
        act(file, place)


def same_content(one: Path, other: Path) -> bool:
    """Whether both are files with the same content."""
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


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
