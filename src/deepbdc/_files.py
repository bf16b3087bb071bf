"""Files that are either whole or not there, and arrays that are read safely."""

import os
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from deepbdc.errors import UserError


@contextmanager
def temporary(target: Path) -> Iterator[Path]:
    """A name beside ``target`` to write to; it takes the place of ``target`` when the block ends well."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(target: str | Path, content: bytes) -> None:
    """Write a file, whole or not at all, and see it on the disk before it takes its name."""
    with temporary(Path(target)) as part, part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_text(target: str | Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with temporary(Path(target)) as part:
        part.write_text(text, encoding="utf-8")


def read_npz(path: str | Path) -> dict[str, Any]:
    """The arrays of an ``.npz`` file; a damaged one is a ValueError that names it. Nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise
    except (ValueError, OSError, EOFError, KeyError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged, or is no .npz file of plain arrays ({type(error).__name__})") from error
