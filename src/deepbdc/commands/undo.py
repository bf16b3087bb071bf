"""``deepbdc undo``: take back a sorting."""

from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc._words import counted
from deepbdc.commands.options import Flag

if TYPE_CHECKING:
    from deepbdc.sorting import Undone


def undo_sorting(folder: Path, /, *, dry_run: Flag = False) -> None:
    """Take back what `deepbdc classify --move-to` or `--copy-to` did last in a folder.

    For example:

        deepbdc classify examples photos --move-to sorted
        deepbdc undo sorted

    Moved pictures go back to where they were, also those that you moved into another folder of `sorted` since then.
    Copies are removed if the original is still there and is the same. A picture that was changed since stays where
    it is and is named; the exit code is then 1. Give the command again to take back the sorting before.

    Args:
        folder: The folder that was given to --move-to or --copy-to; or a log in it, to take back exactly that sorting.
        dry_run: Only show what would happen.
    """
    from rich.console import Console

    from deepbdc.report.classification import print_list, say
    from deepbdc.sorting import find_log, undo

    console = Console()
    log = find_log(folder)
    done = undo(log, dry_run)
    lines = [f"{place} -> {_short(source)}" for place, source in done.back]
    lines += [f"{place} removed" for place in done.removed]
    most = len(lines) if dry_run else 10
    for line in [*lines[:most], *([f"... and {len(lines) - most:,} more"] if len(lines) > most else [])]:
        say(console, line)
    print_list(console, "Left where they are", done.left, most=len(done.left))
    say(console, _summary(done, dry_run))
    if done.left:
        say(console, f"The log stays, so that you can try again: {log}")
        raise SystemExit(1)


def _summary(done: "Undone", dry_run: bool) -> str:
    number = len(done.back) + len(done.removed)
    if done.action == "move":
        text = f"{counted(number, 'picture')} {'would go back' if dry_run else 'moved back'}."
    else:
        verb = "would be removed" if dry_run else "removed"
        text = f"{counted(number, 'copy', 'copies')} {verb}. The originals are where they were."
    before = f" {done.before:,} {'was' if done.before == 1 else 'were'} as before already." if done.before else ""
    return f"{'Dry run: nothing was changed. ' if dry_run else ''}{text}{before}"


def _short(path: Path) -> Path:
    """The path relative to the current folder, if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
