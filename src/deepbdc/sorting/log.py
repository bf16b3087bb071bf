"""The log of a sorting: which file went where. It lies in the target folder, one file for each run."""

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from deepbdc._files import make_folder, sync_folder
from deepbdc.errors import UserError
from deepbdc.sorting.names import file_names

PREFIX, SUFFIX, UNDONE = "deepbdc-log ", ".jsonl", " undone.jsonl"
_ACTIONS = ("move", "copy")


def is_log(name: str) -> bool:
    """Whether a file of this name is a log of a sorting."""
    return name.startswith(PREFIX) and name.endswith(SUFFIX)


@dataclass(frozen=True)
class Entry:
    """One file that was moved or copied, or was about to be when the program was killed."""

    source: Path
    """Where the file was, as an absolute path."""
    place: Path
    """Where it went."""
    size: int
    """Its size in bytes."""
    modified: int
    """When it was last modified, in nanoseconds. A move and a copy keep this time."""

    def fits(self, path: Path) -> bool:
        """Whether the file at ``path`` looks like the one that was sorted: same size and same time."""
        try:
            found = path.lstat()
        except OSError:
            return False
        if path.is_symlink():  # a moved link is a new link
            return True
        return found.st_size == self.size and abs(found.st_mtime_ns - self.modified) < 2_000_000_000


@dataclass(frozen=True)
class SortingLog:
    """A log that grows by a line for each file. Nothing in it is ever changed."""

    path: Path

    @classmethod
    def new(cls, target: Path, action: str) -> Self:
        """Start a log in the folder ``target``, under a name that is not taken."""
        make_folder(target)
        now = datetime.now()
        for name in file_names(f"{PREFIX}{now:%Y-%m-%d %H.%M.%S}{SUFFIX}"):
            log = cls(target / name)
            try:
                log._write({"action": action, "started": now.isoformat(timespec="seconds")}, "x")
            except FileExistsError:
                continue
            sync_folder(target)
            return log
        raise AssertionError("file names never run out")

    def add(self, source: Path, place: Path) -> None:
        """Write down that ``source`` is about to go to ``place``, and wait until this is on the disk."""
        state = source.lstat()
        # The place is relative to the log, so that the sorted folder may be moved as a whole.
        relative = os.path.relpath(place, self.path.parent)
        entry = {"from": os.path.abspath(source), "to": relative, "size": state.st_size, "modified": state.st_mtime_ns}
        self._write(entry, "a")

    def _write(self, line: dict[str, Any], mode: str) -> None:
        with self.path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_log(path: Path) -> tuple[str, list[Entry]]:
    """The action ("move" or "copy") and the entries of a log. An unfinished last line is skipped."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    try:
        head, *rest = map(json.loads, lines)
        action = str(head["action"])
        entries = [_entry(path.parent, line) for line in rest]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a log that 'deepbdc classify --move-to' or --copy-to wrote") from error
    if action not in _ACTIONS:
        raise UserError(f"{path} is the log of an unknown action, {action!r}: was it written by a newer deepbdc?")
    return action, entries


def _entry(folder: Path, line: dict[str, Any]) -> Entry:
    return Entry(Path(line["from"]), folder / line["to"], int(line["size"]), int(line["modified"]))
