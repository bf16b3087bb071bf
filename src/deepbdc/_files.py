"""Write files atomically and durably, and read ``.npz`` files safely."""

import json
import os
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from deepbdc.errors import UserError

_REPOSITORY = Path(__file__).parent.parent.parent
"""The repository, if the package is installed from one in place."""


def folders_of_repository(name: str, variable: str | None = None) -> list[Path]:
    """Where a folder of the repository may be that is not part of the package, such as ``gallery``; not all need exist.

    Args:
        name: The name of the folder.
        variable: An environment variable that gives its place.
    """
    given = os.environ.get(variable) if variable else None
    own = [Path(given).expanduser()] if given else []
    return [*own, Path(name), _REPOSITORY / name]


@contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """Replace ``target`` atomically: the block writes to the path that this yields, which lies in the same folder.

    When the block ends without an error, the file is flushed to the disk and renamed to ``target``. After a crash or a
    power cut, ``target`` holds either its old content or all of the new one. The block must close the file it wrote.
    """
    make_folder(target.parent)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        _sync_file(part)
        os.replace(part, target)
        sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(target: str | Path, content: bytes) -> None:
    """Write a file atomically and durably, see `temporary`."""
    with temporary(Path(target)) as part:
        part.write_bytes(content)


def write_text(target: str | Path, text: str) -> None:
    """Write a UTF-8 text file atomically and durably, see `temporary`."""
    write_bytes(target, text.encode())


def write_json(target: str | Path, content: dict[str, Any]) -> None:
    """Write a JSON file atomically and durably, each array of plain values on one line."""
    write_text(target, _json_text(content, 0) + "\n")


def _json_text(value: Any, depth: int) -> str:
    """JSON that is indented by one blank at each depth; an array without objects is one line, without blanks.

    Results have tens of thousands of numbers: without the blank between two of them, their files are a fifth smaller.
    """
    if isinstance(value, dict) and value:
        parts = [f"{json.dumps(str(key))}: {_json_text(part, depth + 1)}" for key, part in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(part, dict) for part in value):
        parts = [_json_text(part, depth + 1) for part in value]
    else:
        return json.dumps(value, separators=(",", ":"))
    start, end = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * depth
    return f"{start}{margin} {f',{margin} '.join(parts)}{margin}{end}"


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its missing parents, and wait until they are on the disk."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.is_dir()]
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def cache_folder() -> Path:
    """Return the folder for files that can be made again: ``~/.cache/deepbdc``."""
    return Path.home() / ".cache" / "deepbdc"


def _sync_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    handle = os.open(path, os.O_RDWR)  # Windows flushes only files that are open for writing
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Wait until new, renamed and removed entries of ``folder`` are on the disk.

    Does nothing where a folder cannot be opened or flushed, as on Windows and on some network file systems.
    """
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_npz(path: str | Path) -> dict[str, Any]:
    """Read all arrays of an ``.npz`` file and unpickle nothing; a damaged file raises an error that names it."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged or is not an .npz file of plain arrays ({type(error).__name__})") from error
