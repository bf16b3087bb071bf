"""Undo a sorting by its log: moved files go back, and copies whose original is still there are removed."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from deepbdc._files import sync_folder
from deepbdc.errors import UserError
from deepbdc.sorting.finding import not_there
from deepbdc.sorting.log import SUFFIX, UNDONE, Entry, is_log, read_log
from deepbdc.sorting.moving import move, same_content
from deepbdc.sorting.names import file_names


@dataclass
class Undone:
    """What became of the files of a log."""

    log: Path
    action: str
    """What was undone: "move" or "copy"."""
    back: list[tuple[Path, Path]] = field(default_factory=list)
    """Moved files that went back: from where, and to where."""
    removed: list[Path] = field(default_factory=list)
    """Copies that were removed, because the original is still there."""
    before: int = 0
    """Files that were as before already."""
    left: list[str] = field(default_factory=list)
    """A message for each file that was left where it is."""


def find_log(place: Path) -> Path:
    """The log that a person means by its path, or by a sorted folder: the last one there that is not undone."""
    if place.is_file():
        return place
    if not place.is_dir():
        raise FileNotFoundError(not_there(place))
    logs = sorted(file for file in place.iterdir() if is_log(file.name) and not file.name.endswith(UNDONE))
    if not logs:
        raise UserError(
            f"there is nothing to undo in {place}: it has no log of a sorting that is not undone yet. Give the folder "
            "that you gave to --move-to or --copy-to, or the log itself"
        )
    return max(logs, key=lambda file: (file.stat().st_mtime_ns, file.name))


def undo(log: Path, dry_run: bool = False) -> Undone:
    """Undo what a log tells, the last file first.

    No file is lost: a moved file goes back under another name if its old one is taken; a copy is removed only while the
    original still has the same content. Files that were changed since are left where they are. Folders that are empty
    afterwards are removed. If nothing is left to undo, the log gets the ending "undone".

    Args:
        log: The log that the sorting wrote.
        dry_run: Only return what would happen, and change nothing.
    """
    action, entries = read_log(log)
    done = Undone(log, action)
    act = _move_back if action == "move" else _remove_copy
    folders = set()
    for entry in reversed(entries):
        folders.add(entry.place.parent)
        try:
            act(entry, done, dry_run)
        except OSError as error:
            done.left.append(f"{entry.place}: {error}")
    if not dry_run:
        for folder in sorted(folders, reverse=True):
            with suppress(OSError):  # it is not empty, or is gone
                folder.rmdir()
        if not done.left:
            _retire(log)
    return done


def _move_back(entry: Entry, done: Undone, dry_run: bool) -> None:
    place = _find(entry, done.log.parent)
    if place is None:
        if entry.source.exists():
            done.before += 1
        else:
            done.left.append(f"{entry.place}: not there any more, and not found elsewhere in {done.log.parent}")
        return
    if not entry.fits(place):
        done.left.append(f"{place}: changed since, so it may be another picture")
        return
    if same_content(place, entry.source):  # the program was killed between the two steps of a move
        if not dry_run:
            place.unlink()
        done.before += 1
        return
    for target in (entry.source.with_name(name) for name in file_names(entry.source.name)):
        if target.exists() or target.is_symlink():
            continue
        if not dry_run:
            target.parent.mkdir(parents=True, exist_ok=True)
            move(place, target)
        done.back.append((place, target))
        return


def _remove_copy(entry: Entry, done: Undone, dry_run: bool) -> None:
    if not entry.place.exists():
        done.before += 1
    elif not same_content(entry.place, entry.source):
        done.left.append(f"{entry.place}: the original {entry.source} is gone or differs, so the copy stays")
    else:
        if not dry_run:
            entry.place.unlink()
            sync_folder(entry.place.parent)
        done.removed.append(entry.place)


def _find(entry: Entry, target: Path) -> Path | None:
    """Where a moved file is now. People correct wrong answers by moving files from one sorted folder to another."""
    if entry.place.exists() or entry.place.is_symlink():
        return entry.place
    found = list(_same_name(entry, target))
    return found[0] if len(found) == 1 else None


def _same_name(entry: Entry, target: Path) -> Iterator[Path]:
    for folder in target.iterdir():
        place = folder / entry.place.name
        if place.is_file() and entry.fits(place):
            yield place


def _retire(log: Path) -> None:
    """Rename the log of a finished undo, so that the next undo takes the sorting before it."""
    retired = log.with_name(log.name.removesuffix(SUFFIX) + UNDONE)
    if not retired.exists():
        log.rename(retired)
