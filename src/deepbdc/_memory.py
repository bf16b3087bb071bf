"""The memory of this process."""

import ctypes
from contextlib import suppress


def keep_freed_memory() -> None:
    """Ask the C library to keep freed memory for the next step instead of giving it back to the system.

    Each activation of a network would otherwise be mapped and zeroed anew, a tenth or more of the time on the CPU.
    Where there is no such call, nothing happens. Blocks of more than 32 MB are always given back.
    """
    trim_threshold, mmap_threshold = -1, -3  # the names of glibc's mallopt
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 2**25)  # the largest that it takes
        library.mallopt(trim_threshold, 2**30)
