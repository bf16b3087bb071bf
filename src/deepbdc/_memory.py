"""The memory of this process: how much it may use, and what happens to memory that it frees."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_UNKNOWN = 8 * 2**30  # assumed where the system tells nothing


def keep_freed_memory(large_blocks: bool = False) -> None:
    """Ask the C library to keep freed memory for later allocations instead of returning it to the system.

    Otherwise the system maps and zeroes new memory for every activation of a network, which takes a tenth or more of
    the time on the CPU. Where the C library has no such call, nothing happens.

    Args:
        large_blocks: Keep blocks of more than 32 MB, too, as a training needs them again in every step. The process
            then stays as large as it ever was.
    """
    trim_threshold, mmap_threshold, mmap_max = -1, -3, -4  # names of glibc's mallopt, with M_ before them
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 2**25)  # the largest value that glibc accepts
        library.mallopt(trim_threshold, 2**30)
        if large_blocks:
            library.mallopt(mmap_max, 0)  # no block is mapped by itself, whatever its size


def usable_memory(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of memory that this process may use: the physical memory, or a container's limit if that is lower.

    Args:
        proc: Where the proc file system is mounted.
        cgroups: Where the control groups are mounted.
    """
    known = [_physical_memory(), *(_limit(file) for file in _limit_files(proc, cgroups))]
    return min((size for size in known if size is not None), default=_UNKNOWN)


def _physical_memory() -> int | None:
    try:
        page_size, pages = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return page_size * pages if min(page_size, pages) > 0 else None  # sysconf returns -1 for an unknown value


def _limit_files(proc: Path, cgroups: Path) -> Iterator[Path]:
    """The files that may hold a memory limit of this process's control group or of one of its parents.

    Not all of them exist. In particular, a container often sees its own group mounted as the root, while the path of
    the group is the one on the host: then only the file in the root exists.
    """
    try:
        lines = (proc / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and not controllers:  # version 2
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):  # version 1
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(group.lstrip("/"))
        # The path of a group outside of the cgroup namespace of this process contains "..": only the root is visible.
        folders = [PurePosixPath()] if ".." in path.parts else [path, *path.parents]
        yield from (root / folder / name for folder in folders)


def _limit(file: Path) -> int | None:
    """The limit that a file holds, in bytes; None if there is no such file, or no limit in it (as in "max")."""
    try:
        size = int(file.read_bytes())
    except (OSError, ValueError):
        return None
    return size if size > 0 else None
