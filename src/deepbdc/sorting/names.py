"""Names of folders for classes, and free names for files."""

import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

FORBIDDEN = frozenset('/\\:*?"<>|')
"""Characters that some operating system does not allow in folder names."""
RESERVED = frozenset(
    {"con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}
)
"""Names that Windows reserves for devices."""
LONGEST_NAME = 200
"""The most bytes of a folder name; file systems allow 255."""


def safe_folder_name(label: Any) -> str:
    """Turn a class name into a folder name that every operating system allows and that cannot lead to another folder.

    >>> safe_folder_name("Tit, great/blue"), safe_folder_name("../../etc"), safe_folder_name("..")
    ('Tit, great_blue', '_.._etc', 'unnamed')
    """
    text = "".join("_" if sign in FORBIDDEN or not sign.isprintable() else sign for sign in str(label)).strip(". ")
    text = text.encode()[:LONGEST_NAME].decode(errors="ignore").strip(". ")
    return f"{text}_" if text.casefold().partition(".")[0] in RESERVED else text or "unnamed"


def folder_names(labels: Sequence[Any]) -> list[str]:
    """Give each label its own folder name; the names also differ on file systems that ignore case.

    >>> folder_names(["a/b", "a_b", "A_B"])
    ['a_b', 'a_b (2)', 'A_B (3)']
    """
    names: list[str] = []
    for label in labels:
        taken = {name.casefold() for name in names}
        names.append(next(name for name in numbered(safe_folder_name(label)) if name.casefold() not in taken))
    return names


def numbered(name: str) -> Iterator[str]:
    """Yield ``name``, ``name (2)``, ``name (3)``, ..., to find a name that is not taken."""
    yield name
    for number in count(2):
        yield f"{name} ({number})"


def file_names(name: str) -> Iterator[str]:
    """Yield ``a.jpg``, ``a (2).jpg``, ``a (3).jpg``, ..."""
    stem, suffix = os.path.splitext(name)
    return (f"{text}{suffix}" for text in numbered(stem))
