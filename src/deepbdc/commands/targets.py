"""Checks the files and folders that a command will write to, before it begins its work."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from deepbdc.errors import UserError

if TYPE_CHECKING:
    from deepbdc.sorting import Sorter


def check_output(path: Path | None, *, force: bool = False, replaces: bool = False) -> None:
    """Check that a file can be written.

    Args:
        path: The file; None if the user wants none.
        force: Whether the user gave --force, so that an existing file may be replaced.
        replaces: Whether the command replaces existing files without being asked.
    """
    if path is None:
        return
    if path.is_dir():
        raise UserError(f"{path} is a folder: give a file for the results")
    if os.path.lexists(path) and not (force or replaces):
        raise UserError(f"{path} exists already: give another name, or --force to replace it")
    _check_writable(path.parent)


def _check_writable(folder: Path) -> None:
    """Check that files can be written into a folder, which need not exist yet."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    if not there.is_dir():
        raise UserError(f"{folder} cannot be a folder, because {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"nothing can be written into {there}: you lack the permission, or the disk is read-only")


def find_sorter(
    move_to: Path | None, copy_to: Path | None, dry_run: bool, places: Sequence[Path], examples: Path
) -> "Sorter | None":
    """Check the sorting options; return None if files stay where they are."""
    from deepbdc.sorting import Sorter, is_inside

    if move_to is not None and copy_to is not None:
        raise UserError("give --move-to or --copy-to, not both")
    target = move_to or copy_to
    if target is None:
        if dry_run:
            raise UserError("--dry-run shows what --move-to or --copy-to would do: give one of them")
        return None
    option = "--move-to" if move_to else "--copy-to"
    if target.exists() and not target.is_dir():
        raise UserError(f"{option} needs a folder, but {target} is a file")
    for place in places:
        if place.is_dir() and is_inside(target, place):
            raise UserError(
                f"the target {target} is inside {place}, so a second run would sort the sorted pictures again: "
                f"choose a folder outside of {place}"
            )
    if examples.is_dir() and is_inside(target, examples):
        raise UserError(
            f"the target {target} is inside the examples {examples}, so wrongly sorted pictures would become examples: "
            "choose another folder"
        )
    _check_writable(target)
    return Sorter(target, copy=copy_to is not None, dry_run=dry_run)


def check_space(sorter: "Sorter | None", files: Sequence[Path]) -> None:
    """Check that the disk of the target has room for copies of the files."""
    if sorter is None or sorter.dry_run:
        return
    disk = next(parent for parent in (sorter.target, *sorter.target.absolute().parents) if parent.exists())
    if not sorter.copy:  # a move within a disk needs no space
        files = [file for file in files if file.lstat().st_dev != disk.stat().st_dev]
    needed, free = sum(file.stat().st_size for file in files), shutil.disk_usage(disk).free
    if needed > free:
        raise UserError(
            f"the pictures need {needed / 1e9:.1f} GB, but the disk of {sorter.target} has only {free / 1e9:.1f} GB "
            "left: choose a folder on another disk, or give fewer pictures"
        )
