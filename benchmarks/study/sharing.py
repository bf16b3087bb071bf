"""Locks with which several processes share the work, so that each task is done by one of them only."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(name: str, work: Path) -> Iterator[None]:
    """Wait until no other process works on the task ``name``, and keep others out until the block ends."""
    path = _lock(name, work)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_taken(name: str, work: Path) -> bool:
    """Whether another process works on the task ``name``."""
    path = _lock(name, work)
    if not path.is_file():
        return False
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _lock(name: str, work: Path) -> Path:
    return work / f"{name}.lock"
